"""The probe of the dual model on models of known weights, and the two claims drawn from its tables."""

import math
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch
from handmade import analyze

from compolens import HypernetworkTransformer, Hyperteacher, Run, SoftmaxTransformer, recipes
from compolens.activations.streams import draw
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.models import HYLA, HYLAWithSoftmax, LinearAttention, OutputTransfer
from compolens.models.modified_attention import (
    AugmentedSelfAttention,
    NegativeSampleSelfAttention,
    RegularizedSelfAttention,
)
from compolens.models.token_space import LinearSelfAttention, SoftmaxSelfAttention
from compolens.tasks import LinearRegression, Relations
from compolens.zoo.folders import TrainedModel

SIZES = {"n_layers": 2, "d_model": 16, "n_heads": 2}
TEACHER = {"d_x": 4, "d_y": 2, "d_hidden": 6, "n_modules": 6}
TASK = Hyperteacher(**TEACHER, n_context=6, n_queries=3)
FEW = {"episodes": 24, "looked_at": 8, "draws": 1}
ANSWER = TASK.seq - 1
"""The position at which steps are looked at; it sees 6 demonstrations and itself."""


def trained(architecture=None, task=TASK, sharper=2.0):
    """A model whose weights are not its untrained control's: queries of every layer are longer, so that attention is
    uneven."""
    run = Run(architecture or SoftmaxTransformer(**SIZES), task, steps=0)
    model = run.build().eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_Q.mul_(sharper)
    return TrainedModel(run, model, task, Path("known"), 0)


def probe(known, **options):
    return recipes.load_recipe("probes", "dual_model")(known, **FEW | options)


@pytest.fixture(scope="module")
def known():
    return trained()


@pytest.fixture(scope="module")
def measured(known):
    return probe(known)


@pytest.fixture(scope="module")
def table(measured):
    return measured[0]


def rows(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table), where
    return table


def curve(table, layer, control="", kind="one by one"):
    part = rows(table, metric="remaining distance", layer=layer, control=control, kind=kind)
    return part.sort_values("dual_step")["value"].to_numpy()


def parts(known, layer, n=FEW["looked_at"]):
    """The episodes on which steps are looked at: q, k, v, z (episode, position, head, width), float64."""
    (batch,) = draw(TASK, "test", n, "0/steps", batch=n)
    with torch.no_grad():
        _, cache = known.model.run_with_cache(batch.tokens)
    return [cache[part, layer].double() for part in ("q", "k", "v", "z")]


# ---- what holds of any weights ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("control", ["", "untrained"])
def test_every_head_and_layer_is_one_step_of_its_dual_model(table, control):
    for split in ("test", "ood"):
        here = rows(table, split=split, control=control)
        assert rows(here, metric="max distance")["value"].max() < 1e-5
        whole = rows(here, metric="layer distance")
        assert whole["layer"].tolist() == [0, 1] and whole["value"].max() < 1e-5
    here = rows(table, control=control)
    assert rows(here, metric="autograd coverage")["value"].tolist() == [1, 1]
    assert rows(here, metric="autograd distance")["value"].max() < 1e-5


@pytest.mark.parametrize("control", ["", "untrained"])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_last_demonstration_brings_the_prediction_to_the_output_but_not_with_other_values(table, layer, control):
    for kind in ("one by one", "full batch"):
        left = curve(table, layer, control, kind)
        assert len(left) == 1 + TASK.n_context and left[0] == pytest.approx(1) and left[-1] < 1e-5
    np.testing.assert_allclose(curve(table, layer, control, "full batch"), 1 - np.arange(7) / 6, atol=1e-5)
    assert curve(table, layer, ", ".join(filter(None, (control, "shuffled"))))[-1] > 0.05


@pytest.mark.parametrize("layer", [0, 1])
def test_distances_on_the_way_are_what_attention_still_has_to_add(known, table, layer):
    q, k, v, z = parts(known, layer)
    seen = [*range(TASK.n_context), ANSWER]
    pattern = (torch.einsum("bhe,bkhe->bhk", q[:, ANSWER], k[:, seen]) / math.sqrt(q.shape[-1])).softmax(-1)
    written = torch.einsum("bhk,bkhe->bkhe", pattern, v[:, seen])
    torch.testing.assert_close(written.sum(1), z[:, ANSWER], atol=1e-5, rtol=0)
    left = [float(written[:, t : TASK.n_context].sum(1).norm(dim=-1).mean()) for t in range(7)]
    np.testing.assert_allclose(curve(table, layer), np.array(left) / left[0], atol=1e-5)


def test_the_share_of_the_step_is_what_demonstrations_write_over_the_output(known, table):
    (batch,) = draw(TASK, "test", FEW["episodes"], 0)
    with torch.no_grad():
        _, cache = known.model.run_with_cache(batch.tokens)
    pattern, v, z = cache["pattern", 1], cache["v", 1], cache["z", 1]
    others = torch.einsum("bhqk,bkhe->bqhe", pattern * ~torch.eye(TASK.seq, dtype=torch.bool), v)
    shares = (others.norm(dim=-1) / z.norm(dim=-1)).mean(0)  # (query, head)
    for role, at in known.model.roles.items():
        found = rows(table, metric="share of the step", layer=1, split="test", control="", role=role)
        assert found.sort_values("head")["value"].tolist() == pytest.approx(shares[at].mean(0).tolist(), rel=1e-4)


def test_a_query_that_sees_only_itself_learns_nothing():
    """The first token of a causal model: its output is its own value, all of it in the initial weights."""
    task = Hyperteacher(**TEACHER, n_context=1, n_queries=2)
    found, _ = probe(trained(SoftmaxTransformer(**SIZES, causal=True), task))
    shares = rows(found, metric="share of the step", split="test")
    assert (rows(shares, role="context")["value"] == 0).all() and (rows(shares, role="readout")["value"] > 0.01).all()
    assert len(curve(found, 0)) == 2 and curve(found, 0)[-1] < 1e-5


def test_the_kernel_exponent_is_the_mean_over_pairs(known, table):
    q, k, _, _ = (part[:4] for part in parts(known, 1))
    pairs = (q[:, :, None] + k[:, None]).square().sum(-1).mean() / math.sqrt(q.shape[-1])
    found = rows(table, metric="kernel exponent", layer=1, control="")["value"].item()
    assert found == pytest.approx(float(pairs), rel=1e-6)


def test_random_features_err_less_the_more_there_are(table):
    for metric in ("output error", "pattern error"):
        mean = rows(table, metric=metric).groupby("features")["value"].mean()
        assert mean.is_monotonic_decreasing and mean[4096] < 0.25 * mean[16]
        assert set(rows(table, metric=metric)["kind"]) == {"independent", "orthogonal", "hyperbolic", "optimal"}


def test_episodes_keep_their_score_and_their_largest_distance(known, measured):
    table, seen = measured
    (batch,) = draw(TASK, "ood", FEW["episodes"], 0)
    with torch.no_grad():
        error, weight = TASK.errors(known.model(batch.tokens), batch.targets)
    part = seen[(seen["split"] == "ood") & (seen["layer"] == 1)]
    np.testing.assert_allclose(part["score"], 1 - error / weight, rtol=1e-5)
    assert part["composition"].tolist() == [TASK.composition_name(c) for c in batch.composition.tolist()]
    largest = rows(table, metric="max distance", split="ood", layer=1, control="")["value"].max()
    assert part["max_distance"].max() == pytest.approx(largest)


# ---- what would give another attention away --------------------------------------------------------------------------
def broken(site, edit):
    known = trained()
    known.model.add_hook(site, lambda value, hook: edit(value), is_permanent=True)
    return probe(known)[0]


def test_an_edited_pattern_is_no_step_of_the_dual_model():
    found = broken("blocks.1.attn.hook_pattern", lambda pattern: pattern * (torch.arange(TASK.seq) > 0))
    worst = rows(found, metric="max distance", control="").groupby("layer")["value"].max()
    assert worst[0] < 1e-5 and worst[1] > 0.01
    assert rows(found, metric="layer distance", layer=1, control="")["value"].min() > 0.01
    assert rows(found, metric="autograd distance", layer=1, control="")["value"].item() > 0.01
    assert curve(found, 0)[-1] < 1e-5 and curve(found, 1)[-1] > 0.01
    assert rows(found, metric="max distance", control="untrained")["value"].max() < 1e-5


def test_another_layers_output_is_not_what_this_layers_dual_model_predicts():
    known, seen = trained(), []
    known.model.add_hook("blocks.0.attn.hook_z", lambda z, hook: seen.append(z), is_permanent=True)
    known.model.add_hook("blocks.1.attn.hook_z", lambda z, hook: seen.pop(), is_permanent=True)
    worst = rows(probe(known)[0], metric="max distance", control="").groupby("layer")["value"].max()
    assert worst[0] < 1e-5 and worst[1] > 0.01


def test_an_edited_mlp_shows_in_whole_layers_alone():
    found = rows(broken("blocks.0.hook_mlp_out", torch.zeros_like), control="")
    assert rows(found, metric="max distance")["value"].max() < 1e-5
    assert rows(found, metric="layer distance")["value"].min() > 0.01


# ---- where it applies ------------------------------------------------------------------------------------------------
REGRESSION = LinearRegression(d_x=3, n_context=5)


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        (LinearAttention(**SIZES), TASK),
        (HYLA(**SIZES), TASK),
        (HYLAWithSoftmax(**SIZES), TASK),
        (SoftmaxTransformer(**SIZES, transfer=OutputTransfer()), Relations()),
        (LinearSelfAttention(), REGRESSION),
        (RegularizedSelfAttention(), REGRESSION),
        (NegativeSampleSelfAttention(), REGRESSION),
    ],
    ids=lambda x: type(x).__name__,
)
def test_other_attention_is_refused_with_what_applies_instead(architecture, task):
    with pytest.raises(DoesNotApply) as error:
        probe(trained(architecture, task), episodes=1)
    text = str(error.value)
    assert text.startswith(f"{type(architecture).__name__} has no dual model: its weights are no softmax of scores alone.")
    assert "instead: gd_equivalence and algorithm_steps on regression families, attention_code on categorical codes" in text


@pytest.mark.parametrize("architecture", [SoftmaxSelfAttention(n_layers=2), AugmentedSelfAttention(n_layers=2)], ids=str)
def test_token_space_has_dual_models_of_heads_but_not_of_norms(architecture):
    """Mapped queries, keys and values have the dual model of 2310.13220's augmented loss; hook points hold the mapped ones."""
    found, _ = probe(trained(architecture, REGRESSION, sharper=50.0))
    assert rows(found, metric="max distance")["value"].max() < 1e-5
    assert curve(found, 1)[-1] < 1e-5 and len(curve(found, 1)) == 6
    assert "layer distance" not in set(found["metric"])  # a layer is its attention
    share = rows(found, metric="share of the step", role="readout", split="test", control="")["value"]
    alone = not architecture.attends_to_itself
    assert (np.abs(share - 1) < 1e-5).all() == alone, "a query outside its own keys writes nothing of its own"


def test_an_encoder_with_a_summary_token_is_softmax_attention_too():
    found, _ = probe(trained(HypernetworkTransformer(**SIZES, d_code=6, d_hidden=12)))
    assert rows(found, metric="max distance")["value"].max() < 1e-5 and curve(found, 1)[-1] < 1e-5
    assert rows(found, metric="layer distance")["value"].max() < 1e-5


def test_positions_weigh_the_loss_and_root_mean_squares_norm_as_well():
    found, _ = probe(trained(SoftmaxTransformer(**SIZES, n_ctx=TASK.seq, rms_norm=True)))
    for metric in ("max distance", "layer distance", "autograd distance"):
        assert rows(found, metric=metric)["value"].max() < 1e-5


def test_where_kernels_are_too_large_the_table_says_so_and_the_gram_form_still_holds():
    known = trained(sharper=1e3)
    with torch.no_grad():
        for block in known.model.blocks:
            block.attn.W_K.mul_(1e3)
    found, _ = probe(known)
    own = rows(found, control="")
    assert rows(own, metric="max distance")["value"].max() < 1e-5
    assert rows(own, metric="autograd coverage")["value"].max() < 0.1
    error = rows(own, metric="output error", kind="independent", features=16)
    assert error["value"].isna().all() and error["note"].str.startswith("not available: an estimated normaliser is 0").all()


def test_few_episodes_are_enough_and_none_are_not(known):
    found, _ = probe(known, episodes=3, looked_at=16)
    assert rows(found, metric="remaining distance")["n"].unique().tolist() == [3]
    with pytest.raises(ConfigError, match="need episodes, looked_at and draws >= 1, got 3, 16 and 0"):
        probe(known, episodes=3, looked_at=16, draws=0)


# ---- the claims ------------------------------------------------------------------------------------------------------
def write(folder, run, table):
    """A model's folder with a table dual_model."""
    common = {"dual_step": -1, "kind": "none", "features": -1, "note": ""}
    handmade.save(handmade.write(folder, run), "dual_model", table, **common)
    return folder


def by_hand(more=0.0):
    """Two layers of two heads with numbers that can be told from each other; those on held-out compositions are 9."""
    for (c, control), layer in ((pair, layer) for pair in enumerate(("", "untrained")) for layer in (0, 1)):
        at = {"layer": layer, "control": control, "split": "test", "site": "somewhere", "role": "readout"}
        for head in ("0", "1"):
            known = at | {"head": head}
            values = {"max": 4e-6 * (1 + int(head)), "mean": 1e-6, "relative": 0.5e-6}
            yield from (known | {"metric": f"{name} distance", "value": value} for name, value in values.items())
            yield known | {"metric": "max distance", "value": 9.0, "split": "ood"}
            yield known | {"metric": "share of the step", "value": 0.5 + 0.2 * int(head) + 0.1 * layer + 0.05 * c + more}
            yield known | {"metric": "share of the step", "value": 9.0, "role": "context"}
        known = at | {"head": "all"}
        yield known | {"metric": "layer distance", "value": 10.0 ** (-6 + layer), "role": "all positions"}
        yield known | {"metric": "autograd distance", "value": 0.0 if layer else 1e-8}
        for kind, end in (("one by one", 0.0), ("full batch", 0.0), ("shuffled", 0.6)):
            who = ", ".join(filter(None, (control, "shuffled" * (kind == "shuffled"))))
            schedule = "one by one" if kind == "shuffled" else kind
            for t, value in enumerate((1.0, 0.8 + 0.1 * layer + more, end)):
                yield known | {
                    "metric": "remaining distance",
                    "value": value,
                    "dual_step": t,
                    "kind": schedule,
                    "control": who,
                }
        yield known | {"metric": "kernel exponent", "value": 2.0 + 3 * (layer == 0) - c, "role": "all positions"}
        for kind, factor in (("independent", 1.0), ("optimal", 0.1)):
            for m in (16, 64, 1024):
                for error, scale in (("output", 1.0), ("pattern", 2.0)):
                    value = scale * factor * (1 + layer + 4 * c) / math.sqrt(m) * 10**more
                    yield known | {"metric": f"{error} error", "value": value, "kind": kind, "features": m}


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory):
    root = tmp_path_factory.mktemp("dual")
    run = {"architecture": SoftmaxTransformer(**SIZES), "task": TASK, "steps": 2}
    return [write(root / f"seed-{s}", Run(**run, init_seed=s, data_seed=s), by_hand(0.1 * s)) for s in (0, 1)]


def shown(drawing, panel, mark="Line"):
    """label (numbered where there are several) -> {x: y} of a panel's marks of a kind."""
    frame = drawing.frame()
    frame = frame[(frame["panel"] == drawing.panels[panel].title) & (frame["mark"] == mark)]
    series = [part for _, part in frame.groupby("series", sort=False)]
    return [(part["label"].iloc[0], dict(zip(part["x"], part["y"], strict=True))) for part in series]


def test_agreement_is_drawn_as_means_over_seeds_with_the_untrained_control_dashed(two_seeds):
    drawing = analyze("dual_model_agrees", two_seeds)
    titles = [f"SoftmaxTransformer: {what}" for what in ("learning, layer 1", "distance left", "share of the step")]
    assert [panel.title for panel in drawing.panels] == titles and drawing.columns == 3
    lines = shown(drawing, 0)
    assert [label for label, _ in lines] == [
        "all demonstrations at once, at a rate of 1 / their number",
        "", "values of other tokens", "", "one demonstration after the other",
    ]  # fmt: skip
    for (_, points), end in zip(lines, (0, 0.6, 0.6, 0, 0), strict=True):
        assert points == pytest.approx({0: 1.0, 1: 0.95, 2: end})
    dashed = [
        [mark.dash for mark in panel.marks if type(mark) is type(drawing.panels[0].marks[0])] for panel in drawing.panels
    ]
    assert dashed == [[False, True, False, True, False], [False, True] * 3, [False, True]]
    own, untrained = shown(drawing, 2)
    assert own[1] == pytest.approx({"0": 0.65, "1": 0.75}) and untrained[1] == pytest.approx({"0": 0.7, "1": 0.8})
    heads = next(mark.rows() for mark in drawing.panels[2].marks if type(mark).__name__ == "Points")
    assert sorted(heads["y"]) == pytest.approx([0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8, 0.9])
    assert set(heads["hover"]) == {f"seed-{s}, head {h}" for s in (0, 1) for h in (0, 1)}


def test_distances_are_the_largest_relative_to_the_output_and_zero_is_where_float64_ends(two_seeds):
    lines = shown(analyze("dual_model_agrees", two_seeds), 1)
    largest = math.log10(2 * 4e-6 * 0.5)  # of the worse head, whose output has the norm 1e-6 / 0.5e-6
    for heads, layers, step in (lines[0::2], lines[1::2]):
        assert heads[1] == pytest.approx({"0": largest, "1": largest})
        assert layers[1] == pytest.approx({"0": -6, "1": -5})
        assert step[1] == pytest.approx({"0": -8, "1": math.log10(2.0**-52)})
    panel = analyze("dual_model_agrees", two_seeds).panels[1]
    assert panel.y_range == pytest.approx((math.log10(2.0**-52) - 0.3, 0.5))
    assert panel.marks[0].value == pytest.approx(math.log10(torch.finfo(torch.float32).eps))


def test_a_layer_is_chosen_from_either_end(two_seeds):
    for layer in (0, -2):
        drawing = analyze("dual_model_agrees", two_seeds, layer=layer)
        assert drawing.panels[0].title.endswith("layer 0") and shown(drawing, 0)[1][1][1] == pytest.approx(0.85)
    for name, layer in (("dual_model_agrees", 2), ("random_features_converge", -3)):
        with pytest.raises(ConfigError, match=f"SoftmaxTransformer has layers 0 to 1, not {layer}; --layer counts from 0"):
            analyze(name, two_seeds, layer=layer)


def test_what_was_never_trained_or_not_available_is_not_drawn(tmp_path):
    run = Run(SoftmaxTransformer(**SIZES), TASK, steps=0)
    missing = [row for row in by_hand() if row["metric"] != "autograd distance"]
    for row in missing:
        if row["metric"] == "layer distance" or row.get("features") == 64:
            row["value"] = np.nan
    folder = write(tmp_path / "one", run, missing)
    drawing = analyze("dual_model_agrees", [folder])
    assert [label for label, _ in shown(drawing, 1)] == ["heads, by kernel values"]
    assert len(shown(drawing, 0)) == 3 and len(shown(drawing, 2)) == 1
    (panel,) = analyze("random_features_converge", [folder]).panels
    gap = panel.marks[0].rows()
    assert gap[gap["y"].isna()]["x"].tolist() == ["64"] and not panel.marks[-1].rows()["y"].isna().any()


def test_feature_errors_are_drawn_where_the_exponent_is_largest_beside_the_slope(two_seeds):
    drawing = analyze("random_features_converge", two_seeds)
    assert [panel.title for panel in drawing.panels] == [
        f"SoftmaxTransformer, layer 0, {who}: |q + k|² = {n}" for who, n in (("as trained", "5.0"), ("untrained", "4.0"))
    ]
    for panel, factor in ((0, 1.0), (1, 5.0)):
        independent, optimal, slope = shown(drawing, panel)
        assert [independent[0], optimal[0], slope[0]] == ["independent", "optimal", "1/√m"]
        expected = {str(m): math.log10(factor / math.sqrt(m)) + 0.05 for m in (16, 64, 1024)}  # two seeds: 0 and 0.1 more
        assert independent[1] == pytest.approx(expected, abs=1e-5)
        assert optimal[1] == pytest.approx({m: y - 1 for m, y in expected.items()}, abs=1e-5)
        assert slope[1] == pytest.approx({m: y - 0.5 for m, y in expected.items()}, abs=1e-5), (
            "between the kinds, where they start"
        )
        seeds = shown(drawing, panel, "Points")
        assert len(seeds) == 2


def test_feature_errors_of_the_pattern_and_of_another_layer(two_seeds):
    drawing = analyze("random_features_converge", two_seeds, error="pattern", layer=-1)
    assert drawing.panels[0].title == "SoftmaxTransformer, layer 1, as trained: |q + k|² = 2.0"
    assert shown(drawing, 0)[0][1]["16"] == pytest.approx(math.log10(2 * 2 / 4) + 0.05, abs=1e-5)
    with pytest.raises(ConfigError, match="no such choice 'patern'; did you mean 'pattern'"):
        analyze("random_features_converge", two_seeds, error="patern")
