"""What is under version control stays small, and holds nothing that has had its day."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST = 200 * 2**20
"""Bytes of all tracked files together."""


@pytest.fixture(scope="module")
def tracked():
    """path -> bytes, of every tracked file as it lies here."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return {path: path.stat().st_size for path in paths if path.is_file()}


def test_the_tracked_tree_stays_small(tracked):
    total = sum(tracked.values())
    largest = sorted(tracked, key=tracked.__getitem__)[-3:]
    assert total <= MOST, f"{total / 2**20:.0f} MB; the largest are {[str(path.relative_to(ROOT)) for path in largest]}"


def test_a_training_that_ended_leaves_no_state_to_resume_from(tracked):
    states = [path for path in tracked if path.name == "resume.safetensors"]
    assert [path for path in states if (path.parent / "scores.json").exists()] == []
    assert all((path.parent / "config.json").exists() for path in states)


def test_what_a_process_leaves_behind_is_not_tracked(tracked):
    litter = (".lock", ".tmp", ".pyc", ".episodes.parquet")
    assert [path for path in tracked if path.name.endswith(litter)] == []


def test_the_readme_is_an_entrance():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_the_package_has_few_files_at_its_root():
    assert len(list((ROOT / "src" / "compolens").glob("*.py"))) <= 9
