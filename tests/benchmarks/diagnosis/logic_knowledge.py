"""What a planted model knows of fuzzy logic: all terms; which pair is at work is found by trying every known one."""

from __future__ import annotations

import torch
from knowledge import SHARP, Knowledge
from torch import Tensor, nn

from compolens.tasks import FuzzyLogic


class LogicKnowledge(Knowledge):
    """f = OR of ANDs: negated (terms, L), 1 where a term negates a variable; inference by trying every pair of known terms.

    own (C, K, L): the terms of every training function, stored once more. A code is multi-hot over all 2^L terms.
    """

    def __init__(self, task: FuzzyLogic) -> None:
        train, held = ([task._universe[c] for c in task.compositions(split)] for split in ("train", "ood"))
        super().__init__(train, held, task.n_all, task.n_variables, 1)
        self.task = task
        self.register_buffer("pairs", torch.tensor(train + held), persistent=False)
        self.register_buffer("terms", torch.tensor(train), persistent=False)
        self.negated = nn.Parameter(torch.randn(task.n_all, task.n_variables))
        self.own = nn.Parameter(torch.randn(len(train), task.n_terms, task.n_variables))

    centre, input_size, answer_size = 0.5, 0.29, 0.18
    pairs: Tensor
    terms: Tensor

    @property
    def entries(self) -> int:
        return len(self.own)

    def infer(self, x: Tensor, y: Tensor) -> Tensor:
        answers = self._truth(x, self.negated)[..., self.pairs].amax(-1)
        multi_hot = nn.functional.one_hot(self.pairs, self.n_parts).sum(1).to(x)
        return torch.softmax(-(answers - y).square().sum(1) / SHARP, dim=1) @ multi_hot

    def execute(self, code: Tensor, x: Tensor) -> Tensor:
        return (self._truth(x, self.negated) * code[:, None]).amax(-1, keepdim=True)

    def execute_entangled(self, code: Tensor, x: Tensor, strength: float) -> Tensor:
        both = self._truth(x, self.negated)[..., self.held]  # (batch, points, H, 2)
        worse = (self.together(code)[:, None] * (both.amin(-1) - both.amax(-1))).sum(-1, keepdim=True)
        return self.execute(code, x) + strength * worse

    def explain(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        error = (self._own_truth(x) - y).square().sum(1)
        return torch.eye(self.entries).to(x).expand(len(x), -1, -1), error

    def lookup(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(-self.explain(x, y)[1] / SHARP, dim=1)

    def recall(self, entry: Tensor, x: Tensor) -> Tensor:
        return (self._own_truth(x) * entry[:, None]).sum(-1, keepdim=True)

    def _truth(self, x: Tensor, negated: Tensor) -> Tensor:
        """(batch, points, terms): min over the literals."""
        return (x[:, :, None] * (1 - negated) + (1 - x[:, :, None]) * negated).amin(-1)

    def _own_truth(self, x: Tensor) -> Tensor:
        return self._truth(x, self.own.flatten(0, 1)).unflatten(-1, self.own.shape[:2]).amax(-1)

    @torch.no_grad()
    def plant(self) -> None:
        names = [format(term, f"0{self.d_x}b") for term in range(self.n_parts)]
        self.negated.copy_(torch.tensor([[float(bit == "0") for bit in name] for name in names]))
        self.own.copy_(self.negated[self.terms])
