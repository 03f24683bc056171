"""Models that differ in seeds alone form a group: what an analysis, the diagnosis and the tables of models speak of."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.measures.intervals import mean_interval

SPLITS = {"ood": "held-out compositions", "test": "fresh episodes of training compositions"}
"""What a trained model is scored on, in words."""
SEEDS = 5
"""With fewer seeds, points are shown and no difference is claimed."""


class CopiedModel(UserWarning):
    """A folder holds what another one of the same group holds, and counts as a further seed."""


@dataclass
class Group:
    """Models that differ in seeds alone.

    Args:
        architecture: the class's name.
        setting: the task in a few words, as `setting_of` says it.
        folders: the models.
        label: the architecture, with what tells it from others of the same name.
    """

    architecture: str
    setting: str
    folders: list[Path] = field(default_factory=list)
    label: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.folders)


_DRAWN = ("task.teacher_seed", "task.split_seed", "init_seed", "data_seed")
_SEEDS = (*_DRAWN, "model", "folder", "keep", "task.setting")
"""Settings that models of a group may differ in: seeds, and what is another name of the rest, or none."""


_CALLED = ("architecture.module", "architecture.call", "architecture.reinit", "architecture.sites", "architecture.roles")
"""How an adopted network is made, run and hooked: told only where nothing else tells two apart."""


def task_of(folder: Path) -> str:
    """What a model was asked, with the seeds of its task: models of equal tasks have the same held-out compositions.

    Args:
        folder: the model's.

    Returns:
        The task's settings as text.
    """
    row = tables.settings(folder)
    return repr(sorted((name, str(value)) for name, value in row.items() if name.startswith("task")))


def setting_of(row: dict) -> str:
    """A setting in a few words, the task with what distinguishes it: as its family says (`TaskFamily.setting`).

    Args:
        row: The settings of a model's folder, `tables.settings`.

    Returns:
        The words, such as "Hyperteacher 16→8 connected".
    """
    return row["task.setting"] if "task.setting" in row else _setting_without_the_family(row)


def _setting_without_the_family(row: dict) -> str:
    """The same words for folders of version 0.1, which do not hold them."""
    support = row.get("task.support")
    widths = f"{row['task.d_x']}→{row['task.d_y']}" if "task.d_x" in row and "task.d_y" in row else ""
    named = support if support is None or not str(support).startswith("[") else "listed"
    told = f"{row['task.n_features']} features" if "task.n_features" in row else ""
    if "task.n_left" in row:
        told = f"{row['task.n_left']}×{row['task.n_right']}{', with positions' if row.get('task.positions') else ''}"
    if row["task"] == "LinearRegression":
        told = f"with {row['task.n_context']} examples, {row['task.inputs'].removesuffix('Inputs').lower()} inputs"
    if "task.length" in row:
        told = f"{row['task.length']} tokens, {100 * row['task.fraction_held_out']:.0f} % held out"
    return " ".join(str(p) for p in (row["task"], widths, named, told) if p)


def group(folders: Sequence[Path]) -> list[Group]:
    """Split model `folders` into groups that differ in seeds alone, in order of first appearance.

    A copy of a model (equal settings, seeds and weights) is no further seed, and a warning names it. It stays, since one of
    the two may be damaged."""
    groups: dict[tuple, Group] = {}
    known: dict[tuple, list[Path]] = {}
    for folder in map(Path, folders):
        row = tables.settings(folder)
        key = tuple(sorted((k, str(v)) for k, v in row.items() if k not in _SEEDS))
        drawn = known.setdefault((key, *(str(row.get(k)) for k in _DRAWN)), [])
        original = next((other for other in drawn if _copied(other, folder)), None)
        if original is not None:
            told = f"{folder} is a copy of {original} and no further seed: leave it out, or no interval over seeds is right"
            warnings.warn(told, CopiedModel, stacklevel=2)
        drawn.append(folder)
        groups.setdefault(key, Group(row["architecture"], setting_of(row))).folders.append(folder)
    for key, one in groups.items():
        alike = [dict(k) for k, g in groups.items() if (g.architecture, g.setting) == (one.architecture, one.setting)]
        differing = [k for k in dict(key) if len({str(t.get(k)) for t in alike}) > 1]
        told = ", ".join(f"{k.split('.')[-1]} {dict(key)[k]}" for k in _telling_apart(differing, alike))
        one.label = f"{one.architecture} ({told})" if told else one.architecture
    return list(groups.values())


def _copied(one: Path, other: Path) -> bool:
    """Whether the folders hold the same weights."""
    weights = [folder / "weights.safetensors" for folder in (one, other)]
    return all(w.is_file() for w in weights) and len({tables.file_digest(w) for w in weights}) == 1


def _telling_apart(differing: list[str], alike: list[dict]) -> list[str]:
    """Of settings that differ, those to be told.

    How models were trained is told only where what they are does not tell them apart. That a config lacks a setting, as
    those of earlier versions do, tells nothing apart unless nothing else does.
    """
    own = [k for k in differing if k.startswith(("architecture.", "task.")) and k not in _CALLED]
    whole = [k for k in differing if all(k in t for t in alike)]
    for enough, chosen in (([k for k in own if k in whole], own), (whole, whole), (own, own)):
        if len({tuple(str(t.get(k)) for k in enough) for t in alike}) == len(alike):
            return chosen
    return differing


def telling(one: Group, groups: Sequence[Group]) -> str:
    """What a group's colour stands for among others: the architecture or a variant of it, or the label where that is shared.

    Args:
        one: the group.
        groups: all groups, this one among them.

    Returns:
        The word.
    """
    alike = {other.label for other in groups if other.architecture == one.architecture and _variant(other) == _variant(one)}
    return one.label if len(alike) > 1 else _variant(one)


def _variant(g: Group) -> str:
    """The architecture, with the setting by which its variants have a colour each in all figures."""
    row = tables.settings(g.folders[0])
    if "architecture.threshold.sparsity" in row:
        return f"{g.architecture}, {100 * row['architecture.threshold.sparsity']:g} % silenced"
    if row.get("architecture.threshold.xi") == 0:
        return f"{g.architecture}, no threshold"
    hidden = row.get("architecture.d_hidden") if g.architecture == "BottleneckMLP" else None
    return g.architecture if hidden is None else f"{g.architecture}, d_hidden {hidden}"


def attention_among(one: Group, groups: Sequence[Group]) -> str:
    """A group's attention in words, such as "soft threshold, ξ = 0.01", with what tells it from others in its setting.

    Args:
        one: the group.
        groups: all groups, this one among them.

    Returns:
        What it does with its scores; with its transfer, or the label, where another group of the setting shares that.
    """
    here = [other for other in groups if other.setting == one.setting]
    for transfer in (False, True):
        names = [_attention(other, transfer) for other in here]
        if names.count(_attention(one, transfer)) == 1:
            return _attention(one, transfer)
    return one.label


def _attention(g: Group, with_transfer: bool) -> str:
    row = tables.settings(g.folders[0])
    threshold = {k.rpartition(".")[2]: v for k, v in row.items() if k.startswith("architecture.threshold.")}
    transfer = str(row.get("architecture.transfer", "none")).removesuffix("Transfer").lower()
    if "sparsity" in threshold:
        name = f"soft threshold, {100 * threshold['sparsity']:g} % silenced"
    elif "xi" in threshold:
        name = f"soft threshold, ξ = {threshold['xi']:g}" if threshold["xi"] else "no threshold (ξ = 0)"
    elif g.architecture == "LinearAttention":
        name = "no threshold (ξ = 0)"
    else:
        name = {"SoftmaxTransformer": "softmax"}.get(g.architecture, g.architecture)
    return name if transfer == "none" or not with_transfer else f"{name}, {transfer} transfer"


def over_seeds(rows: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Means over seeds, with 95 % t intervals from `SEEDS` seeds on.

    Args:
        rows: one number a seed in the column value for each of the combinations in `by`; the seed's model in the column model.
        by: columns.

    Returns:
        A row per combination, in order of appearance: `by`, value, lo and hi (NaN with fewer seeds).
    """
    found = []
    for key, part in rows.groupby(list(by), sort=False):
        ends = mean_interval(part["value"].to_numpy()) if part["model"].nunique() >= SEEDS else (np.nan, np.nan)
        found.append((*key, part["value"].mean(), *ends))
    return pd.DataFrame(found, columns=[*by, "value", "lo", "hi"])


def title(one: Group, groups: Sequence[Group]) -> str:
    """What a panel about a group is called among others: its label, with the setting where there is more than one.

    Args:
        one: the group.
        groups: all groups, this one among them.

    Returns:
        The title.
    """
    return one.label if len({other.setting for other in groups}) == 1 else f"{one.label}, {one.setting}"


def name_among(one: Group, groups: Sequence[Group]) -> str:
    """The label; with the setting only where another group has the same label.

    Args:
        one: the group.
        groups: all groups, this one among them.

    Returns:
        The name.
    """
    return one.label if [other.label for other in groups].count(one.label) == 1 else title(one, groups)
