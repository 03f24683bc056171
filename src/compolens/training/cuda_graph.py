"""One process that keeps a GPU busy with a small model: the training step as a CUDA graph, its data drawn on the device.

A step of the small models here is some hundred kernels of a few microseconds; launched one by one from Python they leave the
device idle most of the time. Captured once, forward, loss, backward and the optimizer's update are replayed by a single call.
Only the step is captured, never the hooked module: the model can be recorded and edited as before between replays.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

WARM_UP = 3
"""Steps run eagerly on the capturing stream before capture, as torch asks; their effects are undone."""


class GraphedStep:
    """A training step on fixed-size batches, captured once: ``loss, norm = step(tokens, targets)``.

    Returned tensors are overwritten by the next call: read them, or copy them, before it.

    Args:
        predict: the model's forward.
        loss: (prediction, targets) -> scalar.
        model: whose parameters are updated.
        optimizer: its groups' lr must be tensors on the device (`capturable`).
        tokens: a batch of the shape that all have.
        targets: its targets.
        clip: largest gradient norm (None: no clipping).
        noise: the generator that dropout draws from (None: no dropout).
    """

    def __init__(
        self,
        predict: Callable[[Tensor], Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        tokens: Tensor,
        targets: Tensor,
        clip: float | None = None,
        noise: torch.Generator | None = None,
    ) -> None:
        self.tokens, self.targets = tokens.clone(), targets.clone()
        self.loss, self.norm = torch.zeros((), device=tokens.device), torch.zeros((), device=tokens.device)
        parameters = [p for p in model.parameters() if p.requires_grad]

        def update() -> None:
            optimizer.zero_grad(set_to_none=True)
            value = loss(predict(self.tokens), self.targets)
            value.backward()
            norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
            if clip is not None:
                nn.utils.clip_grads_with_norm_(parameters, clip, norm)
            optimizer.step()
            self.loss.copy_(value.detach())
            self.norm.copy_(norm)

        state = [*parameters, *model.buffers()]  # thresholds and the like move along in training
        before_it = [tensor.detach().clone() for tensor in state]
        moments = {p: {k: v.clone() for k, v in optimizer.state[p].items()} for p in parameters if p in optimizer.state}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                update()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        if noise is not None:
            self.graph.register_generator_state(noise)
        with torch.cuda.graph(self.graph):
            update()
        with torch.no_grad():  # warming up moved weights and moments; in place, since the graph holds their addresses
            for tensor, value in zip(state, before_it, strict=True):
                tensor.copy_(value)
            for parameter in parameters:
                for key, slot in optimizer.state[parameter].items():
                    before = moments.get(parameter, {}).get(key)
                    slot.zero_() if before is None else slot.copy_(before)

    def __call__(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, gradient norm) of one update on this batch, as tensors on the device; the call does not wait for them."""
        self.tokens.copy_(tokens, non_blocking=True)
        self.targets.copy_(targets, non_blocking=True)
        self.graph.replay()
        return self.loss, self.norm
