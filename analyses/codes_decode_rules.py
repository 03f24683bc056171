"""By layer, whether the code of a pair of tokens says which rule is at work, on compositions never trained on."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, over_seeds, telling
from compolens.figures import Band, Drawing, Line, Panel, Points, Rule, color_of
from compolens.foundation.configs import ConfigError, nearest

needs = ("attention_code",)
RAW = ("raw input, products", "raw input", "majority class")
"""References; the first is the strongest."""
METRICS = ("balanced accuracy", "macro F1")
SPLITS = ("ood", "test")


def analyze(
    models: list[Path],
    *,
    metric: str = "balanced accuracy",
    split: str = "ood",
    shown: str = "as trained",
    every: bool = False,
) -> Drawing:
    """Draw, by layer, the score of a logistic readout of the rule (or term) from attention's code (2406.05816).

    A panel per setting, label and pair of tokens.

    Args:
        models: folders of the models to draw, in this order.
        metric: "balanced accuracy" or "macro F1", each from 0 to 1; both correct for classes of unequal size.
        split: "ood" (held-out compositions, which the claim is about) or "test" (fresh episodes of training ones).
        shown: "as trained", or a variant of the family that the table has, such as "unpermuted".
        every: draw the weaker references as well: the raw input without products, and the majority class.

    Returns:
        The drawing. A line per architecture is the mean over seeds, points are seeds. Bands are the untrained controls and
        shuffled labels (95 % intervals over compositions, all models together); the horizontal line is a readout of
        the raw input.

    Raises:
        ConfigError: there is no such metric or split, or the models were not shown this way.
    """
    for value, allowed in ((metric, METRICS), (split, SPLITS)):
        if value not in allowed:
            raise ConfigError(f"no such choice {value!r}; {nearest(value, allowed)}")
    groups, panels = group(models), []
    frames = {g.label + g.setting: tables.at_last_step(tables.gather(g.folders, "attention_code")) for g in groups}
    for setting in dict.fromkeys(g.setting for g in groups):
        here = {g.label: (telling(g, groups), frames[g.label + g.setting]) for g in groups if g.setting == setting}
        rows = pd.concat([f.assign(who=label) for label, (_, f) in here.items()])
        rows = rows[(rows["metric"] == metric) & (rows["split"] == split) & (rows["class"] == "all")]
        if shown not in set(rows["shown"]):
            raise ConfigError(f"{setting} was not shown {shown!r}; {nearest(shown, rows['shown'].unique())}")
        rows = rows[rows["shown"] == shown]
        for label in rows["label"].unique():
            one = rows[rows["label"] == label]
            for capture in [c for c in one["role"].unique() if c != "input"]:
                marks = _marks(one, capture, {who: color_of(told) for who, (told, _) in here.items()}, every)
                panels.append(Panel(f"{setting}: {label}, {_words(capture)}", "layer", metric, marks, y_range=(0, 1.02)))
    caption = (
        f"Logistic readout from hook_code, one number per head, fitted on training compositions and scored on {_of(split)}. "
        "Lines are means over seeds, points seeds. Grey bands: untrained controls and shuffled labels. Grey line: the same "
        "readout of the raw input of the tokens concerned, with their products."
    )
    return Drawing("Does attention's code say which rule is at work?", tuple(panels), caption, columns=min(2, len(panels)))


def _marks(rows: pd.DataFrame, capture: str, colors: dict[str, str], every: bool) -> tuple:
    here = rows[rows["role"] == capture]
    marks: list = []
    for control, label in (("untrained", "untrained controls"), ("shuffled", "shuffled labels")):
        span = here[here["control"] == control].groupby("layer", as_index=False).agg(lo=("lo", "min"), hi=("hi", "max"))
        shade = "#999999" if control == "untrained" else "#CCCCCC"
        marks.append(Band(span, "layer", "lo", "hi", label=label, color=shade))
    for who, color in colors.items():
        own = here[(here["control"] == "") & (here["who"] == who)]
        if len(own):
            mean = over_seeds(own.sort_values("layer", kind="stable"), "layer")
            marks.append(Line(mean, "layer", "value", label=who, color=color, lo="lo", hi="hi"))
            marks.append(Points(own, "layer", "value", label=who, color=color, hover="model"))
    for control in RAW if every else RAW[:1]:
        value = rows[(rows["control"] == control) & (rows["role"] == ("input" if "raw" in control else capture))]["value"]
        marks.append(Rule(float(value.mean()), label=control))
    return tuple(marks)


def _words(capture: str) -> str:
    return {"self": "answer token to itself", "row mates": "answer token to its row mates"}.get(capture, capture)


def _of(split: str) -> str:
    return "held-out ones" if split == "ood" else "fresh episodes of the same"
