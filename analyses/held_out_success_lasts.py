"""Success on held-out compositions lasts, or is forgotten while training goes on: scores along training, each run tested."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens.figures import SERIES_COLORS, Drawing, Line, Mark, Panel, Points
from compolens.figures.words import as_text
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import mean_interval
from compolens.measures.phases import Lasting, lasting

of = "maps"
needs = ()
LEVEL = 0.05
FEWEST = 5
"""Seeds from which on a mean has an interval."""


def analyze(models: list[Path], *, window: int = 5) -> Drawing:
    """Draw held-out scores along training, and test for each run whether it forgets how to recombine.

    Success outside the training distribution that does not last is reported for deeper models in 2406.02550. A run forgets
    here if its last evaluations lie below the first ones at which it had learned its training compositions, by a one-sided
    rank test (Mann-Whitney). The test takes the evaluations of one training as independent; they are not quite, so a single
    run with p just below .05 shows little.

    Args:
        models: folders of maps that keep their history.
        window: how many evaluations are early, and how many late; at least 3.

    Returns:
        The drawing: a panel per setting of the map's knobs. Lines are held-out scores, a colour per seed; circles are
        the evaluations that are compared; the dashed line is the mean score on training compositions.

    Raises:
        ConfigError: no map here has a history, or the window is too short.
    """
    if window < 3:
        raise ConfigError(f"--window must be at least 3, below which no order of scores is rare; got {window}")
    configs = {folder: map_files.read_config(folder) for folder in models if (folder / map_files.HISTORY).is_file()}
    kept = {folder: config for folder, config in configs.items() if "x" in config}
    if not kept:
        raise ConfigError(
            "none of these maps keeps scores along training; describe one with keep_history=True, as "
            "trained_models/maps/depth.py does, and train it with: compolens map trained_models/maps/depth.py"
        )
    panels, told = [], []
    for folder, config in kept.items():
        table, history = map_files.read_table(folder), map_files.read_table(folder, map_files.HISTORY)
        knobs = [knob for knob in config["knobs"] if len(table[knob].unique()) > 1] or [config["x"]]
        for values, cells in table.sort_values(config["x"], kind="stable").groupby(knobs, sort=False):
            name = ", ".join(f"{knob} {as_text(value)}" for knob, value in zip(knobs, values, strict=True))
            runs = {row["cell"]: (row["seed"], history[history["cell"] == row["cell"]]) for row in cells.to_dict("records")}
            found = {cell: lasting(rows, config["learned"], window) for cell, (_, rows) in runs.items()}
            shown = name if len(kept) == 1 else f"{config['title']}, {name}"
            panels.append(Panel(shown, "step", table["score_name"].iloc[0], tuple(_marks(runs, found, window))))
            told.append(f"{shown}: {_told(found, config['learned'])}")
    caption = (
        "Lines: held-out scores, a colour per seed; dashed: the score on training compositions, mean over seeds. Circles: the "
        f"{window} first evaluations at which training compositions were learned, and the {window} last ones; a run forgets "
        f"if these lie below those (rank test, p < {LEVEL:g}). " + " ".join(told)
    )
    return Drawing("Does success on held-out compositions last?", tuple(panels), caption, columns=min(3, len(panels)))


def _marks(runs: dict[str, tuple[int, pd.DataFrame]], found: dict[str, Lasting], window: int) -> list[Mark]:
    """Lines of one panel, and the evaluations that are compared."""
    every = pd.concat([rows for _, rows in runs.values()])
    trained = every.groupby("step")[["test"]].mean().reset_index()
    marks: list[Mark] = [Line(trained, "step", "test", label="training compositions, mean", color="#444444", dash=True)]
    for cell, (seed, rows) in runs.items():
        color, label = SERIES_COLORS[int(seed) % len(SERIES_COLORS)], f"seed {seed}"
        marks.append(Line(rows, "step", "ood", label=label, color=color))
        if found[cell].begins >= 0:
            first = found[cell].begins
            compared = pd.concat([rows.iloc[first : first + window], rows.iloc[-window:]])
            marks.append(Points(compared, "step", "ood", label=label, color=color, hover="cell", keyed=False, open=True))
    return marks


def _told(found: dict[str, Lasting], learned: float) -> str:
    """How many runs of a panel forget, and by how much all of them change."""
    known = [one for one in found.values() if one.begins >= 0]
    out = len(found) - len(known)
    left = f" {out} run(s) did not reach {learned:g} in time, and count nowhere." if out else ""
    if not known:
        return f"no run can be tested.{left}"
    changes = np.array([one.late - one.early for one in known])
    forgot = sum(one.p < LEVEL for one in known)
    interval = ""
    if len(known) >= FEWEST:
        lo, hi = mean_interval(changes)
        interval = f" [{lo:+.3f}, {hi:+.3f}]"
    return f"{forgot} of {len(known)} runs forget; late less early {changes.mean():+.3f}{interval}.{left}"
