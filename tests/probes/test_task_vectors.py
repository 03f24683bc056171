"""Vectors of tasks on a network whose workings are known: the code stands where answers are read, the query joins later."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import compolens
from compolens import load_recipe
from compolens.tasks import FixedEpisodes


class Known(nn.Module):
    """Tokens: query, left, right, ask. Block 0 brings left and right to the last one, block 1 the query; read is their sum."""

    def __init__(self):
        super().__init__()
        self.shift, self.fetch, self.scale = nn.Identity(), nn.Identity(), nn.Parameter(torch.ones(1))
        self.start = nn.Identity()

    def forward(self, tokens):
        x = torch.zeros(*tokens.shape[:2], 21)
        for i in range(3):
            x[:, i, 7 * i : 7 * i + 7] = tokens[:, i] * self.scale
        x = self.start(x)
        moved = x.clone()
        moved[:, 3, 7:] = x[:, 1, 7:] + x[:, 2, 7:]
        x = self.shift(moved)
        fetched = x.clone()
        fetched[:, 3, :7] = x[:, 0, :7]
        x = self.fetch(fetched)
        query, left, right = x[:, 3].unflatten(1, (3, 7)).argmax(2).unbind(1)
        return 5.0 * nn.functional.one_hot((query + left + right) % 7, 7)[:, None].expand(-1, 4, -1).float()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    left, right, x = (a.ravel() for a in np.meshgrid(range(3), range(3), range(7), indexing="ij"))
    left, right, x = (np.tile(a, 6) for a in (left, right, x))
    mark = np.arange(len(x)) // 63  # tells copies apart: the token that asks

    def shown(x, mark, left, right):
        tokens = np.stack([x, left, right, mark], 1)
        codes = {"left": left, "right": right}
        return {"tokens": tokens, "targets": (x + left + right) % 7, "codes": codes, "composition": 3 * left + right}

    split = np.where((left == right) & (left > 0), "ood", np.where(mark % 3 == 0, "test", "train"))
    of, code = np.repeat(np.arange(len(x)), 9), np.tile(np.arange(9), len(x))
    others = {"of": of, **shown(x[of], mark[of], code // 3, code % 3)}
    folder = tmp_path_factory.mktemp("vectors") / "episodes"
    task = FixedEpisodes.write(folder, **shown(x, mark, left, right), split=split, counterfactuals=others)
    sites = {f"blocks.{i}.hook_resid_{when}": name for i, when, name in ((0, "pre", "start"), (0, "post", "shift"))}
    sites |= {"blocks.1.hook_resid_post": "fetch"}
    network = compolens.adopt(Known().eval(), task, sites=sites)
    with pytest.warns(UserWarning, match="are stored"):
        return load_recipe("probes", "task_vectors")(network, episodes=48)[0]


def score(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table["value"].item()


@pytest.mark.parametrize("split", ["test", "ood"])
def test_the_vector_of_a_task_makes_it_do_that_task_where_the_query_is_still_to_come(table, split):
    where = {"metric": "score", "split": split, "kind": "task vector", "taken": "sum of parts", "control": ""}
    assert score(table, **where, layer=1.0) == 1, "parts add up, for held-out compositions too"
    assert score(table, **where, layer=2.0) < 0.6, "a mean vector has no query"
    ends = {name: score(table, metric="score", split=split, control=name) for name in ("no vector", "shown")}
    assert ends["shown"] == 1 and ends["no vector"] < 0.3
    assert score(table, **where | {"metric": "moved"}, layer=1.0) == 1
    for control in ("another task", "mean", "random"):
        assert score(table, **where | {"control": control}, layer=1.0) < 0.6, control


def test_of_training_compositions_the_mean_serves_as_well(table):
    where = {"metric": "score", "split": "test", "kind": "task vector", "control": "", "layer": 1.0}
    assert score(table, **where, taken="mean of the composition") == 1


def test_a_network_without_fresh_weights_says_that_the_control_is_missing(table):
    untrained = table[table["control"] == "untrained"]
    assert len(untrained) and untrained["value"].isna().all() and untrained["note"].str.startswith("not available").all()


def test_random_function_vectors_have_the_length_of_every_heads_part():
    """A head is put in without the others of its hook point."""
    inside = compolens.load_recipe("probes", "task_vectors").__globals__
    own = torch.randn(5, 2, 4, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 0.1, 5.0, 0.0])[:, None]
    mean = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
    random = inside["_controls"]({"hook": mean + own}, SimpleNamespace(mean={"hook": mean}))["random"]["hook"]
    torch.testing.assert_close((random - mean).norm(dim=(1, 3)), own.norm(dim=(1, 3)), rtol=1e-4, atol=1e-5)
