"""How many small changes of the code the tests notice: a seeded sample of cosmic-ray's mutants of measures, tables, diagnosis.

    make bench-mutants
    python tests/benchmarks/mutants.py --sample 300 --seed 0 --minutes 90
    python tests/benchmarks/mutants.py --file measures/intervals.py --sample 40

A mutant is the code with one operator, number, comparison or condition replaced; annotations are left alone. It is caught if a
test fails that reads the changed module. Mutants are made in a copy of src, and every one is tested in a process of its own.
Prints the share that is caught, and what survives. Needs cosmic-ray: pip install -c constraints.txt -e ".[mutants]".
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "compolens"
ROOMS = ("measures/*.py", "diagnosis/*.py", "tables.py")
SECONDS = 120.0
"""Of work, after which a mutant's tests are stopped: it is caught, since they no longer end."""
LEFT_OUT = re.compile(r"no-op|add-not$|decorator|exception-replacer|variable", re.IGNORECASE)
"""Operators that change nothing, double others, or need arguments."""
ARITHMETIC, SETS = {"Add", "Sub", "Mul", "Div", "Pow", "FloorDiv", "Mod"}, {"BitAnd", "BitOr", "BitXor"}
FILES = 4
"""Of tests, that are asked of a mutant; then those of the numbers held for the probes that use the module."""
SLOW = (
    "test_shipped", "test_notebooks", "test_docs", "test_faults", "test_planted", "test_contracts", "test_extension",
    "test_probe_versions", "benchmarks",
)  # fmt: skip
"""Parts of names of test files that are not asked: each takes longer than all others together."""


class Mutant(NamedTuple):
    """file below compolens; which of the positions of an operator; where in the file."""

    file: str
    operator: str
    occurrence: int
    line: int
    column: int


# ---- which mutants there are -----------------------------------------------------------------------------------------
def annotated(source: str) -> set[int]:
    """Where annotations stand: line * 10,000 + column of each of their characters."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr) and part.lineno == part.end_lineno:
                found |= set(range(part.lineno * 10_000 + part.col_offset, part.lineno * 10_000 + (part.end_col_offset or 0)))
    return found


def mutants_of(path: Path) -> list[Mutant]:
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    source, tree, found = path.read_text(), get_ast_from_path(path), []
    skipped = annotated(source)
    for name in sorted(operator_names()):
        operator = get_operator(name)
        if LEFT_OUT.search(name) or operator.arguments() or not _alike(name):
            continue
        places = [place for node in ast_nodes(tree) for place in operator().mutation_positions(node)]
        for occurrence, ((line, column), _) in enumerate(places):
            if line * 10_000 + column not in skipped:
                found.append(Mutant(path.relative_to(SRC).as_posix(), name, occurrence, line, column))
    return found


def _alike(name: str) -> bool:
    """Whether an operator takes the place of one of its own kind: a shift of a float is an error, which any test notices."""
    words = name.split("_")[1:] if "BinaryOperator" in name else []
    return not words or set(words) <= ARITHMETIC or set(words) <= SETS


def sample(files: list[Path], size: int, seed: int) -> list[Mutant]:
    """One mutant of each of so many places, all places equally likely."""
    rng, places = random.Random(seed), dict[tuple[str, int, int], list[Mutant]]()
    for path in files:
        for mutant in mutants_of(path):
            places.setdefault((mutant.file, mutant.line, mutant.column), []).append(mutant)
    chosen = rng.sample(sorted(places), min(size, len(places)))
    return [rng.choice(places[place]) for place in chosen]


def mutated(mutant: Mutant) -> str:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = mutate_code((SRC / mutant.file).read_text(), get_operator(mutant.operator)(), mutant.occurrence)
    assert code is not None, f"there is no such mutant: {mutant}"
    return code


# ---- which tests read a module ---------------------------------------------------------------------------------------
def tests_of(file: str) -> list[str]:
    """Test files that name the module, those that name it most often first."""
    module = "compolens." + file.removesuffix(".py").replace("/", ".")
    parent, _, name = module.rpartition(".")
    pattern = re.compile(
        rf"\b{re.escape(module)}\b|from {re.escape(parent)} import [^\n]*\b{name}\b|from {re.escape(parent)} import \("
    )
    counts = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if pattern.search(text) and not any(word in path.as_posix() for word in SLOW):
            counts[str(path)] = len(re.findall(rf"\b{name}\b", text))
    return sorted(counts, key=lambda path: -counts[path])[:FILES]


def held_of(file: str) -> list[str]:
    """Tests of the numbers of probes that import the module."""
    module = "compolens." + file.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    wanted = re.compile(rf"from {re.escape(module)} import|from {re.escape(package)} import [^\n]*\b{name}\b")
    probes = [path.stem for path in sorted((ROOT / "probes").glob("*.py")) if wanted.search(path.read_text())]
    test = ROOT / "tests" / "test_probe_versions.py"
    return [f"{test}::test_a_probe_gives_the_numbers_that_are_held_for_its_version[{name}]" for name in probes]


# ---- testing one -----------------------------------------------------------------------------------------------------
def asked(file: str, copy: Path) -> list[list[str]]:
    """The tests that are asked of a file's mutants, one list after the other: those that pass without any mutant."""
    parts = [[test] for test in tests_of(file)] + [[test] for test in held_of(file)]
    kept = [part for part in parts if not _fails(copy, part)]
    for part in parts:
        if part not in kept:
            print(f"left out, since it fails without a mutant: {part[0]}", flush=True)
    return kept


def caught(mutant: Mutant, copy: Path, tests: list[list[str]]) -> bool:
    """Whether a test fails with the mutant in place, or does not end."""
    target = copy / "compolens" / mutant.file
    original = target.read_text()
    target.write_text(mutated(mutant))
    try:
        return any(_fails(copy, part) for part in tests)
    finally:
        target.write_text(original)


def _fails(copy: Path, tests: list[str]) -> bool:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os._exit(_status(copy, tests))
        os._exit(3)
    began = _work(pid)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status != 0
        if _work(pid) - began > SECONDS:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True
        time.sleep(0.05)


def _status(copy: Path, tests: list[str]) -> int:
    import pytest

    os.setpgid(0, 0)
    sys.path[:0] = [str(copy), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = str(copy)
    os.environ["COMPOLENS_MUTANT"] = "1"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    with contextlib.redirect_stdout(io.StringIO()):
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0", *tests]))


def _work(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="how many mutants (default 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=90.0, help="stop after so many (default 90)")
    parser.add_argument("--file", nargs="+", help="only of these files, named below src/compolens")
    options = parser.parse_args()
    import numpy  # noqa: F401 - what every process of a mutant has in common, imported once
    import pandas  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch

    torch.set_num_threads(1)
    files = [SRC / name for name in options.file] if options.file else [p for room in ROOMS for p in sorted(SRC.glob(room))]
    chosen, survivors, began, tried = sample(files, options.sample, options.seed), [], time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Path(place) / "src"
        shutil.copytree(ROOT / "src", copy)
        shutil.copytree(ROOT / "probes", Path(place) / "probes")
        shutil.copytree(ROOT / "analyses", Path(place) / "analyses")
        tests: dict[str, list[list[str]]] = {}
        for mutant in chosen:
            if time.monotonic() - began > 60 * options.minutes:
                break
            if mutant.file not in tests:
                tests[mutant.file] = asked(mutant.file, copy)
            tried += 1
            if not caught(mutant, copy, tests[mutant.file]):
                survivors.append(mutant)
                print(f"survives: {shown(mutant)}", flush=True)
    found = tried - len(survivors)
    print(f"{found} of {tried} mutants caught ({found / max(tried, 1):.0%}), seed {options.seed}")
    return 0


def shown(mutant: Mutant) -> str:
    """Where, and the line before and after."""
    old, new = (SRC / mutant.file).read_text().splitlines(), mutated(mutant).splitlines()
    pairs = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
    before, after = pairs[0] if pairs else ("", "")
    return f"{mutant.file}:{mutant.line} ({mutant.operator.removeprefix('core/')}): {before.strip()} → {after.strip()}"


if __name__ == "__main__":
    sys.exit(main())
