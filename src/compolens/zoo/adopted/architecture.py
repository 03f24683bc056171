"""What describes an adopted network: the class or function that makes it, and what its parts are called here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from compolens.foundation.configs import ConfigError, DoesNotApply, frozen, require, shown
from compolens.hooks import HookedModel
from compolens.models.base import Architecture
from compolens.zoo.adopted.model import AdoptedModel, Call, Site
from compolens.zoo.adopted.taps import SIDES

FAILURES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError, NotImplementedError)
"""What a network raises that is given what it cannot take."""
TAKEN = ("module", "training", "cfg", "roles", "taps", "turned", "heads", "call", "answers", "d_out", "hook_dict", "mod_dict")
NO_UNTRAINED_CONTROL = "the network was adopted without a way to initialise it anew; name one: adopt(…, reinit=MyNet)"


@dataclass(frozen=True)
class Adopted(Architecture):
    """A network of the user's, described by what makes it and by what its parts are called here.

    A folder keeps `module`, `call` and `reinit` by name: `load(folder, classes=[…])` looks them up among what it is given.

    Args:
        module: a class or function of the user's; ``module(**arguments)`` is the network.
        arguments: plain values, by name.
        sites: hook name -> a submodule's name, or (name, "output" or "input"), or the same with an index into a tuple (a key
            into a mapping; for inputs a position or keyword, without which the first argument is meant, and every other that
            is the same tensor). Hook names are TransformerLens', and "hook_code" for an explicit code.
        call: (module, tokens) -> output (None: module(tokens)).
        reinit: makes the network with fresh weights, from the same arguments (None: there is no untrained control).
        roles: token role -> positions in the network's own sequence, at least "context" and "readout", where this is not the
            episode's.
        n_layers: how many blocks the sites name; found from these.
    """

    module: Callable[..., nn.Module]
    arguments: Any = ()
    sites: Any = ()
    call: Call | None = None
    reinit: Callable[..., nn.Module] | None = None
    roles: Any = ()
    n_layers: int | None = None

    def __post_init__(self) -> None:
        for name in ("module", "call", "reinit"):
            value = getattr(self, name)
            optional = value is None and name != "module"
            require(optional or callable(value), f"Adopted: {name} must be a class or a function, got {value!r}")
            require(not isinstance(value, nn.Module), f"Adopted: {name} must make networks, not be one; use adopt(network, …)")
        for name in ("arguments", "roles"):
            object.__setattr__(self, name, _pairs(name, getattr(self, name)))
        object.__setattr__(self, "sites", _sites(self.sites))
        object.__setattr__(self, "n_layers", _layers(self.sites))
        roles = dict(self.roles)
        for role, positions in roles.items():
            numbers = isinstance(positions, Sequence) and all(type(position) is int for position in positions)
            listed = numbers and len(positions) > 0
            require(listed, f"Adopted: roles[{role!r}] must list positions, such as [0, 1]; got {shown(positions)}")
        object.__setattr__(self, "roles", tuple((role, tuple(positions)) for role, positions in roles.items()))
        require(
            not roles or {"context", "readout"} <= set(roles),
            f"Adopted: roles must name at least 'context' and 'readout', got {list(roles)}",
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
    ) -> AdoptedModel:
        return self.around(self._made(), d_out=d_out, seq=seq, answers=answers)

    def around(self, network: nn.Module, *, d_out: int, seq: int | None, answers: Sequence[int]) -> AdoptedModel:
        """The model with a network that exists already.

        Args:
            network: the network.
            d_out: width of an answer.
            seq: tokens of an episode (None: any number).
            answers: positions that count, may be negative.

        Returns:
            The network behind hook points.
        """
        roles, n_layers = dict(self.roles), _layers(self.sites)
        return AdoptedModel(network, self.sites, self.call, roles, n_layers=n_layers, d_out=d_out, seq=seq, answers=answers)

    def untrained(self) -> Adopted:
        """What builds the untrained control; `DoesNotApply` where the user named nothing that does."""
        if self.reinit is None:
            raise DoesNotApply(NO_UNTRAINED_CONTROL)
        return replace(self, module=self.reinit)

    def _made(self) -> nn.Module:
        """``module(**arguments)``, or an error that shows what it wants and what it got."""
        arguments, name = dict(self.arguments), getattr(self.module, "__name__", repr(self.module))
        got = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
        try:
            signature = inspect.signature(self.module)
        except (TypeError, ValueError):
            signature = None
        way = "adopt(…, arguments={…}) with plain values, or built_by=a function in a file of yours that makes the network"
        try:
            if signature is not None:
                signature.bind(**arguments)
            made = self.module(**arguments)
        except ConfigError:
            raise
        except FAILURES as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise ConfigError(f"{name}{signature or '(…)'} cannot be called as {name}({got}): {reason}; give {way}") from error
        require(isinstance(made, nn.Module), f"{name}({got}) made a {type(made).__name__}, not a torch.nn.Module; give {way}")
        return made


def _pairs(what: str, given: Any) -> tuple[tuple[str, Any], ...]:
    """A mapping as a tuple of (name, value), which a frozen description can hold."""
    pairs = tuple(given.items()) if isinstance(given, Mapping) else tuple(given)
    for pair in pairs:
        named = isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)
        require(named, f"Adopted: {what} must be a mapping from names to values, got {given!r}")
    return frozen(pairs)


def _sites(given: Any) -> tuple[Site, ...]:
    """Sites in full: (hook name, submodule, side, index)."""
    listed = isinstance(given, list | tuple) and all(isinstance(site, list | tuple) and len(site) > 1 for site in given)
    require(
        isinstance(given, Mapping) or listed,
        f'sites must be a mapping from hook names to submodules, such as {{"blocks.0.hook_resid_post": "layers.0"}}; '
        f"got {shown(given)}",
    )
    items = given.items() if isinstance(given, Mapping) else [(site[0], tuple(site[1:])) for site in given]
    return tuple(_site(name, at) for name, at in items)


def _layers(sites: Sequence[tuple]) -> int:
    """How many blocks the names number."""
    numbers = sorted({int(name.split(".")[1]) for name, *_ in sites if name.startswith("blocks.")})
    require(numbers == list(range(len(numbers))), f"blocks must be numbered from 0 without a gap, got {numbers}")
    return len(numbers)


def _site(name: str, at: Any) -> Site:
    require(isinstance(name, str), f"a site's name must be a word like 'blocks.0.hook_resid_post', got {shown(name)}")
    given = tuple(at) if isinstance(at, tuple | list) else (at,)
    path, side, index = (*given, *("", "output", None)[len(given) :])[:3]
    plain = isinstance(path, str) and isinstance(index, int | str | None) and not isinstance(index, bool)
    require(
        plain and side in SIDES and 1 <= len(given) <= 3,
        f"site {name!r} must be a submodule's name, (name, 'output') or (name, 'input'), or one of these with an index, "
        f"such as ('layers.0', 'output', 0); got {f'a {type(at).__name__}' if isinstance(at, nn.Module) else shown(at)}",
    )
    parts = name.split(".")
    words = all(part.isidentifier() or part.isdecimal() for part in parts) and parts[0].isidentifier()
    numbered = parts[0] != "blocks" or (len(parts) > 2 and parts[1].isdecimal())
    require(words and numbered, f"site {name!r} must be named like 'hook_code' or 'blocks.0.hook_resid_post'")
    taken = parts[0] in TAKEN or hasattr(HookedModel, parts[0])
    require(not taken, f"a site cannot be called {name!r}: {parts[0]!r} is taken; names begin with 'hook_' or 'blocks.'")
    return name, str(path), str(side), index
