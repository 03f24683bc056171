"""Models whose way of failing is known: written down in three stages instead of trained, each reading only the stream.

    blocks.0   the context's tokens are read from the stream; a message about them is written to every one of them
    blocks.1   every query takes over the context's mean message
    blocks.2   every query reads the message and its own x from its stream, and writes its answer

With an explicit code the sequence is the context and a summary, which takes over the message; ``hook_code`` holds it, and an
executor behind it sees the queries, as in `compolens.models.bottleneck`. Everything is written by one random linear map,
and read by its pseudo-inverse. As built, the weights are random: that is the untrained control; `plant` sets them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

import torch
from mechanisms import Mechanism
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError
from compolens.hooks import HookedModel, HookPoint
from compolens.models.attention import Sizes
from compolens.models.base import split_positions
from compolens.models.blocks import Unembed
from compolens.models.transformer import ModelConfig


class Stage(nn.Module):
    """A block: what it reads off the stream by W_read, the model's mechanism turns into what W_write writes."""

    def __init__(self, d_model: int, reads: int, writes: int) -> None:
        super().__init__()
        self.W_read = nn.Parameter(torch.randn(d_model, reads) / math.sqrt(d_model))
        self.W_write = nn.Parameter(torch.randn(writes, d_model) / math.sqrt(d_model))
        self.hook_resid_pre, self.hook_resid_post = HookPoint(), HookPoint()

    @abstractmethod
    def update(self, read: Tensor, context: int, mechanism: Mechanism) -> tuple[Tensor, Tensor]:
        """What is written at the first `context` positions, and at those after; each (batch, pos, writes)."""

    def forward(self, resid: Tensor, context: int, mechanism: Mechanism) -> Tensor:
        resid = self.hook_resid_pre(resid)
        update = torch.cat(self.update(resid @ self.W_read, context, mechanism), dim=1)
        return self.hook_resid_post(resid + update @ self.W_write)


class Infer(Stage):
    """Context tokens -> a message about them, at each of them."""

    def __init__(self, d_model: int, mechanism: Mechanism) -> None:
        known = mechanism.knowledge
        super().__init__(d_model, known.d_x + known.d_y, mechanism.width)

    def update(self, read: Tensor, context: int, mechanism: Mechanism) -> tuple[Tensor, Tensor]:
        x, y = read[:, :context].tensor_split([mechanism.knowledge.d_x], dim=-1)
        message = mechanism.write(x, y)[:, None]
        return message.expand(-1, context, -1), message.new_zeros(len(read), read.shape[1] - context, message.shape[-1])


class Move(Stage):
    """The context's mean message -> every position after."""

    def __init__(self, d_model: int, mechanism: Mechanism) -> None:
        super().__init__(d_model, mechanism.width, mechanism.width)

    def update(self, read: Tensor, context: int, mechanism: Mechanism) -> tuple[Tensor, Tensor]:
        mean = mechanism.carry(read[:, :context].mean(1))[:, None]
        return torch.zeros_like(read[:, :context]), mean.expand(-1, read.shape[1] - context, -1)


class Execute(Stage):
    """A query's own message and x -> its answer."""

    def __init__(self, d_model: int, mechanism: Mechanism) -> None:
        known = mechanism.knowledge
        super().__init__(d_model, mechanism.width + known.d_x, known.d_y)

    def update(self, read: Tensor, context: int, mechanism: Mechanism) -> tuple[Tensor, Tensor]:
        message, x = read[:, context:].flatten(0, 1).tensor_split([mechanism.width], dim=-1)
        answer = mechanism.read(message, x[:, None]).unflatten(0, (len(read), -1))[:, :, 0]
        return answer.new_zeros(len(read), context, answer.shape[-1]), answer


class PlantedModel(HookedModel):
    """tokens (batch, seq, d_in) -> prediction (batch, seq, d_out), by the mechanism; 0 at the context.

    ``unembed`` reads the answers off the stream; there is no norm.
    """

    unembed: Unembed
    hook_embed: HookPoint
    hook_code: HookPoint
    W_E: nn.Parameter
    blocks: nn.ModuleList

    def __init__(self, mechanism: Mechanism, *, d_in: int, d_out: int, seq: int, answers: Sequence[int]) -> None:
        super().__init__()
        context, readout = split_positions(seq, answers)
        d_model = 16 * math.ceil((d_in + mechanism.width + d_out + 8) / 16)
        self.mechanism, self.n_context = mechanism, len(context)
        self.W_E = nn.Parameter(torch.randn(d_in, d_model) / math.sqrt(d_model))
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(self._stages(d_model))
        self._finish(d_model, d_out)
        length = self._place(context, readout)
        sizes = Sizes(len(self.blocks), d_model, 1, d_model, d_model, d_model)
        self.cfg = ModelConfig(sizes, d_in, d_out, length)
        self.cfg.normalization_type, self.cfg.attn_only = None, False
        self.setup()

    def _stages(self, d_model: int) -> list[Stage]:
        return [kind(d_model, self.mechanism) for kind in (Infer, Move, Execute)]

    def _finish(self, d_model: int, d_out: int) -> None:
        self.unembed = Unembed(d_model, d_out)

    def _place(self, context: list[int], readout: list[int]) -> int:
        """Set the roles; the length of the model's own sequence."""
        self.roles = {"context": context, "readout": readout}
        return len(context) + len(readout)

    def start(self, tokens: Tensor) -> Tensor:
        """The residual stream that enters the first block."""
        return self.hook_embed(tokens @ self.W_E)

    def end(self, resid: Tensor, tokens: Tensor) -> Tensor:
        """The prediction, from the residual stream that leaves the last block."""
        return self.unembed(resid)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.ndim != 3 or tokens.shape[-1] != len(self.W_E):
            raise ConfigError(f"tokens must be (batch, seq, {len(self.W_E)}), got {tuple(tokens.shape)}")
        return self.resume(self.start(tokens), 0, tokens)

    def resume(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        for block in self.blocks[layer:]:
            resid = block(resid, self.n_context, self.mechanism)
        return self.end(resid, tokens)

    @torch.no_grad()
    def plant(self) -> None:
        """Turn the model as built into one that works: the task's parts, and every reading the inverse of the writing."""
        self.mechanism.knowledge.plant()
        infer, move = self._stage(0), self._stage(1)
        move.W_write.copy_(infer.W_write.mul_(self.mechanism.scale[:, None]))
        known, d_in, width = self.mechanism.knowledge, len(self.W_E), self.mechanism.width
        read = torch.linalg.pinv(torch.cat([self.W_E, move.W_write, self._answers()]).double()).to(self.W_E)
        message = read[:, d_in : d_in + width]
        infer.W_read.copy_(read[:, : known.d_x + known.d_y])
        move.W_read.copy_(message)
        self._plant_end(message, read[:, : known.d_x], read[:, d_in + width :])

    def _stage(self, number: int) -> Stage:
        return cast(Stage, self.blocks[number])

    def _answers(self) -> Tensor:
        return self._stage(2).W_write

    def _plant_end(self, message: Tensor, x: Tensor, answer: Tensor) -> None:
        self._stage(2).W_read.copy_(torch.cat([message, x], dim=1))
        self.unembed.W_U.copy_(answer)

    @torch.no_grad()
    def shuffle(self, stage: int, generator: torch.Generator) -> None:
        """Permute what a stage reads among the stream's directions."""
        weight = self._stage(stage).W_read
        weight.copy_(weight[torch.randperm(len(weight), generator=generator)])

    @torch.no_grad()
    def roughen(self, noise: float, generator: torch.Generator) -> None:
        """Multiply every weight by its own 1 + noise * N(0, 1), those of what it knows of the family by ten times as noisy a
        factor: nothing is exact any more, as in trained models. (A message's noise adds up over the directions it has.)"""
        known = set(self.mechanism.knowledge.parameters())
        for weight in self.parameters():
            spread = 10 * noise if weight in known else noise
            weight.mul_(1 + spread * torch.randn(weight.shape, generator=generator))


class PlantedCodeModel(PlantedModel):
    """The same with an explicit code: ``hook_code`` (batch, 1, width) is the message, read off the summary token."""

    def _stages(self, d_model: int) -> list[Stage]:
        return [kind(d_model, self.mechanism) for kind in (Infer, Move)]

    def _finish(self, d_model: int, d_out: int) -> None:
        self.summary = nn.Parameter(torch.randn(d_model) / math.sqrt(d_model))
        self.unembed = Unembed(d_model, self.mechanism.width)
        self.hook_code = HookPoint()

    def _place(self, context: list[int], readout: list[int]) -> int:
        self.roles = {"context": context, "readout": [len(context)]}
        return len(context) + 1

    def start(self, tokens: Tensor) -> Tensor:
        context = tokens[:, : self.n_context] @ self.W_E
        return self.hook_embed(torch.cat([context, self.summary.expand(len(tokens), 1, -1)], dim=1))

    def end(self, resid: Tensor, tokens: Tensor) -> Tensor:
        code = self.hook_code(self.unembed(resid[:, -1:]))
        return self.mechanism.read(code[:, 0], tokens[..., : self.mechanism.knowledge.d_x])

    def _answers(self) -> Tensor:
        return self.summary[None]  # so that the message's readings do not see it

    def _plant_end(self, message: Tensor, x: Tensor, answer: Tensor) -> None:
        self.unembed.W_U.copy_(message)
