"""The claims about why held-out compositions fail, drawn from tables whose numbers are known."""

import itertools

import numpy as np
import pandas as pd
import pytest
from handmade import analyze, marks, put_back, save, write

from compolens import HypernetworkTransformer, Run, SoftmaxTransformer
from compolens.diagnosis import decomposition
from compolens.diagnosis import label as diagnosis
from compolens.diagnosis.measured import Measured
from compolens.foundation.configs import ConfigError

COMPOSITIONS = ("0+3", "1+4", "2+5")
NAMES = (
    "failure_has_a_place",
    "decodable_is_not_used",
    "factors_are_reused",
    "when_codes_appear",
    "diagnoses",
    "which_factors_fail",
)
OWN = {"test": 0.99, "ood": 0.6}
LADDER = {
    "own answer": OWN,
    "own code written": {"test": 0.97, "ood": 0.7},
    "true code written": {"test": 0.95, "ood": 0.9},
    "best code": {"test": 0.94, "ood": 0.93},
}
PARTS = {
    "ood": {"use": 0.1, "inference": 0.2, "form": 0.03, "execution": 0.03, "unexplained": 0.04},
    "test": {"use": 0.0, "inference": 0.0, "form": 0.0, "execution": 0.0, "unexplained": 0.01},
}
"""What the ladder loses to a ceiling of 1: by hand. Writing the right code costs 0.99 - 0.95 on training compositions."""
PLACES = (
    ("blocks.0.hook_resid_pre", 0, "context"), ("blocks.0.hook_resid_post", 1, "context"),
    ("blocks.0.hook_resid_post", 1, "readout"), ("hook_code", 2, "all"),
)  # fmt: skip
READ, WRITTEN, UNTRAINED, TRUE = (0.1, 0.8, 0.5, 0.9), (0.4, 0.3, 0.2, 0.95), (-0.1, 0.0, 0.1, 0.2), (0.1, 0.2, 0.3, 0.9)
"""By place: R² of the decoded code, effect of writing, the same in the untrained control, score with the true code written."""


def model(root, name, task, seed=0, kind=SoftmaxTransformer):
    settings = {"d_code": 4, "d_hidden": 8} if kind is HypernetworkTransformer else {}
    return write(root / name, Run(kind(n_layers=2, d_model=16, n_heads=2, **settings), task, init_seed=seed))


def measured(folder, shift=0.0, steps=(2,), rungs=None, floor=0.2):
    """A ladder at the explicit code, places and scores, all moved by `shift` on held-out compositions and by 0.1 per step back
    from the last one."""
    scores, ladder = [], []
    for step in steps:
        back = 0.1 * (max(steps) - step)
        ladder += [row | {"step": step} for row in _ladder(shift - back, rungs or LADDER)]
        for split, value in OWN.items():
            value = value + shift * (split == "ood") - back
            who = (("", "model", value), ("reference", "in-context ridge", floor), ("reference", "true code", 1.0))
            for (control, reference, number), composition in itertools.product(who, ("all", *COMPOSITIONS)):
                known = {"metric": "score", "split": split, "composition": composition, "weight": 1.0, "step": step}
                known |= {"control": control, "reference": reference, "value": number}
                scores.append(known | {"note": "ceiling" if reference == "true code" else ""})
    save(folder, "generalization", scores)
    save(folder, "inference_or_execution", ladder)
    return folder


def _ladder(shift, rungs):
    rows = []
    for (site, layer, role), read, written, untrained, true in zip(PLACES, READ, WRITTEN, UNTRAINED, TRUE, strict=True):
        here = {"site": site, "layer": layer, "role": role, "composition": "all", "chosen": 0, "split": "train", "control": ""}
        rows.append(here | {"metric": "left-out R²", "rung": "decoded", "value": read + shift})
        effect = here | {"metric": "recovered", "rung": "another code written"}
        rows += [effect | {"value": written + shift}, effect | {"value": untrained, "control": "untrained"}]
        if site != "hook_code":
            score = {"metric": "score", "rung": "true code written", "split": "ood", "value": true + shift}
            rows += [here | score, here | score | {"control": "untrained", "value": -9.0}]
    for (rung, values), split in itertools.product(rungs.items(), OWN):
        for composition in ("all", *COMPOSITIONS):
            known = here | {
                "metric": "score",
                "rung": rung,
                "split": split,
                "chosen": 1,
                "effective": 1,
                "composition": composition,
                "parts": " · ".join(f"module {m}" for m in composition.split("+")) if composition != "all" else "",
            }
            rows.append(known | {"value": values[split] + shift * (split == "ood"), "weight": 1.0})
    return [*rows, known | {"composition": "all", "rung": "true code written", "control": "another code", "value": -0.5}]


def swapped(folder, shift=0.0):
    """swap_factor: scores by control and split at the chosen place; other rows that must not be taken for them."""
    values = {"": (0.8, 0.5), "copied": (-0.9, -0.8), "base": (0.1, 0.2), "whole source": (-0.4, -0.3)}
    values |= {"shuffled masks": (-0.2, -0.1), "random coordinates": (0.0, 0.05), "untrained": (-3.0, -3.0)}
    rows = []
    for control, numbers in values.items():
        for split, value in zip(("test", "ood"), numbers, strict=True):
            value += shift
            row = {"metric": "score", "split": split, "control": control, "factor": "all", "chosen": True, "value": value}
            row |= {"lo": value - 0.01, "hi": value + 0.02, "site": "blocks.0.hook_resid_post", "layer": 1, "role": "readout"}
            rows += [row, row | {"metric": "recovered", "value": 7.0}, row | {"factor": "module 1", "value": 7.0}]
            rows.append(row | {"chosen": False, "layer": 2, "value": 7.0})
    tokens = {"metric": "score", "factor": "all", "chosen": False, "site": "tokens", "layer": 0, "role": "all"}
    for (control, value), split in itertools.product({"not swapped": -0.6, "shown": 0.97}.items(), ("test", "ood")):
        rows.append(tokens | {"control": control, "value": value, "split": split})
    save(folder, "swap_factor", rows)
    return folder


@pytest.fixture
def pair(tmp_path, tiny_task):
    """Two seeds that differ by 0.1 on held-out compositions."""
    return [
        measured(model(tmp_path, f"seed-{i}", tiny_task, i, HypernetworkTransformer), shift, steps=(1, 2))
        for i, shift in enumerate((-0.05, 0.05))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_width_and_the_page_render_and_say_that_few_seeds_claim_nothing(name, pair):
    for folder in pair:
        swapped(folder)
    drawing = analyze(name, pair)
    assert drawing.matplotlib("column").axes and drawing.matplotlib("page").axes and len(drawing.plotly().data)
    assert "With fewer than 5 seeds" in drawing.caption


# ---- failure_has_a_place -----------------------------------------------------------------------------------------------
def test_bars_are_the_parts_of_the_loss_which_add_up_to_it(tmp_path, tiny_task):
    drawing = analyze("failure_has_a_place", [measured(model(tmp_path, "one", tiny_task))])
    for split, label in (("ood", "held-out compositions"), ("test", "fresh episodes of training compositions")):
        bars = marks(drawing, "Bars", label=label)
        assert dict(zip(bars["x"], bars["y"], strict=True)) == pytest.approx(PARTS[split])
        assert bars["y"].sum() == pytest.approx(1 - OWN[split])
        assert bars[["lo", "hi"]].isna().all(axis=None), "one seed has no interval"
    assert marks(drawing, "Points", panel="SoftmaxTransformer: the loss in parts").empty, "one seed is its bar"


def test_bars_are_means_of_the_seeds_which_stand_beside_them(pair):
    drawing = analyze("failure_has_a_place", pair)
    bars, points = (marks(drawing, kind, label="held-out compositions") for kind in ("Bars", "Points"))
    for part in ("inference", "execution"):
        seeds = points[points["x"] == part]
        assert seeds["hover"].tolist() == ["seed-0", "seed-1"]
        assert bars[bars["x"] == part]["y"].item() == pytest.approx(seeds["y"].mean())
    assert points[points["x"] == "execution"]["y"].tolist() == pytest.approx([0.08, 0.0])


def test_the_loss_by_layer_is_the_score_with_the_true_code_between_lines(pair):
    drawing = analyze("failure_has_a_place", pair)
    context = marks(drawing, "Line", label="true code, context tokens")
    assert context["x"].tolist() == ["0", "1"] and context["y"].tolist() == pytest.approx([0.1, 0.2])
    assert marks(drawing, "Line", label="true code, readout tokens")["y"].tolist() == pytest.approx([0.3])
    explicit = marks(drawing, "Points", label="true code, explicit code")
    assert set(explicit["x"]) == {"explicit code"} and sorted(explicit["y"]) == pytest.approx([0.85, 0.95])
    assert marks(drawing, "Points", label="another code")["y"].tolist() == pytest.approx([-0.5, -0.5])
    rules = marks(drawing, "Rule").set_index("label")["y"].to_dict()
    assert rules == pytest.approx({"ceiling": 1.0, "own answer": 0.6, "best code": 0.93})


def test_without_a_best_code_its_line_is_missing(tmp_path, tiny_task):
    rungs = {rung: values for rung, values in LADDER.items() if rung != "best code"}
    drawing = analyze("failure_has_a_place", [measured(model(tmp_path, "one", tiny_task), rungs=rungs)])
    assert set(marks(drawing, "Rule")["label"]) == {"ceiling", "own answer"}


def test_losses_of_one_setting_share_an_axis(tmp_path, tiny_task):
    small = {rung: dict.fromkeys(OWN, 0.99) for rung in LADDER}
    good = measured(model(tmp_path, "good", tiny_task, 0, HypernetworkTransformer), rungs=small)
    poor = measured(model(tmp_path, "poor", tiny_task))
    ranges = [panel.y_range for panel in analyze("failure_has_a_place", [good, poor]).panels[::2]]
    assert ranges[0] == ranges[1] and ranges[0][1] > 0.2


# ---- decodable_is_not_used ---------------------------------------------------------------------------------------------
def test_every_place_is_a_point_of_what_is_decoded_and_what_follows(pair):
    drawing = analyze("decodable_is_not_used", pair)
    points = marks(drawing, "Points", panel="HypernetworkTransformer")
    own, untrained = (
        points[points["label"] == label].set_index("hover") for label in ("HypernetworkTransformer", "untrained control")
    )
    assert own.index.tolist() == ["0 context", "1 context", "1 readout", "code"]
    assert own["x"].tolist() == untrained["x"].tolist() == pytest.approx(READ)
    assert own["y"].tolist() == pytest.approx(WRITTEN) and untrained["y"].tolist() == pytest.approx(UNTRAINED)
    # ranks of READ and of WRITTEN: 1, 3, 2, 4 and 3, 2, 1, 4
    assert "HypernetworkTransformer 0.40 (4 sites, 2 seeds)" in drawing.caption


def test_places_are_read_seed_by_seed_in_the_groups_panel(pair):
    drawing = analyze("decodable_is_not_used", pair)
    points = marks(drawing, "Points", panel="HypernetworkTransformer: decoded")
    assert len({panel.y_range for panel in drawing.panels}) == 1
    decoded = points[points["x"] == "1 readout"]
    assert decoded.set_index("hover")["y"].to_dict() == pytest.approx({"seed-0": 0.45, "seed-1": 0.55})


def test_a_place_without_a_readout_is_no_point_and_too_few_have_no_correlation(tmp_path, tiny_task):
    folder = measured(model(tmp_path, "one", tiny_task))
    table = folder / "tables" / "inference_or_execution.csv"
    frame = pd.read_csv(table, keep_default_na=False)
    put_back(table, frame[(frame["metric"] != "left-out R²") | (frame["layer"] == 1)])
    drawing = analyze("decodable_is_not_used", [folder])
    assert set(marks(drawing, "Points", panel=drawing.panels[0].title)["hover"]) == {"1 context", "1 readout"}
    assert "not defined (2 sites, 1 seed)" in drawing.caption


# ---- factors_are_reused ------------------------------------------------------------------------------------------------
def test_swapped_answers_stand_beside_rivals_and_controls_at_the_chosen_place(tmp_path, tiny_task):
    drawing = analyze("factors_are_reused", [swapped(model(tmp_path, "one", tiny_task))])
    bars = marks(drawing, "Bars", label="held-out composition").set_index("x")
    known = {
        "recombined": 0.5,
        "vs source": -0.8,
        "vs base": 0.2,
        "vs whole code": -0.3,
        "no swap": -0.6,
        "other factor": -0.1,
    }
    assert bars["y"].to_dict() == pytest.approx(known | {"random": 0.05, "untrained": -3.0})
    assert bars.loc["recombined", ["lo", "hi"]].tolist() == pytest.approx([0.49, 0.52])
    assert marks(drawing, "Bars", label="training composition").set_index("x")["y"]["recombined"] == pytest.approx(0.8)
    assert set(marks(drawing, "Rule")["y"]) == {0.97}
    assert drawing.panels[0].y_range[0] == -1.5, "what is much worse than nothing does not stretch the axis"
    assert "SoftmaxTransformer: layer 1, readout tokens" in drawing.caption


@pytest.mark.parametrize("seeds", [2, 5])
def test_intervals_over_seeds_need_five_of_them(seeds, tmp_path, tiny_task):
    folders = [swapped(model(tmp_path, f"{i}", tiny_task, i), 0.01 * i) for i in range(seeds)]
    drawing = analyze("factors_are_reused", folders)
    bar = marks(drawing, "Bars", label="held-out composition", x="recombined").iloc[0]
    assert bar["y"] == pytest.approx(0.5 + 0.005 * (seeds - 1))
    assert len(marks(drawing, "Points", label="held-out composition", x="recombined")) == seeds
    if seeds == 5:
        assert 0.5 <= bar["lo"] < bar["y"] < bar["hi"] <= 0.54
    else:
        assert np.isnan([bar["lo"], bar["hi"]]).all()


def test_a_table_without_a_chosen_place_names_the_command(tmp_path, tiny_task):
    folder = swapped(model(tmp_path, "one", tiny_task))
    table = folder / "tables" / "swap_factor.csv"
    frame = pd.read_csv(table, keep_default_na=False)
    put_back(table, frame.assign(chosen=False))
    with pytest.raises(ConfigError, match=r"no scores at a chosen site; type: compolens probe swap_factor .*one --again"):
        analyze("factors_are_reused", [folder])


# ---- when_codes_appear -------------------------------------------------------------------------------------------------
def test_lines_are_means_over_seeds_along_training(pair):
    drawing = analyze("when_codes_appear", pair)
    lines = {label: part[["x", "y"]].to_numpy() for label, part in marks(drawing, "Line").groupby("label")}
    known = {
        "own answer, training": (0.89, 0.99), "own answer, held-out": (0.5, 0.6), "true code, held-out": (0.8, 0.9),
        "best code, held-out": (0.83, 0.93), "decoded code": (0.8, 0.9), "answers follow a code": (0.85, 0.95),
        "the same in the untrained control": (0.2, 0.2),
    }  # fmt: skip
    assert lines.keys() == known.keys()
    for label, values in known.items():
        np.testing.assert_allclose(lines[label], list(zip((1, 2), values, strict=True)), atol=1e-9)
    assert "largest (of 4)" in drawing.caption
    assert {mark.label for panel in drawing.panels for mark in panel.marks if getattr(mark, "dash", False)} == {
        "best code, held-out",
        "the same in the untrained control",
    }


def test_a_line_has_only_the_steps_that_all_seeds_have(pair, tmp_path, tiny_task):
    third = measured(model(tmp_path, "seed-2", tiny_task, 2, HypernetworkTransformer), 0.3, steps=(2, 3))
    drawing = analyze("when_codes_appear", [*pair, third])
    assert set(marks(drawing, "Line")["x"]) == {2}
    assert set(marks(drawing, "Points")["x"]) == {1, 2, 3}


def test_models_measured_at_one_step_are_left_out_and_named(pair, tmp_path, tiny_task):
    single = measured(model(tmp_path, "single", tiny_task))
    half = measured(model(tmp_path, "half", tiny_task, 1), steps=(1, 2))
    table = half / "tables" / "generalization.csv"
    frame = pd.read_csv(table, keep_default_na=False)
    put_back(table, frame[frame["step"] == 2])
    drawing = analyze("when_codes_appear", [single, *pair, half])
    assert {panel.title.split(":")[0] for panel in drawing.panels} == {"HypernetworkTransformer"}
    assert "left out: single, half." in drawing.caption
    with pytest.raises(ConfigError, match="none of these 2 models") as error:
        analyze("when_codes_appear", [single, half])
    assert f"compolens probe generalization inference_or_execution {single} --steps all" in str(error.value)


# ---- diagnoses ----------------------------------------------------------------------------------------------------------
def test_rows_carry_the_label_and_cells_the_parts(pair, tmp_path, tiny_task):
    infers = {rung: dict.fromkeys(OWN, 0.99) | {"ood": 0.97} for rung in LADDER} | {"own answer": OWN}
    other = measured(model(tmp_path, "other", tiny_task), rungs=infers)
    drawing = analyze("diagnoses", [*pair, other])
    cells = marks(drawing, "HeatMap").pivot_table(index="y", columns="x", values="value")
    assert set(cells.index) == {
        "hypernetwork, 2\nseeds:\nfails to infer",
        "softmax, 1 seed:\ninfers but does\nnot use",
    }
    found = diagnosis.diagnose([other]).parts["ood"]
    assert cells.loc["softmax, 1 seed:\ninfers but does\nnot use"].to_dict() == pytest.approx(
        {part: found[part].value for part in decomposition.PARTS}
    )
    assert cells.loc["hypernetwork, 2\nseeds:\nfails to infer", "inference"] == pytest.approx(0.2)


def test_shares_are_of_what_lies_between_floor_and_ceiling(pair):
    drawing = analyze("diagnoses", pair)
    bar = marks(drawing, "Bars").iloc[0]
    assert bar["x"] == "hypernetwork" and bar["y"] == pytest.approx((0.6 - 0.2) / 0.8)
    assert bar[["lo", "hi"]].isna().all(), "two seeds have no interval"
    assert marks(drawing, "Points")["y"].tolist() == pytest.approx([0.35 / 0.8, 0.45 / 0.8])


def test_settings_have_panels_of_their_own(pair, tmp_path, tiny_task):
    wide = measured(model(tmp_path, "wide", type(tiny_task)(d_x=6, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)))
    titles = [panel.title for panel in analyze("diagnoses", [*pair, wide]).panels]
    assert len(titles) == 4 and titles[0].startswith("Hyperteacher 4→2") and titles[2].startswith("Hyperteacher 6→2")
    assert [panel.title for panel in analyze("diagnoses", pair).panels] == [
        "loss on held-out compositions",
        "share of what can be had",
    ]


# ---- which_factors_fail ------------------------------------------------------------------------------------------------
def test_a_factor_that_breaks_what_it_takes_part_in_stands_out_of_what_chance_deals(tmp_path, tiny_task):
    """Twenty held-out compositions of 8 factors; the loss is 0.5 where module 0 takes part and 0.1 elsewhere."""
    compositions = [f"{a}+{b}" for a, b in itertools.combinations(range(8), 2)][:20]
    folder = model(tmp_path, "one", tiny_task)
    measured(folder)
    rows = []
    for split, composition in itertools.product(OWN, ("all", *compositions)):
        broken = split == "ood" and composition.startswith("0+")
        row = {"metric": "score", "split": split, "composition": composition, "weight": 1.0, "control": "", "chosen": 1}
        row |= {"effective": 1, "layer": 2, "role": "all", "parts": ""}
        if composition != "all":
            row["parts"] = " · ".join(f"module {m}" for m in composition.split("+"))
        for rung in LADDER:
            rows.append(row | {"rung": rung, "value": 0.5 if broken else 0.9})
    save(folder, "inference_or_execution", [*rows, rows[0] | {"control": "untrained"}])
    drawing = analyze("which_factors_fail", [folder])
    loss = marks(drawing, "Points", label="loss").set_index("x")["y"].astype(float)
    band = marks(drawing, "Band").set_index("x")[["lo", "hi"]].astype(float)
    assert loss["0"] == pytest.approx(0.5) and loss.drop("0").max() < 0.3
    assert loss["0"] > band.loc["0", "hi"]
    assert (loss.drop("0") <= band.drop("0")["hi"]).all()
    execution = marks(drawing, "Points", label="execution").set_index("x")["y"].astype(float)
    unexplained = decomposition.by_factor(Measured.read(folder), 1.0).set_index("factor")["unexplained"]
    assert execution["0"] + unexplained["module 0"] == pytest.approx(0.5)
