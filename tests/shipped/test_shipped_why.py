"""What docs/findings/why_it_fails.md says about why the shipped models fail, and the tables that it rests on."""

import shlex
from glob import glob
from pathlib import Path

import pytest

from compolens import tables
from compolens.cli import main
from compolens.diagnosis import decomposition, label
from compolens.diagnosis.measured import Measured

REPOSITORY = Path(__file__).parents[2]
ZOO = REPOSITORY / "trained_models"
PAGE = (REPOSITORY / "docs" / "findings" / "why_it_fails.md").read_text(encoding="utf-8")
DIAGNOSED = [
    f for g in ("F-softmax", "F-hypernetwork", "R-softmax", "R-hypernetwork", "F-bottleneck-wide") for f in ZOO.glob(f"{g}-?")
]


def of(prefix):
    return sorted(ZOO.glob(f"{prefix}-?"))


@pytest.mark.parametrize("folder", DIAGNOSED, ids=lambda f: f.name)
def test_the_ladder_is_fresh(folder):
    assert tables.why_not(folder, "inference_or_execution") == ""


def test_the_diagnoses_on_the_page_are_the_commands_output(capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    command, rest = PAGE.split("<!-- why: ")[1].split(" -->", 1)
    words = shlex.split(command)[1:]
    assert main([found for word in words for found in (sorted(glob(word)) if "*" in word or "?" in word else [word])]) == 0
    assert capsys.readouterr().out.strip() == rest.split("<!-- /why -->")[0].strip()


@pytest.mark.parametrize("folder", of("F-hypernetwork"), ids=lambda f: f.name)
def test_at_f_the_executor_answers_held_out_compositions_given_a_code_and_an_untrained_one_does_not(folder):
    frame = Measured.read(folder).ladder
    frame = frame[(frame["metric"] == "score") & (frame["split"] == "ood") & (frame["composition"] == "all")]
    best = frame[frame["rung"] == "best code"].set_index("control")["value"]
    assert best[""] >= 0.99
    assert best["untrained"] < 0


def test_at_f_hypernetworks_lack_inference_and_vanilla_transformers_execution():
    lacks = {
        name: decomposition.decompose(label.measured(of(f"F-{name}")), 1.0)["ood"] for name in ("hypernetwork", "softmax")
    }
    assert lacks["hypernetwork"]["inference"].lo > max(lacks["hypernetwork"][p].hi for p in ("use", "form", "execution"))
    assert lacks["softmax"]["execution"].lo > max(lacks["softmax"][p].hi for p in ("use", "inference", "form"))


def test_where_the_order_reverses_the_hypernetwork_fails_to_infer_in_every_seed():
    for folder in of("R-hypernetwork"):
        parts = decomposition.decompose(label.measured([folder]), 1.0)["ood"]
        assert parts["inference"].value > 0.6 * sum(part.value for part in parts.values())
    assert label.diagnose(of("R-softmax")).label == "undecided"


def test_on_fuzzy_logic_hyla_stands_above_softmax_and_linear_attention_by_more_than_the_error():
    mean, se = {}, {}
    for name in ("hyla", "hyla-linear", "linear", "softmax"):
        frames = [tables.pooled(f, "R², mean of ratios") for f in of(f"fuzzy-{name}")]
        scores = [float(f[(f["control"] == "") & (f["split"] == "ood")]["value"].iloc[0]) for f in frames]
        mean[name] = sum(scores) / 3
        se[name] = (sum((s - mean[name]) ** 2 for s in scores) / 2 / 3) ** 0.5
        assert len(scores) == 3
    for high in ("hyla", "hyla-linear"):
        for low in ("linear", "softmax"):
            assert mean[high] - mean[low] > 4 * (se[high] ** 2 + se[low] ** 2) ** 0.5


def repaired(name, repair):
    """By seed at F: (gain, lower bound beside the best placebo) of a repair of what is blamed, on held-out compositions."""
    found = []
    for folder in of(f"F-{name}"):
        frame = tables.read(folder, "repair")
        rows = frame[(frame["split"] == "ood") & (frame["composition"] == "all") & (frame["control"] == "")]
        rows = rows[rows["repair"] == repair].set_index("metric")
        found.append((float(rows.loc["gain", "value"]), float(rows.loc["beats placebos", "lo"])))
    return found


def test_the_right_code_wins_the_hypernetworks_more_than_any_placebo_in_every_seed_and_tuning_nothing():
    written = repaired("hypernetwork", "code written")
    assert len(written) == 5 and all(gain > 0.015 and lo > 0 for gain, lo in written)
    assert sum(gain for gain, _ in written) / 5 == pytest.approx(0.031, abs=0.0015)
    assert all(abs(gain) < 0.005 for gain, _ in repaired("hypernetwork", "fine-tuned"))


@pytest.mark.parametrize(("size", "least", "most", "gain"), [("F", 0.011, 0.031, 0.031), ("R", 0.112, 0.142, 0.150)])
def test_the_margin_over_the_best_placebo_is_what_the_page_says(size, least, most, gain):
    margins, gains = [], []
    for folder in of(f"{size}-hypernetwork"):
        frame = tables.read(folder, "repair")
        rows = frame[(frame["split"] == "ood") & (frame["composition"] == "all") & (frame["control"] == "")]
        rows = rows[rows["repair"] == "code written"].set_index("metric")
        margins.append(rows.loc["beats placebos", "value"])
        gains.append(rows.loc["gain", "value"])
        assert "blocks.0.hook_resid_post" in (best := rows.loc["beats placebos", "placebo"]) or "blocks.1" in best
    assert (min(margins), max(margins)) == pytest.approx((least, most), abs=0.0006)
    assert sum(gains) / len(gains) == pytest.approx(gain, abs=0.0015)
    assert size == "F" or sum(margins) / 3 == pytest.approx(0.130, abs=0.0006)


def test_no_repair_of_the_vanilla_transformers_execution_is_known():
    tuned = repaired("softmax", "fine-tuned")
    assert len(tuned) == 5 and all(gain < 0.005 and lo < 0 for gain, lo in tuned)


@pytest.mark.parametrize(("name", "test", "ood"), [("softmax", 0.83, 0.72), ("hypernetwork", 0.98, 0.98)])
def test_one_factor_swapped_alone_gives_the_recombined_tasks_answers_and_controls_do_not(name, test, ood):
    scores = {}
    for folder in of(f"F-{name}"):
        frame = tables.read(folder, "swap_factor")
        chosen = frame["chosen"].astype(str).isin(("True", "1")) | (frame["control"] == "not swapped")
        frame = frame[chosen & (frame["metric"] == "score") & (frame["factor"] == "all")]
        for (split, control), value in frame.groupby(["split", "control"])["value"].first().items():
            scores.setdefault((split, control), []).append(value)
    means = {key: sum(values) / 5 for key, values in scores.items() if len(values) == 5}
    assert (means["test", ""], means["ood", ""]) == pytest.approx((test, ood), abs=0.006)
    for control in ("random coordinates", "shuffled masks", "not swapped", "untrained"):
        assert max(means["test", control], means["ood", control]) < 0
