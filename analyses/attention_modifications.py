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
PLAIN = {False: "SoftmaxSelfAttention", True: "SoftmaxTransformer"}
"""Without a modification: in token space, and (True) in a transformer."""
SETTING, PART = "architecture.", "modification."
TITLES = {
    "Regularized": "Regularised: W_0, the query's own token, shrinks by 1 - alpha",
    "NegativeSample": "Negative samples: beta times the mean of the share least attended to is subtracted",
    "Augmented": "Augmented: learned non-linear maps of keys (and queries) or values",
}
AXES = {"Regularized": "alpha", "NegativeSample": "beta, share", "Augmented": "maps of"}


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
        modified = [g for g in here if _strength(g)]
        if not modified:
            continue
        plain = [g for g in here if g.architecture in {_plain(one) for one in modified}]
        for name in dict.fromkeys(_plain(g) for g in modified):
            if name not in {g.architecture for g in plain}:
                raise ConfigError(
                    f"{setting} has modified attentions but no {name} to compare them with; name its folders, or train "
                    "some: compolens train trained_models/regression.py --out trained_models/regression"
                )
        for kind in dict.fromkeys(_kind(g) for g in modified):
            same = [g for g in modified if _kind(g) == kind]
            marks = [
                Rule(0.0, label="plain softmax attention, same seed"),
                *(m for g in same for m in _marks(g, [p for p in plain if p.architecture == _plain(g)], split)),
            ]
            score = tables.settings(plain[0].folders[0])["score_name"]
            panels.append(Panel(TITLES[kind], AXES[kind], f"{score}, gain over plain", tuple(marks)))
            reached |= {seed: value for g in plain for seed, value in _scores(g, split).items()}
    if not panels:
        raise ConfigError(
            "none of these models has a modified attention (RegularizedSelfAttention, NegativeSampleSelfAttention, "
            "AugmentedSelfAttention, ModifiedTransformer); try: compolens analyze attention_modifications "
            "trained_models/regression"
        )
    seeds = min(len(g.folders) for g in groups if _strength(g) or g.architecture in PLAIN.values())
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


def _plain(g: Group) -> str:
    """The architecture that a modified one is compared with."""
    return PLAIN[g.architecture == "ModifiedTransformer"]


def _kind(g: Group) -> str:
    """Which of `TITLES` a modified attention is; "" for other architectures."""
    settings = tables.settings(g.folders[0])
    name = str(settings.get(f"{SETTING}{PART}".rstrip("."), g.architecture))
    return next((kind for kind in TITLES if name.startswith(kind)), "")


def _strength(g: Group) -> str:
    """What tells a modified attention's strength, as it stands under the axis; "" for other architectures."""
    settings = tables.settings(g.folders[0])
    row = {k.removeprefix(SETTING).removeprefix(PART): v for k, v in settings.items() if k.startswith(SETTING)}
    if _kind(g) == "Regularized":
        return f"{row['alpha']:g}"
    if _kind(g) == "NegativeSample":
        return f"{row['beta']:g}, {row['share']:g}"
    return " and ".join(part for part in ("keys", "values") if row.get(f"augment_{part}")) if _kind(g) else ""


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
        raise ConfigError(
            f"{g.label} has no seed in common with plain attention; name folders of equal seeds: {sorted(baseline)}"
        )
    data = pd.DataFrame({"strength": name, "gain": gains})
    color = color_of(g.architecture)
    marks: list = [Points(data, "strength", "gain", label=g.architecture, color=color)]
    if len(gains) >= SEEDS:
        lo, hi = mean_interval(np.array(gains))
        marks.append(Band(pd.DataFrame({"strength": [name], "lo": [lo], "hi": [hi]}), "strength", "lo", "hi", color=color))
    return marks
