"""The models of `trained`: what the page says of them is what was measured."""

import sys
from functools import partial
from pathlib import Path

import pandas as pd
from findings import shown

HERE = Path(__file__).parents[1] / "benchmarks" / "diagnosis"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))
from trained import expected  # noqa: E402

PAGE = (HERE.parents[2] / "docs" / "findings" / "diagnosis_benchmark.md").read_text()
ROWS = pd.read_csv(HERE / "trained_results.csv").set_index("case")
short = partial(shown, digits=2)
SHOWN = ("test", "ood", "to truth", "to training composition", "to regression", "best regression", "like memory")


def test_the_page_has_every_trained_model_with_its_prediction_and_its_label():
    assert set(ROWS.index) <= set(expected)
    assert all(ROWS["expected"] == [expected[name][0] for name in ROWS.index])
    kinds = ROWS.index.str.rsplit("-", n=1).str[0]
    for (kind, predicted, label), rows in ROWS.groupby([kinds, "expected", "label"]):
        assert f"| {kind}, {len(rows)} | {predicted} | {label} |" in PAGE
    assert len(ROWS) == 24 and "all 24 were trained and diagnosed again" in " ".join(PAGE.split())


def test_the_page_has_every_disagreement_with_what_speaks_for_either_side():
    apart = ROWS[ROWS["expected"] != ROWS["label"]]
    blamed = []
    for name, row in apart.iterrows():
        start = f"| {name} | {row['expected']} | {row['label']} | {' | '.join(short(row[one]) for one in SHOWN)} | "
        (line,) = [line for line in PAGE.splitlines() if line.startswith(start)]
        blamed.append(line.removeprefix(start).removesuffix(" |"))
    assert sorted(set(blamed)) == ["open", "prediction"] and blamed.count("prediction") == 9 and blamed.count("open") == 3


def test_what_makes_a_prediction_wrong_uses_no_rule_of_the_diagnosis():
    def of(kind):
        return ROWS[ROWS.index.str.startswith(kind)]

    works = of("whole")
    lost, gained = works["test"] - works["ood"], works["repaired"]
    assert lost.min() >= 0.05 and gained.min() > 0.5 * lost.min()
    shown = " ".join(PAGE.split())
    assert f"They lose {short(lost.min())} to {short(lost.max())} on held-out" in shown
    assert f"gains {short(gained.min())} to {short(gained.max())}." in shown
    assert of("unstructured")["test"].max() < 0.9
    assert (of("unstructured")["to regression"] < of("unstructured")["to training composition"]).all()
    few = of("narrow")
    assert f"they score {short(few['ood'].min())} to {short(few['ood'].max())}." in shown
    assert (few["best regression"] > few["ood"] + 0.2).all() and (few["to training composition"] < few["to regression"]).all()
    pairs = of("apart")
    assert (pairs["to training composition"] < pairs["to truth"]).all()
    low, high = pairs["like memory"].agg(["min", "max"])
    assert f"a cosine of {short(low)} to {short(high)} with" in shown


def test_the_rings_are_called_what_was_predicted_with_the_confidence_on_the_page():
    rings = ROWS[ROWS.index.str.startswith("ring")]
    assert len(rings) == 8 and (rings["label"] == rings["expected"]).all()
    assert (ROWS["label"] == ROWS["expected"]).sum() == 12
    close = ROWS.loc["ring-hypernetwork-3"]
    assert rings["confidence"].idxmin() == close.name
    shown = " ".join(PAGE.split())
    lost = f"{close['test'] - close['ood']:.3f}".removeprefix("0")
    parts = [f"{close[part]:.3f}".removeprefix("0") for part in ("inference", "execution")]
    assert f"(confidence {short(close['confidence'])}: inference {parts[0]}, execution {parts[1]} of {lost})" in shown
    others = rings["confidence"].drop(close.name)
    assert f"apart in the others (confidence {short(others.min())} to {short(others.max())})" in shown
