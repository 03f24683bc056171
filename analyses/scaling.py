"""How the score on held-out compositions grows with data, width and depth."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, over_seeds, setting_of
from compolens.figures import Drawing, Line, Panel, Points, color_of
from compolens.foundation.configs import ConfigError

needs = ("generalization",)
AXES = {
    "training steps": "step",
    "instances (one pass each)": "instances",
    "width (d_model)": "architecture.d_model",
    "depth (layers)": "architecture.n_layers",
}
FEWEST = 3
WHICH = {"ood": "held out", "test": "trained on"}
"""Split -> which compositions, on an axis."""
_SEEDS = ("init_seed", "data_seed", "task.split_seed", "task.teacher_seed")
_WATCHING = ("keep", "evaluations", "evaluation_episodes")


def analyze(models: list[Path], *, split: str = "ood", points: int = FEWEST) -> Drawing:
    """Draw the score against training steps, instances, width and depth (2406.05816, 2507.07207).

    A panel per setting and axis. Training steps are kept weights of one training, measured with --steps all; instances are
    trainings of different length. Everything else is equal along a line.

    Args:
        models: folders of the models to draw, in this order.
        split: "ood" (held-out compositions, where the claim is decided) or "test" (training ones).
        points: how many different values an axis needs to be drawn, 3 or more; fewer show no trend.

    Returns:
        The drawing. A line per architecture is the mean over the seeds that are there at all of its points; points are seeds.

    Raises:
        ConfigError: points is below 3, or no axis has so many values.
    """
    if points < FEWEST:
        raise ConfigError(f"an axis with {points} points shows no trend; --points must be at least {FEWEST}")
    frame = pd.concat([_rows(folder, split) for folder in models], ignore_index=True)
    panels = []
    for name, column in AXES.items():
        rows = frame if column == "step" else frame[frame["step"] == frame["steps"]]
        panels += [
            panel
            for setting, part in rows.groupby("setting", sort=False)
            if (panel := _panel(str(setting), part, name, column, points, split))
        ]
    if not panels:
        raise ConfigError(
            f"no axis has {points} different values among these {len(models)} models; measure kept weights with "
            f"{tables.command_of('generalization', models[0])} --steps all --again, or train models of other widths"
        )
    caption = (
        f"Score on {'held-out' if split == 'ood' else 'training'} compositions. Lines are means over those seeds that were "
        "measured at all points of a line (where none was, over those at each), points seeds, and bands, from "
        f"{SEEDS} seeds on, 95 % intervals; the legend says how many seeds a line has where others have points alone; "
        "what is not on an axis is equal "
        "along a line (heads and MLP may grow with the width). Training steps are points of one training with one schedule, "
        "so they are lower than trainings that end there."
    )
    return Drawing("What grows with scale?", tuple(panels), caption, columns=min(2, len(panels)))


def _rows(folder: Path, split: str) -> pd.DataFrame:
    """One row per measured step of a model: score, and everything that may be an axis."""
    row = tables.settings(folder)
    frame = tables.read(folder, "generalization")
    frame = frame[(frame["metric"] == "score") & (frame["split"] == split) & (frame["composition"] == "all")]
    frame = frame[frame["control"] == ""][["step", "value"]]
    return frame.assign(**row, setting=setting_of(row), instances=row["steps"] * row["batch_size"])


def _panel(setting: str, rows: pd.DataFrame, name: str, column: str, points: int, split: str) -> Panel | None:
    """The panel of one axis, with the lines along which nothing but the axis and the seeds differ; None if none is long."""
    if column not in rows:
        return None
    drop = {"value", "model", "folder", "setting", "score_name", "instances", "step", *_SEEDS, *_WATCHING}
    if column in ("instances", "architecture.d_model"):
        drop |= {"steps"} if column == "instances" else {"architecture.n_heads", "architecture.d_mlp"}
    same = [c for c in rows.columns if c not in drop | {column} and len(set(rows[c].map(str))) > 1]
    marks: list = []
    groups = [part for _, part in rows.groupby([rows[c].map(str) for c in same], sort=False)] if same else [rows]
    groups = [part for part in groups if part[column].nunique() >= points]
    for part in groups:
        architecture = part["architecture"].iloc[0]
        alike = pd.concat([other for other in groups if other["architecture"].iloc[0] == architecture])
        told = [f"{c.split('.')[-1]} {part[c].iloc[0]}" for c in same if len(set(alike[c].map(str))) > 1]
        label = f"{architecture} ({', '.join(told)})" if told else architecture
        color, joined = color_of(label), _everywhere(part, column)
        drawn, seeds = joined["model"].nunique(), part["model"].nunique()
        if column == "step" and drawn < seeds:
            label += f", line: {drawn} of {seeds} seeds"
        mean = over_seeds(joined.sort_values(column, kind="stable"), column)
        marks.append(Line(mean, column, "value", label=label, color=color, lo="lo", hi="hi"))
        marks.append(Points(part, column, "value", label=label, color=color, hover="model"))
    return Panel(setting, name, f"{rows['score_name'].iloc[0]}, {WHICH[split]}", tuple(marks)) if marks else None


def _everywhere(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows of the seeds that are there at every value of the axis: a mean over other seeds at every point would join them
    by a line that no seed took. All rows, if no seed is."""
    seed = rows[[c for c in _SEEDS if c in rows]].astype(str).agg(" ".join, axis=1)
    there = rows.groupby(seed)[column].transform("nunique") == rows[column].nunique()
    return rows[there] if there.any() else rows
