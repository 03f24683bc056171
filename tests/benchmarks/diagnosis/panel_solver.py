"""A solver of S-RAVEN with two features: it enumerates shuffles and orders of rules, and works out the answer by each rule.

Rules are the first five, which go on in equal steps, or seven, which add and subtract as well. Models with a known failure
are made of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from functools import cached_property

import torch
from torch import Tensor

from compolens.tasks import SRaven
from compolens.tasks.sraven.rules import RULES, multisets

STEPS, SIGNS = torch.tensor([0, 1, 2, -1, -2]), torch.tensor([1, -1])
SLIP = 1e-6


def panels_task(rules: int, split_seed: int = 0) -> SRaven:
    """The family with the first rules. With five of them, what an answer is under another one is known from what is shown:
    codes can be written. With seven it is not, but which training multiset explains a held-out one best is hardly ever a tie.
    """
    return SRaven(n_features=2, rules=RULES[:rules], fraction_held_out=0.3, split_seed=split_seed)


class PanelSolver:
    """What it takes to explain panels (batch, row, column, feature) of a family of `panels_task`."""

    task: SRaven

    @cached_property
    def held_out(self) -> list[tuple[int, ...]]:
        """The held-out multisets."""
        every = multisets(len(self.task.rules), self.task.n_features)
        return [every[i] for i in self.task.compositions("ood")]

    def fits(self, panels: Tensor) -> Tensor:
        """Log likelihood ratio (batch, answer, column 0, column 1, rule) of what is shown."""
        rows, f, k, adding = [], self.task.n_values, self.task.n_features, len(self.task.rules) - 5
        for r in range(3):
            a, b = panels[:, r, 0][:, None, :, None, None], panels[:, r, 1][:, None, None, :, None]
            c = panels[:, r, 2][:, :, None, None, None]
            step = ((b - a - STEPS) % f == 0) & (((c - b - STEPS) % f == 0) | torch.tensor(r == 2))
            adds = (a + SIGNS[:adding] * b - c) % f == 0
            gain = f ** (2 - (r == 2))
            rows.append(((1 - SLIP) * gain * step.double() + SLIP, (1 - SLIP) * f * adds.double() + SLIP))
        steps, added = rows[0][0] * rows[1][0] * rows[2][0], rows[0][1] * rows[1][1]
        return torch.cat([steps.expand(-1, *[k] * 3, -1), added.expand(-1, *[k] * 3, -1)], -1).log()

    def find(self, panels: Tensor, shuffled: bool = True, without: Collection[tuple[int, ...]] = ()) -> tuple[Tensor, Tensor]:
        """The likeliest explanation by the likeliest multiset.

        Args:
            panels: (batch, 3, 3, 2) values; the last panel is not looked at.
            shuffled: whether shuffled columns are considered.
            without: multisets that are not considered.

        Returns:
            The rules (batch, 2), and their answers (batch, 2, rule).
        """
        score, k, n_rules = self.fits(panels), self.task.n_features, len(self.task.rules)
        shuffles = list(itertools.permutations(range(k))) if shuffled else [tuple(range(k))]
        orders = [o for o in itertools.product(range(n_rules), repeat=k) if tuple(sorted(o)) not in without]
        every = list(itertools.product(shuffles, shuffles, orders))
        total = torch.stack([sum(score[:, j, a[j], b[j], o[j]] for j in range(k)) for a, b, o in every], 1)
        of = [tuple(sorted(order)) for _, _, order in every]
        evidence = {m: total[:, [i for i, one in enumerate(of) if one == m]] for m in sorted(set(of))}
        mean = torch.stack([e.logsumexp(1) - math.log(len(set(itertools.permutations(m)))) for m, e in evidence.items()], 1)
        here = torch.tensor([list(evidence).index(m) for m in of]) == mean.argmax(1, keepdim=True)
        best = torch.where(here, total, -torch.inf).argmax(1)
        first, second, order = (torch.tensor(one)[best] for one in zip(*every, strict=True))
        a, b = panels[:, 2, 0].gather(1, first)[..., None], panels[:, 2, 1].gather(1, second)[..., None]
        begin = torch.where(order < 5, b[..., 0] - STEPS[order.clamp(max=4)], a[..., 0])[..., None]  # of a step: from column 1
        return order, torch.cat([begin + 2 * STEPS, a + SIGNS[: n_rules - 5] * b], -1) % self.task.n_values

    def unfamiliar(self, rule: Tensor) -> Tensor:
        """(batch,) bool: whether the rules (batch, 2) are a held-out multiset."""
        return torch.stack([(rule.sort(1).values == torch.tensor(m)).all(1) for m in self.held_out]).any(0)
