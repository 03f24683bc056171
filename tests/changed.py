"""Prints the tests to run for what is changed and not committed, for `make check`. Nothing changed: the layers alone.

Tests lie in folders that mirror the package, so a changed file names its tests by where it lies; what takes minutes is left
to `make test-all`, unless it was changed itself.
"""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
ALWAYS = ("test_layers.py", "test_repository.py")
SLOW = (
    "docs/test_docs.py",
    "jobs/test_engines.py",
    "notebooks/test_notebooks.py",
    "planted/test_planted.py",
    "planted/test_planted_fourth.py",
    "planted/test_planted_pairs.py",
    "planted/test_planted_third.py",
    "shipped/test_shipped.py",
    "shipped/test_shipped_regression.py",
    "test_extension.py",
    "test_packaging.py",
    "test_recipes.py",
    "training/test_distributed.py",
)
"""Left to `make test-all`, unless they were changed themselves."""
NUMBERS = (
    "probes/test_probe_versions.py::test_a_probe_gives_the_numbers_that_are_held_for_its_version[{}]",
    "probes/test_probe_versions.py::test_every_shipped_table_is_current",
)
ABOUT_PROBES = ("probes/", "measures/", "interventions/", "diagnosis/")
"""Folders whose tests that name a probe are about it; elsewhere it is any probe."""
DRAWN = "test_recorded_commands.py::test_the_recorded_command_of_a_shipped_figure_gives_its_numbers[{}]"
PAGE = "docs/test_docs.py::test_every_block_of_a_page_runs_and_says_what_it_promises[{}]"
LINKS = (
    "docs/test_docs.py::test_links_between_pages_lead_somewhere",
    "docs/test_docs.py::test_the_site_builds_without_a_warning",
)


def changed() -> list[str]:
    """Paths that differ from the last commit, new files included."""
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line[3:].split(" -> ")[-1] for line in lines]


def files(folder: str) -> list[str]:
    """The test files below a folder of tests/, without the slow ones."""
    found = (str(path.relative_to(TESTS)) for path in sorted((TESTS / folder).rglob("test_*.py")))
    return [name for name in found if name not in SLOW]


def naming(*words: str) -> list[str]:
    """The test files, but for the slow ones, that have one of the words in them."""
    return [name for name in files("") if any(word in (TESTS / name).read_text(encoding="utf-8") for word in words)]


def mirror(path: Path) -> list[str]:
    """The tests that stand for a file of the package: those of its own name, with those beside them that name it; else those
    of its folder."""
    room = path.relative_to("src/compolens").parts[0]
    if not room.endswith(".py"):
        named = [name for name in naming(path.stem) if name.startswith(f"{room}/")]
        return named if f"{room}/test_{path.stem}.py" in named else files(room)
    own = f"test_{room}"
    return [own] if own in files("") else naming(f"compolens.{path.stem} ", f"compolens import {path.stem}")


def wanted_for(path: Path) -> list[str]:
    """The tests for one changed path, as seen from tests/."""
    part = path.parts[0]
    if part == "tests":
        here = str(path.relative_to("tests"))
        return [here] if path.match("test_*.py") else naming(f"import {path.stem}", f"from {path.stem} import")
    if part == "src" and path.suffix == ".py":
        return mirror(path)
    if part == "probes":
        about = [name for name in naming(f'"{path.stem}"') if name.startswith(ABOUT_PROBES)]
        return [*(test.format(path.stem) for test in NUMBERS), *about]
    if part == "analyses":
        drawn = sorted((ROOT / "trained_models" / "figures").glob(f"*/{path.stem}.json"))
        about = [name for name in naming(f'"{path.stem}"') if name.startswith("analyses/")]
        return [*(DRAWN.format(f"{figure.parent.name}-{path.stem}") for figure in drawn), *about]
    if part == "docs" and path.suffix == ".md":
        return [*LINKS, *([PAGE.format(path.stem)] if path.parent.name == "docs" and path.stem != "quickstart" else [])]
    return []


def wanted(paths: list[str]) -> list[str]:
    """The tests for changed paths, as seen from the root, those that always run first."""
    there = [Path(path) for path in paths if (ROOT / path).exists() or path.startswith("src/")]
    named = [*ALWAYS, *(test for path in there for test in wanted_for(path))]
    whole = {test for test in named if "::" not in test}
    return [f"tests/{test}" for test in dict.fromkeys(named) if "::" not in test or test.split("::")[0] not in whole]


if __name__ == "__main__":
    print(" ".join(wanted(changed())))
