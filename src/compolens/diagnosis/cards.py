"""A diagnosis as a card: the label, whether it is confirmed, the loss in parts, three sentences, what would change it.

Everything else that was measured is evidence beneath. Reads tables only.
"""

from __future__ import annotations

from dataclasses import dataclass

from compolens import tables
from compolens.diagnosis import label as diagnosis
from compolens.diagnosis.decomposition import NOTHING, Loss
from compolens.diagnosis.evidence import Clause
from compolens.diagnosis.groups import SEEDS
from compolens.diagnosis.measured import NEEDS
from compolens.diagnosis.sentences import Judgement

NO_LABEL = "no diagnosis"
"""The label of models whose tables do not allow one."""
STANDINGS = {
    "confirmed": "the claim holds in at least {seeds} seeds",
    "not confirmed": "a repair of what is blamed does no better than one elsewhere",
    "contradicted": "a repair speaks against the label",
    "too few seeds": "the claim holds in these models, and needs at least {seeds} seeds",
    "not tested": "compolens explain FOLDER --confirm repairs what is blamed",
}
"""What a standing means."""


@dataclass(frozen=True)
class Card:
    """What a reader is told first about a group of models.

    Args:
        who: the group in words.
        label: what is wrong, in a word or two.
        meaning: the label in a sentence.
        standing: one of `STANDINGS`.
        why: what the standing means.
        score: on held-out compositions, from the table generalization; NaN without a diagnosis.
        ceiling: the score that can be had.
        parts: of the loss on held-out compositions.
        rests_on: the clauses that the label and the parts rest on.
        sentences: at most three.
        change: what would change the label.
        evidence: everything else.
    """

    who: str
    label: str
    meaning: str
    standing: str
    why: str
    score: float
    ceiling: float
    parts: dict[str, Loss]
    rests_on: tuple[Clause, ...]
    sentences: tuple[Clause, ...]
    change: tuple[Clause, ...]
    evidence: tuple[Clause, ...]

    @property
    def lost_elsewhere(self) -> float | None:
        """What the parts add up to, where that is not what the score lacks to the ceiling: they are of other episodes."""
        whole = sum(loss.value for loss in self.parts.values())
        return whole if self.parts and abs(self.ceiling - self.score - whole) >= APART else None


APART = 0.005
"""Units of the score by which the parts of a loss may differ from it without a word."""
NOT_JUDGED = "it rests on {tables}, and {folder} has no {missing} that can be used; `{command}` measures it, or says why not"


def card(judged: Judgement) -> Card:
    """The card of a group.

    Args:
        judged: what the tables say of it.

    Returns:
        The card. Each clause stands on it once: as a sentence, as what the label rests on, or as evidence.
    """
    found = judged.found
    answers, others = judged.scores[:2], judged.scores[2:]
    reason, more = _why(judged)
    # of a compositional model, a repair speaks of what little is left, not of the label
    tested = judged.confirmation if found and found.label != "compositional" else ()
    aside = () if tested else judged.confirmation
    caution, more_cautions = judged.cautions[:1], judged.cautions[1:]
    if caution and tested:  # three sentences at most
        aside, tested = (*tested, *aside), ()
    joined = (Clause("; ".join(c.text for c in answers), tuple(e for c in answers for e in c.evidence)),) if answers else ()
    return Card(
        who=judged.who,
        label=found.label if found else NO_LABEL,
        meaning=diagnosis.LABELS[found.label] if found else _why_none(judged),
        standing=judged.standing,
        why=_why_standing(judged),
        score=found.scores["ood"] if found else float("nan"),
        ceiling=found.scores["ceiling"] if found else float("nan"),
        parts=found.parts["ood"] if found else {},
        rests_on=(*judged.label, *judged.parts),
        sentences=(*joined, *reason, *tested, *caution),
        change=judged.change,
        evidence=(*more, *more_cautions, *aside, *judged.asides, *others, *judged.rest),
    )


def _why_standing(judged: Judgement) -> str:
    """What the standing means; a label that blames no part asks for no repair."""
    if judged.standing == "not tested" and judged.found is not None and not judged.found.blamed:
        return "no part is blamed, so there is nothing to repair"
    return STANDINGS[judged.standing].format(seeds=SEEDS)


def _why_none(judged: Judgement) -> str:
    """What a diagnosis lacks, and what to type."""
    for folder in judged.group.folders:
        missing = [table for table in NEEDS if not tables.has(folder, table)]
        if missing:
            return NOT_JUDGED.format(
                tables=" and ".join(NEEDS),
                folder=folder,
                missing=" and no ".join(missing),
                command=tables.command_of(missing, folder),
            )
    return "its tables do not allow one"


def _why(judged: Judgement) -> tuple[tuple[Clause, ...], tuple[Clause, ...]]:
    """(the reason for the card, the others): the last one, as the others lead up to it.

    Where it is that a part is lost, the bar has the numbers and the sentence their shares."""
    found = judged.found
    if found is None or not found.blamed or len(judged.reasons) > 1:
        last = tuple(Clause(c.text.removeprefix("because "), c.evidence) for c in judged.reasons[-1:])
        return last, judged.reasons[:-1]
    gap, lost = found.scores["test"] - found.scores["ood"], found.parts["lost"]
    order = sorted(lost, key=lambda part: -lost[part].value)
    told = ", ".join(f"{part} is {100 * lost[part].value / gap:.0f} %" for part in order if lost[part].value >= NOTHING)
    how = "a part counts by how much larger it is than on training compositions"
    text = f"of the {gap:.3f} lost from training to held-out compositions, {told} ({how}); the code is read at {found.place}"
    return (Clause(text, judged.reasons[0].evidence),), judged.reasons
