"""Some heads look up labels of the nearest items, or of the same item; whether the answers need them is another question."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, name_among
from compolens.figures import Drawing, Mark, Panel, Points
from compolens.figures.words import displayed
from compolens.foundation.configs import require_choice

needs = ("head_scores",)
SCORES = ("nearest neighbour", "induction")
LOOKS = {"": ("a head", "#332288", False), "even": ("even attention", "#888888", True)}
"""Control -> label, colour, open mark."""
NEEDS = {
    ("score", ""): ("all heads", "#332288", False),
    ("score without heads", ""): ("without the heads that look labels up", "#CC6677", False),
    ("score without heads", "matched random heads"): ("without as many other heads", "#888888", True),
}
"""Metric and control -> label, colour, open mark."""


def analyze(models: list[Path], *, by: str = "nearest neighbour") -> Drawing:
    """Draw attention scores of heads, and held-out scores without the heads that score (2310.03016, 2509.22947).

    Args:
        models: folders of the models to draw, in this order.
        by: the attention score that chooses the heads, "nearest neighbour" or "induction".

    Returns:
        The drawing: the attention score of every head, and the score on held-out compositions of every model.

    Raises:
        ConfigError: there is no such score.
    """
    require_choice(by, SCORES)
    groups, rows = group(models), []
    for g in groups:
        who = displayed(name_among(g, groups) if len({one.setting for one in groups}) == 1 else g.setting, {})
        rows += [_held_out(folder).assign(who=who.removeprefix("Boolean functions ")) for folder in g.folders]
    table = pd.concat(rows, ignore_index=True)
    looks: list[Mark] = []
    for control, (label, color, hollow) in LOOKS.items():
        own = table[(table["metric"] == by) & (table["control"] == control)]
        own = own if control == "" else own.drop_duplicates(["who"])
        looks.append(Points(own, "who", "value", label=label, color=color, open=hollow, hover="component"))
    need: list[Mark] = []
    for (metric, control), (label, color, hollow) in NEEDS.items():
        own = table[(table["metric"] == metric) & (table["control"] == control) & table["by"].isin(["", by])]
        need.append(Points(own, "who", "value", label=label, color=color, open=hollow, hover="model"))
    name = tables.settings(models[0])["score_name"]
    panels = (
        Panel(f"{by}: where heads look", "", "share of attention", tuple(looks), y_range=(-0.03, 1.03)),
        Panel("what the answers need", "", f"{name}, held out", tuple(need)),
    )
    caption = (
        f"Left: the attention score '{by}' of every head, on held-out compositions, beside even attention. Right: the score "
        "on held-out compositions with all heads; where the heads of attention score .5 or more (or the one with the largest) "
        "hold their means; and where as many others do, mean over such sets. A point is a model."
    )
    return Drawing("Are heads that look labels up used?", panels, caption, columns=1)


def _held_out(folder: Path) -> pd.DataFrame:
    rows = tables.at_last_step(tables.read(folder, "head_scores"))
    return rows[rows["split"] == "ood"].assign(model=folder.name, by=rows["by"].fillna(""))
