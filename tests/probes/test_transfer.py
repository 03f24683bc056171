"""The probe that takes transfer apart, and the claim that tells transfer from sparsity."""

import numpy as np
import pandas as pd
import pytest
import torch
from handmade import put_back
from test_claims import analyze, scored

import compolens
from compolens import Relations, Run, SoftmaxTransformer, train
from compolens.activations.streams import draw
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.models import CalibratedThreshold, FixedThreshold, OutputTransfer, RelativeTransfer, SparseCoding
from compolens.zoo.folders import TrainedModel

SIZES = {"n_layers": 2, "d_model": 16, "n_heads": 2, "attn_only": True, "bias_free": True}
TASK = Relations()
EPISODES = 64


def trained(transfer, folder, architecture=SparseCoding):
    """Weights drawn, not learned: what the probe says must hold for any weights."""
    run = Run(architecture(**SIZES, transfer=transfer), TASK, steps=0, evaluation_episodes=16)
    model = run.build()
    rng = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=rng)
    return TrainedModel(run, model.eval(), TASK, folder, 0)


@pytest.fixture(params=[OutputTransfer, RelativeTransfer])
def measured(request, tmp_path):
    one = trained(request.param(), tmp_path)
    return one, compolens.load_recipe("probes", "transfer")(one, episodes=EPISODES)[0]


def value(table, **where):
    rows = table.loc[np.logical_and.reduce([table[k] == v for k, v in where.items()])]
    assert len(rows) == 1
    return float(rows["value"].iloc[0])


def score(model, split="ood"):
    (episodes,) = draw(TASK, split, EPISODES, 0)
    with torch.no_grad():
        return TASK.score(model(episodes.tokens), episodes.targets)


def test_lambda_zero_is_the_model_without_transfer_and_nothing_comes_of_a_hidden_answer(measured):
    one, table = measured
    bare = Run(SparseCoding(**SIZES), TASK).build().eval()
    bare.load_state_dict(one.model.state_dict(), strict=False)
    for split in ("test", "ood"):
        assert value(table, metric="score", split=split, control="λ = 0") == score(bare, split) == 0
        assert value(table, metric="score", split=split, control="") == pytest.approx(score(one.model, split))
        for metric in ("coefficients explained", "coefficient cosine"):
            assert value(table, metric=metric, split=split, layer=0, control="without transfer") == 0


def test_swapped_lambdas_are_those_of_the_layer_before(measured):
    one, table = measured
    first, second = (block.attn.transfer.lam.data for block in one.model.blocks)
    assert [value(table, metric="lambda", layer=1, block=i) for i in (0, 1)] == pytest.approx(second.tolist())
    first[:], second[:] = second.clone(), first.clone()
    assert value(table, metric="score", split="ood", control="λ swapped between layers") == pytest.approx(score(one.model))


def test_attention_that_is_the_relations_own_is_explained_fully(tmp_path):
    """Blocks that are all alike: what is moved is then what the target would do itself."""
    one = trained(RelativeTransfer(), tmp_path)
    for block in one.model.blocks:
        block.attn.transfer.lam.data[:] = torch.tensor([0.75, 0.25])

    class Repeated(Relations):
        def draw(self, n, rng):
            return super().draw(n, rng)[:, :1].expand(-1, 3, -1, -1, -1)

    probe = compolens.load_recipe("probes", "transfer")
    table, _ = probe(TrainedModel(one.run, one.model, Repeated(), tmp_path, 0), episodes=EPISODES)
    for metric in ("coefficients explained", "coefficient cosine"):
        assert value(table, metric=metric, split="ood", layer=0, control="") == pytest.approx(1, abs=1e-5)
        assert value(table, metric=metric, split="ood", layer=0, control="another episode") < 0.5


def test_a_model_without_transfer_is_told_how_to_get_one(tmp_path):
    with pytest.raises(DoesNotApply, match=r"SoftmaxTransformer was built without .* transfer=OutputTransfer\(\)"):
        compolens.load_recipe("probes", "transfer")(trained(None, tmp_path, SoftmaxTransformer))


# ---- the two-by-two --------------------------------------------------------------------------------------------------
REFERENCES = {"true code": 1.0, "best training composition": 0.4}


def cell(tmp_path, name, architecture, test, ood, seed=0, **settings):
    run = Run(architecture(**SIZES | settings), Relations(split_seed=seed), steps=2, init_seed=seed)
    folder = tmp_path / f"{name}-{seed}"
    scored(folder, run, {2: ood}, REFERENCES)
    frame = pd.read_csv(folder / "tables" / "generalization.csv")
    both = pd.concat([frame, frame.assign(split="test", value=frame["value"].where(frame["control"].notna(), test))])
    put_back(folder / "tables" / "generalization.csv", both)
    return folder


def test_every_model_stands_in_its_cell(tmp_path):
    folders = [
        cell(tmp_path, "a", SoftmaxTransformer, 0.1, 0.2),
        cell(tmp_path, "b", SoftmaxTransformer, 0.3, 0.4, transfer=OutputTransfer()),
        cell(tmp_path, "c", SparseCoding, 0.5, 0.6, transfer=RelativeTransfer()),
        cell(tmp_path, "d", SparseCoding, 0.7, 0.8, transfer=RelativeTransfer(), threshold=FixedThreshold(0.0)),
        cell(tmp_path, "e", SparseCoding, 0.9, 1.0, n_layers=1),
        cell(tmp_path, "f", SparseCoding, 0.15, 0.25, threshold=CalibratedThreshold(0.9)),
    ]
    drawing = analyze("is_it_sparsity_or_transfer", folders)
    assert [panel.title for panel in drawing.panels] == ["Relations 4×4, 1 layer", "Relations 4×4, 2 layers"]
    rows = drawing.frame()
    points = rows[rows["mark"] == "Points"]
    found = {(row.panel, row.label, row.x): row.y for row in points.itertuples()}
    one, two = "Relations 4×4, 1 layer", "Relations 4×4, 2 layers"
    linear, silenced = "no threshold (ξ = 0)", "soft threshold, 90 % silenced"
    assert found == pytest.approx(
        {
            (two, "softmax", "none test"): 0.1, (two, "softmax", "none ood"): 0.2,
            (two, "softmax", "output test"): 0.3, (two, "softmax", "output ood"): 0.4,
            (two, "soft threshold", "relative test"): 0.5, (two, "soft threshold", "relative ood"): 0.6,
            (two, linear, "relative test"): 0.7, (two, linear, "relative ood"): 0.8,
            (two, silenced, "none test"): 0.15, (two, silenced, "none ood"): 0.25,
            (one, "soft threshold", "none test"): 0.9, (one, "soft threshold", "none ood"): 1.0,
        }
    )  # fmt: skip
    rules = rows[rows["mark"] == "Rule"].drop_duplicates("label").set_index("label")["y"]
    assert rules.to_dict() == pytest.approx({"ceiling, ood": 1.0, "best training composition, ood": 0.4})
    assert "1 seed(s)" in drawing.caption


def test_models_without_any_transfer_are_nothing_to_tell_apart(tmp_path):
    with pytest.raises(ConfigError, match="none of these models transfers"):
        analyze("is_it_sparsity_or_transfer", [cell(tmp_path, "a", SoftmaxTransformer, 0.1, 0.2)])
    with_one = cell(tmp_path, "b", SoftmaxTransformer, 0.1, 0.2, transfer=OutputTransfer())
    with pytest.raises(ConfigError, match="no metric 'R2'; leave --metric out"):
        analyze("is_it_sparsity_or_transfer", [with_one], metric="R2")


def test_the_probe_runs_on_a_trained_folder(tmp_path):
    run = Run(SoftmaxTransformer(**SIZES, transfer=OutputTransfer()), TASK, steps=1, evaluations=1, evaluation_episodes=16)
    train(run, tmp_path / "one")
    table, episodes = compolens.load_recipe("probes", "transfer")(compolens.load(tmp_path / "one"), episodes=EPISODES)
    assert set(table["control"]) == {
        "",
        "λ = 0",
        "λ swapped between layers",
        "untrained",
        "without transfer",
        "another episode",
    }
    assert len(episodes) == 2 * 4 * EPISODES
