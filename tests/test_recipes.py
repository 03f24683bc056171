"""Every probe and every analysis, found on disk and run from the command line; and what their numbers mean."""

import dataclasses
import hashlib
import inspect
import itertools
import json
import shutil
import subprocess
import sys
from collections import ChainMap
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from once import done_once

from compolens import Run, SoftmaxTransformer, cli, recipes, tables
from compolens.activations.streams import draw
from compolens.foundation import versions
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.models import HypernetworkTransformer
from compolens.references import REFERENCES
from compolens.tasks import SPLITS, Hyperteacher, SRaven
from compolens.zoo.folders import TrainedModel, load

PROBES = recipes.built_in("probes")
OF_LEARNED = ("what_predicts_generalization", "which_composition_fails")
"""They count models that learned their training compositions alone, and no tiny model does."""
CLAIMS = {n: path for n, path in recipes.built_in("analyses").items() if not recipes.of_maps(path) and n not in OF_LEARNED}
"""Those about models; what is said of maps stands in tests/maps."""
EPISODES = 96
MODELS = ("softmax", "hypernetwork")
"""On a family with a continuous code."""
CATEGORICAL = ("hyla", "raven-softmax", "fuzzy", "sparse")
REGRESSION = ("descent", "plain", "regularized")
OWN = {
    "bursty": ("in_context_or_in_weights", "head_scores"), "unsure": ("uncertainty",),
    "represented": ("representation_map", "pasting"), "classes": ("function_classes", "moments_and_weights"),
}  # fmt: skip
"""Models that are there for the probes of their kind of task alone, which apply to no other."""
MEASURED = (*MODELS, *CATEGORICAL, *REGRESSION)
ALL = (*MEASURED, *OWN)
NOT_FOR = {
    "attention_code": (*MODELS, *REGRESSION), "latent_geometry": (*MODELS, *REGRESSION),
    **dict.fromkeys(("inference_or_execution", "which_prior", "erase_code", "repair", "swap_factor"), REGRESSION),
    "factor_circuits": REGRESSION,
    **dict.fromkeys(("code_structure", "nonlinear_code", "predictors", "composition_predictors", "task_vectors"), REGRESSION),
    "module_alignment": tuple(name for name in ALL if name != "hypernetwork"),
    "transfer": tuple(name for name in ALL if name != "sparse"),
    "dual_model": tuple(name for name in ALL if name not in (*MODELS, "raven-softmax", "plain", *OWN)),
    **{p: tuple(name for name in ALL if name != model) for model, ps in OWN.items() for p in ps if p != "pasting"},
    "moments_and_weights": tuple(name for name in ALL if name not in ("classes", "represented")),
    **dict.fromkeys(("gd_equivalence", "algorithm_steps", "weight_structure"), (*MODELS, *CATEGORICAL)),
    **dict.fromkeys(("activation_sparsity", "generalization", "patching", "swap_code"), ()),
    **dict.fromkeys(("components", "edges", "latent_code"), ()), "pasting": REGRESSION,
}  # fmt: skip
"""Probe -> models that it does not apply to. Of a probe that is not in here, each model shows by itself whether it does."""
SHORT = {
    "search_steps": 3, "tuning_steps": 2, "draws": 2, "fitted": 128, "searched": 8, "tangent_episodes": 32, "iterations": 2,
    "exact": 4, "points": 2, "sources": 1, "updates": 3,
}  # fmt: skip
"""How long the searches and trainings inside probes are here."""
READ = ("generalization", "attention_code", "latent_geometry", "patching", "latent_code")
BETWEEN = {
    "hyla": READ,
    "raven-softmax": (*READ, "dual_model", "transfer"),
    "fuzzy": (*READ, "swap_code", "which_prior"),
    "regularized": ("generalization", "patching", "gd_equivalence", "algorithm_steps", "weight_structure"),
}
"""Models whose attention, kind of code and layout are each another model's too -> the probes to which they show something that
these do not. HYLA on S-RAVEN is also among the models of tests/probe_numbers.py, which holds every row of all probes on it."""


def asked(model):
    """The probes that a model is measured with, if they apply; a new one is tried on all."""
    if model in OWN:
        return [name for name in OWN[model] if name in PROBES]  # not all are there where a new file is tried in a copy
    return [name for name in PROBES if model not in BETWEEN or name in BETWEEN[model] or name not in NOT_FOR]


CASES = [(name, model) for name in PROBES for model in ALL if model not in NOT_FOR.get(name, ()) and name in asked(model)]
OTHERS = [(name, model) for name, others in NOT_FOR.items() for model in others]


def command(*arguments):
    assert cli.main([str(a) for a in arguments]) == 0


@pytest.fixture(scope="module")
def tiny(tiny_models, tiny_categorical_models, tiny_regression_models):
    """name -> folder of every tiny model."""
    return ChainMap(tiny_models, tiny_categorical_models, tiny_regression_models)


def few(probes):
    """The flags that make some probes quick, of those that any of them has."""
    known = set().union(*(recipes.options(recipes.load_recipe("probes", name)) for name in probes))
    return [word for name, value in SHORT.items() if name in known for word in (f"--{name.replace('_', '-')}", value)]


class Measured:
    """A folder of models, each measured when it is first asked for: what fails for one fails the tests that ask for it."""

    def __init__(self, tiny, root, probes, seed):
        self.root = root
        self.work = {name: partial(self.measure, tiny, name, seed, these) for name, these in probes.items()}

    def measure(self, tiny, name, seed, probes):
        """A copy of a model, measured with those of some probes that apply to it."""
        shutil.copytree(tiny[name], self.root / name)
        if probes:
            command("probe", *probes, self.root / name, "--episodes", EPISODES, "--seed", seed, *few(probes))

    def __truediv__(self, name):
        done_once(self.root, self.work, [name])
        return self.root / name


@pytest.fixture(scope="module")
def models(tiny, shared):
    """Every tiny model, measured."""
    return Measured(tiny, shared / "measured", {name: asked(name) for name in ALL}, 5)


def one_each(*candidates):
    """(probe, model): every probe on the first of some models to which it applies; on all of them if nobody has said. Probes
    that have a model of their own are left to that one."""
    found = []
    for name in (name for name in PROBES if name not in itertools.chain(*OWN.values())):
        fit = [model for model in candidates if model not in NOT_FOR.get(name, ())]
        found += [(name, model) for model in (fit[:1] if name in NOT_FOR else fit)]
    return found


def by_model(cases):
    return {model: [name for name, other in cases if other == model] for _, model in cases}


OF_ITS_OWN = [(probe, model) for model, probes in OWN.items() for probe in probes]
SAME_SEED = [*one_each("descent", "sparse", "hypernetwork"), *OF_ITS_OWN]
"""The quickest model of each kind: on all kinds, equal seeds have to give the numbers that tests/data/probe_numbers holds."""
OTHER_SEED = [*one_each("plain", "sparse", "descent", "hypernetwork"), *OF_ITS_OWN]


@pytest.fixture(scope="module")
def again(tiny, shared):
    """Every probe once more."""
    return Measured(tiny, shared / "again", by_model(SAME_SEED), 5)


@pytest.fixture(scope="module")
def otherwise(tiny, shared):
    """Every probe with another seed."""
    return Measured(tiny, shared / "otherwise", by_model(OTHER_SEED), 6)


DRAWN = (*MODELS, "hyla", "descent", "sparse", "plain", "regularized", *OWN)
"""Enough for every analysis: two architectures on one task first, then one of each kind of task."""
AT_MOST = 2
"""Models that an analysis draws of those it could; each panel more takes its time."""
ABOUT = {
    "ablations": ("hyla", "softmax"), "attention_modifications": REGRESSION, "is_it_sparsity_or_transfer": ("sparse", "hyla"),
}  # fmt: skip
"""Analysis -> the models that it speaks of, where those at the head of the list are not enough."""

ALONG = ("scaling", "when_codes_appear")
"""Analyses that need more than trained weights."""


def drawn_from(root, models, name):
    """The models that an analysis of everything measured uses."""
    if name in ALONG:
        return [root / "along" / model for model in MODELS]
    if name in ABOUT:
        return [models / model for model in ABOUT[name]]
    return [models / model for model in DRAWN if enters(models / model, name)][:AT_MOST]


@cache
def needs(name):
    """The probes whose tables an analysis draws."""
    return recipes.load_file(CLAIMS[name]).needs


def enters(folder, name):
    """Whether a model has the tables that an analysis needs."""
    return all(tables.path_of(folder, probe).exists() for probe in needs(name))


@cache
def task_of(folder):
    """The task of a model, which is no other as long as its folder is the same."""
    return load(folder).task


def offered_to(root, models, name):
    """The models that an analysis is given: those that it uses, and another that it has to leave out, if there is one."""
    others = [models / model for model in DRAWN if not enters(models / model, name)] if name not in ALONG else []
    return [*drawn_from(root, models, name), *others[:1]]


@pytest.fixture
def figures(request, models, tiny, shared):
    """The analyses that a test asks for, all of them if it names none: of measured models and of one that was not."""
    root, asked = shared / "figures", getattr(request.node, "callspec", None)
    wanted = [asked.params["name"]] if asked else [*CLAIMS]

    def along(name):
        shutil.copytree(tiny[name], root / "along" / name)
        command("probe", "generalization", root / "along" / name, "--episodes", 32, "--steps", "all")
        short = ("--episodes", 32, "--fitted", 32, "--searched", 8, "--search-steps", 3)
        command("probe", "inference_or_execution", root / "along" / name, *short, "--steps", 0)

    def draw(name, *folders):
        command("analyze", name, *folders, root / "models", "--out", root / "drawn", "--dpi", 50)

    done_once(root, {"bare": lambda: shutil.copytree(tiny["softmax"], root / "models" / "bare")})
    if set(ALONG) & set(wanted):
        done_once(root, {f"along-{model}": partial(along, model) for model in MODELS})
    done_once(root, {claim: partial(draw, claim, *offered_to(root, models, claim)) for claim in wanted})
    return root


def rows(folder, name, **where):
    """The rows of a table that match."""
    frame = tables.read(folder, name)
    for column, value in where.items():
        frame = frame[frame[column] == value]
    assert len(frame), where
    return frame


def episodes_of(folder, name):
    return pd.read_parquet(folder / "tables" / f"{name}.episodes.parquet")


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def applies(models, name, model):
    """Skip, after seeing that it says so, where a probe does not apply to a model of which nobody has said whether it does."""
    if name not in NOT_FOR and not tables.path_of(models / model, name).exists():
        with pytest.raises(DoesNotApply):
            recipes.run_probe(PROBES[name], models / model, {"episodes": 8})
        assert any(tables.path_of(models / other, name).exists() for other in ALL), "it applies to no model"
        pytest.skip("it does not apply")


# ---- every probe -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_asks_a_question_and_takes_episodes_and_seed(name):
    assert recipes.docstring(PROBES[name]).endswith("?")
    options = recipes.options(recipes.load_recipe("probes", name))
    assert {"episodes", "seed"} <= options.keys()
    assert options["episodes"].annotation is options["seed"].annotation is int
    assert inspect.getdoc(recipes.load_recipe("probes", name))


@pytest.mark.parametrize(("name", "model"), CASES)
def test_a_probe_writes_a_tidy_table_with_finite_values_beside_their_controls(models, name, model):
    applies(models, name, model)
    table = tables.read(models / model, name)
    assert set(tables.COLUMNS) <= set(table.columns) and table["step"].unique().tolist() == [2]
    own, control = table[table["control"] == ""], table[table["control"] != ""]
    assert len(own) and len(control) and "untrained" in set(control["control"])
    assert not np.isinf(table["value"]).any() and (own["n"] > 0).all() and own["value"].notna().any()
    parts = [split.partition(", ") for split in set(table["split"])]
    assert {first for first, _, _ in parts} <= set(SPLITS) and {"test", "ood"} <= set(own["split"])
    assert {last for _, _, last in parts} - {""} <= set(task_of(models / model).variants)
    assert (table["metric"] != "").all() and (table["site"] != "").all() and (table["role"] != "").all()
    bounded = table.dropna(subset=["lo", "hi"])
    assert len(bounded) and (bounded["lo"] <= bounded["hi"]).all()
    note = table["note"].fillna("") if "note" in table else pd.Series("", index=table.index)
    unknown = table[table["value"].isna()]
    assert note[unknown.index].str.startswith("not available: ").all()
    if name != "latent_geometry":  # there a code may be constant: that of a token which shows nothing yet
        assert np.isfinite(own["value"]).all()


@pytest.mark.parametrize(("name", "model"), OTHERS)
def test_a_probe_that_does_not_apply_says_so_and_leaves_no_table(models, name, model):
    with pytest.raises(
        DoesNotApply,
        match=r"code|without coefficient transfer|no dual model|no regression family|no weights in|no modules|"
        r"no variance|in turn|no embedding|no mixture of",
    ):
        recipes.run_probe(PROBES[name], models / model, {"episodes": 8})
    assert not tables.path_of(models / model, name).exists()


@pytest.mark.parametrize(("name", "model"), CASES)
def test_a_table_tells_what_it_was_made_from(models, name, model):
    applies(models, name, model)
    provenance = json.loads((models / model / "tables" / f"{name}.json").read_text())
    assert provenance["weights"] == digest(models / model / "weights.safetensors")
    assert provenance.items() >= versions.describe(PROBES[name]).items()
    assert provenance["recipe_path"] is None and provenance["steps"] == [2]
    assert provenance["table"] == digest(models / model / "tables" / f"{name}.csv")
    assert provenance["episodes"] == digest(models / model / "tables" / f"{name}.episodes.parquet")
    defaults = {k: p.default for k, p in recipes.options(recipes.load_recipe("probes", name)).items() if p.default is not None}
    given = {"episodes": EPISODES, "seed": 5} | {k: v for k, v in SHORT.items() if k in defaults}
    assert provenance["arguments"] == defaults | given
    assert provenance["command"] == f"compolens probe {name} {model}"


@pytest.mark.parametrize(("name", "model"), SAME_SEED)
def test_equal_seeds_give_equal_bytes(models, again, name, model):
    applies(models, name, model)
    for suffix in (".csv", ".json", ".episodes.parquet"):
        path = Path("tables") / f"{name}{suffix}"
        assert (models / model / path).read_bytes() == (again / model / path).read_bytes()


@pytest.mark.parametrize(("name", "model"), OTHER_SEED)
def test_other_seeds_give_other_numbers(models, otherwise, name, model):
    applies(models, name, model)
    values = [rows(root / model, name, control="")["value"].dropna().tolist() for root in (models, otherwise)]
    assert values[0] != values[1] and len(values[0])


@pytest.mark.parametrize(("name", "model"), CASES)
def test_a_probe_leaves_what_it_saw_of_each_episode(models, name, model):
    applies(models, name, model)
    seen = episodes_of(models / model, name)
    assert {"split", "composition", "score", "step"} <= set(seen.columns) and len(seen)
    assert not np.isinf(seen["score"]).any() and (name == "patching" or seen["score"].notna().all())
    task = task_of(models / model)
    for split, part in seen.groupby("split"):
        assert set(part["composition"]) <= {task.composition_name(c) for c in task.compositions(split)}


def test_models_that_did_not_learn_are_never_counted_as_failures_to_generalize(models, capsys):
    for name in OF_LEARNED:
        assert cli.main(["analyze", name, str(models / "softmax"), "--out", str(models / "softmax" / "none")]) == 2
        assert "no model can enter: did not learn its training compositions" in capsys.readouterr().err


def test_a_probe_named_by_path_is_as_good_as_by_name(models, tmp_path):
    shutil.copytree(models / "softmax", tmp_path / "softmax")
    before = (tmp_path / "softmax" / "tables" / "patching.csv").read_bytes()
    command("probe", PROBES["patching"], tmp_path / "softmax", "--episodes", EPISODES, "--seed", 5, "--again")
    assert (tmp_path / "softmax" / "tables" / "patching.csv").read_bytes() == before
    provenance = json.loads((tmp_path / "softmax" / "tables" / "patching.json").read_text())
    assert provenance["recipe_path"] is None


def test_a_file_imports_the_neighbours_in_its_own_folder(tmp_path, monkeypatch):
    """Two folders with files of the same names, such as two copies of a study, opened in one process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "a_neighbour.py").write_text(f"NUMBER = {number}\n")
        (tmp_path / str(number) / "a_file.py").write_text("from a_neighbour import NUMBER\n")
    before = list(sys.path)
    for number in (1, 2, 1):
        assert number == recipes.load_file(tmp_path / str(number) / "a_file.py").NUMBER
    assert sys.path == [*before, str(tmp_path / "1"), str(tmp_path / "2")]
    del sys.modules["a_neighbour"], sys.modules["compolens_file_a_file"]


def test_a_setting_that_a_run_does_not_have_is_refused_with_those_it_has(tmp_path):
    def said(call):
        (tmp_path / "mine.py").write_text(f"from compolens import Run\nfrom compolens import Run as Other\nrun = {call}\n")
        with pytest.raises(ConfigError, match=r"mine.py failed to load: TypeError: Run\.__init__") as refused:
            recipes.load_file(tmp_path / "mine.py")
        return str(refused.value)

    assert said("Run(step=3)").endswith("'step'; did you mean 'steps'?")
    every = said("Run(learning_rate=.1)")
    assert all(name in every for name in ("'learning_rate'; allowed: ", "optimizer", "init_seed", "task"))
    assert said("Other(step=3)").endswith("'steps'?"), "whatever it is called in the file"


# ---- every analysis --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CLAIMS)
def test_an_analysis_is_a_claim_with_needs(name):
    assert recipes.docstring(CLAIMS[name]).endswith(".")
    assert needs(name) and set(needs(name)) <= set(PROBES)


@pytest.mark.parametrize("name", CLAIMS)
def test_an_analysis_writes_figure_numbers_and_what_was_used(models, figures, name):
    drawn = figures / "drawn"
    assert (drawn / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert (drawn / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    numbers = pd.read_csv(drawn / f"{name}.csv")
    assert len(numbers) and numbers[["y", "value"]].notna().any(axis=None)
    sidecar = json.loads((drawn / f"{name}.json").read_text())
    used, bare = set(map(str, drawn_from(figures, models, name))), str(figures / "models" / "bare")
    offered = set(map(str, offered_to(figures, models, name)))
    assert set(sidecar["runs"]) == used and len(sidecar["runs"]) == len(used) > 0
    assert set(sidecar["dropped"]) == {bare} | (offered - used)
    assert all(reason.startswith("has no table ") for reason in sidecar["dropped"].values())
    assert sidecar["claim"] and sidecar["caption"] and sidecar["command"].startswith(f"compolens analyze {name} ")


ELSEWHERE = """
import json, sys
from pathlib import Path
from compolens import recipes
for name, models in json.load(sys.stdin).items():
    drawing = recipes.load_recipe("analyses", name)([Path(model) for model in models])
    Path(sys.argv[1], f"{name}.csv").write_text(drawing.frame().to_csv(index=False, lineterminator="\\n"))
    print(name, "torch" in sys.modules)
"""


def test_an_analysis_is_a_function_of_the_tables_and_loads_no_torch(figures, tmp_path):
    used = {name: json.loads((figures / "drawn" / f"{name}.json").read_text())["runs"] for name in CLAIMS}
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path)]
    done = subprocess.run(command, input=json.dumps(used), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{name} False" for name in CLAIMS]
    for name in CLAIMS:
        assert (tmp_path / f"{name}.csv").read_text() == (figures / "drawn" / f"{name}.csv").read_text(), name


@pytest.mark.parametrize("name", CLAIMS)
def test_an_analysis_without_its_tables_names_the_command(figures, capsys, name):
    bare = figures / "models" / "bare"
    assert cli.main(["analyze", name, str(bare), "--out", str(figures / "none")]) == 2
    error = capsys.readouterr().err
    assert f"type: compolens probe {' '.join(needs(name))} {bare}" in error
    assert len(error.splitlines()) == 1 and not (figures / "none").exists()


def test_stale_tables_are_dropped_with_the_reason(models, tmp_path):
    for name in MODELS:
        shutil.copytree(models / name, tmp_path / name)
    shutil.copy(tmp_path / "softmax" / "steps" / "0.safetensors", tmp_path / "softmax" / "weights.safetensors")
    command("analyze", "who_generalizes", tmp_path, "--out", tmp_path / "figures")
    sidecar = json.loads((tmp_path / "figures" / "who_generalizes.json").read_text())
    assert sidecar["runs"] == [str(tmp_path / "hypernetwork")]
    ((folder, reason),) = sidecar["dropped"].items()
    assert folder == str(tmp_path / "softmax")
    assert (
        f"the weights changed since it was measured; measure it again with: compolens probe generalization {folder}" in reason
    )


# ---- generalization --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", MEASURED)
def test_pooled_scores_are_weighted_means_over_compositions(models, model):
    table = rows(models / model, "generalization", metric="score")
    table = table[table["value"].notna() & table["split"].isin(SPLITS)]
    keys = ["split", "control", "reference"]
    known = [kind().name for kind in REFERENCES.values() if not kind().why_not(task_of(models / model))]
    assert set(table["reference"]) == {"model", "untrained control", *known} and len(known) > 2
    assert table[keys].drop_duplicates().shape[0] == len(SPLITS) * (2 + len(known))
    for _, part in table.groupby(keys):
        pooled, each = part[part["composition"] == "all"], part[part["composition"] != "all"]
        assert len(pooled) == 1 and pooled["n"].item() == each["n"].sum() == EPISODES
        assert pooled["weight"].item() == pytest.approx(each["weight"].sum(), rel=1e-4)
        mean = np.average(each["value"], weights=each["weight"])
        assert pooled["value"].item() == pytest.approx(mean, rel=1e-4, abs=1e-5)
        lo, hi = pooled["lo"].item(), pooled["hi"].item()
        if np.isnan(lo) and np.isnan(hi):  # where at most one composition errs, nothing says how far they vary
            assert (each["value"] < 1).sum() <= 1
        else:
            assert lo <= pooled["value"].item() <= hi


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("model", MEASURED)
def test_scores_are_the_tasks_own(models, model, split):
    trained = load(models / model)
    (batch,) = draw(trained.task, split, EPISODES, 5)
    for control, network in (("", trained.model), ("untrained", trained.run.build())):
        with torch.no_grad():
            prediction = network(batch.tokens)
        for metric, (error, weight) in trained.task.metrics(prediction, batch.targets).items():
            expected = trained.task.score(prediction, batch.targets) if metric == "score" else 1 - error.sum() / weight.sum()
            where = {"metric": metric, "control": control, "split": split, "composition": "all"}
            value = rows(models / model, "generalization", **where)["value"].item()
            assert value == pytest.approx(float(expected), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("model", ["hyla", "raven-softmax", "fuzzy"])
def test_variants_are_scored_on_episodes_of_their_own(models, model):
    trained = load(models / model)
    assert trained.task.variants
    for name, task in trained.task.variants.items():
        (batch,) = draw(task, "ood", EPISODES, 5)
        with torch.no_grad():
            expected = task.score(trained.model(batch.tokens), batch.targets)
        where = {"metric": "score", "control": "", "split": f"ood, {name}"}
        row = rows(models / model, "generalization", **where)
        assert row["composition"].tolist() == ["all"] and row["value"].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("model", MEASURED)
def test_the_share_of_the_ceiling_is_the_score_over_that_of_the_marked_reference(models, model):
    table = rows(models / model, "generalization", composition="all")
    for split, part in table.groupby("split"):
        score = part[part["metric"] == "score"]
        top = score[score["note"] == "ceiling"]
        assert top["reference"].tolist() == [load(models / model).task.ceiling], split
        for control in ("", "untrained"):
            own = score[score["control"] == control]["value"].item()
            share = part[(part["metric"] == "share of ceiling") & (part["control"] == control)]["value"].item()
            assert share == pytest.approx(own / top["value"].item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("model", MEASURED)
def test_the_true_code_scores_1_and_the_untrained_control_is_another_model(models, model):
    table = rows(models / model, "generalization", composition="all")
    true = table[(table["reference"] == "true code") & (table["metric"] == "score")]
    assert set(SPLITS) <= set(true["split"]) and true["value"].tolist() == pytest.approx([1] * len(true), abs=1e-5)
    untrained, own = (table[table["control"] == control]["value"].tolist() for control in ("untrained", ""))
    assert len(untrained) == len(own) >= 3 and untrained != own


@pytest.mark.parametrize("model", MEASURED)
def test_the_score_is_that_of_the_episodes_pooled_with_their_weights(models, model):
    seen = episodes_of(models / model, "generalization")
    assert seen.groupby("split").size().to_dict() == dict.fromkeys(SPLITS, EPISODES)
    trained = load(models / model)
    for split in SPLITS:
        (batch,) = draw(trained.task, split, EPISODES, 5)
        with torch.no_grad():
            weight = trained.task.errors(trained.model(batch.tokens), batch.targets)[1].numpy()
        row = rows(models / model, "generalization", metric="score", control="", split=split, composition="all")
        own = seen[seen["split"] == split]["score"].to_numpy()
        assert row["value"].item() == pytest.approx((own * weight).sum() / weight.sum(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("model", MEASURED)
def test_answers_per_episode_are_those_of_the_first_query(models, model):
    trained, seen = load(models / model), episodes_of(models / model, "generalization")
    (batch,) = draw(trained.task, "ood", EPISODES, 5)
    part = seen[seen["split"] == "ood"]
    first = trained.task.answers[0]
    with torch.no_grad():
        prediction = trained.model(batch.tokens)[:, first]
    np.testing.assert_allclose(np.stack(part["prediction"]), prediction, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.stack(part["target"]), batch.targets[:, first].reshape(EPISODES, -1), rtol=1e-6)
    assert part["composition"].tolist() == [trained.task.composition_name(c) for c in batch.composition.tolist()]


# ---- latent code -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", MODELS)
def test_readouts_cover_every_layer_and_role_the_explicit_code_and_every_control(models, model):
    table = rows(models / model, "latent_code", metric="r2", dimension="mean")
    own = table[table["control"] == ""]
    sites = {(layer, role) for layer in (0, 1, 2) for role in ("context", "readout")}
    sites |= {(3, "all")} if model == "hypernetwork" else set()
    fits = {("fitted on train", "test"), ("fitted on train", "ood"), ("within", "ood"), ("leave one out", "ood")}
    for fit, split in fits:
        part = own[(own["fit"] == fit) & (own["split"] == split)]
        assert set(zip(part["layer"], part["role"], strict=True)) == sites and len(part) == len(sites)
    assert {"shuffled", "control task", "untrained", "raw input"} <= set(table["control"])


@pytest.mark.parametrize("model", MODELS)
def test_decoded_codes_per_episode_pool_to_the_tables_r2_and_recovery(models, model):
    seen = episodes_of(models / model, "latent_code")
    assert seen[["site", "role"]].drop_duplicates().shape[0] == 1
    for split, part in seen.groupby("split"):
        where = {
            "site": part["site"].iloc[0],
            "role": part["role"].iloc[0],
            "split": split,
            "control": "",
            "fit": "fitted on train",
        }
        code, decoded = np.stack(part["code"]), np.stack(part["decoded"])
        each = 1 - ((code - decoded) ** 2).sum(0) / ((code - code.mean(0)) ** 2).sum(0)
        r2 = rows(models / model, "latent_code", metric="r2", **where).set_index("dimension")["value"]
        assert r2["mean"] == pytest.approx(each.mean(), rel=1e-3, abs=1e-4)
        assert [r2[f"modules[{i}]"] for i in range(6)] == pytest.approx(each, rel=1e-3, abs=1e-4)
        exact = ((decoded > 0.25) == (code != 0)).all(1)
        assert (exact == part["active_set_exact"]).all() and len(part) == EPISODES
        share = rows(models / model, "latent_code", metric="active set exact", **where)["value"].item()
        assert share == pytest.approx(exact.mean(), rel=1e-4)


@dataclasses.dataclass(frozen=True)
class Telling(Hyperteacher):
    """Remembers the codes it drew last, so that a hook can be told."""

    def sample(self, *arguments, **keywords):
        episodes = super().sample(*arguments, **keywords)
        self.__dict__["last"] = episodes.codes["modules"]
        return episodes


@pytest.fixture(scope="module")
def told(tiny_task):
    """A model whose explicit code is the true code."""
    task = Telling(**{f.name: getattr(tiny_task, f.name) for f in dataclasses.fields(tiny_task)})
    run = Run(HypernetworkTransformer(n_layers=2, d_model=16, n_heads=2, d_code=6, d_hidden=6), task, steps=0)
    model = run.build().eval()
    model.add_hook("hook_code", lambda code, hook: task.last[:, None].clone(), is_permanent=True)
    return TrainedModel(run, model, task, Path("told"), 0)


@pytest.fixture(scope="module")
def told_table(told):
    table, seen = recipes.load_recipe("probes", "latent_code")(told, episodes=240)
    return table, seen


def at_code(table, **where):
    for column, value in {"site": "hook_code", **where}.items():
        table = table[table[column] == value]
    assert len(table), where
    return table


def test_a_code_that_is_there_transfers_perfectly_and_is_chosen_as_the_best_site(told_table):
    table, seen = told_table
    for split in ("test", "ood"):
        for metric in ("r2", "active set exact"):
            own = at_code(table, metric=metric, fit="fitted on train", split=split, control="")
            np.testing.assert_allclose(own["value"], 1, atol=1e-6)
    np.testing.assert_allclose(at_code(table, metric="r2", fit="leave one out", control="")["value"], 1, atol=1e-6)
    assert set(seen["site"]) == {"hook_code"} and seen["active_set_exact"].all()
    np.testing.assert_allclose(np.stack(seen["decoded"]), np.stack(seen["code"]), atol=1e-4)  # the least penalty shrinks


def test_controls_do_not_find_a_code_that_is_there(told_table):
    table, _ = told_table
    for split in ("test", "ood"):
        pooled = {"metric": "r2", "dimension": "mean", "fit": "fitted on train", "split": split}
        assert at_code(table, control="shuffled", **pooled)["value"].item() < 0.05
        task = at_code(table, control="control task", **pooled)["value"].item()
        selectivity = at_code(table, metric="selectivity", split=split, control="")["value"].item()
        assert task < 0.5 and selectivity == pytest.approx(1 - task, abs=1e-6)
        untrained = at_code(table, control="untrained", **pooled)["value"].item()
        assert untrained < 0.9, "the untrained control has the same weights, but nobody tells it the code"


def test_penalties_and_training_readouts_do_not_see_held_out_compositions(told, monkeypatch):
    probe = recipes.load_recipe("probes", "latent_code")
    original = probe.__globals__["draw"]

    def tampered(task, split, n, seed, *more):
        return original(task, split, n, f"{seed}/tampered" if split == "ood" else seed, *more)

    table, _ = probe(told, episodes=120)
    monkeypatch.setitem(probe.__globals__, "draw", tampered)
    other, _ = probe(told, episodes=120)
    assert len(set(table["l2"].dropna())) > 1
    pd.testing.assert_series_equal(table["l2"], other["l2"])
    test = table["split"] == "test"
    pd.testing.assert_frame_equal(table[test], other[test])
    held_out = table[(table["split"] == "ood") & (table["site"] == "blocks.1.hook_resid_post")]
    assert not held_out["value"].equals(other.loc[held_out.index, "value"])


def test_a_penalty_may_be_given(told):
    table, _ = recipes.load_recipe("probes", "latent_code")(told, episodes=60, l2=3.0)
    assert set(table["l2"].dropna()) == {3.0}


# ---- attention code and geometry -------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", CATEGORICAL)
def test_attention_is_read_at_every_layer_and_pair_and_stands_beside_every_control(models, model):
    trained = load(models / model)
    (batch,) = draw(trained.task, "ood", EPISODES, "5/score")
    readouts = trained.task.readouts(batch)
    table = rows(models / model, "attention_code", **{"class": "all"})
    table = table[table["metric"].isin(["balanced accuracy", "macro F1"])]
    assert set(table["label"]) == set(readouts.labels)
    same = {n for n, v in trained.task.variants.items() if v.compositions("ood") == trained.task.compositions("ood")}
    assert set(table["shown"]) == {"as trained", *same}
    for (label, _, metric, split), part in table.groupby(["label", "shown", "metric", "split"]):
        places = {(layer, capture) for layer in (0, 1) for capture in readouts.pairs}
        for control in ("", "shuffled", "untrained", "majority class"):
            here = part[part["control"] == control]
            assert set(zip(here["layer"], here["role"], strict=True)) == places and len(here) == len(places)
        for control in readouts.inputs:
            assert len(part[part["control"] == control]) == 1
        if metric == "balanced accuracy":
            most = part[part["control"] == "majority class"]
            assert most["value"].tolist() == pytest.approx((1 / most["classes"]).tolist(), rel=1e-4)
        if split == "ood":
            assert set(part["n"]) == {EPISODES * readouts.labels[label].shape[1]}
        assert (part["lo"] <= part["hi"]).all() and part["value"].between(0, 1).all()


@pytest.mark.parametrize("model", CATEGORICAL)
def test_live_units_are_a_share_at_every_layer_of_what_has_a_value_network(models, model):
    table = tables.read(models / model, "attention_code")
    live = table[table["metric"] == "live units"]
    shown = set(table["shown"])
    without = model in ("raven-softmax", "sparse")
    expected = set() if without else set(itertools.product((0, 1), ("test", "ood"), shown, ("", "untrained")))
    assert set(live[["layer", "split", "shown", "control"]].itertuples(index=False, name=None)) == expected
    assert len(live) == len(expected) and live["value"].between(0, 1).all()


@pytest.mark.parametrize("model", CATEGORICAL)
def test_balanced_accuracy_is_the_mean_recall_over_classes(models, model):
    table = rows(models / model, "attention_code", control="")
    keys = ["label", "shown", "split", "role", "layer"]
    recall = table[table["metric"] == "recall"].groupby(keys)["value"].mean()
    balanced = table[table["metric"] == "balanced accuracy"].set_index(keys)["value"]
    assert len(recall) == len(balanced)
    np.testing.assert_allclose(recall.sort_index(), balanced.sort_index(), rtol=1e-4)


@pytest.mark.parametrize("model", CATEGORICAL)
def test_decoded_classes_per_answer_pool_to_the_tables_recall(models, model):
    seen = episodes_of(models / model, "attention_code")
    for (label, split), part in seen.groupby(["label", "split"]):
        assert len(set(part["composition"])) > 1
        where = {"metric": "recall", "shown": "as trained", "label": label, "split": split, "role": "self", "layer": 1}
        table = rows(models / model, "attention_code", **where).set_index("class")["value"]
        each = (part["true"] == part["decoded"]).groupby(part["true"]).mean()
        assert set(each.index) == set(table.index) and len(part) < 512, "all answers are kept, so the shares are the same"
        assert each.to_dict() == pytest.approx(table.to_dict(), rel=1e-4, abs=1e-6)


LAST = {}
"""The rules of the episodes drawn last."""


@dataclasses.dataclass(frozen=True)
class TellingRaven(SRaven):
    def sample(self, *arguments, **keywords):
        episodes = super().sample(*arguments, **keywords)
        LAST["rules"] = episodes.codes["response_rules"]
        return episodes


def test_a_rule_that_is_in_the_code_is_found_and_by_no_control():
    task = TellingRaven(n_features=2)
    run = Run(SoftmaxTransformer(n_layers=2, d_model=16, n_heads=4), task, steps=0)
    model, answers = run.build().eval(), torch.tensor(task.answers)

    def tell(code, hook):
        code = code.clone()
        bits = LAST["rules"][..., None].bitwise_right_shift(torch.arange(4)).bitwise_and(1)
        code[:, answers, answers] = bits.to(code.dtype)
        return code

    model.add_hook("blocks.1.attn.hook_code", tell, is_permanent=True)
    table, seen = recipes.load_recipe("probes", "attention_code")(
        TrainedModel(run, model, task, Path("told"), 0), episodes=400, c=100.0
    )
    table = table[(table["metric"] == "balanced accuracy") & (table["role"] == "self") & (table["layer"] == 1)]
    assert set(table["shown"]) == {"as trained", "unpermuted"}
    assert (table[table["control"] == ""]["value"] > 0.999).all()
    others = table[table["control"].isin(["shuffled", "untrained", "majority class"])]
    assert len(others) == 12 and (others["value"] < 0.35).all()
    assert (seen["true"] == seen["decoded"]).all()


@pytest.mark.parametrize("model", CATEGORICAL)
def test_cosines_are_a_whole_symmetric_matrix_with_ones_on_its_diagonal(models, model):
    table = rows(models / model, "latent_geometry", metric="cosine")
    task = load(models / model).task
    names = set(task.readouts(next(draw(task, "ood", 1, 0))).classes)
    assert set(table["by"]) == names and set(table["control"]) == {"", "untrained"}
    for _, part in table.groupby(["by", "control", "split", "role", "layer"]):
        matrix = part.set_index(["class", "other"])["value"].unstack()  # noqa: PD010 (fails on a pair that occurs twice)
        assert matrix.notna().all(axis=None) and len(matrix) == part["classes"].iloc[0] > 1
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-6)
        np.testing.assert_allclose(np.diag(matrix), 1, atol=1e-5)
        assert (matrix.abs() <= 1 + 1e-5).all(axis=None)


@pytest.mark.parametrize("model", CATEGORICAL)
def test_maps_show_the_same_points_of_held_out_compositions_at_every_place(models, model):
    table = rows(models / model, "latent_geometry", metric="pca")
    assert set(table["split"]) == {"ood"} and np.isfinite(table[["x", "y"]]).all(axis=None)
    known = [c for c in table.columns if c.startswith(("label.", "confound."))]
    assert len(known) > 2
    parts = [part[["point", *known]].reset_index(drop=True) for _, part in table.groupby(["control", "role", "layer"])]
    assert len(parts) >= 4 and 0 < len(parts[0]) <= 400 and parts[0]["point"].is_unique
    for part in parts[1:]:
        pd.testing.assert_frame_equal(part, parts[0])


# ---- patching --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("control", ["", "untrained"])
@pytest.mark.parametrize("split", ["test", "ood"])
@pytest.mark.parametrize("model", MEASURED)
def test_the_context_decides_at_first_the_readout_at_last_whatever_the_weights(models, model, split, control):
    table = rows(models / model, "patching", split=split, control=control).set_index(["layer", "role"])["value"]
    assert table[0, "context"] == table[2, "readout"] == 1
    assert table[0, "readout"] == table[2, "context"] == 0
    assert 0 < abs(table[1, "context"]) != 1, "in between, something has to be measured"
    if model == "hypernetwork":
        assert table[3, "all"] == 1


@pytest.mark.parametrize("model", MEASURED)
def test_patching_every_position_recovers_everything_at_every_layer(models, model):
    trained, patch = load(models / model), recipes.load_recipe("probes", "patching").__globals__["_patch"]
    (base,) = draw(trained.task, "ood", 10, 0)
    points = [(layer, f"blocks.{layer}.hook_resid_pre", "all") for layer in (0, 1)]
    results = dict(patch(trained.task, trained.model, base, points, third=True))
    for point in points:
        error, weight, _ = results[point, ""]
        assert (error == 0).all() and (same_code := weight == 0).mean() <= 0.3
        wrong, same, _ = results[point, "another code"]
        counts = same > 0  # where the third code is neither the source's nor the base's
        assert (wrong > 0).mean() >= 0.5 and (same[counts] == weight[counts]).all()
        assert model not in MODELS or not (same_code.any() or (wrong == 0).any()), "continuous codes never coincide"


@pytest.mark.parametrize("model", MEASURED)
def test_a_patch_shows_the_same_inputs_under_another_episodes_code(models, model):
    trained, under = (
        load(models / model),
        recipes.load_recipe("probes", "patching").__globals__["_under_other_codes"],
    )
    (base,) = draw(trained.task, "ood", 10, 0)
    source = under(trained.task, base, 1)
    assert torch.equal(source.inputs, base.inputs) and torch.equal(source.composition, base.composition.roll(1))
    for name in trained.task.code_kinds:
        assert torch.equal(source.codes[name], base.codes[name].roll(1, 0))
    if model in MODELS:
        assert torch.equal(source.targets, trained.task.answer(source.codes, base.inputs))


def test_recovery_per_episode_is_exact_where_it_has_to_be(models):
    seen = episodes_of(models / "hypernetwork", "patching")
    assert (seen[seen["site"] == "hook_code"]["score"] == 1).all()
    first = seen[(seen["layer"] == 0) & (seen["role"] == "readout")]
    assert len(first) == 2 * EPISODES and (first["score"] == 0).all()


@pytest.mark.parametrize("model", MEASURED)
def test_recovery_per_episode_is_known_wherever_the_other_code_makes_another_episode(models, model):
    trained, under = (
        load(models / model),
        recipes.load_recipe("probes", "patching").__globals__["_under_other_codes"],
    )
    seen = episodes_of(models / model, "patching")
    for split in ("test", "ood"):
        (base,) = draw(trained.task, split, EPISODES, 5, batch=EPISODES)
        other = (under(trained.task, base, 1).tokens != base.tokens).flatten(1).any(1)
        known = seen[seen["split"] == split].groupby(["site", "role"])["score"].count()
        assert len(known) > 2 and set(known) == {int(other.sum())} and other.sum() > EPISODES / 2
