"""Depths of transformers on linear regression, and what readouts find in them, as shipped: every number of the findings."""

from pathlib import Path

import findings
import pytest

from compolens import tables
from compolens.foundation import map_files
from compolens.maps.work import one_of
from compolens.references import LeastSquares
from compolens.zoo.folders import read_run

ROOT = Path(__file__).parents[2]
MAP = ROOT / "trained_models" / "maps" / "regression_depth"
PAGE = (ROOT / "docs" / "findings" / "which_learner.md").read_text(encoding="utf-8")
LONGER, RATES = (MAP.parent / name for name in ("regression_longer", "regression_rates"))
DEPTHS = tuple(range(1, 9))
REFERENCES = ("GD, 1 step", "GD, 2 steps", "GD++, 2 steps", "ridge, l2 0.1", "least squares")
NAMES = dict(
    zip(("descent, 1 step", "descent, 2 steps", "GD++, 2 steps", "ridge, .1", "least squares"), REFERENCES, strict=True)
)
"""What the page calls a reference -> its name."""
PAPER = 0.01
"""Below it is the mean squared distance of the models of 2211.15661 from least squares."""
MODELS, CONTROLS = ([MAP / "cells" / f"layers=4_weights={kind}_seed={s}" for s in range(3)] for kind in ("normal", "1"))
TARGETS = {"XᵀY": "moments", "w": "weights"}
TASKS = ("as fitted", "other inputs", "weights × 2")


@pytest.fixture(scope="module")
def table():
    return map_files.read_table(MAP)


@pytest.fixture(scope="module")
def by_updates(table):
    """Updates -> the rows of four and eight layers."""
    short = table[table["layers"].isin([4, 8]) & (table["weights"] == "normal")]
    return {"2,500": short, "5,000": map_files.read_table(LONGER).assign(weights="normal")}


def told(value, digits=2):
    return f"{value:.{digits}f}".replace("0.", ".", 1)


def spread(values, digits=2):
    lo, hi = told(min(values), digits), told(max(values), digits)
    return lo if lo == hi else f"{lo} to {hi}"


def near(table, metric, split, depth, reference, *control, weights="normal"):
    """A value per seed."""
    here = table[(table["layers"] == depth) & (table["weights"] == weights)]
    return here[" · ".join((metric, split, "output", "last query", *control, "model", reference))].tolist()


def among(table, split, one, other, metric="sensitivity cosine"):
    return table[" · ".join((metric, split, "output", "last query", "reference", one, other))].iloc[0]


def nearest(table, split, depth, seed):
    cosines = {r: near(table, "sensitivity cosine", split, depth, r)[seed] for r in REFERENCES}
    return max(cosines, key=cosines.get)


def test_what_is_shipped_are_the_cells_of_the_file_with_fresh_tables(table):
    for folder, cells in ((MAP, 27), (LONGER, 6), (RATES, 5)):
        described = one_of(MAP.parent / "regression_depth.py", "maps", folder.name)
        assert set(map_files.read_table(folder)["cell"]) == {cell.name for cell in described.cells}
        assert len(described.cells) == cells
    described = one_of(MAP.parent / "regression_depth.py", "maps", "regression_depth")
    for folder in (*MODELS, *CONTROLS):
        assert read_run(folder) == described.cell(folder.name).run
        assert tables.why_not(folder, "moments_and_weights") == ""
    assert {path.name for path in (MAP / "cells").iterdir() if path.is_dir()} == {f.name for f in (*MODELS, *CONTROLS)}


# ---- depth -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("depth", DEPTHS)
def test_the_page_tells_scores_and_cosines_by_depth(table, depth):
    row = findings.cells(PAGE, "layers", str(depth))
    here = table[(table["layers"] == depth) & (table["weights"] == "normal")]
    expected = [spread(here["test"])] + [spread(near(table, "sensitivity cosine", "test", depth, r)) for r in NAMES.values()]
    assert row == expected


RIDGE, TWO, ONE = "ridge, l2 0.1", "GD++, 2 steps", "GD, 1 step"
MIXED = {3: (False, True, False), 5: (True, True, False)}
"""Depths of which some seeds are nearest to ridge: which."""


def test_descent_then_gd_plus_plus_then_ridge_are_nearest_in_every_seed_but_of_three_and_five_layers(table):
    found = {depth: [nearest(table, "test", depth, seed) for seed in range(3)] for depth in DEPTHS}
    expected = {1: ["GD, 2 steps"] * 3, 2: [TWO] * 3, **{depth: [RIDGE] * 3 for depth in (4, 6, 7, 8)}}
    assert found == expected | {depth: [RIDGE if seed else TWO for seed in seeds] for depth, seeds in MIXED.items()}
    for one, other in (("GD, 1 step", "GD, 2 steps"), ("GD, 2 steps", "GD++, 2 steps")):
        assert told(among(table, "test", one, other), 3) == ".997"
    assert told(among(table, "test", "ridge, l2 0.1", "least squares"), 3) == ".947"
    assert told(among(table, "test", "ridge, l2 0.1", "GD++, 2 steps"), 2) == ".87"


def test_by_distance_two_layers_are_between_gd_plus_plus_and_ridge_and_least_squares_is_far(table):
    assert spread(near(table, "SPD", "test", 2, "GD++, 2 steps")) == ".12 to .14"
    assert spread(near(table, "SPD", "test", 2, "ridge, l2 0.1")) == ".17 to .19"
    assert spread(near(table, "SPD", "test", 4, "ridge, l2 0.1")) == ".05 to .10"
    middle = [value for depth in (5, 6, 7) for value in near(table, "SPD", "test", depth, "least squares")]
    four, eight = (near(table, "SPD", "test", depth, "least squares") for depth in (4, 8))
    assert [spread(v) for v in (four, middle, eight)] == [".19 to .26", ".14 to .32", ".24 to .30"]
    assert told(among(table, "test", "ridge, l2 0.1", "least squares", "SPD")) == ".10"
    assert max(near(table, "SPD", "test", 4, "least squares", weights="1")) < 1e-4


def test_on_wider_inputs_what_was_nearest_to_ridge_stays_so_and_the_rest_is_nearest_to_one_step(table):
    stay = []
    for depth in DEPTHS:
        for seed in range(3):
            was, now = (nearest(table, split, depth, seed) for split in ("test", "ood"))
            assert now == (RIDGE if was == RIDGE else ONE)
            if was == RIDGE:
                stay.append(near(table, "sensitivity cosine", "ood", depth, RIDGE)[seed])
    assert spread(stay) == ".86 to .94"
    here = table[table["weights"] == "normal"]
    assert (here["test"] - here["ood"]).between(0, 0.03).all() and told((here["test"] - here["ood"]).max(), 3) == ".029"


# ---- longer training ----------------------------------------------------------------------------------------------------
def test_the_learning_rate_of_four_layers_is_the_best_of_five_for_eight():
    rates = map_files.read_table(RATES).set_index("lr")["train"]
    assert (
        rates.idxmax() == 3.2e-2 == one_of(MAP.parent / "regression_depth.py", "maps", LONGER.name).cells[0].run.optimizer.lr
    )
    said = ", ".join(f"{told(value)} at {rate:g}" for rate, value in rates.items())
    assert said in " ".join(PAGE.split())


@pytest.mark.parametrize("updates", ["2,500", "5,000"])
@pytest.mark.parametrize("depth", [4, 8])
def test_the_page_tells_what_longer_training_does(by_updates, depth, updates):
    rows = by_updates[updates]
    here = rows[rows["layers"] == depth]
    cosines = [spread(near(rows, "sensitivity cosine", "test", depth, r)) for r in REFERENCES[-3:]]
    distances = [spread(near(rows, "SPD", "test", depth, r)) for r in REFERENCES[-2:]]
    row = findings.cells(PAGE, "layers, updates", f"{depth}, {updates}")
    assert row == [spread(here["test"]), spread(here["ood"]), *cosines, *distances]


def test_training_moves_both_depths_in_every_seed_and_ridge_stays_nearest(by_updates):
    short, long = by_updates["2,500"], by_updates["5,000"]
    for depth in (4, 8):
        for reference in ("ridge, l2 0.1", "least squares"):
            before, after = (near(rows, "SPD", "test", depth, reference) for rows in (short, long))
            assert all(a > b for a, b in zip(before, after, strict=True))
        before, after = (rows[rows["layers"] == depth].sort_values("seed")["test"] for rows in (short, long))
        assert all(a < b for a, b in zip(before, after, strict=True))
        for split in ("test", "ood"):
            assert {nearest(long, split, depth, seed) for seed in range(3)} == {RIDGE}
        assert min(near(long, "SPD", "test", depth, "least squares")) > 10 * PAPER
        assert min(near(long, "SPD", "test", depth, "least squares")) > among(long, "test", RIDGE, "least squares", "SPD")


def test_controls_are_near_nothing(table, by_updates):
    for rows, depths in ((table, DEPTHS), (by_updates["5,000"], (4, 8))):
        for control in ("untrained", "shuffled"):
            values = [v for d in depths for r in REFERENCES for v in near(rows, "sensitivity cosine", "test", d, r, control)]
            assert len(values) == 3 * len(depths) * len(REFERENCES) and max(map(abs, values)) < 0.03


def test_the_score_of_least_squares_and_of_the_control_model_are_those_on_the_page(table):
    task = read_run(MODELS[0]).task
    episodes = task.sample(16384, "test", task.rng(0, "test"))
    assert told(task.score(LeastSquares().predict(task, episodes), episodes.targets)) == ".72"
    control = table[table["weights"] == "1"]
    assert (control["test"] > 0.999).all() and spread(control["ood"]) == "-1.03 to -.97"


# ---- readouts --------------------------------------------------------------------------------------------------------
def best(folder, target, shown, control="", tasks="as fitted", readout="two layers"):
    """(R², layer) of the best layer; of the tokens themselves, their R²."""
    rows = tables.read(folder, "moments_and_weights")
    rows = rows[(rows["metric"] == "r2") & (rows["target"] == target) & (rows["shown"].astype(int) == shown)]
    rows = rows[(rows["tasks"] == tasks) & (rows["readout"] == readout) & (rows["control"] == control)]
    top = rows.loc[rows["value"].idxmax()]
    return float(top["value"]), int(top["layer"])


def over(folders, *where, **more):
    return [best(folder, *where, **more)[0] for folder in folders]


@pytest.mark.parametrize("shown", [2, 4, 8])
@pytest.mark.parametrize("words", TARGETS)
def test_the_page_tells_what_two_layers_read_at_the_best_layer(words, shown):
    row, target = findings.cells(PAGE, "read, after n examples", f"{words}, {shown}"), TARGETS[words]
    assert row == [
        *(spread(over(MODELS, target, shown, tasks=tasks)) for tasks in TASKS),
        spread(over(MODELS, target, shown, control="untrained")),
        spread(over(CONTROLS, target, shown)),
        spread(over(MODELS, target, shown, control="raw input")),
    ]


def test_weights_are_read_above_every_control_in_every_seed_and_sums_in_two(table):
    for shown in (2, 4, 8):
        for tasks in TASKS:
            fresh = max(over(MODELS, "weights", shown, control="untrained", tasks=tasks))
            assert min(over(MODELS, "weights", shown, tasks=tasks)) > fresh + 0.06
        apart = [
            own - fresh
            for own, fresh in zip(
                over(MODELS, "moments", shown), over(MODELS, "moments", shown, control="untrained"), strict=True
            )
        ]
        assert min(apart) == apart[1] and apart[0] > 0.04 and apart[2] > 0.04
    assert abs(best(MODELS[1], "moments", 2)[0] - best(MODELS[1], "moments", 2, control="untrained")[0]) < 0.01


def test_the_control_model_shows_less_than_untrained_ones_and_linear_maps_find_next_to_nothing():
    for target in TARGETS.values():
        for shown in (2, 4, 8):
            fresh = over(CONTROLS, target, shown, control="untrained")
            assert all(a < b for a, b in zip(over(CONTROLS, target, shown), fresh, strict=True))
            own = over(MODELS, target, shown, readout="linear")
            assert max(own) < 0.085
            linear = over(MODELS, target, shown, control="untrained", readout="linear")
            assert min(linear) > 0.075 and max(linear) < 0.175
            assert all(a < b for a, b in zip(own, linear, strict=True))
            assert all(a < b for a, b in zip(own, over(MODELS, target, shown), strict=True))
            assert max(over([*MODELS, *CONTROLS], target, shown, control="shuffled")) < 0


def test_sums_are_never_read_best_at_a_later_layer_than_weights():
    layers = [
        (best(folder, "moments", shown)[1], best(folder, "weights", shown)[1]) for folder in MODELS for shown in (2, 4, 8)
    ]
    assert all(a <= b for a, b in layers) and sum(a < b for a, b in layers) == 6
