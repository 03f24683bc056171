"""Along training, when the code can be decoded, when it is used, and when held-out compositions are answered with it."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group, over_seeds, title
from compolens.figures import Drawing, Line, Mark, Panel, Points
from compolens.foundation.configs import ConfigError

needs = ("generalization", "inference_or_execution")
SCORES = {
    "own answer, training": "#888888", "own answer, held-out": "#882255", "true code, held-out": "#44AA99",
    "best code, held-out": "#332288",
}  # fmt: skip
CODES = {"decoded code": "#000000", "answers follow a code": "#CC6677"}
UNTRAINED = "the same in the untrained control"
DASHED = (UNTRAINED, "best code, held-out")
LOWEST = -1.0
"""Axes end here: how much worse an R² gets than that says nothing."""


def analyze(models: list[Path]) -> Drawing:
    """Draw, along training, scores with and without the true code, and how well the code is decoded and used.

    Two panels per architecture and setting, for models whose tables were measured with --steps all. Scores: the model's own on
    training and on held-out compositions (2407.12275), and on held-out ones with the true code and with the best code written
    where the model reads its code (2405.19162). The code: how well it is decoded, and how far answers follow another code,
    each at its best site.

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. Lines are means over seeds at steps that all of them have, points seeds; dashed: the untrained control,
        and the best code.

    Raises:
        ConfigError: no model was measured at several steps of its training.
    """
    frames = {folder: _along(folder) for folder in models}
    known = [folder for folder, frame in frames.items() if len(frame["step"].unique()) > 1]
    if not known:
        raise ConfigError(
            f"none of these {len(models)} models was measured at several steps of its training; type: "
            f"{tables.command_of(needs, models[0])} --steps all"
        )
    groups, panels = group(known), []
    for g in groups:
        rows = pd.concat([frames[folder] for folder in g.folders], ignore_index=True)
        name = title(g, groups)
        panels.append(_panel(f"{name}: scores", tables.settings(g.folders[0])["score_name"], rows, SCORES, g))
        panels.append(_panel(f"{name}: the code", "R², or share that follows", rows, CODES | {UNTRAINED: "#888888"}, g))
    most = max(int(frames[folder]["places"].max()) for folder in known)
    caption = (
        "Left: pooled scores on fresh episodes of training compositions and on held-out ones; codes are written at the site "
        "that is chosen anew at every step, on training compositions. The best code is searched for on fewer episodes. Right: "
        "R² of the code on training compositions left out, and the share of the way that answers move to another code's when "
        f"that code is written, each at the site where it is largest (of {most}); dashed: the untrained control at that "
        "site. "
        f"Lines are means over seeds, at steps that all of them have, bands 95 % intervals (from {SEEDS} seeds on). "
        f"Axes end at {LOWEST:g}. With fewer than {SEEDS} seeds "
        "nothing is claimed."
    )
    left = [folder.name for folder in models if folder not in known]
    caption += f" Measured at one step alone, and left out: {', '.join(left)}." if left else ""
    return Drawing("When do codes appear?", tuple(panels), caption, columns=2)


def _along(folder: Path) -> pd.DataFrame:
    """line, step, value, model and how many sites there are (column places), at the steps that both tables have."""
    own, ladder = (tables.read(folder, table) for table in needs)
    own = own[(own["metric"] == "score") & (own["composition"] == "all") & (own["control"] == "")]
    written = ladder[(ladder["metric"] == "score") & (ladder["split"] == "ood") & (ladder["control"] == "")]
    written = written[(written["chosen"] == 1) & (written["composition"] == "all")]
    parts = [
        own[own["split"] == "test"],
        own[own["split"] == "ood"],
        written[written["rung"] == "true code written"],
        written[written["rung"] == "best code"],
        _best(ladder, "left-out R²"),
        followed := _best(ladder, "recovered"),
        _untrained(ladder, followed),
    ]
    lines = [*SCORES, *CODES, UNTRAINED]
    rows = pd.concat([part[["step", "value"]].assign(line=line) for line, part in zip(lines, parts, strict=True)])
    places = len(ladder[ladder["metric"] == "recovered"][["site", "role"]].drop_duplicates())
    both = set(own["step"]) & set(ladder["step"])
    return rows[rows["step"].isin(both) & rows["value"].notna()].assign(model=folder.name, places=places)


def _best(ladder: pd.DataFrame, metric: str) -> pd.DataFrame:
    """At every step, the row of the site with the largest value."""
    rows = ladder[(ladder["metric"] == metric) & (ladder["control"] == "") & ladder["value"].notna()]
    return rows.loc[rows.groupby("step")["value"].idxmax()]


def _untrained(ladder: pd.DataFrame, followed: pd.DataFrame) -> pd.DataFrame:
    """The untrained control's rows at the same steps and sites."""
    at = ["step", "site", "role"]
    rows = ladder[(ladder["metric"] == "recovered") & (ladder["control"] == "untrained")]
    return followed[at].merge(rows, on=at)


def _panel(name: str, y: str, rows: pd.DataFrame, lines: dict[str, str], g: Group) -> Panel:
    marks: list[Mark] = []
    for line, color in lines.items():
        here = rows[rows["line"] == line]
        seeds = here.groupby("step")["model"].transform("nunique")
        shared = over_seeds(here[seeds == len(g.folders)].sort_values("step", kind="stable"), "step")
        if len(shared):
            marks.append(Line(shared, "step", "value", label=line, color=color, dash=line in DASHED, lo="lo", hi="hi"))
        if len(here) and len(g.folders) > 1 and line != UNTRAINED:
            marks.append(Points(here, "step", "value", color=color, hover="model"))
    drawn = pd.concat([mark.rows()["y"] for mark in marks])
    lo, hi = max(min(0.0, float(drawn.min())), LOWEST), max(1.0, float(drawn.max()))
    return Panel(name, "training step", y, tuple(marks), y_range=(lo - 0.04 * (hi - lo), hi + 0.04 * (hi - lo)))
