"""Labels over five episode seeds: which models are asked, and what the page says of what was found."""

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parents[1] / "benchmarks" / "diagnosis"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))
import stability_run  # noqa: E402

ROWS = pd.read_csv(HERE / "stability_results.csv")


def test_forty_models_are_asked_and_every_shipped_one_is_there():
    every = stability_run.models()
    assert len(every) == len(set(every)) == 40 and set(stability_run.SHIPPED) < set(every)
    assert all((stability_run.ZOO / name / "weights.safetensors").exists() for name in stability_run.SHIPPED)


def test_only_models_with_all_seeds_count_and_one_label_that_differs_is_enough():
    rows = [{"model": "one", "seed": seed, "label": "undecided"} for seed in range(5)]
    rows += [{"model": "other", "seed": seed, "label": "undecided" if seed else "memorised"} for seed in range(5)]
    rows += [{"model": "begun", "seed": seed, "label": "undecided"} for seed in range(4)]
    assert stability_run.equal(pd.DataFrame(rows)).to_dict() == {"one": True, "other": False}


def test_the_page_counts_what_was_measured_and_names_every_model_whose_label_differs():
    page = (HERE.parents[2] / "docs" / "findings" / "diagnosis_benchmark.md").read_text()
    shown, same = " ".join(page.split()), stability_run.equal(ROWS)
    assert set(ROWS["model"]) <= set(stability_run.models()) and not ROWS.duplicated(["model", "seed"]).any()
    assert len(same) == 40 and f"All 40 were measured. {same.sum()} of them have the same label in all five seeds." in shown
    assert same.sum() < 0.95 * 40 == 38 and "that is 38, so it is **not reached**" in shown
    unlearned = ROWS[ROWS["model"].isin(same.index[same]) & ROWS["label"].str.startswith("has not learned")]["model"].unique()
    assert len(unlearned) == 7 and sum(name.startswith("sraven3") for name in unlearned) == 3
    assert "seven have not learned their training compositions, among them all three of S-RAVEN" in shown
    for name in same.index[~same]:
        rows = ROWS[ROWS["model"] == name].sort_values("seed")
        told = "; ".join(
            f"{label} ({f'{confidence:.2f}'.removeprefix('0')})"
            for label, confidence in zip(rows["label"], rows["confidence"], strict=True)
        )
        assert f"| {name} | {told} |" in page
    steady = ROWS[ROWS["model"].isin(same.index[same])].groupby("model")["confidence"].min()
    unsure = steady[steady < 0.99].sort_values()
    told = "; ".join(f"{name}: {f'{least:.2f}'.removeprefix('0')} and more" for name, least in unsure.items())
    assert len(unsure) == 3 and f"three have a confidence below .99 in any seed ({told})" in shown
