"""The changes that the dual model suggests to softmax attention change how well it learns in context."""

from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, SPLITS, Group, group, setting_of
from compolens.figures import Band, Drawing, Panel, Points, Rule, color_of
from compolens.foundation.configs import ConfigError, require_choice
from compolens.measures.intervals import mean_interval

needs = ("generalization",)
PLAIN = "SoftmaxSelfAttention"
SETTING = "architecture."


def analyze(models: list[Path], *, split: str = "test") -> Drawing:
    """Draw the score of modified attentions less that of plain softmax attention of the same seed (2310.13220).

    A panel per kind of modification and setting; along x, its strength.

    Args:
        models: folders of the models to draw, in this order.
        split: "test" (training compositions, where in-context learning is trained) or "ood" (held-out ones).

    Returns:
        The drawing. Points are seeds, boxes 95 % intervals of their mean (from 5 seeds on); the line at 0 is plain attention.

    Raises:
        ConfigError: no model has a modified attention, or none of plain attention has a seed in common with one that has.
    """
    require_choice(split, SPLITS)
    groups, panels = group(models), []
    reached: dict[tuple, float] = {}
    for setting in dict.fromkeys(g.setting for g in groups):
        here = [g for g in groups if g.setting == setting]
        plain = [g for g in here if g.architecture == PLAIN]
        modified = [g for g in here if _strength(g)]
        if not modified:
            continue
        if not plain:
            raise ConfigError(
                f"{setting} has modified attentions but no {PLAIN} to compare them with; name its folders as well, or train "
                "some: compolens train trained_models/regression.py --out trained_models/regression"
            )
        for kind in dict.fromkeys(g.architecture for g in modified):
            same = [g for g in modified if g.architecture == kind]
            marks = [
                Rule(0.0, label="plain softmax attention, same seed"),
                *(m for g in same for m in _marks(g, plain, split)),
            ]
            score = tables.settings(plain[0].folders[0])["score_name"]
            panels.append(Panel(_title(kind), _axis(kind), f"{score}, gain over plain", tuple(marks)))
            reached |= {seed: value for g in plain for seed, value in _scores(g, split).items()}
    if not panels:
        raise ConfigError(
            "none of these models has a modified attention (RegularizedSelfAttention, NegativeSampleSelfAttention, "
            "AugmentedSelfAttention); try: compolens analyze attention_modifications trained_models/regression"
        )
    seeds = min(len(g.folders) for g in groups if _strength(g) or g.architecture == PLAIN)
    own = ", ".join(f"{value:.2f}" for value in reached.values())
    caption = (
        f"Gain in score over plain softmax attention of the same size and seed, on {SPLITS[split]} of {_where(groups)}. "
        f"Points are seeds, boxes 95 % intervals of their mean (from {SEEDS} seeds on). Plain attention itself "
        f"reaches {own} in its {len(reached)} "
        "seeds. Where these lie far apart, some seeds have found a solution and others have not; a large gain then is a seed "
        "that finds it too. The strengths were chosen here: tasks, sizes and curves of 2310.13220 are not public."
    )
    caption += " With fewer than 5 seeds no difference is claimed." if seeds < SEEDS else ""
    return Drawing("What do modified attentions change?", tuple(panels), caption, columns=1)


def _where(groups: list[Group]) -> str:
    return ", ".join(dict.fromkeys(setting_of(tables.settings(g.folders[0])) for g in groups if _strength(g)))


def _strength(g: Group) -> str:
    """What tells a modified attention's strength, as it stands under the axis; "" for other architectures."""
    row = {k.removeprefix(SETTING): v for k, v in tables.settings(g.folders[0]).items() if k.startswith(SETTING)}
    if g.architecture.startswith("Regularized"):
        return f"{row['alpha']:g}"
    if g.architecture.startswith("NegativeSample"):
        return f"{row['beta']:g}, {row['share']:g}"
    if g.architecture.startswith("Augmented"):
        return " and ".join(part for part in ("keys", "values") if row.get(f"augment_{part}"))
    return ""


def _title(kind: str) -> str:
    return {
        "RegularizedSelfAttention": "Regularised: W_0, the query's own token, shrinks by 1 - alpha",
        "NegativeSampleSelfAttention": "Negative samples: beta times the mean of the share least attended to is subtracted",
        "AugmentedSelfAttention": "Augmented: learned non-linear maps of keys (and queries) or values",
    }[kind]


def _axis(kind: str) -> str:
    return {"RegularizedSelfAttention": "alpha", "NegativeSampleSelfAttention": "beta, share"}.get(kind, "maps of")


def _scores(g: Group, split: str) -> dict[tuple, float]:
    """(initial, data seed) -> score."""
    found = {}
    for folder in g.folders:
        frame, row = tables.pooled(folder), tables.settings(folder)
        value = frame[(frame["split"] == split) & (frame["control"] == "")]["value"].iloc[0]
        found[row["init_seed"], row["data_seed"]] = float(value)
    return found


def _marks(g: Group, plain: list[Group], split: str) -> list:
    baseline = {seed: value for one in plain for seed, value in _scores(one, split).items()}
    own, name = _scores(g, split), _strength(g)
    gains = [value - baseline[seed] for seed, value in own.items() if seed in baseline]
    if not gains:
        raise ConfigError(f"{g.label} has no seed in common with {PLAIN}; name folders of equal seeds: {sorted(baseline)}")
    data = pd.DataFrame({"strength": name, "gain": gains})
    color = color_of(g.architecture)
    marks: list = [Points(data, "strength", "gain", color=color)]
    if len(gains) >= SEEDS:
        lo, hi = mean_interval(np.array(gains))
        marks.append(Band(pd.DataFrame({"strength": [name], "lo": [lo], "hi": [hi]}), "strength", "lo", "hi", color=color))
    return marks
