"""Hookable models: TransformerLens' root module and cache, with its known traps turned into errors.

The only file that imports transformer_lens. What differs from a bare `HookedRootModule`:

* a misspelt hook name, or a filter that matches nothing, is an error naming the nearest hook points;
* hooks and caches on a model compiled in place are refused (they would be ignored without a word);
* `run_with_cache` returns an `ActivationCache` whose helpers work, and `clone=True` protects it from in-place edits;
* a model takes numpy arrays and `Episodes` beside tensors, and `return_type` as in TransformerLens.

`interchange_tools` hands on TransformerLens' bases and placebos, from its version 4.3 on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError, nearest, require
from compolens.foundation.later import alone, put_off

_ASKED = {
    "datasets": ["load_dataset"], "datasets.arrow_dataset": ["Dataset"], "datasets.iterable_dataset": ["IterableDataset"],
    "datasets.load": ["load_dataset"], "transformers": ["AutoTokenizer", "PreTrainedTokenizerBase"],
}  # fmt: skip
"""What TransformerLens asks for when it is imported, though few of its functions use it: a third of the time that a command
takes to start."""
with contextlib.suppress(ImportError), put_off(_ASKED, absent=["pytest"]):
    importlib.import_module("transformer_lens")  # a version that asks for more is imported whole by the next lines

from transformer_lens import ActivationCache, FactoredMatrix, HookedRootModule  # noqa: E402
from transformer_lens.hook_points import HookPoint  # noqa: E402
from transformer_lens.utilities import get_act_name  # noqa: E402

__all__ = [
    "Cache", "FactoredMatrix", "HookPoint", "HookedModel", "LayerNorm", "NamesFilter", "Output", "RMSNorm", "TaskLoss",
    "bridge_around", "interchange_tools", "native_bridge",
]  # fmt: skip

NamesFilter = str | list[str] | Callable[[str], bool] | None


@functools.cache
def interchange_tools() -> ModuleType:
    """TransformerLens' `tools.analysis.interchange`: bases that are not learned, and placebos that move as far.

    Returns:
        The module; it is imported when it is asked for, and without the other tools, which import all of transformers.
    """
    return alone("transformer_lens.tools.analysis", "interchange")


def native_bridge(config: str) -> nn.Module:
    """A TransformerBridge of TransformerLens' own transformer, with fresh weights.

    Args:
        config: its configuration as JSON.

    Returns:
        The bridge, in evaluation mode.
    """
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    made: Any = TransformerBridge  # its ways to be made are added when it is imported
    return made.boot_native(TransformerBridgeConfig.from_dict(json.loads(config))).eval()


def bridge_around(network: nn.Module, architecture: str) -> nn.Module:
    """A TransformerBridge around a causal language model of transformers.

    Args:
        network: the model, with its ``config``.
        architecture: its class' name, by which TransformerLens knows where things are in it.

    Returns:
        The bridge, in evaluation mode.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    return build_bridge_from_module(network, architecture, hf_config=network.config).eval()


class Cache(ActivationCache):
    """An `ActivationCache` that also knows ``cache["code", layer]`` and answers a wrong key with the nearest names."""

    def __getitem__(self, key: Any) -> Tensor:
        if isinstance(key, tuple) and key[0] == "code":
            layer = key[1] if key[1] >= 0 else key[1] + self.model.cfg.n_layers
            key = f"blocks.{layer}.attn.hook_code"
        try:
            return super().__getitem__(key)
        except KeyError:
            name = _hook_point(key)
            raise ConfigError(f"nothing cached under {key!r}{_on_request(name)}; {nearest(name, self.cache_dict)}") from None
        except TypeError:
            raise ConfigError(f'a cache is asked for a hook point or ("pattern", 0) and the like, got {key!r}') from None


def _hook_point(key: Any) -> str:
    """The full name of what a cache is asked for, as TransformerLens spells ("pattern", 0)."""
    try:
        return get_act_name(*key) if isinstance(key, tuple) else get_act_name(key)
    except (TypeError, ValueError, AttributeError, IndexError):
        return str(key)


def _on_request(name: str) -> str:
    """How to make the hook point `name` fire that is silent by default; "" for another one."""
    setting = ON_REQUEST.get(name.rpartition(".")[2])
    return "" if setting is None else f" (it fires once model.set_{setting}(True) is called)"


def is_episodes(given: Any) -> bool:
    """Whether `given` is a batch of episodes: it has tokens, and the targets that a loss compares the answers with."""
    return not isinstance(given, Tensor | np.ndarray) and hasattr(given, "tokens") and hasattr(given, "targets")


def as_tokens(given: Any, like: Tensor | None) -> Tensor:
    """The tokens that a model reads.

    Args:
        given: a tensor, which stays as it is; a numpy array; or a batch of episodes.
        like: a parameter of the model, whose device the tokens of arrays and episodes are put on, and whose precision the
            floats of an array get, since numpy's default is another (None: both stay).

    Returns:
        (batch, seq, d_in) floats, or (batch, seq) token ids.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(given, Tensor):
        return given
    if isinstance(given, np.ndarray) and given.dtype.kind in "fiu":
        tokens = torch.from_numpy(np.array(given))  # a copy: torch takes neither read-only memory nor negative strides
        tokens = tokens if tokens.is_floating_point() else tokens.long()
        floats = like is not None and like.is_floating_point() and tokens.is_floating_point()
        return tokens if like is None else tokens.to(like.device, like.dtype if floats else None)
    if is_episodes(given) and isinstance(given.tokens, Tensor):
        return given.tokens if like is None else given.tokens.to(like.device)
    told = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
    raise ConfigError(
        f"a model takes tokens as a tensor, a numpy array of numbers, or Episodes, got {told}; "
        "type model(torch.as_tensor(tokens)) or model(episodes)"
    )


class Output(NamedTuple):
    """What ``return_type="both"`` gives, under TransformerLens' names.

    Args:
        logits: (batch, seq, d_out), the prediction.
        loss: the task's, a scalar.
    """

    logits: Tensor
    loss: Tensor


class TaskLoss:
    """The loss of a task, kept by the models that were made for it; a copy of a model shares it, data and all.

    Args:
        function: (prediction (batch, seq, d_out), targets) -> a scalar.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return self.function(prediction, targets)

    def __deepcopy__(self, memo: dict) -> TaskLoss:
        return self


ON_REQUEST = {
    "hook_result": "use_attn_result", "hook_mlp_in": "use_hook_mlp_in",
    **dict.fromkeys(("hook_q_input", "hook_k_input", "hook_v_input"), "use_split_qkv_input"),
}  # fmt: skip
"""Hook points that fire where they are asked for -> the setting that asks."""


class HookedModel(HookedRootModule):
    """Base of every model here. `roles`: name -> positions in the model's own sequence, at least "context", "readout".

    ``model(x)`` takes tokens as a tensor or a numpy array, or `Episodes`. ``return_type`` is TransformerLens': "logits" (the
    prediction, the default), "loss" (the task's, of episodes), "both" (`Output`), or None (nothing, for the hooks alone).
    """

    cfg: Any
    roles: dict[str, list[int]]
    task_loss: TaskLoss | None = None

    def __call__(self, *args: Any, return_type: str | None = "logits", **kwargs: Any) -> Any:
        args, kwargs, targets = self._arguments_of(args, kwargs, return_type)
        return self._returned(super().__call__(*args, **kwargs), targets, return_type)

    def run_with_hooks(self, *model_args: Any, return_type: str | None = "logits", **kwargs: Any) -> Any:
        """As in TransformerLens, with the inputs and return types of ``model(x)``.

        Args:
            model_args: of the forward pass, the tokens first.
            return_type: "logits", "loss", "both" or None.
            kwargs: as there: fwd_hooks, bwd_hooks, and of the forward pass.

        Returns:
            What `return_type` names.
        """
        model_args, kwargs, targets = self._arguments_of(model_args, kwargs, return_type)
        return self._returned(super().run_with_hooks(*model_args, **kwargs), targets, return_type)

    def _arguments_of(self, args: tuple, kwargs: dict, return_type: str | None) -> tuple[tuple, dict, Tensor | None]:
        """(arguments and keyword arguments of the forward pass, the targets where a loss is asked for)."""
        if args:
            given, args = args[0], (self._tokens(args[0]), *args[1:])
        elif "tokens" in kwargs:
            given, kwargs = kwargs["tokens"], {**kwargs, "tokens": self._tokens(kwargs["tokens"])}
        else:
            given = None
        if return_type in ("logits", None):
            return args, kwargs, None
        require(return_type in ("loss", "both"), f"return_type must be 'logits', 'loss', 'both' or None, got {return_type!r}")
        require(kwargs.get("stop_at_layer") is None and len(args) < 2, "a model stopped at a layer gives the stream, no loss")
        why = f"return_type={return_type!r} needs episodes, whose targets the loss reads, got {type(given).__name__}"
        require(is_episodes(given), f"{why}; type model(episodes, return_type={return_type!r})")
        why = "this model does not know its task's loss (it was built by an architecture alone)"
        require(
            self.task_loss is not None, f"{why}; load it, build it by Run(…).build(), or type task.loss(model(x), targets)"
        )
        return args, kwargs, given.targets

    def _tokens(self, given: Any) -> Tensor:
        return given if isinstance(given, Tensor) else as_tokens(given, next(self.parameters(), None))

    def _returned(self, output: Any, targets: Tensor | None, return_type: str | None) -> Any:
        if return_type == "logits" or return_type is None:
            return output if return_type else None
        assert self.task_loss is not None and targets is not None
        loss = self.task_loss(output, targets.to(output.device))
        return loss if return_type == "loss" else Output(output, loss)

    def answer(self, tokens: Tensor) -> Tensor:
        """The prediction for `tokens`, right at least where an answer is read; an architecture may skip the rest. For
        training."""
        return self(tokens)

    def resume(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        """The prediction from the residual stream on. Earlier hook points may not fire.

        Args:
            resid: (batch, pos, d_model), the stream that enters the block.
            layer: the block's number; n_layers: the stream leaves the last block.
            tokens: the episode's own, for parts that read them beside the stream.

        Returns:
            (batch, seq, d_out).
        """
        after = layer == self.cfg.n_layers
        site = f"blocks.{layer - 1}.hook_resid_post" if after else f"blocks.{layer}.hook_resid_pre"
        return self.run_with_hooks(tokens, fwd_hooks=[(site, lambda tensor, hook: resid)])

    def resume_answers(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        """As `resume`, right at least where an answer is read; an architecture may skip the rest.

        Args:
            resid: as in `resume`.
            layer: as in `resume`.
            tokens: as in `resume`.

        Returns:
            (batch, seq, d_out).
        """
        return self.resume(resid, layer, tokens)

    def run_for_answers(self, tokens: Tensor, fwd_hooks: list[tuple[str | Callable, Callable]]) -> Tensor:
        """As ``run_with_hooks``, right at least where an answer is read; every hook point fires, whole.

        Args:
            tokens: the episodes'.
            fwd_hooks: (name or filter, function).

        Returns:
            (batch, seq, d_out).
        """
        return self.run_with_hooks(tokens, fwd_hooks=fwd_hooks)

    def reader(self, layer: int, hook: str, role: str) -> Tensor | None:
        """The one linear map through which everything after a site reads it.

        Args:
            layer: as in `residual_sites`: 0 enters the first block, l leaves block l.
            hook: the hook point's name.
            role: the token role, such as "readout".

        Returns:
            (n, d), a row per quantity that is read; None where there is no such map.
        """
        return None

    def draw_from(self, generator: torch.Generator | None) -> None:
        """Let everything random in training mode (dropout) draw from `generator`; None: from torch's global one."""
        for module in self.modules():
            if hasattr(module, "generator"):
                module.generator = generator  # type: ignore[assignment]

    def check_site(self, name: str) -> None:
        """Raise unless `name` is a hook point that fires."""
        if name not in self.hook_dict:
            raise ConfigError(f"no hook point {name!r}; {nearest(name, self.hook_dict)}")
        if not self._fires(name):
            setting = ON_REQUEST[name.rpartition(".")[2]]
            raise ConfigError(f"{name!r} does not fire unless model.set_{setting}(True) is called first")

    def check_stream(self, names: list[str]) -> None:
        """Raise unless the hook points `names` of the residual stream are there: here they always are."""

    def may_have(self, name: str) -> bool:
        """Whether the hook point `name` may be asked for: an adopted network has those that were named alone."""
        return True

    def _fires(self, name: str) -> bool:
        setting = ON_REQUEST.get(name.rpartition(".")[2])
        return setting is None or getattr(self.cfg, setting, True)

    def _check_filter(self, names: NamesFilter | Iterable[str]) -> None:
        if self._compiled_call_impl is not None:
            raise ConfigError(
                "this model was compiled in place (model.compile()), which ignores hooks without a word; "
                "hook an uncompiled copy instead"
            )
        if names is None:
            return
        if callable(names):
            if not any(names(name) for name in self.hook_dict if self._fires(name)):
                raise ConfigError("the filter matches none of the model's hook points; list(model.hook_dict) names them")
            return
        for name in [names] if isinstance(names, str) else names:
            self.check_site(name)

    def hooks(
        self,
        fwd_hooks: list[tuple[str | Callable, Callable]] = [],  # noqa: B006 - the signature TransformerLens users know
        bwd_hooks: list[tuple[str | Callable, Callable]] = [],  # noqa: B006
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Any:
        """As in TransformerLens; names are checked before anything is attached.

        Args:
            fwd_hooks: (name or filter, function) for the forward pass.
            bwd_hooks: the same for the backward pass.
            reset_hooks_end: remove them at the context's end.
            clear_contexts: also clear the contexts of hook points.

        Returns:
            A context in which the hooks are attached.
        """
        for name, _ in [*fwd_hooks, *bwd_hooks]:
            self._check_filter(name)
        return super().hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts)

    def add_hook(self, name: str | Callable[[str], bool], *args: Any, **kwargs: Any) -> None:
        """As in TransformerLens; the name is checked first.

        Args:
            name: a hook point's name, or a filter.
            args: as there.
            kwargs: as there.
        """
        self._check_filter(name)
        super().add_hook(name, *args, **kwargs)

    def add_caching_hooks(  # type: ignore[override]
        self, names_filter: NamesFilter = None, *args: Any, **kwargs: Any
    ) -> dict:
        """As in TransformerLens; names are checked first.

        Args:
            names_filter: which hook points are cached.
            args: as there.
            kwargs: as there.

        Returns:
            The cache, which the next forward pass fills.
        """
        self._check_filter(names_filter)
        return super().add_caching_hooks(names_filter, *args, **kwargs)

    def get_caching_hooks(  # type: ignore[override]
        self,
        names_filter: NamesFilter = None,
        incl_bwd: bool = False,
        device: Any = None,
        remove_batch_dim: bool = False,
        cache: dict | None = None,
        pos_slice: Any = None,
    ) -> tuple:
        """As in TransformerLens; names are checked first, hook points that are switched off are left out, and positions are
        found at hook points that it does not know, too.

        Args:
            names_filter: which hook points are cached.
            incl_bwd: gradients, too.
            device: where the cache is kept (None: where the model is).
            remove_batch_dim: leave the batch dimension of 1 out.
            cache: what is filled (None: a new dict).
            pos_slice: which positions are kept (None: all); of pairs (query, key), which queries. What has no positions stays
                whole.

        Returns:
            (cache, forward hooks, backward hooks).
        """
        self._check_filter(names_filter)
        given = (names_filter, incl_bwd, device, remove_batch_dim)
        cache, forward, backward = super().get_caching_hooks(*given, cache, pos_slice)
        if pos_slice is not None:
            _, *whole = super().get_caching_hooks(*given, cache)
            forward = [_at_positions(*pair, cache, "") for pair in zip(forward, whole[0], strict=True)]
            backward = [_at_positions(*pair, cache, "_grad") for pair in zip(backward, whole[1], strict=True)]
        return cache, [h for h in forward if self._fires(h[0])], [h for h in backward if self._fires(h[0])]

    def run_with_cache(  # type: ignore[override]
        self,
        *model_args: Any,
        names_filter: NamesFilter = None,
        clone: bool = False,
        remove_batch_dim: bool = False,
        device: Any = None,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: Any = None,
        **model_kwargs: Any,
    ) -> tuple[Tensor, Cache]:
        """The output, and what the hook points saw.

        Args:
            model_args: of the forward pass, the tokens first.
            names_filter: which hook points are cached (None: all); a name, names, or a filter.
            clone: copies each activation as it is stored. A hook that edits in place (``t[:, 0] = 0``) otherwise also edits
                what is already cached, since neighbouring hook points share storage.
            remove_batch_dim: leave the batch dimension of 1 out.
            device: where the cache is kept (None: where the model is).
            incl_bwd: also run backward, from an output of one number, and cache gradients.
            reset_hooks_end: remove the hooks afterwards.
            clear_contexts: also clear the contexts of hook points.
            pos_slice: which positions are kept (None: all); of pairs (query, key), which queries.
            model_kwargs: of the forward pass.

        Returns:
            (output, `ActivationCache`).

        Raises:
            ConfigError: a name is misspelt, or the batch or the output does not fit what is asked for.
        """
        self._check_filter(names_filter)
        if remove_batch_dim and model_args and (n := len(self._tokens(model_args[0]))) != 1:
            raise ConfigError(f"remove_batch_dim needs a batch of 1, got {n} episodes")
        cache, forward, backward = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim=remove_batch_dim, pos_slice=pos_slice
        )
        if clone:
            forward = [(name, _cloning(save)) for name, save in forward]
        with self.hooks(forward, backward, reset_hooks_end, clear_contexts):
            output = self(*model_args, **model_kwargs)
            if incl_bwd:
                if not isinstance(output, Tensor) or output.numel() != 1:
                    raise ConfigError(
                        "incl_bwd needs a scalar to begin at: run_with_cache(episodes, return_type='loss', incl_bwd=True); "
                        "for another loss's gradients call loss.backward() inside `with model.hooks(bwd_hooks=[(name, hook)])`"
                    )
                output.backward()
        return output, Cache(cache, self, has_batch_dim=not remove_batch_dim)

    def set_use_attn_result(self, use: bool) -> None:
        """`use`: whether ``attn.hook_result`` (batch, pos, head, d_model) is computed; off by default, since it is large."""
        self._set("use_attn_result", use)

    def set_use_split_qkv_input(self, use: bool) -> None:
        """`use`: whether the stream is copied per head through ``hook_q_input``, ``hook_k_input`` and ``hook_v_input`` (batch,
        pos, head, d_model), before the norm; off by default."""
        self._set("use_split_qkv_input", use)

    def set_use_hook_mlp_in(self, use: bool) -> None:
        """`use`: whether ``hook_mlp_in`` (batch, pos, d_model), what the MLP reads before the norm, fires; off by default."""
        self._set("use_hook_mlp_in", use)

    def _set(self, setting: str, use: bool) -> None:
        setattr(self.cfg, setting, use)
        for module in self.modules():
            if setting in vars(module) or hasattr(type(module), setting):
                setattr(module, setting, use)

    def remove_all_hook_fns(
        self, direction: Any = "both", including_permanent: bool = False, level: int | None = None
    ) -> None:
        """As in TransformerLens, without going through hook points that have no hooks.

        Args:
            direction: "fwd", "bwd" or "both".
            including_permanent: as there.
            level: of the context whose hooks are removed (None: of all).
        """
        for point in self.hook_points():
            if point.fwd_hooks or point.bwd_hooks:
                point.remove_hooks(direction, including_permanent=including_permanent, level=level)


PAIRS = (
    "attn.hook_code", "attn.hook_pre", "attn.hook_post", "attn.hook_pre2", "attn.hook_post2", "attn.hook_phi", "attn.hook_psi",
    "hook_q_input", "hook_k_input", "hook_v_input",
)  # fmt: skip
"""Hook points whose position is the third dimension from the last; TransformerLens looks for it in the second."""
WITHOUT_POSITIONS = ("hook_code", "executor.hook_weights")
"""Hook points that belong to an episode as a whole."""


def _at_positions(sliced: tuple[str, Callable], whole: tuple[str, Callable], cache: dict, end: str) -> tuple[str, Callable]:
    """The hook that saves some positions of what passes, under the hook point's name and `end`."""
    name, save = sliced
    if name in WITHOUT_POSITIONS:
        return whole
    if not name.endswith(PAIRS):
        return sliced

    def turned(tensor: Tensor, hook: HookPoint) -> None:
        save(tensor.transpose(-3, -2), hook=hook)
        cache[name + end] = cache[name + end].transpose(-3, -2)

    return name, turned


def _cloning(save: Callable) -> Callable:
    return lambda tensor, hook: save(tensor.clone(), hook=hook)


class LayerNorm(nn.Module):
    """Layer normalisation with TransformerLens' hook points, fused unless they are in use (3e-6 relative apart).

    Args:
        width: of what is normalised, its last dimension.
        eps: added to the variance.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.w = nn.Parameter(torch.ones(width))
        self.b = nn.Parameter(torch.zeros(width))
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        """`x` (..., width) normalised: the same shape."""
        if self.hook_scale.has_hooks() or self.hook_normalized.has_hooks():
            x = x - x.mean(-1, keepdim=True)
            scale = self.hook_scale((x.square().mean(-1, keepdim=True) + self.eps).sqrt())
            return self.hook_normalized(x / scale) * self.w + self.b
        return nn.functional.layer_norm(x, self.w.shape, self.w, self.b, self.eps)


class RMSNorm(nn.Module):
    """Division by the root mean square, with a gain and no bias; TransformerLens' hook points, fused unless in use.

    Args:
        width: of what is normalised, its last dimension.
        eps: added to the mean square.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.w = nn.Parameter(torch.ones(width))
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Tensor) -> Tensor:
        """`x` (..., width) normalised: the same shape."""
        if self.hook_scale.has_hooks() or self.hook_normalized.has_hooks():
            scale = self.hook_scale((x.square().mean(-1, keepdim=True) + self.eps).sqrt())
            return self.hook_normalized(x / scale) * self.w
        return nn.functional.rms_norm(x, self.w.shape, self.w, self.eps)
