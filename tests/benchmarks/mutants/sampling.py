"""The mutants: what cosmic-ray's operators make of one place of the code, and a seeded sample of the places."""

from __future__ import annotations

import ast
import functools
import random
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
SRC = ROOT / "src" / "compolens"
ROOMS = ("measures/**/*.py", "diagnosis/**/*.py", "tables/**/*.py")
LEFT_OUT = re.compile(r"NoOp|Decorator|Variable")
"""Operators that change nothing, double others, or need arguments."""
ARITHMETIC, SETS = {"Add", "Sub", "Mul", "Div", "Pow", "FloorDiv", "Mod"}, {"BitAnd", "BitOr", "BitXor"}


class Mutant(NamedTuple):
    """file below compolens; which of the positions of an operator; where in the file."""

    file: str
    operator: str
    occurrence: int
    line: int
    column: int

    @property
    def before(self) -> str:
        """The line that is changed."""
        return self._lines[0]

    @property
    def after(self) -> str:
        """What it becomes."""
        return self._lines[1]

    @property
    def _lines(self) -> tuple[str, str]:
        old, new = (SRC / self.file).read_text().splitlines(), mutated(self).splitlines()
        pairs = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
        before, after = pairs[0] if pairs else ("", "")
        return before.strip(), " ".join(after.split())

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.operator.removeprefix('core/')}): {self.before} → {self.after}"


def files() -> list[Path]:
    """What is mutated."""
    return sorted({path for room in ROOMS for path in SRC.glob(room)})


def annotated(source: str) -> set[int]:
    """Where annotations stand: line * 10,000 + column of each of their characters."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr) and part.lineno == part.end_lineno:
                found |= set(range(part.lineno * 10_000 + part.col_offset, part.lineno * 10_000 + (part.end_col_offset or 0)))
    return found


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a file."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    source, tree, found = path.read_text(), get_ast_from_path(path), []
    skipped, nodes = annotated(source), list(ast_nodes(tree))
    for name in sorted(operator_names()):
        if LEFT_OUT.search(name) or get_operator(name).arguments() or not _alike(name):
            continue
        operator = get_operator(name)()
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, ((line, column), _) in enumerate(places):
            if line * 10_000 + column not in skipped:
                found.append(Mutant(path.relative_to(SRC).as_posix(), name, occurrence, line, column))
    return found


def _alike(name: str) -> bool:
    """Whether an operator takes the place of one of its own kind: a shift of a float is an error, which any test notices."""
    words = name.split("_")[1:] if "BinaryOperator" in name else []
    return not words or set(words) <= ARITHMETIC or set(words) <= SETS


def sample(paths: list[Path], size: int, seed: int) -> list[Mutant]:
    """One mutant of each of so many places, all places equally likely."""
    rng, places = random.Random(seed), dict[tuple[str, int, int], list[Mutant]]()
    for path in paths:
        for mutant in mutants_of(path):
            places.setdefault((mutant.file, mutant.line, mutant.column), []).append(mutant)
    chosen = rng.sample(sorted(places), min(size, len(places)))
    return [rng.choice(places[place]) for place in chosen]


@functools.cache
def mutated(mutant: Mutant) -> str:
    """The file's text with the mutant in it."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = mutate_code((SRC / mutant.file).read_text(), get_operator(mutant.operator)(), mutant.occurrence)
    assert code is not None, f"there is no such mutant: {mutant.file}:{mutant.line}, {mutant.operator}"
    return code


def function_at(source: str, line: int) -> str:
    """The name, with its class, of the outermost function around a line; "" where there is none."""

    def inside(body: list[ast.stmt], prefix: str) -> str:
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= line <= (node.end_lineno or node.lineno):
                name = f"{prefix}{node.name}"
                return inside(node.body, f"{name}.") if isinstance(node, ast.ClassDef) else name
        return ""

    return inside(ast.parse(source).body, "")
