"""Adam for the fits inside measures, interventions and probes, quick to start."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


class WithoutCompiler(torch.optim.Optimizer):
    """Before an optimizer of torch: without what torch puts around its methods for `torch.compile`. That imports the compiler,
    which takes as long as half of all else that a training needs to start. The updates are the same, bit for bit."""

    def step(self, closure: Any = None) -> Any:
        """As of the optimizer behind it.

        Args:
            closure: computes the loss anew, and its gradients.

        Returns:
            What `closure` returns, if there is one.
        """
        with torch.no_grad():
            return _bare(super().step)(self, closure)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of the optimizer behind it.

        Args:
            param_group: "params", and settings of their own.
        """
        _bare(super().add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of the optimizer behind it.

        Args:
            set_to_none: whether gradients are removed rather than set to 0.
        """
        _bare(super().zero_grad)(self, set_to_none)


class Adam(WithoutCompiler, torch.optim.Adam):
    """`torch.optim.Adam`, same arguments and updates, without importing torch's compiler."""


def _bare(method: Any) -> Callable:
    """The function of a bound method without what is wrapped around it."""
    return inspect.unwrap(method.__func__)
