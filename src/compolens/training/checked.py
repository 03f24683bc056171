"""A task family or an architecture from outside the package, tried on a few episodes before it is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, nearest, require, shown
from compolens.models.operands import full
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import VALIDATION, Episodes, stream
from compolens.training.runs import Run

FEW = 8
"""Episodes of a split that are looked at."""
KINDS = ("continuous", "categorical")


def check_own(run: Run, device: str = "cpu") -> None:
    """Raise where a family or an architecture from outside the package would be trained on something else than it says.

    Those of the package are tested, and let through. Random streams that a training draws from stay where they are.

    Args:
        run: what is to be trained.
        device: where.

    Raises:
        ConfigError: what does not fit, and what to write.
    """
    with torch.random.fork_rng(devices=[]):
        if _from_outside(run.task):
            check_family(run.task, run.data_device)
        if _from_outside(run.architecture):
            _check_architecture(run, device)


def check_family(task: TaskFamily, device: torch.device | str = "cpu") -> None:
    """Draw a few episodes of every split, and raise unless they are what the family says.

    Args:
        task: the family.
        device: where its generator draws.

    Raises:
        ConfigError: dimensions, compositions, episodes, loss or errors do not fit; it says which, and what to write.
    """
    name = type(task).__name__
    _check_dimensions(name, task)
    _check_compositions(name, task)
    n = FEW if task.seq != FEW else FEW + 1  # so that a batch cannot be taken for a sequence
    for split in task.splits:
        episodes = task.sample(n, split, _generator(split, device))
        _check_episodes(name, task, split, n, episodes)
        prediction = torch.randn(n, task.seq, task.d_out, generator=_generator(f"{split}/prediction", device), device=device)
        targets = episodes.targets.to(prediction.device)
        with contextlib.suppress(_OwnError):
            if split == "train":
                _check_loss(name, task, prediction, targets)
            _check_errors(name, task, split, prediction, targets)


def _generator(purpose: str, device: torch.device | str) -> torch.Generator:
    """One of its own, not the family's `rng`: a family may count by that what a training draws."""
    generator = torch.Generator(device=device)
    generator.manual_seed(stream("check", purpose, 0))
    return generator


def _from_outside(thing: Any) -> bool:
    return type(thing).__module__.partition(".")[0] != __name__.partition(".")[0]


def _got(value: Any) -> str:
    """What was got, in a few words."""
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)


# ---- the family ------------------------------------------------------------------------------------------------------
def _check_dimensions(name: str, task: TaskFamily) -> None:
    for field in ("d_in", "d_out", "seq"):
        value = getattr(task, field)
        whole = isinstance(value, Integral) and int(value) >= 1
        require(whole, f"{name}: {field} must be a whole number of at least 1, got {_got(value)}")
    seq, answers = task.seq, task.answers
    listed = isinstance(answers, Sequence) and len(answers) > 0
    require(listed, f"{name}: answers must be a tuple of positions, such as ({seq - 1},); got {_got(answers)}")
    for answer in answers:
        inside = isinstance(answer, Integral) and -seq <= answer < seq
        require(
            inside, f"{name}: answers must be positions of the {seq} tokens ({-seq} to {seq - 1}), got {shown(tuple(answers))}"
        )
    mask = task.mask
    allowed = mask is None or (isinstance(mask, Tensor) and mask.shape == (seq, seq))
    require(allowed, f"{name}: mask must be None or a (seq, seq) = {(seq, seq)} tensor, got {_got(mask)}")
    kinds = task.code_kinds
    require(isinstance(kinds, Mapping), f"{name}: code_kinds must be a mapping from codes to kinds, got {_got(kinds)}")
    for code, kind in kinds.items():
        require(kind in KINDS, f"{name}: code_kinds[{code!r}] must be 'continuous' or 'categorical', got {shown(kind)}")


def _check_compositions(name: str, task: TaskFamily) -> None:
    """Raise where a composition is trained on and held out; a family of a single one holds nothing out."""
    found: dict[str, set[int]] = {}
    for split in ("train", "ood", *((VALIDATION,) if VALIDATION in task.splits else ())):
        listed = task.compositions(split)
        whole = isinstance(listed, Sequence | range) and all(isinstance(c, Integral) for c in listed)
        require(whole, f"{name}: compositions({split!r}) must be a tuple of whole numbers, got {_got(listed)}")
        found[split] = {int(c) for c in listed}
    if len(set().union(*found.values())) < 2:
        return
    for split, other in (("train", "ood"), ("train", VALIDATION), ("ood", VALIDATION)):
        both = sorted(found[split] & found.get(other, set()))
        require(
            not both,
            f"{name}: leak: {len(both)} composition(s) are in {split!r} and in {other!r} "
            f"({', '.join(map(str, both[:6]))}{', …' if len(both) > 6 else ''}); held out is never seen, so let "
            f"compositions(split) give those of {other!r} alone there, and sample draw from choose_compositions(split, …)",
        )


def _check_episodes(name: str, task: TaskFamily, split: str, n: int, episodes: Any) -> None:
    asked, seq, d_in = f"{name}: sample({n}, {split!r}, …)", task.seq, task.d_in
    require(isinstance(episodes, Episodes), f"{asked} must return Episodes(…), got {_got(episodes)}")
    for field in ("codes", "nuisances"):
        named = getattr(episodes, field)
        require(isinstance(named, Mapping), f"{asked}: {field} must be a mapping from names to tensors, got {_got(named)}")
    parts = {field: getattr(episodes, field) for field in ("tokens", "targets", "composition", "inputs")}
    parts |= {f"codes[{key!r}]": code for key, code in episodes.codes.items()}
    parts |= {f"nuisances[{key!r}]": value for key, value in episodes.nuisances.items()}
    for part, value in parts.items():
        rows = isinstance(value, Tensor) and value.ndim > 0 and len(value) == n
        require(rows, f"{asked} must give {n} rows of {part}, a row per episode, got {_got(value)}")
    tokens, targets, composition = episodes.tokens, episodes.targets, episodes.composition
    ids = tokens.ndim == 2 and not tokens.is_floating_point()
    require(
        tuple(tokens.shape) == ((n, seq) if ids else (n, seq, d_in)),
        f"{asked} must give tokens (batch, seq, d_in) = {(n, seq, d_in)}, or ids (batch, seq), got {_got(tokens)}; make the "
        "properties seq and d_in, or the tokens, fit",
    )
    at = targets.ndim > 1 and targets.shape[1] == seq
    require(
        at, f"{asked} must give targets at every position, (batch, seq, …) = ({n}, {seq}, …), got {_got(targets)}; "
        "those at positions that are no answers may be 0",
    )  # fmt: skip
    numbered = composition.ndim == 1 and not composition.is_floating_point()
    require(numbered, f"{asked} must give composition as (batch,) whole numbers, got {composition.dtype} {_got(composition)}")
    strange = sorted(set(composition.tolist()) - {int(c) for c in task.compositions(split)})
    require(
        not strange,
        f"{asked} drew composition {strange[0] if strange else ''}, which compositions({split!r}) does not name; let sample "
        "draw from choose_compositions(split, compositions) alone",
    )
    for code in task.code_kinds:
        require(
            code in episodes.codes,
            f"{name}: code_kinds names {code!r}, which is no code of the episodes; {nearest(str(code), episodes.codes)}",
        )


def _check_loss(name: str, task: TaskFamily, prediction: Tensor, targets: Tensor) -> None:
    """Raise unless the loss is one number that depends on the prediction, and on each of its numbers as it is meant."""
    with torch.enable_grad():
        prediction = prediction.clone().requires_grad_()
        loss = _tried(name, "loss", task, prediction, targets)
        scalar = isinstance(loss, Tensor) and loss.numel() == 1
        require(scalar, f"{name}: loss must return a scalar, such as (…).square().mean(), got {_got(loss)}")
        slope = torch.autograd.grad(loss.sum(), prediction, allow_unused=True)[0] if loss.requires_grad else None
    require(
        slope is not None,
        f"{name}: loss does not depend on the prediction, so there is nothing to descend; compute it from `prediction` with "
        "torch alone, without .detach(), .item() or numpy",
    )
    width = targets.shape[2] if targets.ndim == 3 and targets.is_floating_point() else task.d_out
    if width == task.d_out or 1 not in (width, task.d_out):
        return
    with torch.no_grad():  # one number stands for several where these may be exchanged; who means it tells them apart
        other = (prediction.flip(2), targets) if width == 1 else (prediction, targets.flip(2))
        turned = _tried(name, "loss", task, *other)
    require(
        not torch.allclose(turned.double(), loss.detach().double(), rtol=1e-4),
        f"{name}: d_out is {task.d_out}, but targets are {width} wide, and the loss compares one number with each of "
        f"{max(width, task.d_out)}; write d_out = {width}, or give targets {task.d_out} wide",
    )


def _check_errors(name: str, task: TaskFamily, split: str, prediction: Tensor, targets: Tensor) -> None:
    found = _tried(name, "errors", task, prediction, targets)
    pair = isinstance(found, tuple | list) and len(found) == 2
    require(pair, f"{name}: errors must return (error, weight), got {_got(found)}")
    for word, value in zip(("error", "weight"), found, strict=True):
        rows = isinstance(value, Tensor) and value.shape == (len(prediction),)
        require(
            rows, f"{name}: errors must return (error, weight), each (batch,) = ({len(prediction)},); {word} is {_got(value)}"
        )
        wrong = value[~value.isfinite()]
        require(
            not len(wrong),
            f"{name}: errors gives the {word} {wrong[0].item() if len(wrong) else ''} for {split} episodes, and a score is "
            "made of finite numbers; look for a division by 0, or a logarithm or root of what is not above 0",
        )


class _OwnError(Exception):
    """What a family's function raised for a reason of its own: the training raises it again, with its line in its file."""


def _tried(name: str, what: str, task: TaskFamily, prediction: Tensor, targets: Tensor) -> Any:
    """What the family's function returns; where d_out and the targets do not fit, the error says so."""
    try:
        return getattr(task, what)(prediction, targets)
    except ConfigError:
        raise
    except Exception as error:
        if targets.is_floating_point():
            fit = targets.ndim != 3 or targets.shape[2] == task.d_out
        else:
            fit = int(targets[:, list(task.answers)].max()) < task.d_out
        if fit:
            raise _OwnError from error
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise ConfigError(
            f"{name}: {what} failed on a prediction (batch, seq, d_out) = {tuple(prediction.shape)} and targets "
            f"{targets.dtype} {tuple(targets.shape)}: {reason}; make d_out and the targets fit"
        ) from error


# ---- the architecture ------------------------------------------------------------------------------------------------
@torch.no_grad()
def _check_architecture(run: Run, device: str) -> None:
    """Raise unless what it builds answers at every position; the model is dropped again."""
    name, task, model = type(run.architecture).__name__, run.task, run.build().to(device).eval()
    tokens = task.sample(2, "train", _generator("train", run.data_device)).tokens.to(device)
    answer, wanted = full(model(tokens)), (2, task.seq, task.d_out)
    require(
        isinstance(answer, Tensor) and answer.shape == wanted,
        f"{name}: the model that build makes must answer (batch, seq, d_out) = {wanted} to tokens {tuple(tokens.shape)}, got "
        f"{_got(answer)}",
    )
