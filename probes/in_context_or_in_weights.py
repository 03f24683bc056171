"""Does the model learn labels from the context or from its weights, and which of its attention does the former?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.streams import draw, intervene, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.measures.intervals import mean_interval
from compolens.tasks import BurstyClassification
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

Row = dict[str, Any]
ANOTHER, GIVEN = "another item", ("a label of the context", "chance", "even")
"""Controls: a cut elsewhere, and what no model is needed for."""
KNOWN, NOVEL, SHIFTED, WEIGHTS = "known classes", "novel classes", "labels shifted", "class not shown"


class Asked(NamedTuple):
    """A way of asking.

    Args:
        name: as in the column `evaluation`.
        split: "test" or "ood".
        task: the family, as it is, or without the question's class in the context.
        compositions: of that split (None: all).
    """

    name: str
    split: str
    task: BurstyClassification
    compositions: list[int] | None


def probe(trained: TrainedModel, *, episodes: int = 512, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Accuracy where context and weights tell different things, and the progress measures of 2312.03002.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes of each way of asking, 2 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and a row per episode and way of asking (score: 1 right, 0 wrong). lo, hi: 95 % over episodes (t). Column
        `evaluation`:

        - "known classes": training classes with their own labels; context and weights both tell the answer.
        - "novel classes" (IC there): the context alone tells it.
        - "labels shifted" (IC2, held-out compositions): the context tells another label than training did.
        - "class not shown" (IW): training classes that are not in the context; weights alone can tell.

        Metrics:

        - "accuracy". Control "a label of the context": one at random; control "chance": any label at random.
        - "trained label": share of the answers, where labels are shifted, that are the label of training.
        - "label of the context" (CLA): share of the answers that are some label of the context. Control "chance".
        - "label to its item" (ILA; ILA1 is layer 0), "question to right label" (TILA; TILA2 is layer 1), "question to labels"
          (TLA): attention by layer, mean over heads, on novel classes. Control "even": attention even over what may be seen.
        - "accuracy without label to item": where layer 0's attention from labels (but the first) to their items is set to 0.
          Control "another item": to the item of the pair before instead.
        - control "untrained": the untrained control.

    Raises:
        DoesNotApply: the task is no bursty classification, or the model has no attention patterns over its tokens.
        ConfigError: episodes is below 2.
    """
    require(episodes >= 2, f"need at least 2 episodes, got {episodes}; type --episodes 512")
    task = trained.task
    if not isinstance(task, BurstyClassification):
        raise DoesNotApply(f"{type(task).__name__} has no class and label as its code, as BurstyClassification has")
    rows: list[dict[str, Any]] = []
    kept: list[pd.DataFrame] = []
    for control, model in trained.with_untrained_control():
        layers = [name for name in model.hook_dict if name.endswith("attn.hook_pattern")]
        if not layers:
            raise DoesNotApply("the model has no attention patterns (blocks.*.attn.hook_pattern)")
        for asked in _asked(task):
            for one in _evaluated(trained, model, asked, layers, episodes, seed):
                per_episode = one.pop("kept", None)
                if control and one["control"] in GIVEN:
                    continue
                rows.append(one | {"control": ", ".join(filter(None, (control, one["control"])))})
                kept += [per_episode] if control == "" and per_episode is not None else []
    own = [row for row in rows if row["control"] in ("", ANOTHER)]
    rows += tables.not_available(own, trained.why_no_untrained_control)
    return pd.DataFrame(rows), pd.concat(kept, ignore_index=True)


def _asked(task: BurstyClassification) -> list[Asked]:
    shown = replace(task, p_bursty=1.0, p_novel=task.p_novel or 0.5)
    known = [c for c in shown.compositions("test") if c != shown.novel]
    return [
        Asked(KNOWN, "test", shown, known),
        Asked(NOVEL, "test", shown, [shown.novel]),
        Asked(SHIFTED, "ood", shown, None),
        Asked(WEIGHTS, "test", replace(task, p_bursty=0.0, p_novel=0.0), None),
    ]


def _evaluated(
    trained: TrainedModel, model: HookedModel, asked: Asked, layers: list[str], n: int, seed: int
) -> Iterator[dict[str, Any]]:
    """The rows of one way of asking; those of the accuracy hold the rows per episode under "kept"."""
    task = asked.task
    known: dict[str, Any] = {"evaluation": asked.name, "split": asked.split, "layer": -1}
    found: dict[str, list[Tensor]] = {}

    def note(name: str, values: Tensor) -> None:
        found.setdefault(name, []).append(values.double().cpu())

    names: list[str] = []
    batches = list(draw(task, asked.split, n, f"{seed}/{asked.name}", trained.device, asked.compositions))
    for batch in record(model, batches, layers if asked.name == NOVEL else layers[:1]):
        episodes = batch.episodes
        names += [task.composition_name(int(c)) for c in episodes.composition]
        answer, right = batch.prediction[:, -1].argmax(-1), episodes.targets[:, -1]
        labels = episodes.targets[:, 1 : 2 * task.n_context : 2]
        note("right", answer == right)
        note("by chance", (labels == right[:, None]).double().mean(1))
        note("trained", answer == episodes.codes["class"] % task.n_labels)
        note("told", (labels == answer[:, None]).any(1))
        note("told by chance", torch.nn.functional.one_hot(labels, task.n_labels).amax(1).double().mean(1))
        if asked.name == NOVEL:
            for layer, site in enumerate(layers):
                for name, (own, even) in _attention(batch.sites[site], episodes, task).items():
                    note(f"{layer} {name}", own)
                    note(f"{layer} {name}, even", even)
            for name, edit in _cuts(task).items():
                changed = intervene(model, episodes, {layers[0]: edit})[:, -1].argmax(-1)
                note(f"cut {name}", changed == right)
    values = {name: torch.cat(parts) for name, parts in found.items()}

    def row(metric: str, name: str, control: str = "", site: str = "output", role: str = "readout", **more: Any) -> Row:
        one = values[name].numpy()
        lo, hi = mean_interval(one)
        return tables.row(metric, float(one.mean()), lo=lo, hi=hi, site=site, role=role, control=control, n=n, **known | more)

    score = values["right"].numpy()
    frame = pd.DataFrame({"evaluation": asked.name, "split": asked.split, "composition": names, "score": score})
    yield row("accuracy", "right") | {"kept": frame}
    yield row("accuracy", "by chance", "a label of the context")
    chance = tables.row("accuracy", 1 / task.n_labels, site="output", role="readout", control="chance", n=n, **known)
    yield chance
    if asked.name == SHIFTED:
        yield row("trained label", "trained")
    yield row("label of the context", "told")
    yield row("label of the context", "told by chance", "chance")
    if asked.name == NOVEL:
        roles = {"label to its item": "context", "question to right label": "readout", "question to labels": "readout"}
        for layer, site in enumerate(layers):
            for name, role in roles.items():
                yield row(name, f"{layer} {name}", "", site, role, layer=layer)
                yield row(name, f"{layer} {name}, even", "even", site, role, layer=layer)
        yield row("accuracy without label to item", "cut its item", "", layers[0], "context", layer=0)
        yield row("accuracy without label to item", f"cut {ANOTHER}", ANOTHER, layers[0], "context", layer=0)


def _attention(pattern: Tensor, episodes: Episodes, task: BurstyClassification) -> dict[str, tuple[Tensor, Tensor]]:
    """name -> (attention (batch,), the same if it were even), mean over heads, from a pattern (batch, head, query, key)."""
    mean = pattern.double().mean(1)
    even = task.mask.double().to(mean)
    even = (even / even.sum(1, keepdim=True)).expand_as(mean)
    items, labels = torch.arange(0, 2 * task.n_context, 2), torch.arange(1, 2 * task.n_context, 2)
    right = _of_question(episodes, task)
    reads: dict[str, Callable[[Tensor], Tensor]] = {
        "label to its item": lambda a: a[:, labels, items].mean(1),
        "question to right label": lambda a: (a[:, -1, labels] * right).sum(1),
        "question to labels": lambda a: a[:, -1, labels].sum(1),
    }
    return {name: (read(mean), read(even)) for name, read in reads.items()}


def _of_question(episodes: Episodes, task: BurstyClassification) -> Tensor:
    """(batch, n_context) bool: the items nearest to the question's, which are of its class."""
    content = episodes.tokens[..., task.n_positions :]
    alike = (content[:, 0 : 2 * task.n_context : 2] * content[:, -1:]).sum(-1)
    nearest = alike.topk(task.burstiness, dim=1).indices
    return torch.zeros_like(alike, dtype=torch.bool).scatter(1, nearest, True)


def _cuts(task: BurstyClassification) -> dict[str, Callable[[Tensor], Tensor]]:
    """What sets attention of labels, from the second on, to 0: to their own item, or to that of the pair before."""
    labels = torch.arange(3, 2 * task.n_context, 2)

    def cut(keys: Tensor) -> Callable[[Tensor], Tensor]:
        def edit(pattern: Tensor) -> Tensor:
            pattern = pattern.clone()
            pattern[:, :, labels, keys] = 0
            return pattern

        return edit

    return {"its item": cut(labels - 1), ANOTHER: cut(labels - 3)}
