"""Are the modules of a hypernetwork, or the heads of a layer that could be one, those of the teacher?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.measures.alignment import module_alignment
from compolens.measures.readouts import RidgeReadout
from compolens.models.module_heads import ModuleHeadsTransformer
from compolens.tasks import Hyperteacher
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

CODE, SCORES = "hook_code", "blocks.0.attn.hook_code"


class Modules(NamedTuple):
    """What a model mixes, and by what.

    Args:
        weights: (C, d_x, neurons) float64, the modules.
        site: the hook point of the code that mixes them.
        code: its activation -> (batch, C).
    """

    weights: np.ndarray
    site: str
    code: Callable[[Tensor], Tensor]


def probe(trained: TrainedModel, *, episodes: int = 1024, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How well the generated first layer's modules match the teacher's, after the best linear map between the codes.

    The measure is that of 2312.15001. The map F from the model's code to the true one is a ridge readout; every
    teacher neuron is compared with the student neuron that matches its incoming weights best. Of `ModuleHeads`, heads are the
    modules, and the code is their scores of the first question to itself (2407.12275).

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per split, for fitting the map, 8 or more; better many times the width of the code.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and a row per episode with the agreement of its mapped code with the true one: 1 minus the squared error
        over the squared length of the true code. A value of the table is a cosine, from -1 to 1; lo, hi of a mean are the
        5 % and 95 % quantiles over teacher neurons. The map between codes is fitted on the split's own compositions.

        - "mean alignment", "least alignment": over teacher neurons, with one match for all modules together: what a learner
          that identified the modules has at 1.
        - "mean alignment by module", "least alignment by module": with a match of its own for every module, which a learner
          that mixed neurons up between modules may have at 1 too.
        - control "random": modules drawn normal, as large as the model's: what the best of so many matches gives.
        - control "shuffled codes": the map fitted on the codes of other episodes.
        - control "untrained": the untrained control.

    Raises:
        DoesNotApply: the task is no modular hyperteacher, or the model generates no layer from modules.
        ConfigError: episodes is below 8.
    """
    require(episodes >= 8, f"need at least 8 episodes to fit a map between codes, got {episodes}; type --episodes 1024")
    task, rows = trained.task, []
    if not isinstance(task, Hyperteacher):
        raise DoesNotApply(f"{type(task).__name__} has no modules that generate a layer")
    teacher, seen = task.teacher[0].double().numpy(), []
    for control, model in trained.with_untrained_control():
        student, site, read = _modules(model)
        if student.shape[1] != teacher.shape[1]:
            raise DoesNotApply(f"the model generates layers for inputs of width {student.shape[1]}, not {teacher.shape[1]}")
        for split in ("test", "ood"):
            known: dict[str, Any] = {"split": split, "site": site, "role": "readout", "n": episodes}
            learned, true, names = _codes(trained, model, (site, read), split, episodes, seed)
            own = module_alignment(teacher, student, _map(learned, true))
            rows += _rows(own, control, known)
            if control == "":
                seen.append(_per_episode(learned, true, names).assign(split=split))
                drawn = np.random.default_rng(seed).normal(size=student.shape)
                rows += _rows(module_alignment(teacher, drawn, _map(learned, true)), "random", known)
                order = torch.from_numpy(np.random.default_rng(seed).permutation(len(true)))
                mixed = module_alignment(teacher, student, _map(learned, true[order]))
                rows += _rows(mixed, "shuffled codes", known)
    rows += tables.not_available([row for row in rows if row["control"] == ""], trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(seen, ignore_index=True)


def _modules(model: HookedModel) -> Modules:
    """The modules that a code mixes."""
    if isinstance(model, ModuleHeadsTransformer):
        asked = model.roles["readout"][0]
        return Modules(model.head_modules().double().cpu().numpy(), SCORES, lambda scores: scores[:, asked, asked])
    modules = getattr(getattr(model, "executor", None), "W_modules", None)
    if modules is None or CODE not in model.hook_dict:
        raise DoesNotApply("the model generates no layer from modules that an explicit code mixes")
    return Modules(modules.detach().double().cpu().numpy(), CODE, lambda code: code.flatten(1))


def _codes(
    trained: TrainedModel, model: HookedModel, code: tuple[str, Callable[[Tensor], Tensor]], split: str, n: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """The model's codes (n, C), the true ones (n, M), and the names of the compositions, of a split."""
    learned, true, names = [], [], []
    site, read = code
    for batch in record(model, draw(trained.task, split, n, f"{seed}/fit", trained.device), [site]):
        learned.append(read(batch.sites[site]).double().cpu())
        true.append(batch.episodes.codes["modules"].double().cpu())
        names += [trained.task.composition_name(c) for c in batch.episodes.composition.tolist()]
    return torch.cat(learned), torch.cat(true), names


def _fitted(learned: torch.Tensor, true: torch.Tensor) -> RidgeReadout:
    return RidgeReadout.fit(learned, true, l2=1e-2, standardize=False)


def _map(learned: torch.Tensor, true: torch.Tensor) -> np.ndarray:
    """(M, C): F of true = F learned, up to a constant."""
    readout = _fitted(learned, true)
    at_zero = readout(torch.zeros(1, learned.shape[1], dtype=torch.float64))
    return (readout(torch.eye(learned.shape[1], dtype=torch.float64)) - at_zero).T.numpy()


def _rows(found: tuple[np.ndarray, np.ndarray], control: str, known: dict[str, Any]) -> list[dict]:
    apart, shared = found
    named = {"alignment": shared, "alignment by module": apart}
    rows = []
    for name, values in named.items():
        common = {**known, "control": control}
        lo, hi = (float(np.quantile(values, q)) for q in (0.05, 0.95))
        rows.append(tables.row(f"mean {name}", float(values.mean()), lo=lo, hi=hi, **common))
        rows.append(tables.row(f"least {name}", float(values.min()), **common))
    return rows


def _per_episode(learned: torch.Tensor, true: torch.Tensor, names: list[str]) -> pd.DataFrame:
    error = (_fitted(learned, true)(learned) - true).square().sum(1) / true.square().sum(1)
    return pd.DataFrame({"episode": range(len(names)), "composition": names, "score": (1 - error).numpy()})
