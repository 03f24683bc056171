"""What a model would answer if its code were another: written by factor means, or found by search through what executes it.

A ladder of interventions tells where an answer is lost. Every rung replaces more of the model's own work by an oracle's:

    the model's own answer
    own code written    what a readout finds of the code, anywhere, is put where the code is read        -> use
    true code written   the episode's own code is put there                                              -> inference
    best code           the code is searched for, on the context's examples, through the frozen executor -> form
    ceiling             what an ideal learner reaches                                                    -> execution

A code is written at a `Site` by what is linear there: what the activations tell about the code is erased, and the mean that
goes with another code is added (`measures.erasure.Writer`), both fitted on training compositions. Before that, what stands
there is brought within what training compositions show there (`measures.erasure.Range`): what no training composition has
shown, no erasure fitted on them takes out, and a wrong code would go on standing beside the one that is written.

A code is read (`readings`) by a ridge fitted on training compositions and on all held-out ones but the one that is read. Where
two codes stand, equal on training compositions, a fit on these alone takes half of each, even if one is right on all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from compolens.activations.sites import Site, positions, put
from compolens.activations.streams import Activations, record
from compolens.foundation.configs import DoesNotApply, require, require_positive
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.measures.erasure import Range, Writer
from compolens.measures.intervals import Evaluation, summarise
from compolens.measures.optimizers import Adam
from compolens.measures.readouts import PENALTIES, Moments, RidgeReadout, add_by_group, leave_groups_out
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes


def code_features(task: TaskFamily, codes: dict[str, Tensor]) -> Tensor:
    """The factors of the code side by side.

    Args:
        task: the family; a `DoesNotApply` where it names no factors.
        codes: as in `Episodes.codes`.

    Returns:
        (batch, width) float64.
    """
    return torch.cat(list(task.factors(codes).values()), dim=1).double()


class Edits(Protocol):
    """What writes a code at a site: `CodeAt`, or `interventions.editors.Editor`."""

    @property
    def site(self) -> Site:
        """Where."""

    def write(self, model: HookedModel, activation: Tensor, code: Tensor) -> Tensor:
        """The activation with a code in the stead of its own.

        Args:
            model: the model.
            activation: (batch, pos, d).
            code: (batch, width).

        Returns:
            (batch, pos, d).
        """


@dataclass(frozen=True)
class CodeAt:
    """How the code stands at a site, as fitted on training compositions.

    Args:
        site: where.
        readout: from the mean activation of the role's positions to the code.
        moments: what the readout was fitted to.
        left_out: its R² on training compositions that the fit did not see; 1 is perfect, may be negative.
        writer: erases and writes the code at every position.
        shown: where activations lie there.
    """

    site: Site
    readout: RidgeReadout
    moments: Moments
    left_out: float
    writer: Writer
    shown: Range

    def decode(self, model: HookedModel, activation: Tensor) -> Tensor:
        """The code read from an activation at this site's hook point.

        Args:
            model: the model.
            activation: (batch, pos, d).

        Returns:
            (batch, width).
        """
        return self.readout(self.mean(model, activation))

    def mean(self, model: HookedModel, activation: Tensor) -> Tensor:
        """What is read: the mean over the role's positions.

        Args:
            model: the model.
            activation: (batch, pos, d).

        Returns:
            (batch, d).
        """
        return activation[:, positions(model, self.site.role)].flatten(2).mean(1)

    def write(self, model: HookedModel, activation: Tensor, code: Tensor) -> Tensor:
        """The activation with a code in the stead of its own; differentiable in the code.

        Args:
            model: the model.
            activation: (batch, pos, d).
            code: (batch, width).

        Returns:
            (batch, pos, d).
        """
        at = positions(model, self.site.role)
        edited = activation.clone()
        edited[:, at] = self.writer(self.shown(activation[:, at]), code[:, None])
        return edited


def fit_codes(
    model: HookedModel,
    task: TaskFamily,
    batches: Sequence[Episodes | Activations],
    where: Sequence[Site],
    features: Callable[[TaskFamily, dict[str, Tensor]], Tensor] = code_features,
) -> list[CodeAt]:
    """How the code stands at every site, from episodes of training compositions.

    Args:
        model: the model.
        task: the family.
        batches: the episodes, or what was recorded of them.
        where: the sites.
        features: (family, codes) -> (batch, width) float64, the code as numbers.

    Returns:
        One fit for every site, in their order.

    Raises:
        ConfigError: the episodes show a single composition.
    """
    hook_names = list(dict.fromkeys(site.hook_name for site in where))
    seen = list(record(model, batches, hook_names))
    code = torch.cat([features(task, a.episodes.codes) for a in seen])
    composition = torch.cat([a.episodes.composition for a in seen])
    require(
        len(composition.unique()) > 1,
        f"readouts are chosen by leaving a composition out, and these {len(composition)} training episodes show a single one; "
        "draw more, or train on more compositions",
    )
    found = []
    for site in progress(where, "codes read at site"):
        at = positions(model, site.role)
        x = torch.cat([a.sites[site.hook_name][:, at] for a in seen])
        groups: dict[int, Moments] = {}
        add_by_group(groups, x.flatten(2).mean(1), code, composition)
        l2, scores = leave_groups_out(list(groups.values()), PENALTIES)
        whole = Moments.total(groups.values())
        rows = x.flatten(0, 1)
        writer = Writer.fit(rows, code.repeat_interleave(x.shape[1], dim=0))
        found.append(CodeAt(site, whole.fit([l2])[0], whole, max(scores), writer, Range.fit(rows)))
    return found


def fit_without(
    model: HookedModel,
    task: TaskFamily,
    batches: Sequence[Episodes | Activations],
    codes: Sequence[CodeAt],
    fold_of: Mapping[int, int],
) -> list[list[CodeAt]]:
    """What writes a code at every site, fitted without some of the compositions.

    Args:
        model: the model.
        task: the family.
        batches: the episodes that the codes were fitted to, or what was recorded of them.
        codes: the fits at the sites, whose readouts are kept.
        fold_of: composition -> the group that it is left out with, from 0 on.

    Returns:
        For every site a fit for every group, without that group.
    """
    hook_names = list(dict.fromkeys(at.site.hook_name for at in codes))
    seen = list(record(model, batches, hook_names))
    code = torch.cat([code_features(task, a.episodes.codes) for a in seen])
    fold = torch.tensor([fold_of[c] for a in seen for c in a.episodes.composition.tolist()], device=code.device)
    found = []
    for at in progress(codes, "writers without some compositions, site"):
        x = torch.cat([a.sites[at.site.hook_name][:, positions(model, at.site.role)] for a in seen])
        without = []
        for group in range(max(fold_of.values()) + 1):
            rows = x[fold != group].flatten(0, 1)
            writer = Writer.fit(rows, code[fold != group].repeat_interleave(x.shape[1], dim=0))
            without.append(replace(at, writer=writer, shown=Range.fit(rows)))
        found.append(without)
    return found


def readings(
    model: HookedModel,
    task: TaskFamily,
    codes: Sequence[CodeAt],
    shown: Sequence[Activations],
    others: Iterable[Episodes],
    features: Callable[[TaskFamily, dict[str, Tensor]], Tensor] = code_features,
) -> list[list[Tensor]]:
    """The code as readouts tell it, fitted on training compositions and on other episodes, those of the composition that is
    read left out.

    Args:
        model: the model.
        task: the family.
        codes: the fits at the sites, whose penalty is taken.
        shown: batches that are read.
        others: the other episodes.
        features: as in `fit_codes`.

    Returns:
        For every site, (batch, width) for every batch shown.
    """
    hook_names = list(dict.fromkeys(at.site.hook_name for at in codes))
    groups: list[dict[int, Moments]] = [{} for _ in codes]
    for seen in record(model, others, hook_names):
        code = features(task, seen.episodes.codes)
        for at, found in zip(codes, groups, strict=True):
            add_by_group(found, at.mean(model, seen.sites[at.site.hook_name]), code, seen.episodes.composition)
    return [_read(model, at, found, shown) for at, found in zip(codes, groups, strict=True)]


def _read(model: HookedModel, at: CodeAt, others: dict[int, Moments], shown: Sequence[Activations]) -> list[Tensor]:
    whole = Moments.total([at.moments, *others.values()])
    readouts: dict[int, RidgeReadout] = {}
    found = []
    for seen in shown:
        x, composition = at.mean(model, seen.sites[at.site.hook_name]), seen.episodes.composition
        code = x.new_zeros(len(x), at.moments.xy.shape[1], dtype=torch.float64)
        for c in composition.unique().tolist():
            if c not in readouts:
                readouts[c] = (whole - others[c] if c in others else whole).fit([at.readout.l2])[0]
            code[composition == c] = readouts[c](x[composition == c])
        found.append(code)
    return found


@torch.no_grad()
def written(model: HookedModel, episodes: Episodes, at: Edits, code: Tensor, activation: Tensor | None = None) -> Tensor:
    """The prediction with a code written at a site.

    Args:
        model: the model.
        episodes: a batch of episodes.
        at: the site, and how the code stands there.
        code: (batch, width).
        activation: what stands at the hook point, if it is known already.

    Returns:
        (batch, seq, d_out).
    """
    if activation is None:
        (seen,) = record(model, [episodes], [at.site.hook_name])
        activation = seen.sites[at.site.hook_name]
    return put(model, episodes.tokens, at.site, at.write(model, activation, code))


@torch.no_grad()
def recovered(model: HookedModel, task: TaskFamily, at: Edits, batches: Iterable[Episodes | Activations]) -> Evaluation:
    """How far the answers move to those of another episode's code when that code is written at a site.

    Episodes are paired within a batch.

    Args:
        model: the model.
        task: the family, which must be able to `render`.
        at: the site, and how the code stands there.
        batches: episodes, or what was recorded of them: where several sites are asked, record once.

    Returns:
        1: all the way; 0: not at all; may be negative.
    """
    parts = []
    for seen in record(model, batches, [at.site.hook_name]):
        batch = seen.episodes
        codes = {name: code.roll(1, 0) for name, code in batch.codes.items()}
        wanted = task.render(codes, batch.inputs).targets
        moved = written(model, batch, at, code_features(task, codes), seen.sites[at.site.hook_name])
        error, before = (task.errors(answer, wanted)[0] for answer in (moved, seen.prediction))
        parts.append(torch.stack([error, before, batch.composition.double()]).cpu().numpy())
    error, before, composition = np.concatenate(parts, axis=1)
    return summarise(error, before, composition)


@torch.no_grad()
def recovered_without(
    model: HookedModel,
    task: TaskFamily,
    without: Sequence[Edits],
    fold_of: Mapping[int, int],
    batches: Iterable[Episodes | Activations],
) -> Evaluation:
    """`recovered`, every code written by an editor that was fitted without its composition.

    An editor may write what it was fitted to and nothing else, as a table of words would. What it wins on held-out
    compositions, or does not, then says nothing of the model.

    Args:
        model: the model.
        task: the family, which must be able to `render`.
        without: an editor for every group of compositions, all at one site, fitted without that group.
        fold_of: composition -> its group, an index of `without`; of one that is not there, any editor may write.
        batches: episodes, or what was recorded of them; every one is given another one's code of the same batch.

    Returns:
        1: all the way; 0: not at all; may be negative. By composition: of the code that is written.
    """
    parts, site = [], without[0].site
    for seen in record(model, batches, [site.hook_name]):
        batch = seen.episodes
        codes = {name: code.roll(1, 0) for name, code in batch.codes.items()}
        new = code_features(task, codes)
        wanted = task.render(codes, batch.inputs).targets
        shown = seen.sites[site.hook_name]
        edited = shown.clone()
        written_one = batch.composition.roll(1, 0)
        fold = torch.tensor([fold_of.get(c, 0) for c in written_one.tolist()], device=shown.device)
        for group in fold.unique().tolist():
            here = fold == group
            edited[here] = without[group].write(model, shown[here], new[here]).to(edited)
        moved = put(model, batch.tokens, site, edited)
        error, before = (task.errors(answer, wanted)[0] for answer in (moved, seen.prediction))
        parts.append(torch.stack([error, before, written_one.double()]).cpu().numpy())
    error, before, composition = np.concatenate(parts, axis=1)
    return summarise(error, before, composition)


@dataclass(frozen=True)
class Search:
    """Adam on every episode's own code, of whose starts the one that fits the context best is kept.

    Args:
        steps: updates from each start.
        lr: rate, in standard deviations of the code.
    """

    steps: int = 60
    lr: float = 0.1

    def __post_init__(self) -> None:
        require_positive(self, "steps")


@dataclass(frozen=True)
class BestCode:
    """What a search found.

    Args:
        prediction: (batch, seq, d_out) of the fresh questions.
        fit: (batch,) the loss on the context's examples that the code was chosen by.
        width: how many numbers were free.
        fitted: how many values they were fitted to.
    """

    prediction: Tensor
    fit: Tensor
    width: int
    fitted: int


def best_code(
    model: HookedModel, task: TaskFamily, episodes: Episodes, at: CodeAt, starts: Sequence[Tensor], search: Search
) -> BestCode:
    """The best code for each episode: fitted to the context's examples alone, through what comes after the site, frozen.

    With an explicit code the whole code is free; elsewhere what `CodeAt.write` writes is.

    Args:
        model: the model, whose weights stay as they are.
        task: the family.
        episodes: a batch of episodes.
        at: the site, and how the code stands there.
        starts: codes (batch, width) in the terms of `code_features`.
        search: how it is searched.

    Returns:
        The best code's prediction and fit.

    Raises:
        DoesNotApply: the context's inputs cannot be asked as questions.
    """
    asked = task.context_asked(episodes)
    if asked is None:
        raise DoesNotApply(f"{type(task).__name__} cannot ask what its context shows, so no code can be fitted to it")
    tokens, targets = asked
    n, m = tokens.shape[:2]
    codes = _FreeCodes(model, tokens, episodes, at, starts)
    free = codes.free
    per_step = max(1, m // 4)
    answers = list(task.answers)
    optimizer = Adam([free], lr=search.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, search.steps, eta_min=0.02 * search.lr)
    for step in progress(range(search.steps), "search, step"):
        which = [(step * per_step + i) % m for i in range(per_step)]
        optimizer.zero_grad()
        loss = _losses(codes.answers(which), targets[:, which], answers).sum()
        free.grad = torch.autograd.grad(loss, free)[0]
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        fit = torch.stack([_losses(codes.answers([i]), targets[:, [i]], answers) for i in range(m)]).mean(0)
        best = fit.argmin(0)
        prediction = codes.answers(None)[:, :, 0]
    rows = torch.arange(n)
    values = m * len(answers) * targets[0, 0, 0].numel()
    return BestCode(prediction[best, rows], fit[best, rows], free.shape[-1], values)


class _FreeCodes:
    """What a search may change for each episode: the code itself where it is explicit, else what is written at the site.

    `free` (start, batch, width) is in steps of `scale`, so that a rate means the same for every coordinate.
    """

    def __init__(self, model: HookedModel, tokens: Tensor, episodes: Episodes, at: CodeAt, starts: Sequence[Tensor]) -> None:
        self.model, self.tokens, self.episodes, self.at = model, tokens, episodes, at
        self.explicit = at.site.hook_name == "hook_code"
        (own,) = record(model, [episodes], [at.site.hook_name])
        self.shown = own.sites[at.site.hook_name]
        scale = at.writer.weight.norm(dim=0) if self.explicit else torch.ones(starts[0].shape[1])
        self.scale = scale.clamp(min=1e-3 * float(scale.max())).to(self.shown)
        first = [at.write(model, self.shown, code)[:, 0] if self.explicit else code for code in starts]
        self.free = (torch.stack(first).to(self.shown) / self.scale).detach().requires_grad_(True)
        with torch.no_grad():
            flat = tokens.flatten(0, 1)
            (seen,) = record(model, [Episodes(flat, flat, {}, flat, flat, {})], [at.site.hook_name])
            self.base = seen.sites[at.site.hook_name].unflatten(0, tokens.shape[:2])

    def answers(self, which: list[int] | None) -> Tensor:
        """(start, batch, asked, seq, d_out): under the codes as they are now, to the context's examples that `which` names;
        None: to the episode's own questions."""
        if which is None:
            here, asking = self.shown[:, None], self.episodes.tokens[:, None]
        else:
            here, asking = self.base[:, which], self.tokens[:, which]
        code = self.free * self.scale
        k, count = len(code), here.shape[1]
        codes = code[:, :, None].expand(-1, -1, count, -1).flatten(0, 2)
        here = here.expand(k, *here.shape).flatten(0, 2)
        asking = asking.expand(k, *asking.shape).flatten(0, 2)
        edited = codes[:, None] if self.explicit else self.at.write(self.model, here, codes)
        return put(self.model, asking, self.at.site, edited.to(here)).unflatten(0, (k, -1, count))


def _losses(prediction: Tensor, targets: Tensor, answers: list[int]) -> Tensor:
    """(start, batch): mean squared error, or cross-entropy, over the answers of the asked sequences."""
    if not targets.is_floating_point():
        wanted = targets[None, :, :, answers].expand(len(prediction), *(-1,) * 3)
        nats = torch.nn.functional.cross_entropy(
            prediction[:, :, :, answers].flatten(0, 3), wanted.flatten(), reduction="none"
        )
        return nats.view(*wanted.shape).flatten(2).mean(2)
    error = prediction[:, :, :, answers] - targets[None, :, :, answers].to(prediction)
    return error.square().flatten(2).mean(2)
