"""Mean and variance, as shipped: which prior sets the variances, and every number of the findings."""

from pathlib import Path

import findings
import pytest

from compolens import tables
from compolens.cli.train import read_runs
from compolens.zoo.folders import read_run

REPOSITORY = Path(__file__).parents[2]
ZOO = REPOSITORY / "trained_models"
FOLDERS = sorted(p.parent for p in ZOO.glob("uncertainty/*/config.json"))
PAGE = (REPOSITORY / "docs" / "findings" / "uncertainty.md").read_text(encoding="utf-8")
TRAINED, ASKED = "Bayes, prior of training", "Bayes, prior of the split"
SHOWN = (0, 1, 2, 4, 8)


def values(metric, split, control="", prior=""):
    """Of every seed, the value by number of examples."""
    found = []
    for folder in FOLDERS:
        rows = tables.read(folder, "uncertainty").fillna({"control": "", "prior": ""})
        rows = rows[(rows["metric"] == metric) & (rows["split"] == split)]
        rows = rows[(rows["control"] == control) & (rows["prior"] == prior)]
        found.append(rows.assign(shown=rows["shown"].astype(int)).set_index("shown")["value"])
    return found


def told(numbers):
    """Mean, least and greatest as the page writes them; a number alone where all are the same."""
    mean, low, high = (written(v) for v in (sum(numbers) / len(numbers), min(numbers), max(numbers)))
    return mean if low == high else f"{mean} ({low} to {high})"


def written(value):
    return f"{value:.2f}".replace("0.", ".", 1).replace("-", "−") if abs(value) < 1 else f"{value:.2f}".replace("-", "−")


def by_shown(metric, split, control="", prior=""):
    found = values(metric, split, control, prior)
    return [told([seed[n] for seed in found]) for n in SHOWN]


def test_what_is_shipped_are_the_runs_of_the_file_with_fresh_tables():
    runs = read_runs(str(ZOO / "uncertainty.py"))
    assert {f.name for f in FOLDERS} == set(runs)
    for folder in FOLDERS:
        assert read_run(folder) == runs[folder.name] and tables.why_not(folder, "uncertainty") == ""


@pytest.mark.parametrize(("table", "metric"), [
    ("standard deviation said", "standard deviation"), ("squared error / variance", "squared error over variance"),
])  # fmt: skip
def test_the_page_gives_what_is_said_by_number_of_examples(table, metric):
    for split, tasks in (("test", "training tasks"), ("ood", "held-out tasks")):
        assert findings.cells(PAGE, table, f"model, {tasks}") == by_shown(metric, split)
        assert findings.cells(PAGE, table, f"Bayes, prior of training, {tasks}") == by_shown(metric, split, TRAINED)
    assert findings.cells(PAGE, table, "Bayes, prior of the held-out tasks, held-out tasks") == by_shown(metric, "ood", ASKED)


def test_the_page_gives_log_likelihoods_and_coverage_over_all_numbers_of_examples():
    learners = {"model": "", "Bayes, prior of training": TRAINED, "Bayes, prior of the tasks": ASKED,
                "one mean and variance for all": "constant", "untrained model": "untrained"}  # fmt: skip
    for row, control in learners.items():
        assert findings.cells(PAGE, "mean over all numbers of examples", row) == [
            told([seed.mean() for seed in values(metric, split, control)])
            for metric in ("log-likelihood", "coverage")
            for split in ("test", "ood")
        ]


def test_the_page_gives_how_far_variances_are_from_those_of_each_prior():
    for row, prior in (("prior of training", TRAINED), ("prior of the held-out tasks", ASKED)):
        assert findings.cells(PAGE, "log variance over Bayes, held-out tasks", row) == by_shown(
            "log variance over Bayes", "ood", prior=prior
        )


def test_the_sentences_of_the_page_have_the_numbers_of_the_tables():
    nearer, farther = (
        sum(seed.mean() for seed in values("distance of means", "ood", prior=prior)) / 3 for prior in (TRAINED, ASKED)
    )
    assert f"is {nearer:.2f} under the prior of\n  training and {farther:.2f} under that" in PAGE
    (needed,), (said,) = ({round(s[0], 6) for s in values("standard deviation", "ood", of)} for of in (ASKED, TRAINED))
    assert f"Held-out tasks need one {(needed / said) ** 2:.1f} times as large." in " ".join(PAGE.split())
    gap = [
        b.mean() - m.mean()
        for b, m in zip(values("log-likelihood", "test", TRAINED), values("log-likelihood", "test"), strict=True)
    ]
    assert max(gap) < 0.055


@pytest.mark.parametrize("seed", range(3))
def test_with_few_examples_variances_are_those_of_the_prior_of_training(seed):
    own, other = (values("log variance over Bayes", "ood", prior=prior)[seed] for prior in (TRAINED, ASKED))
    for n in (0, 1):
        assert abs(own[n]) < 0.2 and other[n] < -0.5
    assert values("squared error over variance", "ood")[seed][0] > 2.5
    calibrated = values("squared error over variance", "test")[seed]
    assert calibrated.between(0.75, 1.25).all()
    means = [values("distance of means", "ood", prior=prior)[seed].mean() for prior in (TRAINED, ASKED)]
    assert means[0] < means[1]
