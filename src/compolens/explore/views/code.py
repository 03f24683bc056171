"""The code, true, decoded and written; and what writing it at a site does to the answer, beside its controls."""

from __future__ import annotations

import numpy as np
import pandas as pd
from torch import Tensor

from compolens.activations.sites import Site
from compolens.explore import edits
from compolens.explore.sets import Number
from compolens.explore.state import State
from compolens.explore.subjects import Subject
from compolens.explore.views.base import View, extent, opening
from compolens.figures import Bars, Drawing, Panel, Points
from compolens.foundation.configs import DoesNotApply
from compolens.tasks.episodes import Episodes

CONTROL = "#888888"
NAMED = 12
"""Parts of a code that fit on an axis with their names; of more, the pointer shows them."""


def code(subject: Subject, state: State) -> View:
    """Panels: the code, how far the answers moved and how far controls did, and whose task the answers fit.

    The number is how much of the way the answers moved to those of the written code; where there is no way, because the code
    is the episode's own or none that the family can show, it is the score of the answers against the episode's own task.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The view.
    """
    site, wanted = subject.site(state), edits.code_to_write(subject, state)
    aims = edits.goals(subject, state, wanted)
    made = edits.edit(subject, state, site, wanted)
    panels = [_codes(subject, state, wanted), _scores(subject, state, made, aims)]
    notes = [f"Written at layer {site.layer}, {site.role} ({site.hook_name}), rank {made.rank} of {made.width}."]
    goal = None if aims.written is aims.own else aims.written
    if goal is None:
        number, what = edits.score(subject, state, made.after, aims.own), f"{subject.task.score_name} against its own task"
        notes.append(_why_no_goal(aims, state))
    else:
        there = edits.wanted(subject, goal)
        number, what = edits.share(subject, state, made, there), f"share of the way to the answers of the {_written(state)}"
        panels.insert(1, _moves(subject, state, wanted, made, goal, there, number, notes))
    if _continuous(subject) and state.single:
        panels.append(_answer(subject, made, aims.own, goal))
    drawing = Drawing(f"Code written: {subject.title}", panels, " ".join([*notes, extent(subject, state)]), columns=2)
    return View(drawing, number, what, _python(subject, state, site, goal is not None), {})


def _written(state: State) -> str:
    return "written code" if state.parts else state.write


def _why_no_goal(aims: edits.Goals, state: State) -> str:
    if aims.donor is aims.own and state.write != "own code" and not state.parts:
        return "An episode is its own donor: nothing is moved."
    if aims.written is aims.own:
        return "Written with its own code, the answer should stay."
    if state.parts:
        return "The family cannot show a task under this code, so there is no answer to move to; see the scores."
    return "No factor can be exchanged between this episode and its donor; choose another donor, or the donor's code."


def _continuous(subject: Subject) -> bool:
    return subject.drawn("ood").targets.is_floating_point()


# ---- panels ----------------------------------------------------------------------------------------------------------
def decoded(subject: Subject, state: State) -> Tensor:
    """What the readout at the site finds of the chosen episodes' codes.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        (n, parts) float64, in the order of `code_numbers`.
    """
    site = subject.site(state)
    return subject.code_at(site).decode(subject.model, subject.seen(state, site).sites[site.hook_name])


def _codes(subject: Subject, state: State, wanted: Tensor) -> Panel:
    true, names = subject.features(subject.bases(state)), subject.part_names()
    parts = {"true": (true, "#444444"), "decoded": (decoded(subject, state), "#0072B2"), "written": (wanted, "#D55E00")}
    marks = []
    for label, (values, color) in parts.items():
        middle = values.double().cpu().numpy().mean(0)
        x = names if len(names) <= NAMED else np.arange(len(names), dtype=float)
        data = pd.DataFrame({"part": x, "value": middle, "name": names})
        marks.append(Points(data, "part", "value", label=label, color=color, open=label == "true", hover="name"))
    title = "the code" if state.single else "the codes, mean over the set"
    return Panel(title, "part" if len(names) <= NAMED else "number of the part", "value", marks)


def _moves(
    subject: Subject,
    state: State,
    wanted: Tensor,
    made: edits.Edit,
    goal: Episodes,
    there: Tensor,
    number: Number,
    notes: list[str],
) -> Panel:
    controls = {"random subspace": edits.random_share(subject, state, made, there)}
    try:
        control = edits.edit(subject, state, subject.site(state), wanted, untrained=True)
        controls["untrained control"] = edits.share(subject, state, control, edits.wanted(subject, goal, untrained=True))
    except DoesNotApply as reason:
        notes.append(f"No untrained control: {reason}.")
    notes.append(f"Random subspaces: mean, least and largest of {edits.SUBSPACES}.")
    marks = [
        Bars(pd.DataFrame([{"x": x} | n._asdict() for x, n in found.items()]), "x", "value", lo="lo", hi="hi",
             color=color, label=label)
        for label, found, color in (("written", {"written": number}, "#D55E00"), ("controls", controls, CONTROL))
    ]  # fmt: skip
    return Panel("how far the answers moved", "", "share of the way", marks)


def _scores(subject: Subject, state: State, made: edits.Edit, aims: edits.Goals) -> Panel:
    tasks = {"own": aims.own, "recombined": aims.recombined, "donor's": aims.donor}
    if state.parts:
        tasks["written"] = aims.written
    marks = []
    for label, prediction, color in (("before", made.before, "#BBBBBB"), ("after", made.after, "#D55E00")):
        rows = [
            {"task": name, **edits.score(subject, state, prediction, wanted)._asdict()}
            for name, wanted in tasks.items()
            if wanted is not None
        ]
        marks.append(Bars(pd.DataFrame(rows), "task", "value", lo="lo", hi="hi", label=label, color=color))
    return Panel("whose task the answers fit", "scored against the answers of this code", subject.task.score_name, marks)


def _answer(subject: Subject, made: edits.Edit, own: Episodes, goal: Episodes | None) -> Panel:
    at = next(iter(subject.task.answers))
    shown = {"before": (made.before, "#BBBBBB", False), "after": (made.after, "#D55E00", False)}
    shown = {"own target": (own.targets, "#444444", True), **shown}
    if goal is not None and goal is not own:
        shown["goal's target"] = (goal.targets, "#0072B2", True)
    marks = []
    for label, (values, color, target) in shown.items():
        answer = values[0, at].double().cpu().numpy()
        data = pd.DataFrame({"output": [str(i) for i in range(len(answer))], "value": np.asarray(answer)})
        marks.append(Points(data, "output", "value", label=label, color=color, open=target))
    return Panel("the first question's answer", "output", "value", marks)


# ---- the same as a program -------------------------------------------------------------------------------------------
def _python(subject: Subject, state: State, site: Site, moves: bool) -> str:
    imports = (
        "from compolens.activations import sites",
        "from compolens.explore import State, Subject, edits",
        *(["from compolens.interventions.interchange import remaining"] if moves else []),
        "from compolens.interventions.oracles import written",
    )
    values = ", ".join(f"({i}, {x:g})" for i, x in state.parts)
    lines = [
        *opening(subject, state, *imports),
        f"(site,) = [s for s in sites(model) if (s.layer, s.role) == ({site.layer}, {site.role!r})]",
        f"state = State(split={state.split!r}, chosen=tuple(chosen.tolist()), donor={state.donor}, write={state.write!r}, "
        f"episodes={state.episodes}, parts=({values + ',' if values else ''}))",
        f"subject = Subject(trained, {state.episodes}, {subject.seed})",
        "at = subject.code_at(site)  # how the code stands there, fitted on training compositions",
        "code = edits.code_to_write(subject, state)  # (episode, part): edit it as you like",
        "after = written(model, episodes, at, code)",
    ]
    lines += _SHARE if moves else ["print(task.score(after, episodes.targets))"]
    return "\n".join(lines) + "\n"


_SHARE = [
    "goal = edits.goals(subject, state, code).written  # the same inputs under that code",
    "with torch.no_grad():",
    "    before, wanted = (model(shown.tokens) for shown in (episodes, goal))",
    "left, way = remaining(after, before, wanted, task.answers, episodes.targets)",
    "there = way > 1e-6 * way.max()  # episodes whose answer is another under that code",
    "print(float(1 - left[there].sum() / way[there].sum()))",
]
