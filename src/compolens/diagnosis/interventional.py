"""What interventions say in a sentence: is the code used where it can be read, and are its factors used one by one?

From the tables `erase_code`, `swap_code` and `swap_factor`, which choose their sites on training compositions. Every sentence
names the controls that it rests on. Reads tables only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from compolens import tables

FOLLOWS = 0.5
"""An exchange counts if it takes the answer at least this share of the way to the counterfactual's."""
CAME_BACK = 0.5
"""An erasure without effect says nothing if later readouts find at least this share of the R² that was there before."""
NOTHING = 0.1
"""An exchange that takes the answer no more than this share of the way does nothing."""
RANDOM = ("random orthogonal", "random whitened", "random variance-matched")


class ModelMean(NamedTuple):
    """One number of a table: a mean over models.

    Args:
        where: column -> value, which rows.
        value: the number.
        lo: lower end of its interval.
        hi: upper end.
    """

    where: dict[str, str]
    value: float
    lo: float
    hi: float


class Finding(NamedTuple):
    """A sentence, and the numbers that carry it.

    Args:
        text: the sentence.
        table: the table's name.
        numbers: those of the sentence, controls among them.
    """

    text: str
    table: str
    numbers: tuple[ModelMean, ...]


def findings(folders: Sequence[Path]) -> list[Finding]:
    """What the tables that all models in `folders` have say."""
    sentences = {"erase_code": erased, "swap_code": exchanged, "swap_factor": reused}
    have = [name for name in sentences if all(tables.has(folder, name) for folder in folders)]
    told = []
    for name in have:
        frames = [_placed(folder, name) for folder in folders]
        told.append(sentences[name](frames) if all(map(_moved, frames)) else Finding(UNMOVED[name], name, ()))
    return told


UNMOVED = {
    "erase_code": "nothing can be said of erasing its code: no layer has a number",
    "swap_code": "another code would not change its answers, so that nothing can be recovered by an exchange",
    "swap_factor": "another factor would not change its answers, so that nothing can be recovered by an exchange",
}
"""What is said of models of which a table holds no number: their answers do not depend on the context."""


def _moved(frame: pd.DataFrame) -> bool:
    """Whether a table has a number behind the first layer, as it has wherever another code moves the answers."""
    own = frame[(frame["control"] == "") & frame["metric"].isin(["drop", "recovered"]) & (frame["split"] == "test")]
    return bool((own["value"].notna() & (own["layer"] > 0)).any())


def _placed(folder: Path, name: str) -> pd.DataFrame:
    """A table at its last step, with hook point and role as one column, `place`."""
    frame = tables.at_last_step(tables.read(folder, name))
    return frame.assign(place=frame["site"] + " " + frame["role"])


def _rows(frame: pd.DataFrame, **where: str) -> pd.DataFrame:
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame


def _number(frames: Sequence[pd.DataFrame], places: Sequence[str], **where: str) -> ModelMean:
    """The mean over models of the first such row that each has at its own site; NaN where one has none."""
    found = [_rows(frame, place=place, **where).head(1) for frame, place in zip(frames, places, strict=True)]
    mean = [float(np.mean([row[c].iloc[0] if len(row) else np.nan for row in found])) for c in ("value", "lo", "hi")]
    return ModelMean(where, *mean)


def _named(frames: Sequence[pd.DataFrame], places: Sequence[str]) -> str:
    """The sites in words: the first model's, and how many differ."""
    row = _rows(frames[0], place=places[0]).iloc[0]
    text = "the explicit code" if row["site"] == "hook_code" else f"layer {row['layer']:.0f}, {row['role']} tokens"
    others = sum(place != places[0] for place in places)
    return text + (f" (another place in {others} of {len(places)} models)" if others else "")


def _share(number: ModelMean) -> str:
    """A share of the way; far off it, a number would say nothing."""
    return f"{number.value:.2f}" if number.value > -1 else "none"


def _best(rows: pd.DataFrame) -> str:
    return str(rows["place"].iloc[int(rows["value"].argmax())])


# ---- sentences -------------------------------------------------------------------------------------------------------
def erased(frames: Sequence[pd.DataFrame]) -> Finding:
    """Does erasing the code cost more than erasing a random subspace of the same rank? From `frames`, a table `erase_code` a
    model."""
    places = []
    for frame in frames:
        rows = _rows(frame, scope="one layer", metric="drop", split="test")
        drawn = _rows(rows, control=RANDOM[0])["place"]
        places.append(_best(rows[(rows["control"] == "") & rows["place"].isin(drawn)]))
    drop = {"metric": "drop", "scope": "one layer", "split": "ood"}
    cost, shuffled = (_number(frames, places, **drop, control=control) for control in ("", "shuffled codes"))
    nulls = [_number(frames, places, **drop, control=kind) for kind in RANDOM]
    back = _number(frames, places, metric="r2 best downstream", scope="one layer", split="ood", control="")
    largest = max(nulls, key=lambda number: number.hi)
    if cost.value > max(largest.hi, shuffled.value):
        end = "what is erased is used"
    elif back.value >= CAME_BACK:
        end = f"nothing can be said, since the code is back further on (R² {back.value:.2f})"
    else:
        end = "no more than chance would"
    text = (
        f"with its code erased at {_named(frames, places)} it loses {cost.value:.3f} of its held-out score, where random "
        f"subspaces of that rank cost up to {largest.hi:.3f} ({largest.where['control'].removeprefix('random ')}, 95 % "
        f"quantile) and another episode's code {shuffled.value:.3f}: {end}"
    )
    return Finding(text, "erase_code", (cost, *nulls, shuffled, back))


def exchanged(frames: Sequence[pd.DataFrame]) -> Finding:
    """Does the answer follow another episode's activations, and how few directions carry that? From `frames`, a table
    `swap_code` a model."""
    places, enough, full = [], [], []
    known = {"metric": "recovered", "split": "test"}
    for frame in frames:
        rows = _rows(frame, **known, control="").sort_values("rank")
        rows = rows[rows["layer"] > 0]  # before the first layer the whole context is what was shown, whatever becomes of it
        whole = rows.groupby("place").tail(1)
        places.append(_best(whole))
        here = _rows(rows, place=places[-1])
        full.append(here.iloc[-1][["value", "lo", "hi"]])
        most = float(here["value"].iloc[-1])
        enough.append(int(here[here["value"] >= min(most, 0.9 * most)]["rank"].iloc[0]))
    number = ModelMean(
        known | {"control": "", "rank": "all"}, *(float(np.mean([row[c] for row in full])) for c in ("value", "lo", "hi"))
    )
    copied = _number(frames, places, **known, control="copied")
    if number.value < NOTHING:
        text = "no place is known whose activations, exchanged, take its answer towards another episode's"
        return Finding(f"{text} (at best {_share(number)})", "swap_code", (number, copied))
    ranks = str(enough[0]) if len(set(enough)) == 1 else f"{min(enough)} to {max(enough)}"
    text = (
        f"another episode's activations at {_named(frames, places)} take its answer {number.value:.2f} of the way to that "
        f"episode's code (copied answers: {copied.value:.2f}); {ranks} learned directions carry nine tenths of that"
    )
    beside, controls = _beside(frames)
    return Finding(text + beside, "swap_code", (number, copied, *controls))


SIMPLE = ("mean difference", "readout", "neurons")
"""Bases that need no search, as `swap_code` names them."""


def _beside(frames: Sequence[pd.DataFrame]) -> tuple[str, list[ModelMean]]:
    """What needs no search recovers beside the learned directions, and how natural their states are, where it was measured:
    at the better of the two sites that have controls, on training compositions."""
    if not all("directions" in frame for frame in frames):
        return "", []  # tables of version 2
    known = {"metric": "recovered", "split": "test"}
    placebos = [_rows(frame, **known, control="norm-matched random") for frame in frames]
    places, tops = [], []
    for frame, rows in zip(frames, placebos, strict=True):
        there = _rows(frame, **known, control="")
        there = there[there["place"].isin(rows["place"]) & there["rank"].isin(rows["rank"])]
        places.append(_best(there))
        tops.append(float(_rows(rows, place=places[-1])["rank"].iloc[0]))
    at_most = [frame[frame["rank"] <= top] for frame, top in zip(frames, tops, strict=True)]
    ordered = [frame.sort_values("rank", ascending=False) for frame in at_most]
    own, near, moved, *simple = (
        _number(ordered, places, **known, control=control)
        for control in ("", "least divergent half", "norm-matched random", *SIMPLE)
    )
    far, natural = (
        _number(ordered, places, metric="divergence", split="test", directions="sensitive", control=c) for c in ("", "natural")
    )
    told = ", ".join(f"{n.where['control']} {n.value:.2f}" for n in simple if not np.isnan(n.value))
    count = "/".join(f"{top:.0f}" for top in sorted(set(tops)))
    text = (
        f"; at {_named(frames, places)}, {count} learned directions recover {own.value:.2f} (on the half of the pairs whose "
        f"states diverge least {near.value:.2f}), random ones along which states move as far {moved.value:.2f} (95 % quantile "
        f"{moved.hi:.2f}), directions that need no search: {told}; states lie {far.value:.2f} from natural ones along the "
        f"directions that answers depend on, natural ones {natural.value:.2f}"
    )
    return text, [own, near, moved, *simple, far, natural]


def reused(frames: Sequence[pd.DataFrame]) -> Finding:
    """Does one factor, exchanged alone, turn the answer into the recombined task's? From `frames`, a table `swap_factor` a
    model."""
    places = [str(frame[frame["chosen"].astype(str).isin(["True", "1"])]["place"].iloc[0]) for frame in frames]
    every = {"factor": "all"}
    test, ood = (_number(frames, places, **every, metric="recovered", split=s, control="") for s in ("test", "ood"))
    score, random = (
        _number(frames, places, **every, metric="score", split="ood", control=control)
        for control in ("", "random coordinates")
    )
    shown = _number(frames, ["tokens all"] * len(frames), **every, metric="score", split="ood", control="shown")
    if ood.value >= FOLLOWS and score.lo > random.hi:
        end = "factors are used one by one, in combinations that it was never trained on too"
    elif ood.value >= FOLLOWS and not score.lo <= random.hi:  # one of the two has no interval
        end = "whether factors are used one by one in held-out combinations cannot be told, without an interval of the score"
    elif test.value >= FOLLOWS:
        end = "factors are used one by one in combinations that it was trained on, not in others"
    else:
        end = "no place is known where they are used one by one"
    text = (
        f"one factor exchanged alone at {_named(frames, places)} takes its answer {_share(test)} of the way to the "
        f"recombined task's where that is one of training, {_share(ood)} where it is held out (score {score.value:.2f}; "
        f"shown the recombined task itself {shown.value:.2f}, random coordinates exchanged {random.value:.2f}): {end}"
    )
    return Finding(text, "swap_factor", (test, ood, score, shown, random))
