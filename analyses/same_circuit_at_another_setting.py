"""Models trained at another setting, such as a tuned learning rate, use the same heads and MLPs for held-out compositions."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, Group, group
from compolens.figures import CONTROL_COLORS, Band, Drawing, Mark, Panel, Points, Rule, color_of
from compolens.measures.intervals import mean_interval

needs = ("components",)
MARGIN = 0.05
"""Of the corrected correlation, the same as in `same_circuit_on_held_out`; fixed before any model was measured."""
OWN_SEEDS = ["init_seed", "data_seed", "task.teacher_seed"]
HEAD = r"H\d+$"
UNTRAINED = "untrained control"
OWN = ", to its own"


def analyze(models: list[Path], *, counterfactual: str = "whole code") -> Drawing:
    """Draw the effects of MLPs and of the largest head by training setting, and how alike models of two settings are.

    Effects (activation patching, 2202.05262) are those on held-out compositions. Two models' similarity is the correlation of
    their effects over parts, corrected for split-half reliability. The heads of a layer are ordered by size, since their
    numbers mean nothing between models. A model of another setting is compared with models of the first setting that have
    other seeds; beside it, the model of the same seed at the first setting is compared with the same ones.

    Args:
        models: folders of the models to draw; of one architecture and task, the setting that comes first is compared with.
        counterfactual: what differs between the two runs: "whole code" or "one factor".

    Returns:
        The drawing, two panels per architecture and task: effects, and similarity to other seeds at the first setting (only
        where there are several settings and seeds). Points are models; boxes, from 5 seeds on, 95 % intervals, Student's t.
    """
    groups, panels, words = group(models), [], []
    for alike in _families(groups):
        effects = {_setting(g): _effects(g, counterfactual) for g in alike}
        labels = {_setting(g): g.label for g in alike}
        name = alike[0].architecture + (f", {alike[0].setting}" if len({g.setting for g in groups}) > 1 else "")
        panels.append(Panel(name, "", "effect", _parts(effects, labels)))
        first, *others = effects
        against = {setting: _against(effects[setting][""], effects[first][""]) for setting in effects}
        if against[first].empty or not others:
            continue
        shown = {**against, UNTRAINED: _against(effects[first]["untrained"], effects[first][""])}
        shown |= {f"{setting}{OWN}": _against(effects[setting][""], effects[setting][""]) for setting in others}
        panels.append(Panel(f"{name}: likeness to other seeds at {first}", "", "similarity", _points(shown, labels)))
        words += [f"{name}, {setting}: {_verdict(against[setting] - against[first], against[first])}" for setting in others]
    caption = (
        "Effects: share of the way that the answer moves where a part alone is exchanged, on held-out compositions. "
        "Similarity: correlation over heads and MLPs of two models' effects, corrected for reliability; of every model with "
        "those of the first setting (or of its own) that have other seeds, the mean. Heads of a layer are ordered by size. "
        "Points: models. "
        f"Boxes: 95 % intervals from {SEEDS} seeds on. Similarity less that of the models of the first setting among "
        f"themselves, paired by seed; within {MARGIN:g} of 0 counts as the same circuit, a margin fixed beforehand. "
        f"{'; '.join(words) or 'One setting alone: nothing is compared'}."
    )
    return Drawing("Is the circuit the same at another training setting?", tuple(panels), caption, columns=2)


def _families(groups: list[Group]) -> list[list[Group]]:
    """Groups of one architecture and task, which differ in how they were trained (earlier versions name fewer settings)."""
    found: list[tuple[dict, list[Group]]] = []
    for g in groups:
        row = tables.settings(g.folders[0])
        built = {k: str(v) for k, v in row.items() if k.startswith("architecture.")}
        for known, alike in found:
            same = (g.architecture, g.setting) == (alike[0].architecture, alike[0].setting)
            if same and all(built[k] == known[k] for k in built.keys() & known.keys()):
                alike.append(g)
                break
        else:
            found.append((built, [g]))
    return [alike for _, alike in found]


def _setting(g: Group) -> str:
    return g.label.partition("(")[2].rstrip(")") or "as trained"


def _effects(g: Group, counterfactual: str) -> dict[str, pd.DataFrame]:
    """Control -> effects, a row per part and a column per seed; the last row is the reliability."""
    rows = tables.at_last_step(tables.gather(g.folders, "components"))
    rows = rows[(rows["split"] == "ood") & (rows["counterfactual"] == counterfactual) & rows["value"].notna()]
    seeds = rows[[c for c in OWN_SEEDS if c in rows]].astype(str).agg("/".join, axis=1)
    rows = rows.assign(seed=seeds)
    found = {}
    for control in ("", "untrained"):
        some = rows[rows["control"] == control]
        effects = some[some["metric"] == "effect"].copy()
        effects["part"] = effects["component"].str.replace(HEAD, "H", regex=True)
        heads = effects["part"] != effects["component"]
        order = effects.groupby(["seed", "part"])["value"].rank(method="first", ascending=False).astype(int).astype(str)
        effects.loc[heads, "part"] += order[heads]
        wide = effects.pivot_table(index="part", columns="seed", values="value", sort=False)
        noise = some[(some["metric"] == "reliability") & (some["by"] == "heads and MLPs")].set_index("seed")["value"]
        found[control] = pd.concat([wide, noise.reindex(wide.columns).rename("reliability").to_frame().T])
    return found


def _against(these: pd.DataFrame, first: pd.DataFrame) -> pd.Series:
    """Seed -> mean similarity to models of the first setting that have another seed."""
    found = {}
    for seed in [s for s in these if s in first]:
        others = [_similarity(these[seed], first[other]) for other in first if other != seed]
        if others:
            found[seed] = float(np.mean(others))
    return pd.Series(found, dtype=float)


def _similarity(one: pd.Series, other: pd.Series) -> float:
    noise = one["reliability"] * other["reliability"]
    effects = pd.concat([one, other], axis=1).drop("reliability").to_numpy()
    return float(np.corrcoef(effects.T)[0, 1] / np.sqrt(noise)) if noise > 0 else float("nan")


def _shown(effects: pd.DataFrame) -> pd.DataFrame:
    """Parts that are drawn one by one: MLPs, whole attention layers, and the largest head."""
    parts = effects.drop("reliability")
    heads = parts.index.str.contains(HEAD)
    told = parts[~heads].rename(index=lambda part: part.replace("MLP", " MLP"))
    if heads.any():
        told = pd.concat([told, parts[heads].max().rename("largest head").to_frame().T])
    return told


def _parts(effects: dict[str, dict[str, pd.DataFrame]], labels: dict[str, str]) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    for setting, found in effects.items():
        shown = _shown(found[""]).rename_axis("part").reset_index().melt("part", var_name="seed").dropna()
        marks += _marks(shown, "part", labels[setting])
    return tuple(marks)


def _points(found: dict[str, pd.Series], labels: dict[str, str]) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    for x, values in found.items():
        rows = pd.DataFrame({"x": x, "seed": values.index, "value": values.to_numpy()})
        marks += _marks(rows, "x", labels.get(x.removesuffix(OWN), x))
    return (*marks, Rule(float(next(iter(found.values())).mean() - MARGIN), label="margin"))


def _marks(rows: pd.DataFrame, x: str, label: str) -> list[Mark]:
    color = color_of(label) if label != UNTRAINED else CONTROL_COLORS[0]
    boxes = [
        {x: name, "lo": lo, "hi": hi}
        for name, values in rows.dropna().groupby(x, sort=False)["value"]
        if len(values) >= SEEDS
        for lo, hi in [mean_interval(values.to_numpy())]
    ]
    marks: list[Mark] = [Band(pd.DataFrame(boxes), x, "lo", "hi", color=color)] if boxes else []
    return [*marks, Points(rows, x, "value", label=label, color=color, hover="seed")]


def _verdict(beyond: pd.Series, among: pd.Series) -> str:
    """In words, with the numbers."""
    values = beyond.dropna().to_numpy()
    if not len(values):
        return "no seed is shared"
    told = f"{values.mean():+.3f} (among themselves {among.mean():.3f})"
    if len(values) < SEEDS:
        return f"{told}; with fewer than {SEEDS} seeds nothing is claimed"
    lo, hi = mean_interval(values)
    verdict = "the same circuit within the margin" if lo > -MARGIN else "another circuit" if hi < -MARGIN else "cannot be told"
    return f"{told} [{lo:+.3f}, {hi:+.3f}] over {len(values)} seeds: {verdict}"
