"""Is what softmax attention writes one gradient step of its dual model, and how is it learnt, one demonstration at a time?"""

import math

import numpy as np
import pandas as pd
import torch

from compolens import tables
from compolens.activations.streams import draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import LayerNorm
from compolens.measures import dual_layers
from compolens.measures import dual_model as dual
from compolens.measures import random_features as rf
from compolens.models.softmax import SoftmaxAttention
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

FEATURES = (16, 64, 256, 1024, 4096)
ESTIMATED = 4
"""Episodes on which attention is estimated with random features."""
PARTS = ("q", "k", "v", "z")
UNDERFLOW = "not available: an estimated normaliser is 0, queries and keys are too long for these features"


def probe(
    trained: TrainedModel, *, episodes: int = 512, looked_at: int = 16, draws: int = 3, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every head's output against its dual model (2310.13220) at every layer, head and position.

    "max distance", "mean distance", "relative distance" (over the output's mean norm): attention's output less the dual
    model's prediction in the Gram form; "layer distance" the same for whole layers (output projection, residual, MLP by its
    secant gate), chained from the first layer's input. That form is attention's own arithmetic, true of any weights, so the
    untrained control has it too, and it explains nothing by itself. "share of the step": the norm of what the gradient step
    adds to what the query's own token gives, over the output's. What could fail: "autograd distance", relative, of a step by
    automatic differentiation of the representation loss on explicit finite features ("autograd coverage": the share of queries
    whose kernel allows such features in float64); "remaining distance" after `dual_step` demonstrations of one query, one at
    a time ("one by one") or all at once at a smaller rate ("full batch"), relative to the start; control "shuffled": with the
    values of another token.

    "output error", "pattern error": relative error of attention with m random features (`features`), of every `kind`, averaged
    over heads; "kernel exponent": mean |q + k|² in the units that decide it. episodes: for the Gram form; looked_at: for all
    that needs steps (no more than `episodes`), at the last position from which an answer is read; draws: of random features,
    on 4 episodes. Distances are over episodes and heads; lo and hi, the 5th and 95th percentile over episodes.
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


def _check(trained):
    """Only softmax has a dual model of this kind."""
    name = type(trained.run.architecture).__name__
    attention = trained.model.blocks[0].attn
    if (
        type(attention).weights is not SoftmaxAttention.weights
        or attention.transfer is not None
        or hasattr(attention, "hook_pre")
    ):
        raise DoesNotApply(
            f"{name} has no dual model: its weights are no softmax of scores alone. What applies instead: gd_equivalence and "
            "algorithm_steps on regression families, attention_code on categorical codes"
        )


# ---- the Gram form ---------------------------------------------------------------------------------------------------
def _gram_form(task, model, batches, known):
    """Rows per layer, head and position, and per episode its score and the largest distance of each layer."""
    n = len(model.blocks)
    sites = [f"blocks.{i}.attn.hook_{part}" for i in range(n) for part in PARTS]
    sites += [f"blocks.{i}.hook_resid_{end}" for i in range(n) for end in ("pre", "post")]
    gaps, norms, shares, ends, scored = [], [], [], [], []
    for batch in record(model, batches, sites):
        seq, steps = batch.sites[sites[0]].shape[1], []
        for i, attn in enumerate(block.attn for block in model.blocks):
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


def _bias(attn, seq):
    return None if attn.bias is None else attn.bias(None, seq)


def _mask(attn, seq):
    return None if attn.mask is None else attn.mask[:seq, :seq]


def _position_rows(model, gap, norm, share, known):
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


def _norm(norm):
    if not hasattr(norm, "eps"):
        return None  # the identity of token-space models
    kind = dual_layers.LayerNorm if isinstance(norm, LayerNorm) else dual_layers.RMSNorm
    return kind(norm.w, norm.b, norm.eps) if isinstance(norm, LayerNorm) else kind(norm.w, eps=norm.eps)


def _layer(block, seq):
    """A block as the dual model sees it: weights, norms, bias, and the MLP if there is one."""
    attn, mlp = block.attn, None
    if block.mlp is not None:
        m = block.mlp
        mlp = dual_layers.MLP(_norm(block.ln2), m.W_in, m.b_in, m.W_out, m.b_out, _gelu)
    weights = (getattr(attn, f"{kind}_{part}") for part in "QKV" for kind in "Wb")
    return dual_layers.Layer(_norm(block.ln1), *weights, attn.W_O, attn.b_O, mlp, _bias(attn, seq))


def _gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


@torch.no_grad()
def _chained(model, batch, seq):
    """(episode, layer): largest distance of the residual stream, relative to its size, from a chain of dual models that starts
    at the first layer's input; nan where the stream is no pre-norm one."""
    layers = [_layer(block, seq) for block in model.blocks]
    if any(layer.norm is None for layer in layers):
        return torch.full((len(batch.episodes.tokens), len(layers)), math.nan)
    steps = dual_layers.layer_steps(layers, batch.sites["blocks.0.hook_resid_pre"], _mask(model.blocks[0].attn, seq))
    truths = [batch.sites[f"blocks.{i}.hook_resid_post"] for i in range(len(layers))]
    pairs = zip(steps, truths, strict=True)
    return torch.stack([(s.prediction - t).norm(dim=-1).amax(1) / t.norm(dim=-1).mean() for s, t in pairs], 1)


def _layer_rows(ends, known):
    for layer in range(ends.shape[1]):
        site = {"site": f"blocks.{layer}.hook_resid_post", "layer": layer, "head": "all"} | known
        if not ends.isnan().any():  # in token space a layer is its attention
            yield _row("layer distance", ends[:, layer], site, "all positions", whole=float(ends[:, layer].max()))


# ---- what could fail -------------------------------------------------------------------------------------------------
def _heads(model, episodes, known):
    """By layer: where it is; q, k, v and output z (episode, pos, head, width), float64; the scores' bias, and the mask."""
    (batch,) = record(model, [episodes], [f"blocks.{i}.attn.hook_{p}" for i in range(len(model.blocks)) for p in PARTS])
    for i, attn in enumerate(block.attn for block in model.blocks):
        parts = [batch.sites[f"blocks.{i}.attn.hook_{part}"].double() for part in PARTS]
        seq = parts[0].shape[1]
        bias = None if attn.bias is None else _bias(attn, seq).double().detach()
        yield {"site": f"blocks.{i}.attn.hook_z", "layer": i, "head": "all"} | known, parts, bias, _mask(attn, seq)


def _steps(model, layers):
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


def _one_by_one(q, k, v, z, at, bias, mask, site):
    predictions = dual.single_steps(q, k, v, [at], _order(at, k.shape[1], mask), bias, mask)[:, 0]
    yield from _remaining(predictions, z, "one by one", site)


def _order(at, seq, mask):
    """The demonstrations of the query at a position, in order: every token that it sees but itself."""
    keys = range(seq) if mask is None else mask[at].nonzero()[:, 0].tolist()
    return [j for j in keys if j != at]


def _remaining(predictions, z, schedule, site):
    """predictions (episode, head, 1 + steps, d_value), z (episode, head, d_value)."""
    left = dual.remaining(predictions, z)
    start = left[..., 0].mean().clamp(min=1e-30)
    for t in range(left.shape[-1]):
        yield _row("remaining distance", left[..., t].mean(1) / start, site, "readout", dual_step=t, kind=schedule)


def _autograd(q, k, v, z, at, bias, mask, site):
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
def _random_features(layers, draws):
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


def _kinds(square):
    """name -> (number of features, width, generator) -> features."""
    return {
        "independent": lambda m, d, g: rf.PositiveFeatures(rf.gaussian_projections(m, d, g)),
        "orthogonal": lambda m, d, g: rf.PositiveFeatures(rf.orthogonal_projections(m, d, g)),
        "hyperbolic": lambda m, d, g: rf.HyperbolicFeatures(rf.orthogonal_projections(m // 2, d, g)),
        "optimal": lambda m, d, g: rf.OptimalPositiveFeatures(rf.orthogonal_projections(m, d, g), square),
    }


def _errors(q, k, v, z, truth, features, bias, mask):
    """(episode, head) relative errors of the pattern and of the output."""
    try:
        estimate = rf.attention_estimate(q, k, v, features, bias, mask)
    except ValueError:  # where norms are so large that an estimated normaliser is 0, there is no estimate
        return q.new_full((2, *q.shape[:2]), math.nan)
    return rf.errors(estimate.pattern, truth).relative, rf.errors(estimate.output, z).relative


def _row(metric, values, known, role, whole=None, note="", dual_step=-1, kind="none", features=-1):
    """The mean over episodes (or `whole` instead), with the 5th and 95th percentile."""
    values = values.detach().double().cpu().numpy()
    lo, hi = np.quantile(values, [0.05, 0.95]) if len(values) > 1 else (np.nan, np.nan)
    value, own = values.mean() if whole is None else whole, {"dual_step": dual_step, "kind": kind, "features": features}
    return tables.row(metric, value, lo=lo, hi=hi, role=role, n=len(values), note=note, **own) | known
