"""Where something can be read, or put: hook points at token roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, nearest, require
from compolens.foundation.moved import elsewhere, renamed
from compolens.hooks import HookedModel


def at_role(activation: Tensor, model: HookedModel, role: str) -> Tensor:
    """An activation at a token role, one vector an episode.

    Args:
        activation: (batch, pos, ...).
        model: whose roles count.
        role: "context": the mean over the context's positions; "readout": one position from which an answer is read, the
            first, as the queries of an episode are exchangeable, or the last where context stands behind the first, as then
            only the last has seen all of it; "context+readout": the mean over the positions of both; "all": flattened over
            positions.

    Returns:
        (batch, features).

    Raises:
        ConfigError: the model has no such role, what is given as a model has no roles at all, or the activation has not the
            model's own positions along its second axis.
    """
    if role == "all":
        return activation.flatten(1)
    _check_roles(activation, model, "at_role")
    at = positions(model, role)
    _check_length(activation, model)
    if role == "readout":
        asked, shown = (sorted(p % activation.shape[1] for p in model.roles.get(name, ())) for name in ("readout", "context"))
        interleaved = bool(shown) and shown[-1] > asked[0]
        return activation[:, asked[-1 if interleaved else 0]].flatten(1)
    return activation[:, at].mean(1).flatten(1)


def at_answers(activation: Tensor, model: HookedModel) -> Tensor:
    """An activation at the positions from which answers are read, in order.

    Args:
        activation: (batch, pos, ...).
        model: whose positions count.

    Returns:
        (batch, answer, ...).

    Raises:
        ConfigError: what is given as a model has no token roles, or the activation has not the model's own positions along
            its second axis.
    """
    _check_roles(activation, model, "at_answers")
    _check_length(activation, model)
    return activation[:, model.roles["readout"]]


def _check_roles(activation: Any, model: Any, verb: str) -> None:
    got = f"a {type(activation).__name__} and a {type(model).__name__}"
    name = "trained.model" if hasattr(model, "model") else "model"
    require(
        hasattr(model, "roles"),
        f"{verb} takes an activation and then a model with token roles, got {got}; type {verb}(activation, {name}"
        + (", role)" if verb == "at_role" else ")"),
    )


def _check_length(activation: Tensor, model: HookedModel) -> None:
    """Roles are positions of the whole sequence: of a part of it, or along another axis, they would be others."""
    length = getattr(model.cfg, "n_ctx", None)
    fits = activation.ndim > 1 and (length is None or activation.shape[1] == length)
    require(
        fits,
        f"token roles are positions of the model's own sequence, {length} of them along the second axis; got an activation of "
        f"shape {tuple(activation.shape)}; cache the whole sequence (no pos_slice=), and of hook_z, hook_pattern and the like "
        "take the axes apart yourself",
    )


def residual_sites(model: HookedModel) -> dict[int, str]:
    """layer -> hook point of the residual stream of `model`: 0 is the stream entering the first block, l the stream leaving
    block l. `DoesNotApply` where a network was adopted without them."""
    found = _stream(model)
    model.check_stream(list(found.values()))
    return found


def named_stream(model: HookedModel) -> dict[int, str]:
    """As `residual_sites`; of a network that was adopted with an explicit code, what was named of the stream, if anything.

    Args:
        model: the model.

    Returns:
        layer -> hook point.

    Raises:
        DoesNotApply: the network was adopted with neither a whole stream nor an explicit code.
    """
    if "hook_code" not in model.hook_dict:
        return residual_sites(model)
    return {layer: name for layer, name in _stream(model).items() if model.may_have(name)}


def _stream(model: HookedModel) -> dict[int, str]:
    last = model.cfg.n_layers
    return {0: "blocks.0.hook_resid_pre", **{i + 1: f"blocks.{i}.hook_resid_post" for i in range(last)}}


class Site(NamedTuple):
    """Where something can be read, or put: a hook point at a token role.

    Args:
        layer: as in `residual_sites`; an explicit code, where the architecture has one, counts as one layer more.
        hook_name: the hook point.
        role: the token role, see `positions`.
    """

    layer: int
    hook_name: str
    role: str

    @property
    def site(self) -> str:
        """The hook point's name, as it was called before version 0.2."""
        renamed("Site.site", "Site.hook_name")
        return self.hook_name


ROWS = 64
"""Episodes at once where no gradient is kept: what a block makes of more does not fit into a core's cache."""
EVERYWHERE = "context+readout"
"""The union of the two token roles that every model has."""


def sites(model: HookedModel) -> list[Site]:
    """Every site that probes look at in `model`: the residual stream at every layer, at every token role and at their union;
    then the explicit code, if there is one.

    The last layer's context tokens are left out: nothing reads them any more."""
    last, roles = model.cfg.n_layers, [*model.roles, EVERYWHERE]
    found = [
        Site(layer, hook_name, role)
        for layer, hook_name in named_stream(model).items()
        for role in (roles if layer < last else ["readout"])
    ]
    return found + ([Site(last + 1, "hook_code", "all")] if "hook_code" in model.hook_dict else [])


def positions(model: HookedModel, role: str) -> list[int] | slice:
    """The positions of a token role in the model's own sequence.

    Args:
        model: whose roles count.
        role: one of its roles; "all": every position; "context+readout": those of both, ascending.

    Returns:
        Positions, at least 0.

    Raises:
        ConfigError: the model has no such role.
    """
    if role == "all":
        return slice(None)
    for name in role.split("+"):
        if name not in model.roles:
            raise ConfigError(f"no token role {name!r}; {nearest(name, [*model.roles, 'all'])}")
    length = getattr(model.cfg, "n_ctx", None)
    found = {p % length if p < 0 and length else p for name in role.split("+") for p in model.roles[name]}
    return sorted(found)


def put(model: HookedModel, tokens: Tensor, site: Site, activation: Tensor) -> Tensor:
    """The prediction with the whole activation at a site's hook point replaced; gradients flow.

    Blocks before a residual site are not computed, nor is what the last block makes of positions at which no answer is read,
    unless a hook looks on.

    Args:
        model: the model.
        tokens: (batch, seq, d_in).
        site: whose hook point is written; its role is not looked at.
        activation: of that hook point's shape.

    Returns:
        (batch, seq, d_out), right where an answer is read.
    """
    execute = getattr(model, "execute", None) if site.hook_name == "hook_code" else None
    if execute is not None:
        return execute(activation, tokens)
    if site.hook_name == "hook_code":
        return model.run_with_hooks(tokens, fwd_hooks=[(site.hook_name, lambda tensor, hook: activation)])
    if site.hook_name != _stream(model).get(site.layer):
        return model.run_for_answers(tokens, fwd_hooks=[(site.hook_name, lambda tensor, hook: activation)])
    if any(point._forward_hooks for point in model.hook_dict.values()):
        return model.resume(activation, site.layer, tokens)
    if torch.is_grad_enabled() or activation.is_cuda or len(activation) != len(tokens) or len(tokens) <= ROWS:
        return model.resume_answers(activation, site.layer, tokens)
    pieces = zip(activation.split(ROWS), tokens.split(ROWS), strict=True)
    return chained([model.resume_answers(some, site.layer, shown) for some, shown in pieces])


def chained(predictions: Sequence[Tensor]) -> Tensor:
    """Predictions of batches as one; where one answer stands at every position in the memory of one, it goes on so.

    Args:
        predictions: (batch, seq, d_out) each.

    Returns:
        (all batches, seq, d_out).
    """
    if all(one.ndim == 3 and one.shape[1] > 1 and one.stride(1) == 0 for one in predictions):
        return torch.cat([one[:, :1] for one in predictions]).expand(-1, predictions[0].shape[1], -1)
    return torch.cat(list(predictions))


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
