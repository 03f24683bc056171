"""The residual stream that architectures share: embedding, pre-norm blocks, final norm, unembedding.

An architecture that is "a transformer with another attention" subclasses `Attention` (one method) and hands the class to
`Transformer`. Hook names, weight names and shapes are TransformerLens'; ``attn.hook_code`` is added: a view of
``attn.hook_pattern`` laid out (batch, query, key, head), the weights that multiply the values. Editing either takes effect.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from compolens.configs import ConfigError, require_positive
from compolens.hooks import FactoredMatrix, HookedModel, HookPoint, LayerNorm
from compolens.models.base import split_positions, truncated_lecun_


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer, checked: d_head and d_value (per head) default to d_model / n_heads, d_mlp to 4 d_model."""

    n_layers: int
    d_model: int
    n_heads: int
    d_head: int
    d_value: int
    d_mlp: int

    @classmethod
    def of(cls, owner: Any) -> Sizes:
        """Read n_layers, d_model, n_heads and the optional d_head, d_value, d_mlp off an architecture."""
        require_positive(owner, "n_layers", "d_model", "n_heads")
        d_head, d_value, d_mlp = (getattr(owner, name, None) for name in ("d_head", "d_value", "d_mlp"))
        if d_head is None and owner.d_model % owner.n_heads:
            raise ConfigError(
                f"{type(owner).__name__}: {owner.n_heads} heads do not divide d_model={owner.d_model}; "
                "choose n_heads that does, or give d_head"
            )
        given = {"d_head": d_head, "d_value": d_value, "d_mlp": d_mlp}
        require_positive(owner, *[name for name, value in given.items() if value is not None])
        d_head = d_head or owner.d_model // owner.n_heads
        return cls(owner.n_layers, owner.d_model, owner.n_heads, d_head, d_value or d_head, d_mlp or 4 * owner.d_model)


class Attention(nn.Module, ABC):
    """Multi-head attention, open between scores and the weights that multiply the values.

    W_Q, W_K: (head, d_model, d_head); W_V: (head, d_model, d_value); W_O: (head, d_value, d_model). `mask` is (seq, seq)
    bool or None. Scores are masked with `masked_score` before `weights` sees them.
    """

    masked_score = -math.inf
    W_Q: nn.Parameter
    W_K: nn.Parameter
    W_V: nn.Parameter
    mask: Tensor | None
    hook_q: HookPoint
    hook_k: HookPoint
    hook_v: HookPoint
    hook_attn_scores: HookPoint
    hook_pattern: HookPoint
    hook_code: HookPoint
    hook_z: HookPoint
    hook_result: HookPoint

    def __init__(self, sizes: Sizes, mask: Tensor | None) -> None:
        super().__init__()
        head, d_model = sizes.n_heads, sizes.d_model
        for name, width in (("Q", sizes.d_head), ("K", sizes.d_head), ("V", sizes.d_value)):
            weight = nn.Parameter(torch.empty(head, d_model, width))
            self.register_parameter(f"W_{name}", truncated_lecun_(weight, d_model))
            self.register_parameter(f"b_{name}", nn.Parameter(torch.zeros(head, width)))
        self.W_O = truncated_lecun_(nn.Parameter(torch.empty(head, sizes.d_value, d_model)), head * sizes.d_value)
        self.b_O = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("mask", mask, persistent=False)
        self.use_attn_result = False
        for name in ("q", "k", "v", "attn_scores", "pattern", "code", "z", "result"):
            self.add_module(f"hook_{name}", HookPoint())

    @abstractmethod
    def weights(self, scores: Tensor) -> Tensor:
        """Masked scores (batch, head, query, key) -> the weights that multiply the values, same shape."""

    def _project(self, x: Tensor, name: str) -> Tensor:
        weight, bias = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
        flat = weight.permute(1, 0, 2).flatten(1)
        projected = nn.functional.linear(x, flat.T, bias.flatten())
        return projected.unflatten(-1, bias.shape)

    def forward(self, x: Tensor) -> Tensor:
        q = self.hook_q(self._project(x, "Q"))
        k = self.hook_k(self._project(x, "K"))
        v = self.hook_v(self._project(x, "V"))
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / math.sqrt(q.shape[-1])
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask[: x.shape[1], : x.shape[1]], self.masked_score)
        pattern = self.hook_pattern(self.weights(self.hook_attn_scores(scores)))
        code = self.hook_code(pattern.permute(0, 2, 3, 1))
        z = self.hook_z((code.permute(0, 3, 1, 2) @ v.transpose(1, 2)).transpose(1, 2))
        if self.use_attn_result:
            result = self.hook_result(torch.einsum("bphe,hem->bphm", z, self.W_O))
            return result.sum(2) + self.b_O
        return z.flatten(2) @ self.W_O.flatten(0, 1) + self.b_O


class MLP(nn.Module):
    """d_model -> d_mlp -> d_model with tanh-approximated GELU."""

    def __init__(self, d_model: int, d_mlp: int) -> None:
        super().__init__()
        self.W_in = truncated_lecun_(nn.Parameter(torch.empty(d_model, d_mlp)), d_model)
        self.b_in = nn.Parameter(torch.zeros(d_mlp))
        self.W_out = truncated_lecun_(nn.Parameter(torch.empty(d_mlp, d_model)), d_mlp)
        self.b_out = nn.Parameter(torch.zeros(d_model))
        self.hook_pre = HookPoint()
        self.hook_post = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        pre = self.hook_pre(nn.functional.linear(x, self.W_in.T, self.b_in))
        post = self.hook_post(nn.functional.gelu(pre, approximate="tanh"))
        return nn.functional.linear(post, self.W_out.T, self.b_out)


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then + mlp(ln2(·))."""

    hook_out_is_single_residual_stream = True  # what TransformerLens' logit lens asks for
    hook_resid_pre: HookPoint
    hook_attn_out: HookPoint
    hook_resid_mid: HookPoint
    hook_mlp_out: HookPoint
    hook_resid_post: HookPoint

    def __init__(self, sizes: Sizes, attention: type[Attention], mask: Tensor | None) -> None:
        super().__init__()
        self.ln1 = LayerNorm(sizes.d_model)
        self.attn = attention(sizes, mask)
        self.ln2 = LayerNorm(sizes.d_model)
        self.mlp = MLP(sizes.d_model, sizes.d_mlp)
        for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"):
            self.add_module(f"hook_{name}", HookPoint())

    def forward(self, resid: Tensor) -> Tensor:
        resid = self.hook_resid_pre(resid)
        mid = self.hook_resid_mid(resid + self.hook_attn_out(self.attn(self.ln1(resid))))
        return self.hook_resid_post(mid + self.hook_mlp_out(self.mlp(self.ln2(mid))))


class Embed(nn.Module):
    """Linear map of a token vector into the residual stream: W_E (d_in, d_model), b_E."""

    def __init__(self, d_in: int, d_model: int) -> None:
        super().__init__()
        self.W_E = truncated_lecun_(nn.Parameter(torch.empty(d_in, d_model)), d_in)
        self.b_E = nn.Parameter(torch.zeros(d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.ndim != 3 or tokens.shape[-1] != self.W_E.shape[0]:
            raise ConfigError(f"tokens must be (batch, seq, {self.W_E.shape[0]}), got {tuple(tokens.shape)}")
        return tokens @ self.W_E + self.b_E


class Unembed(nn.Module):
    """Linear map out of the residual stream: W_U (d_model, d_out), b_U."""

    def __init__(self, d_model: int, d_out: int) -> None:
        super().__init__()
        self.W_U = truncated_lecun_(nn.Parameter(torch.empty(d_model, d_out)), d_model)
        self.b_U = nn.Parameter(torch.zeros(d_out))

    def forward(self, resid: Tensor) -> Tensor:
        return resid @ self.W_U + self.b_U


class ModelConfig:
    """The settings that TransformerLens' tools read off ``model.cfg``, under TransformerLens' names."""

    def __init__(self, sizes: Sizes, d_in: int, d_out: int, n_ctx: int | None) -> None:
        self.n_layers, self.d_model, self.n_heads = sizes.n_layers, sizes.d_model, sizes.n_heads
        self.d_head, self.d_value, self.d_mlp = sizes.d_head, sizes.d_value, sizes.d_mlp
        self.d_in, self.d_out, self.n_ctx = d_in, d_out, n_ctx
        self.d_vocab_out = d_out
        self.act_fn, self.normalization_type, self.attn_only = "gelu_new", "LN", False
        self.positional_embedding_type, self.use_attn_result = "none", False
        self.default_prepend_bos = False
        self.device = torch.device("cpu")

    def __repr__(self) -> str:
        return f"ModelConfig({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class Transformer(HookedModel):
    """tokens (batch, seq, d_in) -> prediction (batch, seq, d_out), through n_layers blocks of the given attention."""

    def __init__(
        self,
        sizes: Sizes,
        attention: type[Attention],
        *,
        d_in: int,
        d_out: int,
        seq: int | None = None,
        answers: Sequence[int] = (-1,),
        mask: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.cfg = ModelConfig(sizes, d_in, d_out, seq)
        context, readout = split_positions(seq, answers)
        self.roles = {"context": context, "readout": readout}
        self.embed = Embed(d_in, sizes.d_model)
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(sizes, attention, mask) for _ in range(sizes.n_layers))
        self.ln_final = LayerNorm(sizes.d_model)
        self.unembed = Unembed(sizes.d_model, d_out)
        self._calm_start()
        self.setup()

    def _calm_start(self) -> None:
        """Scale every matrix of the stream to variance 1/(3 fan_in), as torch's Linear starts."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.split(".")[-1].startswith("W_"):
                    parameter.mul_(3**-0.5)

    def forward(self, tokens: Tensor, stop_at_layer: int | None = None) -> Tensor:
        """With `stop_at_layer`, the residual stream entering that layer (negative counts from the end)."""
        if self.cfg.n_ctx is not None and tokens.shape[1] > self.cfg.n_ctx:
            raise ConfigError(f"this model was built for at most {self.cfg.n_ctx} tokens, got {tokens.shape[1]}")
        resid = self.run_blocks(self.hook_embed(self.embed(tokens)), stop_at_layer)
        return resid if stop_at_layer is not None else self.unembed(self.ln_final(resid))

    def run_blocks(self, resid: Tensor, stop_at_layer: int | None = None) -> Tensor:
        """The residual stream (batch, pos, d_model) after the blocks before `stop_at_layer`."""
        for block in self.blocks[:stop_at_layer]:
            resid = block(resid)
        return resid

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        result = super()._apply(fn, recurse)  # every .to(), .cuda(), .double() passes here
        self.cfg.device = self.ln_final.w.device
        return result

    # ---- what TransformerLens' analysis helpers ask of a model -------------------------------------------------------
    def _stacked(self, name: str, part: str = "attn") -> Tensor:
        return torch.stack([getattr(getattr(block, part), name) for block in self.blocks])

    @property
    def W_Q(self) -> Tensor:
        """(layer, head, d_model, d_head)"""
        return self._stacked("W_Q")

    @property
    def W_K(self) -> Tensor:
        """(layer, head, d_model, d_head)"""
        return self._stacked("W_K")

    @property
    def W_V(self) -> Tensor:
        """(layer, head, d_model, d_value)"""
        return self._stacked("W_V")

    @property
    def W_O(self) -> Tensor:
        """(layer, head, d_value, d_model)"""
        return self._stacked("W_O")

    @property
    def QK(self) -> FactoredMatrix:
        """(layer, head, d_model, d_model): W_Q W_K^T, factored."""
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))

    @property
    def OV(self) -> FactoredMatrix:
        """(layer, head, d_model, d_model): W_V W_O, factored."""
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def W_E(self) -> Tensor:
        """(d_in, d_model)"""
        return self.embed.W_E

    @property
    def W_U(self) -> Tensor:
        """(d_model, d_out)"""
        return self.unembed.W_U

    @property
    def b_U(self) -> Tensor:
        """(d_out,)"""
        return self.unembed.b_U

    def accumulated_bias(self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True) -> Tensor:
        """(d_model,) sum of the output biases of the blocks before `layer` (and of its attention, with `mlp_input`)."""
        total = torch.zeros_like(self.ln_final.b)
        blocks = cast("list[Block]", list(self.blocks))
        for block in blocks[:layer]:
            total = total + block.attn.b_O + (block.mlp.b_out if include_mlp_biases else 0)
        return total + blocks[layer].attn.b_O if mlp_input else total

    def tokens_to_residual_directions(self, outputs: int | Tensor) -> Tensor:
        """(..., d_model) directions of the normalised stream that write output coordinates: a "token" here is a coordinate of
        the answer. The final norm's gain is part of them, since TransformerLens' helpers divide by the scale alone."""
        return (self.ln_final.w[:, None] * self.W_U).T[outputs]

    def to_single_token(self, output: int) -> int:
        """Output coordinates are their own names."""
        return output
