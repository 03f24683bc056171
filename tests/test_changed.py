"""What `make check` runs: the tests that mirror what was changed, and no file that is not there."""

import pytest
from changed import ROOT, SLOW, TESTS, wanted

ALWAYS = ["tests/test_layers.py", "tests/test_repository.py"]
ROOMS = sorted(path.name for path in (ROOT / "src" / "compolens").iterdir() if any(path.glob("*.py")))


def test_nothing_changed_asks_for_the_layers_alone():
    assert wanted([]) == wanted(["LICENSE"]) == ALWAYS


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_of_the_package_has_a_folder_of_tests(room):
    named = wanted([f"src/compolens/{room}/__init__.py"])[2:]
    assert named and all(name.startswith(f"tests/{room}/") and (ROOT / name).is_file() for name in named)


@pytest.mark.parametrize("path", sorted((ROOT / "src" / "compolens").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_every_file_beside_them_has_tests_too(path):
    named = wanted([f"src/compolens/{path.name}"])[2:]
    assert named and all((ROOT / name).is_file() for name in named)
    assert f"tests/test_{path.name}" in named or not (TESTS / f"test_{path.name}").is_file() or f"test_{path.name}" in SLOW


def test_a_file_with_tests_of_its_own_names_these_and_what_names_it_beside_them():
    named = wanted(["src/compolens/measures/readouts.py"])[2:]
    assert "tests/measures/test_readouts.py" in named and all(name.startswith("tests/measures/") for name in named)
    assert "tests/measures/test_erasure.py" not in wanted(["src/compolens/measures/sparsity.py"])


def test_recipes_pages_and_tests_name_what_reads_them():
    probe, claim = wanted(["probes/activation_sparsity.py"]), wanted(["analyses/failure_has_a_place.py"])
    assert "tests/measures/test_sparsity.py" in probe and "tests/probes/test_probe_versions.py" not in probe
    assert "held_for_its_version[activation_sparsity]" in " ".join(probe) and "tests/cli/test_cli.py" not in probe
    assert "tests/analyses/test_why_claims.py" in claim and "[why-failure_has_a_place]" in " ".join(claim)
    assert [name.split("::")[-1] for name in wanted(["docs/figures.md"])[2:]] == [
        "test_links_between_pages_lead_somewhere",
        "test_the_site_builds_without_a_warning",
        "test_every_block_of_a_page_runs_and_says_what_it_promises[figures]",
    ]
    assert wanted(["tests/docs/test_docs.py", "docs/figures.md"]) == [*ALWAYS, "tests/docs/test_docs.py"]
    assert {"tests/test_once.py", "tests/docs/test_docs.py"} - set(wanted(["tests/once.py"])) == {"tests/docs/test_docs.py"}


def test_what_is_slow_is_there_and_is_run_only_when_it_was_changed():
    assert all((TESTS / name).is_file() for name in SLOW)
    assert wanted([f"tests/{SLOW[0]}"])[2:] == [f"tests/{SLOW[0]}"]
