"""The tiny GPT-2 that learns prompts of words, as shipped: what the page on language models says holds in every seed."""

from pathlib import Path

import pandas as pd
import pytest
import torch

import compolens
from compolens import tables
from compolens.cli.train import read_runs
from compolens.zoo.folders import read_run

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(p.parent for p in (ROOT / "trained_models").glob("few_shot/*/config.json"))
PAGE = (ROOT / "docs" / "language_models.md").read_text(encoding="utf-8")
SPLITS = ("test", "ood")
MEASURED = ("generalization", "task_vectors", "latent_code", "patching")


def values(name, **where):
    """One number per seed."""
    found = []
    for folder in FOLDERS:
        rows = tables.read(folder, name).fillna({"control": ""})
        for column, value in {"control": "", **where}.items():
            rows = rows[rows[column] == value]
        found += [rows["value"].item()]
    return pd.Series(found)


def shown(numbers):
    return " / ".join(f"{number:.2f}".replace("0.", ".") for number in numbers)


def vectors(split, kind, control="", **more):
    layer = {"layer": 1.0} if kind == "task vector" else {}
    taken = {"taken": "sum of parts"} if kind != "none" else {}
    return values("task_vectors", metric="score", split=split, kind=kind, control=control, **layer, **taken, **more)


def test_what_is_shipped_are_the_runs_of_the_file_with_fresh_tables():
    runs = read_runs(str(ROOT / "trained_models" / "few_shot.py"))
    assert [f.name for f in FOLDERS] == list(runs)
    for folder in FOLDERS:
        assert read_run(folder) == runs[folder.name]
        assert [tables.why_not(folder, name) for name in MEASURED] == [""] * len(MEASURED)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_formats_are_recombined_and_places_are_not(folder):
    trained = compolens.load(folder)
    task = trained.task
    pairs = {task._universe[c][:2] for c in task.compositions("train")}
    drawn = task.sample(300, "ood", task.rng("shipped", "ood"))
    other = task.render(drawn.codes | {"place": 1 - drawn.codes["place"]}, drawn.inputs)
    with torch.no_grad():
        answer = trained.model(drawn.tokens)[:, -1].argmax(-1)
    known = torch.tensor([task._universe[c][:2] in pairs for c in drawn.composition.tolist()])
    right, habit = (answer == one.targets[:, -1] for one in (drawn, other))
    assert right[known].float().mean() > 0.99 and right[~known].float().mean() < 0.01
    assert habit[~known].float().mean() > 0.99, "the operation is right, and the place the one it was trained with"


def test_the_page_has_the_numbers_of_the_tables():
    put = {"metric": "recovered", "site": "blocks.0.hook_resid_post", "role": "readout"}
    rows = {"all that is held there, of a prompt that shows it": [values("patching", split=s, **put) for s in SPLITS]}
    for name, kind, control in (("nothing", "none", "no vector"), ("prompts that show the task", "none", "shown")):
        rows[name] = [vectors(split, kind, control) for split in SPLITS]
    for kind in ("task vector", "function vector"):
        for control in ("", "another task", "mean", "random", *(["random heads"] if kind == "function vector" else [])):
            rows[", ".join(filter(None, (kind, control)))] = [vectors(split, kind, control) for split in SPLITS]
    cells = [[cell.strip() for cell in line.split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
    told = {cell[1]: cell[2:4] for cell in cells}
    assert {name: [shown(numbers) for numbers in both] for name, both in rows.items()} == {
        name: told.get(name) for name in rows
    }
    code = {"metric": "r2", "site": "blocks.0.hook_resid_post", "role": "readout", "split": "test", "fit": "fitted on train"}
    for name in ("operation", "place", "format"):
        assert f"{shown(values('latent_code', dimension=name, **code))} of the {name}" in " ".join(PAGE.split())


def test_a_vector_does_more_than_its_controls():
    for split in SPLITS:
        own = vectors(split, "task vector")
        for control in ("another task", "mean", "random"):
            assert (own > vectors(split, "task vector", control) + 0.1).all()
