"""Head scores on planted models: heads that look labels up and are used, others that do the same and are not."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from compolens import Run, SoftmaxTransformer, recipes
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.hooks import HookedModel, HookPoint
from compolens.tasks import BooleanFunctions, Hyperteacher
from compolens.zoo.folders import TrainedModel

TASK = BooleanFunctions(n_bits=4, n_context=16)
NEAREST, SAME = "nearest neighbour", "induction"


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.Module()
        self.attn.hook_pattern, self.attn.hook_z = HookPoint(), HookPoint()


class Planted(HookedModel):
    """Heads 0 and 1 look at the labels of the nearest items before; heads 2 and 3 at everything.

    The answer is head 0's label; or, where no head is used, the question's first bit.
    """

    def __init__(self, used):
        super().__init__()
        self.blocks, self.used = nn.ModuleList([Layer()]), used
        self.cfg = SimpleNamespace(n_layers=1)
        self.setup()

    def forward(self, tokens):
        n, seq, _ = tokens.shape
        items, at = tokens[:, ::2, :-1].double(), torch.arange(0, seq, 2)
        same = (items @ items.mT).tril(-1)[..., :-1]
        before = torch.ones(len(at), len(at) - 1).tril(-1).bool()
        same = same.masked_fill(~before, -torch.inf)
        best = ((same == same.amax(2, keepdim=True)) & before).float()
        pattern = (TASK.mask / TASK.mask.sum(1, keepdim=True)).float().expand(n, 4, -1, -1).clone()
        looked = torch.zeros(n, seq, seq)
        looked[:, at[:, None], at[None, :-1] + 1] = best / best.sum(2, keepdim=True).clamp(min=1)
        pattern[:, :2] = looked[:, None]
        pattern = self.blocks[0].attn.hook_pattern(pattern)
        z = (pattern @ tokens[:, None, :, -1:]).permute(0, 2, 1, 3)  # (batch, pos, head, 1)
        z = self.blocks[0].attn.hook_z(z)
        label = z[:, :, 0, 0] if self.used else torch.where(tokens[:, -1:, 0] > 0, 1.0, -1.0).expand(-1, seq)
        return torch.stack([-label, label], -1)


class Alone(TrainedModel):
    why_no_untrained_control = "it is planted"
    device = torch.device("cpu")


def measured(used=True, task=TASK, model=None):
    trained = Alone(Run(SoftmaxTransformer(), task), model or Planted(used), task, Path("planted"), 0)
    table, rows = recipes.load_recipe("probes", "head_scores")(trained, episodes=200)
    return table[(table["split"] == "ood") & (table["control"] != "untrained")], rows


def values(table, metric, control=""):
    own = table[(table["metric"] == metric) & (table["control"] == control)]
    return dict(zip(own["component"], own["value"], strict=True))


def test_heads_that_look_up_score_one_and_even_heads_what_even_attention_scores():
    table, _ = measured()
    for metric in (NEAREST, SAME):
        own, even = values(table, metric), values(table, metric, "even")
        assert own["L0H0"] == pytest.approx(1, abs=1e-6) == own["L0H1"]
        assert own["L0H2"] == pytest.approx(even["L0H2"], abs=1e-6) and even["L0H2"] < 0.25


def test_even_attention_by_hand():
    """Of the last repeated item, 3 of the tokens before it and itself are labels of the same item, if no item occurs twice."""
    table, _ = measured()
    quarter, found = 4, []
    episodes = TASK.sample(200, "ood", TASK.rng(0, "ood"))
    again = TASK.repeated(episodes, 4)
    items = again.tokens[:, ::2, :-1]
    for e in range(200):
        shares = []
        for i in range(quarter, 16):
            same = sum(torch.equal(items[e, j], items[e, i]) for j in range(i))
            shares.append(same / (2 * i + 1))
        found.append(sum(shares) / len(shares))
    even = values(table, SAME, "even")["L0H0"]
    assert even == pytest.approx(sum(found) / len(found), abs=0.02)  # other episodes


def test_a_score_is_no_use():
    """Heads 0 and 1 score alike. Where head 0 is used, the answers need them; where nothing is used, they do not."""
    for used in (True, False):
        table, rows = measured(used)
        without, random = values(table, "score without heads"), values(table, "score without heads", "matched random heads")
        whole = values(table, "score")[""]
        assert set(without) == {"L0H0 L0H1"} == set(random)
        assert random["L0H0 L0H1"] == whole  # heads 2 and 3 carry nothing
        if used:
            assert without["L0H0 L0H1"] == pytest.approx(0.5, abs=0.1) and whole > 0.7
        else:
            assert without["L0H0 L0H1"] == whole
    assert len(rows) == 400 and set(rows["split"]) == {"test", "ood"}


def test_matched_heads_are_others_of_the_same_layers_as_far_as_there_are_any():
    module = recipes.load_file(recipes.locate("probes", "head_scores"))
    from compolens.interventions.components import Component

    heads = [Component(f"L{layer}H{h}", layer, "head", "site", 2, h) for layer in range(2) for h in range(4)]
    drawn = module._matched(heads, [heads[0], heads[6], heads[7]], 0)
    assert len(drawn) == 3 == len({tuple(h.name for h in one) for one in drawn})
    for one in drawn:
        names = {h.name for h in one}
        assert len(names) == 3 and not names & {"L0H0", "L1H2", "L1H3"} and {"L1H0", "L1H1"} <= names
    assert module._matched(heads[:3], heads[:2], 0) == []


def test_where_it_does_not_apply_it_says_so():
    trained = Alone(Run(SoftmaxTransformer(), Hyperteacher()), Planted(True), Hyperteacher(), Path("planted"), 0)
    with pytest.raises(DoesNotApply, match="labelled"):
        recipes.load_recipe("probes", "head_scores")(trained, episodes=10)
    with pytest.raises(ConfigError, match="at least 2"):
        recipes.load_recipe("probes", "head_scores")(trained, episodes=1)
