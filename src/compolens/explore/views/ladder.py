"""The ladder: what the answers would be if more and more of the model's own work were done right, rung by rung."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from torch import Tensor

from compolens.activations.streams import draw
from compolens.explore.sets import Number, pooled
from compolens.explore.state import State
from compolens.explore.subjects import Subject
from compolens.explore.views.base import View, extent, opening
from compolens.figures import Bars, Drawing, Panel
from compolens.foundation.configs import DoesNotApply
from compolens.interventions.oracles import Search, best_code, written
from compolens.references import REFERENCES
from compolens.tasks.episodes import Episodes

SEARCHED = 8
"""Episodes whose code is searched for at most."""


class Rung(NamedTuple):
    """One rung on some episodes.

    Args:
        name: what is done right.
        number: the score of the answers.
        n: episodes.
    """

    name: str
    number: Number
    n: int


def rungs(subject: Subject, split: str, numbers: Tensor, state: State) -> tuple[list[Rung], list[str]]:
    """Scores along the ladder at the state's site.

    Own answer; own code written: what a readout finds of the code where it is read best, put at the site; true code written;
    best code: searched for on the context's examples, where `State.search` is set; ceiling: the family's own reference.

    Args:
        subject: the model under study.
        split: "test" or "ood".
        numbers: (n,) of the drawn episodes.
        state: what the reader has chosen.

    Returns:
        (the rungs that there are, why others are missing).
    """
    task, episodes = subject.task, subject.drawn(split).take(numbers)
    at = subject.code_at(subject.site(state))
    answers = {
        "own answer": subject.answers(split)[numbers],
        "own code written": written(subject.model, episodes, at, subject.read(split)[numbers]),
        "true code written": written(subject.model, episodes, at, subject.features(episodes)),
    }
    found = [Rung(name, _score(subject, answer, episodes), len(numbers)) for name, answer in answers.items()]
    missing = []
    try:
        if state.search:
            found.append(_searched(subject, split, numbers[:SEARCHED], state))
    except DoesNotApply as reason:
        missing.append(f"No best code: {reason}.")
    ceilings = [one for one in (kind() for kind in REFERENCES.values()) if one.name == task.ceiling]
    why = ceilings[0].why_not(task) if ceilings else "the family names none"
    if why:
        missing.append(f"No ceiling: {why}.")
    else:
        found.append(Rung("ceiling", _score(subject, ceilings[0].predict(task, episodes), episodes), len(numbers)))
    return found, missing


def _score(subject: Subject, answer: Tensor, episodes: Episodes) -> Number:
    error, weight = (part.cpu().numpy() for part in subject.task.errors(answer, episodes.targets))
    return pooled(error, weight, episodes.composition.cpu().numpy())


def _searched(subject: Subject, split: str, numbers: Tensor, state: State) -> Rung:
    """Started from what is read, from codes of training episodes, and from their mean, as in the probe."""
    episodes, n = subject.drawn(split).take(numbers), len(numbers)
    (others,) = draw(subject.task, "train", n, f"{subject.seed}/start", subject.trained.device, batch=n)
    code = subject.features(others)
    starts = [subject.read(split)[numbers], code, code.mean(0).expand_as(code)]
    best = best_code(subject.model, subject.task, episodes, subject.code_at(subject.site(state)), starts, Search())
    return Rung("best code", _score(subject, best.prediction, episodes), n)


def ladder(subject: Subject, state: State) -> View:
    """The rungs of the chosen episodes; of a single one, beside those of its composition. The number is the score with the
    true code written.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The view.
    """
    site, numbers = subject.site(state), subject.numbers(state)
    shown = {"this episode" if state.single else "the chosen set": numbers}
    if state.single:
        composition = subject.drawn(state.split).composition
        same = (composition == composition[numbers[0]]).nonzero()[:, 0]
        name = subject.task.composition_name(int(composition[numbers[0]]))
        shown[f"mean of its composition, {name}"] = same.cpu()
    marks, missing, first = [], list[str](), list[Rung]()
    for (label, which), color in zip(shown.items(), ("#D55E00", "#BBBBBB"), strict=False):
        found, missing = rungs(subject, state.split, which, state)
        first = first or found
        data = pd.DataFrame([{"rung": rung.name, **rung.number._asdict()} for rung in found])
        marks.append(Bars(data, "rung", "value", lo="lo", hi="hi", label=label, color=color))
    panel = Panel("", "more work done right →", subject.task.score_name, marks)
    read = subject.best_read.site
    notes = [
        f"Codes written at layer {site.layer}, {site.role}; own code read at layer {read.layer}, {read.role}.",
        f"Best code: at most {SEARCHED} episodes are searched for." if state.search else "",
        *missing,
        extent(subject, state),
    ]
    drawing = Drawing(f"Ladder: {subject.title}", (panel,), " ".join(filter(None, notes)))
    true = next(rung for rung in first if rung.name == "true code written")
    what = f"{subject.task.score_name} with the true code written at layer {site.layer}, {site.role}"
    return View(drawing, true.number, what, _python(subject, state), {})


def _python(subject: Subject, state: State) -> str:
    site = subject.site(state)
    imports = (
        "from compolens.activations import sites",
        "from compolens.explore import Subject",
        "from compolens.interventions.oracles import written",
    )
    lines = [
        *opening(subject, state, *imports),
        f"(site,) = [s for s in sites(model) if (s.layer, s.role) == ({site.layer}, {site.role!r})]",
        f"subject = Subject(trained, {state.episodes}, {subject.seed})",
        "at = subject.code_at(site)  # how the code stands there, fitted on training compositions",
        f"own, true = subject.read({state.split!r})[chosen], subject.features(episodes)",
        "print(task.score(written(model, episodes, at, own), episodes.targets))  # own code written",
        "print(task.score(written(model, episodes, at, true), episodes.targets))",
    ]
    return "\n".join(lines) + "\n"
