"""A bare module behind hook points, as probes know models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from compolens.foundation.configs import ConfigError, DoesNotApply, nearest, require
from compolens.hooks import HookedModel, HookPoint
from compolens.models.base import split_positions
from compolens.zoo.adopted.layouts import bridge_logits, heads_of, language_logits
from compolens.zoo.adopted.taps import SIDES, Tap, shown

Call = Callable[[nn.Module, Tensor], Any]
"""(module, tokens) -> output."""
Site = tuple[str, str, str, int | str | None]
"""Hook name, submodule, side ("output" or "input"), index."""


MANY = 1 << 20
"""Numbers of a prediction of one episode beyond which logits are computed at the answer alone."""


class NoSuchPart(DoesNotApply, AttributeError):
    """Asked for a part by a name that architectures here have; what asks for it does not apply to an adopted network."""


class _Parts(nn.Module):
    """Holds hook points under dotted names; what it does not hold, a measurement cannot use."""

    weights = None
    """Of an attention: no formula of its weights is known."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise NoSuchPart(f"an adopted network shows its hook points alone; it has no part {name!r} to read") from None


def _codes(sites: Sequence[Site]) -> list[Site]:
    """The `hook_code` of every attention of which its weights alone are named: where these are."""
    named = {name for name, *_ in sites}
    pattern = ".attn.hook_pattern"
    weights = [site for site in sites if site[0].endswith(pattern)]
    found = [(f"{name.removesuffix(pattern)}.attn.hook_code", path, side, index) for name, path, side, index in weights]
    return [site for site in found if site[0] not in named]


class AdoptedModel(HookedModel):
    """A bare module behind hook points; ``model(tokens)`` is its output, put at the task's answers where it has only these.

    Hook points have the names of the sites; where `hook_pattern` of an attention is named, its `hook_code` stands there too.
    Weights are those of the module, under "module.". Where torch fuses a whole layer
    (nn.TransformerEncoderLayer and nn.MultiheadAttention, without gradients), it does not while a hook point in it is in use:
    what is read is then equal up to rounding.

    Of a language model whose vocabulary makes more than `MANY` logits an episode, those of a single answer alone are computed
    without gradients, and by `resume_answers` and `run_for_answers` with them; they stand at every position, in the memory of
    one.

    Args:
        module: the network.
        sites: (hook name, submodule, "input" or "output", index or None) of every hook point.
        call: (module, tokens) -> output (None: module(tokens)).
        roles: token role -> positions in the network's own sequence ({}: those of the episode).
        n_layers: how many blocks the sites name.
        d_out: width of an answer.
        seq: tokens of an episode (None: any number).
        answers: positions that count, may be negative.
    """

    def __init__(
        self,
        module: nn.Module,
        sites: Sequence[Site],
        call: Call | None,
        roles: Mapping[str, Sequence[int]],
        *,
        n_layers: int,
        d_out: int,
        seq: int | None,
        answers: Sequence[int],
    ) -> None:
        super().__init__()
        self.module, self.call = module, call
        self.d_out, self.answers = d_out, [a % seq if seq else a for a in answers]
        self.heads = heads_of(module)
        codes = _codes(sites)
        self.turned = {name for name, *_ in codes}
        self.taps = tuple(self._tap(*site) for site in [*sites, *codes])
        for tap in sorted(self.taps, key=lambda tap: [part.zfill(9) for part in tap.name.split(".")]):
            self._hold(tap)
        self.cfg = SimpleNamespace(n_layers=n_layers, n_ctx=None if roles else seq, d_out=d_out)
        self.cfg.use_attn_result = False
        self.answers_asked = False
        context, readout = split_positions(seq, answers)
        own = {"context": context, "readout": readout}
        self.roles = {role: list(positions) for role, positions in roles.items()} or own
        self.setup()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise NoSuchPart(f"an adopted network shows its hook points alone; it has no part {name!r} to read") from None

    def setup(self) -> None:
        """Only our hook points: those that the module may have of its own keep their names."""
        self.hook_dict = {tap.name: tap.point for tap in self.taps}
        self.mod_dict = dict(self.hook_dict)
        for name, point in self.hook_dict.items():
            point.name = name

    def _tap(self, name: str, path: str, side: str, index: int | str | None) -> Tap:
        try:
            self.module.get_submodule(path.partition("@")[0])
        except AttributeError:
            names = [part for part, _ in self.module.named_modules() if part]
            raise ConfigError(
                f"site {name!r}: {type(self.module).__name__} has no submodule {path!r}; {nearest(path, names)}"
            ) from None
        at, _, number = path.partition("@")
        require(not number or number.isdecimal(), f"site {name!r}: {path!r} must name a call by its number, such as '{at}@0'")
        tap = SIDES[side](name, path, index, HookPoint())
        tap.heads = self.heads
        tap.turned = name.endswith("attn.hook_code") and (at.endswith("hook_pattern") or name in self.turned)
        return tap

    def _hold(self, tap: Tap) -> None:
        """Put the hook point where its dotted name says; numbered parts in lists."""
        *above, last = tap.name.split(".")
        parent: nn.Module = self
        for part, below in zip(above, [*above, last][1:], strict=True):
            if part not in parent._modules:
                parent.add_module(part, nn.ModuleList() if below.isdecimal() else _Parts())
            parent = parent.get_submodule(part)
            require(not isinstance(parent, HookPoint), f"site {tap.name!r} lies inside another site; choose another name")
        parent.add_module(last, tap.point)

    def forward(self, tokens: Tensor, stop_at_layer: int | None = None) -> Tensor:
        """The prediction.

        Args:
            tokens: (batch, seq, d_in).
            stop_at_layer: None; the network is computed whole.

        Returns:
            (batch, seq, d_out).

        Raises:
            DoesNotApply: a layer is named to stop at.
        """
        if stop_at_layer is not None:
            raise DoesNotApply(
                f"an adopted network is computed whole, got stop_at_layer={stop_at_layer}; read the stream at its hook point: "
                "record(model, episodes, residual_sites(model)[LAYER])"
            )
        used = [tap for tap in self.taps if tap.in_use]
        with self._attached(used) if used else contextlib.nullcontext():
            output = self._called(tokens)
        if self.call in (language_logits, bridge_logits) and isinstance(output, Tensor):
            output = output[..., : self.d_out]  # a vocabulary may be larger than the tokens that a task knows
            if self._answer_alone(tokens):
                answer = output if output.shape[1] == 1 else output[:, self.answers].clone()
                return answer.expand(-1, tokens.shape[1], -1)
        if isinstance(output, Tensor) and output.shape == (*tokens.shape[:2], self.d_out):
            return output
        return self._placed(output, tokens)

    def _called(self, tokens: Tensor) -> Any:
        if self.call is None:
            return self.module(tokens)
        if self.call is language_logits and self._answer_alone(tokens):
            return language_logits(self.module, tokens, self.answers[0])
        return self.call(self.module, tokens)

    def _answer_alone(self, tokens: Tensor) -> bool:
        """Whether no more than the one answer's logits are kept: a gradient may be asked of all, a loss may count all, but for
        what asks for answers."""
        many = len(self.answers) == 1 and tokens.shape[1] * self.d_out > MANY
        return many and (self.answers_asked or not torch.is_grad_enabled())

    @contextlib.contextmanager
    def _attached(self, taps: Sequence[Tap]) -> Iterator[None]:
        """Hooks on the submodules of these taps; one that was not passed exactly once is an error, since an edit there would
        have been ignored, or made twice."""
        handles = []
        try:
            for tap in taps:
                tap.fired = 0
                handles.append(tap.attach(self.module.get_submodule(tap.path)))
            yield
        finally:
            for handle in handles:
                handle.remove()
        for tap in taps:
            if tap.number is not None and tap.fired <= tap.number:
                raise ConfigError(
                    f"site {tap.name!r}: {tap.path!r} was called {tap.fired} times in one forward pass, so there is no call "
                    f"number {tap.number}; they count from 0"
                )
            if tap.number is None and tap.fired != 1:
                several = f'say which call, such as "{tap.path}@0" for the first, ' if tap.fired else ""
                raise ConfigError(
                    f"site {tap.name!r}: {tap.path!r} was called {tap.fired} times in one forward pass, and must be called "
                    f"once; {several}or name a submodule that is (torch's fused attention reads its projections without "
                    "calling them)"
                )

    def _placed(self, output: Any, tokens: Tensor) -> Tensor:
        """(batch, seq, d_out) from the answers alone: (batch, answers, d_out), or (batch, d_out) where there is one."""
        batch, seq, n = *tokens.shape[:2], len(self.answers)
        answers = output[:, None] if isinstance(output, Tensor) and output.ndim == 2 and n == 1 else output
        if not isinstance(answers, Tensor) or answers.shape != (batch, n, self.d_out):
            allowed: dict[str, tuple[int, ...]] = {
                "(batch, seq, d_out)": (batch, seq, self.d_out),
                "(batch, answers, d_out)": (batch, n, self.d_out),
            }
            allowed |= {"(batch, d_out)": (batch, self.d_out)} if n == 1 else {}
            raise ConfigError(
                f"the network returned a {shown(output)}; allowed: tensors of "
                f"{' or '.join(f'{name} = {shape}' for name, shape in allowed.items())}; "
                "give call=, a function (module, tokens) -> such a tensor"
            )
        prediction = answers.new_zeros(batch, seq, self.d_out)
        prediction[:, self.answers] = answers
        return prediction

    def resume(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        """As in `HookedModel`; the stream that enters a block is the one that leaves the block before it. Everything before
        is computed all the same, since the network is known at its hook points alone."""
        site = "blocks.0.hook_resid_pre" if layer == 0 else f"blocks.{layer - 1}.hook_resid_post"
        return self.run_with_hooks(tokens, fwd_hooks=[(site, lambda tensor, hook: resid)])

    def resume_answers(self, resid: Tensor, layer: int, tokens: Tensor) -> Tensor:
        with self._asked():
            return self.resume(resid, layer, tokens)

    def run_for_answers(self, tokens: Tensor, fwd_hooks: list[tuple[str | Callable, Callable]]) -> Tensor:
        with self._asked():
            return super().run_for_answers(tokens, fwd_hooks)

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        self.answers_asked = True
        try:
            yield
        finally:
            self.answers_asked = False

    def check_site(self, name: str) -> None:
        """Raise `DoesNotApply`, which says what to name, unless `name` is among the sites."""
        if name not in self.hook_dict:
            known, attention = nearest(name, self.hook_dict), name.endswith((".attn.hook_code", ".attn.hook_pattern"))
            what = f"the adopted {type(self.module).__name__} has no hook point {name!r}"
            if attention and self.call is language_logits:
                raise DoesNotApply(
                    f"{what}, since transformers' attention does not show its weights; adopt a TransformerBridge around the "
                    "model, which does: TransformerBridge.boot_transformers(NAME, hf_model=model)"
                )
            asked = name.replace("hook_code", "hook_pattern") if attention else name
            known = f"{known} Name" if known.endswith("?") else f"{known}; name"
            raise DoesNotApply(
                f'{what}; {known} where it is computed: adopt(…, sites={{"{asked}": ("SUBMODULE", "output"), …}})'
            )

    def check_stream(self, names: list[str]) -> None:
        """Raise `DoesNotApply`, which says what to name, unless the whole residual stream is among the sites."""
        absent = [name for name in names if name not in self.hook_dict]
        if absent:
            wanted = [*absent, "blocks.0.hook_resid_post"] if len(names) == 1 else absent
            told = ", ".join(f'"{name}": ("SUBMODULE", "output")' for name in wanted)
            raise DoesNotApply(
                f"the adopted {type(self.module).__name__} does not show its whole residual stream; name where the rest is "
                f"computed: adopt(…, sites={{{told}, …}})"
            )

    def may_have(self, name: str) -> bool:
        return name in self.hook_dict
