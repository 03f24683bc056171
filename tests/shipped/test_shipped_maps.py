"""Maps that are shipped: unfinished ones stand on the page with their cells, finished ones with numbers and a verdict."""

import re
from pathlib import Path

import findings
import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from compolens import tables
from compolens.foundation import map_files
from compolens.maps.work import one_of
from compolens.measures.intervals import mean_interval
from compolens.measures.phases import crossing, crossings, lasting
from compolens.zoo.folders import read_run

ROOT = Path(__file__).parents[2]
MAPS = ROOT / "trained_models" / "maps"
TEXT = (ROOT / "docs" / "findings" / "what_predicts.md").read_text(encoding="utf-8")
PAGE = " ".join(TEXT.split())


def test_a_map_in_training_stands_with_its_cells():
    told = re.findall(r"`([\w-]+)` is in training, with (\d+) of its (\d+) cells", PAGE)
    assert [name for name, *_ in told] == ["instances"]
    for name, done, cells in told:
        table, described = map_files.read_table(MAPS / name), one_of(MAPS / f"{name}.py", "maps", name)
        assert len(table) == int(done) < int(cells) == len(described.cells)
        assert set(table["cell"]) <= {cell.name for cell in described.cells}
    begun = (
        "Of these maps `diversity` is trained, `connectedness` where its rule looks (student width 1; 1 and 8 outputs; five "
        "seeds), `pairs` at 8, 12 and 18 pairs, and `initialisation` and `initialisation-discrete` where their rules look; "
        "the vanilla transformer's connectedness has not begun."
    )
    assert "`depth` is trained whole" in PAGE
    assert len(map_files.read_table(MAPS / "depth")) == len(one_of(MAPS / "depth.py", "maps", "depth").cells)
    assert begun in PAGE and not (MAPS / "connectedness-vanilla").exists()


# ---- task diversity --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def diversity():
    return map_files.read_table(MAPS / "diversity").assign(ratio=lambda t: (1 - t["ood"]) / (1 - t["test"]))


def of(table, angle, d_x):
    return table[(table["half-angle"] == angle) & (table["d_x"] == d_x)]


def test_every_cell_is_trained_and_learned_its_tasks(diversity):
    described = one_of(MAPS / "diversity.py", "maps", "diversity")
    assert sorted(diversity["cell"]) == sorted(cell.name for cell in described.cells)
    assert f"{len(described.cells)} softmax transformers" in PAGE and (diversity["test"] >= described.learned).all()


def test_the_page_tells_scores_and_errors_at_every_angle(diversity):
    rows = findings.rows(TEXT, "half-angle, degrees")
    assert [float(angle) for angle, *_ in rows] == sorted(set(diversity["half-angle"]))
    for angle, *told in rows:
        expected = []
        for d_x in (4, 8):
            cells = of(diversity, float(angle), d_x)
            ratio = np.exp(np.log(cells["ratio"]).mean())
            expected += [f"{cells[split].mean():.4f}".removeprefix("0") for split in ("test", "ood")]
            expected.append(f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}")
        assert told == expected, angle


def test_the_verdict_on_task_diversity_follows_from_its_rule(diversity):
    found = [crossing(diversity[diversity["d_x"] == d_x], "half-angle", 0.9, 0.9) for d_x in (4, 8)]
    first, second = (f"{c.at:.1f} [{c.lo:.1f}, {c.hi:.1f}]" for c in found)
    assert f"crosses .9 at {first} degrees with 4 inputs and at {second} with 8" in PAGE
    for d_x in (4, 8):
        seeds = diversity[diversity["d_x"] == d_x].sort_values("half-angle").groupby("seed")
        at = np.array([crossings(one["half-angle"].to_numpy(float), one["ood"].to_numpy(), 0.9)[0] for _, one in seeds])
        lo, hi = mean_interval(at)
        assert " ".join(f"{x:.1f}" for x in at) in PAGE and f"[{lo:.1f}, {hi:.1f}]" in PAGE and hi < 105
    assert max(c.hi for c in found) < 105 and "**The law fails, by the rule above.**" in PAGE
    (name,) = re.findall(r"`trained_models/maps/diversity/cells/([^`]+)`", PAGE)
    cell = diversity.set_index("cell").loc[name]
    run = read_run(MAPS / "diversity" / "cells" / name)
    assert run.task.prior.half_angle == 90 and f"and scores {cell['ood']:.3f} there".replace("0.", ".") in PAGE


def test_what_is_said_of_the_ratio_of_errors(diversity):
    ratio = np.log(diversity["ratio"]).groupby([diversity["d_x"], diversity["half-angle"]]).mean()
    ratio = np.exp(ratio.unstack("d_x"))
    assert (ratio.loc[90] > 2).all()
    assert ratio.loc[105, 4] > 1.5 > ratio.loc[120, 4] and ratio.loc[90, 8] > 1.5 > ratio.loc[105, 8]
    steps = -np.diff(ratio.loc[60:], axis=0)
    assert (steps > 0).all() and (np.diff(steps, axis=0) < 0).all()


# ---- connected supports ----------------------------------------------------------------------------------------------
CONNECTED = MAPS / "connectedness"
SUPPORTS = ("cube", "two cliques")


@pytest.fixture(scope="module")
def supports():
    return map_files.read_table(CONNECTED)


def shown(value, digits=3):
    return f"{value:.{digits}f}".replace("0.", ".", 1).replace("-", "\N{MINUS SIGN}")


def apart(table, outputs):
    """Cube less two cliques on held-out pairs, by seed."""
    scores = table[table["d_y"] == outputs].pivot(index="seed", columns="support", values="ood")
    return (scores["cube"] - scores["two cliques"]).to_numpy()


def spread(values):
    lo, hi = mean_interval(values)
    return f"{shown(values.mean())} [{shown(lo)}, {shown(hi)}]"


def test_the_map_of_supports_holds_the_cells_that_its_rule_looks_at_and_all_learned(supports):
    described = one_of(MAPS / "connectedness.py", "maps", "connectedness")
    asked = {cell.name for cell in described.cells if cell.knobs["student width"] == 1 and cell.knobs["d_y"] in (1, 8)}
    assert set(supports["cell"]) == asked and len(asked) == 20 and (supports["test"] >= described.learned).all()


def test_the_page_tells_scores_and_differences_of_supports(supports):
    for outputs, *told in findings.rows(TEXT, "outputs"):
        here = supports[supports["d_y"] == int(outputs)]
        means = [shown(here[here["support"] == who][split].mean()) for who in SUPPORTS for split in ("test", "ood")]
        differences = apart(supports, int(outputs))
        assert told == [*means, " ".join(map(shown, differences)), spread(differences)]


def test_the_verdict_on_connected_supports_follows_from_its_rule(supports):
    one, eight = apart(supports, 1), apart(supports, 8)
    lo, hi = mean_interval(one)
    assert 0 < lo < hi < 0.1 and (one > 0).all() and f"the interval ends at {shown(hi)}." in PAGE
    assert f"the difference with one output is larger by {spread(one - eight)}" in PAGE
    assert mean_interval(one - eight)[0] < 0 and PAGE.count("**The law fails, by the rule above.**") == 2


def test_the_rate_of_the_maps_of_supports_is_the_best_at_every_corner():
    rates = map_files.read_table(MAPS / "rates")
    best = rates.loc[rates.groupby("corner")["validation"].idxmax(), "lr"]
    assert len(best) == 4 and set(best) == {3e-3} == set(read_rates())


def read_rates():
    return [read_run(cell).optimizer.lr for cell in (CONNECTED / "cells").iterdir()]


def test_what_is_said_of_the_counterexample_and_of_alignment(supports):
    cell = "support=two-cliques_d_y={}_student-width=1.0_seed=0"
    assert f"`trained_models/maps/connectedness/cells/{cell.format(8)}`" in PAGE
    texts = {
        8: "it scores {} on pairs between them. Kernel ridge on the examples, which knows no modules, has {}.",
        1: "two cliques have {} in seed 0, kernel ridge on the examples {}.",
    }
    for outputs, text in texts.items():
        frame = tables.pooled(CONNECTED / "cells" / cell.format(outputs))
        frame = frame[frame["split"] == "ood"]
        ridge = frame[frame["reference"] == "in-context kernel ridge"]["value"].item()
        assert text.format(shown(frame[frame["control"] == ""]["value"].item()), shown(ridge)) in PAGE
    at = "mean alignment · test · hook_code · readout"
    means = supports.groupby(["d_y", "support"])[[at, f"{at} · random"]].mean().round(2)
    told = [[f"{means.loc[(d_y, who), at]:.2f}".removeprefix("0") for who in SUPPORTS] for d_y in (1, 8)]
    text = (
        "align with the teacher's to {} (cube) and {} (two cliques), random matrices to .15; with eight outputs to {} and {}."
    )
    assert text.format(*told[0], *told[1]) in PAGE and (means[f"{at} · random"] == 0.15).all()


# ---- more pairs ------------------------------------------------------------------------------------------------------
LEARNERS = {"vanilla": "softmax", "hypernetwork": "hypernetwork"}


@pytest.fixture(scope="module")
def pairs():
    return map_files.read_table(MAPS / "pairs")


def more(table, who, most=18, split="ood"):
    """The score with so many pairs less that with 8, by seed."""
    scores = table[table["learner"] == who].pivot(index="seed", columns="pairs shown", values=split)
    return (scores[most] - scores[8]).to_numpy()


def test_the_map_of_pairs_holds_whole_columns_and_all_learned(pairs):
    described = one_of(MAPS / "connectedness.py", "maps", "pairs")
    asked = {cell.name for cell in described.cells if cell.knobs["pairs shown"] in (8, 12, 18)}
    assert set(pairs["cell"]) == asked and len(asked) == 30 and (pairs["test"] >= described.learned).all()
    runs = [cell.run for cell in described.cells if cell.name in asked]
    assert len({(run.steps, run.batch_size, run.precision, run.optimizer.lr, run.task.held_out) for run in runs}) == 1
    assert "30 transformers (2,500 steps, five seeds, rate 3e-3)" in PAGE and runs[0].optimizer.lr == 3e-3


def test_the_page_tells_scores_and_gains_by_pairs_shown(pairs):
    for count, *told in findings.rows(TEXT, "pairs shown"):
        here = pairs[pairs["pairs shown"] == int(count)]
        assert told == [
            shown(here[here["learner"] == who][split].mean()) for who in LEARNERS.values() for split in ("test", "ood")
        ]
    for who, *told in findings.rows(TEXT, "held out, 18 pairs less 8"):
        gains = more(pairs, LEARNERS[who])
        assert told == [" ".join(map(shown, gains)), spread(gains)]


def test_the_verdict_on_more_pairs_follows_from_its_rule(pairs):
    vanilla, hypernetwork = (more(pairs, who) for who in LEARNERS.values())
    assert all((gains > 0).all() and mean_interval(gains)[0] > 0 for gains in (vanilla, hypernetwork))
    assert "**The law holds, by the rule above.** Both architectures gain in every seed" in PAGE
    assert f"It gains {spread(vanilla - hypernetwork)} more." in PAGE and mean_interval(vanilla - hypernetwork)[0] < 0
    falls = -more(pairs, "softmax", split="test").mean()
    assert f"that of the vanilla transformer falls by {shown(falls)}." in PAGE
    assert abs(more(pairs, "hypernetwork", split="test").mean()) < 0.001


# ---- initial scale and decay -----------------------------------------------------------------------------------------
KINDS = {"fresh": "initialisation", "discrete": "initialisation-discrete"}
SCALES, WINDOWS = (0.3, 0.5, 0.7, 1.0), ("none", "early", "middle", "late")


@pytest.fixture(scope="module")
def scales():
    return {kind: map_files.read_table(MAPS / name) for kind, name in KINDS.items()}


def by_scale(table):
    """Held-out score at the largest scale at which a run learned, less that at the smallest, by seed."""
    found = []
    for _, runs in table[(table["decay"] == "none") & (table["test"] >= 0.9)].groupby("seed"):
        scores = runs.sort_values("gamma")["ood"]
        found += [scores.iloc[-1] - scores.iloc[0]] if len(scores) > 1 else []
    return np.array(found)


def less(table, first, second):
    """The held-out score in one column of the map less that in another, by seed, where both runs learned."""
    runs = table[table["test"] >= 0.9]
    a, b = (runs[(runs["gamma"] == gamma) & (runs["decay"] == window)] for gamma, window in (first, second))
    a, b = (one.set_index("seed")["ood"] for one in (a, b))
    return (a - b).dropna().to_numpy()


def windows(table, first, second):
    return less(table, (0.5, first), (0.5, second))


def test_the_maps_of_scales_hold_what_their_rules_look_at(scales):
    for kind, table in scales.items():
        described = one_of(MAPS / "memorisation.py", "maps", KINDS[kind])
        knobs = {cell.name: (cell.knobs["gamma"], cell.knobs["decay"]) for cell in described.cells}
        asked = {name for name, (gamma, decay) in knobs.items() if decay == "none" and gamma in SCALES}
        asked |= {name for name, (gamma, decay) in knobs.items() if decay in WINDOWS and gamma == 0.5}
        assert set(table["cell"]) == asked and len(asked) == 35 and described.learned == 0.9


def test_the_page_tells_scores_by_scale_and_by_window(scales):
    for gamma, *told in findings.rows(TEXT, "gamma, without decay"):
        expected = []
        for table in scales.values():
            here = table[(table["gamma"] == float(gamma)) & (table["decay"] == "none")]
            learned = f"{(here['test'] >= 0.9).sum()} of {len(here)}"
            expected += [*(shown(here[split].mean()) for split in ("test", "ood")), learned]
        assert told == expected, gamma
    for window, *told in findings.rows(TEXT, "window of decay, gamma .5"):
        parts = [table[(table["gamma"] == 0.5) & (table["decay"] == window)] for table in scales.values()]
        assert told == [shown(part[split].mean()) for part in parts for split in ("test", "ood")], window


def test_the_verdicts_on_scale_and_decay_follow_from_their_rules(scales):
    found = {f"{kind}: largest gamma less smallest": by_scale(table) for kind, table in scales.items()}
    for kind, table in scales.items():
        for first, second in (("middle", "early"), ("middle", "late"), ("early", "none")):
            found[f"{kind}: {first} less {second}"] = windows(table, first, second)
    told = {what: columns for what, *columns in findings.rows(TEXT, "held out, difference")}
    assert told == {what: [" ".join(map(shown, values)), spread(values)] for what, values in found.items()}
    for kind, table in scales.items():
        gains = by_scale(table)
        assert len(gains) >= 4 and mean_interval(gains)[0] > 0, kind
        ends = [mean_interval(windows(table, "middle", other)) for other in ("early", "late")]
        assert min(hi for _, hi in ends) < 0.02 and not all(lo > 0 for lo, _ in ends), kind
    for text in (
        "**Small initial weights: the law holds with both kinds of inputs, by the rule above.**",
        "**The window of decay: the law fails with both kinds of inputs, by its rule.**",
    ):
        assert text in PAGE
    steps = [spread(less(scales["fresh"], (a, "none"), (b, "none"))) for a, b in ((0.7, 0.5), (1.0, 0.7))]
    assert "gamma .7 less .5 gives {}, and 1 less .7 gives {}".format(*steps) in PAGE
    discrete = spread(less(scales["discrete"], (0.7, "none"), (0.5, "none")))
    assert f"With discrete inputs gamma .7 less .5 gives {discrete}; at 1 one run of five learned." in PAGE
    kept = sorted(path.name for path in (MAPS / "initialisation" / "cells").iterdir())
    scores = scales["fresh"].set_index("cell")["ood"]
    assert "{} and {} held out".format(*(shown(scores[name]) for name in kept)) in PAGE
    assert "the pair of models {} and {} below".format(*(f"`{name}`" for name in kept)) in PAGE


# ---- episodes and width ----------------------------------------------------------------------------------------------
def test_the_page_tells_scores_by_width_and_whom_it_does_not_count():
    table = map_files.read_table(MAPS / "instances")
    longest = table[table["episodes seen"] == 192_000]
    assert len(longest) == 18
    for width, *told in findings.rows(TEXT, "width"):
        here = longest[longest["width"] == int(width)]
        parts = [here[here["learner"] == who] for who in LEARNERS.values()]
        assert told == [shown(part[split].mean()) for part in parts for split in ("test", "ood")], width
    scores = longest[longest["learner"] == "hypernetwork"].pivot(index="seed", columns="width", values="ood")
    assert f"The hypernetwork transformer gains {spread((scores[128] - scores[32]).to_numpy())} from width 32 to 128" in PAGE
    half = table[(table["episodes seen"] == 96_000) & (table["width"] == 64)].set_index(["learner", "seed"])
    more = longest[longest["width"] == 64].set_index(["learner", "seed"])["ood"] - half["ood"]
    assert f"The hypernetwork transformer gains {spread(more['hypernetwork'].to_numpy())} from 1,500 to 3,000 updates" in PAGE
    learned = half["test"] >= 0.9
    assert learned["hypernetwork"].sum() == 3 and learned["softmax"].sum() == 2
    assert (
        f"compositions ({shown(half['test']['softmax'].min())}), so two are left: {{}} and {{}} less than with 3,000".format(
            *(shown(one) for one in more["softmax"][learned["softmax"]])
        )
        in PAGE
    )
    assert "**Episodes: it cannot be told, by the rule above.**" in PAGE
    narrow = longest[(longest["learner"] == "softmax") & (longest["width"] == 32)]
    assert (narrow["test"] < 0.9).all() and "**Width: it cannot be told, by the rule above.**" in PAGE


# ---- depth -----------------------------------------------------------------------------------------------------------
def test_the_page_tells_early_and_late_scores_of_every_run_of_other_depth():
    table, history = map_files.read_table(MAPS / "depth"), map_files.read_table(MAPS / "depth", "history.csv")
    described = one_of(MAPS / "depth.py", "maps", "depth")
    rows, found = [], {1: [], 2: [], 3: []}
    for run in table.sort_values(["layers", "seed"]).to_dict("records"):
        along = history[history["cell"] == run["cell"]]
        one = lasting(along, described.learned)
        if one.begins < 0:  # learned too late for as many evaluations
            assert (along["test"] >= described.learned).sum() < 10
            rows.append([str(run["layers"]), str(run["seed"]), *"—————"])
            continue
        early, late = (along["ood"].to_numpy()[part] for part in (slice(one.begins, one.begins + 5), slice(-5, None)))
        p = mannwhitneyu(late, early, alternative="less").pvalue
        assert one.p == p and (one.early, one.late) == pytest.approx((early.mean(), late.mean()))
        found[run["layers"]].append(one)
        began = f"{along['step'].iloc[one.begins]:,}"
        rows.append(
            [
                str(run["layers"]),
                str(run["seed"]),
                began,
                *map(shown, (one.early, one.late, one.late - one.early)),
                f"{p:.3f}".removeprefix("0"),
            ]
        )
    assert findings.rows(TEXT, "layers | seed | learned at") == rows
    deep = found[3]
    assert len(deep) == 5 and sum(one.p < 0.05 for one in deep) == 0
    assert len(found[1]) == 3 and sum(one.p < 0.05 for one in found[1]) == 0
    assert len(found[2]) == 5 and sum(one.p < 0.05 for one in found[2]) == 0
    assert "None of the five runs with 2 layers forgets" in PAGE
    for some in (deep, found[2]):
        changes = np.array([one.late - one.early for one in some])
        lo, hi = mean_interval(changes)
        assert f"late less early is {shown(changes.mean())} [{shown(lo)}, {shown(hi)}]" in PAGE
    assert "**Depth: the law fails, by the rule above.** None of the five runs with 3 layers forgets" in PAGE
