"""Failures planted in solvers of S-RAVEN, which enumerate on their own, are told apart."""

import itertools
import math

import pytest
import torch
from handmade import save

import compolens
from compolens import load_recipe
from compolens.diagnosis.label import diagnose
from compolens.tasks import SRaven
from compolens.tasks.sraven.rules import RULES, multisets

STEPS, SIGNS = torch.tensor([0, 1, 2, -1, -2]), torch.tensor([1, -1])
STEPPING = SRaven(n_features=2, rules=RULES[:5], fraction_held_out=0.3)
"""With these rules, what an answer is under another one is known from what is shown: codes can be written."""
ADDING = SRaven(n_features=2, rules=RULES[:7], fraction_held_out=0.3)
"""With these it is not, but which training multiset explains a held-out one best is hardly ever a tie."""
SLIP = 1e-6


class Solver(torch.nn.Module):
    """Enumerates shuffles and orders of rules; writes the rules and the answer by each; then takes those of its rules."""

    def __init__(self, kind="works", rules=5):
        super().__init__()
        self.kind, self.message, self.sure = kind, torch.nn.Identity(), torch.nn.Parameter(torch.tensor(20.0))
        self.task = {5: STEPPING, 7: ADDING}[rules]
        self.k, self.f, self.n_rules = self.task.n_features, self.task.n_values, rules
        every, ood = multisets(rules, self.k), self.task.compositions("ood")
        self.held_out = [every[i] for i in ood]

    def fits(self, panels):
        """Log likelihood ratio (batch, answer, column 0, column 1, rule) of what is shown."""
        rows = []
        for r in range(3):
            a, b = panels[:, r, 0][:, None, :, None, None], panels[:, r, 1][:, None, None, :, None]
            c = panels[:, r, 2][:, :, None, None, None]
            step = ((b - a - STEPS) % self.f == 0) & (((c - b - STEPS) % self.f == 0) | torch.tensor(r == 2))
            adds = (a + SIGNS[: self.n_rules - 5] * b - c) % self.f == 0
            gain = self.f ** (2 - (r == 2))
            rows.append(((1 - SLIP) * gain * step.double() + SLIP, (1 - SLIP) * self.f * adds.double() + SLIP))
        steps, added = rows[0][0] * rows[1][0] * rows[2][0], rows[0][1] * rows[1][1]
        return torch.cat([steps.expand(-1, *[self.k] * 3, -1), added.expand(-1, *[self.k] * 3, -1)], -1).log()

    def find(self, panels):
        """(rules (batch, K), their answers (batch, K, rule)): the likeliest explanation by the likeliest multiset."""
        score = self.fits(panels)
        shuffles = list(itertools.permutations(range(self.k))) if self.kind != "ignores shuffles" else [tuple(range(self.k))]
        orders = list(itertools.product(range(self.n_rules), repeat=self.k))
        if self.kind == "remembers":
            orders = [order for order in orders if tuple(sorted(order)) not in self.held_out]
        every = list(itertools.product(shuffles, shuffles, orders))
        total = torch.stack([sum(score[:, j, a[j], b[j], o[j]] for j in range(self.k)) for a, b, o in every], 1)
        of = [tuple(sorted(order)) for _, _, order in every]
        evidence = {m: total[:, [i for i, one in enumerate(of) if one == m]] for m in sorted(set(of))}
        mean = torch.stack([e.logsumexp(1) - math.log(len(set(itertools.permutations(m)))) for m, e in evidence.items()], 1)
        here = torch.tensor([list(evidence).index(m) for m in of]) == mean.argmax(1, keepdim=True)
        best = torch.where(here, total, -torch.inf).argmax(1)
        first, second, order = (torch.tensor(one)[best] for one in zip(*every, strict=True))
        a, b = panels[:, 2, 0].gather(1, first)[..., None], panels[:, 2, 1].gather(1, second)[..., None]
        begin = torch.where(order < 5, b[..., 0] - STEPS[order.clamp(max=4)], a[..., 0])[..., None]  # of a step: from column 1
        return order, torch.cat([begin + 2 * STEPS, a + SIGNS[: self.n_rules - 5] * b], -1) % self.f

    def forward(self, tokens):
        panels = tokens.argmax(-1).view(-1, 3, 3, self.k)
        rule, answers = self.find(panels)
        held = torch.stack([(rule.sort(1).values == torch.tensor(m)).all(1) for m in self.held_out]).any(0)
        if self.kind == "copies":
            answers = panels[:, 2, 1][..., None].expand_as(answers)
        if self.kind == "infers another rule":
            rule = torch.where(held[:, None], torch.cat([(rule[:, :1] + 1) % self.n_rules, rule[:, 1:]], 1), rule)
        hot = [torch.nn.functional.one_hot(rule, self.n_rules), torch.nn.functional.one_hot(answers, self.f)]
        message = torch.cat([one.flatten(1) for one in hot], 1).to(tokens.dtype)[:, None]
        read = self.message(message.repeat(1, self.task.seq, 1))[:, 0]
        rules = read[:, : self.k * self.n_rules].unflatten(1, (self.k, self.n_rules))
        if self.kind == "executes another rule":
            rules = torch.cat([torch.where(held[:, None, None], rules[:, :1].roll(1, 2), rules[:, :1]), rules[:, 1:]], 1)
        table = read[:, self.k * self.n_rules :].unflatten(1, (self.k, self.n_rules, self.f))
        return self.sure * torch.einsum("nkr,nkrv->nkv", rules, table)


FEW = {
    "generalization": {"episodes": 256},
    "which_prior": {"episodes": 256},
    "inference_or_execution": {"episodes": 128, "fitted": 384, "searched": 8, "search_steps": 4},
}
CLEAR = "undecided"
"""Between the posteriors of whole panels and of single features, which hardly differ here."""
KINDS = {
    # kind: (label, the learner it is nearest to on held-out compositions, whether that recombines)
    "works": ("compositional", CLEAR, "recombines"),
    "remembers": ("memorised", "best training composition", "does not recombine"),
    "infers another rule": ("fails to infer", CLEAR, "recombines"),
    "executes another rule": ("cannot execute", CLEAR, "recombines"),
    "ignores shuffles": ("has not learned its training compositions", "Bayes, shuffles ignored", "recombines"),
    "copies": ("generic regression", "copy of a panel", "does not recombine"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_in_a_solver_is_what_the_diagnosis_says(kind, tmp_path):
    rules = 7 if kind == "remembers" else 5
    sites = {"blocks.0.hook_resid_pre": ("message", "input"), "blocks.0.hook_resid_post": "message"}
    own = {"sites": sites, "built_by": Solver, "arguments": {"kind": kind, "rules": rules}}
    adopted = compolens.adopt(Solver(kind, rules).eval(), Solver(kind, rules).task, evaluation_episodes=64, **own)
    folder, found = tmp_path / "planted", {}
    adopted.save(folder, note="planted")
    for name, few in FEW.items():
        found[name] = load_recipe("probes", name)(adopted, **few)[0]
        save(folder, name, found[name].to_dict("records"))
    label, nearest, recombines = KINDS[kind]
    prior = found["which_prior"].query("split == 'ood' and control == ''").set_index("metric")["reference"]
    assert (prior["nearest"], prior["margin"]) == (nearest, recombines)
    diagnosis = diagnose([folder])
    assert diagnosis.label == label, diagnosis.reasons
