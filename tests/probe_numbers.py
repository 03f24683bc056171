"""The numbers of every built-in probe on tiny fixed models: measured, compared with those held, written down again.

    python tests/probe_numbers.py [PROBE …]        # writes tests/data/probe_numbers/PROBE.csv; all of them if none is named

Nothing is trained: the weights are those of another seed than the untrained control's. A new file in probes/ is found by
itself; it is measured on every model here that it applies to. Numbers are held of the probes that declare a version: without
one, a table is stale whenever the code of its probe changes, and no number is promised.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from compolens import HypernetworkTransformer, Hyperteacher, Run, recipes
from compolens.foundation import versions
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import DoesNotApply
from compolens.models import (
    HYLA,
    FixedThreshold,
    LinearSelfAttention,
    RelativeTransfer,
    SoftmaxSelfAttention,
    SoftmaxTransformer,
    SparseCoding,
)
from compolens.tasks import (
    BooleanFunctions,
    BurstyClassification,
    ClassesPrior,
    HarmonicInputs,
    InterleavedTokens,
    LinearRegression,
    Relations,
    RepresentationRegression,
    SRaven,
    UncertainRegression,
)
from compolens.zoo.folders import TrainedModel

HELD = Path(__file__).parent / "data" / "probe_numbers"
RTOL, ATOL = 1e-3, 1e-4
"""What another processor or another version of torch may change."""
ROUNDING, NOISES, MOSTLY = 1e-6, 8, 0.05
"""Relative noise on the weights, and how often it is drawn, to find the numbers that it moves by more than a tenth of that, as
it does readouts of what was erased. These are held to within ten times of what the noise does to them; where it moves more
than this share of a model's rows of a metric, all of these are, by the row that it moves most."""
EDGE, FLIPPED = 200, 20
"""One row in so many may differ by up to so many times what is allowed: a decision on the edge may fall the other way."""
WITHIN, ANYTHING = " ±", "?"
"""Ends the name of the column that says how far a number may be off; stands for words that rounding changes."""
FEW = {
    "episodes": 32, "fitted": 64, "fits": 16, "searched": 8, "tangent_episodes": 32, "looked_at": 4, "points": 6,
    "search_steps": 2, "tuning_steps": 2, "iterations": 2, "draws": 2, "exact": 4, "newton": 4, "gd": 16,
    "updates": 2,
}  # fmt: skip
"""What makes a probe quick, where it has such an option."""
SMALL, REGRESSION = {"n_layers": 2, "d_model": 8, "n_heads": 2}, LinearRegression(d_x=3, n_context=4)
TEACHER = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
MODELS = {
    "teacher": Run(HypernetworkTransformer(**SMALL, d_code=6, d_hidden=12), TEACHER, steps=0),
    "raven": Run(HYLA(**SMALL | {"n_layers": 1}, n_ctx=18), SRaven(n_features=2), steps=0),
    "relations": Run(SparseCoding(**SMALL, threshold=FixedThreshold(0.1), transfer=RelativeTransfer()), Relations(), steps=0),
    "softmax": Run(SoftmaxSelfAttention(n_layers=1, attends_to_itself=True, n_heads=2), REGRESSION, steps=0),
    "linear": Run(LinearSelfAttention(n_layers=2, tied=True, init_scale=1.0), REGRESSION, steps=0),
    "bursty": Run(SoftmaxTransformer(**SMALL, attn_only=True), BurstyClassification(n_classes=9, n_labels=4), steps=0),
    "unsure": Run(SoftmaxTransformer(**SMALL), UncertainRegression(d_x=3, n_context=5), steps=0),
    "boolean": Run(SoftmaxTransformer(**SMALL), BooleanFunctions(n_bits=4, n_context=8), steps=0),
    "classes": Run(
        SoftmaxTransformer(**SMALL),
        LinearRegression(
            d_x=4,
            n_context=4,
            inputs=HarmonicInputs(),
            prior=ClassesPrior(),
            noise=0.25,
            layout=InterleavedTokens(),
            shifted_prior=ClassesPrior(shares=((0.5, 0.5), (0.25, 0.75))),
        ),
        steps=0,
    ),
    "represented": Run(
        SoftmaxTransformer(**SMALL), RepresentationRegression(d_x=3, n_context=5, layout=InterleavedTokens()), steps=0
    ),
}
"""Continuous, categorical and regressed codes; weights that are generated, thresholded, transferred, softmax and linear."""
ONLY = {"bursty": ("in_context_or_in_weights", "head_scores"), "boolean": ("head_scores",), "unsure": ("uncertainty",)}
ONLY |= {"represented": ("representation_map", "pasting"), "classes": ("function_classes", "moments_and_weights")}
"""Models that are there for some probes, which apply to no other; the rest is measured enough without them."""


def command(name: str) -> str:
    """What writes the numbers of a probe down again."""
    return f"python tests/probe_numbers.py {name}"


# ---- measuring -------------------------------------------------------------------------------------------------------
def measure(name: str, noise: int | None = None) -> pd.DataFrame:
    """The probe's tables of all models that it applies to, and the means of its per-episode rows.

    noise: seed of a change of the weights of the size of rounding; none if left out.
    """
    function = recipes.load_recipe("probes", name)
    arguments = {option: FEW[option] for option in recipes.options(function) if option in FEW}
    parts = []
    for model, run in MODELS.items():
        if name in run.task.missing or name not in ONLY.get(model, (name,)):
            continue
        try:
            found = function(TrainedModel(run, weights_of(run, noise), run.task, Path(model), 0), **arguments)
        except DoesNotApply:
            continue
        table, episodes = found if isinstance(found, tuple) else (found, None)
        rows = [table.drop(columns="note", errors="ignore"), *([] if episodes is None else [means(episodes)])]
        parts.append(pd.concat(rows, ignore_index=True).assign(model=model))
    assert parts, f"{name} applies to no model of tests/probe_numbers.py; add one to MODELS that it applies to"
    frame = pd.concat(parts, ignore_index=True)
    return as_read(frame[["model", *frame.columns.drop("model")]])


def weights_of(run: Run, noise: int | None) -> torch.nn.Module:
    """The run's architecture with the weights of another seed than its untrained control has."""
    model = replace(run, init_seed=1).build().eval()
    if noise is not None:
        rng = torch.Generator().manual_seed(noise)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + ROUNDING * torch.randn(weight.shape, generator=rng))
    return model


def means(episodes: pd.DataFrame) -> pd.DataFrame:
    """A row for every column of numbers: their mean over all episodes, and how many there are."""
    rows = []
    for column in episodes:
        values = np.concatenate([np.ravel(value) for value in episodes[column]])
        if np.issubdtype(values.dtype, np.number):
            known = values[~np.isnan(values.astype(float))]
            value = known.mean() if len(known) else np.nan
            rows.append({"metric": f"mean over episodes: {column}", "value": value, "n": len(known)})
    return pd.DataFrame(rows)


# ---- files -----------------------------------------------------------------------------------------------------------
def as_text(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def as_read(frame: pd.DataFrame) -> pd.DataFrame:
    """What reading gives of a frame that was written."""
    return read(StringIO(as_text(frame)))


def read(file: Path | StringIO) -> pd.DataFrame:
    """A frame whose columns hold either numbers, or text with "" where there is none."""
    frame = pd.read_csv(file)
    words = [column for column in frame if not is_number(frame[column])]
    return frame.assign(**frame[words].fillna("").astype(str))


def is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def write(name: str) -> None:
    """Write a probe's numbers down, with the version that they belong to, and how far rounding moves those that it moves."""
    declared = versions.describe(built_in("probes")[name])["probe_version"]
    assert declared is not None, f"probes/{name}.py declares no version: add `version = 1` below its imports"
    frame = measure(name)
    moved = [measure(name, noise) for noise in range(NOISES)]
    by_metric = [frame["model"], frame["metric"]]
    for column in frame.columns:
        if not is_number(frame[column]):
            differs = pd.Series(np.any([frame[column] != other[column] for other in moved], axis=0))
            noisy = differs.groupby(by_metric).transform("mean") > MOSTLY
            frame[column] = frame[column].mask(differs | noisy, ANYTHING)
            continue
        values = frame[column].to_numpy(float)
        moves = pd.Series(np.max([distance(other[column].to_numpy(float), values) for other in moved], axis=0))
        unstable = moves > (ATOL + RTOL * np.abs(np.nan_to_num(values))) / 10
        noisy = unstable.groupby(by_metric).transform("mean") > MOSTLY
        moves = moves.where(~noisy, moves.groupby(by_metric).transform("max"))
        if unstable.any():
            frame[column + WITHIN] = (10 * moves).where(unstable | noisy)
    HELD.mkdir(parents=True, exist_ok=True)
    frame.insert(0, "version", declared)
    (HELD / f"{name}.csv").write_text(as_text(frame), encoding="utf-8")


def distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """|one - other|; infinite where one of the two alone is missing."""
    missing = np.isnan(one), np.isnan(other)
    apart = np.where(missing[0] | missing[1], 0.0, np.abs(np.nan_to_num(one) - np.nan_to_num(other)))
    return np.where(missing[0] ^ missing[1], np.inf, apart)


def outside(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows whose value lies beside its own interval by more than the digits that are written, or that have half of one."""
    if not {"lo", "hi"} <= set(frame.columns):
        return frame.head(0)
    value, lo, hi = (frame[name].to_numpy(float) for name in ("value", "lo", "hi"))
    written = 1e-5 * np.abs(value) + 1e-6
    return frame[(lo > value + written) | (hi < value - written) | (np.isnan(lo) != np.isnan(hi))]


# ---- comparing -------------------------------------------------------------------------------------------------------
def problem(name: str, measured: pd.DataFrame | None = None, held: Path = HELD) -> str:
    """What is wrong with a probe's numbers, and what to do about it; "" if nothing is."""
    file, declared = built_in("probes")[name], versions.describe(built_in("probes")[name])["probe_version"]
    if declared is None and not (held / f"{name}.csv").exists():
        return ""  # its tables are stale whenever its code changes, so nothing has to be raised
    if declared is None:
        return f"probes/{name}.py declares no version: add `version = 1` below its imports"
    if not (held / f"{name}.csv").exists():
        return f"no numbers of {name} are held yet; write them down with: {command(name)}"
    frame = read(held / f"{name}.csv")
    version = int(frame.pop("version").iloc[0])
    if declared != version:
        return (
            f"probes/{file.name} has version {declared}, the numbers held are those of version {version}; "
            f"write them down again with: {command(name)}"
        )
    differing = list(differences(frame, measure(name) if measured is None else measured))
    if not differing:
        return ""
    return "\n".join([
        f"the numbers of {name} have changed: raise its version in probes/{name}.py, then write them down again with: "
        f"{command(name)}", *differing[:8], *([f"… and {len(differing) - 8} more"] if len(differing) > 8 else []),
    ])  # fmt: skip


def differences(held: pd.DataFrame, measured: pd.DataFrame) -> Iterator[str]:
    """A line for every number that differs by more than rounding, and for rows and columns that are gone or new."""
    columns = [column for column in held if not column.endswith(WITHIN)]
    if set(columns) != set(measured.columns):  # their order is no number
        yield f"columns: {', '.join(columns)} were held, now: {', '.join(measured.columns)}"
        return
    if len(held) != len(measured):
        yield f"{len(held)} rows were held, now {len(measured)}"
        return
    lines, far, rows = [], False, set()
    for column in columns:
        old, new = held[column], measured[column]
        if is_number(old) and is_number(new):
            within = ATOL + RTOL * np.abs(np.nan_to_num(old.to_numpy(float)))
            if column + WITHIN in held:
                within = np.fmax(within, held[column + WITHIN].to_numpy(float))
            off = distance(new.to_numpy(float), old.to_numpy(float)) / within
        else:
            same = (old.astype(str) == new.astype(str)) | (old.astype(str) == ANYTHING)
            off = np.where(same, 0.0, np.inf)
        off = np.nan_to_num(off, nan=0.0, posinf=np.inf)  # inf / inf: a number that rounding may take away
        for row in np.flatnonzero(off > 1):
            rows.add(row)
            far |= bool(off[row] > FLIPPED)
            lines.append(f"row {row}, {held['model'][row]}, {held['metric'][row]}: {column} {old[row]} → {new[row]}")
    if far or len(rows) > len(held) // EDGE:
        yield from lines


if __name__ == "__main__":
    torch.set_num_threads(1)
    for probe in sys.argv[1:] or built_in("probes"):
        write(probe)
        print(f"{probe}: written")
