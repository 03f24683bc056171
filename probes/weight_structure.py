"""Do the weights themselves say which algorithm a layer of token-space attention is?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw
from compolens.foundation.configs import DoesNotApply
from compolens.hooks import HookedModel
from compolens.models.modified_attention import AugmentedAttention
from compolens.models.softmax import SoftmaxAttention
from compolens.models.token_space import TokenSpaceArchitecture
from compolens.tasks import LinearRegression
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change


def probe(trained: TrainedModel, *, episodes: int = 4096, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Whether a layer's matrices have the form of a gradient step, head by head, in the coordinates of tokens (x, y).

    KQ = W_K W_Q^T, laid out (key, query), and OV = W_V W_O, (from, to). Gamma = (1 + 1/N) Lambda + tr(Lambda) / N with Lambda
    = E[x x^T]; the optimum of one linear layer has KQ proportional to its inverse (2306.09927). Linear attention knows KQ and
    OV up to a factor that one takes from the other; eta is free of it.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split for the losses, 2 or more; each is a task of its own.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode (score). Columns `layer` (-1: the whole model), `head` ("all": over the heads of a
        layer), `row` and `column` of an entry, `weights` ("as trained" or "idealised").

        - "KQ entry", "OV entry": the matrices.
        - "KQ diagonal": mean of the diagonal over x; "KQ off-diagonal": root mean square of the rest of that block over the
          diagonal's mean absolute value (0: a multiple of the identity).
        - "KQ distance to inverse Gamma" (relative, Frobenius) and "KQ cosine to inverse Gamma" (absolute): of the block,
          scaled to fit best.
        - "OV y to y": the entry that moves answers; "OV x to y": the largest by which inputs move answers, over it.
        - "homogeneity": standard deviation of |KQ diagonal| over heads, over its mean; "zero sum": |sum of OV y to y| over the
          sum of absolute values (2503.12734).
        - "eta": rate of the gradient descent step that the layer is (2212.07677), to first order in the scores where attention
          is softmax; "eta, off-diagonal": the rest, relative.
        - "loss": as the family has it, as trained and with "idealised" weights: KQ the mean diagonal times the identity on x,
          OV the y to y entry, all else 0. lo, hi: 95 % over episodes.
        - control "untrained": the untrained control. Control "chance": the mean |cosine| of random matrices.

    Raises:
        DoesNotApply: the model is no token-space attention, its keys, queries or values pass through further maps, or the task
            is no linear regression.
    """
    architecture, task = trained.run.architecture, trained.task
    if not isinstance(architecture, TokenSpaceArchitecture) or not isinstance(task, LinearRegression):
        raise DoesNotApply(
            f"{type(architecture).__name__} on {type(task).__name__} has no weights in the coordinates of (x, y) tokens; "
            "weight_structure needs token-space attention (LinearSelfAttention, SoftmaxSelfAttention, …) on LinearRegression"
        )
    if any(isinstance(block.attn, AugmentedAttention) for block in _blocks(trained.model)):
        raise DoesNotApply(
            f"in {type(architecture).__name__}, keys, queries or values pass through further maps, so its matrices alone do "
            "not say what a layer does; measure it with gd_equivalence"
        )
    rows: list[dict[str, Any]] = []
    kept: list[pd.DataFrame] = []
    for control, model in trained.with_untrained_control():
        rows += _model_rows(model, task, control)
        for split in ("test", "ood"):
            batches = list(draw(task, split, episodes, seed, trained.device))
            for weights, one in (("as trained", model), ("idealised", _idealised(model, task))):
                loss, seen = _loss(one, task, batches, control, split, weights)
                rows.append(loss)
                kept += [seen] if control == "" and weights == "as trained" else []
    own = (row for row in rows if row["control"] == "" and not row["metric"].endswith(" entry"))
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _blocks(model: HookedModel) -> Sequence[Any]:
    blocks: Any = model.blocks
    return blocks


@torch.no_grad()
def _idealised(model: HookedModel, task: LinearRegression) -> HookedModel:
    """A copy that has nothing but the structure: y moves y, x meets x, coordinate by coordinate."""
    ideal, d_x = deepcopy(model), task.d_x
    for own, new in zip(_blocks(model), _blocks(ideal), strict=True):
        kq, ov = own.attn.W_K @ own.attn.W_Q.mT, own.attn.W_V @ own.attn.W_O
        eye = torch.eye(kq.shape[1]).expand_as(kq)
        keys, values = torch.zeros_like(kq), torch.zeros_like(ov)
        keys[:, range(d_x), range(d_x)] = kq[:, :d_x, :d_x].diagonal(dim1=1, dim2=2).mean(1, keepdim=True)
        values[:, range(d_x, d_x + task.d_y), range(d_x, d_x + task.d_y)] = ov[:, d_x, d_x, None]
        for name, value in (("W_K", eye), ("W_Q", keys), ("W_V", values), ("W_O", eye)):
            getattr(new.attn, name).copy_(value)
    return ideal


@torch.no_grad()
def _loss(
    model: HookedModel, task: LinearRegression, batches: list[Episodes], control: str, split: str, weights: str
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The loss on a split, and per episode its composition and score."""
    losses, seen = [], []
    for batch in batches:
        prediction = model(batch.tokens)
        apart = (prediction - batch.targets)[:, list(task.answers)]
        losses += (task.loss_scale * apart.double().square().mean((1, 2))).tolist()
        error, weight = task.errors(prediction, batch.targets)
        names = [task.composition_name(int(c)) for c in batch.composition]
        score = (1 - error / weight.clamp(min=1e-12)).cpu().numpy()
        seen.append(pd.DataFrame({"split": split, "composition": names, "score": score}))
    mean, half = float(np.mean(losses)), 1.96 * float(np.std(losses, ddof=1)) / len(losses) ** 0.5
    known = {"control": control, "layer": -1, "site": "output", "head": "all", "split": split, "weights": weights}
    known |= {"lo": mean - half, "hi": mean + half, "n": len(losses)}
    return _row("loss", mean, known), pd.concat(seen, ignore_index=True)


def gamma(task: LinearRegression) -> torch.Tensor:
    """Gamma = (1 + 1/N) Lambda + tr(Lambda) / N for the family's inputs and N context examples (2306.09927).

    Args:
        task: the family, whose law of inputs gives Lambda = E[x x^T].

    Returns:
        (d_x, d_x) float64.
    """
    second = task.inputs.second_moment(task.d_x) * task.input_scale**2
    eye = torch.eye(task.d_x, dtype=torch.float64)
    return (1 + 1 / task.n_context) * second + second.trace() / task.n_context * eye


def _model_rows(model: Any, task: LinearRegression, control: str) -> Iterator[dict[str, Any]]:
    with torch.no_grad():
        kq = (model.W_K @ model.W_Q.mT).double().cpu()
        ov = (model.W_V @ model.W_O).double().cpu()
    softmax = isinstance(model.blocks[0].attn, SoftmaxAttention)
    scale = float(model.W_U.sum()) / task.d_y * (model.cfg.d_head**-0.5 if softmax else task.n_context)
    scale *= model.blocks[0].stream.damping
    for layer in range(kq.shape[0]):
        known = {"control": control, "layer": layer, "site": f"blocks.{layer}.attn"}
        for head in range(kq.shape[1]):
            yield from _entries(kq[layer, head], ov[layer, head], known | {"head": str(head)}, control)
            yield from _head_rows(kq[layer, head], ov[layer, head], task, known | {"head": str(head)})
        yield from _layer_rows(kq[layer], ov[layer], task, scale, known | {"head": "all"})


def _entries(kq: Tensor, ov: Tensor, known: dict[str, Any], control: str) -> Iterator[dict[str, Any]]:
    if control:
        return
    for name, matrix in (("KQ entry", kq), ("OV entry", ov)):
        for (i, j), value in np.ndenumerate(matrix.numpy()):
            yield _row(name, value, known, i, j)


def _head_rows(kq: Tensor, ov: Tensor, task: LinearRegression, known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    d_x, y = task.d_x, task.d_x
    block = kq[:d_x, :d_x]
    diagonal = block.diagonal()
    off = block - torch.diag(diagonal)
    yield _row("KQ diagonal", diagonal.mean(), known)
    if d_x > 1:
        rms = (off.square().sum() / (d_x * (d_x - 1))).sqrt()
        yield _row("KQ off-diagonal", rms / diagonal.abs().mean().clamp(min=1e-30), known)
    inverse = torch.linalg.inv(gamma(task))
    fit = (block * inverse).sum() / block.square().sum().clamp(min=1e-30)
    cosine = (block * inverse).sum() / (block.norm() * inverse.norm()).clamp(min=1e-30)
    yield _row("KQ distance to inverse Gamma", (fit * block - inverse).norm() / inverse.norm(), known)
    yield _row("KQ cosine to inverse Gamma", cosine.abs(), known)
    if known["control"] == "":
        yield _row("KQ cosine to inverse Gamma", _chance(inverse), known | {"control": "chance"})
    yield _row("OV y to y", ov[y, y], known)
    yield _row("OV x to y", ov[:d_x, y].abs().max() / ov[y, y].abs().clamp(min=1e-30), known)


def _chance(inverse: Tensor) -> Tensor:
    """The mean |cosine| of a thousand random matrices with it."""
    random = torch.randn(1000, *inverse.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cosine_similarity(random.flatten(1), inverse.flatten()[None], dim=1).abs().mean()


def _layer_rows(
    kq: Tensor, ov: Tensor, task: LinearRegression, scale: float, known: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """scale: what the layer's output gains from a score, times N, and the readout's sign."""
    diagonal = kq[:, : task.d_x, : task.d_x].diagonal(dim1=1, dim2=2).mean(1).abs()
    moves = ov[:, task.d_x, task.d_x]
    if len(diagonal) > 1:
        yield _row("homogeneity", diagonal.std(correction=0) / diagonal.mean().clamp(min=1e-30), known)
        yield _row("zero sum", moves.sum().abs() / moves.abs().sum().clamp(min=1e-30), known)
    total = torch.einsum("hij,h->ij", kq[:, : task.d_x, : task.d_x], moves)
    off = total - torch.diag(total.diagonal())
    yield _row("eta", total.diagonal().mean() * scale, known)
    yield _row("eta, off-diagonal", off.norm() / total.diagonal().norm().clamp(min=1e-30), known)


def _row(metric: str, value: Tensor | float, known: dict[str, Any], row: int = -1, column: int = -1) -> dict[str, Any]:
    found = tables.row(metric, float(value), split="train", role="weights", n=1)
    return found | {"row": row, "column": column, "weights": "as trained"} | known
