"""What papers report is quoted exactly, and only beside models that are the paper's."""

import dataclasses
import json

import numpy as np
import pytest
from handmade import save, write

from compolens import Run, tables
from compolens.diagnosis import evidence, reported
from compolens.diagnosis.groups import Group
from compolens.foundation.configs import describe
from compolens.models import ARCHITECTURES
from compolens.tasks import FuzzyLogic, Hyperteacher, SRaven

TABLE_A1 = {
    "SoftmaxTransformer": ("63.28 ± 2.31", "56.56 ± 1.05"),
    "LinearAttention": ("59.89 ± 5.22", "56.30 ± 1.11"),
    "HYLA": ("81.13 ± 7.77", "69.13 ± 1.90"),
    "LinearRMSHead": ("68.93 ± 5.10", "59.01 ± 2.50"),
    "HYLAWithoutRMSHead": ("81.27 ± 7.88", "62.53 ± 5.73"),
    "HYLAWithoutNonlinearity": ("84.54 ± 5.32", "56.54 ± 0.21"),
    "HYLAWithoutBoth": ("79.42 ± 7.43", "56.33 ± 1.41"),
    "HYLAWithSoftmax": ("70.98 ± 7.08", "38.21 ± 2.98"),
    "DeepHYLA": ("87.65 ± 4.54", "66.59 ± 0.08"),
}
"""Percent: fuzzy logic, S-RAVEN. The paper has three mixtures of experts and a nonlinear value network more."""


def paper(task, name="HYLA"):
    """The paper's run; its S-RAVEN models see 20 million instances, 128 at a time."""
    fuzzy = task == "FuzzyLogic"
    architecture = ARCHITECTURES[name](n_layers=2 if fuzzy else 4, d_model=128, n_heads=8 if fuzzy else 16)
    return Run(architecture, FuzzyLogic() if fuzzy else SRaven(), steps=50_000 if fuzzy else 156_250, batch_size=128)


def quote(run, folder):
    (folder / "config.json").write_text(json.dumps({"format": 1, "run": describe(run)}))
    return reported.held_out_score(tables.settings(folder))


@pytest.mark.parametrize("task", ["FuzzyLogic", "SRaven"])
@pytest.mark.parametrize("name", TABLE_A1)
def test_the_papers_settings_are_quoted_with_the_papers_numbers(tmp_path, name, task):
    found = quote(paper(task, name), tmp_path)
    value, se = (float(part) / 100 for part in TABLE_A1[name][task == "SRaven"].split(" ± "))
    assert (found.value, found.se) == (pytest.approx(value), pytest.approx(se))
    assert found.metric == ("score" if task == "SRaven" else "R², mean of ratios") and "2406.05816" in found.source


@pytest.mark.parametrize("task", ["FuzzyLogic", "SRaven"])
def test_seeds_may_be_any(tmp_path, task):
    run = paper(task)
    other = dataclasses.replace(run, init_seed=3, data_seed=4, task=dataclasses.replace(run.task, split_seed=5))
    assert quote(other, tmp_path) == quote(run, tmp_path)


def changed(run, **settings):
    """The run with settings of its architecture, of its task or its own."""
    for part in ("architecture", "task"):
        own = {f.name for f in dataclasses.fields(getattr(run, part))} & settings.keys()
        inner = dataclasses.replace(getattr(run, part), **{name: settings.pop(name) for name in own})
        run = dataclasses.replace(run, **{part: inner})
    return dataclasses.replace(run, **settings)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        *[(task, {"d_model": 64}) for task in ("FuzzyLogic", "SRaven")],
        *[(task, {"n_layers": 3}) for task in ("FuzzyLogic", "SRaven")],
        *[(task, {"steps": 10_000}) for task in ("FuzzyLogic", "SRaven")],
        ("SRaven", {"n_features": 3}),
        ("SRaven", {"n_values": 9}),
        ("FuzzyLogic", {"length": 16}),
        ("FuzzyLogic", {"fraction_held_out": 0.5}),
        ("FuzzyLogic", {"n_terms": 3}),
        ("FuzzyLogic", {"n_variables": 5}),
    ],
    ids=str,
)
def test_other_settings_are_not_quoted(tmp_path, task, settings):
    assert quote(paper(task), tmp_path) is not None
    assert quote(changed(paper(task), **settings), tmp_path) is None


@pytest.mark.parametrize("scores", [(0.8,), (0.8, 0.7, 0.9, 0.6)])
def test_the_mean_stands_beside_the_papers_with_its_standard_error(tmp_path, scores):
    folders = []
    for seed, value in enumerate(scores):
        folder = write(tmp_path / f"m{seed}", dataclasses.replace(paper("SRaven"), init_seed=seed))
        known = {"split": "ood", "composition": "all", "metric": "score"}
        rows = [known | {"control": "", "value": value}, known | {"control": "untrained", "value": 0.1}]
        save(folder, "generalization", [*rows, rows[0] | {"split": "test", "value": 0.99}])
        folders.append(folder)
    own = "0.800" if len(scores) == 1 else f"0.750 ± {np.std(scores, ddof=1) / 2:.3f}"
    assert evidence.beside_the_paper(Group("HYLA", "", folders)) == f"{own} / 0.691 ± 0.019"


def test_nothing_is_quoted_for_other_architectures_and_families(tmp_path):
    assert quote(Run(ARCHITECTURES["HYLA"](n_layers=2, d_model=128), Hyperteacher(), steps=50_000), tmp_path) is None
    quote(paper("FuzzyLogic"), tmp_path)
    assert reported.held_out_score(tables.settings(tmp_path) | {"architecture": "Mine"}) is None
