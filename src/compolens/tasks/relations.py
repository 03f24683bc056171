"""Relations between blocks: which of several relations makes c of a and b, shown twice, then asked for (after 2511.20194).

An episode is L blocks of three panels. The same relation, a pair of operators, one for each operand, holds in all of them:
c = left(a) + right(b). The last c is hidden (its tokens are zero, but for their position):

    block 0    a  b  c   \\ examples
    block 1    a  b  c   /
    block 2    a  b  ?     the question

A composition is a pair (left, right). Held-out pairs consist of operators that training shows in other company. The paper
shows such sequences as a motivation and does not say how they are drawn; operators, sizes and the split are ours.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from compolens.foundation.configs import ConfigError, frozen, require, require_positive
from compolens.tasks.base import TaskFamily, require_few
from compolens.tasks.episodes import Episodes, Readouts, check_drawing, one_of

Pair = tuple[int, int]


@dataclass(frozen=True)
class _Relations(TaskFamily):
    """What both families share: pairs of operators, the split, the layout of an episode.

    Args:
        n_left: operators there are for a.
        n_right: operators there are for b.
        n_blocks: L, blocks of an episode; at least 2.
        fraction_held_out: of the pairs of operators, drawn with `split_seed` so that every operator occurs in training, as
            evenly as can be.
        held_out: the held-out pairs themselves instead.
        positions: whether each token carries a one-hot code of its position within the block (never of the block).
        split_seed: draws which pairs are held out.
    """

    n_left: int = 4
    n_right: int = 4
    n_blocks: int = 3
    fraction_held_out: float = 0.5
    held_out: tuple[Pair, ...] | None = None
    positions: bool = False
    split_seed: int = 0

    code_kinds: ClassVar[dict[str, str]] = {"left": "categorical", "right": "categorical"}

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_left", "n_right", "n_blocks")
        require(self.n_blocks >= 2, f"n_blocks={self.n_blocks} leaves no example beside the question; use at least 2")
        require_few(type(self).__name__, [self.n_left * self.n_right], "lower n_left or n_right")
        object.__setattr__(self, "held_out", frozen(self.held_out))
        unseen = self._unseen(self._split[0])
        require(not unseen, f"the split leaves {', '.join(unseen)} unseen in training; hold out fewer pairs with it")

    # ---- what a subclass says ----------------------------------------------------------------------------------------
    @property
    def setting(self) -> str:
        positions = ", with positions" if self.positions else ""
        return f"{type(self).__name__} {self.n_left}×{self.n_right}{positions}"

    @property
    @abstractmethod
    def panel(self) -> tuple[int, int]:
        """(tokens, width of a token without its position) of one panel."""

    @abstractmethod
    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        """(n, L, 2, tokens, width): the operands of every block, independent of the relation."""

    @abstractmethod
    def result(self, left: Tensor, right: Tensor, operands: Tensor) -> Tensor:
        """(batch, L, tokens, width): c under the operators (batch,), of operands (batch, L, 2, tokens, width)."""

    # ---- the split ---------------------------------------------------------------------------------------------------
    @cached_property
    def _universe(self) -> list[Pair]:
        return list(product(range(self.n_left), range(self.n_right)))

    def _unseen(self, train: Sequence[Pair]) -> list[str]:
        sides = (("left", self.n_left), ("right", self.n_right))
        seen = [{pair[k] for pair in train} for k in range(len(sides))]
        return [f"{side} operator {i}" for k, (side, n) in enumerate(sides) for i in range(n) if i not in seen[k]]

    @cached_property
    def _split(self) -> tuple[list[Pair], list[Pair]]:
        if self.held_out is None:
            return self._random_split()
        for pair in self.held_out:
            require(
                pair in self._universe,
                f"held_out must list pairs [left, right] with left below {self.n_left} and right below {self.n_right}, "
                f"got the entry {pair!r}",
            )
        require(len(set(self.held_out)) == len(self.held_out), "held_out lists a pair twice; list it once")
        require(bool(self.held_out), "held_out lists no pair; list some, or leave it out to hold out a fraction")
        train = [pair for pair in self._universe if pair not in self.held_out]
        require(bool(train), f"held_out lists all {len(self._universe)} pairs, so nothing is left to train on; list fewer")
        return train, sorted(self.held_out)

    def _random_split(self) -> tuple[list[Pair], list[Pair]]:
        """A random part is held out, operators as evenly as possible: whole diagonals of a shuffled table, and a part of one.

        Drawn again (up to 1,000 times) until every operator occurs in training."""
        fraction, everything = self.fraction_held_out, self._universe
        require(0 < fraction < 1, f"fraction_held_out must lie between 0 and 1, got {fraction}")
        n_held_out = int(fraction * len(everything))
        require(
            n_held_out >= 1, f"fraction_held_out={fraction} of {len(everything)} pairs holds out none; raise it, or list them"
        )
        shuffler, diagonals = random.Random(self.split_seed), min(self.n_left, self.n_right)
        for _ in range(1000):
            rows, columns = (shuffler.sample(range(n), n) for n in (self.n_left, self.n_right))
            order = shuffler.sample(everything, len(everything))
            order.sort(key=lambda pair: (rows[pair[0]] + columns[pair[1]]) % diagonals)
            if not self._unseen(order[n_held_out:]):
                return sorted(order[n_held_out:]), sorted(order[:n_held_out])
        raise ConfigError(
            f"with fraction_held_out={fraction} no split in 1,000 draws shows all {self.n_left} + {self.n_right} operators "
            "in training; hold out less"
        )

    def compositions(self, split: str) -> tuple[int, ...]:
        """Pairs as left * n_right + right."""
        self.check_split(split)
        return tuple(left * self.n_right + right for left, right in self._split[split == "ood"])

    @property
    def n_compositions(self) -> int:
        return len(self._universe)

    def composition_name(self, composition: int) -> str:
        left, right = self._universe[composition]
        return f"{left}|{right}"

    def describe_split(self) -> dict[str, Any]:
        train, held_out = self._split
        return {
            "n_pairs": len(self._universe),
            "held_out": [list(pair) for pair in held_out],
            "uses_per_left_operator": [sum(p[0] == i for p in train) for i in range(self.n_left)],
            "uses_per_right_operator": [sum(p[1] == i for p in train) for i in range(self.n_right)],
        }

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        tokens, width = self.panel
        return width + (3 * tokens if self.positions else 0)

    @property
    def d_out(self) -> int:
        return self.panel[1]

    @property
    def seq(self) -> int:
        return 3 * self.panel[0] * self.n_blocks

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.seq - self.panel[0], self.seq))

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        length = 3 * self.panel[0]
        return tuple(tuple(range(b * length, (b + 1) * length)) for b in range(self.n_blocks))

    # ---- episodes ----------------------------------------------------------------------------------------------------
    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        return self.render(self._codes(composition), self.draw(n, rng))

    def _codes(self, composition: Tensor) -> dict[str, Tensor]:
        return {"left": composition // self.n_right, "right": composition % self.n_right}

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These operands (batch, L, 2, tokens, width) under those operators {"left": (batch,), "right": (batch,)}."""
        left, right = codes["left"], codes["right"]
        panels = torch.cat([inputs, self.result(left, right, inputs)[:, :, None]], dim=2)
        targets = panels.flatten(1, 3)
        tokens = pad(targets[:, : -self.panel[0]], (0, 0, 0, self.panel[0]))
        if self.positions:
            place = torch.eye(3 * self.panel[0]).to(tokens).repeat(self.n_blocks, 1)
            tokens = torch.cat([tokens, place.expand(len(tokens), -1, -1)], dim=-1)
        last = panels[:, -1].flatten(2)
        nuisances = {
            "operand_magnitude": last[:, :2].square().mean((1, 2)).sqrt(),
            "target_magnitude": last[:, 2].square().mean(1).sqrt(),
        }
        return Episodes(tokens, targets, dict(codes), left * self.n_right + right, inputs, nuisances)

    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The two operators, one-hot."""
        sizes = {"left": self.n_left, "right": self.n_right}
        return {side: one_hot(codes[side], n).float() for side, n in sizes.items()}

    def exchange(
        self, base: dict[str, Tensor], source: dict[str, Tensor], rng: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One of the two operators is the source's."""
        ours, theirs = (torch.stack([codes["left"], codes["right"]], dim=1) for codes in (base, source))
        possible = (ours != theirs).all(1, keepdim=True)  # else the exchange leads to the base's or the source's own pair
        mask = one_of(possible.expand_as(ours), rng)
        left, right = torch.where(mask, theirs, ours).T
        return {"left": left, "right": right}, mask

    def revealed(self, episodes: Episodes) -> Tensor:
        width = self.panel[1]
        return torch.cat([episodes.targets, episodes.tokens[..., width:]], dim=-1)

    def candidates(self, episodes: Episodes, allowed: Sequence[int]) -> tuple[Tensor, Tensor]:
        shown, found, errors = slice(0, self.seq - len(self.blocks[0])), [], []
        for composition in allowed:
            codes = self._codes(torch.full_like(episodes.composition, composition))
            found.append(self.render(codes, episodes.inputs).targets)
            errors.append((found[-1] - episodes.targets)[:, shown].square().sum((1, 2)))
        return torch.stack(found, dim=1), torch.stack(errors, dim=1)

    # ---- loss --------------------------------------------------------------------------------------------------------
    def _asked(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        first = self.seq - self.panel[0]
        return prediction[:, first:], targets[:, first:]

    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of the hidden panel."""
        answer, wanted = self._asked(prediction, targets)
        return (answer - wanted).square().mean()

    # ---- readouts ----------------------------------------------------------------------------------------------------
    def readouts(self, episodes: Episodes) -> Readouts:
        """At each token of the hidden panel: attention to itself, and to the operands of its block."""
        (tokens, _), n = self.panel, len(episodes.targets)
        query = torch.tensor(self.answers, device=episodes.targets.device).expand(n, tokens)
        operands = torch.tensor(self.blocks[-1][: 2 * tokens], device=query.device).expand(n, tokens, -1)
        own = torch.stack([query, query], dim=-1)[:, :, None]
        to_operands = torch.stack([query[..., None].expand_as(operands), operands], dim=-1)
        block = episodes.targets.unflatten(1, (self.n_blocks, -1))[:, -1]
        raw = block[:, : 2 * tokens].flatten(1)[:, None].expand(n, tokens, -1)
        context = episodes.targets[:, : -3 * tokens].flatten(1)[:, None].expand(n, tokens, -1)
        return Readouts(
            pairs={"self": own, "operands": to_operands},
            labels={side: episodes.codes[side][:, None].expand(n, tokens) for side in ("left", "right")},
            classes={
                "left": tuple(f"left {i}" for i in range(self.n_left)),
                "right": tuple(f"right {i}" for i in range(self.n_right)),
            },
            confounds={name.replace("_", " "): value[:, None].expand(n, tokens) for name, value in episodes.nuisances.items()},
            inputs={"raw input": raw, "raw context": context},
        )


@dataclass(frozen=True)
class Relations(_Relations):
    """Vectors: c = left a + right b, with a, b standard normal; operators are numbers.

    They lie in equal steps from -1 to 1 (four: -1, -1/3, 1/3, 1); their counts are even, so that none is 0. Where all occur
    equally often, the mean over relations says nothing about c. Score: R² of c about 0, its mean; 1 is perfect, 0 is answering
    nothing, may be negative. Other fields as in the base class.

    >>> task = Relations()
    >>> episodes = task.sample(5, "ood", task.rng(0, "ood"))
    >>> episodes.tokens.shape, len(task.compositions("train")), len(task.compositions("ood"))
    (torch.Size([5, 9, 8]), 8, 8)

    Args:
        width: of a and b, the coordinates of a panel.
    """

    width: int = 8

    score_name: ClassVar[str] = "R²"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "width")
        for name in ("n_left", "n_right"):
            n = getattr(self, name)
            require(n % 2 == 0, f"{name} must be even, since one of an odd number of factors is 0, got {n}")

    @property
    def panel(self) -> tuple[int, int]:
        return 1, self.width

    @property
    def operators(self) -> tuple[Tensor, Tensor]:
        """left (n_left,) and right (n_right,): what a and b are multiplied by."""
        return torch.linspace(-1, 1, self.n_left), torch.linspace(-1, 1, self.n_right)

    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        return torch.randn(n, self.n_blocks, 2, 1, self.width, generator=rng, device=rng.device)

    def result(self, left: Tensor, right: Tensor, operands: Tensor) -> Tensor:
        by_left, by_right = (numbers.to(operands) for numbers in self.operators)
        a, b = operands[:, :, 0], operands[:, :, 1]
        return by_left[left][:, None, None, None] * a + by_right[right][:, None, None, None] * b

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        answer, wanted = (part.double() for part in self._asked(prediction, targets))
        return (answer - wanted).square().sum((1, 2)), wanted.square().sum((1, 2))


SYMMETRIES = 8
SHARP = 1e-4
"""Mean squared error of an image at a peak signal-to-noise ratio of 40 dB."""


@dataclass(frozen=True)
class RelationImages(_Relations):
    """Small grey images: c is the mean of a and b, each turned or mirrored; tokens are square patches.

    Operators are the symmetries of the square: quarter turns 0 to 3, then the same after mirroring, so n_left and n_right are
    at most 8. Pixels are uniform on [0, 1]. Score: the fraction of images with a peak signal-to-noise ratio above 40 dB, 10
    log10(1 / MSE), as 2511.20194 counts RAVEN images; beside it the R² of the pixels (0: grey everywhere) and the ratio itself
    in units of 40 dB. Other fields as in the base class.

    >>> task = RelationImages()
    >>> task.sample(5, "train", task.rng(0, "train")).tokens.shape
    torch.Size([5, 9, 19])

    Args:
        positions: whether tokens say their positions; on, since patches have no meaning without them.
        size: pixels of an image's side.
        patch: pixels of a patch's side, a divisor of size.
    """

    positions: bool = True
    size: int = 4
    patch: int = 4

    score_name: ClassVar[str] = "images above 40 dB"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "size", "patch")
        require(
            self.size % self.patch == 0, f"patches of {self.patch} pixels do not tile {self.size}; choose patch to divide size"
        )
        for name in ("n_left", "n_right"):
            n = getattr(self, name)
            require(n <= SYMMETRIES, f"{name} must be at most {SYMMETRIES} symmetries, got {n!r}")

    @property
    def panel(self) -> tuple[int, int]:
        return (self.size // self.patch) ** 2, self.patch**2

    @cached_property
    def _sources(self) -> Tensor:
        """(8, tokens * width): which pixel, in the order of tokens, each symmetry brings to a position."""
        side, n = self.patch, self.size // self.patch
        order = torch.arange(self.size**2).view(n, side, n, side).transpose(1, 2).reshape(-1)  # position in tokens -> pixel
        place = order.argsort()
        image = torch.arange(self.size**2).view(self.size, self.size)
        turned = [torch.rot90(m, k) for m in (image, image.flip(1)) for k in range(4)]
        return torch.stack([place[t.reshape(-1)[order]] for t in turned])

    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        return torch.rand(n, self.n_blocks, 2, *self.panel, generator=rng, device=rng.device)

    def result(self, left: Tensor, right: Tensor, operands: Tensor) -> Tensor:
        sources, pixels = self._sources.to(left.device), operands.flatten(3)
        moved = [
            pixels[:, :, side].gather(2, sources[operator][:, None].expand_as(pixels[:, :, side]))
            for side, operator in enumerate((left, right))
        ]
        return ((moved[0] + moved[1]) / 2).unflatten(2, self.panel)

    def images(self, values: Tensor) -> Tensor:
        """The pixels of tokens put together, to look at.

        Args:
            values: tokens, targets or a prediction, (batch, seq, at least the pixels of a patch).

        Returns:
            (batch, panels, size, size).
        """
        n, side = self.size // self.patch, self.patch
        patches = values[..., : side**2].unflatten(1, (-1, n, n)).unflatten(4, (side, side))
        return patches.transpose(3, 4).reshape(len(values), -1, self.size, self.size)

    def _mse(self, prediction: Tensor, targets: Tensor) -> Tensor:
        answer, wanted = (part.double() for part in self._asked(prediction, targets))
        return (answer - wanted).square().mean((1, 2))

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        blurred = (~(self._mse(prediction, targets) < SHARP)).double()  # what is no number is not sharp
        return blurred, torch.ones_like(blurred)

    def metrics(self, prediction: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        mse = self._mse(prediction, targets)
        variance = (self._asked(targets, targets)[1].double() - 0.5).square().mean((1, 2))
        decibel = -10 * mse.clamp(min=1e-12).log10()
        return {
            "score": self.errors(prediction, targets),
            "R²": (mse, variance),
            "PSNR / 40 dB": (1 - decibel / 40, torch.ones_like(mse)),
        }
