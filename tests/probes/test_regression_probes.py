"""The probes of in-context regression on models whose algorithm is known: constructed descent is found to be what it is."""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from compolens import (
    ConstructedGradientDescent,
    GaussianInputs,
    HypernetworkTransformer,
    Hyperteacher,
    LinearRegression,
    LinearSelfAttention,
    Run,
    SoftmaxSelfAttention,
    SoftmaxTransformer,
    load,
    load_recipe,
    tables,
    train,
)
from compolens.activations.streams import draw
from compolens.diagnosis import closest_learner
from compolens.diagnosis.sentences import sentences
from compolens.foundation import versions
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.hooks import HookedModel
from compolens.models.base import Architecture
from compolens.recipes import load_file
from compolens.references import GradientDescent, GradientDescentPlusPlus, LeastSquares

ROOT = Path(__file__).parents[2]
TASK = LinearRegression(d_x=4, n_context=6)
FEW = {
    "gd_equivalence": {"episodes": 128, "fits": 32},
    "algorithm_steps": {"episodes": 32, "newton": 6, "gd": 16, "draws": 20},
}


def folder_of(tmp_path, name, architecture, task=TASK):
    train(Run(architecture, task, steps=0, evaluation_episodes=64), tmp_path / name)
    return tmp_path / name


def measure(folder, probe, **settings):
    found = load_recipe("probes", probe)(load(folder), **settings)
    return found[0] if isinstance(found, tuple) else found


def keep(folder, probe, table):
    weights = tables.file_digest(folder / "weights.safetensors")
    tables.save(folder, probe, table, {"weights": weights, **versions.describe(built_in("probes")[probe])})


@pytest.fixture(scope="module")
def descent(tmp_path_factory):
    """Two tuned steps of gradient descent, written down as a model."""
    eta = GradientDescent(2).for_task(TASK).eta
    return folder_of(tmp_path_factory.mktemp("descent"), "gd", ConstructedGradientDescent(n_layers=2, eta=eta))


@pytest.fixture(scope="module")
def equivalence(descent):
    return measure(descent, "gd_equivalence", **FEW["gd_equivalence"])


def test_references_that_are_named_are_compared_as_among_all_others(descent, equivalence):
    few = measure(descent, "gd_equivalence", references="least squares; GD, 2 steps", **FEW["gd_equivalence"])
    assert set(few["reference"]) == {"none", "least squares", "GD, 2 steps"}
    at = ["metric", "split", "control", "learner", "reference", "curve", "scale"]
    known = equivalence.merge(few, on=at, suffixes=("", "_few"))
    assert len(known) == len(few) and np.allclose(known["value"], known["value_few"], equal_nan=True)
    with pytest.raises(ConfigError, match="did you mean 'least squares'"):
        measure(descent, "gd_equivalence", references="least square", **FEW["gd_equivalence"])


def test_a_shorter_prompt_is_compared_after_so_many_examples(tmp_path, descent):
    task = LinearRegression.garg(d_x=2, n_context=4)
    folder = folder_of(tmp_path, "turns", SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2, n_ctx=task.seq), task)
    table = measure(folder, "gd_equivalence", examples=1, references="least squares", **FEW["gd_equivalence"])
    short, model = dataclasses.replace(task, n_context=1), load(folder).model
    (batch,) = draw(short, "test", 128, 0)
    told = LeastSquares().predict(short, batch)[:, -1]
    with torch.no_grad():
        apart = (model(batch.tokens)[:, -1] - told).norm(dim=-1).mean()
    row = table.query("metric == 'prediction distance' and split == 'test' and control == '' and reference == 'least squares'")
    assert row["value"].item() == pytest.approx(float(apart), rel=1e-5)
    for wrong, where, words in ((5, folder, "from 0 to 4"), (1, descent, "tokens are not in turn")):
        with pytest.raises(ConfigError, match=words):
            measure(where, "gd_equivalence", examples=wrong, **FEW["gd_equivalence"])


@pytest.fixture(scope="module")
def steps(descent):
    return measure(descent, "algorithm_steps", **FEW["algorithm_steps"])


def value(frame, **where):
    for column, wanted in where.items():
        frame = frame[frame[column] == wanted]
    assert len(frame) == 1, where
    return frame["value"].iloc[0]


# ---- gd_equivalence --------------------------------------------------------------------------------------------------
def test_constructed_descent_is_gradient_descent_by_every_measure(equivalence):
    own = {"split": "test", "control": "", "learner": "model", "reference": "GD, 2 steps"}
    assert value(equivalence, metric="sensitivity cosine", **own) == pytest.approx(1, abs=1e-5)
    for metric in ("prediction distance", "sensitivity distance", "SPD", "ILWD"):
        assert value(equivalence, metric=metric, **own) == pytest.approx(0, abs=1e-5)
    linear = {"metric": "R² of linearity", "split": "test", "control": "", "learner": "model"}
    assert value(equivalence, **linear) == pytest.approx(1, abs=1e-6)


def test_losses_follow_the_reference_along_every_curve(equivalence):
    losses = equivalence[(equivalence["metric"] == "loss") & (equivalence["split"] == "test")]
    for (_, _), part in losses.groupby(["curve", "scale"], dropna=False):
        assert value(part, control="", learner="model") == pytest.approx(value(part, learner="GD, 2 steps"), rel=1e-4)
    assert set(losses["curve"]) == {"none", "input scale", "teacher scale", "unseen inputs"}


def test_another_episodes_answers_say_nothing(equivalence):
    shuffled = equivalence[(equivalence["control"] == "shuffled") & (equivalence["metric"] == "sensitivity cosine")]
    assert shuffled["value"].abs().max() < 0.4


def test_the_floor_holds_every_pair_of_references_once_in_each_direction(equivalence):
    among = equivalence[(equivalence["control"] == "reference") & (equivalence["metric"] == "sensitivity cosine")]
    among = among[among["split"] == "test"].pivot_table(index="learner", columns="reference", values="value")
    assert list(among.index) == list(among.columns) and len(among) > 6
    np.testing.assert_allclose(np.diag(among), 1, atol=1e-9)
    np.testing.assert_allclose(among, among.T, atol=1e-12)


def test_interpolating_a_construction_with_itself_changes_nothing(tmp_path):
    eta = GradientDescent(1).for_task(TASK).eta
    built = ConstructedGradientDescent(eta=eta).build(**TASK.dimensions)
    folder = folder_of(tmp_path, "lsa", LinearSelfAttention())
    trained = load(folder)
    with torch.no_grad():  # the same function, with its factors distributed otherwise
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            factor = {"W_Q": 2.0, "W_V": 0.5}.get(name, 1.0)
            getattr(trained.model.blocks[0].attn, name).copy_(getattr(built.blocks[0].attn, name) * factor)
    frame, _ = load_recipe("probes", "gd_equivalence")(trained, **FEW["gd_equivalence"])
    loss = value(frame, metric="loss", split="test", control="", learner="model", curve="none")
    assert value(frame, metric="interpolated loss") == pytest.approx(loss, rel=1e-2)
    assert value(frame, metric="loss", split="test", learner="GD, 1 step", curve="none") == pytest.approx(loss, rel=1e-4)


def test_a_transformer_on_interleaved_tokens_is_measured_as_well(tmp_path):
    task = LinearRegression.garg(d_x=3, n_context=4)
    model = SoftmaxTransformer(n_layers=2, d_model=8, n_heads=2, causal=True)
    folder = folder_of(tmp_path, "garg", model, task)
    frame = measure(folder, "gd_equivalence", **FEW["gd_equivalence"])
    assert np.isfinite(frame[frame["metric"] == "ILWD"]["value"]).all()
    found = measure(folder, "algorithm_steps", **FEW["algorithm_steps"])
    assert set(found["layer"]) == {1, 2, -1}


class Computed(HookedModel):
    """Answers the last question of tokens in turn with weights that are computed from the pairs before it."""

    def __init__(self, d_x, weights):
        super().__init__()
        self.cfg, self.roles = SimpleNamespace(n_layers=1), {"context": [], "readout": []}
        self.d_x, self.weights, self.scale = d_x, weights, torch.nn.Parameter(torch.ones(()))
        self.setup()

    def forward(self, tokens):
        x, y = tokens[:, 0:-1:2, : self.d_x].double(), tokens[:, 1::2, :1].double()
        answer = tokens[:, -1:, : self.d_x].double() @ self.weights(x, y)
        return self.scale * torch.nn.functional.pad(answer, (0, 0, tokens.shape[1] - 1, 0)).to(tokens)


DEPTH = load_file(ROOT / "trained_models" / "maps" / "regression_depth.py")


@functools.cache
def rate():
    """Of one step of descent, tuned as the reference's is."""
    return GradientDescent(1).for_task(DEPTH.normal).eta


PHASES = {
    "GD, 1 step": lambda x, y: rate() * (x.mT @ y) / x.shape[1],
    "ridge, l2 0.1": lambda x, y: torch.linalg.solve(x.mT @ x + 0.1 * torch.eye(x.shape[-1], dtype=x.dtype), x.mT @ y),
    "least squares": lambda x, y: torch.linalg.pinv(x) @ y,
}
"""The learners that 2211.15661 finds by depth -> their weights of x (batch, n, d_x) and y (batch, n, 1)."""


@dataclasses.dataclass(frozen=True)
class Computes(Architecture):
    """`Computed`, of one of `PHASES`."""

    phase: str

    def build(self, *, d_in, **dimensions):
        return Computed(d_in, PHASES[self.phase])


@pytest.mark.parametrize("phase", PHASES)
def test_descent_ridge_and_least_squares_are_named_as_the_map_of_depths_asks(tmp_path, phase):
    folder = folder_of(tmp_path, "known", Computes(phase), DEPTH.normal)
    settings = FEW["gd_equivalence"] | dict(DEPTH.measures["gd_equivalence"])
    table, _ = load_recipe("probes", "gd_equivalence")(load(folder, classes=[Computes]), **settings)
    keep(folder, "gd_equivalence", table)
    for split in ("test", "ood"):
        found = closest_learner.closest([folder], split)
        assert found.names == (phase,) and found.cosine == pytest.approx(1, abs=1e-5) and found.floor < 0.999
        own = table[(table["metric"] == "SPD") & (table["split"] == split) & (table["control"] == "")].set_index("reference")
        assert own["value"].idxmin() == phase and own["value"][phase] < 1e-6


# ---- algorithm_steps -------------------------------------------------------------------------------------------------
def test_every_layer_of_a_construction_is_the_step_it_is(steps):
    for layer in (1, 2):
        where = {"control": "", "split": "test", "algorithm": "GD, tuned rate", "layer": layer}
        assert value(steps, metric="best step", **where) == layer
        assert value(steps, metric="best level", **where) == pytest.approx(1, abs=1e-5)


def test_gd_plus_plus_is_told_from_gd(tmp_path):
    tuned = GradientDescentPlusPlus(2).for_task(TASK)
    built = ConstructedGradientDescent(n_layers=2, eta=tuned.eta, gamma=tuned.gamma)
    frame = measure(folder_of(tmp_path, "plus", built), "algorithm_steps", **FEW["algorithm_steps"])
    level = {
        name: value(frame, metric="best level", layer=2, split="test", control="", algorithm=name)
        for name in ("GD++", "GD, tuned rate")
    }
    assert level["GD++"] == pytest.approx(1, abs=1e-5) and level["GD, tuned rate"] < 0.99
    assert value(frame, metric="best step", layer=2, split="test", control="", algorithm="GD++") == 2


# ---- weight_structure ------------------------------------------------------------------------------------------------
def test_constructed_weights_have_the_structure_by_construction(descent):
    frame = measure(descent, "weight_structure")
    own = frame[(frame["control"] == "") & (frame["layer"] == 0)]
    assert value(own, metric="KQ diagonal") == 1 and value(own, metric="KQ off-diagonal") == 0
    assert value(own, metric="KQ distance to inverse Gamma") == pytest.approx(0, abs=1e-12)
    assert value(own, metric="OV x to y") == 0
    assert value(own, metric="eta") == pytest.approx(GradientDescent(2).for_task(TASK).eta, rel=1e-6)
    loss = frame[(frame["metric"] == "loss") & (frame["control"] == "") & (frame["split"] == "test")].set_index("weights")[
        "value"
    ]
    assert loss["idealised"] == pytest.approx(loss["as trained"], rel=1e-5)  # nothing is left out
    entries = own[own["metric"] == "OV entry"]
    assert len(entries) == 25 and (entries["value"] != 0).sum() == 1


def test_gamma_is_what_a_trained_linear_layer_multiplies_by():
    """The optimum of one linear layer with unequal variances is Gamma^-1: found by least squares over the layer's matrix."""
    task = LinearRegression.zhang(d_x=3, n_context=5, covariance=(2.0, 1.0, 0.3))
    x, y, asked, _ = task.prompts(task.sample(200_000, "train", task.rng(0, "train")))
    moment = torch.einsum("bnd,bne->bd", x, y).double() / 5
    features = (asked[:, 0].double()[:, :, None] * moment[:, None]).flatten(1)  # answer = x_q^T M moment
    targets = task.sample(200_000, "train", task.rng(0, "train")).targets[:, -1].double()
    fitted = torch.linalg.lstsq(features, targets).solution.view(3, 3)
    inverse = torch.linalg.inv(load_file(ROOT / "probes" / "weight_structure.py").gamma(task))
    torch.testing.assert_close(fitted, inverse, atol=0.03, rtol=0.05)


def test_heads_of_opposite_sign_sum_to_zero(tmp_path):
    trained = load(folder_of(tmp_path, "softmax", SoftmaxSelfAttention(n_heads=2)))
    attention = trained.model.blocks[0].attn
    with torch.no_grad():
        for head, sign in enumerate((1.0, -1.0)):
            attention.W_K[head] = torch.eye(5)
            attention.W_Q[head] = sign * 0.2 * torch.eye(5)
            attention.W_V[head] = torch.eye(5)
            attention.W_O[head] = sign * 3.0 * torch.eye(5)
    frame = load_recipe("probes", "weight_structure")(trained)[0]
    own = frame[frame["control"] == ""]
    loss = own[(own["metric"] == "loss") & (own["split"] == "test")].set_index("weights")["value"]
    assert loss["idealised"] == pytest.approx(loss["as trained"], rel=1e-5)  # moving x as well changes no answer of one layer
    assert value(own, metric="zero sum") == pytest.approx(0) and value(own, metric="homogeneity") == pytest.approx(0)
    assert value(own, metric="eta") == pytest.approx(2 * 3 * 0.2 / 5**0.5, rel=1e-5)  # each head: mu omega / sqrt(d_head)


def test_what_is_off_the_structure_shows_in_the_idealised_loss(tmp_path):
    trained = load(folder_of(tmp_path, "softmax", SoftmaxSelfAttention(n_heads=2)))
    frame = load_recipe("probes", "weight_structure")(trained)[0]
    loss = frame[(frame["control"] == "") & (frame["metric"] == "loss") & (frame["split"] == "test")].set_index("weights")[
        "value"
    ]
    assert abs(loss["idealised"] / loss["as trained"] - 1) > 0.01  # random weights have no such structure


# ---- what does not apply, and what is said in the end ----------------------------------------------------------------
@pytest.mark.parametrize("probe", ["gd_equivalence", "algorithm_steps", "weight_structure"])
def test_families_that_are_no_regression_are_named(tmp_path, probe):
    task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
    folder = folder_of(tmp_path, "other", HypernetworkTransformer(n_layers=1, d_model=8, n_heads=1), task)
    with pytest.raises(DoesNotApply, match=r"Hyperteacher .*LinearRegression|Hyperteacher is no regression family"):
        measure(folder, probe)


def test_the_diagnosis_names_the_learner_its_floor_and_the_layer(descent, equivalence, steps):
    generalization = measure(descent, "generalization", episodes=64)
    for name, table in (("gd_equivalence", equivalence), ("algorithm_steps", steps), ("generalization", generalization)):
        keep(descent, name, table)
    found = closest_learner.closest([descent])
    assert found.names[0] == "GD, 2 steps" and found.cosine == pytest.approx(1, abs=1e-5)
    assert 0.8 < found.floor < 0.999 and abs(found.shuffled) < 0.4
    ((_, clauses),) = sentences([descent])
    text = "; ".join(clause.text for clause in clauses)
    assert "answers most like GD, 2 steps: sensitivity cosine 1.000" in text and found.rival in text
    assert "from layer 1 on" in text and "1 (1.00), 2 (1.00)" in text
    assert "nothing is recombined" not in text


def test_inputs_of_the_wrong_width_are_refused():
    with pytest.raises(ValueError, match="needs 3 variances"):
        LinearRegression(d_x=3, inputs=GaussianInputs((1.0,)))
