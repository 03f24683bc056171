"""Which learner of linear regression a transformer is nearest to changes with its depth, from descent to ridge regression."""

from pathlib import Path

import pandas as pd

from compolens.diagnosis.closest_learner import ALIKE
from compolens.figures import SERIES_COLORS, Drawing, Line, Mark, Panel, Points
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError, require_choice

of = "maps"
needs = ()
METRICS = {
    "sensitivity cosine": "max",
    "prediction distance": "min",
    "SPD": "min",
    "sensitivity distance": "min",
    "ILWD": "min",
}
"""Metric of gd_equivalence -> which of several values is the nearest."""
SPLITS = {"test": "episodes as in training", "ood": "held-out inputs"}
CONTROLS = ("untrained", "shuffled", "reference")


def analyze(models: list[Path], *, metric: str = "sensitivity cosine") -> Drawing:
    """Draw how near models of a map are to reference learners, by a knob such as depth (2211.15661).

    The map's table has to hold what the probe gd_equivalence measures. Rows of other knobs are drawn apart, where they have
    several values along x.

    Args:
        models: folders of maps; of several, every panel names its map.
        metric: "sensitivity cosine" (1: the same slope at the query), or a distance: "prediction distance", "SPD",
            "sensitivity distance", "ILWD".

    Returns:
        The drawing: a panel for episodes as in training, and one for held-out inputs. Points are seeds, lines their means.

    Raises:
        ConfigError: there is no such metric, or no map holds it.
    """
    require_choice(metric, METRICS)
    panels, told = [], []
    maps = [(folder, config) for folder in models if (config := map_files.read_config(folder))["kind"] == "map"]
    for folder, config in maps:
        table = map_files.read_table(folder)
        if not len(table):
            continue
        rest = [knob for knob in config["knobs"] if knob != config["x"]]
        title = f"{config['title']}: " if len(maps) > 1 else ""
        for values, part in table.groupby(rest, sort=False) if rest else [((), table)]:
            rows = _rows(part, metric, config["x"])
            if not len(rows) or part[config["x"]].nunique() < 2:
                continue
            where = ", ".join(f"{knob} {value}" for knob, value in zip(rest, values, strict=True))
            for split, words in SPLITS.items():
                here = rows[rows["split"] == split]
                if len(here):
                    panels.append(Panel(f"{title}{words}", config["x"], metric, tuple(_marks(here))))
                    told += _told(here, metric, config["x"], f"{title}{words}{', ' * bool(where)}{where}")
    if not panels:
        raise ConfigError(
            f"none of these maps holds the {metric} of models and references along x; describe one with measures="
            "{'gd_equivalence': {}}, as trained_models/maps/regression_depth.py does"
        )
    larger = "larger" if METRICS[metric] == "max" else "smaller"
    caption = (
        f"{metric[0].upper() + metric[1:]}; {larger} is nearer. Points are seeds, side by side at each "
        f"value of x; lines are their means. {' '.join(told)} "
        f"Of references with a cosine of {ALIKE} or more one cannot be told from the other."
    )
    return Drawing("Which learner is a transformer of some depth nearest to?", tuple(panels), caption, columns=2)


def _rows(table: pd.DataFrame, metric: str, x: str) -> pd.DataFrame:
    """x, cell, split, control, learner, reference, value: what names of columns say, a row per number."""
    found = []
    for column in table:
        name, *words = str(column).split(" · ")
        if name != metric or len(words) < 5:
            continue
        split, _, _, *who = words
        control = who.pop(0) if who[0] in CONTROLS else ""
        if len(who) == 2:
            part = table[[x, "cell", column]].rename(columns={x: "x", column: "value"}).dropna()
            found.append(part.assign(split=split, control=control, learner=who[0], reference=who[1]))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def _marks(rows: pd.DataFrame) -> list[Mark]:
    """x as words: a knob such as depth goes up in factors."""
    marks: list[Mark] = []
    own = rows[rows["control"] == ""].sort_values("x", kind="stable")
    for color, (reference, part) in zip(SERIES_COLORS, own.groupby("reference", sort=False), strict=False):
        part = part.assign(x=part["x"].astype(str))
        mean = part.groupby("x", sort=False)[["value"]].mean().reset_index()
        marks.append(Line(mean, "x", "value", label=str(reference), color=color))
        marks.append(Points(part, "x", "value", label=str(reference), color=color, hover="cell", keyed=False))
    return marks


def _told(rows: pd.DataFrame, metric: str, x: str, where: str) -> list[str]:
    """A sentence per value of x: the nearest reference, and how near another one is to that one."""
    among = rows[rows["control"] == "reference"].groupby(["learner", "reference"])["value"].mean()
    told = []
    for value, part in rows[rows["control"] == ""].groupby("x"):
        mean = part.groupby("reference")["value"].mean()
        best = str(mean.idxmax() if METRICS[metric] == "max" else mean.idxmin())
        others = among[best].drop(best)
        rival = str(others.idxmax() if METRICS[metric] == "max" else others.idxmin())
        told.append(f"{value} {x}: {best} {mean[best]:.3g} (of {rival} with that one: {others[rival]:.3g})")
    said = [f"Nearest on {where}: {'; '.join(told)}."]
    for control, words in (("untrained", "untrained controls"), ("shuffled", "references that saw other episodes' answers")):
        values = rows[rows["control"] == control]["value"]
        if len(values):
            said.append(f"There {words}: {values.min():.2g} to {values.max():.2g}.")
    return said
