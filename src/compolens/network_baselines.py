"""Learners that know the training compositions and recombine nothing by design, made from the net before it was trained.

`FrozenReadout` fits one linear map on what the untrained net shows before its last linear map (a random-feature model);
`Linearised` moves all weights, but only to first order: f(x) = f0(x) + J(x) delta, the net's tangent model at its start (the
"lazy" regime of 1806.07572 and 1812.07956). Both see training compositions alone, so what they answer on held-out ones is what
smoothness gives, without learnt features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import one_hot

from compolens.activations.sites import residual_sites
from compolens.activations.streams import draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.measures.readouts import Moments, RidgeReadout, add_by_group, leave_groups_out
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

PENALTIES = tuple(float(l2) for l2 in np.logspace(-3, 5, 9))
"""Of a learner's readout, 0.001 to 100,000: those of `measures.readouts`, one below them and one above."""
CHUNK = 64
"""Episodes whose graph is held at once: bounds the memory of second derivatives."""


def wanted(task: TaskFamily, episodes: Episodes) -> Tensor:
    """What a least-squares learner is fitted to; classes as one-hot vectors.

    Args:
        task: the family.
        episodes: a batch of episodes.

    Returns:
        (batch, answer, d_out).
    """
    targets = episodes.targets[:, list(task.answers)]
    return targets if targets.is_floating_point() else one_hot(targets.clamp(min=0), task.d_out).to(torch.get_default_dtype())


def asked(task: TaskFamily, episodes: Episodes) -> Tensor:
    """Which answers are asked for.

    Args:
        task: the family.
        episodes: a batch of episodes.

    Returns:
        (batch, answer) bool: all numbers, and classes that are not below 0.
    """
    targets = episodes.targets[:, list(task.answers)]
    everything = torch.ones(targets.shape[:2], dtype=torch.bool, device=targets.device)
    return everything if targets.is_floating_point() else targets >= 0


def _untrained(trained: TrainedModel) -> HookedModel:
    """The untrained control; where there is none, the reason is that alone: learners made from it cannot do without."""
    if trained.why_no_untrained_control:
        raise DoesNotApply(trained.why_no_untrained_control)
    return trained.untrained_control()


def last_site(model: HookedModel) -> str:
    """The hook point of `model` nearest before the last linear map, at the episode's own positions.

    It is the executor's hidden layer, else the normalised residual stream, else (where nothing is normalised) the stream
    itself."""
    for site in ("executor.hook_hidden", "ln_final.hook_normalized"):
        if site in model.hook_dict:
            return site
    return residual_sites(model)[model.cfg.n_layers]


def _placed(task: TaskFamily, answers: Tensor) -> Tensor:
    """(batch, seq, d_out) from answers (batch, answer, d_out); 0 at positions that are not asked for."""
    prediction = answers.new_zeros(len(answers), task.seq, answers.shape[-1])
    prediction[:, list(task.answers)] = answers
    return prediction


# ---- the frozen net --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FrozenReadout:
    """Ridge regression, with intercept, from the untrained control's last features to the answers.

    Args:
        task: the family.
        untrained: the untrained control.
        site: the hook point whose features are taken.
        readout: from the features to the answers.
    """

    task: TaskFamily
    untrained: HookedModel
    site: str
    readout: RidgeReadout

    @classmethod
    def fit(
        cls, trained: TrainedModel, *, episodes: int = 4096, seed: int | str = 0, penalties: Sequence[float] = PENALTIES
    ) -> FrozenReadout:
        """Fit on episodes of training compositions.

        Args:
            trained: the model with its run and task.
            episodes: how many.
            seed: of the episodes.
            penalties: on standardised features; the one whose readouts answer left-out training compositions best is taken.

        Returns:
            The learner.

        Raises:
            DoesNotApply: the net has no features of every position before its answers.
            ConfigError: there is no penalty, or a negative one.
        """
        require(
            bool(penalties) and min(penalties) >= 0,
            f"penalties must be one or more numbers of at least 0, got {tuple(penalties)}; for example (0.1, 1, 10)",
        )
        task, untrained = trained.task, _untrained(trained)
        site, groups = last_site(untrained), dict[int, Moments]()
        for batch in record(untrained, draw(task, "train", episodes, f"{seed}/frozen", trained.device), [site]):
            if batch.sites[site].shape[1] != task.seq:
                raise DoesNotApply(
                    f"at {site}, the last hook point before the answers, not every position of an episode stands"
                )
            x, y = cls._features(task, batch.sites[site]), wanted(task, batch.episodes)
            here, composition = asked(task, batch.episodes).flatten(), batch.episodes.composition.repeat_interleave(x.shape[1])
            add_by_group(groups, x.flatten(0, 1)[here], y.flatten(0, 1)[here], composition[here])
        require(len(groups) > 1, f"need two or more training compositions to choose a penalty, drew {len(groups)}; draw more")
        best, _ = leave_groups_out(list(groups.values()), penalties)
        return cls(task, untrained, site, Moments.total(groups.values()).fit([best])[0])

    @staticmethod
    def _features(task: TaskFamily, activation: Tensor) -> Tensor:
        return activation[:, list(task.answers)].flatten(2)

    def predict(self, episodes: Episodes) -> Tensor:
        """What the learner answers to `episodes`, (batch, seq, d_out); for classes, numbers whose largest one is the
        answer."""
        (batch,) = record(self.untrained, [episodes], [self.site])
        x = self._features(self.task, batch.sites[self.site])
        return _placed(self.task, self.readout(x.flatten(0, 1)).unflatten(0, x.shape[:2]).to(batch.prediction))


# ---- the net to first order ------------------------------------------------------------------------------------------
class _Answering(nn.Module):
    """A net whose forward pass is its `answer`: what `functional_call` calls.

    Args:
        model: the net.
    """

    def __init__(self, model: HookedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """The prediction for `tokens`, as `HookedModel.answer` gives it."""
        return self.model.answer(tokens)


class Tangent:
    """A net's first-order expansion in its parameters, at the parameters it has: f0 and products with J, chunk by chunk.

    Directions are flat (parameters,) tensors. J p is had in forward mode; of a net with an operation that has no derivative in
    that mode, by differentiating J^T u by u, which asks for second derivatives and takes twice as long.

    Args:
        model: the net.
        answers: positions whose predictions count.
    """

    def __init__(self, model: HookedModel, answers: Sequence[int]) -> None:
        self.model, self.at = model, list(answers)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names, self.parameters = [f"model.{name}" for name in named], list(named.values())
        self.size = sum(p.numel() for p in self.parameters)
        self.forwards = True

    def _forward(self, tokens: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # torch's faster attention has no second derivative
            return self.model.answer(tokens)[:, self.at]

    def _pull(self, answers: Tensor, u: Tensor, graph: bool) -> list[Tensor]:
        """J^T u, by parameter."""
        keep = {"create_graph": graph, "retain_graph": graph}
        return list(torch.autograd.grad(answers, self.parameters, u, materialize_grads=True, **keep))

    def _moved(self, tokens: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """f0 and J direction of a chunk, without a graph."""
        if self.forwards:
            try:
                return self._forwards(tokens, direction)
            except (RuntimeError, NotImplementedError):
                self.forwards = False
        answers = self._forward(tokens)
        return answers.detach(), self._push(answers, direction).detach()

    @torch.no_grad()
    def _forwards(self, tokens: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """The same in forward mode."""
        parts = direction.split([p.numel() for p in self.parameters])
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            moving = {
                name: forward_ad.make_dual(p.detach(), part.to(p.dtype).view_as(p))
                for name, p, part in zip(self.names, self.parameters, parts, strict=True)
            }
            answers, moved = forward_ad.unpack_dual(functional_call(_Answering(self.model), moving, (tokens,)))
            if moved is None:  # nothing that moves reaches the answers, or a derivative got lost on the way
                raise RuntimeError("no derivative in forward mode")
            return answers[:, self.at].clone(), moved[:, self.at].clone()

    def _push(self, answers: Tensor, direction: Tensor) -> Tensor:
        """J direction by second derivatives; the answers' graph stays."""
        u = torch.zeros_like(answers, requires_grad=True)
        pulled = self._pull(answers, u, graph=True)
        parts = direction.to(answers.dtype).split([p.numel() for p in self.parameters])
        used = [(g, d.view_as(g)) for g, d in zip(pulled, parts, strict=True) if g.requires_grad]
        grads, directions = zip(*used, strict=True)
        return torch.autograd.grad(grads, u, directions)[0]

    @torch.no_grad()
    def answers(self, tokens: Tensor) -> Tensor:
        """f0 alone.

        Args:
            tokens: (batch, seq, d_in).

        Returns:
            (batch, answer, d_out).
        """
        return torch.cat([self._forward(chunk) for chunk in tokens.split(CHUNK)])

    @torch.enable_grad()
    def along(self, tokens: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """f0 and its change along a direction.

        Args:
            tokens: (batch, seq, d_in).
            direction: (parameters,).

        Returns:
            (f0, J direction), each (batch, answer, d_out).
        """
        first, second = zip(*[self._moved(chunk, direction) for chunk in tokens.split(CHUNK)], strict=True)
        return torch.cat(first), torch.cat(second)

    @torch.enable_grad()
    def gradient(self, tokens: Tensor, residual: Tensor) -> Tensor:
        """J^T residual.

        Args:
            tokens: (batch, seq, d_in).
            residual: (batch, answer, d_out).

        Returns:
            (parameters,) float64.
        """
        total = torch.zeros(self.size, dtype=torch.float64, device=tokens.device)
        for chunk, u in zip(tokens.split(CHUNK), residual.split(CHUNK), strict=True):
            answers = self._forward(chunk)
            total += _flat(self._pull(answers, u.to(answers.dtype), graph=False))
        return total

    @torch.enable_grad()
    def normal(self, tokens: Tensor, direction: Tensor, counts: Tensor | None = None) -> tuple[float, Tensor]:
        """The normal equations along a direction p, from one pass.

        Args:
            tokens: (batch, seq, d_in).
            direction: p (parameters,).
            counts: (batch, answer) bool, the answers that count (None: all).

        Returns:
            (|J p|², J^T J p), J of these answers.
        """
        length, total = 0.0, torch.zeros(self.size, dtype=torch.float64, device=tokens.device)
        every = torch.ones(len(tokens), len(self.at), dtype=torch.bool, device=tokens.device) if counts is None else counts
        for chunk, here in zip(tokens.split(CHUNK), every.split(CHUNK), strict=True):
            moved = self._moved(chunk, direction)[1] * here[..., None]
            length += float(moved.double().square().sum())
            total += _flat(self._pull(self._forward(chunk), moved, graph=False))
        return length, total


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts]).double()


class Descent(NamedTuple):
    """Where conjugate gradients ended.

    Args:
        delta: (parameters,).
        left_out: the held-back loss after 0, 1, … iterations.
        best: the iteration that delta belongs to.
    """

    delta: Tensor
    left_out: tuple[float, ...]
    best: int


def conjugate_gradients(
    normal: Callable[[Tensor], tuple[float, Tensor]],
    gradient: Tensor,
    left_out: Callable[[Tensor, float], float],
    iterations: int,
    patience: int,
) -> Descent:
    """Least squares by conjugate gradients on the normal equations J^T J delta = J^T r, from delta = 0.

    Args:
        normal: p -> (|J p|², J^T J p).
        gradient: J^T r.
        left_out: (p, step) -> the held-back loss after going on by step * p; asked once with step 0 and then once an
            iteration.
        iterations: at most.
        patience: iterations without a smaller loss after which it ends.

    Returns:
        The delta of least held-back loss.
    """
    delta, residual, p = torch.zeros_like(gradient), gradient.clone(), gradient.clone()
    losses, best, kept = [left_out(p, 0.0)], 0, delta.clone()
    start = gamma = float(residual @ residual)
    for i in range(1, iterations + 1):
        if gamma <= 1e-20 * start or gamma == 0:
            break
        length, moved = normal(p)
        step = gamma / max(length, 1e-300)
        delta = delta + step * p
        losses.append(left_out(p, step))
        if losses[-1] < losses[best]:
            best, kept = i, delta
        elif i - best >= patience:
            break
        residual = residual - step * moved
        before, gamma = gamma, float(residual @ residual)
        p = residual + gamma / before * p
    return Descent(kept, tuple(losses), best)


@dataclass(frozen=True)
class Linearised:
    """f0(x) + J(x) delta around the initialisation; delta from least squares on training compositions, stopped early on
    training compositions that were held back (one in four).

    Args:
        task: the family.
        tangent: of the untrained control.
        descent: delta, and how it was found.
    """

    task: TaskFamily
    tangent: Tangent
    descent: Descent

    @classmethod
    def fit(
        cls,
        trained: TrainedModel,
        *,
        episodes: int = 384,
        iterations: int = 20,
        patience: int = 5,
        seed: int | str = 0,
    ) -> Linearised:
        """Fit on episodes of training compositions.

        Args:
            trained: the model with its run and task.
            episodes: how many; held-back ones a quarter more.
            iterations: of conjugate gradients, at most; 0: the untrained control itself.
            patience: as in `conjugate_gradients`.
            seed: of the episodes.

        Returns:
            The learner.

        Raises:
            DoesNotApply: the model has no untrained control, or no second derivatives.
            ConfigError: iterations or patience are out of range, or there is no training composition to hold back.
        """
        try:
            return cls._fitted(trained, episodes, iterations, patience, seed)
        except (RuntimeError, NotImplementedError) as error:
            if "derivative" not in str(error) and "differentiable" not in str(error):
                raise
            reason = " ".join(str(error).split())[:150]
            raise DoesNotApply(f"the network has no second derivatives, by which it would be linearised: {reason}") from error

    @classmethod
    def _fitted(cls, trained: TrainedModel, episodes: int, iterations: int, patience: int, seed: int | str) -> Linearised:
        require(iterations >= 0 and patience >= 1, f"need iterations >= 0 and patience >= 1, got {iterations} and {patience}")
        task, tangent = trained.task, Tangent(_untrained(trained), trained.task.answers)
        train = task.compositions("train")
        require(len(train) > 1, f"need two or more training compositions to hold one back, the family has {len(train)}")
        back = train[3::4] or train[-1:]
        used = tuple(c for c in train if c not in back)
        fit = _together(draw(task, "train", episodes, f"{seed}/linearised", trained.device, used), task)
        held = _together(draw(task, "train", max(1, episodes // 4), f"{seed}/held", trained.device, back), task)
        here = torch.zeros(tangent.size, dtype=torch.float64, device=trained.device)
        try:
            start = tangent.along(held[0], here)[0]
        except (NotImplementedError, RuntimeError) as error:
            if "derivative" not in str(error):
                raise
            raise DoesNotApply(f"a linearised network needs second derivatives, which this one has not: {error}") from error
        left = held[1].double() - start.double()
        away = torch.zeros_like(left)

        def left_out(p: Tensor, step: float) -> float:
            if step:
                away.add_(step * tangent.along(held[0], p)[1].double())
            return float((left - away)[held[2]].square().mean())

        first = (fit[1].double() - tangent.answers(fit[0]).double()) * fit[2][..., None]
        gradient = tangent.gradient(fit[0], first)
        descent = conjugate_gradients(lambda p: tangent.normal(fit[0], p, fit[2]), gradient, left_out, iterations, patience)
        return cls(task, tangent, descent)

    def predict(self, episodes: Episodes) -> Tensor:
        """What the learner answers to `episodes`, (batch, seq, d_out); for classes, numbers whose largest one is the
        answer."""
        start, moved = self.tangent.along(episodes.tokens, self.descent.delta)
        return _placed(self.task, start + moved)


def _together(batches: Iterable[Episodes], task: TaskFamily) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, wanted answers, which answers are asked for) of several batches."""
    tokens, answers, counts = zip(*((b.tokens, wanted(task, b), asked(task, b)) for b in batches), strict=True)
    return torch.cat(tokens), torch.cat(answers), torch.cat(counts)
