"""The claims about attention's codes, ablations and scale, drawn from tables whose numbers are known."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
from handmade import analyze, marks, save, write

from compolens import HypernetworkTransformer, Hyperteacher, Run, tables
from compolens.diagnosis import groups
from compolens.figures import color_of
from compolens.foundation.configs import ConfigError
from compolens.models import HYLA, DeepHYLA, HYLAWithoutRMSHead, LinearAttention, SoftmaxTransformer
from compolens.tasks import FuzzyLogic, SRaven

PAPER = {"n_layers": 2, "d_model": 128, "n_heads": 8}
SMALL = {"n_layers": 2, "d_model": 16, "n_heads": 4}
RAVEN = SRaven(n_features=2)
RATIOS = "R², mean of ratios"


def scored(folder, run, values, references=None, metrics=("score",), split="ood"):
    """A model with a table generalization: its score by step, and those of references."""
    rows = []
    for (step, value), metric in itertools.product(values.items(), metrics):
        learners = {("", "model"): value, ("untrained", "untrained control"): -1.0}
        learners |= {("reference", name): score for name, score in (references or {}).items()}
        for (control, reference), score in learners.items():
            note = "ceiling" if reference == run.task.ceiling and metric == "score" else ""
            # a metric other than the score is told from it by 0.01
            known = {"metric": metric, "value": score + 0.01 * (metric != "score"), "control": control, "reference": reference}
            for composition in ("all", "one"):
                rows.append(known | {"split": split, "composition": composition, "note": note, "step": step, "weight": 1.0})
    save(write(folder, run), "generalization", rows)
    return folder


def renders(drawing):
    assert drawing.matplotlib("page").axes
    assert len(drawing.plotly().data)


# ---- who generalizes -------------------------------------------------------------------------------------------------
def test_references_are_means_over_the_models_of_a_panel_each_with_its_own_tasks(tmp_path):
    folders = []
    for seed, (nearest, composed) in enumerate(((0.9, 0.2), (0.8, 0.4), (0.7, 0.9))):
        run = Run(SoftmaxTransformer(**SMALL), FuzzyLogic(split_seed=seed), steps=2, init_seed=seed)
        references = {"true code": 1.0, "in-context ridge": nearest, "best training composition": composed}
        folder = scored(tmp_path / str(seed), run, {2: 0.5}, references)
        rows = tables.read(folder, "generalization")
        save(folder, "generalization", pd.concat([rows, rows.assign(split="test")]).to_dict("records"))
        folders.append(folder)
    drawing = analyze("who_generalizes", folders)
    lines = marks(drawing, "Rule").set_index("label")["y"].to_dict()
    assert lines == pytest.approx({"true code": 1.0, "best in-context regression": 0.8, "best training composition": 0.5})
    assert "mean over models" in drawing.caption
    rules = [mark for mark in drawing.panels[0].marks if type(mark).__name__ == "Rule"]
    assert len({mark.color for mark in rules}) == len(rules)


# ---- ablations -------------------------------------------------------------------------------------------------------
def fuzzy(architecture, seed, **more):
    return Run(architecture, FuzzyLogic(split_seed=seed), steps=50_000, batch_size=128, init_seed=seed, **more)


REFERENCES = {
    "true code": 1.0, "in-context ridge": 0.2, "in-context smoothing": 0.3, "best training composition": 0.5,
    "best of all compositions": 0.99,
}  # fmt: skip


@pytest.fixture(scope="module")
def fuzzy_models(tmp_path_factory):
    """Three seeds each of deep HYLA, softmax and HYLA in the paper's setting, the worst order on purpose."""
    root, folders = tmp_path_factory.mktemp("fuzzy"), []
    for kind, scores in ((DeepHYLA, (0.8, 0.9, 0.85)), (SoftmaxTransformer, (0.6, 0.5, 0.7)), (HYLA, (0.75, 0.8, 0.9))):
        for seed, score in enumerate(scores):
            folder = root / f"{kind.__name__}-{seed}"
            references = {name: value + 0.01 * (seed - 1) * (value < 0.9) for name, value in REFERENCES.items()}
            run = fuzzy(kind(**PAPER), seed)
            folders.append(scored(folder, run, {1: 0.0, 2: score}, references, ("score", RATIOS)))
    return folders


def test_ablations_show_seeds_means_and_the_papers_values_under_the_papers_metric(fuzzy_models):
    drawing = analyze("ablations", fuzzy_models)
    (panel,) = drawing.panels
    assert panel.y == RATIOS and panel.title == groups.setting_of(tables.settings(fuzzy_models[0]))
    own = marks(drawing, "Points", label="")
    expected = {"softmax": (0.61, 0.51, 0.71), "HYLA": (0.76, 0.81, 0.91), "HYLA + deep value": (0.81, 0.91, 0.86)}
    assert list(dict.fromkeys(own["x"])) == list(expected), "the order of Table A1"
    for name, scores in expected.items():
        assert own[own["x"] == name]["y"].tolist() == pytest.approx(scores)
    assert own[own["x"] == "HYLA"]["hover"].tolist() == ["HYLA-0", "HYLA-1", "HYLA-2"]
    for name, (value, se) in {"softmax": (63.28, 2.31), "HYLA": (81.13, 7.77), "HYLA + deep value": (87.65, 4.54)}.items():
        quoted = marks(drawing, "Points", label="the paper", x=name)
        assert quoted["y"].item() == pytest.approx(value / 100)
        assert float(quoted["hover"].item().split()[1]) == pytest.approx(se / 100)
    assert marks(drawing, "Band").empty, "three seeds have no interval"
    assert {mark.open for mark in panel.marks if type(mark).__name__ == "Points" and mark.label == "the paper"} == {True}
    renders(drawing)


def test_the_variant_with_most_seeds_has_the_short_name_and_others_say_what_differs(fuzzy_models, tmp_path):
    known = {"softmax": {}, "softmax, dropout 0.1": {"attention_dropout": 0.1}, "softmax, steps 9": {}}
    folders = []
    for (name, more), steps in zip(known.items(), (50_000, 50_000, 9), strict=True):
        run = dataclasses.replace(fuzzy(SoftmaxTransformer(**PAPER, **more), 0), steps=steps)
        folders.append(scored(tmp_path / name.replace(", ", "-"), run, {2: 0.4}, REFERENCES, ("score", RATIOS)))
    drawing = analyze("ablations", [*folders[1:], *fuzzy_models])  # one seed each, named first
    names = list(dict.fromkeys(marks(drawing, "Points", label="")["x"]))
    assert names[0] == "softmax" and set(names[1:3]) == {"softmax, dropout 0.1", "softmax, steps 9"}
    assert len(marks(drawing, "Points", label="", x="softmax")) == 3


def test_ablations_draw_the_ceiling_and_who_recombines_nothing_as_means_over_models(fuzzy_models):
    rules = marks(analyze("ablations", fuzzy_models), "Rule").set_index("label")["y"].to_dict()
    assert rules == pytest.approx({"true code": 1.01, "best in-context regression": 0.31, "best training composition": 0.51})


def test_ablations_without_the_paper_show_the_same_models(fuzzy_models):
    drawing = analyze("ablations", fuzzy_models, paper=False)
    assert not set(drawing.frame()["label"]) & {"the paper", "the paper, ± s.e."}
    pd.testing.assert_series_equal(
        marks(drawing, "Points")["y"].reset_index(drop=True),
        marks(analyze("ablations", fuzzy_models), "Points", label="")["y"].reset_index(drop=True),
    )


@pytest.mark.parametrize(
    ("run", "metric"),
    [
        (fuzzy(HYLA(**PAPER | {"d_model": 64}), 0), "R²"),
        (Run(HYLA(**PAPER), FuzzyLogic(), steps=10_000), "R²"),
        (Run(HYLA(**SMALL), RAVEN, steps=156_250), "panel accuracy"),
        (Run(HYLA(n_layers=2, d_model=16, n_heads=2), Hyperteacher()), "R²"),
    ],
    ids=["width", "steps", "features", "family"],
)
def test_ablations_quote_nothing_beside_other_settings(tmp_path, run, metric):
    drawing = analyze("ablations", [scored(tmp_path / "one", run, {2: 0.4}, REFERENCES, ("score", RATIOS))])
    (panel,) = drawing.panels
    assert panel.y == metric and set(drawing.frame()["mark"]) == {"Points", "Rule"}, "one seed has no spread"
    assert marks(drawing, "Points")["y"].tolist() == [0.4]


def test_ablations_are_of_hyla_alone(tmp_path):
    other = Run(HypernetworkTransformer(n_layers=2, d_model=16, n_heads=2, d_code=4, d_hidden=8), Hyperteacher())
    folders = [scored(tmp_path / "one", other, {2: 0.4})]
    with pytest.raises(ConfigError, match=r"none of these models is HYLA .* analyze who_generalizes"):
        analyze("ablations", folders)
    hyla = scored(tmp_path / "two", Run(HYLA(**SMALL), RAVEN), {2: 0.4})
    assert len(analyze("ablations", [*folders, hyla]).panels) == 1


def test_ablations_keep_settings_apart_and_tell_groups_of_one_architecture_from_each_other(tmp_path):
    runs = {
        "plain": Run(HYLA(**SMALL), RAVEN),
        "dropped": Run(HYLA(**SMALL, attention_dropout=0.1), RAVEN),
        "no-rms": Run(HYLAWithoutRMSHead(**SMALL), RAVEN),
        "fuzzy": Run(HYLA(**SMALL), FuzzyLogic(length=8)),
    }
    folders = [scored(tmp_path / name, run, {2: 0.1 * i}) for i, (name, run) in enumerate(runs.items())]
    drawing = analyze("ablations", folders)
    raven, logic = drawing.panels
    assert [raven.title, logic.title] == [groups.setting_of(tables.settings(folders[i])) for i in (0, 3)]
    seen = marks(drawing, "Points", panel=raven.title).set_index("x")["y"].to_dict()
    assert seen == pytest.approx({"HYLA": 0.0, "HYLA, dropout 0.1": 0.1, "HYLA - RMSHead": 0.2})
    assert marks(drawing, "Points", panel=logic.title)["y"].tolist() == pytest.approx([0.3])


# ---- scaling ---------------------------------------------------------------------------------------------------------
def wide(width, **more):
    return HYLA(**SMALL | {"d_model": width, "n_heads": width // 4} | more)


def test_an_axis_with_fewer_than_three_values_is_not_drawn(tmp_path):
    folders = [scored(tmp_path / f"{w}", Run(wide(w), RAVEN, steps=2), {2: w / 100}) for w in (8, 16)]
    with pytest.raises(ConfigError, match="no axis has 3 different values among these 2 models") as error:
        analyze("scaling", folders)
    assert "--steps all --again" in str(error.value)
    folders.append(scored(tmp_path / "32", Run(wide(32), RAVEN, steps=2), {2: 0.32}))
    drawing = analyze("scaling", folders)
    assert [panel.x for panel in drawing.panels] == ["width (d_model)"]
    line = marks(drawing, "Line", label="HYLA")
    assert line["x"].tolist() == [8, 16, 32] and line["y"].tolist() == pytest.approx([0.08, 0.16, 0.32])
    with pytest.raises(ConfigError, match="no axis has 4 different values"):
        analyze("scaling", folders, points=4)
    with pytest.raises(ConfigError, match="at least 3"):
        analyze("scaling", folders, points=2)
    renders(drawing)


def test_lines_are_means_over_seeds_and_points_the_seeds(tmp_path):
    folders, sizes = [], (8, 16, 32)
    for seed, width in itertools.product(range(2), sizes):
        run = Run(wide(width), SRaven(n_features=2, split_seed=seed), steps=2, init_seed=seed, data_seed=seed)
        folders.append(scored(tmp_path / f"{width}-{seed}", run, {2: width / 100 + 0.1 * seed}))
    drawing = analyze("scaling", folders)
    (panel,) = drawing.panels
    assert len(panel.marks) == 2
    assert marks(drawing, "Line")["y"].tolist() == pytest.approx([w / 100 + 0.05 for w in sizes])
    points = marks(drawing, "Points")
    assert sorted(points["y"]) == pytest.approx(sorted(w / 100 + 0.1 * s for s in range(2) for w in sizes))
    assert set(points["hover"]) == {folder.name for folder in folders}


def test_a_line_joins_means_over_the_same_seeds_only(tmp_path):
    """Seed 0 at all steps, two more at the end alone: what they add there is no rise along training."""
    folders = [scored(tmp_path / "0", Run(HYLA(**SMALL), RAVEN, steps=8), {0: 0.0, 4: 0.1, 8: 0.2})]
    for seed in (1, 2):
        folders.append(scored(tmp_path / f"{seed}", Run(HYLA(**SMALL), RAVEN, steps=8, init_seed=seed), {8: 0.9}))
    drawing = analyze("scaling", folders)
    assert marks(drawing, "Line")["y"].tolist() == pytest.approx([0.0, 0.1, 0.2])
    assert sorted(marks(drawing, "Points")["y"]) == pytest.approx([0.0, 0.1, 0.2, 0.9, 0.9])


def test_lines_join_only_what_differs_in_nothing_else(tmp_path):
    folders = []
    for width in (8, 16, 32):
        for name, more, steps in (("plain", {}, 2), ("dropout", {"attention_dropout": 0.1}, 2), ("long", {}, 4)):
            if (name, width) != ("long", 32):  # which leaves that line two points
                run = Run(wide(width, **more), RAVEN, steps=steps)
                value = width / 100 + 0.5 * (name == "dropout")
                folders.append(scored(tmp_path / f"{name}-{width}", run, {steps: value}))
        other = Run(LinearAttention(**SMALL | {"d_model": width}), RAVEN, steps=2)
        folders.append(scored(tmp_path / f"linear-{width}", other, {2: 0.9}))
    drawing = analyze("scaling", folders)
    assert [panel.x for panel in drawing.panels] == ["width (d_model)"]
    lines = {label: part["y"].tolist() for label, part in marks(drawing, "Line").groupby("label", sort=False)}
    assert lines == {
        "HYLA (attention_dropout 0.0)": pytest.approx([0.08, 0.16, 0.32]),
        "HYLA (attention_dropout 0.1)": pytest.approx([0.58, 0.66, 0.82]),
        "LinearAttention": pytest.approx([0.9] * 3),
    }
    colors = {mark.label: mark.color for mark in drawing.panels[0].marks}
    assert colors["LinearAttention"] == color_of("LinearAttention") and len(set(colors.values())) == 3


def test_settings_never_share_a_line(tmp_path):
    tasks = (RAVEN, SRaven(n_features=3), FuzzyLogic(length=8))
    folders = [
        scored(tmp_path / f"{i}-{w}", Run(wide(w), task, steps=2), {2: i + w / 100})
        for i, task in enumerate(tasks)
        for w in ((8, 16, 32) if i else (8, 16))
    ]
    drawing = analyze("scaling", folders)
    assert [panel.title for panel in drawing.panels] == [groups.setting_of(tables.settings(folders[i])) for i in (2, 5)]
    assert [panel.y for panel in drawing.panels] == ["panel accuracy, held out", "R², held out"]


def test_along_training_the_weights_kept_on_the_way_make_the_line(tmp_path):
    runs = {"HYLA": HYLA(**SMALL), "Hypernetwork": HypernetworkTransformer(2, 16, 2, d_code=4, d_hidden=8)}
    folders = [
        scored(tmp_path / name, Run(architecture, RAVEN, steps=8), {0: 0.0, 4: 0.1 + i, 8: 0.2 + i})
        for i, (name, architecture) in enumerate(runs.items())
    ]
    drawing = analyze("scaling", folders)
    assert [panel.x for panel in drawing.panels] == ["training steps"]
    lines = {label: part[["x", "y"]].to_numpy().tolist() for label, part in marks(drawing, "Line").groupby("label")}
    assert lines["HYLA"] == [[0, pytest.approx(0.0)], [4, pytest.approx(0.1)], [8, pytest.approx(0.2)]]
    assert lines["HypernetworkTransformer"][2] == [8, pytest.approx(1.2)], "they have settings that the others lack"


def test_instances_and_depth_are_axes_of_trained_models_only(tmp_path):
    folders = [
        scored(tmp_path / f"s{s}", Run(HYLA(**SMALL), RAVEN, steps=s, batch_size=10), {0: 0.9, s: s / 100})
        for s in (10, 20, 40)
    ]
    folders += [
        scored(tmp_path / f"d{d}", Run(HYLA(**SMALL | {"n_layers": d}), RAVEN, steps=40, batch_size=10), {40: d / 10})
        for d in (1, 4)
    ]
    drawing = analyze("scaling", folders)
    seen = {panel.x: panel.marks[0].rows()[["x", "y"]].to_numpy().tolist() for panel in drawing.panels}
    assert list(seen) == ["instances (one pass each)", "depth (layers)"]
    np.testing.assert_allclose(seen["instances (one pass each)"], [[100, 0.1], [200, 0.2], [400, 0.4]])
    np.testing.assert_allclose(seen["depth (layers)"], [[1, 0.1], [2, 0.4], [4, 0.4]])


def test_scaling_of_training_compositions_is_another_column(tmp_path):
    folders = [scored(tmp_path / f"{w}", Run(wide(w), RAVEN, steps=2), {2: w / 50}, split="test") for w in (8, 16, 32)]
    assert marks(analyze("scaling", folders, split="test"), "Line")["y"].tolist() == pytest.approx([0.16, 0.32, 0.64])


# ---- codes decode rules ----------------------------------------------------------------------------------------------
CAPTURES = ("self", "row mates")


def decoded(folder, run, own, label="rule"):
    """A model with a table attention_code: `own` by layer at "self", 0.1 more at the row mates, at test and under macro F1."""
    rows = []
    for metric, split, shown in itertools.product(
        ("balanced accuracy", "macro F1", "recall"), ("test", "ood"), ("as trained", "unpermuted")
    ):
        known = {
            "metric": metric,
            "split": split,
            "label": label,
            "shown": shown,
            "class": "A" if metric == "recall" else "all",
        }
        more = 0.1 * (split == "test") + 0.1 * (metric == "macro F1") - 0.05 * (shown == "unpermuted")
        for capture, (layer, value) in itertools.product(CAPTURES, enumerate(own)):
            score = value + more + 0.1 * (capture == "row mates")
            controls = {"": score, "untrained": 0.2, "shuffled": 0.1, "majority class": 0.125}
            for control, number in controls.items():
                around = {"lo": number - value / 10, "hi": number + value / 10}
                rows.append(known | {"control": control, "value": number, "role": capture, "layer": layer} | around)
        for control, number in {"raw input": 0.3, "raw input, products": 0.6, "raw input, shuffled": 0.11}.items():
            rows.append(known | {"control": control, "value": number, "role": "input", "layer": -1})
    save(write(folder, run), "attention_code", rows)
    return folder


@pytest.fixture(scope="module")
def decodable(tmp_path_factory):
    root, folders = tmp_path_factory.mktemp("decodable"), []
    for seed in range(2):
        task = SRaven(n_features=2, split_seed=seed)
        folders.append(decoded(root / f"hyla-{seed}", Run(HYLA(**SMALL), task), (0.3 + 0.1 * seed, 0.5 + 0.2 * seed)))
        folders.append(decoded(root / f"softmax-{seed}", Run(SoftmaxTransformer(**SMALL), task), (0.2, 0.4)))
    return folders


def test_codes_by_layer_are_means_over_seeds_beside_their_controls(decodable):
    drawing = analyze("codes_decode_rules", decodable)
    own, mates = drawing.panels
    assert own.title.endswith("rule, answer token to itself") and mates.title.endswith("answer token to its row mates")
    assert own.y_range == (0, 1.02) and own.y == "balanced accuracy"
    where = {"panel": own.title, "label": "HYLA"}
    line, points = marks(drawing, "Line", **where), marks(drawing, "Points", **where)
    assert line["x"].tolist() == [0, 1] and line["y"].tolist() == pytest.approx([0.35, 0.6])
    assert sorted(points["y"]) == pytest.approx([0.3, 0.4, 0.5, 0.7]) and set(points["hover"]) == {"hyla-0", "hyla-1"}
    softmax = marks(drawing, "Line", panel=mates.title, label="SoftmaxTransformer")
    assert softmax["y"].tolist() == pytest.approx([0.3, 0.5])
    for label, value in (("untrained controls", 0.2), ("shuffled labels", 0.1)):
        band = marks(drawing, "Band", panel=own.title, label=label)
        assert band["lo"].tolist() == pytest.approx([value - 0.04, value - 0.07]), "the widest over models"
        assert band["hi"].tolist() == pytest.approx([value + 0.04, value + 0.07])
    rules = marks(drawing, "Rule", panel=own.title).set_index("label")["y"].to_dict()
    assert rules == pytest.approx({"raw input, products": 0.6}), "the strongest of them"
    every = (
        marks(analyze("codes_decode_rules", decodable, every=True), "Rule", panel=own.title).set_index("label")["y"].to_dict()
    )
    assert every == pytest.approx({"raw input, products": 0.6, "raw input": 0.3, "majority class": 0.125})
    renders(drawing)


@pytest.mark.parametrize(
    ("options", "more"), [({"metric": "macro F1"}, 0.1), ({"split": "test"}, 0.1), ({"shown": "unpermuted"}, -0.05)], ids=str
)
def test_codes_may_be_scored_otherwise(decodable, options, more):
    drawing = analyze("codes_decode_rules", decodable, **options)
    line = marks(drawing, "Line", panel=drawing.panels[0].title, label="HYLA")
    assert line["y"].tolist() == pytest.approx([0.35 + more, 0.6 + more])


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"metric": "macro F2"}, "macro F1"), ({"split": "odd"}, "ood"), ({"shown": "unpermutated"}, "unpermuted")],
    ids=str,
)
def test_codes_asked_for_what_is_not_there_name_the_nearest(decodable, options, hint):
    with pytest.raises(ConfigError, match=f"did you mean '{hint}'"):
        analyze("codes_decode_rules", decodable, **options)


def test_each_label_and_setting_has_its_panels(decodable, tmp_path):
    run = Run(HYLA(**SMALL), FuzzyLogic(length=8))
    folder = decoded(tmp_path / "fuzzy", run, (0.5, 0.6), label="term 1")
    titles = [panel.title for panel in analyze("codes_decode_rules", [*decodable, folder]).panels]
    assert len(titles) == 4 and sum("FuzzyLogic" in title and "term 1" in title for title in titles) == 2


# ---- geometry: which rules share a code, and maps --------------------------------------------------------------------
RULES = ("constant", "addition", "subtraction")


def laid_out(folder, run, shift=0.0, labels=("rule",), confounds=("operand magnitude", "target value")):
    """A model with a table latent_geometry: cosines of three rules and PCA maps of four points, by layer, capture, control."""
    rows = []
    for layer, capture, control in itertools.product((0, 1), CAPTURES, ("", "untrained")):
        base = 0.1 * layer + 0.2 * (capture == "row mates") + 0.3 * (control != "") + shift
        where = {"role": capture, "layer": layer, "control": control}
        for split, by, (i, a), (j, b) in itertools.product(("test", "ood"), labels, enumerate(RULES), enumerate(RULES)):
            value = 1.0 if i == j else base + 0.01 * (i + j) - (split == "test")
            known = {"metric": "cosine", "split": split, "by": by, "class": a, "other": b, "value": value}
            rows += [known | where, known | where | {"metric": "cosine about the mean", "value": -value}]
        for point in range(4):
            known = {"metric": "pca", "split": "ood", "value": 0.9, "by": "none", "point": point}
            known |= {"x": base + point, "y": base - point}
            known |= {f"label.{name}": RULES[point % 3] for name in labels}
            known |= {f"confound.{name}": float(point + k) for k, name in enumerate(confounds)}
            rows.append(known | where)
    save(write(folder, run), "latent_geometry", rows)
    return folder


@pytest.fixture(scope="module")
def geometric(tmp_path_factory):
    root = tmp_path_factory.mktemp("geometric")
    return [
        laid_out(root / f"hyla-{seed}", Run(HYLA(**SMALL), SRaven(n_features=2, split_seed=seed)), shift=0.2 * seed)
        for seed in range(2)
    ]


@pytest.mark.parametrize(
    ("options", "base"), [({}, 0.1), ({"layer": 0}, 0.0), ({"layer": -2}, 0.0), ({"capture": "row mates"}, 0.3)], ids=str
)
def test_similarities_are_means_over_seeds_with_the_untrained_controls_below_the_diagonal(geometric, options, base):
    drawing = analyze("rule_similarity", geometric, **options)
    alone = analyze("rule_similarity", geometric, untrained=False, **options)
    expected = np.array([[1.0 if i == j else base + 0.1 + 0.01 * (i + j) for j in range(3)] for i in range(3)])
    both = np.triu(expected, 1) + np.tril(expected + 0.3, -1) + np.diag([np.nan] * 3)
    for drawn, values in ((alone, expected), (drawing, both)):
        (panel,) = drawn.panels
        shown, columns, names = panel.marks[0].grid()
        assert (panel.title, columns, names) == ("HYLA", ["const", "add", "sub"], ["const", "add", "sub"])
        np.testing.assert_allclose(shown, values, atol=1e-6)


def test_similarities_can_be_rendered(geometric):
    renders(analyze("rule_similarity", geometric))


@pytest.mark.parametrize("name", ["rule_similarity", "latent_maps"])
def test_a_layer_or_capture_that_is_not_there_is_refused(geometric, name):
    for layer in (2, -3):
        with pytest.raises(ConfigError, match=f"HYLA has layers 0 to 1, not {layer}"):
            analyze(name, geometric, layer=layer)
    with pytest.raises(ConfigError, match="did you mean 'row mates'"):
        analyze(name, geometric, capture="row mate")


def test_terms_have_a_panel_each(tmp_path):
    folder = laid_out(tmp_path / "fuzzy", Run(HYLA(**SMALL), FuzzyLogic(length=8)), labels=("term 1", "term 2"))
    titles = [panel.title for panel in analyze("rule_similarity", [folder]).panels]
    assert titles == ["HYLA, term 1", "HYLA, term 2"]
    titles = [panel.title for panel in analyze("latent_maps", [folder]).panels]
    assert titles == [f"HYLA: by {name}" for name in ("term 1", "term 2", "operand magnitude", "target value")]


def test_maps_show_one_seed_by_each_label_and_confound(geometric):
    drawing = analyze("latent_maps", geometric)
    assert [panel.title for panel in drawing.panels] == [
        f"HYLA: by {n}" for n in ("rule", "operand magnitude", "target value")
    ]
    assert drawing.columns == 3
    by_rule, *others = (panel.marks[0].rows() for panel in drawing.panels)
    np.testing.assert_allclose(by_rule[["x", "y"]], [[0.1 + p, 0.1 - p] for p in range(4)])
    assert by_rule["value"].tolist() == ["constant", "addition", "subtraction", "constant"]
    assert [rows["value"].tolist() for rows in others] == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert by_rule["hover"].iloc[1] == "rule addition, operand magnitude 1.0, target value 2.0"
    untrained = analyze("latent_maps", geometric, untrained=True)
    assert [panel.title for panel in untrained.panels[3:]] == [
        f"HYLA, untrained: by {n}" for n in ("rule", "operand magnitude", "target value")
    ]
    np.testing.assert_allclose(untrained.panels[3].marks[0].rows()["x"], [0.4 + p for p in range(4)])
    renders(drawing)


def test_a_map_that_was_not_measured_names_the_command(geometric):
    with pytest.raises(ConfigError, match=r"has no tsne coordinates; type: compolens probe latent_geometry .* --tsne --again"):
        analyze("latent_maps", geometric, embedding="tsne")
    with pytest.raises(ConfigError, match="no embedding 'tnse'; did you mean 'tsne'"):
        analyze("latent_maps", geometric, embedding="tnse")


def test_equal_names_in_two_families_are_not_on_one_colour_scale(geometric, tmp_path):
    folder = laid_out(tmp_path / "fuzzy", Run(HYLA(**SMALL), FuzzyLogic(length=8)), labels=("term 1",))
    scales = [mark.scaled() for panel in analyze("latent_maps", [geometric[0], folder]).panels for mark in panel.marks]
    names = [scale.name for scale in scales if scale is not None]
    assert names == [f"{n}, {task}" for task in ("SRaven", "FuzzyLogic") for n in ("operand magnitude", "target value")]
