"""F at tuned settings, as shipped: the numbers that the findings tell."""

import re
from pathlib import Path

import numpy as np
import pytest

from compolens import tuned
from compolens.cli.train import read_runs
from compolens.foundation import files, map_files
from compolens.zoo.folders import read_run

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "trained_models"
PAGE = (ROOT / "docs" / "findings" / "hyperteacher.md").read_text()
NAMES = {"vanilla transformer": "softmax", "hypernetwork transformer": "hypernetwork"}
NAMES |= {"wide bottleneck": "bottleneck-wide", "bottleneck": "bottleneck"}


def shown(value):
    return f"{value:.3f}".replace("0.", ".", 1)


def held_out(folder):
    return files.read_json(ZOO / folder / "scores.json")["ood"]["score"]


@pytest.mark.parametrize("told", NAMES)
def test_the_page_tells_what_was_chosen(told):
    found = re.search(rf"^\| {told} \| ([^|]+) \| ([^|]+) \| (\S+) \| (\S+) \|$", PAGE, re.MULTILINE)
    choice = tuned(ZOO / "tuning" / "F")[NAMES[told]].choice
    for cell, name in zip(found.groups()[:2], ("lr", "weight_decay"), strict=True):
        assert float(cell.split(",")[0]) == choice.settings[name]
        assert (name in choice.edges) == ("at the edge" in cell)
    assert found[3] == shown(choice.held_out)
    table = map_files.read_table(ZOO / "tuning" / "F")
    slow = table[(table["who"] == NAMES[told]) & (table["lr"] == 1e-3)]
    assert found[4] == shown(slow.loc[slow["validation"].idxmax(), "ood"])


def test_the_page_tells_the_scores_of_tuned_models():
    plain = " ".join(PAGE.split())
    scores = [held_out(f"tuned/F-softmax-{s}") for s in range(5)]
    before = [held_out(f"F-softmax-{s}") for s in range(5)]
    explicit, fast = ([held_out(f"{place}F-hypernetwork-{s}") for s in range(n)] for place, n in (("", 5), ("tuned/", 2)))
    *first, last = map(shown, scores)
    mean, slow = shown(np.mean(scores)), shown(np.mean(before))
    assert f"{', '.join(first)} and {last} (seeds 0 to 4; mean {mean}; at 1e-3 {slow})" in plain
    assert f"a tuned vanilla transformer has {mean} instead of {slow}" in plain
    two, same = (" and ".join(map(shown, of[:2])) for of in (fast, explicit))
    assert f"{shown(np.mean(explicit))} at 1e-3, and at its tuned setting {two} (seeds 0 and 1; at 1e-3 {same})" in plain
    gap = np.mean(explicit) - np.mean(before)
    assert np.mean(explicit) - np.mean(scores) < gap / 2, "most of the gap"


def test_tuned_models_are_those_that_the_recipe_describes():
    described = read_runs(ZOO / "tuned_runs.py")
    for folder in sorted(p.parent for p in ZOO.glob("tuned/*/config.json")):
        assert read_run(folder) == described[folder.name]
