"""Planting by gradient descent: a model that is written down meets every term, another does not, descent lowers them."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from compolens import SoftmaxTransformer
from compolens.activations.sites import Site
from compolens.activations.streams import draw
from compolens.tasks import Hyperteacher

HERE = Path(__file__).parents[1] / "benchmarks" / "diagnosis"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))
planting, cases, kinds = (importlib.import_module(name) for name in ("planting", "cases", "kinds"))
TASK = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=12, n_queries=3)


def written_down(kind):
    case = cases.case_of(kind, "teacher", 1.0, 0, False, "")
    model = cases.model_of(case)
    return model, planting.Causal(model.mechanism, case.run.task)


def two_batches(task, split="ood", n=32):
    (base,) = draw(task, split, n, "planting")
    return base, base.take(torch.arange(n).roll(1))


@pytest.mark.parametrize("kind", [kinds.PlantedNearestSupport, kinds.PlantedEntangled], ids=lambda kind: kind.__name__)
@torch.no_grad()
def test_a_model_written_down_meets_every_term_at_its_own_alignment_and_at_no_other(kind):
    model, causal = written_down(kind)
    base, source = two_batches(causal.task)
    right = planting.Alignment.after(model, 1)
    assert right.code == Site(1, "blocks.0.hook_resid_post", "context") and len(right.unused) == 1
    found = planting.losses(model, causal, base, source, right, 0)
    assert max(found) < 1e-4
    swapped = planting.Alignment(right.unused[0], (right.code,))
    wrong = planting.losses(model, causal, base, source, swapped, 0)
    assert wrong.interchange > 0.1 and wrong.strictness > 0.1 and wrong.behaviour < 1e-4
    told = planting.verified(model, causal, right, n=64)
    assert min(told["interchange"], told["behaviour"]) > 0.999 and told["strict, worst"] < 1e-3
    assert told["wrong mechanism"] < 0.9


@torch.no_grad()
def test_another_mechanisms_model_fails_where_the_mechanisms_differ():
    works, _ = written_down(kinds.PlantedCompositional)
    _, causal = written_down(kinds.PlantedNearestSupport)
    for split, least in (("ood", 0.05), ("test", -1.0)):
        found = planting.losses(works, causal, *two_batches(causal.task, split), planting.Alignment.after(works, 1), 0)
        assert (found.behaviour > least) and (split == "ood" or found.behaviour < 1e-3)


def test_descent_lowers_the_loss_and_half_of_the_held_out_compositions_is_never_shown(monkeypatch):
    drawn = []
    original = planting.draw

    def watched(task, split, n, *arguments, **more):
        for batch in original(task, split, n, *arguments, **more):
            drawn.extend(batch.composition.tolist())
            yield batch

    monkeypatch.setattr(planting, "draw", watched)
    torch.manual_seed(0)
    knowledge = kinds.knowledge_of(TASK)
    knowledge.plant()
    causal = planting.Causal(importlib.import_module("mechanisms").NearestSupport(knowledge, 1.0), TASK)
    model = SoftmaxTransformer(n_layers=3, d_model=16, n_heads=2).build(**TASK.dimensions)
    told = []
    how = planting.Planting(steps=40, batch=32, lr=3e-3)
    planting.plant(model, causal, planting.Alignment.after(model, 1), how, 0, lambda **row: told.append(row))
    total = [row["interchange"] + 0.4 * row["behaviour"] + 0.4 * row["strictness"] for row in told]
    assert sum(total[-8:]) < 0.9 * sum(total[:8])
    shown, kept = planting.halves(TASK, 0)
    assert set(drawn) & set(kept) == set() and set(shown) <= set(drawn) and {*shown, *kept} == set(TASK.compositions("ood"))
