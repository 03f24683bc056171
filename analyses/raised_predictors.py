"""Whether held-out scores follow a predictor of generalization that is trained in, which correlation cannot say."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens.figures import Drawing, Line, Mark, Panel, Points, Rule
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import mean_interval

of = "maps"
needs = ()
PREDICTORS = ("decodability, training compositions left out", "factor cosine")
SCORES = {"ood": "held-out score", "test": "training compositions"}
NONE = "none"
FEWEST = 5
"""Seeds from which on a difference has an interval."""


def analyze(models: list[Path]) -> Drawing:
    """Draw what a term of the training loss does to predictors, and to scores, by its strength.

    The predictors are those of 2507.07207 (decodability) and 2602.24264 (orthogonal effects), which report that they go with
    success. A map's knobs are "term" and "strength"; its runs with term "none" are what others of the same seed are compared
    with. Its measures hold the probe predictors. Models that have not learned their training compositions are left out.

    Args:
        models: folders of maps.

    Returns:
        The drawing: two predictors, each at the site that the probe chose, then scores less those of the same seed without a
        term. Points are seeds, lines their means, bands 95 % t intervals over seeds, from five on.

    Raises:
        ConfigError: there is no such map among them, or nothing in it has learned.
    """
    frames = [frame for frame in map(_differences, models) if frame is not None]
    if not frames:
        raise ConfigError(
            "none of these maps has the knobs term and strength, runs with the term 'none', and measures={'predictors': {}}, "
            "as trained_models/maps/auxiliary.py does; train it with: compolens map trained_models/maps/auxiliary.py"
        )
    rows = pd.concat(frames, ignore_index=True)
    learned = rows[rows["learned"]]
    if learned[learned["term"] != NONE].empty:
        raise ConfigError(
            "no model with a term has learned its training compositions, nor the one of its seed without; train longer"
        )
    panels = [Panel(name, "strength", name, tuple(_marks(learned, name))) for name in PREDICTORS]
    for split, words in SCORES.items():
        marks = [*_marks(learned, f"{split} gained"), Rule(0.0, "without a term")]
        panels.append(Panel(f"{words}, less that without", "strength", "difference in score", tuple(marks)))
    out = sorted(rows[~rows["learned"]]["cell"])
    caption = (
        "Points are seeds, lines their means, bands 95 % intervals over seeds. Differences are to the run of the same seed "
        f"without a term. {' '.join(_told(learned))} Left out, since they or the run without have not learned: "
        f"{', '.join(out) if out else 'none'}."
    )
    return Drawing("Does the score follow what is trained in?", tuple(panels), caption, columns=2)


def _differences(folder: Path) -> pd.DataFrame | None:
    """A row per cell: predictors, and what scores gained over the run of its seed without a term; None of another map."""
    config, table = map_files.read_config(folder), map_files.read_table(folder)
    columns = {
        name: next((c for c in table if str(c).startswith(f"{name} · ") and _mean(str(c))), None) for name in PREDICTORS
    }
    if not {"term", "strength"} <= set(config.get("knobs", ())) or None in columns.values():
        return None
    table = table.assign(**{name: table[column] for name, column in columns.items()})
    without = table[table["term"] == NONE].set_index("seed")
    if without.empty:
        return None
    enough = float(config["learned"])
    for split in SCORES:
        table[f"{split} gained"] = table[split] - table["seed"].map(without[split])
    table["learned"] = (table["test"] >= enough) & (table["seed"].map(without["test"]) >= enough)
    table["strength"] = [f"{strength:g}" for strength in table["strength"]]
    return table[["cell", "term", "strength", "seed", "learned", *PREDICTORS, *(f"{split} gained" for split in SCORES)]]


def _mean(column: str) -> bool:
    """Whether a column holds the mean of the two halves, of the model itself."""
    words = column.split(" · ")
    return words[-1] not in ("first", "second") and not {"untrained", "undefined"} & set(words)


def _summary(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Mean and interval over seeds, by strength, in ascending order."""
    found = []
    for strength, part in rows.groupby("strength"):
        values = part[name].dropna().to_numpy()
        lo, hi = mean_interval(values) if len(values) >= FEWEST else (np.nan, np.nan)
        found.append({"strength": strength, "mean": values.mean(), "lo": lo, "hi": hi})
    return pd.DataFrame(found).sort_values("strength", key=lambda s: s.astype(float))


def _marks(rows: pd.DataFrame, name: str) -> list[Mark]:
    """A line and points per term; each begins at the runs without one."""
    marks: list[Mark] = []
    for term in (t for t in rows["term"].unique() if t != NONE):
        part = rows[rows["term"].isin((NONE, term))].sort_values("strength", key=lambda s: s.astype(float), kind="stable")
        marks.append(Line(_summary(part, name), "strength", "mean", label=str(term), lo="lo", hi="hi"))
        marks.append(Points(part, "strength", name, label=str(term), hover="cell", keyed=False))
    return marks


def _told(rows: pd.DataFrame) -> list[str]:
    """A sentence per term and strength: the predictors, and what was gained on held-out compositions."""
    told = []
    for (term, strength), part in rows.groupby(["term", "strength"], sort=False):
        means = ", ".join(f"{name} {part[name].mean():.3f}" for name in PREDICTORS)
        (mean, lo, hi) = _summary(part, "ood gained")[["mean", "lo", "hi"]].iloc[0].astype(float)
        interval = f" [{lo:.3f}, {hi:.3f}]" if np.isfinite(lo) else ""
        more = "" if term == NONE else f", held out {mean:+.3f}{interval}"
        told.append(f"{term} {strength} ({len(part)} seeds): {means}{more}.")
    return told
