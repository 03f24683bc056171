"""Sparsity against closed forms and independent implementations; the probe against the model; figures against the tables."""

import dataclasses
import math
import shutil
from collections import ChainMap
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from handmade import put_back
from torch import nn

from compolens import Run, SoftmaxTransformer, recipes, tables
from compolens.activations.streams import draw
from compolens.diagnosis import reported
from compolens.foundation import digests
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.hooks import HookedModel, HookPoint
from compolens.measures import sparsity as measured
from compolens.measures.sparsity import Absolute, RowMaximum, SiteStd, Spread
from compolens.models.base import Architecture
from compolens.zoo.folders import TrainedModel, load

EPISODES = 24
XI = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


# ---- rows ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("k", "n"), [(1, 2), (1, 9), (3, 9), (9, 9), (5, 7)])
def test_k_equal_entries_among_n_have_the_closed_forms(k, n):
    row = torch.zeros(n, dtype=torch.float64)
    row[:k] = torch.tensor([-0.7, 0.7])[torch.arange(k) % 2]
    row = row[torch.randperm(n, generator=torch.Generator().manual_seed(1))]
    root = math.sqrt(n)
    assert measured.hoyer(row).item() == pytest.approx((root - math.sqrt(k)) / (root - 1))
    assert measured.gini(row).item() == pytest.approx(1 - k / n)
    assert measured.entropy(row).item() == pytest.approx(math.log(k))
    assert measured.effective_keys(row).item() == pytest.approx(k)


def hoyer_of(x):
    n = len(x)
    return 0.0 if n == 1 else (n**0.5 - np.abs(x).sum() / np.linalg.norm(x)) / (n**0.5 - 1)


def gini_of(x):
    size = np.abs(x)
    return sum(abs(a - b) for a in size for b in size) / (2 * len(x) * size.sum())


def entropy_of(x):
    return scipy.stats.entropy(np.abs(x))


OTHERS = {"hoyer": hoyer_of, "gini": gini_of, "entropy": entropy_of, "effective_keys": lambda x: math.exp(entropy_of(x))}


@pytest.mark.parametrize("name", OTHERS)
def test_rows_agree_with_independent_implementations_where_masks_leave_entries_out(name):
    x, allowed = randn(3, 8, 8) ** 3, causal(8)
    value = getattr(measured, name)
    expected = [[OTHERS[name](x[b, q].numpy()) for q in range(8)] for b in range(3)]
    np.testing.assert_allclose(value(x), expected, rtol=1e-12, atol=1e-12)
    expected = [[OTHERS[name](x[b, q, : q + 1].numpy()) for q in range(8)] for b in range(3)]
    np.testing.assert_allclose(value(x, allowed), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(value(torch.where(allowed, x, 1e9), allowed), value(x, allowed), rtol=0, atol=0)


@pytest.mark.parametrize("name", OTHERS)
def test_rows_do_not_depend_on_size_sign_or_order(name):
    x, value = randn(4, 6).float(), getattr(measured, name)
    for other in (-x, x.flip(-1), 1e-38 * x, 1e30 * x):
        torch.testing.assert_close(value(other), value(x), rtol=1e-4, atol=1e-4)


def test_a_row_of_zeros_is_as_sparse_as_can_be_and_reads_no_key():
    x = torch.zeros(2, 5)
    x[1] = torch.tensor([0.0, 0, 3, 0, 0])
    assert measured.zero_rows(x).tolist() == [True, False]
    assert measured.hoyer(x).tolist() == [1, 1] and measured.gini(x).tolist() == [1, pytest.approx(0.8)]
    assert measured.entropy(x).tolist() == [0, 0] and measured.effective_keys(x).tolist() == [0, 1]
    hidden = torch.tensor([True, True, False, True, True])
    assert measured.zero_rows(x, hidden).all() and measured.effective_keys(x, hidden).tolist() == [0, 0]
    assert measured.hoyer(torch.zeros(1)) == measured.gini(torch.zeros(1)) == 1


def test_a_row_of_one_entry_is_not_sparse():
    x, allowed = randn(1, 4), torch.tensor([True, False, False, False])
    assert measured.hoyer(x, allowed).item() == measured.gini(x, allowed).item() == 0
    assert measured.effective_keys(x, allowed).item() == 1


# ---- entries ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("xi", [0.0, 0.03, 0.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_soft_threshold_leaves_as_many_zeros_as_there_are_scores_at_or_below_it(xi, dtype):
    scores = randn(2, 3, 20, 20).to(dtype)
    scores[0, 0, 0, :2] = torch.tensor([xi, -xi])
    coefficients = scores.sign() * (scores.abs() - xi).clamp(min=0)
    zeros = measured.fraction_zero(coefficients)
    assert torch.equal(zeros, (scores.abs() <= torch.tensor(xi, dtype=dtype)).double().mean((-2, -1)))
    assert torch.equal(zeros, measured.fraction_below(scores, xi))
    assert torch.equal(measured.prune(scores, xi) == 0, coefficients == 0)


def test_the_share_below_a_threshold_follows_the_gaussian_law():
    s, n = 0.0125, 400 * 400
    x = s * randn(1, 400, 400)
    for xi in XI[:4]:
        law = math.erf(xi / (s * math.sqrt(2)))
        assert measured.fraction_below(x, xi).item() == pytest.approx(law, abs=4 * math.sqrt(law * (1 - law) / n) + 1e-9)


def test_scores_of_standard_deviation_1_hardly_notice_the_papers_thresholds():
    """Scores of a fresh attention (d_model 128, 16 heads of width 4): heavier in the middle than a Gaussian."""
    batch, seq, d, heads, width = 24, 36, 128, 16, 4
    x = randn(batch, seq, d)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    q, k = (torch.einsum("bsd,hdw->bhsw", x, randn(heads, d, width, seed=i) / d**0.5) for i in (1, 2))
    scores = q @ k.transpose(-1, -2) / width**0.5
    assert Spread.of(scores).std == pytest.approx(1, abs=0.1)
    shares = [measured.fraction_below(scores, xi).mean().item() for xi in XI]
    assert shares == pytest.approx([0.003, 0.0099, 0.0297, 0.0989, 0.285, 0.728, 0.99], rel=0.12)
    assert shares == sorted(shares)


def test_shares_are_monotone_and_start_at_exact_zeros():
    x = randn(2, 4, 9, 9)
    x[:, 1, :, ::3] = 0
    shares = torch.stack([measured.fraction_below(x, xi) for xi in (0, *XI, 100)])
    assert (shares.diff(dim=0) >= 0).all() and (shares[-1] == 1).all()
    assert torch.equal(shares[0], measured.fraction_zero(x)) and shares[0, :, 1].tolist() == [pytest.approx(1 / 3)] * 2


def test_what_a_mask_forbids_counts_nowhere():
    x, allowed = randn(2, 3, 6, 6).masked_fill(~causal(6), 0), causal(6)
    rows, columns = np.tril_indices(6)
    inside = x[..., rows, columns]
    assert (measured.fraction_zero(x, allowed) == 0).all() and (measured.fraction_zero(x) > 0.4).all()
    expected = (inside.abs() <= 0.5).double().mean(-1)
    torch.testing.assert_close(measured.fraction_below(x, 0.5, allowed), expected, rtol=1e-12, atol=0)
    assert measured.count_allowed(x, allowed) == 21 and measured.count_allowed(x) == 36
    assert [measured.count_allowed(torch.zeros(*shape, 3, 5)) for shape in ((), (2,), (2, 7))] == [15] * 3
    assert Spread.of(x, allowed).std == pytest.approx(inside.numpy().std())
    louder = torch.where(allowed, x, 50.0)
    torch.testing.assert_close(RowMaximum().unit(louder, allowed), RowMaximum().unit(x), rtol=0, atol=0)


def test_thresholds_are_measured_in_their_scale():
    x = randn(2, 3, 5, 5)
    assert (measured.fraction_below(x, RowMaximum().unit(x)) == 1).all()
    np.testing.assert_allclose(measured.fraction_below(x, (1 - 1e-9) * RowMaximum().unit(x)), 0.8)
    for scale, sees_size in ((RowMaximum(), False), (SiteStd(0.7), True), (Absolute(), True)):
        shares = [measured.fraction_below(y, 0.3 * scale.unit(y)) for y in (x, x / 16)]
        assert torch.equal(*shares) == (not sees_size)
    assert torch.equal(measured.fraction_below(x, 2 * SiteStd(0.25).unit(x)), measured.fraction_below(x, 0.5))


def test_a_spread_streams():
    x = 3 + randn(7, 2, 4, 4)
    parts = [Spread.of(part) for part in x.split(3)]
    assert (parts[0] + parts[1] + parts[2]).std == pytest.approx(x.numpy().std())
    assert Spread.of(torch.full((2, 1, 3, 3), 0.1)).std == pytest.approx(0, abs=1e-7)


# ---- pruning ---------------------------------------------------------------------------------------------------------
def test_pruning_takes_what_is_at_or_below_and_leaves_the_rest():
    x = torch.tensor([[-0.5, 0.2, 0.5, -0.9]])
    assert measured.prune(x, 0.5).tolist() == [[0, 0, 0, x[0, 3].item()]]
    assert torch.equal(measured.prune(x, 0.5 * RowMaximum().unit(x)), torch.where(x.abs() > 0.45, x, 0))
    assert torch.equal(measured.prune(x, -1), x)


def at_random(x, zeros, seed=0, allowed=None):
    return measured.prune_at_random(x, torch.tensor(zeros), torch.Generator().manual_seed(seed), allowed)


@pytest.mark.parametrize("allowed", [None, causal(6)])
def test_random_pruning_leaves_exactly_as_many_zeros_as_asked_for(allowed):
    x = randn(5, 4, 6, 6) + 10
    wanted = [0, 1, 50, 5 * measured.count_allowed(x, allowed)]
    pruned = at_random(x, wanted, allowed=allowed)
    assert measured.count_below(pruned, 0, allowed).sum(0).tolist() == wanted
    assert torch.equal(pruned[pruned != 0], x[pruned != 0])
    outside = torch.zeros(6, 6, dtype=torch.bool) if allowed is None else ~allowed
    assert torch.equal(pruned[..., outside], x[..., outside])


def test_random_pruning_is_nested_and_a_function_of_the_generator():
    x = randn(5, 2, 6, 6)
    some, more, again, other = (at_random(x, [n, n], seed) for n, seed in ((40, 0), (90, 0), (40, 0), (40, 1)))
    assert torch.equal(some, again) and not torch.equal(some, other)
    assert ((some == 0) <= (more == 0)).all()


def test_zeros_that_are_there_count_and_stay():
    x = randn(5, 2, 6, 6)
    x[:, :, :, :2] = 0
    pruned = at_random(x, [100, 10])
    assert (pruned == 0).sum((0, 2, 3)).tolist() == [100, 60] and torch.equal(pruned[:, 1], x[:, 1])


def test_random_pruning_does_not_look_at_size():
    x = randn(100, 1, 30, 30)
    gone = at_random(x, [45_000], seed=7) == 0
    error = 4 * x.abs().std() / math.sqrt(45_000)
    assert x[gone].abs().mean().item() == pytest.approx(x[~gone].abs().mean().item(), abs=1.5 * error.item())


def test_renormalised_rows_sum_to_one_unless_nothing_is_left():
    x = randn(2, 3, 4, 4).softmax(-1)
    assert measured.sums_to_one(x) and not measured.sums_to_one(2 * x)
    assert not measured.sums_to_one(torch.tensor([[1.5, -0.5]]))
    x[0, 0, 0] = 0
    again = measured.renormalise(measured.prune(x, 0.2))
    left = (again != 0).any(-1)
    assert left.sum() == 23 and not left[0, 0, 0]
    torch.testing.assert_close(again.sum(-1), left.double())


# ---- the probe -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def probe():
    return recipes.load_recipe("probes", "activation_sparsity")


@pytest.fixture(scope="module", params=["softmax", "fuzzy", "causal"])
def trained(request, tiny_task, tiny_models, tiny_categorical_models):
    """With a mask, without one, and with a mask that leaves the first row one key."""
    if request.param == "causal":
        run = Run(SoftmaxTransformer(n_layers=2, d_model=16, n_heads=2, causal=True), tiny_task, steps=0)
        return TrainedModel(run, run.build().eval(), tiny_task, Path("causal"), 0)
    return load(ChainMap(tiny_models, tiny_categorical_models)[request.param])


@pytest.fixture(scope="module")
def table(trained, probe):
    return probe(trained, episodes=EPISODES, draws=2)[0]


def pick(table, **where):
    """Rows that match; None matches empty."""
    for column, value in where.items():
        table = table[table[column].isna() if value is None else table[column] == value]
    assert len(table), where
    return table


def patterns(trained, split, model=None):
    """Independent of the probe: (layer, batch, head, query, key) weights, True where the task lets attend."""
    (episodes,) = draw(trained.task, split, EPISODES, 0)
    model = trained.model if model is None else model
    with torch.no_grad():
        _, cache = model.run_with_cache(episodes.tokens)
    x = torch.stack([cache["pattern", layer] for layer in range(2)])
    mask = torch.ones(x.shape[-2:], dtype=torch.bool) if trained.task.mask is None else trained.task.mask
    return x, mask & causal(len(mask)) if trained.run.architecture.causal else mask


@pytest.mark.parametrize("control", ["", "untrained"])
@pytest.mark.parametrize("split", ["test", "ood"])
def test_shares_are_those_of_the_weights_that_the_mask_allows(trained, table, split, control):
    model = trained.run.build() if control else trained.model
    x, mask = patterns(trained, split, model)
    where = {"metric": "fraction below", "split": split, "control": control}
    std = [x_[..., mask].double().numpy().std() for x_ in patterns(trained, "train", model)[0]]
    for scale, threshold in (("absolute", 0.03), ("absolute", 1.0), ("row maximum", 0.3), ("site std", 1.0)):
        top = x.masked_fill(~mask, 0).abs().amax(-1, keepdim=True)
        of_std = torch.tensor(std, dtype=x.dtype)[:, None, None, None, None]
        unit = {"absolute": torch.ones(()), "row maximum": top, "site std": of_std}[scale]
        hits = (x.abs() <= threshold * unit)[..., mask].double()
        rows = pick(table, **where, scale=scale, threshold=threshold)
        for layer in (0, 1):
            for head in range(x.shape[2]):
                value = pick(rows, layer=layer, head=head)["value"].item()
                assert value == pytest.approx(hits[layer, :, head].mean().item(), abs=1e-9)
            assert pick(rows, layer=layer, head=None)["value"].item() == pytest.approx(hits[layer].mean().item())
        assert pick(rows, layer=None)["value"].item() == pytest.approx(hits.mean().item())
    measured_std = pick(table, metric="standard deviation", control=control)
    assert measured_std["value"].tolist() == pytest.approx(std, rel=1e-5)


def test_means_over_rows_leave_out_rows_of_one_key(trained, table):
    x, mask = patterns(trained, "ood")
    for name, other in (("Hoyer", hoyer_of), ("Gini", gini_of), ("effective keys", OTHERS["effective_keys"])):
        rows = [query for query in range(len(mask)) if mask[query].sum() > 1]
        assert len(rows) == len(mask) - trained.run.architecture.causal
        values = [other(x[1, b, 0, q][mask[q]].double().numpy()) for b in range(EPISODES) for q in rows]
        found = pick(table, metric=name, control="", split="ood", layer=1, head=0)["value"].item()
        assert found == pytest.approx(np.mean(values), rel=1e-4)


def test_masked_weights_are_no_zeros(trained, table):
    x, _ = patterns(trained, "ood")
    assert (x == 0).any() == (trained.task.mask is not None), "a masked softmax is full of zeros that are none"
    assert (pick(table, metric="exact zeros")["value"] == 0).all() and (pick(table, metric="zero rows")["value"] == 0).all()


def cut(trained, pruning, split):
    """Independent of the probe: the score when small weights are taken out."""
    (episodes,) = draw(trained.task, split, EPISODES, 0)

    def edit(pattern, hook):
        unit = pattern.abs().max(-1, keepdim=True).values if pruning["scale"] == "row maximum" else 1.0
        pattern = torch.where(pattern.abs() > pruning["threshold"] * unit, pattern, torch.zeros(()))
        return pattern / pattern.sum(-1, keepdim=True) if pruning["renormalised"] else pattern

    with torch.no_grad(), trained.model.hooks([(f"blocks.{layer}.attn.hook_pattern", edit) for layer in (0, 1)]):
        return trained.task.score(trained.model(episodes.tokens), episodes.targets)


@pytest.mark.parametrize("split", ["test", "ood"])
def test_scores_are_those_of_the_pruned_model(trained, table, split):
    scores = pick(table, metric="score", control="", split=split)
    (episodes,) = draw(trained.task, split, EPISODES, 0)
    with torch.no_grad():
        whole = trained.task.score(trained.model(episodes.tokens), episodes.targets)
    assert pick(scores, threshold=None)["value"].item() == pytest.approx(whole, abs=1e-6)
    softmax = trained.task.mask is not None
    assert set(scores["renormalised"].dropna()) == ({0, 1} if softmax else {0})
    for _, row in scores[scores["scale"] == "row maximum"].iterrows():
        assert row["value"] == pytest.approx(cut(trained, row, split), rel=1e-4, abs=1e-5)
    for _, row in pick(scores, scale="absolute", renormalised=0).iterrows():
        assert row["value"] == pytest.approx(cut(trained, row, split), rel=1e-4, abs=1e-5)
    assert len(set(scores["value"].round(6))) > 6


def test_sparsity_grows_with_the_threshold_from_what_is_there(table):
    for _, rows in pick(table, metric="score", control="").groupby(["split", "scale", "renormalised"]):
        imposed = rows.sort_values("threshold")["imposed"]
        assert imposed.is_monotonic_increasing and imposed.iloc[-1] > 0.2 and (imposed <= 1).all()
    assert (pick(table, metric="score", control="", threshold=None)["imposed"] == 0).all()
    first = pick(
        table, metric="fraction below", control="", split="ood", scale="row maximum", threshold=0.3, layer=0, head=None
    )
    assert first["value"].item() > 0


def test_the_random_control_is_as_sparse_in_every_pruning_and_another_one_in_every_draw(table):
    keys = ["split", "scale", "threshold", "renormalised"]
    own = pick(table, metric="score", control="").dropna(subset="threshold").set_index(keys)["imposed"]
    drawn = pick(table, metric="score", control="random pruning")
    assert drawn.groupby(keys)["draw"].apply(set).map(lambda draws: draws == {0, 1}).all()
    for draw_, rows in drawn.groupby("draw"):
        np.testing.assert_array_equal(rows.set_index(keys)["imposed"].loc[own.index], own, err_msg=str(draw_))
    apart = drawn[drawn["imposed"].between(0.05, 0.95)].groupby(keys)["value"].nunique()
    assert len(apart) and (apart == 2).mean() > 0.5


def test_equal_seeds_give_equal_tables(trained, probe, table):
    again, seen = probe(trained, episodes=EPISODES, draws=2)
    pd.testing.assert_frame_equal(table, again)
    other, _ = probe(trained, episodes=EPISODES, draws=1, seed=1)
    assert pick(other, metric="Gini", layer=None)["value"].tolist() != pick(table, metric="Gini", layer=None)["value"].tolist()
    whole = pick(seen, threshold=None, split="ood")
    assert len(whole) == EPISODES and len(seen) == EPISODES * len(pick(table, metric="score", control=""))
    assert not pd.Series(np.isinf(seen["score"])).any()


def test_intervals_hold_the_value_and_are_over_compositions(table):
    rows = table.dropna(subset="lo")
    assert len(rows) > 500 and (rows["lo"] <= rows["value"] + 1e-9).all() and (rows["value"] <= rows["hi"] + 1e-9).all()
    assert (pick(rows, metric="Gini", layer=None)["hi"] > pick(rows, metric="Gini", layer=None)["lo"]).all()


def test_no_draw_is_no_control(trained, probe):
    with pytest.raises(ConfigError, match="at least one draw, got 0"):
        probe(trained, episodes=4, draws=0)


# ---- other architectures ---------------------------------------------------------------------------------------------
class ToyAttention(nn.Module):
    """Soft-thresholded scores, then something that leaves no zeros: sites before and after a transfer."""

    def __init__(self):
        super().__init__()
        self.hook_coefficients, self.hook_pattern = HookPoint(), HookPoint()

    def forward(self, x):
        scores = (x @ x.transpose(1, 2))[:, None]
        coefficients = self.hook_coefficients(scores.sign() * (scores.abs() - 1).clamp(min=0))
        return self.hook_pattern(coefficients + 0.5)[:, 0] @ x


class ToyModel(HookedModel):
    def __init__(self, d_in, d_out, attends):
        super().__init__()
        self.cfg, self.roles = SimpleNamespace(n_layers=1, use_attn_result=False), {"context": [], "readout": []}
        block = nn.Module()
        if attends:
            block.attn = ToyAttention()
        self.blocks = nn.ModuleList([block])
        self.last = nn.Linear(d_in, d_out)
        self.setup()

    def forward(self, tokens):
        return self.last(self.blocks[0].attn(tokens) if hasattr(self.blocks[0], "attn") else tokens)


@dataclass(frozen=True)
class Toy(Architecture):
    attends: bool = True

    def build(self, *, d_in, d_out, seq=None, answers=(-1,), d_x=None, mask=None, blocks=None):
        return ToyModel(d_in, d_out, self.attends)


def toy(task, **settings):
    run = Run(Toy(**settings), task, steps=0)
    return TrainedModel(run, run.build().eval(), task, Path("toy"), 0)


def test_weights_are_read_and_pruned_before_coefficient_transfer(tiny_task, probe):
    trained = toy(tiny_task)
    table, _ = probe(trained, episodes=EPISODES, draws=2)
    assert set(table["site"]) == {"blocks.0.attn.hook_coefficients", "blocks.*.attn.hook_coefficients"}
    (episodes,) = draw(tiny_task, "ood", EPISODES, 0)
    scores = episodes.tokens @ episodes.tokens.transpose(1, 2)
    zeros = pick(table, metric="exact zeros", control="", split="ood", layer=None)["value"].item()
    assert zeros == pytest.approx((scores.abs() <= 1).double().mean().item()) and 0.05 < zeros < 0.95
    pruned = pick(table, metric="score", control="", split="ood", scale="absolute", threshold=1.0)
    assert pruned["imposed"].item() == pytest.approx((scores.abs() <= 2).double().mean().item())
    drawn = pick(table, metric="score", control="random pruning", split="ood", scale="absolute", threshold=1.0)
    assert drawn["imposed"].tolist() == [pruned["imposed"].item()] * 2, "zeros that are there count"


def test_without_attention_patterns_there_is_nothing_to_measure(tiny_task, probe):
    with pytest.raises(DoesNotApply, match="Toy has no attention patterns"):
        probe(toy(tiny_task, attends=False), episodes=4)


# ---- what the paper reports ------------------------------------------------------------------------------------------
def test_the_papers_five_points_are_quoted_with_the_scale_that_they_lack():
    found = [(q.xi, round(100 * q.sparsity, 2)) for q in reported.SPARSITY_BY_XI]
    assert found == [(0.003, 18.53), (0.01, 57.82), (0.03, 90.45), (0.1, 97.82), (0.3, 99.38)]
    for q in reported.SPARSITY_BY_XI:
        assert "2511.20194" in q.source and "not known" in q.source and "scale" in q.source
    stds = [q.xi / scipy.stats.norm.ppf((1 + q.sparsity) / 2) for q in reported.SPARSITY_BY_XI]
    assert stds == pytest.approx([0.0128, 0.0124, 0.018, 0.044, 0.110], rel=0.02), "no Gaussian of one width: a heavy tail"


# ---- figures ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folders(tiny_models, tiny_categorical_models, tmp_path_factory):
    """Three models measured, on two settings."""
    root = tmp_path_factory.mktemp("sparsity")
    for name in ("softmax", "hyla", "raven-softmax"):
        shutil.copytree(ChainMap(tiny_models, tiny_categorical_models)[name], root / name)
        for recipe, arguments in (("activation_sparsity", {"draws": 2}), ("generalization", {})):
            recipes.run_probe(recipes.built_in("probes")[recipe], root / name, {"episodes": EPISODES, **arguments})
    return [root / name for name in ("softmax", "hyla", "raven-softmax")]


def analyze(name, folders, **arguments):
    return recipes.load_recipe("analyses", name)(folders, **arguments)


@pytest.mark.parametrize("scale", ["absolute", "row maximum", "site std"])
def test_curves_are_the_tables_shares_from_exact_zeros_on(folders, scale):
    drawn = analyze("sparsity_curves", folders, scale=scale)
    frame = drawn.frame()
    assert len(drawn.panels) == 2 and drawn.panels[0].title != drawn.panels[1].title
    for folder, label in zip(folders, ("softmax", "HYLA", "softmax"), strict=True):
        panel = drawn.panels[0 if folder.name == "softmax" else 1].title
        table = tables.read(folder, "activation_sparsity")
        for control, name in (("", label), ("untrained", f"{label}, untrained")):
            rows = table[(table["split"] == "ood") & (table["control"] == control) & table["layer"].isna()]
            line = frame[(frame["panel"] == panel) & (frame["label"] == name)]
            below = pick(rows, metric="fraction below", scale=scale)
            assert line["x"].tolist() == ["0", *below["threshold"].map("{:g}".format)]
            assert line["y"].tolist() == [pick(rows, metric="exact zeros")["value"].item(), *below["value"]]


def test_the_papers_points_stand_beside_s_raven_alone_and_say_that_their_scale_is_unknown(folders):
    drawn = analyze("sparsity_curves", folders)
    quotes = drawn.frame()[drawn.frame()["label"].str.startswith("2511.20194")]
    assert set(quotes["panel"]) == {drawn.panels[1].title} and "SRaven" in drawn.panels[1].title
    assert list(zip(quotes["x"], quotes["y"], strict=True)) == [(f"{q.xi:g}", q.sparsity) for q in reported.SPARSITY_BY_XI]
    assert "scale of the scores that its threshold acts on is not known" in drawn.caption
    for other in (analyze("sparsity_curves", folders, paper=False), analyze("sparsity_curves", folders, scale="site std")):
        assert "2511.20194" not in other.caption and not other.frame()["label"].str.contains("2511.20194").any()


@pytest.mark.parametrize("name", ["sparsity_curves", "sparsity_vs_generalization"])
def test_a_wrong_scale_or_split_names_what_is_allowed(folders, name):
    with pytest.raises(ConfigError, match="did you mean 'row maximum'"):
        analyze(name, folders, scale="row max")
    with pytest.raises(ConfigError, match="allowed: ood, test"):
        analyze(name, folders, split="train")
    assert "fewer than 5 seeds" in analyze(name, folders).caption


@pytest.mark.parametrize("scale", ["absolute", "row maximum"])
def test_lines_start_at_the_model_as_it_is_and_bands_hold_every_draw(folders, scale):
    drawn = analyze("sparsity_vs_generalization", folders, scale=scale)
    assert len(drawn.panels) == 3, "none of these models has zeros of its own"
    for folder, panel in zip(folders, drawn.panels, strict=True):
        rows = pick(tables.read(folder, "activation_sparsity"), metric="score", split="ood")
        frame = drawn.frame()[drawn.frame()["panel"] == panel.title]
        who = "HYLA" if folder.name == "hyla" else "softmax"
        kinds = {0: "", 1: ", rows renormalised"} if "softmax" in folder.name else {0: ""}
        lines = {f"{who}{told}" for told in kinds.values()}
        assert set(frame[frame["mark"] == "Line"]["label"]) == lines
        whole = pick(rows, threshold=None, control="")["value"].item()
        for kind, told in kinds.items():
            own = pick(rows, scale=scale, renormalised=kind, control="")
            line = frame[frame["label"] == f"{who}{told}"]
            assert line["y"].tolist() == [whole, *own["value"]] and line["x"].tolist() == [0, *own["imposed"]]
            values = pick(rows, scale=scale, renormalised=kind, control="random pruning").groupby("threshold")["value"]
            band = frame[frame["label"] == f"random weights pruned{told}"]
            assert band["lo"].tolist() == [whole, *values.min()] and band["hi"].tolist() == [whole, *values.max()]
        point = frame[frame["mark"] == "Points"]
        assert point["x"].tolist() == [0] and point["y"].tolist() == [whole] and point["hover"].tolist() == [folder.name]
        untrained = pick(rows, control="untrained")["value"].item()
        shown = frame[frame["label"] == "untrained control"]["y"].tolist()
        assert shown == ([untrained] if untrained >= panel.y_range[0] else [])


def test_axes_hold_everything_down_to_a_score_that_says_nothing_and_are_alike_within_a_setting(folders):
    drawn = analyze("sparsity_vs_generalization", folders)
    for panel in drawn.panels:
        frame = drawn.frame()[drawn.frame()["panel"] == panel.title]
        values = frame[["y", "lo", "hi"]].melt()["value"]
        lo, hi = panel.y_range
        assert hi > values.max() and lo < max(values.min(), -0.5) and lo > min(-0.5, values.max() - 1) - 0.1
    assert drawn.panels[1].y_range == drawn.panels[2].y_range != drawn.panels[0].y_range


def test_zeros_that_were_trained_in_get_a_panel_for_all_architectures(folders, tmp_path):
    copies = [tmp_path / folder.name for folder in folders[1:]]
    for folder, copy in zip(folders[1:], copies, strict=True):
        shutil.copytree(folder, copy)
    path = tables.path_of(copies[0], "activation_sparsity")
    table = pd.read_csv(path)
    table.loc[(table["metric"] == "exact zeros") & table["control"].isna(), "value"] = 0.4
    put_back(path, table)
    drawn = analyze("sparsity_vs_generalization", copies)
    first = drawn.frame()[drawn.frame()["panel"] == drawn.panels[0].title]
    assert len(drawn.panels) == 3 and drawn.panels[0].title.endswith(": as trained")
    assert first.set_index("label")["x"].to_dict() == {"HYLA": 0.4, "softmax": 0}
    where = {"metric": "score", "split": "ood", "control": "", "composition": "all"}
    scores = [pick(tables.read(copy, "generalization"), **where)["value"].item() for copy in copies]
    assert first["y"].tolist() == scores and "scored on more episodes" in drawn.caption
    assert "As trained" not in analyze("sparsity_vs_generalization", folders).caption


def test_seeds_are_points_around_their_mean(folders, tmp_path):
    seeds = [tmp_path / "a", tmp_path / "b"]
    for i, copy in enumerate(seeds):
        shutil.copytree(folders[0], copy)
        path = copy / "config.json"
        path.write_text(path.read_text().replace('"init_seed": 0', f'"init_seed": {i}'))
        digests.take(copy)
    path = tables.path_of(seeds[1], "activation_sparsity")
    table = pd.read_csv(path)
    table.loc[table["metric"] == "fraction below", "value"] /= 2
    put_back(path, table)
    frame = analyze("sparsity_curves", seeds).frame()
    line, points = frame[frame["label"] == "softmax"], frame[frame["mark"] == "Points"]
    assert points.groupby("x", sort=False)["y"].mean().tolist() == pytest.approx(line["y"].tolist())
    assert set(points["hover"]) == {"a", "b"} and len(points) == 2 * len(line)


def test_scales_are_frozen_and_equal_by_value():
    assert Absolute() == Absolute() != RowMaximum() and len({SiteStd(1.0), SiteStd(1.0), SiteStd(2.0)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        SiteStd(1.0).std = 2.0


@pytest.mark.parametrize("compositions", [2, 5, 15])
def test_intervals_of_means_hold_the_truth_as_often_as_they_say(probe, compositions):
    """Of shares that differ between compositions; percentiles of a bootstrap held it in half of the cases of two."""
    rng, mean = np.random.default_rng(0), import_module(probe.__module__)._mean
    held = []
    for _ in range(1000):
        count = rng.multinomial(192, np.full(compositions, 1 / compositions))
        truth = rng.beta(4, 8, size=compositions)
        sums = np.array([rng.beta(20 * t, 20 * (1 - t), size=n).sum() for t, n in zip(truth, count, strict=True)])
        _, (lo, hi) = mean(sums, count.astype(float), 1.0)
        assert 0 <= lo <= hi <= 1
        held.append(lo <= 1 / 3 <= hi)
    assert 0.92 < np.mean(held) < 0.975
