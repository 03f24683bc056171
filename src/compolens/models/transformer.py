"""The residual stream that architectures share: embedding, pre-norm blocks, final norm, unembedding.

An architecture that is "a transformer with another attention" subclasses `Attention` and `TransformerArchitecture`, with one
method each. Hook names, weight names and shapes are TransformerLens'; ``attn.hook_code`` is added: a view of
``attn.hook_pattern`` laid out (batch, query, key, head), the weights that multiply the values. Editing either takes effect.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError, require, require_positive
from compolens.foundation.moved import elsewhere
from compolens.hooks import FactoredMatrix, HookedModel, HookPoint, LayerNorm, RMSNorm
from compolens.models.attention import Attention, Sizes
from compolens.models.base import Architecture, split_positions
from compolens.models.blocks import MLP, Block, Embed, Unembed
from compolens.models.transfer import Transfer


class ModelConfig:
    """The settings that TransformerLens' tools read off ``model.cfg``, under TransformerLens' names.

    Args:
        sizes: of the transformer.
        d_in: width of a token.
        d_out: width of an answer.
        n_ctx: the longest sequence (None: any).
    """

    def __init__(self, sizes: Sizes, d_in: int, d_out: int, n_ctx: int | None) -> None:
        self.n_layers, self.d_model, self.n_heads = sizes.n_layers, sizes.d_model, sizes.n_heads
        self.d_head, self.d_value, self.d_mlp = sizes.d_head, sizes.d_value, sizes.d_mlp
        self.d_in, self.d_out, self.n_ctx = d_in, d_out, n_ctx
        self.d_vocab_out = d_out
        self.act_fn, self.normalization_type, self.attn_only = "gelu_new", "LN", False
        self.positional_embedding_type = "none"
        self.use_attn_result = self.use_split_qkv_input = self.use_hook_mlp_in = False
        self.default_prepend_bos = False
        self.device = torch.device("cpu")

    def __repr__(self) -> str:
        return f"ModelConfig({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class Transformer(HookedModel):
    """tokens (batch, seq, d_in) -> prediction (batch, seq, d_out), through n_layers blocks of the given attention.

    Args:
        sizes: of the transformer.
        attention: makes the attention of one block.
        d_in: width of a token.
        d_out: width of an answer.
        seq: tokens of an episode (None: any number).
        answers: positions that count, may be negative.
        n_ctx: the longest sequence (None: `seq`).
        rms_norm: root-mean-square instead of layer norm.
        attn_only: no MLPs.
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
        """The prediction, or the residual stream on the way there.

        Args:
            tokens: (batch, seq, d_in).
            stop_at_layer: return the residual stream entering this layer (negative counts from the end).

        Returns:
            (batch, seq, d_out), or (batch, seq, d_model).
        """
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
        return self._last_block(self.run_blocks(self.hook_embed(self.embed(tokens)), -1))

    def _last_block(self, resid: Tensor) -> Tensor:
        """The prediction from the stream that enters the last block, 0 before the first answer and after the last."""
        seq = resid.shape[1]
        positions = [p + seq if p < 0 else p for p in self.roles["readout"]]
        first, last = min(positions), max(positions) + 1
        if first < 0 or last > seq:
            raise ConfigError(
                f"an answer is read at position {max(positions) if last > seq else first}, but there are {seq} tokens"
            )
        resid = self.blocks[-1](resid, slice(first, last))
        return nn.functional.pad(self.unembed(self.ln_final(resid)), (0, 0, first, seq - last))

    def run_blocks(self, resid: Tensor, stop_at_layer: int | None = None, start_at_layer: int = 0) -> Tensor:
        """The residual stream after some blocks.

        Args:
            resid: (batch, pos, d_model).
            stop_at_layer: the first block that is not run (None: all are).
            start_at_layer: the first block that is run.

        Returns:
            (batch, pos, d_model).
        """
        for block in self.blocks[start_at_layer:stop_at_layer]:
            resid = block(resid)
        return resid

    def resume(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        return self.unembed(self.ln_final(self.run_blocks(resid, start_at_layer=layer)))

    def resume_answers(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        if layer >= self.cfg.n_layers or type(self).resume is not Transformer.resume:
            return self.resume(resid, layer, tokens)
        return self._last_block(self.run_blocks(resid, -1, layer))

    def reader(self, layer: int, hook: str, role: str) -> Tensor | None:
        """The last layer's answers are read by the unembedding with the final norm's gain (up to the norm's scale, a number
        per token). Arguments as in `HookedModel.reader`."""
        if hook == "hook_code" or layer != self.cfg.n_layers or role != "readout":
            return None
        weights = self.ln_final.w[:, None] * self.unembed.W_U
        return (weights - weights.mean(0) if isinstance(self.ln_final, LayerNorm) else weights).detach().T

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        result = super()._apply(fn, recurse)  # every .to(), .cuda(), .double() passes here
        self.cfg.device = self.ln_final.w.device
        return result

    # ---- what TransformerLens' analysis helpers ask of a model -------------------------------------------------------
    def _stacked(self, name: str, part: str = "attn") -> Tensor:
        if part == "mlp" and self.cfg.attn_only:
            raise ConfigError(f"this model has no MLPs (attn_only), hence no {name}")
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
    def W_in(self) -> Tensor:
        """(layer, d_model, d_mlp)"""
        return self._stacked("W_in", "mlp")

    @property
    def b_in(self) -> Tensor:
        """(layer, d_mlp)"""
        return self._stacked("b_in", "mlp")

    @property
    def W_out(self) -> Tensor:
        """(layer, d_mlp, d_model)"""
        return self._stacked("W_out", "mlp")

    @property
    def b_out(self) -> Tensor:
        """(layer, d_model)"""
        return self._stacked("b_out", "mlp")

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
        """The sum of the output biases of the blocks before a layer, as TransformerLens' tools ask for it.

        Args:
            layer: the layer.
            mlp_input: with that of the layer's own attention.
            include_mlp_biases: with those of the MLPs.

        Returns:
            (d_model,).
        """
        total = torch.zeros_like(self.ln_final.w)
        blocks = cast("list[Block]", list(self.blocks))
        for block in blocks[:layer]:
            total = total + block.attn.b_O + (block.mlp.b_out if include_mlp_biases and block.mlp is not None else 0)
        return total + blocks[layer].attn.b_O if mlp_input else total

    def tokens_to_residual_directions(self, outputs: int | Tensor) -> Tensor:
        """Directions of the normalised stream that write output coordinates: a "token" here is a coordinate of the answer.

        The final norm's gain is part of them, since TransformerLens' helpers divide by the scale alone.

        Args:
            outputs: one coordinate, or a tensor of them.

        Returns:
            (..., d_model).
        """
        return (self.ln_final.w[:, None] * self.W_U).T[outputs]

    def to_single_token(self, output: int) -> int:
        """The coordinate `output`, as it is: output coordinates are their own names."""
        return output


@dataclass(frozen=True)
class TransformerArchitecture(Architecture):
    """A pre-norm transformer with some attention: layer norm (eps 1e-6), tanh GELU, biases. Subclasses name the attention.

    Args:
        n_layers: blocks.
        d_model: width of the residual stream.
        n_heads: heads of a block.
        d_head: width of queries and keys, per head (None: d_model / n_heads).
        d_value: width of values, per head (None: d_head).
        d_mlp: width of the MLP's hidden layer (None: 4 d_model).
        n_ctx: the longest sequence. Where given, scores get a learned T5-style bias by head and relative position, and weights
            start from truncated LeCun normals, as in 2406.05816; without it there are no positions, and a calmer start.
        causal: every position attends to itself and what comes before, on top of the task's own mask.
        attention_dropout: in training, the probability of dropping a (query, key) pair's whole code, shared by batch and
            heads; at least 0, below 1.
        rms_norm: root-mean-square norms instead of layer norms.
        attn_only: blocks without MLP.
        bias_free: no biases (those by relative position come with n_ctx).
        transfer: what the target block takes over from the blocks before it (`OutputTransfer`, `RelativeTransfer`); needs a
            task whose tokens form blocks of equal length.
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


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
