"""Whether a repair confirms a diagnosis: the label says which part is at fault, and mending that part has to help."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compolens.diagnosis import label as diagnosis
from compolens.diagnosis.evidence import Clause, Evidence, rows_of
from compolens.diagnosis.groups import SEEDS, Group
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import mean_interval

CONFIRMS = {
    "use": "that the right code is missing where it reads its code (whether it stands elsewhere, a repair does not tell)",
    "inference": "that the right code is missing where it reads its code",
    "execution": "that what comes after the place where it reads its code has to change",
}
"""Part -> what a repair of it shows, if it wins more than every placebo."""
HOLDS_NO_CODE = ("memorised", "generic regression")
"""Labels of models that execute no code: what speaks against them is that a code, written, mends them."""
LEAST = 0.1
"""A repair confirms what it repairs if it wins at least this share of the gap from training to held-out compositions beyond
the best placebo; of a smaller gap, `LEAST_MARGIN`."""
LEAST_MARGIN = 0.01
_REPAIRS = ("code written", "fine-tuned")
_WITHOUT_CODE = {
    "memorised": "holds its training compositions whole",
    "generic regression": "knows nothing of compositions",
    "cannot execute": "cannot execute the right code",
}


@dataclass(frozen=True)
class _Repaired:
    """One repair: mean gain over seeds, its margin over the best placebo and the interval of that over seeds."""

    gain: float
    margin: float
    lo: float
    hi: float

    def wins(self, least: float) -> bool:
        return self.lo > 0 and self.gain > 0 and self.margin >= least

    def harms(self) -> bool:
        return self.hi < 0 and self.gain < 0

    @property
    def text(self) -> str:
        spread = f"[{self.lo:.3f}, {self.hi:.3f}]"
        change = f"{'gains' if self.gain >= 0 else 'loses'} {abs(self.gain):.3f} on held-out compositions"
        return f"{change} ({self.margin:+.3f} {spread} against the best placebo)"


def _repaired(group: Group, repair: str) -> _Repaired | None:
    """What a repair wins; its interval is over seeds from `SEEDS` on, else the widest of the seeds' own, over compositions."""
    where = {"split": "ood", "repair": repair, "control": "", "composition": "all"}
    try:
        rows = [rows_of(folder, "repair", metric="beats placebos", **where).iloc[0] for folder in group.folders]
        gains = [rows_of(folder, "repair", metric="gain", **where).iloc[0]["value"] for folder in group.folders]
    except ConfigError:
        return None
    margins = np.array([float(row["value"]) for row in rows])
    own = min(float(row["lo"]) for row in rows), max(float(row["hi"]) for row in rows)
    lo, hi = mean_interval(margins) if len(rows) >= SEEDS else own
    return _Repaired(float(np.mean(gains)), float(margins.mean()), lo, hi)


def _evidence(group: Group, repair: str, one: _Repaired) -> Evidence:
    """The row that a repair's margin is taken from."""
    where = {"metric": "beats placebos", "split": "ood", "repair": repair, "control": ""}
    return Evidence("repair", where, group.names, one.margin, one.lo, one.hi)


def confirmed(group: Group, blamed: str, found: diagnosis.Diagnosis) -> tuple[str, Clause]:
    """Which part a repair confirms, or what it says against the label.

    Of what little a compositional model lacks, that is asked too.

    Args:
        group: models with a table `repair`.
        blamed: the part of the loss that the label is about.
        found: their diagnosis.

    Returns:
        (standing, the clause that says it).
    """
    label, gap = found.label, found.scores["test"] - found.scores["ood"]
    code, tuned = (_repaired(group, repair) for repair in _REPAIRS)
    one, repair = (tuned, "fine-tuned") if blamed == "execution" else (code, "code written")
    if one is None:
        return "not tested", Clause(f"not tested: the repair of {blamed} could not be made", ())
    names = {
        "code written": "the right code written where it is blamed",
        "fine-tuned": "tuning only what comes after that place",
    }
    least, few = max(LEAST_MARGIN, LEAST * gap), len(group.folders) < SEEDS
    evidence = (_evidence(group, repair, one),)
    seeds = f" in {len(group.folders)} seed(s), too few for a claim" if few else ""
    speaks = label in _WITHOUT_CODE
    if speaks and code is not None and code.wins(diagnosis.DOMINATES * gap if gap > 0 else least):
        text = f"contradicted{seeds}: {names['code written']} {code.text}; "
        text += f"a model that {_WITHOUT_CODE[label]} would win nothing by it"
        return "contradicted" if not few else "too few seeds", Clause(text, (_evidence(group, "code written", code),))
    if label in HOLDS_NO_CODE:
        if code is None:
            return "not tested", Clause("not tested: the right code could not be written where it is blamed", ())
        text = f"not tested: a repair does not tell whose answers these are; {names['code written']} {code.text}"
        return "not tested", Clause(text, (_evidence(group, "code written", code),))
    claim = f" that what is left to win is {blamed}" if label == "compositional" else ""
    beats = f"{names[repair]} {one.text}"
    if one.wins(least):
        text = f"confirmed{claim}{seeds}, of {blamed}, {CONFIRMS[blamed]}: {beats}"
        return "too few seeds" if few else "confirmed", Clause(text, evidence)
    if one.harms() and label != "compositional":
        text = f"contradicted{seeds}: {beats}"
        return "contradicted" if not few else "too few seeds", Clause(text, evidence)
    return "not confirmed", Clause(f"not confirmed{claim} by its repair: {beats}", evidence)
