"""What is wrong with a model: its loss on held-out compositions in parts, and a label, by rules with thresholds.

The parts are those of `compolens.diagnosis.decomposition`:
ceiling - score = use + inference + form + execution + unexplained. Reads tables only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.decomposition import (
    MOVES,
    NOTHING,
    Loss,
    by_the_better_editor,
    in_parts,
    in_words,
    ladders,
    located,
    lost_parts,
)
from compolens.diagnosis.likeness import FITTED, OWN_ERRORS, UNLIKE, Beside, Like
from compolens.diagnosis.measured import CONDITIONAL, DONORS, FURTHER, LINEAR, NEEDS, READABLE, RECOVERED, Measured
from compolens.diagnosis.power import BELOW, Power, power
from compolens.diagnosis.readings import NEARLY_ALL, Reading, noise_in, reading_of
from compolens.diagnosis.stability import Stability, stability
from compolens.measures.intervals import Scale, summarise, two_level_interval

LEARNED = 0.9
"""Test score as a share of the ceiling from which training compositions count as learned: below it the model has not finished
its training task, and its held-out score says little about composition."""
MARGIN = 0.15
"""*Compositional* is a claim of equivalence: (score - floor) / (ceiling - floor) on held-out compositions must be above
1 - MARGIN with 97.5 % confidence. The floor is the best learner that recombines nothing."""
FAILS = 0.05
"""A model fails if its held-out score lies below its test score by at least this much (in score units); with less there is
nothing to explain."""
DOMINATES = 0.5
"""A part is what is wrong if it explains at least this share of the score lost between training and held-out compositions."""
AS_TRAINED = 0.5
"""A model that answers all compositions a little wrong, held-out ones as well as training ones, is compositional too. At least
half of what it lacks must be lacking on training compositions. Its held-out score is then measured against its own test score,
with the same `MARGIN`. It must have this share of what can be had above the floor, or its training score would be as
little above it."""
IN_PARTS = 0.5
"""Share of what a composition's own episodes tell of its code that the parts of other compositions must tell, or the code does
not add up. That is a remark: products, signs with magnitudes and entries per composition all lack such parts, and only the
last is a memory."""
TELLS = 0.1
"""R² below which no readout, up to the capacity declared in `nonlinear_code`, tells a training composition's code from what
others show. Together with a code that does not add up, and with held-out states that are made of training states, that is a
memory: an entry per composition, of which another one's episodes say nothing. An entry can be written back: where writing
does not move answers to the codes it was fitted to (`MOVES`), or costs more than `FAITHFUL`, the code was not found, and
nothing is said of a memory."""
AS_ONE = 0.5
"""…if the errors are at least along those of the best training composition: what answers by an entry that is stored answers as
some training composition. Codes that are arbitrary words for every pair cannot be told from one another either, and are no
memory."""
MADE_OF = 0.8
"""…the latter if training compositions' mean states span at least this share of what sets held-out ones apart. A product of
parts has coordinates for held-out compositions that no training composition uses; a memory has none."""
FORESEEN = 0.5
"""If a mixture of regressions on the examples, fitted to the model's own answers on other compositions, foresees more than
this share of its squared error on held-out ones, and of what other episodes' examples leave of it, these answers follow from
the examples and need no code: a caution. Answers near to the mean are foreseen from any examples."""
FAITHFUL = 0.05
"""Writing the right code may cost this much on training compositions. Within it, a held-out composition that only another code
than the right one answers is not executed as the others are: form counts as execution. Beyond it, what is written is not what
the model writes itself, and form counts as inference."""
AGAIN = 0.5
"""A label that comes out again in less than this share of resampled compositions is not said: most measurements like this one
would have given another."""
RESAMPLED = 400
"""Draws of the one interval that the rules use, in each of these resamples."""
LABELS = {
    "compositional": "answers held-out compositions as an ideal learner would, or as it does training ones, up to the margin",
    "has not learned its training compositions": "there is no point in asking why it fails on others",
    "fails to infer": "given the right code it answers; its own code of held-out compositions is not right",
    "infers but does not use": "the right code can be read from it, and would help where it reads its code",
    "cannot execute": "given the right code, it does not answer held-out compositions",
    "memorised": "holds training compositions whole: it errs as a memory of them would",
    "generic regression": "answers like a learner that knows nothing of compositions",
    "undecided": "the tables do not say",
}


@dataclass(frozen=True)
class Diagnosis:
    """A label with its reasons.

    Args:
        label: what is wrong, in a word or two.
        reasons: sentences.
        parts: split -> part -> loss.
        scores: "test", "ood", "ceiling" and "floor".
        share: (score - floor) / (ceiling - floor) on held-out compositions.
        blamed: the part of the loss, "" if none.
        place: the site where the code is read, in words.
        change: what would change the label.
        power: part of which no loss was found (its interval reaches down to nothing) -> how likely one of `FAILS` would have
            been, however it is spread (see `compolens.diagnosis.power.power`); empty where no site is known.
        errors_like: of each label of `OWN_ERRORS` the learner whose errors on held-out compositions are most like the models'
            own.
        remarks: what else the tables say, which no label rests on.
        cautions: what speaks for care with the label.
    """

    label: str
    reasons: tuple[str, ...]
    parts: dict[str, dict[str, Loss]]
    scores: dict[str, float]
    share: Loss
    blamed: str
    place: str
    change: str
    power: dict[str, Power]
    errors_like: tuple[Like, ...]
    remarks: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def remainder(self) -> str:
        """The largest part of the held-out loss, of those that there is a repair for and that are not 0; "" if none."""
        there = {part: loss.value for part, loss in self.parts["ood"].items() if part in BELOW and loss.lo > 0}
        return max(there, key=lambda part: there[part], default="")


def faithful(models: Sequence[Measured]) -> bool:
    """Whether the right code, written into `models`, costs next to nothing on training compositions."""
    test = [model.rungs("test").pooled() for model in models]
    return float(np.mean([(t["own answer"] - t["true code written"]).item() for t in test])) <= FAITHFUL


def mean_scores(models: Sequence[Measured]) -> dict[str, float]:
    """test, ood, ceiling and floor: pooled scores, averaged over the `models`."""
    rows = [model.frame() for model in models]
    return {k: float(np.mean([row[k] for row in rows])) for k in rows[0]}


def share_of_what_can_be_had(models: Sequence[Measured], scores: dict[str, float], draws: int = 2000) -> Loss:
    """(ood - floor) / (ceiling - floor).

    Args:
        models: tables of models that differ in seeds alone.
        scores: from `mean_scores`.
        draws: of the interval's bootstrap.

    Returns:
        The share with its two-level interval; of one model alone the jackknife's over compositions, as percentiles of few
        compositions are too narrow. Of one composition, in however many models, there is none, NaN.
    """
    rows, tasks = [model.per_composition() for model in models], [model.task or i for i, model in enumerate(models)]
    found = two_level_interval(rows, draws=draws, tasks=tasks) if len(rows) > 1 else _over_compositions(rows[0])
    if len(set(tasks)) == 1 and all(len(row["value"]) == 1 for row in rows):
        found = found[0], np.nan, np.nan
    scale = max(scores["ceiling"] - scores["floor"], 1e-9)
    return Loss(*((value - scores["floor"]) / scale for value in found))


def _over_compositions(rows: dict[str, np.ndarray]) -> tuple[float, float, float]:
    value, weight = rows["value"].astype(float), rows["weight"].astype(float)
    found = summarise((1 - value) * weight, weight, np.arange(len(value)))
    return found.score, *found.interval_on(Scale.PLAIN)  # the other scale has no interval where nothing lacks anywhere


def told_by_parts(models: Sequence[Measured]) -> tuple[float, str]:
    """(share, site) of `Measured.parts_told`: the mean over the `models`, and the first one's site; NaN without a table."""
    shares, places = zip(*(model.parts_told(READABLE) for model in models), strict=True)
    return float(np.mean(shares)), places[0]


# ---- the label ---------------------------------------------------------------------------------------------------------
def measured(folders: Sequence[Path]) -> list[Measured] | None:
    """The tables of the models in `folders`; None where one that is needed is missing, stale or damaged."""
    if not all(tables.has(folder, table) for folder in folders for table in NEEDS):
        return None
    return [Measured.read(folder) for folder in folders]


@tables.read_once()
def diagnose(folders: Sequence[Path]) -> Diagnosis | None:
    """The diagnosis of the models in `folders`, which differ in seeds alone; None where a table cannot be used."""
    said = said_once(folders)
    return None if said is None else said[1]


def said_once(folders: Sequence[Path]) -> tuple[list[Measured], Diagnosis, Stability] | None:
    """The models, their diagnosis and its stability; in a block of `tables.read_once`, resampled once for all who ask.

    Args:
        folders: of models that differ in seeds alone.

    Returns:
        `as_diagnosed`'s models with what `said_of` says of them; None where a table cannot be used.
    """
    return tables.found_once(("said", *map(str, folders)), lambda: _said(folders))


def _said(folders: Sequence[Path]) -> tuple[list[Measured], Diagnosis, Stability] | None:
    models = measured(folders)
    if models is None:
        return None
    models = as_diagnosed(models)
    return models, *said_of(models)


def as_diagnosed(models: Sequence[Measured]) -> list[Measured]:
    """The models with the ladder that a diagnosis rests on: that of the editor that moves answers furthest.

    Args:
        models: tables of models that differ in seeds alone.

    Returns:
        The models.
    """
    return list(by_the_better_editor(models))


def said_of(models: Sequence[Measured]) -> tuple[Diagnosis, Stability]:
    """The diagnosis of models as it is said, and how often it comes out again.

    A label that does not come out again in `AGAIN` of the resampled compositions is not said: the diagnosis is undecided then,
    and names the two labels that come most often.

    Args:
        models: from `as_diagnosed`.

    Returns:
        The diagnosis, and the stability of the label that it has.
    """
    found = diagnosis_of(models)
    stable = again(models, found.label)
    if stable.label >= AGAIN:
        return found, stable
    shares = {found.label: stable.label, **stable.others}
    (one, often), (other, less) = sorted(shares.items(), key=lambda item: -item[1])[:2]
    torn = f'torn between "{one}" ({often:.0%} of resampled compositions) and "{other}" ({less:.0%})'
    undecided = replace(
        found,
        label="undecided",
        reasons=(*found.reasons, torn),
        blamed="",
        change=_CHANGES["undecided"],
        cautions=_cautions(models, "undecided", ""),
    )
    return undecided, stable.of("undecided")


def again(models: Sequence[Measured], label: str, seed: int = 0) -> Stability:
    """How often a label and the site come out again where other compositions are drawn.

    Args:
        models: from `as_diagnosed`.
        label: of their diagnosis.
        seed: of the resamples.

    Returns:
        The shares.
    """
    return stability(models, label, _label, seed)


def _label(drawn: Sequence[Measured]) -> str:
    """The label of a resample, from the point estimates and the one interval that the rules use."""
    scores = mean_scores(drawn)
    share = share_of_what_can_be_had(drawn, scores, RESAMPLED)
    lost = {part: Loss(value, np.nan, np.nan) for part, value in lost_parts(ladders(drawn), scores["ceiling"]).items()}
    return by_rules(drawn, scores, share, lost, {split: Beside.on(drawn, split) for split in ("test", "ood")})[0]


def diagnosis_of(models: Sequence[Measured]) -> Diagnosis:
    """The diagnosis of models by the rules alone, however rarely it comes out again.

    Args:
        models: from `as_diagnosed`.

    Returns:
        The diagnosis.
    """
    scores = mean_scores(models)
    share = share_of_what_can_be_had(models, scores)
    parts = in_parts(models, scores["ceiling"])
    beside = {split: Beside.on(models, split) for split in ("test", "ood")}
    label, reasons, blamed = by_rules(models, scores, share, parts["lost"], beside)
    place = models[0].place if located(models, scores["ceiling"]) else "no place that is known"
    seeds, absent = ladders(models), [part for part in BELOW if part in parts["lost"] and parts["lost"][part].lo <= NOTHING]
    powers = {part: power(seeds, scores["ceiling"], part, FAILS) for part in absent}
    errors_like = tuple(filter(None, (beside["ood"].most_like(learners) for learners in OWN_ERRORS.values())))
    return Diagnosis(
        label,
        tuple(reasons),
        parts,
        scores,
        share,
        blamed,
        place,
        _CHANGES[label],
        powers,
        errors_like,
        (*_remarks(models, scores), *_natural(models)),
        _cautions(models, label, blamed),
    )


def by_rules(
    models: Sequence[Measured], scores: dict[str, float], share: Loss, lost: dict[str, Loss], beside: dict[str, Beside]
) -> tuple[str, list[str], str]:
    """The label, by the first rule that holds.

    Args:
        models: tables of models that differ in seeds alone.
        scores: from `mean_scores`.
        share: from `share_of_what_can_be_had`.
        lost: the parts of what is lost from training to held-out compositions.
        beside: split -> the models beside learners.

    Returns:
        (label, reasons, blamed part).
    """
    generic = [beside[split].taken_for(OWN_ERRORS["generic regression"]) for split in ("test", "ood")]
    if generic[0] and generic[1]:
        return "generic regression", [f"its answers are those of {generic[1]}, on training compositions too"], ""
    top, gap = scores["ceiling"], scores["test"] - scores["ood"]
    if scores["test"] / top < LEARNED:
        reason = f"test score {scores['test']:.3f} is below {LEARNED} of the ceiling {top:.3f}"
        if gap >= FAILS:
            reason += f"; on held-out compositions it scores {scores['ood']:.3f}, and why that is less is not asked"
        return "has not learned its training compositions", [reason], ""
    had = f"of what can be had above the floor {scores['floor']:.3f} it has {share} on held-out compositions"
    if share.lo > 1 - MARGIN:
        return "compositional", [f"{had}, the whole interval above {1 - MARGIN:g}"], ""
    if gap < FAILS:
        own = (scores["ceiling"] - scores["floor"]) / max(scores["test"] - scores["floor"], 1e-9)
        as_well = gap <= DOMINATES * (top - scores["ood"])
        if as_well and share.lo >= AS_TRAINED and share.lo * own > 1 - MARGIN:
            against = f"{share.value * own:.3f} of what it has on training compositions, at least {share.lo * own:.3f}"
            return "compositional", [f"{had}: {against}, above {1 - MARGIN:g}"], ""
        return "undecided", [f"{had}, but only {gap:.3f} less than on training compositions: nothing to explain"], ""
    reasons = [f"from training to held-out compositions {gap:.3f} is lost: {in_words(lost)}"]
    if not located(models, scores["ceiling"]):
        return _without_a_site(models, reasons, min(model.moved for model in models), beside)
    shares = {part: lost[part].value for part in ("use", "inference", "execution")}
    shares["execution" if faithful(models) else "inference"] += lost["form"].value
    mended = shares["use"] + shares["inference"] >= DOMINATES * gap
    blames = "inference" if mended else "execution"
    end = "although a code written mends it" if mended else "and no code written wins half of it back"
    for label, learners in OWN_ERRORS.items():
        if (like := beside["ood"].errs_like(learners)) is not None:
            return label, [*reasons, f"its errors are those of {like}, {end}"], blames
    if (whole := stored_whole(models, beside["ood"])) is not None:
        return "memorised", [*reasons, f"{whole}, {end}"], blames
    if not mended and (like := beside["ood"].taken_for(FITTED)) is not None:
        return "generic regression", [*reasons, f"its answers are those of {like}, {end}"], blames
    blamed, read = max(shares, key=lambda part: shares[part]), _read(models, beside["ood"])
    if shares[blamed] < DOMINATES * gap:
        if read is not None:
            return _BLAMES[read.part], [*reasons, f"no part explains {DOMINATES:.0%} of it, but {read.why}"], read.part
        mixed = sorted((part for part in shares if shares[part] >= FEW * gap), key=lambda part: -shares[part])
        several = f": it fails in {len(mixed)} ways at once, by {' and by '.join(mixed)}" if len(mixed) > 1 else ""
        return "undecided", [*reasons, f"no part explains {DOMINATES:.0%} of it{several}"], ""
    return _both(models, blamed, read, reasons)


def _read(models: Sequence[Measured], beside: Beside) -> Reading | None:
    """What readings say of the models' failure, if they say the same of all; None where it may be another learner's.

    Regressions and memories have no code to be told: where their errors may be those of one, nothing follows from that."""
    found = [reading_of(model.told, model.named) for model in models]
    if (one := found[0]) is None or any(other is None or other.part != one.part for other in found):
        return None
    memory = beside.most_like(OWN_ERRORS["memorised"])
    like_a_memory = memory is not None and memory.cosine > UNLIKE
    return None if one.part == "inference" and (like_a_memory or _foreseen(models)) else one


def _both(models: Sequence[Measured], blamed: str, read: Reading | None, reasons: list[str]) -> tuple[str, list[str], str]:
    """The label by what is won where codes are written, and by what readouts tell.

    Args:
        models: tables of models that differ in seeds alone.
        blamed: the part that is won most of the loss.
        read: what readings say.
        reasons: sentences.

    Returns:
        (label, reasons, blamed part).
    """
    if blamed == "use" and all(noise_in(model.told) for model in models):
        why = (
            "the code of held-out compositions is noisy from the context on; a readout takes the noise off, the model does not"
        )
        return _BLAMES["inference"], [*reasons, why], "inference"
    if read is None or read.part in (blamed, "execution"):
        return _BLAMES[blamed], reasons, blamed
    if blamed == "inference":  # where it is written, the code comes too late to be inferred
        return _BLAMES["use"], [*reasons, f"{read.why}: what is won there counts as use"], "use"
    if blamed == "execution" and min(model.moved for model in models) < NEARLY_ALL:
        return _BLAMES[read.part], [*reasons, f"{read.why}; what is written moves answers too little to tell"], read.part
    return "undecided", [*reasons, f"by what is won it would be {blamed}, but {read.why}"], ""


def stored_whole(models: Sequence[Measured], beside: Beside) -> str | None:
    """What says that training compositions are stored whole, in words; None where that is not so or was not measured.

    Args:
        models: tables of models that differ in seeds alone.
        beside: the models beside learners, on held-out compositions.

    Returns:
        The words.
    """
    if min(model.moved_by(RECOVERED) for model in models) < MOVES or not faithful(models):
        return None  # what is stored can be looked up, and written: where this fails, the code was not found
    memory = beside.most_like(OWN_ERRORS["memorised"])
    if memory is not None and memory.cosine < AS_ONE:
        return None
    told, where = told_by_parts(models)
    read = max(model.read_when_left_out for model in models)
    made = min(model.among_training_states for model in models)
    if not (told < IN_PARTS and read < TELLS and made >= MADE_OF):
        return None
    return (
        f"other compositions' episodes say nothing of a training composition's code ({where}): no readout tells it (R² "
        f"{read:.2f}), parts do not add up to it ({told:.2f}), and held-out states are made of training ones ({made:.2f})"
        + ("" if memory is not None else "; whether its errors are a memory's was not measured")
    )


def _without_a_site(
    models: Sequence[Measured], reasons: list[str], moved: float, beside: dict[str, Beside]
) -> tuple[str, list[str], str]:
    """The label where no part can be blamed: only errors that are a learner's own still tell."""
    for label, learners in OWN_ERRORS.items():
        if (like := beside["ood"].errs_like(learners)) is not None:
            return label, [*reasons, f"its errors are those of {like}"], ""
    if (whole := stored_whole(models, beside["ood"])) is not None:
        return "memorised", [*reasons, whole], ""
    if (like := beside["ood"].taken_for(FITTED)) is not None:
        return "generic regression", [*reasons, f"its answers are those of {like}"], ""
    if (read := _read(models, beside["ood"])) is not None:
        return _BLAMES[read.part], [*reasons, read.why], ""
    fitted = min(model.moved_by(RECOVERED) for model in models)
    if moved >= MOVES:
        at_least = min(model.surely_moved for model in models)
        may_be = f"{moved:.2f} of the way, which may be as little as {at_least:.2f}"
        why = f"what writes its code moves answers {may_be}, and leaves much of the loss unexplained"
        return "undecided", [*reasons, why], ""
    if fitted >= MOVES:
        why = (
            f"nothing is known that writes its code: what was fitted to a composition moves answers {fitted:.2f} of the way, "
            f"what was fitted without it {moved:.2f}"
        )
        return "undecided", [*reasons, why], ""
    return "undecided", [*reasons, f"no place is known where it reads its code (writing moves answers {moved:.2f})"], ""


NO_STATE = "the split between inference and execution is undecided"


def natural_states(models: Sequence[Measured]) -> str:
    """Whether the right code of held-out compositions was there in states that are natural enough to ask what it wins.

    Donors are asked in the order of `DONORS`, the last assembled from two training donors.

    Args:
        models: tables of models that differ in seeds alone.

    Returns:
        The words; "" where it was not measured.
    """
    tried = []
    for editor in DONORS:
        found = [one for model in models if (one := model.donated(editor)) is not None]
        if len(found) < len(models):
            return ""
        reads, far, expected, own, wins = (float(np.mean([one[i] for one in found])) for i in range(1, len(found[0])))
        kind = "real episodes of the same code" if editor == "donor" else "two training episodes each (which no episode shows)"
        if all(one.passes for one in found):
            return (
                f"states with the right code of held-out compositions, from {kind}, lie {far:.2f} from natural ones (a new "
                f"composition is expected at {expected:.2f}); put where answers follow donors most, they win {wins:+.3f} on "
                f"{own:.3f}"
            )
        read = (
            f"their readout tells nothing of training compositions either, and they lie {far:.2f} away"
            if np.isnan(reads)
            else f"they read as it with {reads:.2f} of the R² on training ones and lie {far:.2f} away"
        )
        tried.append(f"from {kind}: {read}")
    return (
        f"{NO_STATE}: no state that holds the right code of held-out compositions lies where natural ones do, up to "
        f"{FURTHER * expected:.2f} ({'; '.join(tried)})"
    )


def _natural(models: Sequence[Measured]) -> tuple[str, ...]:
    told = natural_states(models)
    return () if not told or told.startswith(NO_STATE) else (told,)


def _foreseen(models: Sequence[Measured]) -> bool:
    """Whether the models' answers to held-out compositions follow from the examples (`FORESEEN`)."""
    return all(one.lo > FORESEEN and one.beyond > FORESEEN for one in (model.errors_foreseen for model in models))


def _cautions(models: Sequence[Measured], label: str, blamed: str) -> tuple[str, ...]:
    if label not in (*_BLAMES.values(), "memorised", "undecided"):
        return ()
    found = []
    if _foreseen(models):
        share = float(np.mean([model.errors_foreseen.share for model in models]))
        found.append(
            f"its answers may be those of a regression that is not on the list: a mixture of regressions on the examples, "
            f"fitted to its own answers on other compositions, foresees {share:.0%} of its squared error on held-out ones"
        )
    natural = natural_states(models) if blamed in ("inference", "execution") and label in _BLAMES.values() else ""
    return (*found, natural) if natural.startswith(NO_STATE) else tuple(found)


FEW = 0.25
"""A loss of which at least `MOST` lies in this share of the held-out compositions, or in one, is told by their names; parts of
at least this share of a loss are named where none explains half of it."""
MOST = 0.8


def where_it_fails(models: Sequence[Measured], scores: dict[str, float]) -> str | None:
    """Names the compositions in which a loss is concentrated, in words.

    Args:
        models: tables of models that differ in seeds alone.
        scores: from `mean_scores`.

    Returns:
        The words; None where it is spread, next to nothing, or held-out compositions differ between models.
    """
    frames = [pd.DataFrame(model.per_composition()).set_index("composition") for model in models]
    names = frames[0].index
    if len(names) < 4 or any(set(frame.index) != set(names) for frame in frames):
        return None
    both = pd.concat([frame.assign(weight=frame["weight"] / frame["weight"].sum()) for frame in frames])
    mean = both.groupby(level=0)[["value", "weight"]].mean()
    lost = ((scores["test"] - mean["value"]) * mean["weight"]).clip(lower=0).sort_values(ascending=False)
    few = max(1, int(FEW * len(names)))
    count = int((lost.cumsum() < MOST * lost.sum()).sum()) + 1
    if count > few or lost.sum() < FAILS / len(names):
        return None
    told = ", ".join(map(str, lost.index[:count]))
    which = "one composition" if count == 1 else f"{count} of {len(names)} compositions"
    return f"fails in {which}: {told} ({lost.iloc[:count].sum() / lost.sum():.0%} of what is lost on held-out ones)"


def _remarks(models: Sequence[Measured], scores: dict[str, float]) -> tuple[str, ...]:
    told, where = told_by_parts(models)
    found = [one] if (one := where_it_fails(models, scores)) is not None else []
    if (editor := models[0].editor) != LINEAR:
        why = ", whose change depends on what else stands there" if editor == CONDITIONAL else ""
        found.append(f"its code is not linear: written by the {editor} editor{why}, it moves the answers further")
    if not told < IN_PARTS:
        return tuple(found)
    return (
        *found,
        f"its code is not additive: of what its own episodes tell of a training composition's code ({where}), the "
        f"parts of others, added up, tell {told:.2f}; products, signs and entries per composition all look so",
    )


_BLAMES = {"use": "infers but does not use", "inference": "fails to infer", "execution": "cannot execute"}
_CHANGES = {
    "compositional": "a held-out score whose interval reaches below the margin",
    "has not learned its training compositions": "longer or better training, or more training episodes",
    "fails to infer": "a code written at that place that does not help, or a placebo that helps as much (--confirm)",
    "infers but does not use": "the decoded code written where it is read, and no better answers",
    "cannot execute": "the right code, written at another place, with which it answers",
    "memorised": "errors that do not point to the answers of a training composition",
    "generic regression": "errors that do not point to that learner's answers",
    "undecided": "more seeds, more episodes, or a place where writing a code moves the answers",
}
