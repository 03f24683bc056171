"""Prints the test files to run for what is changed and not committed: `make check`. Nothing changed: the layers alone.

A test file stands for the modules that it imports, and for itself.
"""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("test_layers.py", "test_repository.py")
SLOW = (
    "test_planted.py",
    "test_planted_third.py",
    "test_planted_fourth.py",
    "test_recipes.py",
    "test_notebooks.py",
    "test_docs.py",
)
"""Left to `make test`, unless they were changed themselves."""


def changed() -> list[str]:
    """Paths that differ from the last commit, new files included."""
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line[3:].split(" -> ")[-1] for line in lines]


def modules_of(path: Path) -> set[str]:
    """Dotted names that a test file imports from the package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("compolens"):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def wanted(paths: list[str]) -> list[Path]:
    """The test files for changed paths."""
    dotted = {
        path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in paths
        if path.startswith("src/") and path.endswith(".py")
    }
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    chosen = [test for test in tests if test.name in ALWAYS or str(test.relative_to(ROOT)) in paths]
    chosen += [test for test in tests if test.name not in SLOW and modules_of(test) & dotted]
    probes = any(path.startswith("probes/") for path in paths)
    chosen += [ROOT / "tests" / "probes" / "test_probe_versions.py"] if probes else []
    return list(dict.fromkeys(chosen))


if __name__ == "__main__":
    print(" ".join(str(path.relative_to(ROOT)) for path in wanted(changed())))
