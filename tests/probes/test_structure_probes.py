"""What the erasure and the structure of codes say about models whose code is known, because it was written into them."""

import numpy as np
import pytest
import torch

from compolens import recipes
from compolens.activations.sites import positions, sites
from compolens.activations.streams import draw, intervene
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.measures.erasure import Eraser
from compolens.measures.intervals import Replicates, Scale, student_interval, summarise
from compolens.zoo.folders import load

ERASE, STRUCTURE = (recipes.load_recipe("probes", name) for name in ("erase_code", "code_structure"))


def inside(probe, name):
    return probe.__globals__[name]


@pytest.fixture(scope="module")
def trained(tiny_models):
    return load(tiny_models["hypernetwork"])


@pytest.fixture(scope="module")
def erased(trained):
    return ERASE(trained, episodes=64, seed=1, draws=3)


def pick(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table), where
    return table


# ---- erasure ---------------------------------------------------------------------------------------------------------
def test_resuming_after_the_first_erasure_is_running_it_all(trained):
    model, spots = trained.model, sites(trained.model)
    fitted, _ = inside(ERASE, "_moments")(trained, model, spots, 48, "fit")
    plan = inside(ERASE, "_plan")(spots, {site: Eraser.from_moments(moments) for site, moments in fitted.items()})
    (batch,) = draw(trained.task, "ood", 10, 0)
    plain, own = inside(ERASE, "_run")(model, batch, {}, spots, {})
    assert torch.equal(plain, model(batch.tokens)) and set(own) == {site.hook_name for site in spots}
    changed = 0
    for (site, _), erasers in plan.items():
        edits = {p.hook_name: _by_hand(model, p, eraser) for p, eraser in erasers.items()}
        prediction, seen = inside(ERASE, "_run")(model, batch, erasers, spots, own)
        assert torch.allclose(prediction, intervene(model, batch, edits), atol=1e-6)
        changed += int(not torch.allclose(prediction, plain, atol=1e-6))
        if site is not None:
            assert torch.allclose(seen[site.hook_name], edits[site.hook_name](own[site.hook_name]), atol=1e-6)
    assert changed > len(plan) / 2
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def _by_hand(model, site, eraser):
    def edit(activation):
        edited = activation.clone()
        for p in (
            range(activation.shape[1])[positions(model, site.role)] if site.role == "all" else positions(model, site.role)
        ):
            edited[:, p] = eraser(activation[:, p])
        return edited

    return edit


def test_from_here_on_takes_every_later_site_of_the_role(trained):
    spots = sites(trained.model)
    plan = inside(ERASE, "_plan")(spots, dict.fromkeys(spots))
    chains = {(site.layer, site.role): list(chain) for (site, scope), chain in plan.items() if scope == "from here on"}
    assert {(p.layer, p.role) for p in chains[0, "context"]} == {(0, "context"), (1, "context")}
    assert {(p.layer, p.role) for p in chains[1, "readout"]} == {(1, "readout"), (2, "readout")}
    both = {(p.layer, p.role) for p in chains[0, "context+readout"]}
    assert both == {(0, "context+readout"), (1, "context+readout"), (2, "readout")}
    assert not any(role == "all" for _, role in chains)


def test_the_code_is_gone_where_it_was_erased_and_the_drop_is_the_difference(erased):
    table, frame = erased
    own = table[table["control"] == ""]
    here = pick(own, metric="r2 here")
    assert pick(here, scope="one layer")["value"].max() < 0.1 < pick(here, scope="nothing", split="test")["value"].max()
    scores, drops = (
        pick(own, metric=metric, scope="one layer").set_index(["split", "layer", "role"]) for metric in ("score", "drop")
    )
    np.testing.assert_allclose(drops["value"], scores["unedited"] - scores["value"], atol=1e-9)
    assert (drops["lo"] <= drops["value"]).all() and (drops["value"] <= drops["hi"]).all()
    for split in ("test", "ood"):
        chosen = pick(frame, split=split).iloc[0]
        assert len(pick(scores.reset_index(), split=split, role=chosen["role"], site=chosen["site"])) == 1


def test_random_subspaces_of_every_kind_and_shuffled_codes_stand_beside_it(erased):
    table, _ = erased
    random = table[table["control"].str.startswith("random")]
    assert set(random["control"]) == {"random orthogonal", "random whitened", "random variance-matched"}
    assert (random["lo"] <= random["value"]).all() and (random["draws"] == 3).all()
    sites = random[["site", "role"]].drop_duplicates()
    assert 1 <= len(sites) <= 2
    rank = (
        table[table["control"] == ""].dropna(subset=["rank"]).set_index(["site", "role"])["rank"].groupby(level=[0, 1]).first()
    )
    assert all(rank[site, role] == part["rank"].iloc[0] for (site, role), part in random.groupby(["site", "role"]))
    shuffled = pick(table, control="shuffled codes", metric="drop", scope="one layer", split="test")
    assert len(shuffled) == len(sites_of(table))


def sites_of(table):
    return table[(table["control"] == "") & (table["scope"] == "one layer")][["site", "role"]].drop_duplicates()


def test_erasing_an_explicit_code_leaves_no_more_than_its_mean(trained, erased):
    """With d_code = 6 numbers and 6 modules, nothing of the code is left: every answer is that of the mean code."""
    table, _ = erased
    model = trained.model
    (train,) = draw(trained.task, "train", 64, "1/fit")
    (test,) = draw(trained.task, "test", 64, "1/score")
    mean = model.run_with_cache(train.tokens)[1]["hook_code"].mean(0, keepdim=True)
    prediction = intervene(model, test, {"hook_code": lambda code: mean.expand_as(code)})
    score = trained.task.score(prediction, test.targets)
    row = pick(table, metric="score", site="hook_code", control="", split="test", scope="one layer")
    assert row["rank"].item() == 6 and row["value"].item() == pytest.approx(score, abs=1e-4)


def test_no_random_subspace_is_an_error(trained):
    with pytest.raises(ConfigError, match="at least one random subspace of each kind, got 0"):
        ERASE(trained, episodes=8, draws=0)


@pytest.mark.parametrize("probe", [ERASE, STRUCTURE])
def test_a_family_without_factors_does_not_apply(tiny_regression_models, probe):
    with pytest.raises(DoesNotApply, match="does not say which factors its codes are made of"):
        probe(load(tiny_regression_models["plain"]), episodes=8)


# ---- structure -------------------------------------------------------------------------------------------------------
def planted(compositions, episodes=40, interaction=0.0, seed=0):
    """Codes z @ B + noise of episodes in which two of 6 modules are active, with an added product of the two."""
    rng, sample, where = (
        np.random.default_rng(seed),
        inside(STRUCTURE, "Sample"),
        inside(STRUCTURE, "Site")(0, "site", "context"),
    )
    basis, product = np.random.default_rng(5).standard_normal((2, 36, 12))
    z, x, which = [], [], []
    for number, pair in compositions:
        code = np.zeros((episodes, 6))
        code[:, pair] = rng.uniform(0.5, 1, (episodes, 2))
        z.append(code)
        x.append(code @ basis[:6] + interaction * product[number] * code[:, pair].prod(1, keepdims=True))
        which += [number] * episodes
    x = np.concatenate(x)
    factors = {f"module {m}": np.concatenate(z)[:, m : m + 1] for m in range(6)}
    return sample({where: x + 0.05 * rng.standard_normal(x.shape)}, factors, np.array(which)), where


PAIRS = [(i, [a, b]) for i, (a, b) in enumerate((a, b) for a in range(6) for b in range(a + 1, 6))]


@pytest.mark.parametrize(("interaction", "low", "high"), [(0.0, 0.98, 1.0), (3.0, -5.0, 0.5)])
def test_additivity_holds_on_new_compositions_just_where_parts_add_up(interaction, low, high):
    seen, new = [pair for pair in PAIRS if pair[0] % 3], [pair for pair in PAIRS if not pair[0] % 3]
    fit, where = planted(seen, interaction=interaction)
    scored = {
        "test": planted(seen, interaction=interaction, seed=1)[0],
        "ood": planted(new, interaction=interaction, seed=2)[0],
    }
    rows = inside(STRUCTURE, "_rows")(where, fit, scored, "")
    found = {(r["metric"], r["split"], r["control"]): r for r in rows}
    ood = found["additivity", "ood", ""]
    assert low <= ood["value"] <= high and ood["lo"] <= ood["value"] <= ood["hi"]
    assert found["additivity", "ood", "other half"]["value"] > 0.9  # what is not additive is there all the same
    assert (found["factorisation r2", "test", ""]["value"] > 0.98) == (interaction == 0)
    others, own = (found["left out", "train", control] for control in ("", "own composition"))
    assert low <= others["value"] <= high and others["lo"] <= others["value"] <= others["hi"]
    assert own["value"] > 0.9


def test_parts_in_a_random_basis_lie_as_random_directions_do():
    fit, where = planted(PAIRS)
    rows = inside(STRUCTURE, "_rows")(where, fit, {"test": fit}, "")
    found = {(r["metric"], r["control"]): r for r in rows if r["split"] == "train"}
    chance = found["factor cosine", "random"]
    assert chance["value"] == pytest.approx((2 / (np.pi * 12)) ** 0.5, rel=0.06)
    assert chance["lo"] < found["factor cosine", ""]["value"] < chance["hi"]
    assert found["overlap", "random"]["value"] == pytest.approx(6 / 12, abs=0.02)
    assert found["overlap", ""]["value"] > 0.97  # noise alike in every direction: what is written is what is read


def test_shuffled_codes_explain_no_more_than_their_degrees_of_freedom(trained):
    table, frame = STRUCTURE(trained, episodes=200, seed=3)
    shuffled = pick(table, control="shuffled codes", metric="factorisation r2")
    assert shuffled["value"].max() < 3 * 6 / 199
    raw = pick(table, control="raw input", metric="factorisation r2")
    assert raw["value"].min() > 5 * 6 / 199
    assert {"untrained", "raw input", "random", "other half"} <= set(table["control"]) and len(frame) > 400


def test_many_projections_at_once_are_each_of_them_alone(trained):
    site = next(p for p in sites(trained.model) if (p.layer, p.role) == (1, "context"))
    (batch,) = draw(trained.task, "test", 100, 0)
    mean, projections = torch.randn(16).double(), torch.randn(5, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    together = inside(ERASE, "_with_each")(trained.task, trained.model, batch, site, mean, projections)
    for projection, total in zip(projections, together.T, strict=True):
        edit = _by_hand(trained.model, site, Eraser(mean, projection))
        error, weight = trained.task.errors(intervene(trained.model, batch, {site.hook_name: edit}), batch.targets)
        np.testing.assert_allclose(total, [float(error.sum()), float(weight.sum())], rtol=1e-5)
    assert np.ptp(together[0]) > 0.01 * together[0].mean()


@pytest.mark.parametrize(("compositions", "noise"), [(4, 1.0), (6, 0.3), (10, 1.0)])
def test_intervals_of_additivity_cover_where_compositions_are_few(compositions, noise):
    """Percentiles over so few compositions cover the R² of all of them in .31 to .68 of cases."""
    bounded, rng, kept = inside(STRUCTURE, "_bounded"), np.random.default_rng(0), []
    for _ in range(200):
        fitted = rng.standard_normal((compositions, 8))
        means = fitted + noise * rng.standard_normal((compositions, 8))
        lack = noise**2 / (1 + noise**2) * compositions / (compositions - 1)  # the mean of few takes a part of the spread
        _, lo, hi = bounded(means, fitted)
        kept.append(lo <= 1 - lack <= hi)
    assert np.mean(kept) > 0.88


def test_a_share_of_squared_errors_has_the_interval_of_a_score():
    share, rng = inside(STRUCTURE, "_share"), np.random.default_rng(1)
    error, total = rng.gamma(2.0, size=12), rng.gamma(8.0, size=12)
    found = summarise(error, total, np.arange(12))
    left = np.array([1 - np.delete(error, i).sum() / np.delete(total, i).sum() for i in range(12)])
    expected = student_interval(found.score, left, 12, Scale.LOG_LACK, Replicates.JACKKNIFE)
    assert share(error, total) == pytest.approx((found.score, *expected))
