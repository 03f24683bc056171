"""F at tuned settings, as shipped: the numbers that the findings tell."""

import re
import warnings
from pathlib import Path

import findings
import numpy as np
import pytest
from findings import by_seed, gap, scores, shown, with_interval

from compolens import tables, tuned
from compolens.cli import main
from compolens.cli.train import read_runs
from compolens.foundation import map_files
from compolens.measures.intervals import mean_interval
from compolens.zoo.folders import read_run

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "trained_models"
PAGE = (ROOT / "docs" / "findings" / "hyperteacher.md").read_text()
NAMES = {"vanilla transformer": "softmax", "hypernetwork transformer": "hypernetwork"}
NAMES |= {"wide bottleneck": "bottleneck-wide", "bottleneck": "bottleneck"}


def model(told):
    """Size and architecture of a row of the page: what is not said to be of R is of F."""
    who, _, size = told.partition(", ")
    return size or "F", NAMES[who]


@pytest.mark.parametrize("told", [*NAMES, "vanilla transformer, R", "hypernetwork transformer, R"])
def test_the_page_tells_what_was_chosen(told):
    found = re.search(rf"^\| {told} \| ([^|]+) \| ([^|]+) \| (\S+) \| (\S+) \|$", PAGE, re.MULTILINE)
    size, who = model(told)
    choice = tuned(ZOO / "tuning" / size)[who].choice
    for cell, name in zip(found.groups()[:2], ("lr", "weight_decay"), strict=True):
        assert float(cell.split(",")[0]) == choice.settings[name]
        assert (name in choice.edges) == ("at the edge" in cell)
    assert found[3] == shown(choice.held_out)
    table = map_files.read_table(ZOO / "tuning" / size)
    slow = table[(table["who"] == who) & (table["lr"] == 1e-3)]
    assert found[4] == shown(slow.loc[slow["validation"].idxmax(), "ood"])
    assert choice.tried == {"F": 15, "R": 18}[size]


@pytest.mark.parametrize("told", ["vanilla transformer", "hypernetwork transformer"])
def test_the_page_tells_the_scores_of_tuned_models(told):
    name = f"F-{NAMES[told]}"
    means = [np.mean(scores(f"{place}{name}", split)) for split in ("test", "ood") for place in ("", "tuned/")]
    seeds = " ".join(map(shown, scores(f"tuned/{name}")))
    assert findings.cells(PAGE, "R²", told) == [*map(shown, means), seeds]


def test_the_page_tells_what_is_left_of_the_gap_and_what_tuning_gains():
    plain = " ".join(PAGE.split())
    before, after = (gap(f"{place}F-hypernetwork", f"{place}F-softmax") for place in ("", "tuned/"))
    assert f"falls from {with_interval(before)} to {with_interval(after)}" in plain and after[1] > 0
    ours, theirs = (gap(f"tuned/F-{who}", f"F-{who}") for who in ("softmax", "hypernetwork"))
    assert f"gains the vanilla transformer {with_interval(ours)}" in plain and with_interval(theirs) in plain
    assert 0.7 < 1 - after[0] / before[0] < 0.75, "nearly three quarters"
    assert f"by {shown(after[0])} in R² on held-out combinations" in plain and f"the gap was {shown(before[0])}" in plain
    lack, more = (
        np.mean(scores("tuned/F-hypernetwork", "test")) - np.mean(scores("tuned/F-softmax", "test")),
        np.mean(scores("tuned/F-softmax", "test")) - np.mean(scores("tuned/F-softmax")),
    )
    assert (
        f"{shown(lack)} below the hypernetwork transformer. From there to held-out compositions it loses {shown(more)}"
        in plain
    )


@pytest.mark.parametrize("told", ["wide bottleneck", "bottleneck", "vanilla transformer, R", "hypernetwork transformer, R"])
def test_the_page_tells_the_scores_of_the_other_tuned_models(told):
    name = "tuned/" + "-".join(model(told))
    means = [shown(np.mean(scores(name, split))) for split in ("test", "ood")]
    assert findings.cells(PAGE, "tuned", told) == [*means, " ".join(map(shown, scores(name)))]


def test_the_page_tells_what_tuning_changes_of_bottlenecks_and_at_the_smaller_size():
    plain = " ".join(PAGE.split())
    wide, reversed_ = gap("tuned/F-softmax", "tuned/F-bottleneck-wide"), gap("tuned/R-softmax", "tuned/R-hypernetwork")
    assert plain.count(f"{with_interval(wide)} below the vanilla") == plain.count(f"transformer by {with_interval(wide)}") == 1
    mean, *bootstrap = reversed_
    student = mean_interval(by_seed("tuned/R-softmax", "tuned/R-hypernetwork"))
    assert (by_seed("tuned/R-softmax", "tuned/R-hypernetwork") > 0).sum() == 4 and plain.count("four of five") == 1
    told = [f"[{shown(lo)}, {shown(hi)}]".replace("-", "\N{MINUS SIGN}") for lo, hi in (bootstrap, student)]
    assert f"by {shown(mean)} in the mean (bootstrap {told[0]}, Student's t {told[1]})" in plain
    assert f"compositions gives {told[0]}, Student's t over the five seeds {told[1]}" in plain
    assert wide[1] > 0 and bootstrap[0] > 0 > student[0]
    better = np.mean(scores("tuned/R-hypernetwork", "test")) - np.mean(scores("tuned/R-softmax", "test"))
    assert f"On training compositions the hypernetwork transformer scores {shown(better)} more." in plain
    low, high = tuned(ZOO / "tuning" / "R")["hypernetwork"].choice.held_out_range
    assert f"score {shown(low)} to {shown(high)} on held-out ones" in plain
    table = map_files.read_table(ZOO / "tuning" / "R")
    own = table[(table["who"] == "softmax") & (table["weight_decay"] == 0.1)]
    own = own.set_index(own["lr"].round(3))
    told = [own.loc[0.111, "test"], own.loc[0.01, "test"], own.loc[0.01, "ood"]]
    assert "{} against {} at .01, where the held-out score is {}".format(*map(shown, told)) in plain
    index = (ROOT / "docs" / "findings" / "index.md").read_text(encoding="utf-8")
    assert "the order reverses, tuned in four seeds of five" in index


def test_the_page_tells_what_regression_on_the_examples_alone_scores():
    plain = " ".join(PAGE.split())

    def known(size, reference):
        folders = [ZOO / "tuned" / f"{size}-softmax-{s}" for s in range(5)]
        rows = [tables.pooled(folder) for folder in folders]
        rows = [r[(r["reference"] == reference) & (r["split"] == "ood")] for r in rows]
        return [float(r["value"].item()) for r in rows]

    small, large, linear = (
        known("R", "in-context kernel ridge"),
        known("F", "in-context kernel ridge"),
        known("R", "in-context ridge"),
    )
    best = max(*scores("tuned/R-softmax"), *scores("tuned/R-hypernetwork"))
    assert f"scores {shown(min(small))} to {shown(max(small))} on held-out" in plain and min(small) > best
    assert f"(at F {shown(min(large))} to {shown(max(large))})" in plain
    assert f"raw inputs reaches {min(linear):.2f} to {max(linear):.2f}".replace("0.", ".") in plain


def test_the_readme_tells_both_gaps():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    before, after = (with_interval(gap(f"{place}F-hypernetwork", f"{place}F-softmax")) for place in ("", "tuned/"))
    assert f"scores {before} below" in readme and f"with both tuned, {after}." in readme
    lowest = min(min(scores(f"{place}F-{who}", "test")) for place in ("", "tuned/") for who in ("softmax", "hypernetwork"))
    assert f"All score {shown(lowest, 2)} or more in R² on the module combinations they were trained on" in readme


def test_tuned_models_are_those_that_the_recipe_describes():
    described = read_runs(ZOO / "tuned_runs.py")
    for folder in sorted(p.parent for p in ZOO.glob("tuned/*/config.json")):
        assert read_run(folder) == described[folder.name]


# ---- why ---------------------------------------------------------------------------------------------------------------
WHY = (ROOT / "docs" / "findings" / "why_it_fails.md").read_text(encoding="utf-8")
GROUPS = [
    *(ZOO / "tuned" / f"F-{who}-{s}" for who in ("softmax", "hypernetwork") for s in range(5)),
    *sorted(ZOO.glob("tuned/F-bottleneck-*")),
    *sorted(ZOO.glob("tuned/R-*")),
]


def test_the_table_of_tuned_models_is_the_commands_output(capsys):
    assert main(["models", *map(str, GROUPS), "--diagnosis"]) == 0
    start = (
        "<!-- tuned: compolens models trained_models/tuned/F-softmax-? trained_models/tuned/F-hypernetwork-? "
        "trained_models/tuned/F-bottleneck-* trained_models/tuned/R-* --diagnosis -->"
    )
    assert capsys.readouterr().out.strip() == WHY.split(start)[1].split("<!-- /tuned -->")[0].strip()


def test_the_page_tells_why_the_tuned_wide_bottleneck_fails():
    plain, tuned_ = " ".join(WHY.split()), WHY.split("<!-- tuned: ")[1].split("<!-- /tuned -->")[0]
    line = next(line for line in tuned_.splitlines() if "(d_hidden 256)" in line)
    _, _, _, label, _, lacks, _, inference, _, execution, *_ = findings.columns(line)
    assert label == "fails to infer"
    told = [shown(float(cell.split()[0])) for cell in (inference, lacks, execution)]
    assert "the right code wins {} of the {} that it lacks, and {} is left to execution".format(*told) in plain
    before = WHY.split("<!-- why: ")[1].split("<!-- /why -->")[0]
    assert findings.columns(next(line for line in before.splitlines() if "Bottleneck" in line))[3] == "cannot execute"
    narrow = next(line for line in tuned_.splitlines() if "(d_hidden 64)" in line)
    assert findings.columns(narrow)[3] == "has not learned its training compositions"


def moved(folder, probe="inference_or_execution", metric="recovered", **where):
    """How far another code, written at the best site, moves answers of training compositions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tables.StaleTable)
        rows = tables.at_last_step(tables.read(folder, probe))
    rows = rows[(rows["metric"] == metric) & (rows["control"] == "") & (rows["split"] == "train")]
    rows = rows[rows["composition"] == "all"]
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows["value"].max()


def test_the_page_tells_how_far_written_codes_move_answers_of_every_seed():
    first = {"site": "blocks.0.hook_resid_post", "role": "context"}
    tuned_, before = ([ZOO / place / f"F-softmax-{s}" for s in range(5)] for place in ("tuned", ""))
    told = [[moved(f, **first) for f in before], [moved(f, **first) for f in tuned_], [moved(f) for f in tuned_]]
    told.append([moved(f, "nonlinear_code", "recovered, left out") for f in tuned_])
    plain = " ".join(WHY.split())
    for values in told:
        assert " ".join(f"{v:.2f}".replace("0.", ".", 1) for v in values) in plain
    assert min(told[0]) > 0.7 and max(told[1]) < 0.1 and max(*told[2], *told[3]) < 0.5
    assert all(moved(f) == moved(f, site="blocks.0.hook_resid_pre") for f in tuned_), "the embedding"


# ---- lengths of training ------------------------------------------------------------------------------------------
LENGTHS = map_files.read_table(ZOO / "maps" / "budgets")
LEARNERS = ("softmax", "hypernetwork", "bottleneck")


def of_length(who, updates):
    """(on training compositions, held out) of seeds 0 to 2; those with 6,000 updates are the tuned models."""
    if updates == 6000:
        return tuple(np.array(scores(f"tuned/F-{who}", split)[:3]) for split in ("test", "ood"))
    rows = LENGTHS[(LENGTHS["learner"] == who) & (LENGTHS["steps"] == updates)].sort_values("seed")
    assert rows["seed"].tolist() == [0, 1, 2]
    return rows["test"].to_numpy(), rows["ood"].to_numpy()


def test_the_page_tells_scores_by_length_of_training():
    told = findings.rows(PAGE, "updates")
    assert [row[0] for row in told] == ["1,500", "3,000", "4,500", "6,000"]
    for updates, *cells in told:
        means = (np.mean(split) for who in LEARNERS for split in of_length(who, int(updates.replace(",", ""))))
        assert cells == [shown(mean) for mean in means], updates


def test_the_page_tells_where_the_lengths_lead():
    plain, lengths = " ".join(PAGE.split()), (1500, 3000, 4500, 6000)
    runs = {who: {n: of_length(who, n) for n in lengths} for who in LEARNERS}
    trained, held_out = ({w: np.array([of[n][i] for n in lengths]) for w, of in runs.items()} for i in (0, 1))
    best, worst = trained["softmax"].max(), trained["hypernetwork"].min()
    assert best == trained["softmax"][-1].max() < worst == trained["hypernetwork"][0].min(), "they do not overlap"
    assert f"scores {shown(best)} there, and the hypernetwork transformer's worst, after 1,500, {shown(worst)}" in plain
    ratios = [(1 - of["softmax"][-1]) / (1 - of["hypernetwork"][0]) for of in (held_out, trained)]
    told = [", ".join(f"{r:.1f}" for r in ratio[:2]) + f" and {ratio[2]:.1f} times" for ratio in ratios]
    assert f"held-out error is {told[0]} as large (seeds 0 to 2), its in-distribution error {told[1]}" in plain
    logs = [np.log(1 - np.concatenate([of["softmax"], of["hypernetwork"]]).ravel()) for of in (trained, held_out)]
    assert len(logs[0]) == 24 and f"correlate with {shown(np.corrcoef(*logs)[0, 1], 2)}." in plain
    falls = held_out["bottleneck"][0] - held_out["bottleneck"][-1]
    assert "it falls in each seed, by {}, {} and {}.".format(*map(shown, falls)) in plain and (falls > 0).all()
    assert (np.diff(trained["bottleneck"], axis=0) > 0).all()
    assert all((np.diff(of["softmax"], axis=0) > 0).all() for of in (trained, held_out))
    assert held_out["hypernetwork"][-1].mean() < held_out["hypernetwork"][-2].mean()
    assert trained["bottleneck"].max() < min(trained["softmax"].min(), worst)
