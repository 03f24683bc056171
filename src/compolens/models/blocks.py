"""What a transformer is made of besides attention: MLP, pre-norm block, embedding and unembedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError
from compolens.hooks import HookPoint, LayerNorm
from compolens.models.attention import Attention, Inputs
from compolens.models.base import truncated_lecun_


class MLP(nn.Module):
    """Two layers with a tanh-approximated GELU between them.

    Args:
        d_model: width of the residual stream.
        d_mlp: width of the hidden layer.
    """

    def __init__(self, d_model: int, d_mlp: int) -> None:
        super().__init__()
        self.W_in = truncated_lecun_(nn.Parameter(torch.empty(d_model, d_mlp)), d_model)
        self.b_in = nn.Parameter(torch.zeros(d_mlp))
        self.W_out = truncated_lecun_(nn.Parameter(torch.empty(d_mlp, d_model)), d_mlp)
        self.b_out = nn.Parameter(torch.zeros(d_model))
        self.hook_pre = HookPoint()
        self.hook_post = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        """What the MLP makes of `x` (..., d_model): the same shape."""
        pre = self.hook_pre(nn.functional.linear(x, self.W_in.T, self.b_in))
        post = self.hook_post(nn.functional.gelu(pre, approximate="tanh"))
        return nn.functional.linear(post, self.W_out.T, self.b_out)


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then + mlp(ln2(·)).

    As in TransformerLens, ``hook_q_input``, ``hook_k_input`` and ``hook_v_input`` (batch, pos, head, d_model) hold the stream
    that each head's queries, keys and values are made of, after ``model.set_use_split_qkv_input(True)``; ``hook_mlp_in``
    (batch, pos, d_model) holds what the MLP reads, after ``model.set_use_hook_mlp_in(True)``. Until then they do not fire.

    Args:
        d_model: width of the residual stream.
        attention: (batch, pos, d_model) -> the same, or only at some positions.
        mlp: the second half (None: the block ends after attention).
        norm: the class of the norms before each half.
    """

    hook_out_is_single_residual_stream = True  # what TransformerLens' logit lens asks for
    hook_resid_pre: HookPoint
    hook_attn_out: HookPoint
    hook_resid_mid: HookPoint
    hook_mlp_in: HookPoint
    hook_mlp_out: HookPoint
    hook_resid_post: HookPoint
    use_split_qkv_input = use_hook_mlp_in = False

    def __init__(self, d_model: int, attention: Attention, mlp: MLP | None, norm: type[nn.Module] = LayerNorm) -> None:
        super().__init__()
        self.ln1, self.attn = norm(d_model), attention
        names = ["resid_pre", "q_input", "k_input", "v_input", "attn_out", "resid_post"]
        self.mlp = mlp
        if mlp is not None:
            self.ln2 = norm(d_model)
            names += ["resid_mid", "mlp_in", "mlp_out"]
        for name in names:
            self.add_module(f"hook_{name}", HookPoint())

    def attended(self, resid: Tensor, queries: slice | None = None) -> Tensor:
        """What attention makes of the residual stream.

        Args:
            resid: (batch, pos, d_model).
            queries: only these positions ask (None: all).

        Returns:
            (batch, query, d_model).
        """
        if not self.use_split_qkv_input:
            return self.attn(self.ln1(resid), queries)
        copies = resid.unsqueeze(2).expand(-1, -1, len(self.attn.W_K), -1)
        hooks = (self.get_submodule(f"hook_{name}_input") for name in "qkv")
        return self.attn(Inputs(*(self.ln1(hook(copies.clone())) for hook in hooks)), queries)

    def forward(self, resid: Tensor, queries: slice | None = None) -> Tensor:
        """The residual stream after the block.

        Args:
            resid: (batch, pos, d_model).
            queries: only these positions are computed (None: all).

        Returns:
            (batch, query, d_model).
        """
        resid = self.hook_resid_pre(resid)
        kept = resid if queries is None else resid[:, queries]
        mid = kept + self.hook_attn_out(self.attended(resid, queries))
        if self.mlp is None:
            return self.hook_resid_post(mid)
        mid = self.hook_resid_mid(mid)
        read = self.hook_mlp_in(mid.clone()) if self.use_hook_mlp_in else mid
        return self.hook_resid_post(mid + self.hook_mlp_out(self.mlp(self.ln2(read))))


class Embed(nn.Module):
    """Linear map of a token vector into the residual stream: W_E (d_in, d_model), b_E.

    Args:
        d_in: width of a token.
        d_model: width of the residual stream.
    """

    def __init__(self, d_in: int, d_model: int) -> None:
        super().__init__()
        self.W_E = truncated_lecun_(nn.Parameter(torch.empty(d_in, d_model)), d_in)
        self.b_E = nn.Parameter(torch.zeros(d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        """The residual stream (batch, seq, d_model) that `tokens` (batch, seq, d_in) start; a `ConfigError` for
        another width."""
        if tokens.ndim != 3 or tokens.shape[-1] != self.W_E.shape[0]:
            raise ConfigError(f"tokens must be (batch, seq, {self.W_E.shape[0]}), got {tuple(tokens.shape)}")
        return tokens @ self.W_E + self.b_E


class Unembed(nn.Module):
    """Linear map out of the residual stream: W_U (d_model, d_out), b_U.

    Args:
        d_model: width of the residual stream.
        d_out: width of an answer.
    """

    def __init__(self, d_model: int, d_out: int) -> None:
        super().__init__()
        self.W_U = truncated_lecun_(nn.Parameter(torch.empty(d_model, d_out)), d_model)
        self.b_U = nn.Parameter(torch.zeros(d_out))

    def forward(self, resid: Tensor) -> Tensor:
        """The answers (..., d_out) that are read off `resid` (..., d_model)."""
        return resid @ self.W_U + self.b_U
