"""One setting changes how held-out compositions are answered at otherwise equal settings, as pairs of one seed show."""

import contextlib
from pathlib import Path

import numpy as np
import pandas as pd

from compolens.figures import Drawing, Line, Mark, Panel, Points, Rule
from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError, nearest
from compolens.measures.intervals import mean_interval

of = "maps"
needs = ()
FEWEST = 4
"""Pairs from which on a mean difference has an interval."""
SPLITS = {"ood": "held-out compositions", "test": "training compositions"}


def analyze(models: list[Path], *, knob: str = "support", first: str = "cube", second: str = "two cliques") -> Drawing:
    """Draw the score at one value of a knob, less that at another, for runs that agree in every other knob and in the seed.

    The defaults compare a support that connects all modules with one of as many pairs that does not: theory (2312.15001) says
    that only the first identifies the modules. A pair counts if both of its runs learned their training compositions.

    Args:
        models: folders of maps.
        knob: the knob that differs.
        first: its value in the runs whose score counts positive, as the map's table has it.
        second: its value in the others.

    Returns:
        The drawing: a panel per value of the other knobs, along the first of them. Points are pairs, solid lines their means
        on held-out compositions, with 95 % t intervals over seeds from four pairs on; dashed lines are means on training
        compositions.

    Raises:
        ConfigError: no map has the knob, one of its values, or two runs to compare.
    """
    frames, reasons = [], []
    for folder in models:
        config, table = map_files.read_config(folder), map_files.read_table(folder)
        if knob not in config.get("knobs", ()):
            reasons.append(f"{folder} has no knob {knob!r}; {nearest(knob, config.get('knobs', ()))}")
            continue
        there = sorted({_word(value) for value in table[knob]})
        sides = [_as_there(table[knob], side) for side in (first, second)]
        if lacking := set(sides) - set(there):
            reasons.append(f"{folder}: {knob} is never {sorted(lacking)[0]!r}; the table has {', '.join(there)}")
            continue
        if why := map_files.why_without_scores(folder, table):
            reasons.append(why)
            continue
        frames.append((config, paired(table, config, knob, *sides)))
    if not frames:
        raise ConfigError(reasons[0] if reasons else "no map was named; type: compolens analyze one_setting_matters MAP")
    panels, told = [], []
    for config, pairs in frames:
        if pairs.empty:
            raise ConfigError(
                f"the map {config['title']!r} has no two runs that differ in {knob} alone; train more of its cells"
            )
        others = [k for k in config["knobs"] if k != knob]
        x, apart = (others[0], others[1:]) if others else (knob, [])
        if not others:  # nothing to draw the difference along: one column
            pairs = pairs.assign(**{knob: f"{first} less {second}"})
        for values, part in pairs.groupby(apart) if apart else [((), pairs)]:
            name = ", ".join([config["title"], *(f"{k} {_word(v)}" for k, v in zip(apart, values, strict=True))])
            held_out = _means(part, x, "ood")
            panels.append(Panel(name, x, f"score, {first} less {second}", tuple(_marks(part, x, held_out))))
            told += [f"{name}: {sentence}" for sentence in _told(held_out, x)]
    out = sum(int((~pairs["learned"]).sum()) for _, pairs in frames)
    caption = (
        f"Points: pairs of runs of one seed that differ in {knob} alone, {first} less {second}; lines: means, with 95 % "
        f"intervals over seeds from {FEWEST} pairs on; dashed: the same on training compositions. {' '.join(told)} "
        f"Left out, since a run of them did not learn its training compositions: {out} pairs."
    )
    return Drawing(f"Does {knob} matter?", tuple(panels), caption, columns=min(3, len(panels)))


def paired(table: pd.DataFrame, config: dict, knob: str, first: str, second: str) -> pd.DataFrame:
    """Pairs of runs that differ in a knob alone.

    Args:
        table: a map's rows.
        config: what its config.json says.
        knob: the knob.
        first: its value in the runs whose score counts positive.
        second: its value in the others.

    Returns:
        A row per pair: the other knobs, seed, ood and test (differences of scores), learned, and the pair's name.
    """
    others = [k for k in config["knobs"] if k != knob]
    value = table[knob].map(_word)
    sides = [table[value == which].set_index([*others, "seed"]) for which in (first, second)]
    a, b = (side[[*SPLITS]] for side in sides)
    both = a.index.intersection(b.index)
    a, b = a.loc[both], b.loc[both]
    found = (a - b).assign(learned=np.minimum(a["test"], b["test"]) >= float(config["learned"])).reset_index()
    return found.assign(pair=[f"seed {seed}" for seed in found["seed"]])


def _as_there(values: pd.Series, typed: str) -> str:
    """What was typed for a knob, as its table has it: 1e-3 and 0.001 are one number."""
    if pd.api.types.is_numeric_dtype(values) and values.dtype != bool:
        with contextlib.suppress(ValueError):
            return next((_word(value) for value in values.unique().tolist() if value == float(typed)), typed)
    return typed


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _means(pairs: pd.DataFrame, x: str, split: str) -> pd.DataFrame:
    """Along x: the mean difference, and its interval."""
    found = []
    for at, part in pairs[pairs["learned"]].groupby(x):
        values = part[split].to_numpy()
        lo, hi = mean_interval(values) if len(values) >= FEWEST else (np.nan, np.nan)
        found.append({x: at, "mean": values.mean(), "lo": lo, "hi": hi, "pairs": len(values)})
    return pd.DataFrame(found, columns=[x, "mean", "lo", "hi", "pairs"])


def _marks(pairs: pd.DataFrame, x: str, held_out: pd.DataFrame) -> list[Mark]:
    marks: list[Mark] = [Line(held_out, x, "mean", label=SPLITS["ood"], lo="lo", hi="hi")]
    marks.append(Line(_means(pairs, x, "test"), x, "mean", label=SPLITS["test"], dash=True))
    marks.append(Points(pairs[pairs["learned"]], x, "ood", label=SPLITS["ood"], hover="pair", keyed=False))
    return [*marks, Rule(0.0, "no difference")]


def _told(held_out: pd.DataFrame, x: str) -> list[str]:
    """The mean differences on held-out compositions in words."""
    told = []
    for at, mean, lo, hi, count in held_out.itertuples(index=False):
        interval = f" [{lo:+.3f}, {hi:+.3f}]" if lo == lo else " (no interval)"
        told.append(f"at {x} {_word(at)}, {mean:+.3f}{interval} over {count} pairs.")
    return told or ["no pair of runs learned."]
