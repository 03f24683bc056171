"""Sparse-coding attention: an encoding dictionary, a soft threshold, a decoding dictionary (2511.20194, sec. 3).

Multi-head attention is sum_h sigma(X phi_h) psi_h with an encoding dictionary phi_h = W_Q W_K^T X^T and a decoding one
psi_h = X W_V W_O, one atom per token. Softmax attention is the case sigma = softmax; here the coefficients are sparse:

    sigma(S) = sign(S) max(|S| - xi, 0)

signed, by element, with rows that sum to anything. The dictionaries are linear or rectified (phi = relu(W_Q W_K^T X^T),
psi = relu(X W_V W_O)). Ours, since the paper's text leaves them open: scores are divided by sqrt(d_head), norms before
attention are root-mean-square norms without normalisation of rows, and where the threshold comes from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError, require
from compolens.hooks import HookedModel, HookPoint
from compolens.models.attention import Attention
from compolens.models.base import Part
from compolens.models.transformer import Transformer, TransformerArchitecture

CALIBRATED_ON = 4
"""Episodes of a batch that a calibrated threshold looks at."""


class _SoftThreshold(torch.autograd.Function):
    """The gradient in closed form, from the coefficients alone: one fused kernel, nothing saved that is not kept anyway."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, xi: Tensor) -> Tensor:
        return torch.sub(scores, torch.clamp(scores, -xi, xi))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.shape = inputs[1].shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        (code,) = ctx.saved_tensors
        passed = torch.ops.aten.softshrink_backward(grad, code, 0.0)  # 0 where the coefficient is
        return passed, -(grad * code.sign()).sum_to_size(ctx.shape) if ctx.needs_input_grad[1] else None


def soft_threshold(scores: Tensor, xi: Tensor | float) -> Tensor:
    """sign(S) max(|S| - xi, 0): the proximal map of xi |.|.

    Derivative in S: 1 where |S| > xi, else 0 (equality included); in xi: -sign(S) there, else 0.

    Args:
        scores: S, of any shape.
        xi: the threshold, at least 0, broadcast against the scores.

    Returns:
        The scores' shape.
    """
    return _SoftThreshold.apply(scores, torch.as_tensor(xi, dtype=scores.dtype, device=scores.device))


class ThresholdedScores(nn.Module, ABC):
    """Scores (batch, head, query, key) -> coefficients of that shape; the threshold is one number per head, >= 0.

    In training mode the threshold rises from 0 in the first `warmup` calls, so that heads are not silent before they have
    learned anything; in evaluation mode it is what it will be.

    Args:
        warmup: calls in training mode over which the threshold rises.
    """

    calls: Tensor

    def __init__(self, warmup: int) -> None:
        super().__init__()
        self.warmup = warmup
        if warmup:
            self.register_buffer("calls", torch.zeros(()))

    @abstractmethod
    def value(self) -> Tensor:
        """(head,) the threshold of every head."""

    @abstractmethod
    def set(self, xi: Tensor) -> None:
        """Make `xi` (head,) the thresholds, in place."""

    def observe(self, scores: Tensor) -> None:
        """What a call in training mode may learn from `scores` (batch, head, query, key)."""

    def forward(self, scores: Tensor) -> Tensor:
        """The coefficients that `scores` (batch, head, query, key) become: the same shape."""
        if self.training:
            self.observe(scores.detach())
        xi = self.value()[:, None, None]
        if self.warmup and self.training:
            xi = xi * (self.calls / self.warmup).clamp(max=1)
            self.calls.add_(1)
        return soft_threshold(scores, xi)


class _Fixed(ThresholdedScores):
    xi: Tensor

    def __init__(self, n_heads: int, xi: float, warmup: int) -> None:
        super().__init__(warmup)
        self.register_buffer("xi", torch.full((n_heads,), float(xi)))

    def value(self) -> Tensor:
        return self.xi

    def set(self, xi: Tensor) -> None:
        self.xi.copy_(xi)


class _Learned(ThresholdedScores):
    def __init__(self, n_heads: int, init: float, warmup: int) -> None:
        super().__init__(warmup)
        self.raw = nn.Parameter(_before_softplus(torch.full((n_heads,), init, dtype=torch.float64)).float())

    def value(self) -> Tensor:
        return nn.functional.softplus(self.raw)

    def set(self, xi: Tensor) -> None:
        self.raw.data.copy_(_before_softplus(xi))


def _before_softplus(xi: Tensor) -> Tensor:
    """What softplus maps to xi: log(exp(xi) - 1), also where exp(xi) overflows."""
    return xi + torch.log(-torch.expm1(-xi))


class _Calibrated(_Fixed):
    def __init__(self, n_heads: int, sparsity: float, rate: float) -> None:
        super().__init__(n_heads, 0.0, 0)
        self.sparsity, self.rate = sparsity, rate

    def observe(self, scores: Tensor) -> None:
        self.xi.lerp_(threshold_for(scores[:CALIBRATED_ON], self.sparsity), self.rate)


def threshold_for(scores: Tensor, sparsity: float) -> Tensor:
    """The thresholds that silence a fraction of the scores that are not 0 anyway.

    Args:
        scores: (batch, head, query, key).
        sparsity: the fraction, between 0 and 1.

    Returns:
        (head,).
    """
    magnitude = scores.abs().transpose(0, 1).flatten(1)
    if magnitude.dtype != torch.float64:
        magnitude = magnitude.float()  # quantiles exist for no less
    magnitude = magnitude.masked_fill(magnitude == 0, math.nan)
    return magnitude.nanquantile(sparsity, dim=1, interpolation="lower").nan_to_num(0.0).to(scores.dtype)


@dataclass(frozen=True)
class Threshold(Part, ABC):
    """Where the threshold comes from."""

    @abstractmethod
    def build(self, n_heads: int) -> ThresholdedScores:
        """The thresholding module of one layer with `n_heads` heads."""

    def _check(self, name: str, value: float) -> None:
        require(
            value >= 0,
            f"{type(self).__name__}: {name} must be a number of at least 0, in units of the scores, got {value!r}",
        )


@dataclass(frozen=True)
class FixedThreshold(Threshold):
    """One threshold for all heads.

    Args:
        xi: the threshold, in units of the scores, at least 0.
        warmup: training steps over which it rises from 0.
    """

    xi: float = 0.01
    warmup: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("xi", self.xi)
        self._check("warmup", self.warmup)

    def build(self, n_heads: int) -> ThresholdedScores:
        return _Fixed(n_heads, self.xi, self.warmup)


@dataclass(frozen=True)
class LearnedThreshold(Threshold):
    """One threshold per head, softplus of a parameter, trained with the weights.

    Args:
        init: the threshold before training, above 0, in units of the scores.
        warmup: training steps over which it rises from 0.
    """

    init: float = 0.01
    warmup: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("init", self.init)
        self._check("warmup", self.warmup)
        require(self.init > 0, f"LearnedThreshold: init must be positive, got {self.init!r}; use FixedThreshold(0) for none")

    def build(self, n_heads: int) -> ThresholdedScores:
        return _Learned(n_heads, self.init, self.warmup)


@dataclass(frozen=True)
class CalibratedThreshold(Threshold):
    """Per head, the threshold that silences the fraction `sparsity` of the scores, followed along training.

    After every training batch it moves by the share `rate` towards the quantile of |S| in that batch; in evaluation mode it
    stays where training left it. It starts at 0, so no warm-up is needed. `calibrate` sets it on a batch of one's own.

    Args:
        sparsity: fraction of the scores that are silenced, between 0 and 1.
        rate: share of the way to a batch's quantile that a step moves, between 0 and 1.
    """

    sparsity: float = 0.5
    rate: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sparsity", "rate"):
            value = getattr(self, name)
            require(0 < value < 1, f"CalibratedThreshold: {name} must lie between 0 and 1, both excluded, got {value!r}")

    def build(self, n_heads: int) -> ThresholdedScores:
        return _Calibrated(n_heads, self.sparsity, self.rate)


class SparseCodingAttention(Attention):
    """Soft-thresholded scores multiply the values; masked scores are 0.

    Rectified dictionaries: ``hook_phi`` (batch, key, head, d_model) holds the encoding atoms, relu(W_Q k); queries are the
    normalised stream itself, and ``hook_q`` holds nothing. ``hook_psi``, of the same shape, holds the decoding atoms,
    relu(v W_O); then ``hook_z`` (batch, query, head, d_model) is what each head writes.

    Args:
        args: the arguments of `Attention`.
        threshold: where xi comes from.
        relu_encoding: rectify the encoding dictionary.
        relu_decoding: rectify the decoding dictionary.
    """

    masked_score = 0.0
    rowwise = True
    hook_phi: HookPoint
    hook_psi: HookPoint

    def __init__(self, *args: Any, threshold: Threshold, relu_encoding: bool, relu_decoding: bool) -> None:
        super().__init__(*args)
        self.threshold = threshold.build(self.W_Q.shape[0])
        self.relu_encoding, self.relu_decoding = relu_encoding, relu_decoding
        if relu_encoding:
            del self.b_Q, self.hook_q
            self.hook_phi = HookPoint()
        if relu_decoding:
            self.hook_psi = HookPoint()

    def weights(self, scores: Tensor) -> Tensor:
        return self.threshold(scores)

    def scores(self, x: Tensor, asking: Tensor) -> Tensor:
        if not self.relu_encoding:
            return super().scores(x, asking)
        k = self.hook_k(self._project(x, "K"))
        phi = self.hook_phi(torch.relu(torch.einsum("bkhd,hmd->bkhm", k, self.W_Q)))
        asked = "bqm" if asking.ndim == 3 else "bqhm"
        return torch.einsum(f"{asked},bkhm->bhqk", asking / math.sqrt(k.shape[-1]), phi)

    def output(self, code: Tensor, v: Tensor) -> Tensor:
        if not self.relu_decoding:
            return super().output(code, v)
        psi = self.hook_psi(torch.relu(torch.einsum("bkhe,hem->bkhm", v, self.W_O)))
        written = self.hook_z(self.mix(code, psi))
        return (self.hook_result(written) if self.use_attn_result else written).sum(2) + self.b_O


def calibrate(model: Transformer, tokens: Tensor, sparsity: float) -> None:
    """Set every head's threshold so that it silences a fraction of the scores that are not 0 anyway (exact up to one score).

    Layers are set in order, each with the thresholds before it set. In place.

    Args:
        model: a transformer with thresholded attention.
        tokens: (batch, seq, d_in), what the scores are taken on.
        sparsity: the fraction, between 0 and 1, both excluded.

    Raises:
        ConfigError: the attention has no threshold, or no such fraction.
    """
    require(0 < sparsity < 1, f"the target sparsity must lie between 0 and 1, both excluded, got {sparsity!r}")
    sites: dict[str, ThresholdedScores] = {}
    for layer, block in enumerate(model.blocks):
        threshold = getattr(block.attn, "threshold", None)
        if not isinstance(threshold, ThresholdedScores):
            name = type(block.attn).__name__
            raise ConfigError(f"only thresholded attention can be calibrated, not {name}; use SparseCoding")
        sites[f"blocks.{layer}.attn.hook_attn_scores"] = threshold

    def move(scores: Tensor, hook: HookPoint) -> None:
        threshold, xi = sites[str(hook.name)], threshold_for(scores, sparsity)
        threshold.set(xi)

    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[(site, move) for site in sites])


@dataclass(frozen=True)
class SparseCoding(TransformerArchitecture):
    """Pre-norm (RMS) transformer whose attention coefficients are soft-thresholded scores.

    A head whose coefficients are all 0 gets no gradient through its scores: history.csv counts such "dead heads", and "zeros",
    the share of zero coefficients. Other fields as in `TransformerArchitecture`.

    >>> model = SparseCoding(n_layers=2, d_model=16, n_heads=2, threshold=FixedThreshold(0.1)).build(d_in=5, d_out=3)
    >>> model.run_with_cache(torch.ones(1, 7, 5))[1]["code", 0].shape
    torch.Size([1, 7, 7, 2])

    Args:
        rms_norm: root-mean-square norms instead of layer norms; ours, the paper leaves them open.
        threshold: where xi comes from: `FixedThreshold`, `LearnedThreshold` or `CalibratedThreshold`.
        relu_encoding: rectify the encoding dictionary.
        relu_decoding: rectify the decoding dictionary.
    """

    rms_norm: bool = True
    threshold: Threshold = field(default_factory=FixedThreshold)
    relu_encoding: bool = False
    relu_decoding: bool = False

    def attention(self) -> partial[SparseCodingAttention]:
        return partial(
            SparseCodingAttention,
            threshold=self.threshold,
            relu_encoding=self.relu_encoding,
            relu_decoding=self.relu_decoding,
        )

    def statistics(self, model: HookedModel, tokens: Tensor) -> dict[str, float]:
        attentions = [f"blocks.{layer}.attn" for layer in range(model.cfg.n_layers)]
        names = [f"{a}.hook_{'pattern' if self.transfer is None else 'coefficients'}" for a in attentions]
        _, cache = model.run_with_cache(tokens, names_filter=names)
        zero = torch.stack([cache[name] == 0 for name in names], dim=1)  # batch, layer, head, query, key
        return {"dead heads": float(zero.all(4).all(3).all(0).sum()), "zeros": float(zero.double().mean())}
