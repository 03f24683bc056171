"""What `composition_predictors` measures, on hand-made models in which it is known which composition fails, and why."""

import numpy as np
import pandas as pd
import pytest
import torch
from handmade import save, write
from torch import nn

import compolens
from compolens import Hyperteacher, Run, SoftmaxTransformer, recipes
from compolens.diagnosis.contest import verdict
from compolens.diagnosis.failing_compositions import COMPOSITIONS, INTERFERENCE, gathered, judge, judged, references
from compolens.foundation.configs import ConfigError

EPISODES = 384


def asked(seed):
    """Modules that are there or not, and said to the model; many combinations are held out."""
    return Hyperteacher(
        d_x=3, d_y=2, d_hidden=6, n_modules=6, n_context=3, n_queries=2, support="random", fraction_held_out=0.5,
        coefficients="ones", code_given=True, teacher_seed=seed, split_seed=seed,
    )  # fmt: skip


class Planted(nn.Module):
    """Codes are sums of directions, and answers exact, but for the share `lost` of those to held-out compositions.

    lost: of every composition; None: read off the code. leaks: the code of a held-out composition is that of a training
    composition that shares a part.
    """

    def __init__(self, task, directions, lost=None, leaks=False):
        super().__init__()
        self.code, self.task, self.lost, self.leaks = nn.Identity(), task, lost, leaks
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("directions", directions)
        self.held = {c: self.related(c) for c in task.compositions("ood")}

    def related(self, held):
        own = set(self.task.composition_name(held).split("+"))
        return next(c for c in self.task.compositions("train") if own & set(self.task.composition_name(c).split("+")))

    def forward(self, tokens):
        z = tokens[:, :1, -self.task.n_modules :]
        composition = self.task.composition_of({"modules": z[:, 0]})
        shown = z.clone()
        if self.leaks:
            there = torch.tensor([self.held.get(c, c) for c in composition.tolist()])
            shown = self.task._active[there][:, None]
        code = self.code(shown @ self.directions)
        lost = torch.tensor([c in self.held for c in composition.tolist()]).float()
        if self.lost is None:  # what two directions share, read off the code: |a + b|² = 2 + 2 cos
            lost = lost * torch.where(z.sum((1, 2)) == 2, (code[:, 0].square().sum(-1) / 2 - 1).abs(), 0)
        else:
            lost = lost * self.lost[composition]
        return self.scale * self.task.answer({"modules": z[:, 0]}, tokens[..., : self.task.d_x]) * (1 - lost)[:, None, None]


def directions(seed, width=4):
    drawn = torch.randn(6, width, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm(dim=1, keepdim=True)


def measured(task, model):
    trained = compolens.adopt(model.eval(), task, sites={"hook_code": ("code", "output")})
    return recipes.load_recipe("probes", "composition_predictors")(trained, episodes=EPISODES)[0]


def values(table, metric, control=""):
    rows = table[(table["metric"] == metric) & (table["control"] == control)]
    return rows.set_index("composition")["value"]


def pairs(names):
    return [name for name in names if "+" in name]


@pytest.mark.filterwarnings("ignore")
def test_every_predictor_is_what_it_is_by_hand():
    task, own = asked(0), directions(0)
    table = measured(task, Planted(task, own))
    shown = [set(task.composition_name(c).split("+")) for c in task.compositions("train")]
    found, leak = values(table, INTERFERENCE), values(table, "leak of a seen conjunction")
    for name in pairs(task.composition_name(c) for c in task.compositions("ood")):
        a, b = map(int, name.split("+"))
        assert found[name] == pytest.approx(abs(float(own[a] @ own[b])), abs=1e-5)
        assert leak[name] == pytest.approx(0, abs=1e-5)
        evidence = min(sum(part in others for others in shown) for part in name.split("+"))
        assert values(table, "evidence for its parts")[name] == evidence
    assert values(table, "conjunctions among its parts").abs().max() < 1e-5, "codes are sums of their parts"
    assert values(table, "score of training compositions with its parts").min() == pytest.approx(1)
    alone = values(table, INTERFERENCE, "undefined")
    assert {*found.index, *alone.index} == {task.composition_name(c) for c in task.compositions("ood")}
    assert alone.isna().all() and not pairs(alone.index), "one part has nothing to overlap with"
    dealt = values(table, INTERFERENCE, "shuffled")
    assert sorted(dealt.dropna()) == sorted(found.dropna()) and not dealt.dropna().equals(found.dropna())


@pytest.mark.filterwarnings("ignore")
def test_a_code_that_is_a_training_compositions_own_leaks_wholly():
    task = asked(1)
    table = measured(task, Planted(task, directions(1), leaks=True))
    leak = values(table, "leak of a seen conjunction")
    np.testing.assert_allclose(leak[pairs(leak.index)], 1, atol=1e-5)


def entrant(folder, task, table):
    """A folder with the table, and with a model that learned."""
    write(folder, Run(SoftmaxTransformer(), task))
    known = {"metric": "score", "composition": "all", "weight": 1.0}
    of = ({"control": "", "value": 0.95, "note": ""}, {"control": "reference", "value": 1.0, "note": "ceiling"})
    save(folder, "generalization", [known | {"split": split} | who for split in ("test", "ood") for who in of])
    save(folder, "composition_predictors", table.to_dict("records"))
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What is said of models in which interference decides which composition fails, and of others in which nothing does."""
    where = tmp_path_factory.mktemp("planted")
    folders = {"interference": [], "nothing": []}
    for seed in range(6):
        task, own = asked(seed), directions(seed)
        lost = torch.rand(task.n_compositions, generator=torch.Generator().manual_seed(100 + seed))
        for kind, model in (("interference", Planted(task, own)), ("nothing", Planted(task, own, lost))):
            folders[kind].append(entrant(where / f"{kind}-{seed}", task, measured(task, model)))
    return {kind: gathered(some) for kind, some in folders.items()}


@pytest.mark.filterwarnings("ignore")
def test_where_interference_decides_it_holds_and_nothing_else_does(found):
    placed = {one.name: one for one in judge(found["interference"], families=1, models=6)}
    told = placed[INTERFERENCE]
    assert told.agreement > 0.9 and told.lo > 0.75 and told.p < 0.05 and told.clusters == told.models == 6
    assert verdict(told._replace(p_corrected=told.p), 1) == "holds"
    assert not [one for one in placed.values() if one.name != INTERFERENCE and verdict(one, len(placed)) == "holds"]
    beside = references(found["interference"])
    assert beside["score, measured again"].agreement > 0.9
    assert abs(beside["interference, shuffled"].agreement - 0.5) < 0.3


@pytest.mark.filterwarnings("ignore")
def test_where_nothing_decides_nothing_holds_though_scores_are_told_again(found):
    placed = judge(found["nothing"], families=1, models=6)
    assert all(verdict(one, len(placed)).startswith("cannot be told") for one in placed if one.enters)
    assert references(found["nothing"])["score, measured again"].agreement > 0.9


def frame(rng, *, clusters=12, compositions=8, models=2, of=lambda rng, value: value):
    """A predictor's rows, made by hand."""
    rows = []
    for k in range(clusters):
        value = rng.normal(size=compositions)
        for m in range(models):
            score = of(rng, value)
            for c in range(compositions):
                rows.append({"model": f"{k}/{m}", "family": "ABC"[k % 3], "cluster": str(k), "composition": f"{k} {c}",
                             "n_parts": 2, "predictor": "planted", "control": "", "league": "prognosis", "value": value[c],
                             "first": value[c], "second": -value[c], "score": score[c]})  # fmt: skip
    return pd.DataFrame(rows)


def test_compositions_of_other_sizes_are_not_compared_and_halves_that_disagree_are_told():
    rows = frame(np.random.default_rng(0))
    one = judged(rows, 1)
    assert (one.agreement, one.lo, one.hi, one.pairs, one.reliability) == (1, 1, 1, 12 * 2 * 28, pytest.approx(-1))
    assert judged(rows, -1).agreement == 0
    apart = rows.assign(n_parts=[2 + i % 2 for i in range(len(rows))])
    assert judged(apart, 1).pairs == 12 * 2 * 2 * 6


def test_the_interval_is_as_wide_as_what_models_of_a_cluster_share():
    """Twenty models that share one draw of noise are no more evidence than one of them."""

    def noise(rng, value):
        return rng.normal(size=len(value))

    few = judged(frame(np.random.default_rng(1), models=1, of=noise), 1)
    copied = pd.concat([frame(np.random.default_rng(1), models=1, of=noise).assign(model=lambda r, i=i: r["model"] + str(i))
                        for i in range(20)])  # fmt: skip
    many = judged(copied, 1)
    assert many.agreement == pytest.approx(few.agreement) and many.models == 20 * few.models
    assert (many.lo, many.hi, many.p) == pytest.approx((few.lo, few.hi, few.p))
    assert few.lo < 0.5 < few.hi


def test_of_noise_few_are_told_to_hold_or_to_fail():
    said = []
    for seed in range(25):
        one = judged(frame(np.random.default_rng(seed), clusters=10, of=lambda rng, value: rng.normal(size=len(value))), 1)
        said.append(verdict(one._replace(enters=True, p_corrected=one.p), 1))
    assert sum(not text.startswith("cannot") for text in said) <= 4  # 5 % of 25 are 1.25; more than 4 in 1 of 100 such tests


def test_models_with_few_held_out_compositions_are_left_out(tmp_path):
    task = Hyperteacher()
    rows = [{"metric": m, "composition": f"{i}+{i + 1}", "n_parts": 2, "league": "prognosis", "split": "ood", "value": 0.1 * i,
             "first": 0.1, "second": 0.1} for i in range(COMPOSITIONS - 1) for m in ("score", INTERFERENCE)]  # fmt: skip
    folder = entrant(tmp_path / "a", task, pd.concat([pd.DataFrame(rows).assign(control=c) for c in ("", "untrained")]))
    with pytest.raises(ConfigError, match="fewer than 5 held-out compositions"):
        gathered([folder])
