"""Planting at heads and MLPs: the causal model answers as the task's teacher, and descent makes a transformer follow it."""

import importlib
import sys
from pathlib import Path

import torch

from compolens.activations.streams import draw
from compolens.interventions.components import components

HERE = Path(__file__).parents[1] / "benchmarks"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))
nodes = importlib.import_module("planted_nodes")


def drawn(n):
    """(model, its parts, truth, base, source)."""
    torch.manual_seed(0)
    model = nodes.ARCHITECTURE.build(**nodes.TASK.dimensions).eval()
    (base,) = draw(nodes.TASK, "test", n, 0)
    parts = components(model, base.tokens)
    return model, parts, nodes.Truth.drawn(parts, 0), base, base.take(torch.arange(n).roll(1))


def test_the_causal_model_answers_as_the_task_does():
    """Nothing exchanged: the task's own answers. Both heads exchanged: those of the same inputs under the source's code."""
    _, parts, truth, base, source = drawn(256)
    assert torch.allclose(nodes.wanted(truth, parts[3], base, source), base.targets, atol=1e-5)
    assert torch.allclose(nodes.wanted(truth, truth.last, base, source), source.targets, atol=1e-5)
    here = torch.arange(nodes.TASK.n_modules) < nodes.FIRST
    only = {truth.first: here, truth.second: ~here}
    for part, taken in only.items():
        found = nodes.wanted(truth, part, base, source)
        one_sided = base.codes["modules"][:, ~taken].ne(0).any(1) | source.codes["modules"][:, ~taken].ne(0).any(1)
        whole = nodes.TASK.render(source.codes, base.inputs).targets[~one_sided]
        assert len(whole) and torch.allclose(found[~one_sided], whole, atol=1e-5), (
            "what this head carries is all there is in both codes"
        )


def test_every_seed_has_two_heads_of_different_layers_and_the_last_mlp():
    _, parts, *_ = drawn(2)
    for seed in range(8):
        truth = nodes.Truth.drawn(parts, seed)
        assert {truth.first.kind, truth.second.kind} == {"head"} and truth.first.layer != truth.second.layer
        assert truth.last.name == "L2MLP" == parts[-1].name


def test_descent_brings_the_transformer_nearer_to_the_causal_model():
    model, parts, truth, base, source = drawn(64)

    def errors():
        with torch.no_grad():
            _, theirs = nodes.held(model, source, parts)
            used = [nodes.moved(model, base, part, theirs[part.hook_name]) for part in truth.nodes]
        goals = [nodes.wanted(truth, part, base, source) for part in truth.nodes]
        return [float(nodes.error(each, goal)) for each, goal in zip(used, goals, strict=True)]

    before = errors()
    nodes.plant(model, parts, truth, steps=60, seed=0)
    assert sum(errors()) < 0.7 * sum(before)
