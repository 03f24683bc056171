"""Which classes of the code a model's answers tell apart, and whether it knows the answers under both."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, HeatMap, Panel
from compolens.figures.words import short_rule
from compolens.foundation.configs import ConfigError

needs = ("told_apart",)


def analyze(models: list[Path], *, split: str = "ood") -> Drawing:
    """Draw, for every two classes, whether the answer tells them apart, and whether both right answers are known.

    Two episodes differ in one class of the code: a rule of S-RAVEN (2406.05816) is another one. A panel per architecture, the
    mean over its seeds.

    Args:
        models: folders of the models to draw, in this order.
        split: "test" or "ood", where the composition is before the class is exchanged.

    Returns:
        The drawing: heat maps. Above the diagonal: the probability of the right answer over that of both, .5 if the classes
        are not told apart. Below it: the probability of both right answers together. Where answers are numbers, both triangles
        are how far the answer follows, from 0 to 1.

    Raises:
        ConfigError: the table has no two classes with enough pairs of episodes.
    """
    groups, panels = group(models), []
    for g in groups:
        frame = tables.at_last_step(tables.gather(g.folders, "told_apart"))
        frame = frame[(frame["split"] == split) & (frame["control"] == "") & (frame["site"] == "answers")]
        frame = frame[frame["class"] != "all"]
        labels = frame["label"].unique()
        for label in labels:
            above, below = _sides(frame[frame["label"] == label])
            name = ", ".join(word for word in (title(g, groups), label if len(labels) > 1 else "") if word)
            axes = ("below the diagonal: both answers known", "above: told apart") if below is not above else ("", "")
            panels.append(Panel(name, *axes, (HeatMap(_square(above, below), "class", "other", "value", 0.5, "probability"),)))
    if not panels:
        raise ConfigError(
            f"no two classes have enough pairs of episodes on the split {split!r}; type: compolens probe told_apart FOLDER "
            "--episodes 4096"
        )
    caption = (
        "Pairs of episodes with the same inputs, of which one answer follows another class. Above the diagonal: probability "
        "of the right answer over that of both right answers; 0.5: not told apart. Below it: probability of both together; 1: "
        f"both are known. {'Held-out' if split == 'ood' else 'Training'} compositions; mean over seeds. "
        'Empty: too few pairs whose right answers differ. Where the question\'s own tokens differ too ("same question" in the '
        "table), they alone may tell two classes apart."
    )
    return Drawing("Which classes are told apart?", tuple(panels), caption, columns=2 if len(panels) < 5 else 3)


def _sides(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What stands above the diagonal, and what below it."""
    found = {m: part.groupby(["class", "other"])[["value"]].mean().reset_index() for m, part in rows.groupby("metric")}
    if "followed" in found:
        return found["followed"], found["followed"]
    return found["told apart"], found["both answers"]


def _square(above: pd.DataFrame, below: pd.DataFrame) -> pd.DataFrame:
    """A cell for every two classes, in the order of the family's list; the diagonal is empty."""
    names = list(dict.fromkeys([*above["class"], *above["other"]]))
    order = sorted(names, key=lambda name: int((above["other"] == name).sum()) - int((above["class"] == name).sum()))
    sides = [
        {frozenset((a, b)): value for a, b, value in rows[["class", "other", "value"]].itertuples(index=False)}
        for rows in (above, below)
    ]
    cells = [
        (short_rule(a), short_rule(b), sides[i < j].get(frozenset((a, b)), float("nan")))
        for i, a in enumerate(order)
        for j, b in enumerate(order)
    ]
    return pd.DataFrame(cells, columns=["class", "other", "value"])
