"""Softmax attention as one gradient step of a dual model, after 2310.13220 (the identities; the code is our own).

A query q and keys k_j enter as q~ = q / d_head^(1/4) and k~_j, so that kappa(q, k) = exp(q.k / sqrt(d_head)) is the inner
product of features phi(q~), phi(k~). The dual model f_W(z) = W phi(z) starts at W_0 = (1/D) sum_t v_t phi(k_t)^T, over the
query's own tokens t, and learns from demonstrations i, with inputs k_i and targets v_i, by the representation loss

    L(W) = -(1 / (eta D)) sum_i v_i^T W phi(k_i),    D = sum of kappa(q, k_j) over all tokens j that the query sees.

One step of rate eta on all demonstrations predicts, at q, what attention returns. L is linear in W, so that its gradient is
constant and it has no minimum: single-demonstration steps add up in any order, and further passes overshoot.

phi has infinitely many dimensions. Predictions need only kappa (the Gram form, exact), which is what models are measured by;
`finite_features` has the same inner products on given tokens and is there to check the claim by automatic differentiation.

q, k are (..., pos, head, d_head), v (..., pos, head, d_value). `mask` (query, key) is True where a query sees a key. `bias`,
broadcasting to (..., head, query, key), is added to scores: each term of L and of W_0 then has a weight e^bias, by query and
key. `demonstrations`, bool (key,) or (query, key), says which keys a query learns from; by default all it sees but its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_KERNEL = 1e6
"""Largest kernel value for which finite features are handed out: their error is about machine epsilon times that."""


# ---- the Gram form ---------------------------------------------------------------------------------------------------
class DualPrediction(NamedTuple):
    """What the dual models predict at their queries.

    Args:
        initial: (..., query, head, d_value), W_0 phi(q).
        step: (..., query, head, d_value), what one gradient step adds to it.
        log_normaliser: (..., query, head), log D.
    """

    initial: Tensor
    step: Tensor
    log_normaliser: Tensor

    @property
    def prediction(self) -> Tensor:
        """(..., query, head, d_value) after one step of rate eta on all demonstrations: attention's output."""
        return self.initial + self.step


@torch.no_grad()
def shifted_kernel(q: Tensor, k: Tensor, bias: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """kappa over its row's maximum, 0 where masked, and the log of that maximum.

    The shift keeps the exponential in range and cancels in D.

    Args:
        q: (..., query, head, d_head).
        k: (..., key, head, d_head).
        bias: (..., head, query, key), added to the scores (None: none).
        mask: (query, key) bool, True where a key is seen (None: everywhere).

    Returns:
        (..., head, query, key), and (..., head, query, 1).

    Raises:
        ValueError: a query sees no key.
    """
    if mask is not None and not bool(mask.any(-1).all()):
        blind = int((~mask.any(-1)).nonzero()[0, 0])
        raise ValueError(f"query {blind} sees no key, so that D = 0; give a mask (query, key) with a True in every row")
    scores = (q / math.sqrt(q.shape[-1])).transpose(-3, -2) @ k.movedim(-3, -1)
    if bias is not None:
        scores += bias
    if mask is not None:
        scores.masked_fill_(~mask, -math.inf)
    top = scores.amax(-1, keepdim=True)
    return scores.sub_(top).exp_(), top


def _demonstrations(given: Tensor | None, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """(query, key) or (key,) bool, checked."""
    if given is None:
        if n_queries != n_keys:
            raise ValueError(
                f"{n_queries} queries for {n_keys} keys: which key is a query's own is not known; give demonstrations (key,)"
            )
        return ~torch.eye(n_keys, dtype=torch.bool, device=device)
    if given.dtype != torch.bool or tuple(given.shape) not in ((n_keys,), (n_queries, n_keys)):
        raise ValueError(
            f"demonstrations must be bool, ({n_keys},) or ({n_queries}, {n_keys}), got {given.dtype} {tuple(given.shape)}"
        )
    return given


@torch.no_grad()
def dual_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    demonstrations: Tensor | None = None,
) -> DualPrediction:
    """One gradient step of every query's dual model, in the Gram form: exact up to rounding, without features.

    One (..., head, query, key) tensor is kept, and edited in place.

    Args:
        q: (..., query, head, d_head).
        k: (..., key, head, d_head).
        v: (..., key, head, d_value).
        bias: (..., head, query, key), added to the scores (None: none).
        mask: (query, key) bool, True where a key is seen (None: everywhere).
        demonstrations: (query, key) or (key,) bool, True where a key is learnt from (None: every key but the query's own).

    Returns:
        What the dual models predict.

    Raises:
        ValueError: a query sees no key, or demonstrations have another shape.
    """
    learnt = _demonstrations(demonstrations, q.shape[-3], k.shape[-3], k.device)
    kernel, top = shifted_kernel(q, k, bias, mask)
    values = with_constant_channel(v).transpose(-3, -2)
    total = kernel @ values
    step = kernel.masked_fill_(~learnt, 0) @ values
    normaliser = total[..., -1:]
    initial, step = ((part / normaliser)[..., :-1].transpose(-3, -2) for part in (total - step, step))
    return DualPrediction(initial, step, (normaliser.log() + top).squeeze(-1).transpose(-2, -1))


# ---- learning, step by step ------------------------------------------------------------------------------------------
@torch.no_grad()
def single_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Sequence[int],
    order: Sequence[int] | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    demonstrations: Tensor | None = None,
) -> Tensor:
    """Predictions after 0, 1, … single-demonstration steps of rate eta.

    After each demonstration once, the prediction is attention's output.

    Args:
        q: (..., query, head, d_head).
        k: (..., key, head, d_head).
        v: (..., key, head, d_value).
        queries: query positions that are looked at.
        order: key positions (None: every key once, ascending). A key that is not a query's demonstration changes nothing
            there; one that is listed twice is learnt twice.
        bias: as in `dual_step`.
        mask: as in `dual_step`.
        demonstrations: as in `dual_step`.

    Returns:
        (..., chosen query, head, 1 + steps, d_value).

    Raises:
        ValueError: the order lists no key position, or a query sees no key.
    """
    n_queries, n_keys = q.shape[-3], k.shape[-3]
    chosen = torch.as_tensor(list(queries), device=q.device)
    steps = torch.as_tensor(list(range(n_keys) if order is None else order), dtype=torch.long, device=q.device)
    if len(steps) and (int(steps.min()) < 0 or int(steps.max()) >= n_keys):
        raise ValueError(f"order must list key positions from 0 to {n_keys - 1}, got {steps.tolist()}")
    learnt = _demonstrations(demonstrations, n_queries, n_keys, k.device).expand(n_queries, n_keys)[chosen]
    if bias is not None:
        bias = bias.expand(*bias.shape[:-2], n_queries, n_keys)[..., chosen, :]
    kernel, _ = shifted_kernel(q[..., chosen, :, :], k, bias, None if mask is None else mask[chosen])
    weight, values = kernel / kernel.sum(-1, keepdim=True), v.transpose(-3, -2)
    initial = weight.masked_fill(learnt, 0) @ values
    added = weight.masked_fill(~learnt, 0)[..., steps, None] * values[..., None, steps, :]
    return torch.cat([initial.unsqueeze(-2), initial.unsqueeze(-2) + added.cumsum(-2)], -2).transpose(-4, -3)


def full_batch_steps(dual: DualPrediction, share: float, steps: int) -> Tensor:
    """Predictions after 0, 1, … steps on all demonstrations.

    The gradient is constant, so that after t of T steps with share 1/T a fraction 1 - t/T of the way is left; past T, the
    distance grows again.

    Args:
        dual: the prediction of one step of rate eta.
        share: rate of a step, in units of eta.
        steps: how many.

    Returns:
        (..., query, head, 1 + steps, d_value).
    """
    progress = share * torch.arange(steps + 1, dtype=dual.step.dtype, device=dual.step.device)
    return dual.initial.unsqueeze(-2) + progress[:, None] * dual.step.unsqueeze(-2)


def remaining(predictions: Tensor, output: Tensor) -> Tensor:
    """Euclidean distance of predictions from an output.

    Args:
        predictions: (..., 1 + steps, d_value).
        output: (..., d_value).

    Returns:
        (..., 1 + steps).
    """
    return (predictions - output.unsqueeze(-2)).norm(dim=-1)


# ---- with features: what the claim says literally --------------------------------------------------------------------
def finite_features(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Finitely many features with kappa as their inner products, for one head.

    They come from the eigendecomposition of the Gram matrix of all tokens, hence for small norms only.

    Args:
        q: (query, d_head).
        k: (key, d_head).

    Returns:
        phi(q~) (query, n) and phi(k~) (key, n), float64, n = query + key.

    Raises:
        ValueError: kappa exceeds 1e6.
    """
    tokens = torch.cat([q, k]).detach().double() / q.shape[-1] ** 0.25
    gram = (tokens @ tokens.T).exp()
    if not float(gram.max()) <= LARGEST_KERNEL:
        raise ValueError(
            f"kernel values reach {float(gram.max()):.2g}; finite features are exact up to {LARGEST_KERNEL:.0e} only: "
            "scale q and k down, or use dual_step, which needs no features"
        )
    size, vectors = torch.linalg.eigh(gram)
    features = vectors * size.clamp(min=0).sqrt()
    return features[: len(q)], features[len(q) :]


def with_constant_channel(values: Tensor) -> Tensor:
    """`values` (..., d_value) with a last channel of ones. Learnt with D = 1, its prediction is D, and one W serves all
    queries."""
    return torch.cat([values, values.new_ones(*values.shape[:-1], 1)], -1)


def divide_by_constant_channel(prediction: Tensor) -> Tensor:
    """The `prediction` (..., d_value + 1) of a model trained on `with_constant_channel`, over its last channel: (...,
    d_value)."""
    return prediction[..., :-1] / prediction[..., -1:]


def initial_weights(features: Tensor, values: Tensor, normaliser: Tensor | float) -> Tensor:
    """W_0 = (1/D) sum_t v_t phi(k_t)^T of a query's own tokens.

    Args:
        features: (token, n).
        values: (token, d_value).
        normaliser: D.

    Returns:
        (d_value, n).
    """
    return values.T @ features / normaliser


def representation_loss(weights: Tensor, features: Tensor, values: Tensor, normaliser: Tensor | float, eta: float) -> Tensor:
    """L(W), differentiable.

    Args:
        weights: W (d_value, n).
        features: (demonstration, n).
        values: (demonstration, d_value).
        normaliser: D.
        eta: rate of the step.

    Returns:
        A scalar.
    """
    return -(values * (features @ weights.T)).sum() / (eta * normaliser)


def gradient_step(weights: Tensor, features: Tensor, values: Tensor, normaliser: Tensor | float, eta: float) -> Tensor:
    """W - eta dL/dW, the gradient by automatic differentiation of `representation_loss`.

    Args:
        weights: W (d_value, n).
        features: (demonstration, n).
        values: (demonstration, d_value).
        normaliser: D.
        eta: rate of the step.

    Returns:
        (d_value, n).
    """
    with torch.enable_grad():
        learnt = weights.detach().clone().requires_grad_()
        loss = representation_loss(learnt, features.detach(), values.detach(), normaliser, eta)
        (gradient,) = torch.autograd.grad(loss, learnt)
    return weights.detach() - eta * gradient


# ---- how well the representation loss generalises --------------------------------------------------------------------
def rademacher_bound(keys: Tensor, weight_norm: float, value_norm: float) -> Tensor:
    """The bound w rho sqrt(Tr K) / N on the empirical Rademacher complexity of the losses -v^T W phi(k).

    K is the Gram matrix of the N keys. The best W for signs s has the loss w ||sum_i s_i v_i phi(k_i)^T||_F / N, whose mean
    Jensen's inequality bounds.

    Args:
        keys: (..., N, d_head).
        weight_norm: w, what ||W||_F is at most.
        value_norm: rho, what ||v|| is at most.

    Returns:
        (...,).
    """
    squares = (keys.square().sum(-1) / math.sqrt(keys.shape[-1])).exp()
    return weight_norm * value_norm * squares.sum(-1).sqrt() / keys.shape[-2]


def expected_loss_bound(
    loss: Tensor, keys: Tensor, weight_norm: float, value_norm: float, kernel_max: float, delta: float
) -> Tensor:
    """What the expected loss E[-v^T W phi(k)] is below with probability 1 - delta, for every W in the ball at once:

    L_hat + 2 w rho sqrt(Tr K) / N + 6 w rho sqrt(kernel_max log(2 / delta) / (2 N)), for N independent demonstrations with
    mean loss `loss` and kappa(k, k) <= kernel_max. Losses lie in an interval of length 2 w rho sqrt(kernel_max), which is what
    McDiarmid's inequality, used for L_hat and for the complexity, is scaled by. Own derivation, not a formula of 2310.13220.

    Args:
        loss: (...,) L_hat, the mean loss.
        keys: (..., N, d_head).
        weight_norm: w, what ||W||_F is at most.
        value_norm: rho, what ||v|| is at most.
        kernel_max: what kappa(k, k) is at most.
        delta: between 0 and 1.

    Returns:
        (...,).

    Raises:
        ValueError: delta is out of range, or a key exceeds kernel_max.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    largest = float((keys.square().sum(-1) / math.sqrt(keys.shape[-1])).exp().max())
    if largest > kernel_max * (1 + 1e-6):
        raise ValueError(f"kernel_max={kernel_max:g} is exceeded by a key with kappa(k, k) = {largest:g}; give at least that")
    tail = 3 * math.sqrt(math.log(2 / delta) / (2 * keys.shape[-2])) * 2 * weight_norm * value_norm * math.sqrt(kernel_max)
    return loss + 2 * rademacher_bound(keys, weight_norm, value_norm) + tail
