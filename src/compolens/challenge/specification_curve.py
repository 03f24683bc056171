"""The specification curve: what a claim's effects over all defensible choices say as a whole (see `compolens.challenge`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from compolens.figures import Band, Drawing, HeatMap, Map, Panel, Rule

DRAWS = 999


@dataclass(frozen=True)
class Specification:
    """One way to measure.

    Args:
        layer: as in `activations.sites`.
        role: the token role.
        site: the hook point.
        penalty: l2 of the readout (None: chosen).
        rank: so many principal components (None: all directions).
        hidden: random rectified features that are read (0: the activations themselves).
        share: of the training compositions.
        context: examples shown, 0 where the family has no such number.
        inputs: their law, "as trained" or "skewed".
        control: what the model has to beat.
    """

    layer: int
    role: str
    site: str
    penalty: float | None
    rank: int | None
    hidden: int
    share: float
    context: int
    inputs: str
    control: str


class Evidence(NamedTuple):
    """Effects by specification (S) and held-out composition (C), and under permutations (P).

    Args:
        gain: (S, C), what each held-out composition adds to the effect.
        weight: (S, C), its share of the code's variance.
        r2: (S,) R² of the model's readout.
        control: (S,) R² of the control's readout.
        null: (S, P) effects under permuted codes.
    """

    gain: np.ndarray
    weight: np.ndarray
    r2: np.ndarray
    control: np.ndarray
    null: np.ndarray

    @property
    def effect(self) -> np.ndarray:
        """(S,): R² of the model's readout minus the control's."""
        return self.gain.sum(1)

    def of(self, kept: np.ndarray) -> Evidence:
        """The evidence of some specifications, `kept` (S,) bool."""
        return Evidence(*(part[kept] for part in self))


def tabulate(specifications: list[Specification], evidence: Evidence, episodes: int) -> pd.DataFrame:
    """Tidy: the effect of every specification; then, over all of them and by control, what `summary` says.

    Args:
        specifications: what was measured.
        evidence: their effects.
        episodes: per split, for the column n.

    Returns:
        The table.
    """
    lo, hi = _intervals(evidence)
    rows = [
        {"metric": "effect", "value": evidence.effect[i], "lo": lo[i], "hi": hi[i], "split": "ood", **asdict(s),
         "r2": evidence.r2[i], "control r2": evidence.control[i], "n": episodes}
        for i, s in enumerate(specifications)
    ]  # fmt: skip
    controls = [s.control for s in specifications]
    for control in ("all", *dict.fromkeys(controls)):
        kept = np.array([control in ("all", c) for c in controls])
        every = {"split": "ood", "site": "all", "role": "all", "control": control, "n": int(kept.sum())}
        rows += [{"metric": name, "value": value, **every} for name, value in summary(evidence.of(kept)).items()]
    frame = pd.DataFrame(rows)
    return frame.assign(penalty=frame["penalty"].astype(float), rank=frame["rank"].astype(float))


def summary(evidence: Evidence) -> dict[str, float]:
    """Median effect in `evidence`, share of positive ones, share whose interval is above 0; p-values of the first two under
    both nulls."""
    flips = np.random.default_rng(0).choice([-1.0, 1.0], size=(evidence.gain.shape[1], DRAWS))
    found = {"median effect": float(np.median(evidence.effect)), "share positive": float((evidence.effect > 0).mean())}
    found["share with interval above 0"] = float((_intervals(evidence)[0] > 0).mean())
    for name, null in (("permuted codes", evidence.null), ("swapped with control", evidence.gain @ flips)):
        beyond = (np.median(null, axis=0) >= found["median effect"], (null > 0).mean(0) >= found["share positive"])
        for what, as_extreme in zip(("median effect", "share positive"), beyond, strict=True):
            found[f"p of {what}, {name}"] = float((1 + as_extreme.sum()) / (1 + len(as_extreme)))
    return found


def _intervals(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """95 % bootstrap intervals of the effects over held-out compositions, drawn once for all specifications."""
    n = evidence.gain.shape[1]
    counts = np.random.default_rng(0).multinomial(n, [1 / n] * n, size=DRAWS).T
    lo, hi = np.quantile((evidence.gain @ counts) / (evidence.weight @ counts), [0.025, 0.975], axis=1)
    return lo, hi


def draw_curve(
    title: str, table: pd.DataFrame, specifications: list[Specification], evidence: Evidence, omitted: str = ""
) -> Drawing:
    """Effects in ascending order with their intervals, over the curve that permuted codes give; below, each one's choices.

    Args:
        title: of the drawing.
        table: from `tabulate`.
        specifications: what was measured.
        evidence: their effects.
        omitted: which choices do not apply, and why.

    Returns:
        The specification curve.
    """
    own = table[table["metric"] == "effect"].reset_index(drop=True)
    order = own["value"].to_numpy().argsort(kind="stable")
    rank = [str(i + 1) for i in range(len(order))]
    curve = own.iloc[order].assign(specification=rank)
    low, high = np.quantile(np.sort(evidence.null, axis=0), [0.025, 0.975], axis=1)
    null = pd.DataFrame({"specification": rank, "lo": low, "hi": high})
    quantity = "R² minus the control's"
    marks = (
        Band(null, "specification", "lo", "hi", label="permuted codes (95 %)", color="#444444"),
        Band(curve, "specification", "lo", "hi", label="interval over compositions (95 %)", color="#56B4E9"),
        Map(curve, "specification", "value", by="value", label=quantity),
        Rule(0.0, label="no better than the control"),
    )
    grid = _grid(specifications, order, own["value"].to_numpy())
    below = HeatMap(grid, "specification", "choice", "effect", label=quantity)
    caption = (
        f"{len(own)} specifications, sorted by effect; below, the choices that lead to each. "
        + " ".join(_said(table, control) for control in dict.fromkeys(s.control for s in specifications))
        + (f" Left out: {omitted}." if omitted else "")
    )
    panels = (
        Panel("Effect by specification", "", "R² on held-out compositions, minus the control's", marks),
        Panel("Choices", "specification, by effect", "", (below,)),
    )
    return Drawing(title, panels, caption, columns=1)


def _said(table: pd.DataFrame, control: str) -> str:
    """A sentence on all specifications with a control."""
    found = table[(table["control"] == control) & (table["metric"] != "effect")].set_index("metric")["value"]
    return (
        f"Against the {control}: {found['share positive']:.0%} positive, median {found['median effect']:.2f} "
        f"(p = {found['p of median effect, permuted codes']:.2g} under permuted codes, "
        f"{found['p of median effect, swapped with control']:.2g} with model and control swapped per composition)."
    )


def _grid(specifications: list[Specification], order: np.ndarray, effect: np.ndarray) -> pd.DataFrame:
    """A cell per specification and option, with the effect where the option was taken; choices without options have no row."""
    rows = []
    for choice in ("layer", "role", "penalty", "rank", "hidden", "share", "context", "inputs", "control"):
        taken = [getattr(s, choice) for s in specifications]
        options = list(dict.fromkeys(taken))
        for option in options if len(options) > 1 else ():
            name = _named(choice, option)
            rows += [
                {"specification": str(i + 1), "choice": name, "effect": effect[at] if taken[at] == option else np.nan}
                for i, at in enumerate(order)
            ]
    return pd.DataFrame(rows)


def _named(choice: str, option: Any) -> str:
    match choice, option:
        case "penalty", None:
            return "penalty chosen"
        case "rank", None:
            return "all directions"
        case "hidden", _:
            return f"{option} random features" if option else "linear"
        case "share", _:
            return f"{option:.0%} of compositions"
        case "context", _:
            return f"{option} examples"
        case "inputs", _:
            return f"inputs {option}"
        case "control", _:
            return f"vs {option}"
        case "role", _:
            return f"at {option} tokens"
        case _:
            return f"{choice} {option:g}"
