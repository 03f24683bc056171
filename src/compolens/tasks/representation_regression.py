"""In-context regression on a fixed representation: y = W^T Phi(x) (+ noise), with one random network Phi for all episodes.

The task of 2310.10616. Phi is the same in training and in every split, so a learner can keep it in its weights; W is drawn
anew for every episode, so it has to be inferred from the context. Episodes look as those of `LinearRegression` do. With Phi(x)
in the place of x, ridge regression is the ideal learner.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from compolens.foundation.configs import require, require_positive
from compolens.tasks.episodes import Episodes
from compolens.tasks.linear_regression import LinearRegression, Prompts
from compolens.tasks.regression_laws import GaussianInputs, InputLaw


@dataclass(frozen=True)
class RepresentationRegression(LinearRegression):
    """`LinearRegression` on Phi(x) in the place of x; its other fields are as there.

    Phi(x) = s(B_L s(… s(B_1 x))), with square random orthogonal B_l and s the leaky rectifier, so Phi(x) is as wide as x.

    >>> task = RepresentationRegression(d_x=3, n_context=5)
    >>> task.represent(torch.zeros(2, 3)).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]

    Args:
        d_x: width of x and of Phi(x).
        n_context: N, demonstrations of an episode.
        inputs: the law of x.
        noise: standard deviation of what is added to every answer.
        loss_scale: factor of the mean squared error.
        depth: L, layers of Phi, at least 1.
        leak: slope of the rectifier below 0, from 0 to 1; at 1 Phi is a rotation.
        representation_seed: draws Phi.
    """

    d_x: int = 4
    n_context: int = 10
    inputs: InputLaw = field(default_factory=GaussianInputs)
    noise: float = 0.1
    loss_scale: float = 1.0
    depth: int = 1
    leak: float = 0.1
    representation_seed: int = 0

    score_name: ClassVar[str] = "R² about 0"
    """0 is the predictor that always says 0, not the task's mean answer, since Phi(x) has a mean."""
    missing: ClassVar[dict[str, str]] = {
        **LinearRegression.missing,
        "gd_equivalence": "its answers are linear in Phi(x), not in x; see representation_map and algorithm_steps",
        "dual_model": "its answers are linear in Phi(x), not in x; see representation_map",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "depth")
        require(0 <= self.leak <= 1, f"{type(self).__name__}: leak must be from 0 to 1, got {self.leak}")

    # ---- the representation ------------------------------------------------------------------------------------------
    @cached_property
    def _rotations(self) -> Tensor:
        """(depth, d_x, d_x), orthogonal."""
        rng = torch.Generator().manual_seed(self.representation_seed)
        return torch.linalg.qr(torch.randn(self.depth, self.d_x, self.d_x, generator=rng, dtype=torch.float64))[0].float()

    def represent(self, x: Tensor) -> Tensor:
        """Phi of inputs.

        Args:
            x: (..., d_x).

        Returns:
            (..., d_x), of the same kind and on the same device.
        """
        for rotation in self._rotations.to(x):
            x = leaky_relu(x @ rotation.T, self.leak)
        return x

    @property
    def plain(self) -> LinearRegression:
        """The same task with Phi(x) = x: what a model of this task is pasted onto."""
        return LinearRegression(**{f.name: getattr(self, f.name) for f in fields(LinearRegression)})

    # ---- what differs from linear regression -------------------------------------------------------------------------
    def _clean(self, x: Tensor, weights: Tensor) -> Tensor:
        return self.represent(x) @ weights

    def prompts(self, episodes: Episodes) -> Prompts:
        """`episodes` as the regression problems that they are for a learner who knows Phi: Phi(x) in the place of x."""
        raw = self.raw_prompts(episodes)
        return raw._replace(x=self.represent(raw.x), asked=self.represent(raw.asked))

    def raw_prompts(self, episodes: Episodes) -> Prompts:
        """`episodes` as regression problems for a learner who takes x as it is."""
        return super().prompts(episodes)

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """The moments x^T y / N of the context in x, not in Phi(x): (batch, d_x * d_y)."""
        x, y, _, _ = self.raw_prompts(episodes)
        return (x.double().transpose(1, 2) @ y.double()).flatten(1) / self.n_context
