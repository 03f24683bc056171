"""Sparse-coding attention and coefficient transfer: the identities they are defined by."""

import math
import signal
from dataclasses import dataclass

import pytest
import torch

from compolens import HYLA, LinearAttention, Run, SoftmaxTransformer, SRaven, train
from compolens.activations.streams import intervene
from compolens.foundation.configs import ConfigError, DoesNotApply, construct, describe
from compolens.models import (
    ARCHITECTURES,
    PARTS,
    Architecture,
    CalibratedThreshold,
    FixedThreshold,
    LearnedThreshold,
    OutputTransfer,
    RelativeTransfer,
    SparseCoding,
    count_parameters,
)
from compolens.models.sparse_coding import calibrate, soft_threshold
from compolens.training import Interrupted

BLOCKS = ((0, 1, 2), (3, 4, 5), (6, 7, 8))
SIZES = {"n_layers": 2, "d_model": 16, "n_heads": 2}
SHAPE = {"d_in": 5, "d_out": 3, "seq": 9, "answers": (8,), "blocks": BLOCKS}
TRANSFERS = pytest.mark.parametrize("transfer", [OutputTransfer, RelativeTransfer])


def randomised(model, seed=0):
    """Every parameter random, so that each of them matters; thresholds stay."""
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if not name.endswith("raw"):
            parameter.data = 0.5 * torch.randn(parameter.shape, generator=rng)
    return model.double().eval()


def tokens(seed=0, batch=4, zero=()):
    x = torch.randn(batch, 9, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[:, list(zero)] = 0
    return x


def scores_and_code(model, x, layer=0):
    names = [f"blocks.{layer}.attn.hook_{name}" for name in ("attn_scores", "pattern")]
    _, cache = model.run_with_cache(x, names_filter=names)
    return cache[names[0]], cache[names[1]]


# ---- the soft threshold ----------------------------------------------------------------------------------------------
def test_soft_threshold_is_the_proximal_map_of_the_absolute_value():
    scores, xi = torch.randn(1000, dtype=torch.float64), 0.3
    grid = torch.linspace(-5, 5, 20001, dtype=torch.float64)
    objective = 0.5 * (grid - scores[:, None]).square() + xi * grid.abs()
    torch.testing.assert_close(soft_threshold(scores, xi), grid[objective.argmin(1)], rtol=0, atol=3e-4)
    assert torch.equal(soft_threshold(scores.float(), xi), torch.nn.functional.softshrink(scores.float(), xi))


def test_derivatives_are_0_or_1_in_the_score_and_0_or_minus_its_sign_in_the_threshold():
    scores = torch.tensor([-2.0, -0.5, -0.2, 0.0, 0.2, 0.5, 2.0], requires_grad=True)
    xi = torch.full((7,), 0.5, requires_grad=True)
    soft_threshold(scores, xi).sum().backward()
    assert scores.grad.tolist() == [1, 0, 0, 0, 0, 0, 1]  # a score at the threshold counts as silent
    assert xi.grad.tolist() == [1, 0, 0, 0, 0, 0, -1]


def test_its_gradients_are_those_of_autograd_on_the_formula_of_first_and_second_order():
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 2, 4, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    xi = torch.tensor([[[0.3]], [[0.8]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(soft_threshold, (scores, xi))
    assert torch.autograd.gradgradcheck(soft_threshold, (scores, xi))
    swept = torch.func.vmap(soft_threshold, in_dims=(None, 0))(scores, torch.stack([xi, 2 * xi]))
    assert torch.equal(swept[1], soft_threshold(scores, 2 * xi))


@pytest.mark.parametrize("xi", [0.0, 0.1, 0.7, 3.0])
def test_sparsity_is_the_fraction_of_scores_within_the_threshold_exactly(xi):
    model = randomised(SparseCoding(**SIZES, threshold=FixedThreshold(xi)).build(**SHAPE))
    for layer in (0, 1):
        scores, code = scores_and_code(model, tokens(), layer)
        assert int((code == 0).sum()) == int((scores.abs() <= model.blocks[layer].attn.threshold.xi[0]).sum())
        assert torch.equal(code[code != 0].sign(), scores[code != 0].sign())


def test_a_threshold_of_zero_is_linear_attention():
    linear = randomised(LinearAttention(**SIZES, rms_norm=True).build(**SHAPE))
    sparse = SparseCoding(**SIZES, threshold=FixedThreshold(0.0)).build(**SHAPE).double().eval()
    sparse.load_state_dict(linear.state_dict(), strict=False)
    torch.testing.assert_close(sparse(tokens()), linear(tokens()), rtol=1e-12, atol=1e-12)


def test_a_learned_threshold_starts_where_it_is_told_and_has_the_gradient_of_its_formula():
    attention = SparseCoding(**SIZES, threshold=LearnedThreshold(0.2)).build(**SHAPE).blocks[0].attn
    torch.testing.assert_close(attention.threshold.value(), torch.full((2,), 0.2))
    scores = torch.randn(3, 2, 4, 5)
    attention.threshold(scores).sum().backward()
    silent = torch.where(scores.abs() > 0.2, -scores.sign(), torch.zeros(())).sum((0, 2, 3))
    torch.testing.assert_close(attention.threshold.raw.grad, silent * -math.expm1(-0.2))  # softplus' = 1 - exp(-xi)


@pytest.mark.parametrize("xi", [1e-20, 1e-3, 50.0, 800.0])  # the exponential of the last is no float
def test_a_learned_threshold_may_start_anywhere(xi):
    attention = SparseCoding(**SIZES, threshold=LearnedThreshold(xi)).build(**SHAPE).blocks[0].attn
    torch.testing.assert_close(attention.threshold.value(), torch.full((2,), xi), rtol=1e-5, atol=0)


@pytest.mark.parametrize("threshold", [FixedThreshold(0.3), LearnedThreshold(0.3), CalibratedThreshold(0.2)])
@pytest.mark.parametrize("sparsity", [0.25, 0.9])
@pytest.mark.parametrize("scale", [1.0, 1e4])  # of the scores
def test_calibration_reaches_the_target_up_to_one_score(threshold, sparsity, scale):
    model = randomised(SparseCoding(**SIZES, threshold=threshold).build(**SHAPE))
    for block in model.blocks:
        block.attn.W_Q.data.mul_(scale)
        block.attn.b_Q.data.mul_(scale)
    calibrate(model, tokens(), sparsity)
    for layer in (0, 1):
        zeros = (scores_and_code(model, tokens(), layer)[1] == 0).double().mean((0, 2, 3))
        # a learned threshold is a softplus, whose rounding may move one score more
        assert zeros.sub(sparsity).abs().max() <= 2.5 / (4 * 9 * 9)


def test_a_calibrated_threshold_follows_the_scores_in_training_and_rests_in_evaluation():
    model = randomised(SparseCoding(**SIZES, threshold=CalibratedThreshold(0.5, rate=0.5)).build(**SHAPE)).train()
    for step in range(40):
        model(tokens(step))
    xi = model.blocks[0].attn.threshold.xi.clone()
    zeros = (scores_and_code(model.eval(), tokens(99, batch=64))[1] == 0).double().mean()
    assert abs(float(zeros) - 0.5) < 0.1
    assert torch.equal(xi, model.blocks[0].attn.threshold.xi)


def test_warm_up_raises_the_threshold_in_training_and_never_in_evaluation():
    model = randomised(SparseCoding(**SIZES, threshold=FixedThreshold(1.0, warmup=4)).build(**SHAPE)).train()
    reached = []
    for _ in range(6):
        scores, code = scores_and_code(model, tokens())
        reached.append(float((scores.abs()[code != 0] - code.abs()[code != 0]).mean()))
    assert reached == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
    scores, code = scores_and_code(model.eval(), tokens())
    assert float((scores.abs()[code != 0] - code.abs()[code != 0]).mean()) == pytest.approx(1)
    assert float(model.blocks[0].attn.threshold.calls) == 6


# ---- the dictionaries ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("encoding", [False, True])
@pytest.mark.parametrize("decoding", [False, True])
def test_attention_is_the_printed_formula(encoding, decoding):
    architecture = SparseCoding(
        **SIZES, threshold=FixedThreshold(0.2), relu_encoding=encoding, relu_decoding=decoding, bias_free=True
    )
    attention = randomised(architecture.build(**SHAPE)).blocks[0].attn
    x = torch.randn(3, 9, 16, dtype=torch.float64)
    wanted = torch.zeros_like(x)
    for head in range(2):
        qk, vo = attention.W_Q[head] @ attention.W_K[head].T, attention.W_V[head] @ attention.W_O[head]
        phi, psi = qk @ x.transpose(1, 2), x @ vo
        phi, psi = (phi.relu() if encoding else phi), (psi.relu() if decoding else psi)
        scores = x @ phi / math.sqrt(8)
        wanted += torch.where(scores.abs() > 0.2, scores - 0.2 * scores.sign(), torch.zeros_like(scores)) @ psi
    torch.testing.assert_close(attention(x), wanted, rtol=0, atol=1e-6)  # the threshold is held in single precision
    attention.use_attn_result = True
    torch.testing.assert_close(attention(x), wanted, rtol=0, atol=1e-6)


def test_every_hook_of_rectified_dictionaries_is_live():
    model = randomised(SparseCoding(**SIZES, relu_encoding=True, relu_decoding=True).build(**SHAPE))
    before, episodes = model(tokens()), type("Shown", (), {"tokens": tokens()})
    for name in ("phi", "psi", "k", "v", "attn_scores", "pattern", "code", "z"):
        after = intervene(model, episodes, {f"blocks.1.attn.hook_{name}": torch.zeros_like})
        assert not torch.equal(after, before), name


def test_rectified_atoms_are_written_with_the_sign_of_their_coefficient():
    model = randomised(SparseCoding(**SIZES, relu_decoding=True).build(**SHAPE))
    _, cache = model.run_with_cache(tokens())
    assert float(cache["blocks.0.attn.hook_psi"].min()) == 0
    code, psi = cache["blocks.0.attn.hook_pattern"], cache["blocks.0.attn.hook_psi"]
    torch.testing.assert_close(cache["blocks.0.attn.hook_z"], torch.einsum("bhqk,bkhm->bqhm", code, psi))


# ---- an unseen target ------------------------------------------------------------------------------------------------
def test_a_zero_target_row_gives_exactly_nothing_without_transfer_and_a_uniform_softmax():
    plain = {**SIZES, "bias_free": True, "rms_norm": True}
    hidden = tokens(zero=(8,))
    sparse = randomised(SparseCoding(**plain).build(**SHAPE))
    assert torch.count_nonzero(sparse(hidden)[:, 8]) == 0
    assert torch.count_nonzero(sparse(hidden)[:, 7]) > 0
    softmax = randomised(SoftmaxTransformer(**plain).build(**SHAPE))
    _, pattern = scores_and_code(softmax, hidden)
    assert torch.equal(pattern[:, :, 8], torch.full_like(pattern[:, :, 8], 1 / 9))
    for transfer in (OutputTransfer(), RelativeTransfer()):
        moved = randomised(SparseCoding(**plain, transfer=transfer).build(**SHAPE))
        assert torch.count_nonzero(moved(hidden)[:, 8]) > 0


def test_without_biases_none_is_trained_or_saved():
    model = SparseCoding(**SIZES, bias_free=True).build(**SHAPE)
    names = [name.split(".")[-1] for name in model.state_dict()]
    assert not [name for name in names if name == "b" or name.startswith("b_")]
    full = SparseCoding(**SIZES).build(**SHAPE)
    biases = 16 + 2 * (3 * 16 + 16 + 64 + 16) + 3  # embedding; q, k, v, output, MLP by layer; unembedding
    assert count_parameters(full) - count_parameters(model) == biases


# ---- transfer --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("architecture", [SparseCoding, SoftmaxTransformer, LinearAttention])
def test_output_transfer_adds_the_context_blocks_outputs_row_by_row(architecture):
    attention = randomised(architecture(**SIZES, transfer=OutputTransfer(), bias_free=True).build(**SHAPE)).blocks[0].attn
    x = torch.randn(3, 9, 16, dtype=torch.float64)
    after, lam = attention(x), attention.transfer.lam.detach()
    attention.transfer = None
    z = attention(x)
    wanted = z.clone()
    wanted[:, 6:] += lam[0] * z[:, :3] + lam[1] * z[:, 3:6]
    assert float((after - wanted).detach().abs().max()) < 1e-12


def test_relative_transfer_moves_columns_with_their_block():
    model = randomised(SparseCoding(**SIZES, transfer=RelativeTransfer()).build(**SHAPE))
    lam = model.blocks[0].attn.transfer.lam
    _, cache = model.run_with_cache(tokens())
    before, after = (cache[f"blocks.0.attn.hook_{name}"] for name in ("coefficients", "pattern"))
    wanted = before.clone()
    for row in range(3):
        for column in range(3):
            for block in range(2):
                wanted[:, :, 6 + row, 6 + column] += lam[block] * before[:, :, 3 * block + row, 3 * block + column]
    torch.testing.assert_close(after, wanted, rtol=0, atol=1e-14)
    assert torch.equal(after[:, :, :6], before[:, :, :6])


@TRANSFERS
def test_no_transfer_is_lambda_zero_and_lambda_counts_one_number_per_context_block_and_layer(transfer):
    bare = randomised(SparseCoding(**SIZES).build(**SHAPE))
    model = SparseCoding(**SIZES, transfer=transfer(init=0.0)).build(**SHAPE).double().eval()
    model.load_state_dict(bare.state_dict(), strict=False)
    assert torch.equal(model(tokens()), bare(tokens()))
    assert count_parameters(model) - count_parameters(bare) == 2 * (3 - 1)
    loss = model(tokens())[:, 8].square().sum()
    loss.backward()
    assert float(model.blocks[0].attn.transfer.lam.grad.abs().min()) > 0  # lambda = 0 is no dead end


@TRANSFERS
def test_answers_alone_are_the_same_with_transfer(transfer):
    model = randomised(SparseCoding(**SIZES, transfer=transfer()).build(**SHAPE))
    torch.testing.assert_close(model.answer(tokens())[:, 8], model(tokens())[:, 8], rtol=0, atol=1e-12)


@TRANSFERS
def test_transfer_never_reaches_past_a_causal_mask(transfer):
    model = randomised(HYLA(**SIZES, causal=True, transfer=transfer(init=1.0)).build(**SHAPE))
    x, changed = tokens(), tokens()
    changed[:, 7:] += 1
    torch.testing.assert_close(model(changed)[:, :7], model(x)[:, :7], rtol=0, atol=1e-12)


@TRANSFERS
def test_blocks_need_not_lie_side_by_side(transfer):
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    place = order.argsort()
    model = randomised(SparseCoding(**SIZES, transfer=transfer()).build(**SHAPE))
    scattered = {**SHAPE, "blocks": [[int(place[p]) for p in block] for block in BLOCKS]}
    other = SparseCoding(**SIZES, transfer=transfer()).build(**scattered).double().eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(tokens()[:, order]), model(tokens())[:, order], rtol=0, atol=1e-12)


def test_sraven_gives_its_rows_as_blocks():
    task = SRaven(n_features=2)
    assert task.blocks == (tuple(range(6)), tuple(range(6, 12)), tuple(range(12, 18)))
    model = Run(SparseCoding(**SIZES, transfer=OutputTransfer()), task).build()
    assert model.blocks[0].attn.transfer.target.tolist() == list(range(12, 18))


# ---- descriptions, training, bad input -------------------------------------------------------------------------------
def test_parts_describe_and_reconstruct_what_they_are_part_of():
    one = SparseCoding(threshold=CalibratedThreshold(0.9), transfer=RelativeTransfer(0.5))
    assert construct(describe(one), [*ARCHITECTURES.values(), *PARTS.values()]) == one
    thresholds = {"FixedThreshold", "LearnedThreshold", "CalibratedThreshold"}
    assert set(PARTS) >= thresholds | {"OutputTransfer", "RelativeTransfer"}


@pytest.mark.parametrize("threshold", [FixedThreshold(0.05, warmup=4), LearnedThreshold(0.05), CalibratedThreshold(0.5)])
def test_training_reports_dead_heads_and_resumes_bit_for_bit(threshold, tmp_path, monkeypatch):
    architecture = SparseCoding(**SIZES, threshold=threshold, transfer=OutputTransfer())
    run = Run(architecture, SRaven(n_features=2), steps=6, batch_size=4, evaluations=3, evaluation_episodes=16)
    train(run, tmp_path / "whole")
    statistics = type(architecture).statistics
    calls = []

    def stop(self, model, tokens):
        calls.append(signal.raise_signal(signal.SIGTERM) if len(calls) == 0 else None)
        return statistics(self, model, tokens)

    monkeypatch.setattr(SparseCoding, "statistics", stop)
    with pytest.raises(Interrupted, match="stopped at step 2"):
        train(run, tmp_path / "parts")
    train(run, tmp_path / "parts")
    for name in ("weights.safetensors", "history.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "whole" / "history.csv").read_text().splitlines()[0] == "step,loss,train,test,ood,dead heads,zeros"


def test_a_dead_head_is_counted():
    architecture = SparseCoding(**SIZES, threshold=FixedThreshold(1e-9))
    model = randomised(architecture.build(**SHAPE))
    assert architecture.statistics(model, tokens())["dead heads"] == 0
    model.blocks[1].attn.threshold.xi[0] = 1e9
    found = architecture.statistics(model, tokens())
    assert found == {"dead heads": 1, "zeros": pytest.approx(0.25)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedThreshold(-0.1), "xi must be a number of at least 0"),
        (lambda: FixedThreshold(math.nan), "xi must be a finite number, got nan"),
        (lambda: FixedThreshold(0.1, warmup=-1), "warmup must be a number of at least 0"),
        (lambda: LearnedThreshold(0.0), "use FixedThreshold"),
        (lambda: CalibratedThreshold(1.0), "sparsity must lie between 0 and 1"),
        (lambda: CalibratedThreshold(0.0), "sparsity must lie between 0 and 1"),
        (
            lambda: SparseCoding(threshold=0.1),
            r"threshold must be one of CalibratedThreshold\(\), FixedThreshold\(\), LearnedThreshold\(\), got 0.1",
        ),
        (
            lambda: SoftmaxTransformer(transfer="output"),
            r"transfer must be one of OutputTransfer\(\), RelativeTransfer\(\) or None, got",
        ),
    ],
)
def test_bad_settings_say_what_is_allowed(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_blocks_of_unequal_length_and_tasks_without_blocks_are_refused():
    architecture = SoftmaxTransformer(**SIZES, transfer=OutputTransfer())
    with pytest.raises(ConfigError, match=r"blocks have \[3, 2\] tokens; give blocks of equal length"):
        architecture.build(d_in=5, d_out=3, seq=5, blocks=[[0, 1, 2], [3, 4]])
    with pytest.raises(DoesNotApply, match="needs a task whose tokens form blocks"):
        architecture.build(d_in=5, d_out=3, seq=5)


def test_calibrating_something_else_is_refused():
    with pytest.raises(ConfigError, match="only thresholded attention can be calibrated, not SoftmaxAttention"):
        calibrate(SoftmaxTransformer(**SIZES).build(**SHAPE), tokens().float(), 0.5)
    with pytest.raises(ConfigError, match=r"target sparsity must lie between 0 and 1.*got 1\.5"):
        calibrate(SparseCoding(**SIZES).build(**SHAPE), tokens().float(), 1.5)


@dataclass(frozen=True)
class ByItsEarlierName(SparseCoding):
    """As an architecture of somebody's own was written before the method had its name of today."""

    statistics = Architecture.statistics

    def diagnose(self, model, tokens):
        return {"tokens": float(tokens.shape[1])}


def test_statistics_are_read_from_the_methods_earlier_name():
    architecture = ByItsEarlierName(**SIZES)
    with pytest.warns(FutureWarning, match=r"Architecture.diagnose is now Architecture.statistics"):
        assert architecture.statistics(architecture.build(**SHAPE), tokens()) == {"tokens": tokens().shape[1]}
