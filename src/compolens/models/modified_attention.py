"""Three modifications of softmax attention that the dual model suggests (2310.13220), in token space and in transformers.

Softmax attention is one step of gradient descent on a model f_W(z) = W phi(z): its keys are inputs and its values targets,
with the loss L(W) = -(1 / (eta D)) sum_i v_i^T W phi(k_i) over the demonstrations i, and initial weights W_0 that hold the
query's own token. (D: the softmax's normaliser.) Each modification of that loss is one of attention: a penalty on W, a
non-linear map of inputs and targets, negative samples. The paper names these three; its hyperparameters are not public, so the
ones here are ours, and the forms below are derived from the losses.

Every token is the query of a dual model of its own: its own token is in W_0, the other tokens it sees are the demonstrations.
So queries attend to themselves here, unless attends_to_itself is False; W_0 is then 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from compolens.foundation.configs import require
from compolens.models.attention import Attention, Sizes
from compolens.models.base import Part, truncated_lecun_
from compolens.models.softmax import SoftmaxAttention
from compolens.models.token_space import TokenSpaceSelfAttention
from compolens.models.transformer import TransformerArchitecture


def _diagonal(pattern: Tensor) -> Tensor:
    """(..., query, key): the weight of every query's own token, 0 elsewhere."""
    return torch.diag_embed(pattern.diagonal(dim1=-2, dim2=-1))


class RegularizedAttention(SoftmaxAttention):
    """A - alpha diag(A): one step on L + (alpha / (2 eta)) |W|^2, which shrinks W_0 by 1 - alpha.

    Args:
        alpha: strength of the penalty, in [0, 2).
        args: the arguments of `Attention`.
    """

    def __init__(self, alpha: float, *args: Any) -> None:
        super().__init__(*args)
        self.alpha = alpha

    def weights(self, scores: Tensor) -> Tensor:
        pattern = super().weights(scores)
        return pattern - self.alpha * _diagonal(pattern)


class AugmentedAttention(SoftmaxAttention):
    """Softmax attention between g2(q) and g2(k), with values g1(v): L with g1(v_i) for v_i and g2(k_i) for k_i.

    g(x) = x + strength * gelu(x W), W per head: W_g2 (head, d_head, d_head), W_g1 (head, d_value, d_value), where there is
    such a map. ``hook_q``, ``hook_k``, ``hook_v`` hold what comes out of the maps.

    Args:
        augment_keys: whether there is g2, of keys and queries.
        augment_values: whether there is g1, of values.
        strength: of the non-linear part, at least 0.
        sizes: of the transformer.
        args: the other arguments of `Attention`.
    """

    def __init__(self, augment_keys: bool, augment_values: bool, strength: float, sizes: Sizes, *args: Any) -> None:
        super().__init__(sizes, *args)
        self.strength = strength
        for name, wanted, width in (("W_g2", augment_keys, sizes.d_head), ("W_g1", augment_values, sizes.d_value)):
            weight = truncated_lecun_(nn.Parameter(torch.empty(sizes.n_heads, width, width)), width)
            self.register_parameter(name, weight if wanted else None)

    def _project(self, x: Tensor, name: str) -> Tensor:
        projected = super()._project(x, name)
        weight = self.W_g1 if name == "V" else self.W_g2
        if weight is None:
            return projected
        hidden = torch.einsum("bphe,hef->bphf", projected, weight)
        return projected + self.strength * nn.functional.gelu(hidden, approximate="tanh")


class NegativeSampleAttention(SoftmaxAttention):
    """A (I - beta R): L with v_i - beta mean_{j in N(i)} v_j for v_i. The query's own token, in W_0, keeps its value.

    N(i), the negative samples of i, are the round(share * n) tokens, but at least one, that i attends to least among the n
    that it sees, itself included; R has 1 / |N(i)| there. Which tokens these are is no matter of gradients.

    Args:
        beta: weight of the negative samples, at least 0.
        share: of the tokens seen, that are negative samples; in (0, 1].
        args: the arguments of `Attention`.
    """

    def __init__(self, beta: float, share: float, *args: Any) -> None:
        super().__init__(*args)
        self.beta, self.share = beta, share

    def negatives(self, scores: Tensor) -> Tensor:
        """R, the shares of the negative samples.

        Args:
            scores: (batch, head, query, key), masked.

        Returns:
            The same shape; rows sum to 1.
        """
        hidden = scores.isneginf()
        count = (self.share * (~hidden).sum(-1, keepdim=True, dtype=torch.float64)).round().clamp(min=1)
        order = scores.masked_fill(hidden, torch.inf).argsort(dim=-1, stable=True)
        return ((order.argsort(-1) < count) / count).to(scores.dtype)

    def weights(self, scores: Tensor) -> Tensor:
        pattern = super().weights(scores)
        demonstrations = pattern - _diagonal(pattern)
        return pattern - self.beta * (demonstrations @ self.negatives(scores.detach()))


@dataclass(frozen=True)
class RegularizedSelfAttention(TokenSpaceSelfAttention):
    """`RegularizedAttention` in token space.

    Args:
        attends_to_itself: whether a query is among its own keys and values; if not, W_0 is 0.
        alpha: strength of the penalty, at least 0 and below 2, where descent diverges (0: softmax attention).
    """

    attends_to_itself: bool = True
    alpha: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.alpha < 2,
            f"RegularizedSelfAttention: alpha must be at least 0 and below 2, where descent diverges, got {self.alpha!r}",
        )

    def attention(self) -> Callable[..., Attention]:
        return partial(RegularizedAttention, self.alpha)


@dataclass(frozen=True)
class AugmentedSelfAttention(TokenSpaceSelfAttention):
    """`AugmentedAttention` in token space.

    Args:
        attends_to_itself: as in `RegularizedSelfAttention`.
        augment_keys: whether keys and queries are augmented.
        augment_values: whether values are augmented.
        strength: of the non-linear part, at least 0.
    """

    attends_to_itself: bool = True
    augment_keys: bool = True
    augment_values: bool = True
    strength: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.augment_keys or self.augment_values,
            "AugmentedSelfAttention: nothing is augmented; set augment_keys or augment_values, or take SoftmaxSelfAttention",
        )
        require(self.strength >= 0, f"AugmentedSelfAttention: strength must not be negative, got {self.strength!r}")

    def attention(self) -> Callable[..., Attention]:
        return partial(AugmentedAttention, self.augment_keys, self.augment_values, self.strength)


@dataclass(frozen=True)
class NegativeSampleSelfAttention(TokenSpaceSelfAttention):
    """`NegativeSampleAttention` in token space.

    Args:
        attends_to_itself: as in `RegularizedSelfAttention`.
        beta: weight of the negative samples, at least 0.
        share: of the tokens seen, that are negative samples; in (0, 1].
    """

    attends_to_itself: bool = True
    beta: float = 0.5
    share: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta >= 0, f"NegativeSampleSelfAttention: beta must not be negative, got {self.beta!r}")
        require(0 < self.share <= 1, f"NegativeSampleSelfAttention: share must be above 0 and at most 1, got {self.share!r}")

    def attention(self) -> Callable[..., Attention]:
        return partial(NegativeSampleAttention, self.beta, self.share)


# ---- in a transformer ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Modification(Part, ABC):
    """What is changed about softmax attention."""

    @abstractmethod
    def attention(self) -> Callable[..., Attention]:
        """Makes the attention of a block, from the arguments of `Attention`."""


@dataclass(frozen=True)
class Regularized(Modification):
    """`RegularizedAttention`.

    Args:
        alpha: as in `RegularizedSelfAttention`.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        RegularizedSelfAttention(alpha=self.alpha)  # refused there in words

    def attention(self) -> Callable[..., Attention]:
        return partial(RegularizedAttention, self.alpha)


@dataclass(frozen=True)
class Augmented(Modification):
    """`AugmentedAttention`.

    Args:
        augment_keys: as in `AugmentedSelfAttention`.
        augment_values: as there.
        strength: as there.
    """

    augment_keys: bool = True
    augment_values: bool = True
    strength: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        AugmentedSelfAttention(augment_keys=self.augment_keys, augment_values=self.augment_values, strength=self.strength)

    def attention(self) -> Callable[..., Attention]:
        return partial(AugmentedAttention, self.augment_keys, self.augment_values, self.strength)


@dataclass(frozen=True)
class NegativeSamples(Modification):
    """`NegativeSampleAttention`.

    Args:
        beta: as in `NegativeSampleSelfAttention`.
        share: as there.
    """

    beta: float = 0.5
    share: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        NegativeSampleSelfAttention(beta=self.beta, share=self.share)

    def attention(self) -> Callable[..., Attention]:
        return partial(NegativeSampleAttention, self.beta, self.share)


@dataclass(frozen=True)
class ModifiedTransformer(TransformerArchitecture):
    """`SoftmaxTransformer` with a modified attention in every block. Other fields as in `TransformerArchitecture`.

    Args:
        modification: `Regularized`, `Augmented` or `NegativeSamples`.
    """

    modification: Modification = field(default_factory=Regularized)

    def attention(self) -> Callable[..., Attention]:
        return self.modification.attention()
