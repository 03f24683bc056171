"""Coefficient transfer: the target block takes over how the blocks before it attended (2511.20194, its "lifting scheme").

A sequence is L blocks of equal length; the last, the target, may hide what is asked for, and then has little to attend with.
With alpha_i the rows of attention weights of block i and lambda_i one learned scalar per layer (shared by heads and rows),

    alpha_L <- alpha_L + sum_{i < L} lambda_i alpha_i

as printed (`OutputTransfer`). The columns stay where they are, so this adds the context blocks' attention outputs to the
target's, row by row: Z_L + sum_i lambda_i Z_i. `RelativeTransfer`, a reading of ours, moves the columns with the block:
row r of the target attends to its own block as row r of block i did to its.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.models.base import Part

Blocks = Sequence[Sequence[int]]


class TransferRows(nn.Module, ABC):
    """lam (L - 1,): what each context block contributes. Maps weights (batch, head, query, key) to weights of that shape.

    Args:
        blocks: groups of positions of equal length, the target's last.
        init: lambda before training (None: 1 / (L - 1)).
    """

    context: Tensor
    target: Tensor

    def __init__(self, blocks: Blocks, init: float | None) -> None:
        super().__init__()
        *context, target = [list(block) for block in blocks]
        self.lam = nn.Parameter(torch.full((len(context),), 1 / len(context) if init is None else init))
        self.register_buffer("context", torch.tensor(context), persistent=False)
        self.register_buffer("target", torch.tensor(target), persistent=False)
        self.tiling = [position for block in blocks for position in block] == list(range(len(blocks) * len(target)))

    @abstractmethod
    def moved(self, rows: Tensor, block: int) -> Tensor:
        """What the rows of a context block are worth in the target's rows.

        Args:
            rows: (batch, head, row, key).
            block: the block's number, from 0.

        Returns:
            The same shape.
        """

    def forward(self, pattern: Tensor) -> Tensor:
        """The weights after transfer of `pattern` (batch, head, query, key): the same shape."""
        if self.tiling:  # views: nothing is copied more than once
            *context, target = pattern.unflatten(2, (-1, len(self.target))).unbind(2)
            return torch.stack([*context, target + self._added(context)], dim=2).flatten(2, 3)
        return pattern.index_add(2, self.target, self._added([pattern[:, :, block] for block in self.context]))

    def _added(self, context: list[Tensor]) -> Tensor:
        moved = [lam * self.moved(rows, block) for block, (lam, rows) in enumerate(zip(self.lam, context, strict=True))]
        return functools.reduce(torch.add, moved)


class _OutputRows(TransferRows):
    def moved(self, rows: Tensor, block: int) -> Tensor:
        return rows


class _RelativeRows(TransferRows):
    def moved(self, rows: Tensor, block: int) -> Tensor:
        if self.tiling:
            own = rows.unflatten(3, (-1, len(self.target)))[:, :, :, block]
            return nn.functional.pad(own, (rows.shape[3] - len(self.target), 0))
        return torch.zeros_like(rows).index_copy(3, self.target, rows.index_select(3, self.context[block]))


@dataclass(frozen=True)
class Transfer(Part, ABC):
    """What the target block takes over.

    Args:
        init: lambda before training (None: 1 / (L - 1)).
    """

    init: float | None = None

    @abstractmethod
    def rows(self) -> type[TransferRows]:
        """The module that does it."""

    def build(self, blocks: Blocks | None) -> TransferRows:
        """The transfer for `blocks` of positions, the target last; a `DoesNotApply` without at least two, a `ConfigError`
        unless equally long."""
        name = type(self).__name__
        if blocks is None or len(blocks) < 2:
            raise DoesNotApply(
                f"{name} needs a task whose tokens form blocks, the target last, such as Relations or SRaven; "
                "use transfer=None here"
            )
        lengths = [len(block) for block in blocks]
        if len(set(lengths)) > 1:
            raise ConfigError(
                f"{name} matches rows by their place in the block, but the blocks have {lengths} tokens; "
                "give blocks of equal length, or transfer=None"
            )
        return self.rows()(blocks, self.init)


@dataclass(frozen=True)
class OutputTransfer(Transfer):
    """The formula as printed: rows are added, columns stay; Z_L + sum_i lambda_i Z_i."""

    def rows(self) -> type[TransferRows]:
        return _OutputRows


@dataclass(frozen=True)
class RelativeTransfer(Transfer):
    """Columns move with their block: alpha_L[:, block L] += lambda_i alpha_i[:, block i]. Our reading, not the printed one."""

    def rows(self) -> type[TransferRows]:
        return _RelativeRows
