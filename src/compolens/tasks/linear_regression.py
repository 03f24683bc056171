"""In-context linear regression: y = W^T x (+ noise), shown through N pairs; then the answer to further inputs is asked for.

The conventions of the literature differ and are named here: `LinearRegression.von_oswald` (2212.07677), `.garg` (2208.01066),
`.zhang` (2306.09927) and `.he` (2503.12734). Two layouts:

    joint         [x_1; y_1] … [x_N; y_N] [x_q; 0]          the answer is read at the query
    interleaved   x_1  y_1  x_2  y_2  …  x_N  y_N  x_q       at every x, from what stands before it (causal)

A composition is a component of the prior (see `regression_laws`). Held out, as `ood`, is the law of the inputs: a wider one,
or another. Where training knows only a finite pool of tasks, `ood` is the rest of the prior instead, with the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, DoesNotApply, added_later, require, require_positive
from compolens.foundation.memory import require_room
from compolens.tasks.base import TaskFamily, TaskPart
from compolens.tasks.episodes import Episodes, check_drawing
from compolens.tasks.regression_laws import GaussianInputs, GaussianPrior, InputLaw, Prior, UniformInputs

POOL_GROUPS = 16
"""A pool of tasks is cut into at most this many compositions, of equal size."""


class Prompts(NamedTuple):
    """Episodes as regression problems.

    Args:
        x: (batch, N, d_x) inputs of the demonstrations, in order.
        y: (batch, N, d_y) their answers.
        asked: (batch, A, d_x) the inputs whose answers count, in the order of the answers' positions.
        shown: (A,) ints, how many demonstrations each answer may use.
    """

    x: Tensor
    y: Tensor
    asked: Tensor
    shown: Tensor


FEW_INPUTS = 8
"""A batch that has fewer inputs than this for each dimension gives no `further_inputs` away."""


@dataclass(frozen=True)
class _Layout(TaskPart):
    """How pairs become tokens."""


@dataclass(frozen=True)
class JointTokens(_Layout):
    """A token holds an input and its answer; queries come last, their answer 0. Everyone sees the context and itself."""


@dataclass(frozen=True)
class InterleavedTokens(_Layout):
    """An input and its answer are tokens of their own, in turn; attention is causal, and every input is asked for."""


@dataclass(frozen=True)
class LinearRegression(TaskFamily):
    """In-context linear regression: y = W^T x (+ noise), shown through N pairs; the module says what an episode looks like.

    >>> task = LinearRegression.von_oswald()
    >>> episodes = task.sample(2, "train", task.rng(0, "train"))
    >>> episodes.tokens.shape, episodes.codes["weights"].shape
    (torch.Size([2, 11, 11]), torch.Size([2, 10]))

    Args:
        d_x: width of x.
        d_y: width of y.
        n_context: N, demonstrations of an episode.
        n_queries: Q, inputs asked for after them; 1 where tokens are interleaved.
        inputs: the law of x.
        prior: the law of the weights W.
        noise: standard deviation of what is added to every answer.
        layout: `JointTokens` or `InterleavedTokens`.
        input_scale: factor of x.
        teacher_scale: factor of W.
        n_tasks: training knows only that many tasks, drawn from the prior with `teacher_seed` (None: a fresh one per episode).
        shifted_scale: factor of x in `ood`.
        shifted_inputs: the law of x in `ood` (None: the same).
        loss_scale: factor of the mean squared error; one half is that of 2212.07677.
        teacher_seed: draws the tasks of `n_tasks`.
        shifted_prior: the law of the weights in `ood`; the inputs are then those of training. (None: the same weights.)
    """

    d_x: int = 10
    d_y: int = 1
    n_context: int = 10
    n_queries: int = 1
    inputs: InputLaw = field(default_factory=UniformInputs)
    prior: Prior = field(default_factory=GaussianPrior)
    noise: float = 0.0
    layout: _Layout = field(default_factory=JointTokens)
    input_scale: float = 1.0
    teacher_scale: float = 1.0
    n_tasks: int | None = None
    shifted_scale: float = 1.5
    shifted_inputs: InputLaw | None = None
    loss_scale: float = 0.5
    teacher_seed: int = 0
    shifted_prior: Prior | None = added_later(None)

    code_kinds: ClassVar[dict[str, str]] = {"weights": "continuous", "component": "categorical"}
    score_name: ClassVar[str] = "R²"
    ceiling: ClassVar[str] = "posterior mean"
    missing: ClassVar[dict[str, str]] = {
        "attention_code": "its code, the weights, is continuous; see latent_code, gd_equivalence and dual_model"
    }

    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """None: weights are no parts that compositions share."""
        raise DoesNotApply(f"{type(self).__name__} does not say which factors its codes are made of; its weights are no parts")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "d_x", "d_y", "n_context", "n_queries")
        if self.n_tasks is not None:
            require_positive(self, "n_tasks")
            even = self.n_tasks <= POOL_GROUPS or self.n_tasks % POOL_GROUPS == 0
            require_room(4 * self.n_tasks * self.d_x * self.d_y, f"a pool of n_tasks={self.n_tasks}", "choose fewer")
            require(even, f"LinearRegression: n_tasks above {POOL_GROUPS} must be a multiple of it, got {self.n_tasks}")
        require_room(8 * self.d_x**2, f"a covariance of d_x={self.d_x} inputs", "choose fewer")
        require(self.noise >= 0, f"LinearRegression: noise must not be negative, got {self.noise}")
        for name in ("input_scale", "teacher_scale", "shifted_scale", "loss_scale"):
            require(getattr(self, name) > 0, f"LinearRegression: {name} must be positive, got {getattr(self, name)}")
        require(
            not self.interleaved or self.n_queries == 1,
            f"LinearRegression: interleaved tokens ask at every input; n_queries must be 1, got {self.n_queries}",
        )
        for prior in filter(None, (self.prior, self.shifted_prior)):
            prior.check(self.d_x)  # a covariance or a centre that does not fit is an error here, not while drawing
        self.inputs.second_moment(self.d_x)

    # ---- conventions -------------------------------------------------------------------------------------------------
    @classmethod
    def von_oswald(cls, d_x: int = 10, n_context: int = 10) -> LinearRegression:
        """2212.07677: x uniform on (-1/2, 1/2), W standard normal, no noise, half the squared error at one query.

        Args:
            d_x: width of x.
            n_context: demonstrations of an episode.

        Returns:
            The family with the paper's conventions.
        """
        return cls(d_x=d_x, n_context=n_context)

    @classmethod
    def garg(cls, d_x: int = 20, n_context: int = 40, noise: float = 0.0) -> LinearRegression:
        """2208.01066: x and w standard normal, x and y in turn, the squared error at every x.

        Args:
            d_x: width of x.
            n_context: demonstrations of an episode.
            noise: standard deviation of what is added to every answer.

        Returns:
            The family with the paper's conventions.
        """
        return cls(d_x, 1, n_context, 1, GaussianInputs(), GaussianPrior(), noise, InterleavedTokens(), loss_scale=1.0)

    @classmethod
    def zhang(cls, d_x: int = 10, n_context: int = 10, covariance: tuple | None = None) -> LinearRegression:
        """2306.09927: x normal with a given covariance, w standard normal, no noise, one query.

        Args:
            d_x: width of x.
            n_context: demonstrations of an episode.
            covariance: of x, as in `GaussianInputs` (None: the identity).

        Returns:
            The family with the paper's conventions.
        """
        return cls(d_x, 1, n_context, 1, GaussianInputs(covariance))

    @classmethod
    def he(cls, d_x: int = 5, n_context: int = 40, noise: float = 0.1**0.5) -> LinearRegression:
        """2503.12734: x standard normal, w normal with variance 1/d_x, noisy answers, one query.

        Args:
            d_x: width of x.
            n_context: demonstrations of an episode.
            noise: standard deviation of what is added to every answer; its square, .1, is the paper's variance.

        Returns:
            The family with the paper's conventions.
        """
        prior = GaussianPrior((1 / d_x,) * d_x)
        return cls(d_x, 1, n_context, 1, GaussianInputs(), prior, noise, loss_scale=1.0)

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def setting(self) -> str:
        inputs = type(self.inputs).__name__.removesuffix("Inputs").lower()
        return f"{type(self).__name__} {self.d_x}→{self.d_y} with {self.n_context} examples, {inputs} inputs"

    @property
    def interleaved(self) -> bool:
        """Whether inputs and answers are tokens of their own, in turn, so that every input is asked for."""
        return isinstance(self.layout, InterleavedTokens)

    @property
    def d_in(self) -> int:
        return max(self.d_x, self.d_y) if self.interleaved else self.d_x + self.d_y

    @property
    def d_out(self) -> int:
        return self.d_y

    @property
    def seq(self) -> int:
        return 2 * self.n_context + 1 if self.interleaved else self.n_context + self.n_queries

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(0, self.seq, 2)) if self.interleaved else tuple(range(self.n_context, self.seq))

    @property
    def mask(self) -> Tensor:
        if self.interleaved:
            return torch.ones(self.seq, self.seq, dtype=torch.bool).tril()
        mask = torch.eye(self.seq, dtype=torch.bool)
        mask[:, : self.n_context] = True
        return mask

    @property
    def dimensions(self) -> dict[str, Any]:
        """Interleaved tokens are no (input, answer) pairs: what reads the context as a set of these does not apply."""
        return super().dimensions | ({"d_x": None} if self.interleaved else {})

    # ---- compositions ------------------------------------------------------------------------------------------------
    @property
    def pool(self) -> Tensor | None:
        """(n_tasks, d_x, d_y): the tasks that training knows; None where every episode has its own."""
        return self._pool

    @cached_property
    def _pool(self) -> Tensor | None:
        if self.n_tasks is None:
            return None
        rng = torch.Generator().manual_seed(self.teacher_seed)
        component = torch.randint(self.prior.n_components(self.d_x), (self.n_tasks,), generator=rng)
        return self.prior.draw(component, self.d_x, self.d_y, rng) * self.teacher_scale

    @property
    def _asked(self) -> Prior:
        """The law of the weights in `ood`."""
        return self.prior if self.shifted_prior is None else self.shifted_prior

    @property
    def _new_weights(self) -> bool:
        """Whether what `ood` holds out are tasks, not inputs."""
        return self.n_tasks is not None or self.shifted_prior is not None

    @cached_property
    def _counts(self) -> tuple[int, int]:
        """(compositions trained on, components of the law of `ood`)."""
        components = self.prior.n_components(self.d_x)
        seen = components if self.n_tasks is None else min(self.n_tasks, POOL_GROUPS)
        return seen, self._asked.n_components(self.d_x)

    def compositions(self, split: str) -> tuple[int, ...]:
        """Training's components (or parts of the pool) first, then the prior's components as held out."""
        self.check_split(split)
        seen, components = self._counts
        return tuple(range(seen, seen + components)) if split == "ood" else tuple(range(seen))

    def composition_name(self, composition: int) -> str:
        seen, _ = self._counts
        if composition < seen and self.n_tasks is not None:
            return f"pool {composition}"
        if composition < seen:
            return self.prior.component_name(composition, self.d_x)
        return f"{self._asked.component_name(composition - seen, self.d_x)}, {self._held_out}"

    @property
    def _held_out(self) -> str:
        if self._new_weights:
            return "new task"
        law = "" if self.shifted_inputs is None else f"{type(self.shifted_inputs).__name__} "
        return f"inputs {law}× {self.shifted_scale:g}"

    def describe_split(self) -> dict[str, Any]:
        tasks = "fresh ones" if self.n_tasks is None else f"a pool of {self.n_tasks}"
        return {"trained_on": tasks, "held_out": self._held_out, "components": self._counts[1]}

    # ---- episodes ----------------------------------------------------------------------------------------------------
    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions), device=rng.device)
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device)]
        seen, shifted = self._counts[0], split == "ood"
        component = composition - seen * shifted
        codes = {"weights": self._weights(component, shifted, rng).flatten(1), "component": component}
        law, scale = self.inputs, self.input_scale
        if shifted and not self._new_weights:
            law, scale = self.shifted_inputs or law, scale * self.shifted_scale
        points = self.n_context + self.n_queries
        x = law.draw(n, points, self.d_x, rng) * scale
        noise = torch.randn(n, points, self.d_y, generator=rng, device=rng.device) * self.noise
        return self.render(codes, torch.cat([x, noise, torch.full_like(x[..., :1], float(shifted))], dim=-1))

    def _weights(self, component: Tensor, shifted: bool, rng: torch.Generator) -> Tensor:
        """(n, d_x, d_y): from the pool while training on one, else from the prior."""
        if self.pool is None or shifted:
            return (self._asked if shifted else self.prior).draw(component, self.d_x, self.d_y, rng) * self.teacher_scale
        groups = self._counts[0]
        members = (len(self.pool) - component - 1) // groups + 1  # members of a group: component, component + groups, …
        pick = (torch.rand(len(component), generator=rng, device=rng.device) * members).long()
        return self.pool.to(rng.device)[component + groups * pick]

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These inputs (batch, N + Q, d_x + d_y + 1: x, noise, and 1 where they are from the held-out law) under those codes
        {"weights": (batch, d_x * d_y), "component": (batch,)}."""
        x, noise, shifted = inputs.split([self.d_x, self.d_y, 1], dim=-1)
        weights = codes["weights"].view(-1, self.d_x, self.d_y)
        y = self._clean(x, weights) + noise
        composition = codes["component"] + self._counts[0] * shifted[:, 0, 0].long()
        tokens, targets = self._interleave(x, y) if self.interleaved else self._join(x, y)
        nuisances = {
            "code_norm": codes["weights"].norm(dim=1),
            "answer_scale": y[:, : self.n_context].square().mean((1, 2)).sqrt(),
        }
        return Episodes(tokens, targets, dict(codes), composition, inputs, nuisances)

    def _clean(self, x: Tensor, weights: Tensor) -> Tensor:
        """(batch, points, d_y): the answers without noise to x (batch, points, d_x) under weights (batch, d_x, d_y)."""
        return x @ weights

    def _join(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        tokens = torch.cat([x, y], dim=-1)
        tokens[:, self.n_context :, self.d_x :] = 0
        return tokens, y

    def _interleave(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.new_zeros(len(x), self.seq, self.d_in)
        tokens[:, 0::2, : self.d_x] = x
        tokens[:, 1::2, : self.d_y] = y[:, :-1]
        return tokens, y.repeat_interleave(2, dim=1)[:, :-1]

    def examples(self, episodes: Episodes) -> tuple[Tensor, Tensor] | None:
        if self.interleaved:
            return None  # every answer may use another number of pairs: see `prompts`
        return episodes.tokens[..., : self.d_x], episodes.tokens[:, : self.n_context, self.d_x :]

    def prompts(self, episodes: Episodes) -> Prompts:
        """`episodes` as regression problems, read off the tokens."""
        tokens, n = episodes.tokens, self.n_context
        if self.interleaved:
            x = tokens[:, 0::2, : self.d_x]
            return Prompts(x[:, :n], tokens[:, 1::2, : self.d_y], x, torch.arange(n + 1))
        x, y = tokens[..., : self.d_x], tokens[:, :n, self.d_x :]
        return Prompts(x[:, :n], y, x[:, n:], torch.full((self.n_queries,), n))

    def further_inputs(self, episodes: Episodes, count: int) -> Tensor:
        """More inputs from the same law; always the same ones.

        They are those of the batch's episodes. Where these are few, any function of them would be linear: then they are fresh.

        Args:
            episodes: a batch of episodes.
            count: how many for each episode.

        Returns:
            (batch, count, d_x).
        """
        pool = LinearRegression.prompts(self, episodes).asked.flatten(0, 1)
        rng = torch.Generator().manual_seed(0)
        if len(pool) < FEW_INPUTS * self.d_x:
            return (self.input_scale * self.inputs.draw(len(episodes.tokens), count, self.d_x, rng)).to(pool)
        return pool[torch.randint(len(pool), (len(episodes.tokens), count), generator=rng).to(pool.device)]

    def asking(self, episodes: Episodes, x: Tensor) -> Episodes:
        """The same demonstrations before other last questions, whose targets have no noise.

        Args:
            episodes: a batch of episodes.
            x: (batch, T, d_x) the questions.

        Returns:
            batch * T episodes, those of one demonstration beside one another.
        """
        row = torch.arange(len(x), device=x.device).repeat_interleave(x.shape[1])
        codes, nuisances = ({name: v[row] for name, v in part.items()} for part in (episodes.codes, episodes.nuisances))
        tokens, targets, inputs = (part[row] for part in (episodes.tokens, episodes.targets, episodes.inputs))
        asked, weights = x.flatten(0, 1), codes["weights"].view(-1, self.d_x, self.d_y)
        tokens[:, self.answers[-1], : self.d_x] = asked
        targets[:, self.answers[-1]] = self._clean(asked[:, None], weights)[:, 0]
        inputs[:, -1, : self.d_x + self.d_y] = torch.nn.functional.pad(asked, (0, self.d_y))
        return Episodes(tokens, targets, codes, episodes.composition[row], inputs, nuisances)

    def with_answers_of_others(self, episodes: Episodes) -> Episodes:
        """The inputs of `episodes`, with the demonstrations' answers of the next episode of the batch: a control."""
        tokens = episodes.tokens.clone()
        answers = tokens[:, 1::2] if self.interleaved else tokens[..., self.d_x :]
        answers.copy_(answers.roll(1, 0))
        return episodes._replace(tokens=tokens)

    def mixture(self) -> tuple[Tensor, Tensor, Tensor]:
        """The prior of an output's weights, teacher scale included, as a mixture of Gaussians: log weights (m,), means
        (m, d_x), covariances (m, d_x, d_x), float64."""
        weights, means, covariances = self.prior.mixture(self.d_x)
        return weights, means * self.teacher_scale, covariances * self.teacher_scale**2

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """loss_scale times the mean squared error at the answers."""
        at = list(self.answers)
        return self.loss_scale * (prediction[:, at] - targets[:, at]).square().mean()

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """R²: 1 is perfect, 0 the predictor that always says 0 (every task's mean answer, for inputs with mean 0), may be
        negative; pooled over episodes. With noise, 1 is out of reach."""
        at = list(self.answers)
        error = (prediction.double() - targets.double())[:, at].square().sum((1, 2))
        return error, targets.double()[:, at].square().sum((1, 2))

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """The moments x^T y / N of the context, (batch, d_x * d_y): one step of gradient descent, up to its rate."""
        x, y, _, _ = self.prompts(episodes)
        if not len(x):
            raise ConfigError("no episode to read moments from")
        return (x.double().transpose(1, 2) @ y.double()).flatten(1) / self.n_context
