"""Matrix products of the models, and how elementwise functions meet products of lower precision.

In mixed-precision training (`Run.precision`) matrix products are taken in bfloat16. Normalisations and the softmax are
computed in single precision: `full` widens what a product left in bfloat16. `as_operand` rounds what the next products would
round anyway, once instead of at every use. Outside mixed precision both return what they are given. `product` and `relaid`
decide in which order things lie in memory, forwards and backwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def full(x: Tensor) -> Tensor:
    """`x` in single precision if it is narrower, else as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def as_operand(x: Tensor) -> Tensor:
    """`x` in the precision in which products are taken now: bfloat16 under autocast, else as it is."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def product(x: Tensor, y: Tensor) -> Tensor:
    """A matrix product, batched over equal leading dimensions.

    On a CPU, a batch of products whose results have few columns (heads are a few numbers wide) takes two to three times as
    long as the same products transposed, forwards and backwards. So each is taken in the orientation that is faster.

    Args:
        x: (..., n, k).
        y: (..., k, m).

    Returns:
        (..., n, m).
    """
    x, y = as_operand(x), as_operand(y)
    if x.is_cuda or x.shape[:-2] != y.shape[:-2]:
        return x @ y
    return _Product.apply(x, y) if torch.is_grad_enabled() else _oriented(x, y)


def relaid(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """A tensor with its dimensions in another order, in memory too.

    Args:
        x: any shape.
        order: for every dimension of the result, the dimension of `x` that it is, as in `torch.permute`.

    Returns:
        A contiguous copy; its gradient comes back in the layout of `x`.
    """
    return _Relaid.apply(x, order) if torch.is_grad_enabled() else x.permute(order).contiguous()


def _oriented(x: Tensor, y: Tensor) -> Tensor:
    narrow = y.shape[-1] < x.shape[-2]
    if narrow and (x.dtype != torch.bfloat16 or x.stride(-1) != 1):
        return (y.mT @ x.mT).mT
    return x @ y


class _Product(torch.autograd.Function):
    """A matrix product whose gradients are taken in the faster orientation, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return _oriented(x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, x_tangent: Tensor, y_tangent: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return _oriented(x_tangent, y) + _oriented(x, y_tangent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return product(grad, y.mT), product(x.mT, grad)


class _Relaid(torch.autograd.Function):
    """A permuted copy whose gradient is copied back into the argument's own layout.

    The gradients of a tensor's uses are added up; where one of them lies in memory in another order than the rest, that
    addition takes ten times as long.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: tuple[int, ...]) -> Tensor:
        return x.permute(order).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, tuple[int, ...]], output: Tensor) -> None:
        ctx.order = inputs[1]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.permute(ctx.order).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        back = sorted(range(len(ctx.order)), key=ctx.order.__getitem__)
        return grad.permute(back).contiguous(), None
