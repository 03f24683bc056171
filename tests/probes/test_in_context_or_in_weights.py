"""The probe on planted models: one that reads labels from the context by the circuit of 2312.03002, one that knows them."""

from pathlib import Path

import pytest
import torch
from torch import nn

from compolens import Run, SoftmaxTransformer, recipes
from compolens.foundation.configs import DoesNotApply
from compolens.hooks import HookedModel, HookPoint
from compolens.tasks import BurstyClassification, Relations
from compolens.zoo.folders import TrainedModel

TASK = BurstyClassification(n_classes=12, n_labels=6, n_context=5, n_positions=12, d_item=40)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.Module()
        self.attn.hook_pattern = HookPoint()


class Planted(HookedModel):
    """Labels copy the item before them; the question finds its match among the copies. Or: the nearest mean's own label."""

    def __init__(self, from_weights):
        super().__init__()
        self.blocks, self.from_weights = nn.ModuleList([Layer(), Layer()]), from_weights
        self.setup()

    def forward(self, tokens):
        content = tokens[..., TASK.n_positions :]
        n, seq, _ = content.shape
        before = torch.zeros(n, 1, seq, seq)
        before[:, 0, range(1, seq, 2), range(0, seq - 1, 2)] = 1
        copies = self.blocks[0].attn.hook_pattern(before)[:, 0] @ content
        alike = (copies[:, 1::2] * content[:, -1:]).sum(-1)
        match = torch.zeros(n, 1, seq, seq)
        match[torch.arange(n), 0, -1, 2 * alike.argmax(1) + 1] = 1
        read = (self.blocks[1].attn.hook_pattern(match)[:, 0] @ content) @ TASK.teacher[1].T
        if self.from_weights:
            own = torch.cdist(content[:, -1], TASK.teacher[0]).argmin(1) % TASK.n_labels
            read = nn.functional.one_hot(own, TASK.n_labels).float()[:, None].expand(-1, seq, -1)
        return read


class Alone(TrainedModel):
    why_no_untrained_control = "it is planted"
    device = torch.device("cpu")


def measured(from_weights):
    trained = Alone(Run(SoftmaxTransformer(), TASK), Planted(from_weights), TASK, Path("planted"), 0)
    table, rows = recipes.load_recipe("probes", "in_context_or_in_weights")(trained, episodes=300)
    own = table[table["control"].isin(["", "another item"])]
    return {(r.metric, r.evaluation, r.layer, r.control): r.value for r in own.itertuples()}, rows


def test_a_planted_circuit_is_seen_whole():
    found, rows = measured(from_weights=False)
    for evaluation in ("known classes", "novel classes", "labels shifted"):
        assert found["accuracy", evaluation, -1, ""] == found["label of the context", evaluation, -1, ""] == 1
    assert found["accuracy", "class not shown", -1, ""] < 0.3 and found["trained label", "labels shifted", -1, ""] == 0
    assert found["label to its item", "novel classes", 0, ""] == 1 and found["label to its item", "novel classes", 1, ""] == 0
    assert found["question to right label", "novel classes", 1, ""] == found["question to labels", "novel classes", 1, ""] == 1
    cut = found["accuracy without label to item", "novel classes", 0, ""]
    assert cut < 0.5 and found["accuracy without label to item", "novel classes", 0, "another item"] == 1
    assert rows.groupby("evaluation")["score"].mean()["labels shifted"] == 1


def test_a_model_that_knows_its_labels_answers_those_of_training():
    found, _ = measured(from_weights=True)
    assert found["accuracy", "known classes", -1, ""] == found["accuracy", "class not shown", -1, ""] == 1
    assert found["accuracy", "labels shifted", -1, ""] == 0 and found["trained label", "labels shifted", -1, ""] == 1
    assert found["accuracy", "novel classes", -1, ""] < 0.35


def test_other_families_are_refused():
    run = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), Relations())
    trained = TrainedModel(run, run.build(), run.task, Path("x"), 0)
    with pytest.raises(DoesNotApply, match="Relations has no class and label as its code"):
        recipes.load_recipe("probes", "in_context_or_in_weights")(trained)
