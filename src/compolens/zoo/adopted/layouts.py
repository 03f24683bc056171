"""Where things are in causal language models of transformers, and in a TransformerBridge: their sites, found by their parts.

The layouts that are tested are those of gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2 and gpt_neox (pythia); others that
name their parts alike are found, too. Of a task's tokens such a model gets ids: one-hot vectors are counted back, and
positions that hold no token (all zero) are masked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError
from compolens.hooks import bridge_around, native_bridge

BLOCKS = ("transformer.h", "model.layers", "gpt_neox.layers", "model.decoder.layers")
EMBEDDINGS = ("transformer.wte", "model.embed_tokens", "gpt_neox.embed_in", "model.decoder.embed_tokens")
ATTENTIONS = {"attn": "c_proj", "self_attn": "o_proj", "attention": "dense"}
"""What a block calls its attention -> what that calls its output projection."""
DOWN = ("c_proj", "down_proj", "dense_4h_to_h")
"""What an MLP calls its last linear map."""
NATIVE = "TransformerLensNative"
"""The architecture of a TransformerBridge that TransformerLens itself makes, and so can make again."""
READ = {
    "hook_attn_in": ("ln_1", "input_layernorm", "self_attn_layer_norm"),
    "hook_mlp_in": ("ln_2", "pre_feedforward_layernorm", "post_attention_layernorm"),
}
"""Hook point of what a part reads off the stream -> what a block calls the norm there."""


class Layout(NamedTuple):
    """How a network is known by its parts.

    Args:
        sites: as in `Adopted`.
        call: (module, tokens) -> logits.
        built_by: what makes it again (None: not known).
        arguments: of that.
    """

    sites: dict[str, Any]
    call: Callable[[nn.Module, Tensor], Tensor]
    built_by: Callable[..., nn.Module] | None = None
    arguments: Mapping[str, Any] = {}


def layout_of(module: nn.Module) -> Layout | None:
    """The sites of a network whose layout is known.

    Args:
        module: a causal language model of transformers, or a TransformerBridge.

    Returns:
        Its layout; None where it is none of these.
    """
    if hasattr(module, "hook_dict") and hasattr(module, "blocks") and hasattr(module, "cfg"):
        return _bridge(module)
    paths = {path for path, _ in module.named_modules()}
    blocks = next((path for path in BLOCKS if path in paths), None)
    if blocks is None or not hasattr(module, "config"):
        return None
    return Layout(_causal(module, blocks, paths), language_logits, from_config, _described(module))


def token_ids(tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Ids of tokens, and which positions hold one.

    Args:
        tokens: (batch, seq) ids, or (batch, seq, vocabulary) one-hot; -1, or all zero, where there is no token.

    Returns:
        ((batch, seq) ids, (batch, seq) bool, None where every position holds one).
    """
    if not tokens.is_floating_point():
        there = tokens >= 0
        return tokens.clamp(min=0), None if bool(there.all()) else there
    there = tokens.ne(0).any(-1)
    return tokens.argmax(-1), None if bool(there.all()) else there


def language_logits(module: nn.Module, tokens: Tensor, asked: int | None = None) -> Tensor:
    """What a causal language model of transformers says comes next.

    Args:
        module: the model.
        tokens: as in `token_ids`.
        asked: the one position whose logits are wanted (None: all).

    Returns:
        (batch, seq, vocabulary), or (batch, 1, vocabulary).
    """
    ids, there = token_ids(tokens)
    more: dict[str, Any] = {} if asked is None else {"logits_to_keep": torch.tensor([asked], device=ids.device)}
    if there is not None:
        positions = (there.long().cumsum(1) - 1).clamp(min=0)
        more |= {"attention_mask": there.long(), "position_ids": positions}
    return module(input_ids=ids, use_cache=False, **more).logits


def bridge_logits(module: nn.Module, tokens: Tensor) -> Tensor:
    """What a TransformerBridge says comes next.

    Args:
        module: the bridge.
        tokens: as in `token_ids`.

    Returns:
        (batch, seq, vocabulary).
    """
    ids, there = token_ids(tokens)
    if there is None:
        return module(ids, return_type="logits")
    return module(ids, return_type="logits", attention_mask=there.long(), padding_side="left")


def from_config(config: str) -> nn.Module:
    """A causal language model of transformers with fresh weights.

    Args:
        config: its configuration as JSON, with "model_type".

    Returns:
        The model, in evaluation mode.

    Raises:
        ConfigError: transformers knows no such model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    described = json.loads(config)
    try:
        made = AutoConfig.for_model(described.pop("model_type"), **described)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"transformers knows no such model: {' '.join(str(error).split())[:200]}") from None
    return AutoModelForCausalLM.from_config(made).float().eval()


def bridge_from_config(config: str, architecture: str) -> nn.Module:
    """A TransformerBridge around a causal language model of transformers with fresh weights.

    Args:
        config: the model's configuration, as in `from_config`.
        architecture: the name of the model's class.

    Returns:
        The bridge, in evaluation mode.

    Raises:
        ConfigError: transformers knows no such model.
    """
    return bridge_around(from_config(config), architecture)


def _described(module: Any) -> dict[str, Any]:
    described = module.config.to_dict()
    kept = {name: value for name, value in described.items() if name not in ("transformers_version", "_name_or_path", "dtype")}
    return {"config": json.dumps(kept, sort_keys=True, default=str)}


def _causal(module: nn.Module, blocks: str, paths: set[str]) -> dict[str, Any]:
    """Sites of a decoder of transformers; where a part returns a tuple, its first entry."""
    tuples = _tuples(module)

    def output(path: str) -> Any:
        return (path, "output", 0) if path in tuples else (path, "output")

    embedding = next((path for path in EMBEDDINGS if path in paths), None)
    sites: dict[str, Any] = {} if embedding is None else {"hook_embed": (embedding, "output")}
    sites["blocks.0.hook_resid_pre"] = (f"{blocks}.0", "input")
    for i in range(len(module.get_submodule(blocks))):  # type: ignore[arg-type]
        here = f"{blocks}.{i}"
        for name, projection in ATTENTIONS.items():
            if f"{here}.{name}" in paths:
                sites[f"blocks.{i}.hook_attn_out"] = output(f"{here}.{name}")
                if f"{here}.{name}.{projection}" in paths:
                    sites[f"blocks.{i}.attn.hook_z"] = (f"{here}.{name}.{projection}", "input")
        for name, norms in READ.items():
            norm = next((word for word in norms if f"{here}.{word}" in paths), None)
            if norm is not None:
                sites[f"blocks.{i}.{name}"] = (f"{here}.{norm}", "input")
        if f"{here}.mlp" in paths:
            sites[f"blocks.{i}.hook_mlp_out"] = output(f"{here}.mlp")
            down = next((word for word in DOWN if f"{here}.mlp.{word}" in paths), None)
            if down is not None:
                sites[f"blocks.{i}.mlp.hook_post"] = (f"{here}.mlp.{down}", "input")
        sites[f"blocks.{i}.hook_resid_post"] = output(here)
    return sites


@torch.no_grad()
def _tuples(module: nn.Module) -> set[str]:
    """Submodules that return a tuple."""
    found: set[str] = set()

    def look(path: str) -> Callable[..., None]:
        def hook(part: nn.Module, arguments: Any, output: Any) -> None:
            if isinstance(output, tuple):
                found.add(path)

        return hook

    handles = [part.register_forward_hook(look(path)) for path, part in module.named_modules() if path]
    device = next(module.parameters()).device
    try:
        module(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _bridge(module: Any) -> Layout:
    """A bridge has hook points of its own, which stand where TransformerLens says; ours take what passes them."""
    path = {id(part): name for name, part in module.named_modules()}
    known = {name: path[id(point)] for name, point in module.hook_dict.items() if id(point) in path}

    def first(*names: str) -> str | None:
        return next((known[name] for name in names if name in known), None)

    wanted: dict[str, str | None] = {"hook_embed": first("embed.hook_out", "hook_embed")}
    for i in range(len(module.blocks)):
        at = f"blocks.{i}"
        if i == 0:
            wanted[f"{at}.hook_resid_pre"] = first(f"{at}.hook_in", f"{at}.hook_resid_pre")
        wanted[f"{at}.attn.hook_pattern"] = first(f"{at}.attn.hook_pattern")
        wanted[f"{at}.attn.hook_z"] = first(f"{at}.attn.o.hook_in", f"{at}.attn.hook_z")
        wanted[f"{at}.hook_attn_out"] = first(f"{at}.attn.hook_out", f"{at}.hook_attn_out")
        wanted[f"{at}.hook_attn_in"] = first(f"{at}.ln1.hook_in")
        wanted[f"{at}.hook_mlp_in"] = first(f"{at}.ln2.hook_in")
        wanted[f"{at}.mlp.hook_post"] = first(f"{at}.mlp.out.hook_in", f"{at}.mlp.hook_post")
        wanted[f"{at}.hook_mlp_out"] = first(f"{at}.mlp.hook_out", f"{at}.hook_mlp_out")
        wanted[f"{at}.hook_resid_post"] = first(f"{at}.hook_out", f"{at}.hook_resid_post")
    sites = {name: (where, "output") for name, where in wanted.items() if where is not None}
    architecture, around = getattr(module.cfg, "architecture", None), getattr(module, "original_model", None)
    if architecture != NATIVE:
        if architecture is None or not hasattr(getattr(around, "config", None), "model_type"):
            return Layout(sites, bridge_logits)
        return Layout(sites, bridge_logits, bridge_from_config, _described(around) | {"architecture": architecture})
    plain = (bool, int, float, str)
    kept = {name: value for name, value in module.cfg.to_dict().items() if isinstance(value, plain) and name != "device"}
    return Layout(sites, bridge_logits, native_bridge, {"config": json.dumps(kept, sort_keys=True)})


def heads_of(module: nn.Module) -> int | None:
    """How many attention heads a network's configuration says that it has.

    Args:
        module: the network.

    Returns:
        The number; None where there is no such configuration.
    """
    for name in ("config", "cfg"):
        config = getattr(module, name, None)
        for word in ("num_attention_heads", "n_heads", "n_head"):
            if isinstance(getattr(config, word, None), int):
                return int(getattr(config, word))
    return None
