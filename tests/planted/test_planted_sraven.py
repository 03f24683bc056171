"""Failures planted in solvers of S-RAVEN, which enumerate on their own, are told apart."""

import pytest
import torch
from handmade import save
from test_planted import neighbour

import compolens
from compolens import load_recipe
from compolens.diagnosis.label import diagnose

panel_solver = neighbour("panel_solver")


class Solver(torch.nn.Module, panel_solver.PanelSolver):
    """Enumerates shuffles and orders of rules; writes the rules and the answer by each; then takes those of its rules."""

    def __init__(self, kind="works", rules=5):
        super().__init__()
        self.kind, self.message, self.sure = kind, torch.nn.Identity(), torch.nn.Parameter(torch.tensor(20.0))
        self.task = panel_solver.panels_task(rules)
        self.k, self.f, self.n_rules = self.task.n_features, self.task.n_values, rules

    def forward(self, tokens):
        panels = tokens.argmax(-1).view(-1, 3, 3, self.k)
        rule, answers = self.find(panels, self.kind != "ignores shuffles", self.held_out if self.kind == "remembers" else ())
        held = self.unfamiliar(rule)
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
