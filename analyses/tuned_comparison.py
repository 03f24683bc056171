"""A difference between architectures is one of their tuned settings, or it is a difference between settings."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compolens.figures import SERIES_COLORS, Band, Drawing, Line, Panel, Points
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError
from compolens.measures.tuned import SETTINGS, Choice, choices, errors

of = "maps"
needs = ()
WHO = ("who", "learner")
"""The knob that names architectures, in a tuning and in a map."""


def analyze(models: list[Path], *, overlap: bool = True) -> Drawing:
    """Draw what tuning chose, what could as well have been chosen, and held-out against in-distribution error.

    The architectures that this project compares are those of 2407.12275.

    Args:
        models: folders of tunings, and of maps with a knob "who" or "learner", such as one over lengths of training.
        overlap: of held-out against in-distribution error, fill in only the points where the in-distribution errors of all
            architectures overlap; the others are open.

    Returns:
        The drawing. Errors are log10 of what lacks to a score of 1. The comparison at equal in-distribution error is
        descriptive: matching on a consequence of the architecture proves no cause.
    """
    panels, told, diverged = [], [], []
    for folder in models:
        config, table = map_files.read_config(folder), map_files.read_table(folder)
        who = next((knob for knob in WHO if knob in table and knob in config["knobs"]), None)
        if who is None or table.empty:
            continue
        if why := map_files.why_without_scores(folder, table):
            diverged.append(why)
            continue
        every = table.rename(columns={who: "who"})
        table = every[np.isfinite(every["test"].to_numpy(dtype=float))]
        names = list(dict.fromkeys(table["who"]))
        colors = {name: SERIES_COLORS[i % len(SERIES_COLORS)] for i, name in enumerate(names)}
        if config["kind"] == "tuning":
            best = choices(every)
            panels += [_rates(config["title"], table, colors), _ranges(config["title"], best, colors)]
            told += [f"{config['title']}, {name}: {_said(one)}." for name, one in best.items()]
        panels.append(_errors(config["title"], table, colors, overlap))
    if not panels:
        none = "none of these compares architectures (a knob who or learner); make a tuning: compolens tune FILE"
        raise ConfigError(diverged[0] if diverged else none)
    told += [f"Left out: {reason}." for reason in diverged]
    caption = (
        "Errors are log10(1 - score). Settings are chosen on validation compositions of a teacher that no reported run has. "
        "Boxes: held-out scores of all settings within one standard error (over compositions) of the best. Held-out against "
        "in-distribution error is descriptive: matching on a consequence of the architecture proves no cause. "
    )
    return Drawing("How much of a difference is tuning?", tuple(panels), caption + " ".join(told), columns=min(3, len(panels)))


def _said(best: Choice) -> str:
    chosen = ", ".join(f"{name} {best.settings[name]:g}" for name in SETTINGS)
    low, high = best.held_out_range
    by_training = ", ".join(f"{name} {best.by_training[name]:g}" for name in SETTINGS)
    edge = f"; at the edge of its grid: {', '.join(best.edges)}" if best.edges else ""
    return (
        f"{chosen} of {best.tried} settings, held out {best.held_out:.3f}, {low:.3f} to {high:.3f} over the {best.close} "
        f"within one standard error; training compositions would choose {by_training}{edge}"
    )


def _rates(title: str, table: pd.DataFrame, colors: dict[str, str]) -> Panel:
    """The validation error by learning rate, at the best of the other settings."""
    marks = []
    for name, color in colors.items():
        rows = table[table["who"] == name].dropna(subset=["validation"])
        best = rows.loc[rows.groupby("lr")["validation"].idxmax()].sort_values("lr")
        error = errors(best["validation"]) / np.log(10)
        spread = best["validation se"].to_numpy() / (1 - best["validation"].to_numpy()) / np.log(10)
        data = pd.DataFrame(
            {"rate": np.log10(best["lr"].to_numpy()), "error": error, "lo": error - spread, "hi": error + spread}
        )
        marks.append(Line(data, "rate", "error", label=name, color=color, lo="lo", hi="hi"))
    return Panel(f"{title}: what is chosen on", "log10 learning rate", "log10(1 - R²), validation", tuple(marks))


def _ranges(title: str, best: dict[str, Choice], colors: dict[str, str]) -> Panel:
    """Held-out scores at the choice, and of everything that could as well have been chosen."""
    marks: list = []
    for name, one in best.items():
        low, high = one.held_out_range
        box = pd.DataFrame({"who": [name], "lo": [low], "hi": [high]})
        marks.append(Band(box, "who", "lo", "hi", color=colors[name]))
        marks.append(
            Points(pd.DataFrame({"who": [name], "score": [one.held_out]}), "who", "score", label=name, color=colors[name])
        )
    return Panel(f"{title}: what it decides", "", "held-out score, tuning seed", tuple(marks))


def _errors(title: str, table: pd.DataFrame, colors: dict[str, str], overlap: bool) -> Panel:
    """Held-out against in-distribution error, one point per trained model."""
    data = pd.DataFrame(
        {
            "who": table["who"],
            "in": errors(table["test"]) / np.log(10),
            "out": errors(table["ood"]) / np.log(10),
            "cell": table["cell"],
        }
    )
    ends = data.groupby("who")["in"].agg(["min", "max"])
    shared = data["in"].between(ends["min"].max(), ends["max"].min()) if overlap else data["in"].notna()
    marks = []
    for name, color in colors.items():
        mine = data["who"] == name
        for part, is_open in ((mine & shared, False), (mine & ~shared, True)):
            if part.any():
                keyed = not is_open or not (mine & shared).any()
                known: dict[str, Any] = {"label": name, "color": color, "hover": "cell", "open": is_open, "keyed": keyed}
                marks.append(Points(data[part], "in", "out", **known))
    return Panel(f"{title}: errors", "log10(1 - R²), training compositions", "log10(1 - R²), held out", tuple(marks))
