"""The residual stream that architectures share: embedding, pre-norm blocks, final norm, unembedding.

An architecture that is "a transformer with another attention" subclasses `Attention` and `TransformerArchitecture`, with one
method each. Hook names, weight names and shapes are TransformerLens'; ``attn.hook_code`` is added: a view of
``attn.hook_pattern`` laid out (batch, query, key, head), the weights that multiply the values. Editing either takes effect.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError, require, require_positive
from compolens.hooks import FactoredMatrix, HookedModel, HookPoint, LayerNorm, RMSNorm
from compolens.models.base import Architecture, split_positions, truncated_lecun_
from compolens.models.operands import as_operand, full, product
from compolens.models.transfer import Transfer, TransferRows


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


def relative_buckets(n_ctx: int) -> Tensor:
    """(n_ctx, n_ctx) [query, key] -> row of the bias table: T5's unidirectional buckets with n_buckets = max_distance = n_ctx.

    A bucket per distance up to n_ctx // 2, logarithmic ones beyond; keys to the right of the query share bucket 0 with the
    query itself (as the reference code of 2406.05816 has it, also without a causal mask).
    """
    distance = (torch.arange(n_ctx)[:, None] - torch.arange(n_ctx)[None, :]).clamp(min=0)
    exact = n_ctx // 2
    if n_ctx < 2:
        return distance
    ratio = distance.clamp(min=exact).float() / exact + torch.finfo(torch.float32).eps
    far = exact + (ratio.log() / math.log(n_ctx / exact) * (n_ctx - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=n_ctx - 1))


class RelativeBias(nn.Module):
    """A learned bias on attention scores by head and relative position: rel_bias (head, n_ctx), a row per bucket."""

    buckets: Tensor

    def __init__(self, n_heads: int, n_ctx: int) -> None:
        super().__init__()
        self.rel_bias = nn.Parameter(torch.randn(n_heads, n_ctx) / math.sqrt(n_ctx))
        self.register_buffer("buckets", relative_buckets(n_ctx), persistent=False)

    def forward(self, queries: slice | None, seq: int) -> Tensor:
        """(head, query, key): for the given query positions (None: all) and keys 0 to seq - 1."""
        return self.rel_bias[:, self.buckets[queries or slice(seq), :seq]]


class Attention(nn.Module, ABC):
    """Multi-head attention, open between scores and the weights that multiply the values.

    W_Q, W_K: (head, d_model, d_head); W_V: (head, d_model, d_value); W_O: (head, d_value, d_model). `mask` is (seq, seq)
    bool or None. Scores are Q K^T / sqrt(d_head), plus the relative bias where there is one; they are masked with
    `masked_score` before `weights` sees them.

    In training mode, with `dropout` > 0, whole codes are dropped: one mask over (query, key), shared by batch and heads, drawn
    from `generator` (None: torch's global one); survivors are scaled by 1 / (1 - dropout). That is how the reference code of
    2406.05816 does it.

    With a `transfer`, ``hook_coefficients`` holds the weights before it, ``hook_pattern`` and ``hook_code`` those after it.
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
    hook_coefficients: HookPoint
    hook_pattern: HookPoint
    hook_code: HookPoint
    hook_z: HookPoint
    hook_result: HookPoint

    def __init__(
        self,
        sizes: Sizes,
        mask: Tensor | None,
        n_ctx: int | None = None,
        dropout: float = 0.0,
        transfer: TransferRows | None = None,
    ) -> None:
        super().__init__()
        head, d_model = sizes.n_heads, sizes.d_model
        for name, width in (("Q", sizes.d_head), ("K", sizes.d_head), ("V", sizes.d_value)):
            weight = nn.Parameter(torch.empty(head, d_model, width))
            self.register_parameter(f"W_{name}", truncated_lecun_(weight, d_model))
            self.register_parameter(f"b_{name}", nn.Parameter(torch.zeros(head, width)))
        self.W_O = truncated_lecun_(nn.Parameter(torch.empty(head, sizes.d_value, d_model)), head * sizes.d_value)
        self.b_O = nn.Parameter(torch.zeros(d_model))
        self.bias = None if n_ctx is None else RelativeBias(head, n_ctx)
        self.register_buffer("mask", mask, persistent=False)
        self.dropout, self.generator = dropout, None
        self.use_attn_result = False
        for name in ("q", "k", "v", "attn_scores", "pattern", "code", "z", "result"):
            self.add_module(f"hook_{name}", HookPoint())
        self.transfer = transfer
        if transfer is not None:
            self.hook_coefficients = HookPoint()

    @abstractmethod
    def weights(self, scores: Tensor) -> Tensor:
        """Masked scores (batch, head, query, key) -> the weights that multiply the values, same shape."""

    def mix(self, code: Tensor, v: Tensor) -> Tensor:
        """(batch, query, head, d_value) that queries read: code (batch, query, key, head), v (batch, key, head, d_value)."""
        return product(code.permute(0, 3, 1, 2), v.transpose(1, 2)).transpose(1, 2)

    def _project(self, x: Tensor, name: str) -> Tensor:
        weight, bias = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
        flat = weight.permute(1, 0, 2).flatten(1)
        projected = nn.functional.linear(x, flat.T, bias.flatten())
        return projected.unflatten(-1, bias.shape)

    def dropped(self, scores: Tensor, kept: Tensor) -> Tensor:
        """The weights with whole codes dropped: kept (query, key) is 0, or 1 / (1 - dropout) for a pair that stays."""
        return self.weights(scores) * kept

    def scores(self, x: Tensor, asking: Tensor) -> Tensor:
        """(batch, head, query, key), before bias and mask: of `asking`, x at the query positions, with all of x."""
        q = self.hook_q(self._project(asking, "Q"))
        k = self.hook_k(self._project(x, "K"))
        return product((q / math.sqrt(q.shape[-1])).transpose(1, 2), k.permute(0, 2, 3, 1))

    def output(self, code: Tensor, v: Tensor) -> Tensor:
        """(batch, query, d_model) that attention writes: code (batch, query, key, head), v (batch, key, head, d_value)."""
        z = self.hook_z(self.mix(code, v))
        if self.use_attn_result:
            result = self.hook_result(torch.einsum("bphe,hem->bphm", z, self.W_O))
            return result.sum(2) + self.b_O
        return z.flatten(2) @ self.W_O.flatten(0, 1) + self.b_O

    def forward(self, x: Tensor, queries: slice | None = None) -> Tensor:
        """x (batch, seq, d_model) -> (batch, query, d_model) at the given query positions (None: at all of them)."""
        seq = x.shape[1]
        rows = None if self.transfer is not None else queries  # transfer also reads rows that are not asked for
        scores = full(self.scores(x, x if rows is None else x[:, rows]))
        if self.bias is not None:
            scores = scores + self.bias(rows, seq)
        mask = None if self.mask is None else self.mask[rows or slice(seq), :seq]
        if mask is not None:
            scores = scores.masked_fill(~mask, self.masked_score)
        scores = self.hook_attn_scores(scores)
        if self.training and self.dropout:
            draw = torch.rand(scores.shape[2:], generator=self.generator, device=scores.device)
            pattern = self.dropped(scores, (draw >= self.dropout).to(scores.dtype) / (1 - self.dropout))
        else:
            pattern = self.weights(scores)
        if self.transfer is not None:
            pattern = self.transfer(self.hook_coefficients(full(pattern)))
            pattern = pattern if mask is None else pattern.masked_fill(~mask, 0)
            pattern = pattern if queries is None else pattern[:, :, queries]
        code = self.hook_code(self.hook_pattern(as_operand(pattern)).permute(0, 2, 3, 1))
        return self.output(code, self.hook_v(self._project(x, "V")))


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
    """Pre-norm: x + attn(ln1(x)), then + mlp(ln2(·)); without the second half if `mlp` is None."""

    hook_out_is_single_residual_stream = True  # what TransformerLens' logit lens asks for
    hook_resid_pre: HookPoint
    hook_attn_out: HookPoint
    hook_resid_mid: HookPoint
    hook_mlp_out: HookPoint
    hook_resid_post: HookPoint

    def __init__(self, d_model: int, attention: Attention, mlp: MLP | None, norm: type[nn.Module] = LayerNorm) -> None:
        super().__init__()
        self.ln1, self.attn = norm(d_model), attention
        names = ["resid_pre", "attn_out", "resid_post"]
        self.mlp = mlp
        if mlp is not None:
            self.ln2 = norm(d_model)
            names += ["resid_mid", "mlp_out"]
        for name in names:
            self.add_module(f"hook_{name}", HookPoint())

    def forward(self, resid: Tensor, queries: slice | None = None) -> Tensor:
        """(batch, pos, d_model) -> the same, or only at the positions `queries`."""
        resid = self.hook_resid_pre(resid)
        kept = resid if queries is None else resid[:, queries]
        mid = kept + self.hook_attn_out(self.attn(self.ln1(resid), queries))
        if self.mlp is None:
            return self.hook_resid_post(mid)
        mid = self.hook_resid_mid(mid)
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
    """tokens (batch, seq, d_in) -> prediction (batch, seq, d_out), through n_layers blocks of the given attention.

    attention: makes the attention of one block; rms_norm: root-mean-square instead of layer norm; attn_only: no MLPs;
    bias_free: every bias is a constant 0.
    """

    def __init__(
        self,
        sizes: Sizes,
        attention: Callable[[], Attention],
        *,
        d_in: int,
        d_out: int,
        seq: int | None = None,
        answers: Sequence[int] = (-1,),
        n_ctx: int | None = None,
        rms_norm: bool = False,
        attn_only: bool = False,
        bias_free: bool = False,
    ) -> None:
        super().__init__()
        self.cfg = ModelConfig(sizes, d_in, d_out, seq if n_ctx is None else n_ctx)
        self.cfg.normalization_type, self.cfg.attn_only = "RMS" if rms_norm else "LN", attn_only
        context, readout = split_positions(seq, answers)
        self.roles = {"context": context, "readout": readout}
        self.embed = Embed(d_in, sizes.d_model)
        self.hook_embed = HookPoint()
        norm = RMSNorm if rms_norm else LayerNorm
        blocks = []
        for _ in range(sizes.n_layers):
            attn = attention()
            mlp = None if attn_only else MLP(sizes.d_model, sizes.d_mlp)
            blocks.append(Block(sizes.d_model, attn, mlp, norm))
        self.blocks = nn.ModuleList(blocks)
        self.ln_final = norm(sizes.d_model)
        self.unembed = Unembed(sizes.d_model, d_out)
        if n_ctx is None:
            self._calm_start()
        if bias_free:
            self._fix_biases()
        self.setup()

    def _fix_biases(self) -> None:
        """Turn every bias into a constant 0 that is neither trained nor saved."""
        for module in self.modules():
            for name in [n for n, _ in module.named_parameters(recurse=False) if n == "b" or n.startswith("b_")]:
                zeros = torch.zeros_like(getattr(module, name).data)
                delattr(module, name)
                module.register_buffer(name, zeros, persistent=False)

    def _calm_start(self) -> None:
        """Scale every matrix of the stream to variance 1/(3 fan_in), as torch's Linear starts.

        Only models without positions start so; those with a relative bias keep LeCun's 1/fan_in, as in 2406.05816."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.split(".")[-1].startswith("W_"):
                    parameter.mul_(3**-0.5)

    def forward(self, tokens: Tensor, stop_at_layer: int | None = None) -> Tensor:
        """With `stop_at_layer`, the residual stream entering that layer (negative counts from the end)."""
        self._check_length(tokens)
        resid = self.run_blocks(self.hook_embed(self.embed(tokens)), stop_at_layer)
        return resid if stop_at_layer is not None else self.unembed(self.ln_final(resid))

    def _check_length(self, tokens: Tensor) -> None:
        if self.cfg.n_ctx is not None and tokens.shape[1] > self.cfg.n_ctx:
            raise ConfigError(f"this model was built for at most {self.cfg.n_ctx} tokens, got {tokens.shape[1]}")

    def answer(self, tokens: Tensor) -> Tensor:
        """(batch, seq, d_out): the prediction where an answer is read, 0 before the first and after the last of these.

        Equal to ``model(tokens)`` there, up to rounding, but the last block computes only those positions: for training.
        """
        self._check_length(tokens)
        seq = tokens.shape[1]
        positions = [p + seq if p < 0 else p for p in self.roles["readout"]]
        first, last = min(positions), max(positions) + 1
        if first < 0 or last > seq:
            raise ConfigError(
                f"an answer is read at position {max(positions) if last > seq else first}, but there are {seq} tokens"
            )
        resid = self.run_blocks(self.hook_embed(self.embed(tokens)), -1)
        resid = self.blocks[-1](resid, slice(first, last))
        return nn.functional.pad(self.unembed(self.ln_final(resid)), (0, 0, first, seq - last))

    def run_blocks(self, resid: Tensor, stop_at_layer: int | None = None, start_at_layer: int = 0) -> Tensor:
        """The residual stream (batch, pos, d_model) after the blocks from `start_at_layer` up to, without, `stop_at_layer`."""
        for block in self.blocks[start_at_layer:stop_at_layer]:
            resid = block(resid)
        return resid

    def resume(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        return self.unembed(self.ln_final(self.run_blocks(resid, start_at_layer=layer)))

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
        total = torch.zeros_like(self.ln_final.w)
        blocks = cast("list[Block]", list(self.blocks))
        for block in blocks[:layer]:
            total = total + block.attn.b_O + (block.mlp.b_out if include_mlp_biases and block.mlp is not None else 0)
        return total + blocks[layer].attn.b_O if mlp_input else total

    def tokens_to_residual_directions(self, outputs: int | Tensor) -> Tensor:
        """(..., d_model) directions of the normalised stream that write output coordinates: a "token" here is a coordinate of
        the answer. The final norm's gain is part of them, since TransformerLens' helpers divide by the scale alone."""
        return (self.ln_final.w[:, None] * self.W_U).T[outputs]

    def to_single_token(self, output: int) -> int:
        """Output coordinates are their own names."""
        return output


@dataclass(frozen=True)
class TransformerArchitecture(Architecture):
    """A pre-norm transformer with some attention: layer norm (eps 1e-6), tanh GELU, biases. Subclasses name the attention.

    d_head (of query and key) and d_value are per head and default to d_model / n_heads; d_mlp defaults to 4 d_model.
    n_ctx: the longest sequence; where given, scores get a learned T5-style bias by head and relative position, and weights
    start from truncated LeCun normals, as in 2406.05816; without it there are no positions, and a calmer start.
    causal: every position attends to itself and what comes before, on top of the task's own mask.
    attention_dropout: in training, the probability of dropping a (query, key) pair's whole code; shared by batch and heads.
    rms_norm: root-mean-square norms instead of layer norms. attn_only: blocks without MLP. bias_free: no biases (those by
    relative position come with n_ctx). transfer: what the target block takes over from the blocks before it
    (`OutputTransfer`, `RelativeTransfer`); needs a task whose tokens form blocks of equal length.
    """

    n_layers: int = 3
    d_model: int = 64
    n_heads: int = 4
    d_head: int | None = None
    d_value: int | None = None
    d_mlp: int | None = None
    n_ctx: int | None = None
    causal: bool = False
    attention_dropout: float = 0.0
    rms_norm: bool = False
    attn_only: bool = False
    bias_free: bool = False
    transfer: Transfer | None = None

    @abstractmethod
    def attention(self) -> Callable[..., Attention]:
        """The attention of every block: a class derived from `Attention`, or what makes one from the same arguments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        Sizes.of(self)
        if self.n_ctx is not None:
            require_positive(self, "n_ctx")
        require(
            0 <= self.attention_dropout < 1,
            f"{name}: attention_dropout must be at least 0 and below 1, got {self.attention_dropout!r}",
        )
        require(
            self.transfer is None or isinstance(self.transfer, Transfer),
            f"{name}: transfer must be None, OutputTransfer() or RelativeTransfer(), got {self.transfer!r}",
        )

    def build(
        self,
        *,
        d_in: int,
        d_out: int,
        seq: int | None = None,
        answers: Sequence[int] = (-1,),
        d_x: int | None = None,
        mask: Tensor | None = None,
        blocks: Sequence[Sequence[int]] | None = None,
    ) -> Transformer:
        if seq is not None and self.n_ctx is not None and seq > self.n_ctx:
            raise ConfigError(
                f"the task's sequences have {seq} tokens, more than the bias table's n_ctx={self.n_ctx}; set n_ctx={seq}"
            )
        if self.causal:
            longest = self.n_ctx or seq
            if longest is None:
                raise ConfigError(f"a causal {type(self).__name__} needs n_ctx, or the sequence length: build(..., seq=...)")
            past = torch.ones(longest, longest, dtype=torch.bool).tril()
            mask = past if mask is None else mask & past[: len(mask), : len(mask)]
        sizes = Sizes.of(self)

        def attention() -> Attention:
            transfer = None if self.transfer is None else self.transfer.build(blocks)
            return self.attention()(sizes, mask, self.n_ctx, self.attention_dropout, transfer)

        return Transformer(
            sizes, attention, d_in=d_in, d_out=d_out, seq=seq, answers=answers, n_ctx=self.n_ctx,
            rms_norm=self.rms_norm, attn_only=self.attn_only, bias_free=self.bias_free,
        )  # fmt: skip
