"""Codes written at a site, each beside its controls: moves of the same length and rank elsewhere, and the untrained control.

What an edit adds to an activation lies in the few directions that are correlated with the code. The control "random subspace"
makes the same moves in as many random directions: every position is moved as far, in a subspace of the same rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from compolens.activations.sites import Site, positions, put
from compolens.activations.streams import BATCH
from compolens.explore.sets import Number, pooled
from compolens.explore.state import State
from compolens.explore.subjects import Subject, code_numbers
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.interventions.interchange import Subspace, check_renders, remaining
from compolens.interventions.oracles import CodeAt
from compolens.measures.subspaces import column_space
from compolens.tasks.episodes import Episodes, stream

SUBSPACES = 8
"""Random subspaces per edit."""
SAME = 1e-6
"""Share of the longest squared way below which two answers count as the same, up to rounding."""


@dataclass(frozen=True)
class Goals:
    """The base's inputs under the codes that are compared, each as episodes.

    Args:
        own: under its own code.
        recombined: with one factor of the donor's code; None where none can be exchanged.
        donor: under the donor's code.
        written: under the written code; None where the family can show no task under it, such as a category half of
            one kind.
    """

    own: Episodes
    recombined: Episodes | None
    donor: Episodes
    written: Episodes | None


@dataclass(frozen=True)
class Edit:
    """What an edit did.

    Args:
        before: (batch, seq, d_out) predictions without the edit.
        after: (batch, seq, d_out) predictions with it.
        random: one prediction of that shape per random subspace; empty for the untrained control.
        rank: dimensions of the subspace in which the edit moves activations.
        width: dimensions of an activation.
    """

    before: Tensor
    after: Tensor
    random: list[Tensor]
    rank: int
    width: int


# ---- which code is written -------------------------------------------------------------------------------------------
def goals(subject: Subject, state: State, code: Tensor) -> Goals:
    """The tasks that answers may move to.

    Args:
        subject: the model under study.
        state: what the reader has chosen.
        code: (n, parts) the code that is written, as `code_to_write` returns it.

    Returns:
        The episodes under each of the codes.

    Raises:
        DoesNotApply: the family cannot show inputs under another code.
    """
    check_renders(subject.task)
    task, base, donor = subject.task, subject.bases(state), subject.donors(state)
    recombined = _recombined(subject, state)
    copied = base if subject.own_donors(state) else task.render(donor.codes, base.inputs)
    known = {"own code": base, "recombined code": recombined, "donor's code": copied}
    return Goals(base, recombined, copied, _shown_as(subject, code, base) if state.parts else known[state.write])


def code_to_write(subject: Subject, state: State) -> Tensor:
    """The code that is written for every chosen episode, with the parts that are set by hand.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        (n, parts) float64, in the order of `code_numbers`.

    Raises:
        ConfigError: a part that is set by hand is none of the code's.
    """
    own = subject.features(subject.bases(state))
    if state.write == "own code":
        code = own.clone()
    elif state.write == "donor's code":
        code = subject.features(subject.donors(state)).clone()
    else:
        recombined = _recombined(subject, state)
        code = own.clone() if recombined is None else subject.features(recombined)
    for part, value in state.parts:
        require(0 <= part < code.shape[1], f"the code has {code.shape[1]} parts, so none is number {part}")
        code[:, part] = value
    return code


def _recombined(subject: Subject, state: State) -> Episodes | None:
    """The base's inputs with one factor of the donor's code; episodes where none can be exchanged keep their own.
    None where none can be exchanged in any."""
    task, base, donor = subject.task, subject.bases(state), subject.donors(state)
    rng = torch.Generator().manual_seed(stream(subject.seed, "recombined", 0))
    try:
        codes, mask = task.exchange(base.codes, donor.codes, rng)
    except DoesNotApply:  # the family has no factors to exchange
        return None
    possible = mask.any(1)
    if not bool(possible.any()):
        return None
    for name, code in codes.items():
        kept = possible.view(-1, *[1] * (code.ndim - 1))
        codes = codes | {name: torch.where(kept, code, base.codes[name])}
    return task.render(codes, base.inputs)


def _shown_as(subject: Subject, code: Tensor, base: Episodes) -> Episodes | None:
    """The base's inputs under a code given as numbers: where the code is one row of numbers that are its own features."""
    task, known = subject.task, subject.drawn("ood").codes
    names = [name for name in known if task.code_kinds.get(name) == "continuous"]
    if len(names) != 1:
        return None
    values = known[names[0]]
    numbers = code_numbers(task, known).to(values)
    if numbers.shape[1] != values[0].numel() or not torch.equal(numbers, values.flatten(1)):
        return None
    try:
        return task.render(base.codes | {names[0]: code.to(values).view(-1, *values.shape[1:])}, base.inputs)
    except DoesNotApply:
        return None


# ---- edits -----------------------------------------------------------------------------------------------------------
@torch.no_grad()
def edit(subject: Subject, state: State, site: Site, code: Tensor, untrained: bool = False) -> Edit:
    """Write a code at a site, and make the same moves in random subspaces.

    Args:
        subject: the model under study.
        state: what the reader has chosen.
        site: where the code is written.
        code: (n, parts) the code for every chosen episode.
        untrained: edit the untrained control instead, without random subspaces.

    Returns:
        Predictions before and after, and those of the random subspaces.

    Raises:
        DoesNotApply: no direction at the site goes with the code.
    """
    model, base = subject.untrained if untrained else subject.model, subject.bases(state)
    at, seen = subject.code_at(site, untrained), subject.seen(state, site, untrained)
    own, where = seen.sites[site.hook_name], positions(model, site.role)
    started = own.clone()
    started[:, where] = at.shown(own[:, where])
    moved = at.write(model, own, code)
    basis = moved_directions(at).to(own)
    if basis.shape[1] == 0:
        raise DoesNotApply(
            f"nothing can be written at layer {site.layer}, {site.role}: no direction there goes with the code; "
            "choose another site"
        )
    put_there = [moved]
    for i in range(0 if untrained else SUBSPACES):
        rng = torch.Generator().manual_seed(stream(subject.seed, "random subspace", i))
        other = Subspace.random(basis.shape[0], basis.shape[1], rng).basis.to(own)
        put_there.append(started + (moved - started) @ basis @ other.T)
    tokens = base.tokens.repeat(len(put_there), *[1] * (base.tokens.ndim - 1))
    after, *random = _answers(model, tokens, site, torch.cat(put_there)).chunk(len(put_there))
    return Edit(seen.prediction, after, random, basis.shape[1], basis.shape[0])


def moved_directions(at: CodeAt) -> Tensor:
    """The space that holds whatever writing a code can add to an activation.

    Args:
        at: how the code stands at a site.

    Returns:
        (d, rank) orthonormal columns.
    """
    writer = at.writer
    erased = torch.eye(len(writer.eraser.mean)).to(writer.eraser.projection) - writer.eraser.projection
    return column_space(torch.cat([erased, writer.weight.T], dim=1))


def _answers(model: HookedModel, tokens: Tensor, site: Site, activation: Tensor) -> Tensor:
    parts = zip(tokens.split(BATCH), activation.split(BATCH), strict=True)
    return torch.cat([put(model, shown, site, part) for shown, part in parts])


# ---- what came of it -------------------------------------------------------------------------------------------------
@torch.no_grad()
def wanted(subject: Subject, goal: Episodes, untrained: bool = False) -> Tensor:
    """The answers to which an edit should move those of the base: the same model's, to the goal's episodes.

    Args:
        subject: the model under study.
        goal: the episodes under the code that is written.
        untrained: those of the untrained control instead.

    Returns:
        (n, seq, d_out).
    """
    model = subject.untrained if untrained else subject.model
    return torch.cat([model(part) for part in goal.tokens.split(BATCH)])


def share(subject: Subject, state: State, made: Edit, goal: Tensor) -> Number:
    """How much of the way the answers moved; over the episodes in which there is a way to go.

    Args:
        subject: the model under study.
        state: what the reader has chosen.
        made: the edit.
        goal: (n, seq, d_out) where they should come to, as `wanted` returns it.

    Returns:
        1: all of the way; 0: none; negative: away from it. NaN where there is no way to go.
    """
    error, weight = remaining(made.after, made.before, goal, subject.task.answers, subject.bases(state).targets)
    kept = weight > SAME * weight.max()
    composition = subject.bases(state).composition
    return pooled(error[kept].cpu().numpy(), weight[kept].cpu().numpy(), composition[kept].cpu().numpy())


def random_share(subject: Subject, state: State, made: Edit, goal: Tensor) -> Number:
    """What `share` is for the random subspaces.

    Args:
        subject: the model under study.
        state: what the reader has chosen.
        made: the edit.
        goal: as in `share`.

    Returns:
        Their mean, with the least and the largest in place of an interval.
    """
    found = []
    for after in made.random:
        error, weight = remaining(after, made.before, goal, subject.task.answers, subject.bases(state).targets)
        kept = weight > SAME * weight.max()
        error, weight = error[kept], weight[kept]
        found.append(float(1 - error.sum() / weight.sum()) if float(weight.sum()) > 0 else float("nan"))
    return Number(float(np.mean(found)), min(found), max(found), f"{len(found)} random subspaces")


def score(subject: Subject, state: State, prediction: Tensor, wanted: Episodes) -> Number:
    """The score of predictions against a task's own answers.

    Args:
        subject: the model under study.
        state: what the reader has chosen.
        prediction: (n, seq, d_out) for the chosen episodes.
        wanted: the episodes whose targets are the task's own answers.

    Returns:
        The score: 1 is perfect.
    """
    error, weight = (part.cpu().numpy() for part in subject.task.errors(prediction, wanted.targets))
    return pooled(error, weight, subject.bases(state).composition.cpu().numpy())
