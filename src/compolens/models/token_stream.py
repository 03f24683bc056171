"""A transformer whose residual stream are the tokens themselves: no embedding, norm, MLP or bias, and a fixed readout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compolens.hooks import HookedModel, HookPoint
from compolens.models.attention import Attention, Sizes
from compolens.models.base import split_positions
from compolens.models.blocks import Block, Embed, Unembed
from compolens.models.transformer import ModelConfig, Transformer


@dataclass(frozen=True)
class Stream:
    """What a token-space model is besides its attention.

    Args:
        n_heads: as in `TokenSpaceSelfAttention`.
        tied: as in `TokenSpaceSelfAttention`.
        sign: of the readout, 1 or -1.
        damping: as in `TokenSpaceArchitecture`.
        clip: largest absolute value of a token's coordinate after a layer (None: any).
        attends_to_itself: as in `TokenSpaceSelfAttention`.
    """

    n_heads: int = 1
    tied: bool = False
    sign: float = 1.0
    damping: float = 1.0
    clip: float | None = None
    attends_to_itself: bool = False


def _fix(module: nn.Module, name: str, value: Tensor) -> None:
    """Turn a parameter into a constant, neither trained nor saved."""
    delattr(module, name)
    module.register_buffer(name, value, persistent=False)


class Identity(nn.Module):
    """Instead of a norm; `w`, its gain, is 1.

    Args:
        width: of what passes, its last dimension.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("w", torch.ones(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x`, as it is."""
        return x


class _IdentityEmbed(Embed):
    def __init__(self, d_in: int) -> None:
        super().__init__(d_in, d_in)
        _fix(self, "W_E", torch.eye(d_in))


class _SlotUnembed(Unembed):
    """sign times the coordinates from d_x on."""

    def __init__(self, d_model: int, d_out: int, d_x: int, sign: float) -> None:
        super().__init__(d_model, d_out)
        _fix(self, "W_U", sign * torch.eye(d_model)[:, d_x : d_x + d_out])


class TokenSpaceBlock(Block):
    """x + damping * attn(x), clipped where the stream says so. ``hook_attn_out`` holds what is added.

    Args:
        d_model: width of a token.
        attention: (batch, seq, d_model) -> the same.
        stream: what else the model is.
    """

    def __init__(self, d_model: int, attention: Attention, stream: Stream) -> None:
        super().__init__(d_model, attention, None, Identity)
        self.stream = stream

    def forward(self, resid: Tensor, queries: slice | None = None) -> Tensor:
        resid = self.hook_resid_pre(resid)
        kept = resid if queries is None else resid[:, queries]
        resid = kept + self.hook_attn_out(self.stream.damping * self.attended(resid, queries))
        clip = self.stream.clip
        return self.hook_resid_post(resid if clip is None else resid.clamp(-clip, clip))


def _forget_copies(model: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    """Of tied layers, only the first is saved."""
    for name in model.copies:  # type: ignore[union-attr]
        del state[prefix + name]


def _expect_no_copies(model: nn.Module, keys: Any) -> None:
    """What is not saved is not missing. Loading by assignment gives every layer a tensor of its own: tied again."""
    for name in model.copies:  # type: ignore[union-attr]
        keys.missing_keys[:] = [key for key in keys.missing_keys if key != name and not key.endswith("." + name)]
    model.tie()  # type: ignore[operator]


class TokenSpaceTransformer(Transformer):
    """tokens (batch, seq, d_in) -> prediction (batch, seq, d_out), in the space of tokens: d_model = d_head = d_value = d_in.

    Everything that `Transformer` offers, with W_E, W_U and the biases constant. Tied layers have hook points of their own and
    the first one's parameters, which are saved, counted and trained once.

    Args:
        sizes: with d_model, the width of a token.
        attention: makes the attention of one layer.
        stream: what else the model is.
        d_x: how many leading coordinates of a token are the input.
        d_out: width of an answer.
        seq: tokens of an episode.
        answers: positions that count, may be negative.
    """

    def __init__(
        self,
        sizes: Sizes,
        attention: Callable[[], Attention],
        stream: Stream,
        *,
        d_x: int,
        d_out: int,
        seq: int,
        answers: Sequence[int],
    ) -> None:
        HookedModel.__init__(self)  # not the parent's: every part of it has a constant, or no, counterpart here
        self.cfg = ModelConfig(sizes, sizes.d_model, d_out, seq)
        self.cfg.normalization_type, self.cfg.attn_only = None, True
        context, readout = split_positions(seq, answers)
        self.roles = {"context": context, "readout": readout}
        self.stream = stream
        self.embed, self.hook_embed = _IdentityEmbed(sizes.d_model), HookPoint()
        self.blocks = nn.ModuleList(TokenSpaceBlock(sizes.d_model, attention(), stream) for _ in range(sizes.n_layers))
        self.ln_final = Identity(sizes.d_model)  # type: ignore[assignment]
        self.unembed = _SlotUnembed(sizes.d_model, d_out, d_x, stream.sign)
        self._fix_biases()
        self.tie()
        self.register_state_dict_post_hook(_forget_copies)
        self.register_load_state_dict_post_hook(_expect_no_copies)
        self.setup()

    @property
    def copies(self) -> list[str]:
        """Names of the parameters that are another name's."""
        names = [name for name, _ in self.blocks[0].named_parameters()] if self.stream.tied else []
        return [f"blocks.{layer}.{name}" for layer in range(1, len(self.blocks)) for name in names]

    def tie(self) -> None:
        """Give all layers the first one's parameters, if they are tied."""
        for name in self.copies:
            _, _, own = name.split(".", 2)
            owner, _, leaf = name.rpartition(".")
            self.get_submodule(owner).register_parameter(leaf, self.blocks[0].get_parameter(own))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        result = super()._apply(fn, recurse)
        self.tie()  # a conversion that cannot happen in place makes new parameters
        return result
