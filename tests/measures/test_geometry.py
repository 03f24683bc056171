"""How codes are laid out: every measure against scikit-learn, a closed form or a theorem; the probe against known codes."""

import dataclasses
import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.cross_decomposition import CCA
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics import calinski_harabasz_score, silhouette_score
from sklearn.preprocessing import OneHotEncoder

from compolens import Run, recipes, tables
from compolens.activations.streams import draw, record
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.measures.geometry import (
    ClassSums,
    bins,
    centred,
    cosine_of_means,
    effective_dimension,
    factorisation_r2,
    pca,
    silhouette,
    whitened,
    within_between,
)
from compolens.models import HYLA, SoftmaxTransformer
from compolens.tasks import FuzzyLogic, SRaven
from compolens.zoo.folders import TrainedModel

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def clusters(n=240, features=5, n_classes=4, noise=1.0, seed=0):
    """Codes about a mean per class, with a large offset and unequal scales; labels; groups."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_classes, size=n)
    x = 2 * rng.normal(size=(n_classes, features))[labels] + noise * rng.normal(size=(n, features))
    return x * np.logspace(-1, 1, features) + 10, labels, rng.integers(7, size=n)


def invertible(features, seed=1):
    return np.random.default_rng(seed).normal(size=(features, features)) + 2 * np.eye(features)


# ---- cosine of means -------------------------------------------------------------------------------------------------
def test_means_of_orthogonal_clusters_have_cosine_0_and_opposite_ones_minus_1():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 3], 50)
    directions = np.array([[2.0, 0, 0], [0, 0.5, 0], [0, 0, 0], [-7, 0, 0]])
    noise = rng.normal(size=(25, 3))
    x = directions[labels] + np.tile(np.concatenate([noise, -noise]), (3, 1))
    expected = np.full((4, 4), np.nan)
    expected[np.ix_([0, 1, 3], [0, 1, 3])] = [[1, 0, -1], [0, 1, 0], [-1, 0, 1]]
    np.testing.assert_allclose(cosine_of_means(x, labels, 4), expected, **EXACT)


@pytest.mark.parametrize("about_mean", [False, True])
def test_cosines_are_those_of_the_means(about_mean):
    x, labels, _ = clusters()
    means = np.stack([x[labels == k].mean(0) for k in range(4)]) - about_mean * x.mean(0)
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    cosine = cosine_of_means(x, labels, 4, about_mean)
    np.testing.assert_allclose(cosine, unit @ unit.T, **EXACT)
    np.testing.assert_allclose(cosine_of_means(3 * x, labels, 4, about_mean), cosine, **EXACT)


def test_about_the_mean_two_balanced_classes_are_opposites_and_an_offset_changes_nothing():
    x = np.random.default_rng(0).normal(size=(40, 3)) + 5
    labels = np.arange(40) % 2
    about_mean = cosine_of_means(x, labels, 2, about_mean=True)
    np.testing.assert_allclose(about_mean, [[1, -1], [-1, 1]], **EXACT)
    assert cosine_of_means(x, labels, 2)[0, 1] > 0.9
    x, labels, _ = clusters()
    np.testing.assert_allclose(cosine_of_means(x + 100, labels, 4, True), cosine_of_means(x, labels, 4, True), **EXACT)


# ---- scatter ---------------------------------------------------------------------------------------------------------
def test_scatters_ratio_is_scikit_learns_calinski_harabasz_index():
    x, labels, _ = clusters()
    n, k = len(x), 4
    assert within_between(x, labels) == pytest.approx((n - k) / (k - 1) / calinski_harabasz_score(x, labels))


def test_scatters_ratio_is_0_for_points_and_about_n_over_classes_for_labels_that_mean_nothing():
    x, labels, _ = clusters(noise=0)
    assert within_between(x, labels) == pytest.approx(0, abs=1e-12)
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(4000, 20)), rng.integers(5, size=4000)
    assert within_between(x, labels) == pytest.approx((4000 - 5) / 4, rel=0.3)


def test_scatters_ratio_ignores_rotation_scale_offset_and_names_of_classes():
    x, labels, _ = clusters()
    rotation, _ = np.linalg.qr(invertible(5))
    moved = 0.01 * x @ rotation - 3
    assert within_between(moved, 10 - labels) == pytest.approx(within_between(x, labels))


def test_scatters_ratio_is_not_a_number_where_means_do_not_differ():
    x = np.random.default_rng(0).normal(size=(6, 2))
    assert np.isnan(within_between(x, np.zeros(6, dtype=int)))
    assert np.isnan(within_between(np.ones((6, 2)), np.arange(6) % 2))
    assert np.isnan(within_between(np.concatenate([x, x]), np.repeat([0, 1], 6)))


# ---- sums per class --------------------------------------------------------------------------------------------------
def test_sums_by_group_add_up_and_weights_resample_groups():
    x, labels, group = clusters()
    sums = ClassSums.by_group(x, labels, 4, group)
    assert sums.size.shape == (7, 4) and sums.total.shape == (7, 4, 5) and sums.square.shape == (7,)
    np.testing.assert_allclose(sums.pooled.cosine(), cosine_of_means(x, labels, 4), **EXACT)
    assert sums.pooled.within_between() == pytest.approx(within_between(x, labels))
    weight = np.array([[0, 2, 1, 0, 3, 1, 0], [1, 1, 1, 1, 1, 1, 1.0]])
    rows = np.concatenate([np.flatnonzero(group == g) for g in range(7) for _ in range(int(weight[0, g]))])
    drawn = sums.weighted(weight)
    assert drawn.within_between()[0] == pytest.approx(within_between(x[rows], labels[rows]))
    for about_mean in (False, True):
        expected = cosine_of_means(x[rows], labels[rows], 4, about_mean)
        np.testing.assert_allclose(drawn.cosine(about_mean)[0], expected, **EXACT)


def test_groups_may_have_any_numbers_and_lack_classes():
    x, labels, group = clusters()
    labels[group == 3] = 0
    sums = ClassSums.by_group(x, labels, 6, 1000 - 37 * group)
    assert sums.size.sum() == 240 and sums.size[:, 4:].sum() == 0
    assert (sums.size[3] > 0).tolist() == [True, False, False, False, False, False]
    assert np.isnan(sums.pooled.cosine()[4:]).all() and np.isfinite(sums.pooled.within_between())


# ---- silhouette ------------------------------------------------------------------------------------------------------
def test_silhouettes_are_scikit_learns():
    x, labels, _ = clusters()
    assert silhouette(x, labels) == pytest.approx(silhouette_score(x, labels))
    keep = np.sort(np.random.default_rng(4).permutation(240)[:100])
    assert silhouette(x, labels, most=100, seed=4) == pytest.approx(silhouette_score(x[keep], labels[keep]))
    assert silhouette(x, labels, 100, 4) == silhouette(x, labels, 100, 4) != silhouette(x, labels, 100, 5)


def test_silhouettes_of_tight_clusters_are_1_and_of_meaningless_labels_about_0():
    x, labels, _ = clusters(noise=1e-3)
    assert silhouette(x, labels) > 0.95
    assert abs(silhouette(x, np.random.default_rng(0).permutation(labels))) < 0.1


def test_silhouettes_are_not_numbers_without_two_classes_or_codes():
    x, labels, _ = clusters(n=20)
    for y in (np.zeros(20, dtype=int), np.arange(20)):
        assert np.isnan(silhouette(x, y))
    assert np.isnan(silhouette(np.full((20, 3), 0.1, dtype=np.float32), labels))


# ---- effective dimension ---------------------------------------------------------------------------------------------
def test_isotropic_codes_have_as_many_dimensions_as_features_and_a_line_one():
    eye = np.concatenate([np.eye(6), -np.eye(6)])
    assert effective_dimension(eye) == pytest.approx(6)
    rng = np.random.default_rng(0)
    assert effective_dimension(np.outer(rng.normal(size=50), rng.normal(size=6)) + 3) == pytest.approx(1)
    assert np.isnan(effective_dimension(np.ones((5, 3))))


@pytest.mark.parametrize("n", [200, 4])
def test_effective_dimension_is_the_participation_ratio_of_the_covariances_eigenvalues(n):
    x, _, _ = clusters(n=n, features=9)
    values = np.linalg.eigvalsh(np.cov(x.T))
    assert effective_dimension(x) == pytest.approx(values.sum() ** 2 / (values**2).sum())
    rotation, _ = np.linalg.qr(invertible(9))
    assert effective_dimension(7 * x @ rotation + 1) == pytest.approx(effective_dimension(x))


# ---- factorisation ---------------------------------------------------------------------------------------------------
def factors(n=300, seed=0):
    """Three correlated factors, of 4, 3 and 5 classes."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(4, size=n), rng.integers(3, size=n)
    return [a, b, np.where(rng.random(n) < 0.5, a, rng.integers(5, size=n))]


def effects(rng, features=6):
    return [rng.normal(size=(k, features)) for k in (4, 3, 5)]


def test_an_additive_code_is_explained_completely_and_by_no_factor_alone():
    rng, known = np.random.default_rng(0), factors()
    x = 4 + sum(effect[f] for effect, f in zip(effects(rng), known, strict=True))
    for whiten in (False, True):
        assert factorisation_r2(x, known, whiten) == pytest.approx(1, abs=1e-9)
        for f in known:
            assert 0 < factorisation_r2(x, [f], whiten) < 0.9


def test_a_product_of_factors_is_not_additive_but_is_a_function_of_their_combination():
    signs = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 10)
    x = (signs[:, :1] ^ signs[:, 1:]) * np.array([[1.0, -2.0]])
    assert factorisation_r2(x, list(signs.T)) == pytest.approx(0, abs=1e-12)
    assert factorisation_r2(x, [2 * signs[:, 0] + signs[:, 1]]) == pytest.approx(1)


@pytest.mark.parametrize("chosen", [[0], [1, 2], [0, 1, 2], [0, 0]])
def test_factorisation_is_the_r2_of_linear_regression_on_one_hots(chosen):
    rng, known = np.random.default_rng(0), factors()
    x = sum(effect[f] for effect, f in zip(effects(rng), known, strict=True)) + 2 * rng.normal(size=(300, 6))
    used = [known[i] for i in chosen]
    one_hots = OneHotEncoder(sparse_output=False).fit_transform(np.stack(used, axis=1))
    fitted = LinearRegression().fit(one_hots, x).predict(one_hots)
    expected = 1 - ((x - fitted) ** 2).sum() / ((x - x.mean(0)) ** 2).sum()
    assert factorisation_r2(x, used) == pytest.approx(expected)
    each = LinearRegression().fit(one_hots, whitened(x)).score(one_hots, whitened(x))
    assert factorisation_r2(x, used, whiten=True) == pytest.approx(each), "features of equal variance: the mean of their R²"
    assert factorisation_r2(whitened(x), used) == pytest.approx(each)


def test_one_factor_alone_is_its_share_of_scatter():
    x, labels, _ = clusters()
    assert factorisation_r2(x, [labels]) == pytest.approx(1 / (1 + within_between(x, labels)))


def test_whitened_no_invertible_linear_map_matters_raw_it_does():
    x, labels, group = clusters()
    mapped = x @ invertible(5) + 17
    for used in ([labels], [labels, group]):
        assert factorisation_r2(mapped, used, whiten=True) == pytest.approx(factorisation_r2(x, used, whiten=True))
    assert abs(factorisation_r2(mapped, [labels]) - factorisation_r2(x, [labels])) > 0.01


def test_whitened_r2_is_the_mean_squared_canonical_correlation():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=400)
    x = rng.normal(size=(3, 2))[labels] + rng.normal(size=(400, 2))
    one_hots = np.eye(3)[labels][:, :2]
    left, right = CCA(n_components=2, tol=1e-12, max_iter=5000).fit_transform(x, one_hots)
    correlations = [np.corrcoef(left[:, i], right[:, i])[0, 1] for i in range(2)]
    assert factorisation_r2(x, [labels], whiten=True) == pytest.approx(np.mean(np.square(correlations)), rel=1e-4)


def test_whitening_leaves_directions_that_vary_and_drops_the_others():
    x, _, _ = clusters(n=60)
    doubled = np.concatenate([x, 3 * x[:, :2] - x[:, 1:3], np.full((60, 1), 0.1)], axis=1)
    white = whitened(doubled)
    assert white.shape == (60, 5)
    np.testing.assert_allclose(white.T @ white, np.eye(5), **EXACT)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-12)


def test_meaningless_labels_reach_what_chance_reaches():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(500, 30)), rng.integers(8, size=500)
    for whiten in (False, True):
        assert factorisation_r2(x, [labels], whiten) == pytest.approx(7 / 499, rel=0.25)


def test_a_constant_code_is_explained_by_nothing():
    for constant in (np.zeros((9, 2)), np.full((9, 2), 0.1), np.full((9, 2), 0.1, dtype=np.float32)):
        for whiten in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # it is known beforehand
                assert np.isnan(factorisation_r2(constant, [np.arange(9) % 3], whiten))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_of_constant_features_is_no_variance(dtype):
    rng = np.random.default_rng(0)
    noisy = (3.3 * (1 + 2 * np.finfo(dtype).eps * rng.integers(-1, 2, size=(50, 4)))).astype(dtype)
    assert noisy.std() > 0 and not centred(noisy).any()
    moving = np.concatenate([noisy, rng.normal(size=(50, 1)).astype(dtype)], axis=1)
    assert centred(moving).any(0).tolist() == [False] * 4 + [True] and centred(moving).dtype == np.float64
    assert effective_dimension(moving) == pytest.approx(1)


# ---- principal axes and bins -----------------------------------------------------------------------------------------
def test_principal_axes_are_scikit_learns():
    x, _, _ = clusters(features=7)
    coordinates, share = pca(x, 3)
    reference = PCA(3, svd_solver="full").fit(x)
    expected = reference.transform(x)
    np.testing.assert_allclose(coordinates * np.sign((coordinates * expected).sum(0)), expected, **EXACT)
    np.testing.assert_allclose(share, reference.explained_variance_ratio_, **EXACT)


def test_shares_of_variance_do_not_depend_on_the_unit():
    x, _, _ = clusters(features=7)
    for unit in (1e-100, 1e-3, 1e100):
        np.testing.assert_allclose(pca(unit * x, 3)[1], pca(x, 3)[1], **EXACT)


def test_an_axis_points_to_its_largest_loading_whatever_the_order_of_the_codes():
    x, _, _ = clusters()
    coordinates, _ = pca(x)
    order = np.random.default_rng(1).permutation(len(x))
    np.testing.assert_allclose(pca(x[order])[0], coordinates[order], **EXACT)
    np.testing.assert_allclose(pca(-x)[0], -coordinates, **EXACT)
    loadings = centred(x).T @ coordinates
    assert (np.take_along_axis(loadings, np.abs(loadings).argmax(0)[None], 0) > 0).all()


def test_axes_that_do_not_exist_are_0():
    line, share = pca(np.arange(5.0)[:, None])
    np.testing.assert_allclose(line, [[-2, 0], [-1, 0], [0, 0], [1, 0], [2, 0]], **EXACT)
    assert share.tolist() == [1, 0]
    assert not pca(np.ones((3, 4)))[0].any() and not pca(np.ones((3, 4)))[1].any()


def test_bins_are_quantiles_and_ties_stay_together():
    values = np.random.default_rng(0).normal(size=1000)
    labels = bins(values)
    assert np.bincount(labels).tolist() == [250] * 4
    assert all(values[labels == k].max() < values[labels == k + 1].min() for k in range(3))
    whole = np.random.default_rng(0).integers(8, size=1000)
    assert len(set(zip(whole, bins(whole), strict=True))) == 8 and set(bins(whole)) == {0, 1, 2, 3}
    assert set(bins(np.ones(5))) == {0}
    for share in (1, 5, 9):
        assert bins(np.repeat([-3.0, 2.0], [share, 10 - share])).tolist() == [0] * share + [1] * (10 - share)


# ---- the probe -------------------------------------------------------------------------------------------------------
SIZES = {"n_layers": 2, "d_model": 16, "d_head": 4, "d_value": 4, "d_mlp": 16}
SRAVEN, FUZZY = SRaven(n_features=2), FuzzyLogic(length=8)
EPISODES = 120
SCALARS = {"silhouette", "within/between", "factorisation R²", "factorisation R², whitened"}
PROBE = recipes.load_recipe("probes", "latent_geometry")


def randomly(architecture, task, heads=4):
    """A model whose weights were moved a little from where they started: its untrained control is another model."""
    run = Run(architecture(**SIZES, n_heads=heads, n_ctx=task.seq), task, steps=0)
    model, rng = run.build().eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=rng))
    return TrainedModel(run, model, task, Path("moved"), 0)


@pytest.fixture(scope="module", params=["S-RAVEN", "fuzzy logic"])
def measured(request):
    """A moved model, its table and its rows per episode."""
    trained = randomly(HYLA, SRAVEN) if request.param == "S-RAVEN" else randomly(SoftmaxTransformer, FUZZY)
    return trained, *PROBE(trained, episodes=EPISODES, points=50)


def where(table, **values):
    for column, value in values.items():
        table = table[table[column] == value]
    assert len(table), values
    return table


def readouts_of(task, split="ood"):
    (batch,) = draw(task, split, EPISODES, f"0/{split}")
    return batch, task.readouts(batch)


def test_a_table_covers_every_layer_capture_split_label_confound_and_control(measured):
    trained, table, _ = measured
    _, readouts = readouts_of(trained.task)
    by = {*readouts.labels, *readouts.confounds}
    together = {"labels and confounds", "composition"} | ({"all labels"} if len(readouts.labels) > 1 else set())
    read = {(layer, capture) for layer in (0, 1) for capture in readouts.pairs}
    for split in ("test", "ood"):
        for control in ("", "untrained", "shuffled"):
            for metric in SCALARS:
                part = where(table, metric=metric, split=split, control=control)
                assert set(zip(part["layer"], part["role"], strict=True)) == read
                assert set(part["by"]) == (by | together if metric.startswith("factorisation") else by)
                assert not part.duplicated(["layer", "role", "by"]).any()
        for raw in readouts.inputs:
            part = where(table, split=split, control=raw)
            assert set(part["metric"]) == SCALARS | {"effective dimension"} and set(part["layer"]) == {-1}
    assert set(tables.COLUMNS) <= set(table.columns) and (table["n"] > 0).all()


def test_values_are_numbers_unless_nothing_varies_and_intervals_are_about_them(measured):
    _, table, _ = measured
    missing = table["value"].isna()
    assert table["note"].ne("").equals(missing) and table.loc[missing, "note"].str.startswith("not available: ").all()
    assert missing[table["metric"] != "pca"].mean() < 0.2
    bounded = table[~missing & table["metric"].isin(["within/between", "cosine", "cosine about the mean"])]
    bounded = bounded.dropna(subset=["lo", "hi"])
    assert set(bounded["metric"]) == {"within/between", "cosine", "cosine about the mean"}
    assert ((bounded["lo"] - 1e-9 <= bounded["value"]) & (bounded["value"] <= bounded["hi"] + 1e-9)).all()
    shares = table[table["metric"].str.startswith("factorisation") & ~missing]["value"]
    assert shares.between(0, 1 + 1e-9).all()


def test_only_a_code_that_cannot_vary_is_not_available(measured):
    """The S-RAVEN answers' tokens are 0, so that HYLA's first layer treats them alike whatever the episode."""
    trained, table, _ = measured
    missing = table[table["value"].isna()]
    if trained.task == SRAVEN:
        assert set(zip(missing["layer"], missing["role"], strict=True)) == {(0, "self")}
    else:
        assert missing.empty


def test_rows_are_the_measures_of_the_codes_at_the_named_pairs(measured):
    trained, table, _ = measured
    batch, readouts = readouts_of(trained.task)
    (seen,) = record(trained.model, [batch], ["blocks.1.attn.hook_code"])
    code = seen.sites["blocks.1.attn.hook_code"]
    count = next(iter(readouts.labels.values())).shape[1]
    group = np.repeat(batch.composition.numpy(), count)
    for capture, pairs in readouts.pairs.items():
        rows = [[torch.cat([code[b, q, k] for q, k in pairs[b, a].tolist()]) for a in range(count)] for b in range(EPISODES)]
        x = torch.stack([row for part in rows for row in part]).numpy()
        at = where(table, layer=1, role=capture, split="ood", control="")
        assert where(at, metric="effective dimension")["value"].item() == pytest.approx(effective_dimension(x))
        labelled = {**readouts.labels, **readouts.confounds}
        known = {
            name: y.flatten().numpy() if name in readouts.labels else bins(y.flatten().numpy()) for name, y in labelled.items()
        }
        for by, y in known.items():
            found = where(at, by=by).set_index("metric")["value"]
            assert found["silhouette"] == pytest.approx(silhouette(x, y, 1000))
            assert found["within/between"] == pytest.approx(within_between(x, y))
            assert found["factorisation R²"] == pytest.approx(factorisation_r2(x, [y]))
            assert found["factorisation R², whitened"] == pytest.approx(factorisation_r2(x, [y], whiten=True))
        for by, used in {"labels and confounds": list(known.values()), "composition": [group]}.items():
            assert where(at, by=by, metric="factorisation R²")["value"].item() == pytest.approx(factorisation_r2(x, used))
        label, names = next(iter(readouts.classes.items()))
        expected = cosine_of_means(x, known[label], len(names))
        pairs_of_classes = where(at, metric="cosine", by=label)
        present = np.flatnonzero(~np.isnan(np.diag(expected)))
        square = pairs_of_classes.pivot_table(index="class", columns="other", values="value")
        order = pairs_of_classes["class"].unique()
        np.testing.assert_allclose(square.loc[order, order], expected[np.ix_(present, present)], atol=1e-6)


def test_cosines_stand_beside_the_untrained_controls(measured):
    _, table, _ = measured
    keys = ["split", "layer", "role", "by", "class", "other"]
    for metric in ("cosine", "cosine about the mean"):
        own, untrained = (where(table, metric=metric, control=c).set_index(keys) for c in ("", "untrained"))
        assert own.index.is_unique and own.index.equals(untrained.index)
        assert not np.allclose(own["value"].dropna(), untrained["value"].dropna())
        mirrored = own["value"].swaplevel("class", "other").reindex(own.index)
        np.testing.assert_allclose(own["value"], mirrored, atol=1e-12)


def test_maps_show_the_same_points_at_every_layer_with_what_is_known_of_them(measured):
    trained, table, _ = measured
    _, readouts = readouts_of(trained.task)
    shown = where(table, metric="pca")
    assert set(shown["split"]) == {"ood"} and set(shown["control"]) == {"", "untrained"}
    points = None
    for _, part in shown.groupby(["layer", "role", "control"]):
        assert len(part) == 50 and part["point"].is_unique and part[["x", "y"]].notna().all(axis=None)
        varies = part["note"].eq("").all()
        assert (
            part["value"].between(0, 1).all() if varies else part["value"].isna().all() and (part[["x", "y"]] == 0).all(None)
        )
        assert len(set(part["value"].fillna(-1))) == 1
        points = part["point"].tolist() if points is None else points
        assert part["point"].tolist() == points
        for name, y in readouts.labels.items():
            names = [readouts.classes[name][k] for k in y.flatten()[points]]
            assert all(told.endswith(name) for told, name in zip(part[f"label.{name}"], names, strict=True))
        for name, y in readouts.confounds.items():
            np.testing.assert_allclose(part[f"confound.{name}"], y.flatten()[points], rtol=1e-3)
    assert len(shown.groupby(["layer", "role", "control"])) == 2 * 2 * len(readouts.pairs)


def test_coordinates_are_those_of_all_codes_to_four_digits(measured):
    trained, table, _ = measured
    batch, readouts = readouts_of(trained.task)
    pairs = readouts.pairs["self"]
    (seen,) = record(trained.model, [batch], ["blocks.1.attn.hook_code"])
    code = seen.sites["blocks.1.attn.hook_code"]
    x = torch.stack([code[b, q, k] for b in range(EPISODES) for q, k in pairs[b, :, 0].tolist()]).numpy()
    part = where(table, metric="pca", layer=1, role="self", control="")
    coordinates, share = pca(x)
    np.testing.assert_allclose(part[["x", "y"]], coordinates[part["point"].astype(int)], rtol=1e-3)
    assert part["value"].iloc[0] == pytest.approx(share.sum(), abs=1e-4)


def test_a_table_reads_back_as_written(measured, tmp_path):
    _, table, seen = measured
    tables.save(tmp_path, "latent_geometry", table, {"weights": "", "recipe": ""}, seen)
    with pytest.warns(tables.StaleTable):
        back = tables.read(tmp_path, "latent_geometry")
    text = ["metric", "control", "by", "class", "other", *(c for c in table if c.startswith("label."))]
    pd.testing.assert_frame_equal(
        back[text].fillna("").astype(object), table[text].fillna("").astype(object), check_dtype=False
    )
    np.testing.assert_allclose(back["value"], table["value"], rtol=1e-5)
    np.testing.assert_allclose(back[["x", "y"]], table[["x", "y"]], rtol=1e-9)


def test_every_episode_is_left_with_its_place_composition_label_and_score(measured):
    trained, _, seen = measured
    task = trained.task
    for split, part in seen.groupby("split"):
        batch, readouts = readouts_of(task, split)
        count = next(iter(readouts.labels.values())).shape[1]
        assert len(part) == EPISODES * count
        names = [task.composition_name(c) for c in batch.composition.tolist()]
        assert part["composition"].tolist() == np.repeat(names, count).tolist()
        error, weight = task.errors(trained.model(batch.tokens).detach(), batch.targets)
        np.testing.assert_allclose(part["score"], np.repeat((1 - error / weight).numpy(), count), rtol=1e-4, atol=1e-6)
        assert {f"label.{name}" for name in readouts.labels} <= set(part.columns)
    assert set(seen["split"]) == {"test", "ood"} and (seen["layer"] == 1).all() and (seen["role"] == "self").all()
    assert np.isfinite(seen[["x", "y"]]).all(axis=None)


def test_equal_seeds_give_equal_tables_and_other_seeds_other_ones(measured):
    trained, table, seen = measured
    again, seen_again = PROBE(trained, episodes=EPISODES, points=50)
    pd.testing.assert_frame_equal(table, again)
    pd.testing.assert_frame_equal(seen, seen_again)
    other, _ = PROBE(trained, episodes=EPISODES, points=50, seed=1)
    assert table["value"].tolist() != other["value"].tolist()


# ---- codes that are known --------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Telling(SRaven):
    """Remembers the episodes it drew last, so that a hook can be told."""

    def sample(self, *arguments, **keywords):
        episodes = super().sample(*arguments, **keywords)
        self.__dict__["last"] = episodes
        return episodes


def told(what):
    """A model whose second layer's code, wherever an answer attends, is one head switched on: by rule, or by target value."""
    task = Telling(n_features=2)
    trained = randomly(HYLA, task, heads=8)
    model, answers = trained.model, list(task.answers)

    def tell(code, hook):
        code = code.clone()
        code[:, answers] = torch.nn.functional.one_hot(what(task.last, answers), 8).to(code.dtype)[:, :, None]
        return code

    model.add_hook("blocks.1.attn.hook_code", tell, is_permanent=True)
    return PROBE(dataclasses.replace(trained, model=model), episodes=200, points=30)[0]


def at_told(table, metric, by, **more):
    return where(table, metric=metric, by=by, layer=1, role="self", **more)["value"].to_numpy()


def test_a_code_that_is_the_rule_is_laid_out_by_rule_and_not_by_magnitude():
    table = told(lambda episodes, answers: episodes.codes["response_rules"])
    own = {"control": ""}
    np.testing.assert_allclose(at_told(table, "silhouette", "rule", **own), 1, atol=1e-6)
    assert (at_told(table, "silhouette", "operand magnitude", **own) < 0.1).all()
    np.testing.assert_allclose(at_told(table, "within/between", "rule", **own), 0, atol=1e-9)
    for metric in ("factorisation R²", "factorisation R², whitened"):
        np.testing.assert_allclose(at_told(table, metric, "rule", **own), 1, atol=1e-9)
        assert (at_told(table, metric, "operand magnitude", **own) < 0.2).all()
        assert (at_told(table, metric, "rule", control="untrained") < 0.3).all()
        assert (at_told(table, metric, "rule", control="shuffled") < 0.1).all()
    assert (np.abs(at_told(table, "silhouette", "rule", control="shuffled")) < 0.3).all()
    apart = table[table["class"] != table["other"]]
    np.testing.assert_allclose(at_told(apart, "cosine", "rule", **own), 0, atol=1e-6)
    assert at_told(apart, "cosine about the mean", "rule", **own).mean() < -0.1


def test_a_code_that_is_the_target_value_is_laid_out_by_value_and_not_by_rule():
    table = told(lambda episodes, answers: episodes.targets[:, answers])
    own = {"control": ""}
    by_value, by_rule = (at_told(table, "factorisation R²", by, **own) for by in ("target value", "rule"))
    assert (by_value > 0.3).all() and (by_rule < 0.1).all()
    assert (at_told(table, "silhouette", "target value", **own) > at_told(table, "silhouette", "rule", **own) + 0.2).all()
    assert (at_told(table, "cosine", "rule", **own) > 0.3).all()


# ---- options ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def small():
    return randomly(HYLA, SRAVEN)


def test_t_sne_maps_are_drawn_when_asked_for_and_are_reproducible(small):
    one, again = (PROBE(small, episodes=40, points=24, tsne=True)[0] for _ in range(2))
    part = where(one, metric="tsne")
    assert part[["x", "y"]].notna().all(axis=None) and part["value"].dropna().between(0, 1).all()
    assert set(part["control"]) == {"", "untrained"} and (part.groupby(["layer", "role", "control"]).size() == 24).all()
    pd.testing.assert_frame_equal(part, where(again, metric="tsne"))
    assert "tsne" not in set(PROBE(small, episodes=40, points=24)[0]["metric"])


def test_umap_names_the_package_that_is_missing(small, monkeypatch):
    if importlib.util.find_spec("umap") is None:
        with pytest.raises(ConfigError, match="pip install umap-learn"):
            PROBE(small, episodes=8, umap=True)
    else:
        assert "umap" in set(PROBE(small, episodes=40, points=24, umap=True)[0]["metric"])


def test_maps_may_be_left_out_and_points_are_as_many_as_there_are(small):
    assert "point" not in PROBE(small, episodes=20, points=0)[0]
    assert where(PROBE(small, episodes=20)[0], metric="pca", layer=1, role="self", control="")["point"].nunique() == 40
    with pytest.raises(ConfigError, match="points must be 0 or more, got -1"):
        PROBE(small, points=-1)


def test_variants_are_shown_and_unknown_ones_named(small):
    table, _ = PROBE(small, episodes=40, points=5, variant="unpermuted")
    assert table["value"].tolist() != PROBE(small, episodes=40, points=5)[0]["value"].tolist()
    with pytest.raises(ConfigError, match=r"SRaven has no variant 'sideways'; it has \['unpermuted'\]"):
        PROBE(small, variant="sideways")


def test_a_confound_that_a_variant_fixes_is_not_available():
    trained = randomly(SoftmaxTransformer, FUZZY)
    table, _ = PROBE(trained, episodes=60, points=0, variant="fixed query")
    part = where(table, by="largest query input", metric="silhouette")
    assert part["value"].isna().all() and part["note"].str.startswith("not available: ").all()
    assert where(table, by="term 1", metric="silhouette", control="")["value"].notna().all()


def test_families_without_categorical_codes_say_so(tiny_task):
    run = Run(SoftmaxTransformer(n_layers=2, d_model=16, n_heads=2), tiny_task, steps=0)
    with pytest.raises(DoesNotApply, match="Hyperteacher has no categorical code to read"):
        PROBE(TrainedModel(run, run.build().eval(), tiny_task, Path("none"), 0), episodes=8)
