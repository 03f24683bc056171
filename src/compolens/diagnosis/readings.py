"""Where a code is lost, as readouts tell it: no code is written for this, and no site needs to be known.

A readout that is fitted to training compositions tells some of the code of training compositions that it has not seen, and
some of held-out ones. The first is the control of the second. Reads tables only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

READ = 0.4
"""R² on left-out training compositions from which a reading is asked about at all. By chance it is 0 or less."""
AS_TOLD = 0.9
"""A code counts as told if readouts tell this share of what they tell of left-out training compositions: states of planted
models that infer have .97 and more of it, those of planted models that do not .72 and less."""
HALF = 0.5
"""A code counts as lost between two places if of what is told at the first less than this share is told at the second, beside
the same of training compositions."""
LITTLE = 0.25
"""A code counts as not told below this share. Where the right code stands beside a wrong one in a form that is the same in
training, a readout gives their mean, and tells about half: that is no failure of inference, and must stay above."""
NOISE = 0.8
"""A reading's error counts as noise if this share of it averages away over episodes of a composition. Of noise it is all; of
another composition's code, drawn anew in every episode, half; of the same wrong code every time, nothing."""
LESS = 0.95
"""…and if it is there: readouts tell less than this share."""
NEARLY_ALL = 0.8
"""R² from which what a readout does not tell is too little to be what fails."""
SPANNED = 0.9
"""Share of what sets held-out compositions' mean states apart that lies among training ones': with it, nothing stands there
that no training composition has shown, and the executor meets what it knows."""


class Told(NamedTuple):
    """What readouts tell at one site, as R².

    Args:
        layer: of the site.
        role: of its tokens.
        training: of training compositions that were left out.
        held: of held-out compositions, fitted to training ones.
        held_hi: the upper end of its interval.
        others: of held-out compositions, fitted to other held-out ones as well.
        others_hi: the upper end of its interval.
        scatter: share of the error of `held` that averages away over episodes of a composition.
        token: of the single token that tells most, the share of what single tokens of training compositions tell; NaN where
            that is too little, or where tokens were not looked at.
        among: share of what sets held-out states apart that lies among training states.
    """

    layer: float
    role: str
    training: float
    held: float
    held_hi: float
    others: float
    others_hi: float
    scatter: float
    token: float
    among: float

    @property
    def share(self) -> float:
        """Of what is told of left-out training compositions, the share that is told of held-out ones."""
        return self.held / self.training

    @property
    def noisy(self) -> bool:
        """Whether held-out compositions are told worse because of noise."""
        return self.scatter >= NOISE and self.held_hi < LESS * self.training

    @property
    def wrong(self) -> bool:
        """Whether no readout tells the code of held-out compositions, or only noise around it."""
        if self.noisy:
            return self.held_hi < HALF * self.training
        return self.held_hi < LITTLE * self.training and self.others_hi < LITTLE * self.training


NAMED_IN_TRAINING = 0.7
"""Share of training episodes whose state tells their composition, from which the same is asked of held-out ones."""
MERGED = 0.75
"""Compositions count as lost if of what is told in training less than this share is told of held-out ones: every fourth
episode lies nearer to another composition, and whatever comes after answers it as that."""


class Named(NamedTuple):
    """How often the state at one site tells its composition, in whatever form that stands there.

    Args:
        layer: of the site.
        role: of its tokens.
        training: share of episodes of training compositions.
        held: share of episodes of held-out compositions.
        held_hi: the upper end of its interval; infinite where all are told.
    """

    layer: float
    role: str
    training: float
    held: float
    held_hi: float

    @property
    def kept(self) -> bool:
        """Whether held-out compositions are told as training ones are."""
        return self.held >= AS_TOLD * self.training

    @property
    def lost(self) -> bool:
        """Whether some held-out compositions are not told from others."""
        return self.held < MERGED * self.training and self.held_hi < AS_TOLD * self.training


def named_at(forms: pd.DataFrame) -> tuple[Named, ...]:
    """How often states tell their composition, at every site where those of training do (`NAMED_IN_TRAINING`).

    Args:
        forms: the table `nonlinear_code`.

    Returns:
        The sites, by layer; none from tables of versions before 5.
    """
    if forms.empty:
        return ()
    rows = forms[["layer", "site", "role", "split", "value", "hi"]]
    rows = rows[(forms["metric"] == "composition told") & (forms["control"] == "")]
    found = []
    for _, some in rows.groupby(["layer", "site", "role"]):
        layer, role = some["layer"].iloc[0], some["role"].iloc[0]
        by_split = some.set_index("split")
        training, held, hi = by_split["value"]["test"], by_split["value"]["ood"], by_split["hi"]["ood"]
        if training >= NAMED_IN_TRAINING:
            found.append(Named(float(layer), str(role), float(training), float(held), float(np.nan_to_num(hi, nan=np.inf))))
    return tuple(found)


def told_at(forms: pd.DataFrame) -> tuple[Told, ...]:
    """What readouts tell, at every site where they tell anything of left-out training compositions.

    Args:
        forms: the table `nonlinear_code`.

    Returns:
        The sites, by layer; none from tables of versions before 5.
    """
    if forms.empty or not (forms["metric"] == "told").any():
        return ()
    needed = ["metric", "split", "control", "chosen", "layer", "site", "role", "value", "hi"]
    rows = forms[needed][forms["composition"] == "all"]

    def one(metric: str, split: str, control: str = "", taken: bool = False) -> pd.DataFrame:
        found = rows[(rows["metric"] == metric) & (rows["split"] == split) & (rows["control"] == control)]
        found = found[found["chosen"] == 1] if taken else found
        return found.drop_duplicates(["site", "role"]).set_index(["site", "role"])

    training = one("left-out R²", "train", taken=True)
    held, others = one("told", "ood"), one("told", "ood", "fitted to held-out ones too")
    scatter, among = one("scatter of what is told", "ood"), one("among training states", "ood")
    token, tokens = (one("told at a token", split)["value"] for split in ("ood", "train"))
    found = []
    for place in training.index.intersection(held.index):
        row, by_training, by_others = training.loc[place], held.loc[place], others.loc[place]
        if row["value"] < READ:
            continue
        of_tokens = tokens.get(place, np.nan)
        found.append(
            Told(
                float(row["layer"]),
                str(place[1]),
                float(row["value"]),
                float(by_training["value"]),
                float(by_training["hi"]),
                float(by_others["value"]),
                float(by_others["hi"]),
                float(scatter["value"].get(place, np.nan)),
                float(token.get(place, np.nan) / of_tokens) if of_tokens >= READ else np.nan,
                float(among["value"].get(place, np.nan)),
            )
        )
    return tuple(sorted(found, key=lambda one: one.layer))


class Reading(NamedTuple):
    """What readings say of a failure.

    Args:
        part: "use", "inference" or "execution".
        why: in words.
    """

    part: str
    why: str


def reading_of(told: Sequence[Told], named: Sequence[Named] = ()) -> Reading | None:
    """Where the code of held-out compositions is lost.

    Args:
        told: from `told_at`.
        named: from `named_at`; asked where no readout tells the code of the context.

    Returns:
        The part, or None where readings do not say.
    """
    if any(one.role == "context" for one in told):
        return _lost_on_the_way(told) or _not_inferred(told) or _not_executed(told)
    return _merged(named)


def _merged(named: Sequence[Named]) -> Reading | None:
    """Where held-out compositions are told from one another no more: what is lost there cannot come back.

    That a composition is told does not mean that its code is right, so nothing follows from it."""
    context = [one for one in named if one.role == "context"]
    if not context:
        return None
    here = "of the episodes of held-out compositions have a state that tells which one it is"
    if all(one.lost for one in context) and not any(one.kept for one in named):
        at = f"at {_place(context[0])}, of training compositions {context[0].training:.0%}"
        return Reading("inference", f"only {context[0].held:.0%} {here} {at}")
    first = next((one for one in context if one.kept), None)
    if first is None:
        return None
    after = [one for one in named if one.role != "context" and one.layer > first.layer]
    if not after or not all(one.lost for one in after):
        return None
    behind = f"{after[-1].held:.0%} at {_place(after[-1])} (of training {after[-1].training:.0%})"
    return Reading("use", f"{first.held:.0%} {here} at {_place(first)}, but {behind}")


def noise_in(told: Sequence[Told]) -> bool:
    """Whether the code of held-out compositions is noisy wherever the context's is told.

    Args:
        told: from `told_at`.

    Returns:
        Yes or no; no where the context's code is not told.
    """
    context = [one for one in told if one.role == "context"]
    return bool(context) and all(one.noisy for one in context)


def _place(one: Told | Named) -> str:
    return "the explicit code" if one.role == "all" else f"layer {one.layer:.0f}, {one.role} tokens"


def _lost_on_the_way(told: Sequence[Told]) -> Reading | None:
    """Told at the context, and not where answers are given."""
    for before in (one for one in told if one.role == "context" and not one.noisy):
        after = [one for one in told if one.role != "context" and one.layer > before.layer]
        if not after:
            continue
        by_others = before.others / before.training
        if before.share >= AS_TOLD:
            how, there = "", before.share
        elif before.token >= AS_TOLD:
            how, there = " by one of them alone", before.token
        elif by_others >= AS_TOLD:
            how, there = " to readouts that know other held-out ones", by_others
        else:
            continue
        best = [np.maximum(one.held_hi, one.others_hi) if there == by_others else one.held_hi for one in after]
        left = float(np.max([hi / one.training for hi, one in zip(best, after, strict=True)]))
        if left < HALF * there:
            return Reading(
                "use",
                f"the code of held-out compositions is told at {_place(before)}{how}, as well as those of training are "
                f"({min(there, 1):.0%}), and of this at most {max(left, 0) / there:.0%} up to {_place(after[-1])}",
            )
    return None


def _not_inferred(told: Sequence[Told]) -> Reading | None:
    """Told nowhere, though that of left-out training compositions is."""
    context = [one for one in told if one.role == "context"]
    if not context or not all(one.wrong for one in told) or any(one.token >= AS_TOLD for one in context):
        return None
    best = max(context, key=lambda one: one.training)
    noise = f"; {best.scatter:.0%} of the error is noise" if best.noisy else ""
    return Reading(
        "inference",
        f"no readout tells the code of held-out compositions, as it does that of left-out training ones ({_place(best)}: R² "
        f"{best.held:.2f} and {best.training:.2f}{noise})",
    )


def _not_executed(told: Sequence[Told]) -> Reading | None:
    """Told as in training up to where answers are given, in states that are made of training ones."""
    after = [one for one in told if one.role != "context"]
    if not after:
        return None
    last = after[-1]
    if not (last.training >= NEARLY_ALL and last.among >= SPANNED and all(one.share >= AS_TOLD for one in after)):
        return None  # also where one of these is not known
    return Reading(
        "execution",
        f"the code of held-out compositions is told where answers are given, as that of left-out training ones is "
        f"({_place(last)}: R² {last.held:.2f} and {last.training:.2f}), and nothing stands there that training compositions "
        f"do not show ({last.among:.2f})",
    )
