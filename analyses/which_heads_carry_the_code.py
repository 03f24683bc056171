"""Few heads and MLPs carry the code to the answer: exchanged alone, they move the answer to another task's."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, HeatMap, Panel
from compolens.foundation.configs import ConfigError

needs = ("components",)
ENOUGH = 0.8
"""A rank correlation with the exact exchange."""
SHOWN = {"": "exchanged", "another code": "third code (control)", "untrained": "untrained control"}


def analyze(models: list[Path], *, split: str = "ood", counterfactual: str = "whole code") -> Drawing:
    """Draw the effect of every head and MLP (activation patching, 2202.05262), layer by part.

    Three heat maps per architecture and setting: the exchange with the same inputs under another code; the control, in which
    a third code's activation is put in; and the untrained control.

    Args:
        models: folders of the models to draw, in this order.
        split: "ood" (held-out compositions) or "test" (training ones).
        counterfactual: what differs between the two runs: "whole code" or "one factor".

    Returns:
        The drawing. Cells are means over seeds, in shares of the model's own shift: 1 is all of it, 0 none.

    Raises:
        ConfigError: there is no such split or counterfactual.
    """
    if split not in ("test", "ood"):
        raise ConfigError(f"no split {split!r}; allowed: test, ood")
    groups, panels, words = group(models), [], []
    for g in groups:
        frame = tables.at_last_step(tables.gather(g.folders, "components"))
        frame = frame[frame["split"] == split]
        words.append(f"{title(g, groups)}: {_agreement(frame, counterfactual)}")
        frame = frame[frame["metric"] == "effect"]
        known = sorted(set(frame["counterfactual"]))
        if counterfactual not in known:
            raise ConfigError(f"no counterfactual {counterfactual!r} in the tables; allowed: {', '.join(known)}")
        frame = frame[frame["counterfactual"] == counterfactual]
        frame = frame.assign(part=frame["component"].str.replace(r"^L\d+", "", regex=True), layer=frame["layer"].astype(int))
        for control, label in SHOWN.items():
            rows = frame[(frame["control"] == control) & frame["value"].notna()]
            if rows.empty:
                continue
            means = pd.DataFrame(rows.groupby(["layer", "part"], as_index=False, sort=False)["value"].mean())
            cells = HeatMap(
                means.assign(layer=means["layer"].astype(str)), "layer", "part", "value", centre=0.0, label="effect"
            )
            panels.append(Panel(f"{title(g, groups)}: {label}", "layer", "head or MLP", (cells,)))
    caption = (
        "Effect of one head or MLP: the same inputs are run under two codes, and the part's activation of the second run "
        "replaces that of the first at every position. Share of the way that the answer moves to the second run's answer. "
        "Third code: the activation comes from a run under an unrelated third code; half of the effect is expected there "
        "where codes are independent, since any other code leads away from the first. Means over seeds. H: head; where heads "
        "share a value network (HYLA), a coordinate of the code. A: a whole attention layer. The exact exchange is drawn. "
        f"Its rank correlation over parts with first-order estimates, model by model: {'; '.join(words)}. Where it is below "
        f"{ENOUGH:g}, an estimate does not tell which part matters."
    )
    return Drawing("Which heads and MLPs carry the code?", tuple(panels), caption, columns=3)


def _agreement(rows: pd.DataFrame, counterfactual: str) -> str:
    """How the estimates rank the parts, against the exact exchange, in the order of the models."""
    rows = rows[(rows["metric"] == "rank agreement") & (rows["counterfactual"] == counterfactual)]
    known = rows.groupby("estimate", sort=False)["value"].agg(list)
    return ", ".join(f"{name} {' '.join(f'{value:.2f}' for value in each)}" for name, each in known.items()) or "too few parts"
