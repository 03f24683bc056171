"""In-context against in-weights learning: labelled items, then a question about one of them (2312.03002).

An item is a noisy copy of its class's mean. Training classes have a label each, which weights may learn; other episodes show
classes never seen before, whose labels only the context tells. A token is [one-hot position | item or label]:

    x_1  l_1  x_2  l_2  …  x_N  l_N  x_q       asked is the label of x_q; positions count from a random start

In a bursty episode the question's class is in the context, B times. A composition is a class with the label it has in the
episode. Training shows class k with label k mod L, and novel classes; held out are training classes with labels shifted by one
or more, so that class and label are both known and their pair is not: the context says one label, the weights another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from compolens.foundation.configs import require, require_positive
from compolens.tasks.base import TaskFamily, require_few
from compolens.tasks.episodes import Episodes, Labelled, answered, check_drawing


@dataclass(frozen=True)
class BurstyClassification(TaskFamily):
    """The family; the module says what an episode looks like.

    Codes: "class" (batch,) of the question, n_classes for a novel one, and "label" (batch,). Scored is whether the label of
    highest logit is right.

    >>> task = BurstyClassification()
    >>> drawn = task.sample(3, "ood", task.rng(0, "ood"))
    >>> drawn.tokens.shape, task.composition_name(int(task.compositions("ood")[0]))
    (torch.Size([3, 17, 128]), 'class 0, label 1')

    Args:
        n_classes: K, training classes.
        n_labels: L, labels.
        n_context: N, labelled items of an episode.
        burstiness: B, how often each class of the context occurs in it; divides n_context.
        p_bursty: of the episodes of known classes, the share that show the question's class; in the others only weights can
            know. With 0, none shows it, and there are no novel classes.
        p_novel: of all episodes of training and test, the share whose classes are novel; these always show the question's. So
            the class is shown in p_novel + (1 - p_novel) p_bursty of them.
        shifts: by 1 to so many labels are shifted on held-out compositions.
        d_item: width of an item and of a label.
        n_positions: width of the code of positions, at least 2 n_context + 1.
        noise: standard deviation of an item about its class's mean, relative to the mean's length.
        teacher_seed: draws class means and label vectors.
    """

    n_classes: int = 256
    n_labels: int = 32
    n_context: int = 8
    burstiness: int = 1
    p_bursty: float = 1.0
    p_novel: float = 0.8
    shifts: int = 1
    d_item: int = 63
    n_positions: int = 65
    noise: float = 0.1
    teacher_seed: int = 0

    code_kinds: ClassVar[dict[str, str]] = {"class": "categorical", "label": "categorical"}
    score_name: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_classes", "n_labels", "n_context", "burstiness", "shifts", "d_item", "n_positions")
        name = type(self).__name__
        for share in ("p_bursty", "p_novel"):
            require(0 <= getattr(self, share) <= 1, f"{name}: {share} must lie between 0 and 1, got {getattr(self, share)}")
        require(self.noise >= 0, f"{name}: noise must not be negative, got {self.noise}")
        require(
            self.n_context % self.burstiness == 0,
            f"{name}: burstiness must divide n_context={self.n_context}, got {self.burstiness}",
        )
        require(
            self.n_classes > self.groups,
            f"{name}: n_classes must exceed the {self.groups} classes that a context shows, got {self.n_classes}",
        )
        require(
            self.shifts < self.n_labels,
            f"{name}: shifts must be below n_labels={self.n_labels}, got {self.shifts}; a shift by all labels is none",
        )
        require(
            self.n_positions >= self.seq,
            f"{name}: n_positions must be at least {self.seq}, the tokens of an episode, got {self.n_positions}",
        )
        require_few(name, [self.n_compositions], "lower n_classes or shifts")

    # ---- compositions ------------------------------------------------------------------------------------------------
    @property
    def groups(self) -> int:
        """Classes that a context shows."""
        return self.n_context // self.burstiness

    @property
    def novel(self) -> int:
        """The composition of all episodes whose classes are novel."""
        return self.n_classes * (self.shifts + 1)

    @property
    def n_compositions(self) -> int:
        return self.novel + 1

    def compositions(self, split: str) -> tuple[int, ...]:
        """class * (shifts + 1) + shift; the last one stands for novel classes."""
        self.check_split(split)
        width = self.shifts + 1
        if split == "ood":
            return tuple(k * width + shift for k in range(self.n_classes) for shift in range(1, width))
        known = tuple(k * width for k in range(self.n_classes))
        return (*known, self.novel) if self.p_novel and self.p_bursty else known

    def composition_name(self, composition: int) -> str:
        if composition == self.novel:
            return "novel class"
        k, shift = divmod(composition, self.shifts + 1)
        return f"class {k}, label {(k + shift) % self.n_labels}"

    def describe_split(self) -> dict[str, Any]:
        return {
            "train": f"{self.n_classes} classes with their own label, and novel classes ({self.p_novel:g} of the episodes)",
            "held_out": f"the same classes with labels shifted by 1 to {self.shifts}",
        }

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        return self.n_positions + self.d_item

    @property
    def d_out(self) -> int:
        return self.n_labels

    @property
    def seq(self) -> int:
        return 2 * self.n_context + 1

    @property
    def answers(self) -> tuple[int, ...]:
        return (2 * self.n_context,)

    @property
    def mask(self) -> Tensor:
        return torch.ones(self.seq, self.seq, dtype=torch.bool).tril()

    # ---- episodes ----------------------------------------------------------------------------------------------------
    @cached_property
    def teacher(self) -> tuple[Tensor, Tensor]:
        """(class means (n_classes, d_item), label vectors (n_labels, d_item)): normal, of expected squared length 1."""
        rng = torch.Generator().manual_seed(self.teacher_seed)
        drawn = torch.randn(self.n_classes + self.n_labels, self.d_item, generator=rng) / self.d_item**0.5
        return drawn[: self.n_classes], drawn[self.n_classes :]

    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        if compositions is None and self.novel in chosen.tolist():
            known = chosen[torch.randint(len(chosen) - 1, (n,), generator=rng, device=rng.device)]
            fresh = torch.rand(n, generator=rng, device=rng.device) < self.p_novel
            composition = torch.where(fresh, self.novel, known)
        k, shift = composition // (self.shifts + 1), composition % (self.shifts + 1)
        drawn = torch.randint(self.n_labels, (n,), generator=rng, device=rng.device)
        label = torch.where(composition == self.novel, drawn, (k + shift) % self.n_labels)
        k = torch.where(composition == self.novel, self.n_classes, k)
        return self.render({"class": k, "label": label}, self._draw(n, rng))

    @cached_property
    def _parts(self) -> dict[str, int]:
        """What `inputs` holds, one after the other: name -> how many numbers."""
        items = (self.n_context + 1) * self.d_item
        return {
            "shown": 1, "start": 1, "order": self.n_context, "priority": self.n_classes, "labels": self.groups,
            "means": (self.groups + 1) * self.d_item, "noise": items,
        }  # fmt: skip

    def _draw(self, n: int, rng: torch.Generator) -> Tensor:
        """(n, …) uniform numbers, then normal ones: all that is independent of the question's class and label."""
        uniform = sum(count for name, count in self._parts.items() if name not in ("means", "noise"))
        normal = self._parts["means"] + self._parts["noise"]
        device = rng.device
        drawn = torch.rand(n, uniform, generator=rng, device=device), torch.randn(n, normal, generator=rng, device=device)
        return torch.cat(drawn, dim=1)

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These inputs (batch, …), as `sample` draws them, with a question of those classes and labels.

        `composition` is -1 where a class has a label that no split gives it.
        """
        part = dict(zip(self._parts, inputs.split(list(self._parts.values()), dim=1), strict=True))
        k, label, n = codes["class"], codes["label"], len(inputs)
        fresh = k == self.n_classes
        shown = (part["shown"][:, 0] < self.p_bursty) | fresh
        # the classes of the context: the question's, if it is shown, then others, at random
        own = one_hot(k, self.n_classes + 1)[:, : self.n_classes].bool()
        others = part["priority"].masked_fill(own, -1.0).topk(self.groups, dim=1).indices
        classes = torch.cat([k.clamp(max=self.n_classes - 1)[:, None], others], dim=1)  # (n, 1 + groups), the question's first
        shift = (label - classes[:, 0]) % self.n_labels
        labels = (classes + shift[:, None]) % self.n_labels
        free = (part["labels"] * self.n_labels).long().clamp(max=self.n_labels - 1)
        labels = torch.where(fresh[:, None], torch.cat([label[:, None], free], dim=1), labels)
        means = part["means"].unflatten(1, (self.groups + 1, self.d_item)) / self.d_item**0.5
        means = torch.where(fresh[:, None, None], means, self.teacher[0].to(inputs)[classes])
        # which of them stands where
        place = torch.arange(self.n_context, device=inputs.device) // self.burstiness
        place = place + (~shown).long()[:, None]
        place = place.gather(1, part["order"].argsort(1))
        which = torch.cat([place, torch.zeros_like(place[:, :1])], dim=1)
        noise = part["noise"].unflatten(1, (self.n_context + 1, self.d_item)) / self.d_item**0.5
        rows = torch.arange(n, device=inputs.device)[:, None]
        items = (means[rows, which] + self.noise * noise) / (1 + self.noise**2) ** 0.5
        told = labels[rows, which]
        content = torch.stack([items, self.teacher[1].to(inputs)[told]], dim=2).flatten(1, 2)[:, : self.seq]
        room = self.n_positions - self.seq + 1
        start = (part["start"] * room).long().clamp(max=room - 1)
        position = one_hot(start + torch.arange(self.seq, device=inputs.device), self.n_positions).to(inputs)
        targets = told.repeat_interleave(2, dim=1)[:, : self.seq]
        return Episodes(
            torch.cat([position, content], dim=-1), targets, {"class": k, "label": label},
            self._composition_of(k, label), inputs, {"shown": shown.float(), "start": start[:, 0].float()},
        )  # fmt: skip

    def _composition_of(self, k: Tensor, label: Tensor) -> Tensor:
        shift = (label - k) % self.n_labels
        known = torch.where(shift <= self.shifts, k * (self.shifts + 1) + shift, -1)
        return torch.where(k == self.n_classes, self.novel, known)

    def labelled(self, episodes: Episodes) -> Labelled:
        at = torch.arange(0, self.seq, 2, device=episodes.tokens.device)
        return Labelled(episodes.tokens[:, ::2, self.n_positions :], at, at[:-1] + 1)

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the question's label."""
        return cross_entropy(prediction[:, -1], targets[:, -1])

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the label of highest logit is wrong; every episode weighs 1."""
        wrong = (answered(prediction[:, -1]) != targets[:, -1]).double()
        return wrong, torch.ones_like(wrong)

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """How often each label vector stands in the context, (batch, n_labels): the similarity of labels to each, summed."""
        content = episodes.tokens[:, 1 : 2 * self.n_context : 2, self.n_positions :].double()
        return (content @ self.teacher[1].to(content).T).sum(1)
