"""One hook point at one submodule of a network: what passes there passes through it while torch's forward hooks are on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from compolens.foundation.configs import ConfigError
from compolens.hooks import HookPoint


class Tap(ABC):
    """One hook point and the submodule at which it reads and writes.

    Args:
        name: the hook point's name.
        path: the submodule's name; "NAME@2" is its third call of a forward pass, where it is called several times.
        index: into a tuple or list, or a key (None: the tensor itself).
        point: the hook point.
    """

    side: str

    def __init__(self, name: str, path: str, index: int | str | None, point: HookPoint) -> None:
        self.name, self.index, self.point = name, index, point
        self.path, _, number = path.partition("@")
        self.number = int(number) if number else None
        self.heads: int | None = None
        self.turned = False
        """Whether what passes is (batch, head, query, key), and the hook point shows it as (batch, query, key, head)."""
        self.watch: Callable[[Tensor], None] | None = None
        """Called with the tensor itself, of which the hook point gets a copy."""
        self.fired = 0

    @property
    def in_use(self) -> bool:
        return bool(self.point._forward_hooks or self.point._backward_hooks)

    @abstractmethod
    def attach(self, submodule: nn.Module) -> RemovableHandle:
        """Let what passes at `submodule` pass through the hook point, until the handle is removed."""

    def through(self, value: Any) -> Tensor:
        """What the hook point makes of the tensor `value`; a code (batch, d_code) is shown as (batch, 1, d_code), anything but
        a tensor is a `ConfigError`. Both are copies, since a network may go on in place."""
        self.fired += 1
        if self.number is not None and self.fired != self.number + 1:
            return value
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"site {self.name!r}: the {self.side} of {self.path!r} is a {shown(value)}, no tensor; "
                f"say which part: ({self.path!r}, {self.side!r}, INDEX), with {_indices(value)}"
            )
        if self.watch is not None:
            self.watch(value)
        return self._pointed(value.clone()).clone()

    def _pointed(self, value: Tensor) -> Tensor:
        """What the hook point makes of `value` in the shape that it shows."""
        if self.name == "hook_code" and value.ndim == 2:
            return self.point(value[:, None])[:, 0]
        if self.heads and self.name.endswith("attn.hook_z") and value.ndim == 3:
            return self.point(value.unflatten(-1, (self.heads, -1))).flatten(-2)
        if self.turned and value.ndim == 4:
            return self.point(value.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.point(value)

    def missing(self, value: Any) -> ConfigError:
        """The error for `value`, which has no such index."""
        return ConfigError(
            f"site {self.name!r}: the {self.side} of {self.path!r} is a {shown(value)} and has no index {self.index!r}; "
            f"allowed: {_indices(value)}"
        )


class OutputTap(Tap):
    """At what a submodule returns."""

    side = "output"

    def attach(self, submodule: nn.Module) -> RemovableHandle:
        return submodule.register_forward_hook(self._after)

    def _after(self, submodule: nn.Module, arguments: tuple, output: Any) -> Any:
        if self.index is None:
            return self.through(output)
        try:
            value = output[self.index]
        except (IndexError, KeyError, TypeError):
            raise self.missing(output) from None
        return _exchanged(output, self.index, self.through(value))


class InputTap(Tap):
    """At what a submodule is called with: its first argument, wherever else that is handed over too, as in attention(x, x, x);
    or, with an index, the argument there alone, by position or keyword."""

    side = "input"

    def attach(self, submodule: nn.Module) -> RemovableHandle:
        return submodule.register_forward_pre_hook(self._before, with_kwargs=True)

    def _before(self, submodule: nn.Module, arguments: tuple, keywords: dict) -> tuple[tuple, dict]:
        given = keywords if isinstance(self.index, str) else arguments
        index: Any = 0 if self.index is None else self.index
        try:
            value = given[index]
        except (IndexError, KeyError):
            raise self.missing({**dict(enumerate(arguments)), **keywords}) from None
        edited = self.through(value)
        if self.index is None and edited is not value:
            same = [edited if one is value else one for one in arguments]
            return tuple(same), {name: edited if one is value else one for name, one in keywords.items()}
        changed = _exchanged(given, index, edited)
        return (arguments, changed) if isinstance(self.index, str) else (changed, keywords)


SIDES: dict[str, type[Tap]] = {"output": OutputTap, "input": InputTap}


def _exchanged(container: Any, index: Any, value: Tensor) -> Any:
    """A container like this one, with another value at an index; the container itself if the value is the one it has."""
    if container[index] is value:
        return container
    if isinstance(container, tuple | list):
        items = list(container)
        items[index] = value
        return container._make(items) if hasattr(container, "_make") else type(container)(items)
    if isinstance(container, Mapping):
        name = index if index in container else list(container)[index]  # transformers' outputs count their entries, too
        return type(container)(**{**container, name: value})
    raise ConfigError(f"cannot put an activation back into a {type(container).__name__}; allowed: tuple, list, mapping")


def shown(value: Any) -> str:
    """What `value` is, for errors: its kind and shape."""
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)}"
    return f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else type(value).__name__


def _indices(value: Any) -> str:
    if isinstance(value, Mapping):
        return "INDEX one of " + ", ".join(map(repr, value))
    return f"INDEX from 0 to {len(value) - 1}" if isinstance(value, tuple | list) else "no index"
