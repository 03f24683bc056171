"""Is the answer carried by what the target block takes over from the blocks before it, and is that its own relation?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw, record
from compolens.foundation.configs import DoesNotApply
from compolens.hooks import HookedModel
from compolens.measures.intervals import summarise
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 2  # raised whenever its numbers change
values_since = 1  # its values; version 2 changed intervals alone


def probe(trained: TrainedModel, *, episodes: int = 1024, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score and attention coefficients with coefficient transfer (2511.20194), and with its factors lambda changed.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes drawn per split, 1 or more; more of them narrow the intervals.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode (score under every lambda). lo, hi: 95 % over compositions.

        - "score": with lambda as trained, as the family scores.
        - "lambda": the factors themselves, by `layer` and context `block`.
        - "coefficients explained": how the hidden tokens attend to their block, beside how they do in the same model once the
          answer is shown, which is their own relation's: 1 - squared error over squares, by layer, over heads. 1 is equal, 0
          no attention, may be negative.
        - "coefficient cosine": the mean cosine of the two, which leaves their scale out.
        - control "λ = 0": lambda set to zero.
        - control "λ swapped between layers": each layer has that of the layer before it, the first that of the last.
        - control "untrained": the untrained control.
        - controls "without transfer" and "another episode" of the coefficients: before transfer, and beside what another
          episode of the batch shows.

    Raises:
        DoesNotApply: the model was built without coefficient transfer.
    """
    task, model = trained.task, trained.model
    if not _transfers(model):
        raise DoesNotApply(
            f"{type(trained.run.architecture).__name__} was built without coefficient transfer; "
            "train it with transfer=OutputTransfer() or RelativeTransfer()"
        )
    models = dict(trained.with_untrained_control())
    variants = {"": model, "λ = 0": _with(model, zero), **models}
    if len(_transfers(model)) > 1:
        variants["λ swapped between layers"] = _with(model, swapped)
    rows, kept = [], []
    for split in ("test", "ood"):
        batches = list(draw(task, split, episodes, seed, trained.device))
        composition = torch.cat([b.composition for b in batches]).cpu().numpy()
        for control, variant in variants.items():
            error, weight = _errors(task, variant, batches)
            pooled = summarise(error, weight, composition)
            where = {"split": split, "site": "output", "role": "answers", "control": control, "n": len(error)}
            rows.append(
                {"metric": "score", "value": pooled.score, "lo": pooled.interval[0], "hi": pooled.interval[1], **where}
            )
            names = [task.composition_name(int(c)) for c in composition]
            kept.append(pd.DataFrame({"split": split, "control": control, "composition": names, "score": 1 - error / weight}))
        for control, measured in models.items():
            rows += _coefficients(task, measured, batches, split, control)
    rows += tables.not_available((row for row in rows if row["control"] == ""), trained.why_no_untrained_control)
    for layer, transfer in enumerate(_transfers(model)):
        for block, value in enumerate(transfer.lam.tolist()):
            where = {
                "metric": "lambda",
                "split": "train",
                "site": f"blocks.{layer}.attn.transfer",
                "role": "target",
                "control": "",
            }
            rows.append({**where, "value": value, "lo": np.nan, "hi": np.nan, "layer": layer, "block": block, "n": 1})
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _transfers(model: HookedModel) -> list:
    """The transferring module of every layer; none if the model has no attention that transfers."""
    attentions = [getattr(block, "attn", None) for block in getattr(model, "blocks", [])]
    transfers = [getattr(attention, "transfer", None) for attention in attentions]
    return [transfer for transfer in transfers if transfer is not None]


def zero(lams: list[Tensor]) -> list[Tensor]:
    """Lambda set to zero in every layer.

    Args:
        lams: the lambda of every layer.

    Returns:
        As many zeros.
    """
    return [torch.zeros_like(lam) for lam in lams]


def swapped(lams: list[Tensor]) -> list[Tensor]:
    """Each layer's lambda replaced by that of the layer before it, the first by that of the last.

    Args:
        lams: the lambda of every layer.

    Returns:
        The same numbers, moved on by one layer.
    """
    return lams[-1:] + lams[:-1]


def _with(model: HookedModel, change: Callable[[list[Tensor]], list[Tensor]]) -> HookedModel:
    """A copy of the model with other lambdas."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for transfer, lam in zip(_transfers(other), change([t.lam.detach().clone() for t in _transfers(model)]), strict=True):
            transfer.lam.copy_(lam)
    return other


@torch.no_grad()
def _errors(task: TaskFamily, model: HookedModel, batches: list[Episodes]) -> Iterator[np.ndarray]:
    found = [task.errors(model(b.tokens), b.targets) for b in batches]
    return (torch.cat(part).cpu().numpy() for part in zip(*found, strict=True))


def _coefficients(
    task: TaskFamily, model: HookedModel, batches: list[Episodes], split: str, control: str
) -> Iterator[dict[str, Any]]:
    """How the hidden tokens attend to their block, beside how they do once shown: by layer, also without transfer, and beside
    another episode's."""
    layers = [f"blocks.{layer}.attn" for layer in range(model.cfg.n_layers)]
    names = {"": "hook_pattern", "without transfer": "hook_coefficients", "another episode": "hook_pattern"}
    parts: dict = {}
    for batch in batches:
        (own,) = record(model, [batch], [f"{a}.{hook}" for a in layers for hook in ("hook_pattern", "hook_coefficients")])
        shown = batch._replace(tokens=task.revealed(batch))
        (with_answer,) = record(model, [shown], [f"{a}.hook_coefficients" for a in layers])
        for layer, attention in enumerate(layers):
            target = _transfers(model)[layer].target
            wanted = _to_own_block(with_answer.sites[f"{attention}.hook_coefficients"], task.answers, target)
            for name, hook in names.items() if control == "" else (("", "hook_pattern"),):
                got = _to_own_block(own.sites[f"{attention}.{hook}"], task.answers, target)
                for metric, measured in _compared(got, wanted.roll(1, 0) if name == "another episode" else wanted).items():
                    parts.setdefault((metric, layer, name), []).append([*measured, batch.composition.double()])
    for (metric, layer, name), found in parts.items():
        error, weight, composition = torch.cat([torch.stack(part) for part in found], dim=1).cpu().numpy()
        pooled = summarise(error, weight, composition.astype(int))
        where = {"split": split, "site": f"{layers[layer]}.hook_pattern", "role": "target", "layer": layer}
        lo, hi = pooled.interval
        row = {
            "metric": metric,
            "value": pooled.score,
            "lo": lo,
            "hi": hi,
            **where,
            "control": name or control,
            "n": len(error),
        }
        yield row


def _compared(got: Tensor, wanted: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """metric -> (error, weight) per episode, such that the metric is 1 - sum(error) / sum(weight)."""
    norms = got.square().sum(1).sqrt() * wanted.square().sum(1).sqrt()
    cosine = (got * wanted).sum(1) / norms.clamp(min=1e-300)
    return {
        "coefficients explained": ((got - wanted).square().sum(1), wanted.square().sum(1)),
        "coefficient cosine": (1 - cosine, torch.ones_like(cosine)),
    }


def _to_own_block(pattern: Tensor, hidden: Sequence[int], target: Tensor) -> Tensor:
    """(batch, head * row * column) float64: the hidden tokens' attention to the target block."""
    return pattern[:, :, torch.tensor(hidden)[:, None], target].double().flatten(1)
