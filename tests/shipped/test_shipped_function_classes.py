"""Function classes, as shipped: what is answered to single classes and to combinations, and every number of the findings."""

from pathlib import Path

import findings
import pytest

from compolens import tables
from compolens.cli.train import read_runs
from compolens.zoo.folders import read_run

REPOSITORY = Path(__file__).parents[2]
ZOO = REPOSITORY / "trained_models"
FOLDERS = sorted(p.parent for p in ZOO.glob("function_classes/*/config.json"))
PAGE = (REPOSITORY / "docs" / "findings" / "function_classes.md").read_text(encoding="utf-8")
TRAINED, ASKED, ONE = "Bayes, prior of training", "Bayes, prior of the split", "Bayes, one normal prior"
LEARNERS = {"model": "", "Bayes, single classes": TRAINED, "Bayes, no classes": ONE, "Bayes, combinations": ASKED}
"""What the page calls a learner -> its control."""
SHOWN = (1, 2, 4, 8, 10)


def rows(folder, metric, split, control=""):
    found = tables.read(folder, "function_classes").fillna({"control": "", "part": ""})
    found = found[(found["metric"] == metric) & (found["split"] == split) & (found["control"] == control)]
    return found.assign(shown=found["shown"].astype(int))


def means(metric, split, control="", part=""):
    """Of every seed, by number of examples: the mean over compositions."""
    found = [rows(folder, metric, split, control) for folder in FOLDERS]
    return [one[one["part"] == part].groupby("shown")["value"].mean() for one in found]


def weights(split, control, which):
    """Of every seed, by number of examples: the weight of the right class, of the other one, or the sum of both."""
    found = []
    for folder in FOLDERS:
        one = rows(folder, "weight of class", split, control)
        if which == "sum":
            found.append(one.groupby(["composition", "shown"])["value"].sum().groupby("shown").mean())
        else:
            own = one[(one["part"] == one["composition"]) == (which == "right")]
            found.append(own.groupby("shown")["value"].mean())
    return found


def told(numbers):
    """Mean, least and greatest as the page writes them; a number alone where all are the same."""
    mean, low, high = (f"{v:.2f}".replace("0.", ".", 1) for v in (sum(numbers) / len(numbers), min(numbers), max(numbers)))
    return mean if low == high else f"{mean} ({low} to {high})"


def by_shown(found):
    return [told([seed[n] for seed in found]) for n in SHOWN]


def test_what_is_shipped_are_the_runs_of_the_file_with_fresh_tables():
    runs = read_runs(str(ZOO / "function_classes.py"))
    assert {f.name for f in FOLDERS} == set(runs) and len(FOLDERS) == 3
    for folder in FOLDERS:
        assert read_run(folder) == runs[folder.name] and tables.why_not(folder, "function_classes") == ""


@pytest.mark.parametrize("name", LEARNERS)
def test_the_page_gives_squared_errors_as_measured(name):
    assert findings.cells(PAGE, "squared error, combinations", name) == by_shown(means("squared error", "ood", LEARNERS[name]))
    if name != "Bayes, combinations":
        assert findings.cells(PAGE, "squared error, single classes", name) == by_shown(
            means("squared error", "test", LEARNERS[name])
        )


@pytest.mark.parametrize("name", LEARNERS)
def test_the_page_gives_weights_of_classes_as_measured(name):
    assert findings.cells(PAGE, "sum of the weights, combinations", name) == by_shown(weights("ood", LEARNERS[name], "sum"))
    if name != "Bayes, combinations":
        for which in ("right", "other"):
            found = by_shown(weights("test", LEARNERS[name], which))
            assert findings.cells(PAGE, f"weight of the {which} class, single classes", name) == found


def test_the_page_gives_distances_and_shares_after_all_examples():
    for name, prior in list(LEARNERS.items())[1:]:
        assert findings.cells(PAGE, "after 10 examples", f"distance from {name}") == [
            told([seed[10] for seed in means("distance", split, part=prior)]) for split in ("test", "ood")
        ]
    for name, control in (("linear share of the model", ""), ("linear share of an untrained model", "untrained")):
        found = [told([seed[10] for seed in means("linear share", split, control)]) for split in ("test", "ood")]
        assert findings.cells(PAGE, "after 10 examples", name) == found
    beyond = [
        [max(means("amplitude", split, part=str(k))[s][10] for k in range(3, 9)) for s in range(3)]
        for split in ("test", "ood")
    ]
    assert findings.cells(PAGE, "after 10 examples", "largest amplitude at frequencies 3 to 8") == [
        told(one) for one in beyond
    ]


@pytest.mark.parametrize("seed", range(3))
def test_combinations_are_answered_better_than_the_prior_of_training_allows(seed):
    own, bayes, split = (means("squared error", "ood", control)[seed] for control in ("", TRAINED, ASKED))
    for n in (8, 10):
        assert split[n] < own[n] < bayes[n]
    single, best = (means("squared error", "test", control)[seed] for control in ("", TRAINED))
    assert single[10] > 2 * best[10]
