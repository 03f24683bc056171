"""How weights move: AdamW with a schedule, and the recipe of a paper's code."""

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from compolens.foundation.configs import added_later, frozen, require, require_kinds
from compolens.measures.optimizers import WithoutCompiler


class _Uncompiled(WithoutCompiler, torch.optim.AdamW):
    """AdamW as it is used where no step is captured."""


@dataclass(frozen=True)
class Decay(ABC):
    """Which parameters weight decay acts on; a setting of `ReferenceAdamW`."""

    @abstractmethod
    def acts_on(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether weight decay acts on a parameter.

        Args:
            name: its name in the model.
            parameter: the parameter itself.

        Returns:
            True if it is decayed.
        """


@dataclass(frozen=True)
class MatricesOnly(Decay):
    """Matrices, not biases, whatever their shape."""

    def acts_on(self, name: str, parameter: nn.Parameter) -> bool:
        return parameter.ndim >= 2 and not name.split(".")[-1].startswith(("b_", "bias", "rel_bias"))


@dataclass(frozen=True)
class AllButVectors(Decay):
    """Every parameter that is no vector, hence also the biases of query, key and value and the relative-bias table."""

    def acts_on(self, name: str, parameter: nn.Parameter) -> bool:
        return parameter.ndim != 1


EARLIER_DECAYS: dict[str, Decay] = {"code": AllButVectors(), "paper": MatricesOnly()}
"""What folders of version 0.1 say -> what it is now; `ReferenceAdamW` takes either, and both make equal runs."""


@dataclass(frozen=True)
class AdamW:
    """AdamW with linear warm-up, then a cosine; weight decay on matrices only; gradients clipped.

    Args:
        lr: learning rate after warm-up, above 0.
        betas: decay rates of the two moments, as in torch.
        weight_decay: as in torch, decoupled, at least 0.
        warmup: steps over which the rate rises from 0.
        final: fraction of lr at the last step.
        clip: largest gradient norm (None: no clipping).
        decay_window: the part of training in which weights decay, as two shares of its steps, such as (0.4, 0.6). Decay is as
            much stronger there as makes its total, the sum of rate times decay over all steps, that of the whole training.
            (None: all of it.)
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 1e-2
    warmup: int = 500
    final: float = 0.02
    clip: float | None = 1.0
    decay_window: tuple[float, float] | None = added_later(None)

    def __post_init__(self) -> None:
        require_kinds(self)
        name = type(self).__name__
        object.__setattr__(self, "betas", frozen(self.betas))
        require(self.lr > 0, f"{name}: lr must be positive, got {self.lr}")
        require(self.clip is None or self.clip > 0, f"{name}: clip must be positive, or None for no clipping, got {self.clip}")
        require(all(0 <= b < 1 for b in self.betas), f"{name}: betas must be at least 0 and below 1, got {list(self.betas)}")
        require(0 <= self.final <= 1, f"{name}: final is a fraction of lr, from 0 to 1, got {self.final}")
        require(self.weight_decay >= 0 and self.warmup >= 0, f"{name}: weight_decay and warmup must not be negative")
        if self.decay_window is not None:
            object.__setattr__(self, "decay_window", frozen(self.decay_window))
            start, end = self.decay_window
            told = f"{name}: decay_window must be two shares of training, the first below the second, from 0 to 1"
            require(0 <= start < end <= 1, f"{told}; got {list(self.decay_window)}")

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """The optimizer of `model`; biases, gains and single vectors are not decayed."""
        decayed: list[nn.Parameter] = []
        free: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            (decayed if self.decays(name, parameter) else free).append(parameter)
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": free, "weight_decay": 0.0}]
        device = next(model.parameters()).device
        on_gpu = device.type == "cuda"  # there the step is captured, and reads its rate from the device
        lr = torch.tensor(self.lr, device=device) if on_gpu else self.lr
        groups = [g for g in groups if g["params"]]
        kind = torch.optim.AdamW if on_gpu else _Uncompiled
        return kind(groups, lr=lr, betas=self.betas, fused=True, capturable=on_gpu)

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether weight decay acts on a parameter: on matrices, not on biases, whatever their shape.

        Args:
            name: its name in the model.
            parameter: the parameter itself.

        Returns:
            True if it is decayed.
        """
        return MatricesOnly().acts_on(name, parameter)

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of the update that leads from `step` to `step + 1`.

        Args:
            step: updates done so far.
            steps: updates of the whole training.

        Returns:
            The rate, at least 0.
        """
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, steps - self.warmup)
        return self.lr * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress)))

    def check_steps(self, steps: int) -> None:
        """Raise a `ConfigError` where no step of so many `steps` lies in `decay_window`, at which weights could decay."""
        if self.decay_window is None or not steps:
            return
        start, end = (round(share * steps) for share in self.decay_window)
        told = f"{type(self).__name__}: no step of {steps} lies in decay_window={list(self.decay_window)}; widen it"
        require(any(self.rate(step, steps) > 0 for step in range(start, end)), told)

    def decay_at(self, step: int, steps: int) -> float:
        """Weight decay of the update that leads from `step` to `step + 1`: see `decay_window`.

        Args:
            step: updates done so far.
            steps: updates of the whole training.

        Returns:
            At least 0; `weight_decay` where there is no window.
        """
        return self.weight_decay if self.decay_window is None else _windowed(self, steps)[step]


@functools.lru_cache(maxsize=8)
def _windowed(optimizer: AdamW, steps: int) -> tuple[float, ...]:
    """Weight decay at every step of a training whose decay has a window."""
    start, end = optimizer.decay_window or (0.0, 1.0)
    rates = [optimizer.rate(step, steps) for step in range(steps)]
    inside = [round(start * steps) <= step < round(end * steps) for step in range(steps)]
    optimizer.check_steps(steps)
    factor = sum(rates) / sum(rate for rate, there in zip(rates, inside, strict=True) if there)
    return tuple(optimizer.weight_decay * factor if there else 0.0 for there in inside)


@dataclass(frozen=True)
class ReferenceAdamW(AdamW):
    """The recipe of "Attention as a hypernetwork" (2406.05816), as its code has it.

    The rate rises from 0 over `warmup` steps, falls along a cosine that ends `warmup` steps before the end (the code subtracts
    the warm-up from the schedule's length), and stays at final * lr. Defaults are those of the code.

    Args:
        betas: decay rates of the two moments.
        weight_decay: decoupled, at least 0.
        warmup: steps over which the rate rises from 0.
        final: fraction of lr at the end.
        clip: largest gradient norm (None: no clipping, as the code has it).
        decay: what weight decay acts on: `AllButVectors()`, as the code has it, or `MatricesOnly()`, as the paper says.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.1
    warmup: int = 100
    final: float = 0.1
    clip: float | None = None
    decay: Decay = AllButVectors()

    def __post_init__(self) -> None:
        if isinstance(self.decay, str) and self.decay in EARLIER_DECAYS:
            object.__setattr__(self, "decay", EARLIER_DECAYS[self.decay])
        super().__post_init__()
        allowed = [f"{kind.__name__}()" for kind in DECAYS]
        fits = isinstance(self.decay, Decay)
        require(fits, f"{type(self).__name__}: decay must be one of {' or '.join(allowed)}, got {self.decay!r}")

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        return self.decay.acts_on(name, parameter)

    def rate(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return self.lr * step / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, steps - 2 * self.warmup))
        return self.lr * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class WarmupStableDecay(ReferenceAdamW):
    """`ReferenceAdamW` with another schedule: warm-up, then a constant rate, then a straight line down to final * lr.

    The constant part does not depend on the length of the training, which makes short pilots comparable (Hägele et al.,
    2405.18392).

    Args:
        final: fraction of lr at the last step.
        decay_share: share of all steps, the last ones, that the line takes; from 0 to 1.
    """

    final: float = 0.0
    decay_share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.decay_share <= 1, f"{type(self).__name__}: decay_share must be from 0 to 1, got {self.decay_share}")

    def rate(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return self.lr * step / self.warmup
        left = (steps - step) / max(1.0, self.decay_share * steps)
        return self.lr * (self.final + (1 - self.final) * min(1.0, left))


RECIPES = (AdamW, ReferenceAdamW, WarmupStableDecay)
"""The classes that a run's `optimizer` may be of."""
DECAYS = (AllButVectors, MatricesOnly)
"""The classes that the setting `decay` of a recipe may be of."""
