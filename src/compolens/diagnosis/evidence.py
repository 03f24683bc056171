"""Numbers out of the tables of a group, and the clauses that quote them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from compolens import tables
from compolens.diagnosis import reported as quoted
from compolens.diagnosis.groups import Group, task_of
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import two_level_interval


@dataclass(frozen=True)
class Evidence:
    """Where a number comes from.

    Args:
        table: the table's name.
        where: column -> value, which rows.
        models: names of the models averaged over.
        value: the number.
        lo: lower end of its interval; NaN without one.
        hi: upper end.
    """

    table: str
    where: dict[str, str]
    models: tuple[str, ...]
    value: float
    lo: float = float("nan")
    hi: float = float("nan")

    def __str__(self) -> str:
        rows = ", ".join(f"{k}={v}" for k, v in self.where.items())
        spread = "" if pd.isna(self.lo) else f" [{self.lo:.3f}, {self.hi:.3f}]"
        return f"{self.value:.3f}{spread}: mean over {len(self.models)} model(s) of table {self.table}, rows {rows}"


@dataclass(frozen=True)
class Clause:
    """One claim in words.

    Args:
        text: the words.
        evidence: the numbers that carry it.
    """

    text: str
    evidence: tuple[Evidence, ...]


def score(group: Group, split: str, reference: str = "model") -> Evidence:
    """Pooled score on a split, with its two-level interval over seeds and compositions.

    Args:
        group: the models.
        split: "train", "test" or "ood".
        reference: "model", or the reference that is scored.

    Returns:
        The score.
    """
    parts = [per_composition(folder, split, reference) for folder in group.folders]
    if len(parts) < 2:
        pooled = rows_of(
            group.folders[0], "generalization", metric="score", split=split, reference=reference, composition="all"
        )
        value, lo, hi = (float(pooled[c].iloc[0]) for c in ("value", "lo", "hi"))
    else:
        value, lo, hi = two_level_interval(parts, tasks=[task_of(folder) for folder in group.folders])
    where = {"metric": "score", "split": split, "reference": reference}
    return Evidence("generalization", where, group.names, value, lo, hi)


def readout(group: Group, layer_role: tuple[float, str], fit: str, split: str, control: str = "") -> Evidence:
    """Mean over seeds of the code's R² at a layer and token role.

    Args:
        group: the models.
        layer_role: (layer, token role).
        fit: what the readout was fitted on, as in the column `fit` of `latent_code`.
        split: on which it is scored.
        control: "" for the model itself, else which control.

    Returns:
        The mean.
    """
    layer, role = layer_role
    where = {"metric": "r2", "dimension": "mean", "layer": layer, "role": role, "fit": fit, "split": split, "control": control}
    values = [rows_of(folder, "latent_code", **where)["value"].iloc[0] for folder in group.folders]
    return Evidence(
        "latent_code",
        {k: f"{v:g}" if isinstance(v, float) else str(v) for k, v in where.items()},
        group.names,
        float(pd.Series(values).mean()),
    )


def rows_of(folder: Path, table: str, **where: object) -> pd.DataFrame:
    """The rows of a model's table at its last step that a number is taken from.

    Args:
        folder: the model's folder.
        table: the table's name.
        where: column -> its entry.

    Returns:
        One row at least.

    Raises:
        UnusableTable: the table lacks one of the columns.
        ConfigError: it has no such row.
    """
    frame = tables.at_last_step(tables.read(folder, table))
    kept = np.ones(len(frame), dtype=bool)
    for column, value in where.items():
        if column not in frame:
            raise tables.lacks(folder, table, column)
        kept &= (frame[column] == value).to_numpy(dtype=bool)
    frame = frame[kept]
    if frame.empty:
        wanted = ", ".join(f"{k}={v}" for k, v in where.items())
        again = f"{tables.again(folder, table)} --again"
        raise ConfigError(f"{folder}: table {table} has no row with {wanted}; type: {again}")
    return frame


def per_composition(folder: Path, split: str, reference: str = "model") -> pd.DataFrame:
    """A model's pooled scores on each composition of a split.

    Args:
        folder: the model's folder.
        split: "train", "test" or "ood".
        reference: "model", or the reference that is scored.

    Returns:
        A row per composition: composition, value and weight.
    """
    frame = rows_of(folder, "generalization", metric="score", split=split, reference=reference)
    for column in ("composition", "weight"):
        if column not in frame:
            raise tables.lacks(folder, "generalization", column)
    return frame[frame["composition"] != "all"][["composition", "value", "weight"]]


def have(group: Group, table: str) -> bool:
    """Whether every model of a group has a table that can be drawn from.

    Args:
        group: the models.
        table: the table's name.

    Returns:
        True if so.
    """
    return all(tables.has(folder, table) for folder in group.folders)


def reference_names(group: Group) -> list[str]:
    """The references whose score on held-out compositions is known, of the first model of `group`."""
    frame = rows_of(group.folders[0], "generalization", metric="score", split="ood", composition="all", control="reference")
    return list(frame[frame["value"].notna()]["reference"])


def ceiling(group: Group) -> float:
    """The ood score that no learner can be expected to exceed on the tasks of `group`: a mean over its models."""
    where = {"metric": "score", "split": "ood", "composition": "all", "control": "reference"}
    return float(np.mean([tables.ceiling_of(rows_of(folder, "generalization", **where)) for folder in group.folders]))


def beside_the_paper(group: Group) -> str:
    """The mean ± s.e. over seeds of `group` under the paper's measure, and what the paper reports; "" where it
    says nothing."""
    reported = quoted.held_out_score(tables.settings(group.folders[0]))
    if reported is None:
        return ""
    where = {"metric": reported.metric, "split": "ood", "composition": "all", "control": ""}
    own = pd.Series([float(rows_of(folder, "generalization", **where)["value"].iloc[0]) for folder in group.folders])
    spread = f" ± {float(own.std() / len(own) ** 0.5):.3f}" if len(own) > 1 else ""
    return f"{float(own.mean()):.3f}{spread} / {reported.value:.3f} ± {reported.se:.3f}"


def stratum(group: Group, split: str) -> tuple[str, float] | None:
    """The part of the episodes on which the family also wants its score.

    Args:
        group: the models.
        split: "test" or "ood".

    Returns:
        (name, mean score over seeds); None where there is no such part.
    """
    frames = [tables.at_last_step(tables.read(folder, "generalization")) for folder in group.folders]
    values, name = [], ""
    for frame in frames:
        own = frame[(frame["control"] == "") & (frame["split"] == split) & frame["metric"].str.startswith("score, ")]
        if own.empty:
            return None
        name = str(own["metric"].iloc[0]).removeprefix("score, ")
        values.append(float(own["value"].iloc[0]))
    return name, sum(values) / len(values)


def rounded(value: float, digits: int) -> str:
    """A number that a model may not have, in words.

    Args:
        value: the number; NaN where it is not available.
        digits: after the point.

    Returns:
        The text.
    """
    return "not available" if np.isnan(value) else f"{value:.{digits}f}"
