"""At which layer and token role does what is there decide which task is executed?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import named_stream
from compolens.activations.streams import draw, intervene, record
from compolens.foundation.configs import DoesNotApply
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.interventions.interchange import other_code, remaining
from compolens.measures.intervals import summarise
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 4  # raised whenever its numbers change

NO_THIRD = "not available: in no episode is the third code another than that of the source and that of the base"

Point = tuple[int, str, str]
"""(layer, hook point, token role)."""


def probe(trained: TrainedModel, *, episodes: int = 512, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How far the answer moves when another run's residual stream is put in, layer by token role.

    The same inputs are shown under two codes. The residual stream of one run (source) replaces that of the other (base): an
    interchange intervention on a whole site (2303.02536).

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: pairs of episodes per split, 2 or more; all of one split are one batch.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode.

        - "recovered": share of the way that the answer moves to the source's own answer, pooled over episodes: 1 is all of it,
          0 none, below 0 away from it. lo, hi: 95 % over compositions of the base.
        - control "another code": a third run is put in. Only what is specific to the source should move the answer to the
          source's. Episodes whose third code is that of the source or of the base do not count; where none is left, there is
          no number, and note says why.
        - control "untrained": patching in the untrained control.

    Raises:
        DoesNotApply: the family cannot show the same inputs under two codes.
    """
    task = trained.task
    if task.why_no_render:
        raise DoesNotApply(f"patching needs the same inputs under two codes; {type(task).__name__}: {task.why_no_render}")
    rows, kept = [], []
    for control, model in trained.with_untrained_control():
        points = [(layer, site, role) for layer, site in named_stream(model).items() for role in model.roles]
        if "hook_code" in model.hook_dict:
            points.append((model.cfg.n_layers + 1, "hook_code", "all"))
        for split in ("test", "ood"):
            parts: dict = {}
            for base in draw(task, split, episodes, seed, trained.device, batch=episodes):
                for key, result in _patch(task, model, base, points, third=control == ""):
                    parts.setdefault(key, []).append(result)
            for ((layer, site, role), which), results in parts.items():
                error, weight, composition = np.concatenate(results, axis=1)
                pooled = summarise(error, weight, composition.astype(int))
                where = {"split": split, "site": site, "role": role, "layer": layer, "control": which or control}
                lo, hi = pooled.interval
                told = {"note": NO_THIRD} if which and not weight.any() else {}
                rows.append(
                    {"metric": "recovered", "value": pooled.score, "lo": lo, "hi": hi, **where, "n": len(error), **told}
                )
                if not (which or control):
                    other = weight > 0  # the rest were shown under a code equal to their own: nothing to recover
                    names = [task.composition_name(int(c)) for c in composition[other]]
                    kept.append(pd.DataFrame({**where, "composition": names, "score": 1 - error[other] / weight[other]}))
    rows += tables.not_available((row for row in rows if row["control"] == ""), trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _patch(
    task: TaskFamily, model: HookedModel, base: Episodes, points: list[Point], third: bool
) -> Iterator[tuple[tuple[Point, str], np.ndarray]]:
    """((layer, site, role), control) -> (error, weight, composition) per episode."""
    source = _under_other_codes(task, base, 1)
    sites = list(dict.fromkeys(site for _, site, _ in points))
    (own,) = record(model, [base], sites)
    (other,) = record(model, [source], sites)
    every = torch.ones_like(base.composition, dtype=torch.bool)
    donors = {"": (other.sites, every)}
    if third:
        another = _under_other_codes(task, base, 2)
        (donor,) = record(model, [another], sites)
        donors["another code"] = (donor.sites, other_code(another, source) & other_code(another, base))
    for point in progress(points, "patched at site"):
        _, site, role = point
        for name, (donated, counts) in donors.items():
            edit = _put(donated[site], slice(None) if role == "all" else model.roles[role])
            answer = intervene(model, base, {site: edit})
            error, weight = remaining(answer, own.prediction, other.prediction, task.answers, base.targets)
            yield (point, name), torch.stack([error * counts, weight * counts, base.composition.double()]).cpu().numpy()


def _under_other_codes(task: TaskFamily, base: Episodes, shift: int) -> Episodes:
    """The same inputs under the codes of other episodes of the batch."""
    return task.render({name: code.roll(shift, 0) for name, code in base.codes.items()}, base.inputs)


def _put(donated: Tensor, positions: list[int] | slice) -> Callable[[Tensor], Tensor]:
    def edit(activation: Tensor) -> Tensor:
        activation[:, positions] = donated[:, positions]
        return activation

    return edit
