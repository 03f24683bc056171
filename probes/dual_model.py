"""Is what softmax attention writes one gradient step of its dual model, and how is it learnt, one demonstration at a time?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import Activations, draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel, LayerNorm
from compolens.measures import dual_layers
from compolens.measures import dual_model as dual
from compolens.measures import random_features as rf
from compolens.models.modified_attention import AugmentedAttention
from compolens.models.softmax import SoftmaxAttention
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 2  # raised whenever its numbers change
values_since = 1  # its values; version 2 changed intervals alone

FEATURES = (16, 64, 256, 1024, 4096)
ESTIMATED = 4
"""Episodes on which attention is estimated with random features."""
PARTS = ("q", "k", "v", "z")
Heads = tuple[dict[str, Any], list[Tensor], Tensor | None, Tensor | None]
"""Of a layer: where it is; q, k, v and output z (episode, pos, head, width); the bias of its scores, and its mask."""
UNDERFLOW = "not available: an estimated normaliser is 0, queries and keys are too long for these features"


def probe(
    trained: TrainedModel, *, episodes: int = 512, looked_at: int = 16, draws: int = 3, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Distance of every head's output from the prediction of its dual model, at every layer and position.

    The dual model of softmax attention learns from the tokens by one gradient step (2310.13220). In the Gram form the step is
    attention's own arithmetic: it holds for any weights, untrained ones too, so that it explains nothing by itself. What could
    fail are a step by automatic differentiation on explicit features, and the way there, one demonstration at a time. Random
    features are those of 2009.14794 and 2205.15317.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split for the Gram form, 1 or more.
        looked_at: episodes for all that needs steps, 1 or more and no more than `episodes`; few, since each takes one step per
            demonstration. Looked at is the last position from which an answer is read.
        draws: draws of random features, 1 or more, on 4 episodes.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode and layer (score and largest distance). Columns `layer`, `head` ("all": the mean),
        `role`. Values are means over episodes and heads; lo and hi, beside means alone, are the 5th and 95th percentile over
        episodes: a spread, no interval of the mean. A largest distance has neither: it lies at the edge of what was seen.

        - "max distance", "mean distance": norm of attention's output less the dual model's prediction in the Gram form, in
          units of the output; "relative distance": over the output's mean norm.
        - "layer distance": the same, relative, for whole layers (output projection, residual stream and MLP by its secant
          gate), chained from the first layer's input.
        - "share of the step": norm of what the gradient step adds to what the query's own token gives, over the output's norm.
        - "autograd distance": relative distance from a step of the representation loss by automatic differentiation on
          explicit finite features; "autograd coverage": share of queries whose kernel allows such features in float64.
        - "remaining distance": relative distance that is left after `dual_step` demonstrations. `kind` is "one by one", or
          "full batch" for all at once at a smaller rate.
        - "output error", "pattern error": relative errors of attention estimated with `features` random features of a `kind`
          ("independent", "orthogonal", "hyperbolic", "optimal").
        - "kernel exponent": mean |q + k|² in the units that decide those errors.
        - control "untrained": the untrained control. Control "shuffled": the demonstrations have the values of other tokens.

    Raises:
        DoesNotApply: attention's weights are no softmax of scores alone.
        ConfigError: episodes, looked_at or draws is below 1.
    """
    _check(trained)
    enough = episodes >= 1 and looked_at >= 1 and draws >= 1
    require(enough, f"need episodes, looked_at and draws >= 1, got {episodes}, {looked_at} and {draws}; try --looked-at 16")
    looked_at = min(looked_at, episodes)
    rows, kept = [], []
    for control, model in trained.with_untrained_control():
        for split in ("test", "ood"):
            batches = draw(trained.task, split, episodes, seed, trained.device)
            known = {"control": control, "split": split}
            found = _gram_form(trained.task, model, batches, known)
            rows += found[0]
            kept += [found[1]] if control == "" else []
        few = next(draw(trained.task, "test", looked_at, f"{seed}/steps", trained.device, batch=looked_at))
        layers = list(_heads(model, few, {"control": control, "split": "test"}))
        rows += _steps(model, layers)
        rows += _random_features(layers, draws)
    rows += tables.not_available(rows, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _check(trained: TrainedModel) -> None:
    """Only softmax has a dual model of this kind."""
    name = type(trained.run.architecture).__name__
    attention = _blocks(trained.model)[0].attn
    if (
        type(attention).weights is not SoftmaxAttention.weights
        or attention.transfer is not None
        or hasattr(attention, "hook_pre")
    ):
        raise DoesNotApply(
            f"{name} has no dual model: its weights are no softmax of scores alone. What applies instead: gd_equivalence and "
            "algorithm_steps on regression families, attention_code on categorical codes"
        )


def _blocks(model: HookedModel) -> Sequence[Any]:
    blocks: Any = model.blocks
    return blocks


# ---- the Gram form ---------------------------------------------------------------------------------------------------
def _gram_form(
    task: TaskFamily, model: HookedModel, batches: Iterable[Episodes], known: dict[str, Any]
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Rows per layer, head and position, and per episode its score and the largest distance of each layer."""
    n = len(_blocks(model))
    sites = [f"blocks.{i}.attn.hook_{part}" for i in range(n) for part in PARTS]
    sites += [f"blocks.{i}.hook_resid_{end}" for i in range(n) for end in ("pre", "post")]
    gaps, norms, shares, ends, scored = [], [], [], [], []
    for batch in record(model, batches, sites):
        seq, steps = batch.sites[sites[0]].shape[1], []
        for i, attn in enumerate(block.attn for block in _blocks(model)):
            q, k, v, z = (batch.sites[f"blocks.{i}.attn.hook_{part}"] for part in PARTS)
            steps.append((dual.dual_step(q, k, v, _bias(attn, seq), _mask(attn, seq)), z))
        gaps.append(torch.stack([(step.prediction - z).norm(dim=-1) for step, z in steps], 1))
        norms.append(torch.stack([z.norm(dim=-1) for _, z in steps], 1))
        shares.append(torch.stack([step.step.norm(dim=-1) for step, _ in steps], 1))
        ends.append(_chained(model, batch, seq))
        error, weight = task.errors(batch.prediction, batch.episodes.targets)
        names = [task.composition_name(i) for i in batch.episodes.composition.tolist()]
        scored.append(pd.DataFrame({"composition": names, "score": (1 - error / weight).cpu().numpy()}))
    gap, norm, share = (torch.cat(part) for part in (gaps, norms, shares))  # (episode, layer, query, head)
    rows = [*_position_rows(model, gap, norm, share, known), *_layer_rows(torch.cat(ends), known)]
    worst, told = gap.amax((2, 3)).cpu().numpy(), pd.concat(scored, ignore_index=True).assign(split=known["split"])
    episodes = [told.assign(layer=i, max_distance=worst[:, i]) for i in range(n)]
    return rows, pd.concat(episodes, ignore_index=True)


def _bias(attn: Any, seq: int) -> Tensor | None:
    return None if attn.bias is None else attn.bias(None, seq)


def _mask(attn: Any, seq: int) -> Tensor | None:
    return None if attn.mask is None else attn.mask[:seq, :seq]


def _position_rows(
    model: HookedModel, gap: Tensor, norm: Tensor, share: Tensor, known: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    roles = model.roles.items()
    for layer in range(gap.shape[1]):
        for head in range(gap.shape[3]):
            site = {"site": f"blocks.{layer}.attn.hook_z", "layer": layer, "head": str(head)} | known
            for role, at in roles:
                far, size, step = (part[:, layer, at, head] for part in (gap, norm, share))
                yield _row("max distance", far.amax(1), site, role, whole=float(far.max()))
                yield _row("mean distance", far.mean(1), site, role)
                yield _row("relative distance", far.mean(1) / size.mean().clamp(min=1e-30), site, role)
                yield _row("share of the step", (step / (size + 1e-30)).mean(1), site, role)


def _norm(norm: Any) -> Any:
    """As the dual model has it; None for the identity of token-space models."""
    if not hasattr(norm, "eps"):
        return None
    kind = dual_layers.LayerNorm if isinstance(norm, LayerNorm) else dual_layers.RMSNorm
    return kind(norm.w, norm.b, norm.eps) if isinstance(norm, LayerNorm) else kind(norm.w, eps=norm.eps)


def _layer(block: Any, seq: int) -> dual_layers.Layer:
    """A block as the dual model sees it: weights, norms, bias, and the MLP if there is one."""
    attn, mlp = block.attn, None
    if block.mlp is not None:
        m = block.mlp
        mlp = dual_layers.MLP(_norm(block.ln2), m.W_in, m.b_in, m.W_out, m.b_out, _gelu)
    read = (attn.W_Q, attn.b_Q, attn.W_K, attn.b_K, attn.W_V, attn.b_V)
    return dual_layers.Layer(_norm(block.ln1), *read, attn.W_O, attn.b_O, mlp, _bias(attn, seq))


def _gelu(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


@torch.no_grad()
def _chained(model: HookedModel, batch: Activations, seq: int) -> Tensor:
    """(episode, layer): largest distance of the residual stream, relative to its size, from a chain of dual models that starts
    at the first layer's input; nan where the stream is no pre-norm one, or keys, queries or values pass through more maps."""
    layers = [_layer(block, seq) for block in _blocks(model)]
    if any(layer.norm is None for layer in layers) or any(isinstance(b.attn, AugmentedAttention) for b in _blocks(model)):
        return torch.full((len(batch.episodes.tokens), len(layers)), math.nan)
    steps = dual_layers.layer_steps(layers, batch.sites["blocks.0.hook_resid_pre"], _mask(_blocks(model)[0].attn, seq))
    truths = [batch.sites[f"blocks.{i}.hook_resid_post"] for i in range(len(layers))]
    pairs = zip(steps, truths, strict=True)
    return torch.stack([(s.prediction - t).norm(dim=-1).amax(1) / t.norm(dim=-1).mean() for s, t in pairs], 1)


def _layer_rows(ends: Tensor, known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for layer in range(ends.shape[1]):
        site = {"site": f"blocks.{layer}.hook_resid_post", "layer": layer, "head": "all"} | known
        if not ends.isnan().any():  # in token space a layer is its attention
            yield _row("layer distance", ends[:, layer], site, "all positions", whole=float(ends[:, layer].max()))


# ---- what could fail -------------------------------------------------------------------------------------------------
def _heads(model: HookedModel, episodes: Episodes, known: dict[str, Any]) -> Iterator[Heads]:
    """By layer: where it is; q, k, v and output z (episode, pos, head, width), float64; the scores' bias, and the mask."""
    (batch,) = record(model, [episodes], [f"blocks.{i}.attn.hook_{p}" for i in range(len(_blocks(model))) for p in PARTS])
    for i, attn in enumerate(block.attn for block in _blocks(model)):
        parts = [batch.sites[f"blocks.{i}.attn.hook_{part}"].double() for part in PARTS]
        seq = parts[0].shape[1]
        bias = _bias(attn, seq)
        bias = None if bias is None else bias.double().detach()
        yield {"site": f"blocks.{i}.attn.hook_z", "layer": i, "head": "all"} | known, parts, bias, _mask(attn, seq)


def _steps(model: HookedModel, layers: Iterable[Heads]) -> Iterator[dict[str, Any]]:
    """A step by autograd, and steps one demonstration at a time, at the last position from which an answer is read."""
    at = model.roles["readout"][-1]
    for site, (q, k, v, z), bias, mask in layers:
        yield from _autograd(q, k, v, z, at, bias, mask, site)
        for control, values in (("", v), ("shuffled", v.roll(1, 1))):
            who = site if control == "" else site | {"control": ", ".join(c for c in (site["control"], control) if c)}
            yield from _one_by_one(q, k, values, z[:, at], at, bias, mask, who)
        whole = dual.dual_step(q, k, v, bias, mask)
        whole = dual.DualPrediction(whole.initial[:, at], whole.step[:, at], whole.log_normaliser[:, at])
        steps = max(len(_order(at, q.shape[1], mask)), 1)
        yield from _remaining(dual.full_batch_steps(whole, 1 / steps, steps), z[:, at], "full batch", site)


def _one_by_one(
    q: Tensor, k: Tensor, v: Tensor, z: Tensor, at: int, bias: Tensor | None, mask: Tensor | None, site: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    predictions = dual.single_steps(q, k, v, [at], _order(at, k.shape[1], mask), bias, mask)[:, 0]
    yield from _remaining(predictions, z, "one by one", site)


def _order(at: int, seq: int, mask: Tensor | None) -> list[int]:
    """The demonstrations of the query at a position, in order: every token that it sees but itself."""
    keys = range(seq) if mask is None else mask[at].nonzero()[:, 0].tolist()
    return [j for j in keys if j != at]


def _remaining(predictions: Tensor, z: Tensor, schedule: str, site: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """predictions (episode, head, 1 + steps, d_value), z (episode, head, d_value)."""
    left = dual.remaining(predictions, z)
    start = left[..., 0].mean().clamp(min=1e-30)
    for t in range(left.shape[-1]):
        yield _row("remaining distance", left[..., t].mean(1) / start, site, "readout", dual_step=t, kind=schedule)


def _autograd(
    q: Tensor, k: Tensor, v: Tensor, z: Tensor, at: int, bias: Tensor | None, mask: Tensor | None, site: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Relative distance of the output from a step by automatic differentiation, where the kernel allows features."""
    allowed = torch.ones(k.shape[1], dtype=torch.bool) if mask is None else mask[at].clone()
    own = allowed.clone()
    own[torch.arange(len(own)) != at] = False
    demos, found, tried = allowed & ~own, [], 0
    for b in range(len(q)):
        for h in range(q.shape[2]):
            tried += 1
            try:
                phi_q, phi_k = dual.finite_features(q[b, at : at + 1, h], k[b, :, h])
            except ValueError:
                continue
            weight = torch.ones_like(phi_k[:, 0]) if bias is None else bias[h, at].exp()
            normaliser = (weight * (phi_k @ phi_q[0]))[allowed].sum()
            values = v[b, :, h] * weight[:, None]
            start = dual.initial_weights(phi_k[own], values[own], normaliser)
            learnt = dual.gradient_step(start, phi_k[demos], values[demos], normaliser, eta=0.1)
            found.append((learnt @ phi_q[0] - z[b, at, h]).norm() / z[b, at, h].norm().clamp(min=1e-30))
    yield _row("autograd coverage", torch.full((1,), len(found) / tried), site, "readout")
    if found:
        yield _row("autograd distance", torch.stack(found), site, "readout", whole=float(max(found)))


# ---- random features -------------------------------------------------------------------------------------------------
def _random_features(layers: Iterable[Heads], draws: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    for site, parts, bias, mask in layers:
        q, k, v, z = (part[:ESTIMATED].transpose(1, 2) for part in parts)
        square = rf.mean_square(q, k)
        yield _row("kernel exponent", torch.full((1,), square), site, "all positions")
        kernel, _ = dual.shifted_kernel(q.transpose(1, 2), k.transpose(1, 2), bias, mask)
        truth = kernel / kernel.sum(-1, keepdim=True)
        for m in FEATURES:
            for kind, make in _kinds(square).items():
                off = [_errors(q, k, v, z, truth, make(m, q.shape[-1], generator), bias, mask) for _ in range(draws)]
                for metric, column in (("pattern error", 0), ("output error", 1)):
                    values = torch.stack([pair[column] for pair in off]).mean((0, 2))
                    note = UNDERFLOW if values.isnan().any() else ""
                    yield _row(metric, values, site, "all positions", kind=kind, features=m, note=note)


def _kinds(square: float) -> dict[str, Callable[[int, int, torch.Generator], rf.Features]]:
    """name -> (number of features, width, generator) -> features."""
    return {
        "independent": lambda m, d, g: rf.PositiveFeatures(rf.gaussian_projections(m, d, g)),
        "orthogonal": lambda m, d, g: rf.PositiveFeatures(rf.orthogonal_projections(m, d, g)),
        "hyperbolic": lambda m, d, g: rf.HyperbolicFeatures(rf.orthogonal_projections(m // 2, d, g)),
        "optimal": lambda m, d, g: rf.OptimalPositiveFeatures(rf.orthogonal_projections(m, d, g), square),
    }


def _errors(
    q: Tensor, k: Tensor, v: Tensor, z: Tensor, truth: Tensor, features: rf.Features, bias: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(episode, head) relative errors of the pattern and of the output."""
    try:
        estimate = rf.attention_estimate(q, k, v, features, bias, mask)
    except ValueError:  # where norms are so large that an estimated normaliser is 0, there is no estimate
        nothing = q.new_full(q.shape[:2], math.nan)
        return nothing, nothing
    return rf.errors(estimate.pattern, truth).relative, rf.errors(estimate.output, z).relative


def _row(
    metric: str,
    values: Tensor,
    known: dict[str, Any],
    role: str,
    whole: float | None = None,
    note: str = "",
    dual_step: int = -1,
    kind: str = "none",
    features: int = -1,
) -> dict[str, Any]:
    """The mean over episodes with the 5th and 95th percentile, or `whole`, the largest of them, alone."""
    found = values.detach().double().cpu().numpy()
    lo, hi = np.quantile(found, [0.05, 0.95]) if whole is None and len(found) > 1 else (np.nan, np.nan)
    value = float(found.mean()) if whole is None else whole
    own: dict[str, Any] = {"dual_step": dual_step, "kind": kind, "features": features}
    return tables.row(metric, value, lo=lo, hi=hi, role=role, n=len(found), note=note, **own) | known
