"""Interchange interventions: the formula, the search, and what they say of models whose stream is known by construction."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from compolens import recipes
from compolens.activations.sites import Site, positions, sites
from compolens.activations.streams import draw
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.hooks import HookedModel, HookPoint
from compolens.interventions import interchange
from compolens.interventions.interchange import Held, Search, Subspace
from compolens.measures.subspaces import split_by_reader
from compolens.tasks import Hyperteacher
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel, load

AT_ANSWER = Site(1, "blocks.0.hook_resid_post", "readout")


# ---- models whose stream is known ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Shown(Hyperteacher):
    """The hyperteacher whose context tokens show the code itself: there is nothing to infer."""

    @property
    def d_in(self):
        return self.n_modules + self.d_x

    def _render(self, codes, x, composition):
        n, m = self.n_context, self.n_modules
        tokens = x.new_zeros(*x.shape[:2], self.d_in)
        tokens[:, :n, :m], tokens[:, n:, m:] = codes["modules"][:, None], x[:, n:]
        return Episodes(tokens, self._answers(codes, x, composition), codes, composition, x, {})


class Planted(HookedModel):
    """The context's stream is [code, 0, 0] and a query's [0, x, 0], in a rotated basis; block 0 adds the context's mean code
    to the queries, which are then answered from [code, x] by the teacher."""

    def __init__(self, task, seed=0):
        super().__init__()
        self.task, m = task, self.code_width(task)
        d = m + task.d_x + task.d_y
        self.rotation = nn.Parameter(torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(seed))).Q)
        self.parts = {"code": slice(0, m), "x": slice(m, m + task.d_x), "y": slice(m + task.d_x, d)}
        self.cfg = SimpleNamespace(n_layers=1, d_model=d, d_out=task.d_y, use_attn_result=False, n_ctx=task.seq)
        self.roles = {"context": list(range(task.n_context)), "readout": list(task.answers)}
        self.blocks = nn.ModuleList([nn.Module()])
        self.blocks[0].hook_resid_pre, self.blocks[0].hook_resid_post = HookPoint(), HookPoint()
        self.setup()

    def code_width(self, task):
        return task.n_modules

    def encode(self, code):
        return code

    def decode(self, held):
        return held

    def basis(self, part):
        return self.rotation[:, self.parts[part]]

    def answers_from(self, resid):
        modules, readout = self.task.teacher
        weights = torch.einsum("bqm,mdh->bqdh", self.decode(resid @ self.basis("code")), modules)
        return torch.relu(torch.einsum("bqd,bqdh->bqh", resid @ self.basis("x"), weights)) @ readout

    def forward(self, tokens):
        code = self.encode(tokens[..., : self.task.n_modules])
        code[:, self.roles["readout"]] = 0
        resid = code @ self.basis("code").T + tokens[..., self.task.n_modules :] @ self.basis("x").T
        return self.resume(resid, 0, tokens)

    def resume(self, resid, layer, tokens):
        if layer == 0:
            resid = self.blocks[0].hook_resid_pre(resid).clone()
            code = resid[:, self.roles["context"]].mean(1, keepdim=True) @ self.basis("code") @ self.basis("code").T
            resid[:, self.roles["readout"]] += code
            resid = self.blocks[0].hook_resid_post(self.finish(resid))
        return self.read(resid)

    def finish(self, resid):
        return resid

    def read(self, resid):
        return self.answers_from(resid)


class Entangled(Planted):
    """What is held is the code rotated by a matrix that belongs to the whole composition, and the composition's name."""

    def code_width(self, task):
        rng = torch.Generator().manual_seed(9)
        self.rotations = torch.linalg.qr(torch.randn(task.n_compositions, task.n_modules, task.n_modules, generator=rng)).Q
        return task.n_modules + task.n_compositions

    def encode(self, code):
        which = self.task.composition_of({"modules": code[:, 0]})
        turned = torch.einsum("bij,btj->bti", self.rotations[which], code)
        name = nn.functional.one_hot(which, self.task.n_compositions)[:, None].expand(-1, code.shape[1], -1)
        return torch.cat([turned, name.to(code)], dim=-1)

    def decode(self, held):
        turned, name = held.split([self.task.n_modules, self.task.n_compositions], dim=-1)
        return torch.einsum("bqc,cij,bqi->bqj", torch.softmax(20 * name, -1), self.rotations, turned)


class Copier(Planted):
    """The answer itself is written behind block 0, and read off there: nothing else is looked at."""

    def finish(self, resid):
        return resid + self.answers_from(resid) @ self.basis("y").T

    def read(self, resid):
        return resid @ self.basis("y")


class Deaf(Planted):
    """A untrained control: its answers come through another rotation than the one that the stream is written with."""

    def read(self, resid):
        return self.answers_from(resid.flip(-1))


@pytest.fixture(scope="module")
def task():
    return Shown(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=2, n_queries=3)


def planted(kind, task):
    return TrainedModel(SimpleNamespace(build=lambda: Deaf(task)), kind(task).eval(), task, Path("planted"), 0)


def measured(name, trained, **options):
    table, episodes = recipes.load_recipe("probes", name)(trained, **options)
    assert len(episodes)
    return table


def value(table, site=AT_ANSWER, **where):
    found = table[(table["site"] == site.hook_name) & (table["role"] == site.role)]
    for column, wanted in where.items():
        found = found[found[column] == wanted]
    return found["value"].item()


def pairs_of(task, split="train", n=256, seed="0/fit"):
    (episodes,) = draw(task, split, n, seed, batch=n)
    return interchange.whole_codes(task, episodes)


# ---- the formula -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["softmax", "hypernetwork"])
def test_every_interchange_equals_hooks_written_by_hand_on_the_whole_forward_pass(tiny_models, name):
    trained = load(tiny_models[name])
    model, pairs = trained.model, pairs_of(trained.task, n=12)
    points, at = sites(model), list(trained.task.answers)
    there = interchange.held(model, pairs, points)
    assert len({site.role for site in points}) == 3 + (name == "hypernetwork")
    mask = torch.rand(len(pairs.mask), 3, generator=torch.Generator().manual_seed(0)) < 0.5
    for site in points:
        d = there[site.hook_name].base.shape[-1]
        r = Subspace.random(d, 3, torch.Generator().manual_seed(1)).basis
        where = range(there[site.hook_name].base.shape[1]) if site.role == "all" else positions(model, site.role)
        _, donor = model.run_with_cache(pairs.source.tokens, names_filter=site.hook_name)

        def by_hand(change, site=site, where=where, donor=donor):
            def edit(tensor, hook):
                edited = tensor.clone()
                for p in where:
                    for i in range(len(tensor)):
                        edited[i, p] = change(i, tensor[i, p], donor[site.hook_name][i, p])
                return edited

            return model.run_with_hooks(pairs.base.tokens, fwd_hooks=[(site.hook_name, edit)])[:, at]

        def found(basis, mask=None, site=site):
            return interchange.answers_after(model, pairs, site, there[site.hook_name], basis, mask)[:, at]

        close = {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(found(None), by_hand(lambda i, b, s: s), **close)
        # low-rank rotated space, as written in pyvene: base + (rotated source - rotated base) times the rotation, transposed
        torch.testing.assert_close(found(r), by_hand(lambda i, b, s, r=r: b + (s @ r - b @ r) @ r.T), **close)
        torch.testing.assert_close(
            found(r, mask), by_hand(lambda i, b, s, r=r: b + r @ torch.diag(mask[i].float()) @ r.T @ (s - b)), **close
        )
        whole = Subspace.random(d, d, torch.Generator().manual_seed(2)).basis
        torch.testing.assert_close(found(whole), found(None), **close)
        if site.role == "all" or site.layer > 0:
            assert not torch.allclose(found(None), model(pairs.base.tokens)[:, at])


def test_bases_and_sources_have_other_inputs_and_other_codes(tiny_task):
    pairs = pairs_of(tiny_task, n=32)
    assert not (pairs.base.inputs == pairs.source.inputs).any() and torch.equal(pairs.wanted.inputs, pairs.base.inputs)
    assert torch.equal(pairs.wanted.codes["modules"], pairs.source.codes["modules"])
    assert (pairs.base.codes["modules"] != pairs.source.codes["modules"]).any(1).all()
    torch.testing.assert_close(pairs.wanted.targets, tiny_task.answer(pairs.source.codes, pairs.base.inputs))


def test_only_orthonormal_bases_are_subspaces():
    with pytest.raises(ConfigError, match=r"must be orthonormal, but R\^T R is off by 3.0e\+00; use torch.linalg.qr"):
        Subspace(2 * torch.eye(4)[:, :2])
    with pytest.raises(ConfigError, match="has from 1 to 4 coordinates, got 5"):
        Subspace(torch.zeros(4, 5))


# ---- the search ------------------------------------------------------------------------------------------------------
def learned(task, model, k=6, seed="0"):
    pairs = pairs_of(task)
    there = interchange.held(model, pairs, [AT_ANSWER])[AT_ANSWER.site]
    mask = torch.ones(len(pairs.mask), k, dtype=torch.bool)
    return interchange.learn(model, task, pairs, AT_ANSWER, there, mask, Search(steps=160), seed)


def test_the_search_finds_the_subspace_in_which_the_code_was_planted(task):
    model = Planted(task)
    before = model.rotation.clone()
    found = learned(task, model)
    cosines = torch.linalg.svdvals(found.basis.T @ model.basis("code"))
    assert cosines.min() > 0.97
    torch.testing.assert_close(found.basis.T @ found.basis, torch.eye(6), atol=1e-5, rtol=0)
    assert torch.equal(model.rotation, before) and model.rotation.grad is None, "the weights gather nothing"
    assert torch.equal(found.basis, learned(task, model).basis)
    assert not torch.equal(found.basis, learned(task, model, seed="1").basis)


def test_more_coordinates_than_the_width_are_refused(task):
    with pytest.raises(ConfigError, match="13 coordinates do not fit into the width 12 of blocks"):
        learned(task, Planted(task), k=13)


# ---- what reads a site ----------------------------------------------------------------------------------------------
def test_the_null_part_is_what_the_next_linear_map_does_not_see(tiny_models):
    model = load(tiny_models["softmax"]).model
    last = Site(2, "blocks.1.hook_resid_post", "readout")
    read = model.reader(*last)
    basis = Subspace.random(16, 5, torch.Generator().manual_seed(0)).basis
    row, null = (part.float() for part in split_by_reader(basis, read))
    torch.testing.assert_close(row + null, basis)
    torch.testing.assert_close(read @ null, torch.zeros(len(read), 5), atol=1e-6, rtol=0)
    torch.testing.assert_close(null.T @ row, torch.zeros(5, 5), atol=1e-6, rtol=0)
    x = torch.randn(7, 16, generator=torch.Generator().manual_seed(1))
    x = x - x.mean(-1, keepdim=True)
    through = model.unembed(model.ln_final(x)) - model.unembed(model.ln_final.b)
    scale = (x.square().mean(-1, keepdim=True) + model.ln_final.eps).sqrt()
    torch.testing.assert_close(through * scale, x @ read.T, rtol=1e-4, atol=1e-5)
    assert model.reader(1, "blocks.0.hook_resid_post", "readout") is None


def test_an_explicit_code_is_read_through_the_modules(tiny_models):
    trained = load(tiny_models["hypernetwork"])
    site = Site(3, "hook_code", "all")
    read = trained.model.reader(*site)
    with torch.no_grad():
        trained.model.executor.W_modules[3:] = 0  # now three of the six dimensions of the code do nothing
    row, null = (part.float() for part in split_by_reader(torch.eye(6), trained.model.reader(*site)))
    torch.testing.assert_close(row, torch.diag(torch.tensor([1.0, 1, 1, 0, 0, 0])))
    assert read.shape == (4 * 12, 6)
    pairs = pairs_of(trained.task, n=12)
    there = interchange.held(trained.model, pairs, [site])["hook_code"]
    edit = [interchange.answers_after(trained.model, pairs, site, there, torch.eye(6), into=part) for part in (row, null)]
    full = interchange.answers_after(trained.model, pairs, site, there)
    own = trained.model(pairs.base.tokens).detach()
    torch.testing.assert_close(edit[0], full)
    torch.testing.assert_close(edit[1], own)
    assert not torch.allclose(full, own)


# ---- the probes, on models whose answer is known ---------------------------------------------------------------------
def test_a_code_in_a_subspace_is_followed_although_the_whole_site_copies(task):
    table = measured("swap_code", planted(Planted, task), episodes=192, draws=4)
    where = {"split": "ood", "metric": "recovered"}
    assert value(table, rank=8, control="", **where) > 0.97
    assert value(table, rank=8, control="copied", **where) < 0.5
    assert value(table, rank=12, control="copied", **where) == pytest.approx(1)
    assert value(table, rank=12, control="", **where) < 0.5
    assert value(table, Site(0, "blocks.0.hook_resid_pre", "context"), rank=12, control="", **where) == pytest.approx(1)
    assert value(table, rank=8, control="random subspace", **where) < 0.9
    assert value(table, rank=8, split="ood", metric="lost", control="") == pytest.approx(1, abs=0.05)
    assert value(table, Site(0, "tokens", "all"), split="ood", metric="score", control="shown") == pytest.approx(1)


def test_a_code_that_stands_as_it_is_needs_no_search_and_no_placebo_moves_answers_to_it(task):
    """Behind block 0 the code's own coordinates are the readout's directions; the search finds no more than they do."""
    table = measured("swap_code", planted(Planted, task), episodes=192, draws=4)
    for split in ("test", "ood"):
        where = {"split": split, "metric": "recovered"}
        learned = value(table, rank=8, control="", **where)
        rows = table[(table["metric"] == "recovered") & (table["split"] == split) & (table["site"] == AT_ANSWER.hook_name)]
        rows = rows[(rows["role"] == AT_ANSWER.role)]
        best = rows[rows["control"] == "readout"]["value"].max()
        assert best == pytest.approx(learned, abs=0.03)
        placebo = rows[(rows["control"] == "norm-matched random") & (rows["rank"] == 8)]
        assert placebo["hi"].item() < learned - 0.1
        assert rows[rows["control"] == "random neurons"]["value"].item() < learned
        assert value(table, rank=8, control="least divergent half", **where) > 0.9


def test_an_exchange_within_the_code_is_as_natural_as_what_it_is_compared_with(task):
    """The planted code of another episode stands where natural ones do; of held-out pairs neither does."""
    table = measured("swap_code", planted(Planted, task), episodes=192, draws=4)
    rows = table[(table["metric"] == "divergence") & (table["site"] == AT_ANSWER.hook_name)]
    rows = rows[(rows["role"] == AT_ANSWER.role) & (rows["directions"] == "sensitive")].set_index(["split", "control", "rank"])
    for split in ("test", "ood"):
        edited, natural = rows["value"][split, "", 12], rows["value"][split, "natural", 0]
        assert edited == pytest.approx(natural, rel=0.25)  # a whole site exchanged is another natural state


def test_a_model_that_copies_answers_is_found_out(task):
    table = measured("swap_code", planted(Copier, task), episodes=192, draws=4)
    for rank in (2, 4, 8):
        assert value(table, rank=rank, split="test", metric="recovered", control="") < 0.8
    full = {"rank": 12, "split": "test", "metric": "recovered"}
    assert value(table, control="copied", **full) == pytest.approx(1) and value(table, control="", **full) < 0.5
    assert value(table, rank=12, split="test", metric="score", control="copied") == pytest.approx(1)


FACTOR = {"episodes": 256, "rank": 1, "draws": 4, "search_steps": 120}


def test_a_factor_with_coordinates_of_its_own_recombines(task):
    table = measured("swap_factor", planted(Planted, task), **FACTOR)
    for split in ("test", "ood"):
        where = {"metric": "score", "split": split, "factor": "all"}
        assert value(table, control="", **where) > 0.95
        for rival in ("copied", "base", "whole source", "untrained", "shuffled masks", "random coordinates"):
            assert value(table, control=rival, **where) < 0.7, rival
    each = table[(table["metric"] == "score") & (table["control"] == "") & (table["site"] == AT_ANSWER.site)]
    assert set(each["factor"]) == {"all", *(f"module {m}" for m in range(6))} and (each["value"] > 0.9).all()


def test_an_entangled_code_does_not_recombine(task):
    table = measured("swap_factor", planted(Entangled, task), **FACTOR)
    shown = value(table, Site(0, "tokens", "all"), metric="score", split="ood", control="shown")
    assert shown == pytest.approx(1), "it answers held-out compositions, but not by sharing factors"
    assert value(table, metric="score", split="ood", factor="all", control="") < 0.5


def test_recombined_compositions_decide_the_split_and_bases_are_trained_on(task):
    pairs_by_split, neither = recipes.load_recipe("probes", "swap_factor").__globals__["_pairs"](
        planted(Planted, task), 96, "s"
    )
    known = set(task.compositions("train"))
    for split, pairs in pairs_by_split.items():
        assert 0 < len(pairs.mask) <= 96 and set(pairs.wanted.composition.tolist()) <= set(task.compositions(split))
        assert set(pairs.base.composition.tolist()) | set(pairs.source.composition.tolist()) <= known
    assert 0 <= neither < 1


# ---- what does not work ----------------------------------------------------------------------------------------------
def test_too_few_episodes_say_how_many_are_needed(task):
    with pytest.raises(ConfigError, match=r"rank=2 asks for 12 coordinates and so for at least 24 pairs.*type --episodes \d+"):
        measured("swap_factor", planted(Planted, task), episodes=20, rank=2)


def test_as_many_episodes_as_are_said_to_be_needed_are_enough_nearly_always():
    check = recipes.load_recipe("probes", "swap_factor").__globals__["_check_enough"]
    rng, enough = np.random.default_rng(0), []
    for share in (0.15, 0.3, 0.6, 0.9):
        for _ in range(200):
            pairs = int(rng.binomial(20, share))
            if pairs >= 16:
                continue
            with pytest.raises(ConfigError) as refused:
                check(pairs, 8, 2, 20)
            said = int(re.search(r"type --episodes (\d+)", str(refused.value))[1])
            enough.append(rng.binomial(said, share) >= 16)
    assert len(enough) > 500 and np.mean(enough) > 0.93


def test_a_family_without_factors_does_not_apply(tiny_regression_models):
    with pytest.raises(DoesNotApply, match="names factors and not how one is exchanged"):
        measured("swap_factor", load(tiny_regression_models["plain"]), episodes=16)


def test_a_held_source_of_another_width_is_no_silent_success():
    with pytest.raises(RuntimeError):
        interchange.interchange(Held(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5)), [0])


def test_masked_values_have_no_part_in_what_an_answer_says():
    """A class whose logit is -inf in every answer changes no distance between answers."""
    logits = torch.randn(3, 5, 2, 4, generator=torch.Generator().manual_seed(0))
    masked = torch.cat([logits, torch.full((3, 5, 2, 1), -torch.inf)], -1)
    targets = torch.zeros(5, 2, dtype=torch.long)
    for plain, more in zip(*(interchange.remaining(*one, [0, 1], targets) for one in (logits, masked)), strict=True):
        torch.testing.assert_close(plain, more)
