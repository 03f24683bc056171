"""The claims about learners of in-context regression, drawn from tables whose numbers are known."""

import itertools

import handmade
import numpy as np
import pytest
from handmade import analyze, marks, write

from compolens import Run, recipes
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import ConfigError
from compolens.models import (
    AugmentedSelfAttention,
    ConstructedGradientDescent,
    LinearSelfAttention,
    ModifiedTransformer,
    NegativeSamples,
    NegativeSampleSelfAttention,
    RegularizedSelfAttention,
    SoftmaxSelfAttention,
    SoftmaxTransformer,
)
from compolens.tasks import LinearRegression

TASK = LinearRegression.von_oswald(d_x=2)
CLAIMS = ("which_learner", "newton_or_gradient", "layers_are_gradient_steps", "weights_have_structure")


def save(folder, name, rows):
    handmade.save(folder, name, rows, site="output", split="test", note="")


def agreeing(folder, own, shift=0.0):
    """gd_equivalence: `own` is the model's value by reference; references i and j have 0.9 - 0.1 |i - j|; losses by scale."""
    rows = []
    for metric, split in itertools.product(("sensitivity cosine", "SPD"), ("test", "ood")):
        known = {"metric": metric, "split": split, "curve": "none"}
        more = -0.05 * (split == "ood")
        for reference, value in own.items():
            for control, number in {"": value + shift + more, "untrained": 0.1, "shuffled": 0.2}.items():
                rows.append(known | {"control": control, "learner": "model", "reference": reference, "value": number})
        for (i, a), (j, b) in itertools.product(enumerate(own), enumerate(own)):
            alike = 1.0 if i == j else 0.9 - 0.1 * abs(i - j)
            between = alike if metric == "sensitivity cosine" else 1 - alike
            rows.append(known | {"control": "reference", "learner": a, "reference": b, "value": between})
    for curve, scale in itertools.product(("input scale", "teacher scale", "unseen inputs"), (2.0, 1.0)):
        losses = {("", "model"): 0.1 * 10**shift, ("untrained", "model"): 1.0}
        losses |= {("reference", "GD, 2 steps"): 0.01, ("reference", "GD++, 2 steps"): 1e9, ("reference", "GD, 1 step"): 5.0}
        for (control, learner), value in losses.items():
            known = {"metric": "loss", "curve": curve, "scale": scale, "control": control, "learner": learner}
            rows.append(known | {"reference": "none", "value": value * scale})
    save(folder, "gd_equivalence", rows)


def stepping(folder, best, edge=None, shift=0):
    """algorithm_steps: `best` step by layer for every algorithm; similarity falls by 0.1 per octave from it."""
    rows = []
    steps = (1, 2, 3, 4, 8, 16, 23, 32)
    for algorithm, control in itertools.product(("Newton", "GD", "GD, tuned rate", "GD++"), ("", "untrained")):
        known = {"algorithm": algorithm, "control": control}
        for layer, step in enumerate(best, start=1):
            step = 1 if control else step * 2**shift
            note = "at the edge of what was looked at" if layer == edge and not control else ""
            where = known | {"layer": layer, "note": note}
            rows.append(where | {"metric": "best step", "value": step, "lo": step / 2, "hi": step * 2, "algorithm_step": step})
            rows.append(where | {"metric": "best level", "value": 0.8 + layer / 100})
            for k in steps:
                rows.append(where | {"metric": "similarity", "value": 0.9 - 0.1 * abs(np.log2(k / step)), "algorithm_step": k})
        for metric, value in {"linear R²": 0.25, "exponential R²": 0.75}.items():
            many = len(best) > 2
            rows.append(
                known
                | {"metric": metric, "layer": -1, "value": value if many else np.nan, "n": len(best) - (edge is not None)}
            )
    save(folder, "algorithm_steps", rows)


def structured(folder, layers, heads, factor=1):
    """weight_structure: KQ of layer l and head h is diagonal, (2 l + h + 1) times the factor; statistics are known."""
    rows = []
    for layer in range(layers):
        for head in range(heads):
            where = {"layer": layer, "head": str(head), "role": "weights", "split": "none"}
            for metric, i, j in itertools.product(("KQ entry", "OV entry"), range(3), range(3)):
                value = (i == j) * (i < 2) * (2 * layer + head + 1) * factor if metric == "KQ entry" else -4.0 * (i == j == 2)
                rows.append(where | {"metric": metric, "row": i, "column": j, "value": value, "control": ""})
            for control, value in {"": 0.0, "untrained": 10.0}.items():
                rows.append(where | {"metric": "KQ off-diagonal", "value": value, "control": control})
            for control, value in {"": 0.99, "untrained": 0.2, "chance": 0.3}.items():
                rows.append(where | {"metric": "KQ cosine to inverse Gamma", "value": value, "control": control})
        for control in ("", "untrained"):
            rows.append(where | {"head": "all", "metric": "eta", "value": layer + 5.0 * (control == ""), "control": control})
    rows.append({"metric": "loss", "value": 0.2, "layer": -1, "head": "all", "control": ""})
    save(folder, "weight_structure", [{"row": -1, "column": -1} | row for row in rows])


OWN = {"3 nearest neighbours": 0.1, "ridge, l2 0.1": 0.7, "Newton, 3 steps": 0.6, "GD++, 2 steps": 0.95, "GD, 2 steps": 0.8}
OWN |= {"GD, 1 step": 0.5}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two seeds of two layers of linear attention, and a constructed model, all measured."""
    root, folders = tmp_path_factory.mktemp("regression"), []
    for seed in range(2):
        folders.append(write(root / f"linear-{seed}", Run(LinearSelfAttention(n_layers=2), TASK, steps=2, init_seed=seed)))
        agreeing(folders[-1], OWN, shift=0.02 * seed)
        stepping(folders[-1], (2, 8), edge=2 if seed else None, shift=seed)
        structured(folders[-1], 2, 1)
    folders.append(write(root / "built", Run(ConstructedGradientDescent(n_layers=2, eta=6.0), TASK, steps=0)))
    agreeing(folders[-1], OWN | {"GD, 2 steps": 0.99})
    stepping(folders[-1], (1, 4))
    structured(folders[-1], 2, 1)
    return folders


def panel(drawing, title):
    (found,) = [p for p in drawing.panels if p.title == title]
    return found


@pytest.mark.parametrize("name", CLAIMS)
def test_a_missing_table_names_the_command(tmp_path, name):
    folder = write(tmp_path / "bare", Run(LinearSelfAttention(n_layers=2), TASK))
    needs = recipes.load_file(built_in("analyses")[name]).needs
    with pytest.raises(ConfigError, match=f"compolens probe {needs[0]} .*bare"):
        analyze(name, [folder])


@pytest.mark.parametrize("name", CLAIMS)
def test_it_can_be_rendered_and_says_that_few_seeds_prove_nothing(measured, name):
    drawing = analyze(name, measured[::2])
    assert "5 seeds" in drawing.caption and len(drawing.plotly().data)
    if name == "newton_or_gradient":
        assert drawing.matplotlib("page").axes


# ---- which learner ---------------------------------------------------------------------------------------------------
def test_models_and_their_floor_share_columns_and_colours(measured):
    own, floor, _ = (p.marks[0] for p in analyze("which_learner", measured).panels)
    values, columns, rows = own.grid()
    assert columns == [
        "GD, 1 step",
        "GD, 2 steps",
        "GD++, 2 steps",
        "Newton, 3 steps",
        "ridge, l2 0.1",
        "3 nearest neighbours",
    ]
    assert rows == ["LinearSelfAttention", "ConstructedGradientDescent", "untrained controls", "shuffled answers"]
    np.testing.assert_allclose(values[0], [OWN[c] + 0.01 for c in columns], err_msg="means over seeds")
    assert values[1][1] == 0.99
    np.testing.assert_allclose(values[2:], [[0.1] * 6, [0.2] * 6])
    between, across, down = floor.grid()
    assert across == down == columns
    at = {name: i for i, name in enumerate(OWN)}
    expected = [[1.0 if a == b else 0.9 - 0.1 * abs(at[a] - at[b]) for b in columns] for a in columns]
    np.testing.assert_allclose(between, expected)
    assert own.scaled().name == floor.scaled().name == "sensitivity cosine"


def test_the_nearest_reference_stands_beside_what_it_has_with_its_own_nearest(measured):
    drawing = analyze("which_learner", measured)
    points = marks(drawing, "Points")
    linear = points[points["x"] == "LinearSelfAttention: GD++, 2 steps (0.960); floor 0.800"]
    seeds = linear[linear["label"] == "LinearSelfAttention"].set_index("hover")["y"].to_dict()
    assert seeds == pytest.approx({"linear-0": 0.95, "linear-1": 0.97})
    assert linear[linear["label"] == "that reference with its own nearest"]["y"].tolist() == pytest.approx([0.8])
    assert linear[linear["label"] == "untrained control"]["y"].tolist() == [0.1, 0.1]
    built = points[points["x"].str.startswith("ConstructedGradientDescent: GD, 2 steps")]
    assert set(built["label"]) == {"ConstructedGradientDescent", "that reference with its own nearest", "shuffled answers"}
    assert "LinearSelfAttention (2 seeds): nearest to GD++, 2 steps of 6 references (0.96), nearer than" in drawing.caption


def test_a_model_below_the_floor_is_said_to_be(tmp_path):
    folder = write(tmp_path / "far", Run(LinearSelfAttention(n_layers=2), TASK, steps=2))
    agreeing(folder, {name: 0.3 + 0.1 * (name == "GD, 1 step") for name in OWN})
    assert (
        "nearest to GD, 1 step of 6 references (0.4), no nearer than GD, 2 steps" in analyze("which_learner", [folder]).caption
    )


def test_of_distances_the_smallest_is_nearest_and_other_splits_are_other_numbers(measured):
    far = analyze("which_learner", measured[:1], metric="SPD")
    assert set(marks(far, "Points")["x"]) == {"LinearSelfAttention: 3 nearest neighbours (0.1); floor 0.2"}
    ood = analyze("which_learner", measured[:1], split="ood").panels[0].marks[0].grid()[0]
    assert ood[0][0] == pytest.approx(OWN["GD, 1 step"] - 0.05)


def test_only_the_nearest_references_are_shown_if_asked(measured):
    _, columns, _ = analyze("which_learner", measured[:1], shown=2).panels[1].marks[0].grid()
    assert columns == ["GD, 2 steps", "GD++, 2 steps"]


def test_references_of_different_tasks_are_never_pooled(measured, tmp_path):
    other = LinearRegression.von_oswald(d_x=2, n_context=20)
    folder = write(tmp_path / "long", Run(LinearSelfAttention(n_layers=2), other, steps=2))
    agreeing(folder, OWN, shift=-0.3)
    assert len(analyze("which_learner", [*measured, folder]).panels) == 6


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"metric": "sensitivity cosin"}, "sensitivity cosine"), ({"split": "odd"}, "ood"), ({"shown": 1}, "--shown 12")],
    ids=str,
)
def test_choices_that_do_not_exist_name_those_that_do(measured, options, hint):
    with pytest.raises(ConfigError, match=hint):
        analyze("which_learner", measured, **options)


# ---- Newton or gradient ----------------------------------------------------------------------------------------------
def test_best_steps_are_means_over_seeds_with_intervals_and_marked_edges(measured):
    drawing = analyze("newton_or_gradient", measured)
    where = {"panel": "LinearSelfAttention: Newton"}
    assert marks(drawing, "Line", label="LinearSelfAttention", **where)["y"].tolist() == [3.0, 12.0]
    assert marks(drawing, "Line", label="untrained control", **where)["y"].tolist() == [1.0, 1.0]
    band = marks(drawing, "Band", **where)
    assert band["lo"].tolist() == [1.0, 4.0] and band["hi"].tolist() == [8.0, 32.0], "the widest over seeds"
    edge = marks(drawing, "Points", label="at the edge: this step or later", **where)
    assert edge[["x", "y", "hover"]].to_numpy().tolist() == [["2", 16.0, "linear-1"]]
    gd = marks(drawing, "Line", panel="LinearSelfAttention: GD", label="LinearSelfAttention")
    assert gd["y"].tolist() == [1.5, 3.5], "the mean of logarithms"
    built = marks(drawing, "Line", panel="ConstructedGradientDescent: GD")
    assert set(built["label"]) == {"ConstructedGradientDescent"}, "it is its own untrained control"
    assert "untrained control" not in set(analyze("newton_or_gradient", measured, untrained=False).frame()["label"])


def test_trends_are_named_only_where_there_are_layers_enough(measured, tmp_path):
    few = panel(analyze("newton_or_gradient", measured), "LinearSelfAttention: GD")
    assert few.x == "layer (too few for a trend; similarity 0.81 to 0.82)"
    folder = write(tmp_path / "deep", Run(LinearSelfAttention(n_layers=4), TASK, steps=2))
    stepping(folder, (1, 2, 4, 8), edge=4)
    deep = panel(analyze("newton_or_gradient", [folder]), "LinearSelfAttention: Newton")
    assert deep.x == "layer (linear R² 0.25, exponential R² 0.75, n = 3; similarity 0.81 to 0.84)"


# ---- layers are gradient steps ---------------------------------------------------------------------------------------
def test_similarity_is_shown_up_to_one_beyond_the_best_step_which_stands_beside_the_layer(measured):
    drawing = analyze("layers_are_gradient_steps", measured)
    maps = {(one.title, one.x): one.marks[0] for one in drawing.panels if one.marks[0].scaled() is not None}
    values, steps, names = maps["LinearSelfAttention", "steps of GD, tuned rate"].grid()
    assert names == ["layer 1: 2 to 4", "layer 2: 8 to 16+", "untrained: 1"]
    assert steps == ["1", "2", "3", "4", "8", "16", "32"], "23 is no power of two"
    np.testing.assert_allclose(values[0][[1, 3]], [0.85, 0.85])
    np.testing.assert_allclose(values[2][[0, 1]], [0.9, 0.8])
    values, steps, names = maps["ConstructedGradientDescent", "steps of Newton"].grid()
    assert names == ["layer 1: 1", "layer 2: 4"] and steps == ["1", "2", "3", "4", "8"]
    assert values.argmax(1).tolist() == [0, 3]


def test_loss_curves_stand_beside_as_many_steps_as_there_are_layers(measured):
    drawing = analyze("layers_are_gradient_steps", measured)
    where = {"panel": "LinearSelfAttention"}
    lines = {label: part["y"].tolist() for label, part in marks(drawing, "Line", **where).groupby("label")}
    assert lines["LinearSelfAttention"] == pytest.approx([-0.99, -0.99 + np.log10(2)])
    assert lines["GD, a step per layer"] == pytest.approx([-2, -2 + np.log10(2)]) and "GD++, a step per layer" in lines
    assert lines["untrained control"] == pytest.approx([0, np.log10(2)])
    assert marks(drawing, "Line", **where)["x"].tolist()[:2] == [1.0, 2.0], "in the order of scales"
    assert sorted(marks(drawing, "Points", **where)["hover"]) == ["linear-0"] * 2 + ["linear-1"] * 2
    ((low, high),) = {one.y_range for one in drawing.panels if one.y_range is not None}
    assert low < -2 and high == pytest.approx(np.log10(2) + 1), "what diverges does not stretch the axis, which is one for all"
    assert len(analyze("layers_are_gradient_steps", measured, every=True).panels) == 2 * len(drawing.panels)


# ---- weights ---------------------------------------------------------------------------------------------------------
def test_matrices_are_those_of_the_first_seed_by_layer_and_head(tmp_path):
    folder = write(tmp_path / "heads", Run(SoftmaxSelfAttention(n_layers=2, n_heads=2), TASK, steps=2))
    other = write(tmp_path / "other", Run(SoftmaxSelfAttention(n_layers=2, n_heads=2), TASK, steps=2, init_seed=1))
    structured(folder, 2, 2)
    structured(other, 2, 2, factor=10)
    drawing = analyze("weights_have_structure", [folder, other], matrices=True)
    titles = [p.title for p in drawing.panels if p.marks[0].scaled() is not None]
    assert titles == [
        f"SoftmaxSelfAttention, layer {layer}, head {head}: {what}"
        for layer, head in itertools.product(range(2), range(2))
        for what in (f"KQ, largest {2 * layer + head + 1}", "OV, largest 4")
    ]
    kq, ov = (drawing.panels[i].marks[0].grid() for i in (0, 1))
    assert kq[1] == kq[2] == ["x1", "x2", "y"]
    np.testing.assert_allclose(kq[0], np.diag([1, 1, 0]))
    np.testing.assert_allclose(ov[0], np.diag([0, 0, -1]))
    assert "heads" in drawing.caption


def test_statistics_are_points_by_seed_beside_their_untrained_controls_and_chance(measured):
    drawing = analyze("weights_have_structure", measured)
    assert [p.marks[0].scaled() for p in drawing.panels] == [None] * 3, "a statistic that no model has is not drawn"
    off, cosine, eta = (p.title for p in drawing.panels)
    assert marks(drawing, "Points", panel=off, label="LinearSelfAttention")["y"].tolist() == [-4.0] * 4, "cut off, not lost"
    untrained = marks(drawing, "Points", panel=off, label="untrained control")
    assert untrained["y"].tolist() == [1.0] * 4 and set(untrained["hover"]) == {"linear-0", "linear-1"}
    assert marks(drawing, "Rule", panel=cosine)["y"].tolist() == pytest.approx([0.3])
    own = marks(drawing, "Points", panel=eta, label="ConstructedGradientDescent")
    assert own[["x", "y"]].to_numpy().tolist() == [["0", 5.0], ["1", 6.0]]


@pytest.mark.parametrize(("layer", "shown"), [(0, "0"), (-1, "1")])
def test_one_layer_may_be_chosen(measured, layer, shown):
    drawing = analyze("weights_have_structure", measured, layer=layer)
    assert set(marks(drawing, "Points")["x"]) == {shown}
    assert all(f"layer {shown}" in p.title for p in drawing.panels if p.marks[0].scaled() is not None)


def test_a_layer_that_is_not_there_is_refused(measured):
    with pytest.raises(ConfigError, match="LinearSelfAttention has layers 0 to 1, not 2; type --layer 0"):
        analyze("weights_have_structure", measured, layer=2)


# ---- attention_modifications -----------------------------------------------------------------------------------------
def scoring(root, name, architecture, scores):
    """A folder per seed, whose table says the score on test."""
    for seed, score in enumerate(scores):
        folder = write(root / f"{name}-{seed}", Run(architecture, TASK, steps=2, init_seed=seed, data_seed=seed))
        known = {"metric": "score", "reference": "model", "composition": "all", "weight": 1.0}
        rows = [known | {"control": control, "split": s, "value": v + (s == "ood")} for s in ("test", "ood")
                for control, v in (("", score), ("untrained", 0.0))]  # fmt: skip
        save(folder, "generalization", rows)
        yield folder


def test_modified_attention_is_drawn_as_the_gain_over_plain_attention_of_the_same_seed(tmp_path):
    plain = list(scoring(tmp_path, "plain", SoftmaxSelfAttention(attends_to_itself=True), (0.5, 0.2, 0.9)))
    weak = list(scoring(tmp_path, "weak", RegularizedSelfAttention(alpha=0.1), (0.6, 0.1, 0.9)))
    strong = list(scoring(tmp_path, "strong", RegularizedSelfAttention(alpha=1.0), (0.0, 0.0)))
    mixed = list(scoring(tmp_path, "both", AugmentedSelfAttention(), (0.7, 0.4, 1.0)))
    drawing = analyze("attention_modifications", [*strong, *weak, *plain, *mixed])
    frame = drawing.frame()
    points = frame[frame["mark"] == "Points"]
    gains = {x: sorted(part["y"]) for x, part in points.groupby("x")}
    assert gains["0.1"] == pytest.approx([-0.1, 0.0, 0.1]) and gains["1"] == pytest.approx([-0.5, -0.2])
    assert gains["keys and values"] == pytest.approx([0.1, 0.2, 0.2])
    assert len(drawing.panels) == 2 and "0.50, 0.20, 0.90" in drawing.caption
    assert "no difference is claimed" in drawing.caption


def test_modified_attention_of_a_transformer_is_compared_with_plain_attention_of_a_transformer(tmp_path):
    plain = list(scoring(tmp_path, "plain", SoftmaxSelfAttention(attends_to_itself=True), (0.5, 0.2)))
    whole = list(scoring(tmp_path, "whole", SoftmaxTransformer(), (0.8, 0.7)))
    modified = [*scoring(tmp_path, "own", ModifiedTransformer(modification=NegativeSamples(0.1, 0.5)), (0.7, 0.9))]
    modified += scoring(tmp_path, "token", RegularizedSelfAttention(alpha=0.1), (0.6, 0.1))
    frame = analyze("attention_modifications", [*plain, *whole, *modified]).frame()
    gains = {x: sorted(part["y"]) for x, part in frame[frame["mark"] == "Points"].groupby("x")}
    assert gains == {"0.1, 0.5": pytest.approx([-0.1, 0.2]), "0.1": pytest.approx([-0.1, 0.1])}
    with pytest.raises(ConfigError, match="no SoftmaxTransformer to compare them with"):
        analyze("attention_modifications", [*plain, *modified])


def test_modified_attention_needs_plain_attention_of_equal_seeds(tmp_path):
    plain = list(scoring(tmp_path, "plain", SoftmaxSelfAttention(attends_to_itself=True), (0.5, 0.2)))
    modified = list(scoring(tmp_path, "mod", NegativeSampleSelfAttention(), (0.6, 0.1)))
    with pytest.raises(ConfigError, match="no SoftmaxSelfAttention to compare them with"):
        analyze("attention_modifications", modified)
    with pytest.raises(ConfigError, match="none of these models has a modified attention"):
        analyze("attention_modifications", plain)
    with pytest.raises(ConfigError, match="has no seed in common"):
        analyze("attention_modifications", [plain[0], modified[1]])
