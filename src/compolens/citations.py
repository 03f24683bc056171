"""Which papers a model folder rests on, as BibTeX: of the tool, the task, the architecture and the measures used.

Who uses what is nowhere listed. Docstrings name papers by their arXiv numbers; a folder's config.json names its classes, and
its tables the probes that made them. So a new class or probe is cited as soon as its docstring names its paper. Reads source
text only: nothing of a folder, and no probe, is run.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compolens import __version__
from compolens.foundation import digests, table_files, versions
from compolens.foundation.builtin import PACKAGE
from compolens.foundation.configs import ConfigError
from compolens.foundation.moved import MOVED
from compolens.foundation.table_files import TableFiles

PAPERS = PACKAGE / "papers.bib"
"""Every paper that a docstring of the package names."""
ENTRY = re.compile(r"^@\w+\{([^,\s]+),$.*?^\}$", re.MULTILINE | re.DOTALL)
EPRINT = re.compile(r"^\s*eprint = \{(.*)\},$", re.MULTILINE)
ARXIV = re.compile(r"(?<![\d.])\d{4}\.\d{5}(?!\d)")
"""An arXiv number as docstrings name it."""
DESCRIBED = ("models", "tasks", "training", "zoo/adopted", "activations")
"""Rooms with the classes that a config.json may name, in folders of theirs too."""
INSTRUMENTS = ("measures", "references", "interventions", "network_baselines")
"""Rooms whose papers a probe rests on when it imports from them."""


@dataclass(frozen=True)
class Use:
    """An arXiv number that a folder's model rests on, and why.

    Args:
        arxiv: the number.
        by: the class or table whose docstrings name it.
    """

    arxiv: str
    by: str


@dataclass(frozen=True)
class Bibliography:
    """The entries of a BibTeX file.

    Args:
        entries: key -> text.
        keys: arXiv number -> key.
    """

    entries: dict[str, str]
    keys: dict[str, str]

    @classmethod
    def read(cls, path: Path = PAPERS) -> Bibliography:
        """The entries of the file `path`, each of which begins with @ and ends with } at the start of a line."""
        entries = {m.group(1): m.group(0) for m in ENTRY.finditer(path.read_text(encoding="utf-8"))}
        numbers = {key: EPRINT.search(text) for key, text in entries.items()}
        return cls(entries, {found.group(1): key for key, found in numbers.items() if found})

    def entry(self, arxiv: str) -> str:
        """The entry of the number `arxiv`; a minimal one for a number that the file does not have."""
        if arxiv in self.keys:
            return self.entries[self.keys[arxiv]]
        fields = {
            "title": f"arXiv:{arxiv}",
            "eprint": arxiv,
            "archiveprefix": "arXiv",
            "url": f"https://arxiv.org/abs/{arxiv}",
        }
        return "\n".join([f"@misc{{arxiv-{arxiv},", *(f"  {name} = {{{value}}}," for name, value in fields.items()), "}"])


# ---- what a folder uses ----------------------------------------------------------------------------------------------
def uses(folder: str | Path, files: Iterable[str | Path] = ()) -> list[Use]:
    """What a model rests on: task, architecture and training by the classes in its config.json, measures by its tables.

    Args:
        folder: the model's folder.
        files: Python files of your own with classes that config.json names.

    Returns:
        The numbers, each once per class or table.
    """
    folder = Path(folder)
    classes = _class_texts([*_described_files(), *map(Path, files)])
    found = [Use(number, name) for name in classes_named(folder) for number in _numbers(classes.get(name, ""))]
    for table in table_files.names(folder / "tables"):
        found += [Use(number, f"table {table}") for number in of_probe(_probe_file(folder / "tables", table))]
    return list(dict.fromkeys(found))


def of_probe(path: Path | None) -> list[str]:
    """What a table of a probe rests on.

    Args:
        path: the probe's file; None where it is gone.

    Returns:
        arXiv numbers: those in its docstrings and in those of the instruments that it imports, each once.
    """
    return _numbers(_probe_texts(path))


def classes_named(folder: Path) -> list[str]:
    """The names of all classes in the config.json of `folder`, task and architecture before how it was trained."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds no trained model (no config.json); `compolens models DIR` lists those below DIR")
    run = digests.read_run(folder)
    digests.check(folder, digests.CONFIG)
    names = [name for part in ("task", "architecture") for name in _names(run.get(part))]
    return list(dict.fromkeys([*names, *_names(run)]))


def _names(description: Any) -> list[str]:
    if isinstance(description, list):
        return [name for item in description for name in _names(item)]
    if not isinstance(description, dict):
        return []
    own = [str(description[key]) for key in ("class", "outside") if key in description]
    return own + [name for value in description.values() for name in _names(value)]


def bibtex(folders: Iterable[str | Path], files: Iterable[str | Path] = ()) -> str:
    """BibTeX of the tool and of every paper that the models rest on; a comment over each entry says who uses it.

    Args:
        folders: model folders.
        files: as in `uses`.

    Returns:
        The text of a BibTeX file.

    Raises:
        ConfigError: a folder holds no model.
    """
    files, by, known = list(files), dict[str, dict[str, None]](), Bibliography.read()
    for folder in folders:
        for use in uses(folder, files):
            by.setdefault(use.arxiv, {})[use.by] = None
    entries = [f"% {', '.join(users)}\n{known.entry(arxiv)}" for arxiv, users in by.items()]
    tool = known.entries["compolens"].replace("VERSION", __version__)
    return "\n\n".join([f"% the tool\n{tool}", *entries]) + "\n"


def _numbers(text: str) -> list[str]:
    return list(dict.fromkeys(ARXIV.findall(text)))


def _described_files() -> list[Path]:
    return [path for room in DESCRIBED for path in sorted((PACKAGE / room).rglob("*.py"))]


def _parsed(path: Path) -> ast.Module:
    try:
        return _tree(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a Python file that can be read: {error}") from error


@functools.lru_cache(maxsize=512)
def _tree(text: str) -> ast.Module:
    """A file's syntax tree, to be read only: every folder that is cited asks for those of the same files."""
    return ast.parse(text)


def _class_texts(files: list[Path]) -> dict[str, str]:
    """Name of a class or function -> the docstrings that say where it is from: its module's and its own."""
    found: dict[str, str] = {}
    for path in files:
        tree = _parsed(path)
        module = ast.get_docstring(tree) or ""
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name] = f"{module}\n{ast.get_docstring(node) or ''}"
    return found


def _probe_file(place: Path, table: str) -> Path | None:
    """The probe that made a table: the built-in one of its name, or the file of the user's that its provenance names."""
    return versions.recipe_of(table, TableFiles(place, table).provenance())


def _probe_texts(path: Path | None) -> str:
    """All docstrings of a probe, and those of the instruments of ours that it imports, and of those that they import."""
    if path is None:
        return ""
    tree = _parsed(path)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Module)]
    seen: set[str] = set()
    return "\n".join([*texts, *(text for name in _imported(tree) for text in _instrument_texts(name, seen))])


@functools.lru_cache(maxsize=512)
def _imported(tree: ast.Module) -> tuple[str, ...]:
    """What a file imports from the instruments: compolens.measures.erasure.Eraser, …; by its name of now, if it moved.

    `_tree` gives equal files one tree, and many names lead to the same files."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = [f"{_module_now(str(node.module))}.{alias.name}" for node in nodes for alias in node.names]
    return tuple(name for name in names if name.split(".")[0] == "compolens" and name.split(".")[1] in INSTRUMENTS)


def _module_now(module: str) -> str:
    package, _, inner = module.partition(".")
    return f"{package}.{MOVED.get(inner, inner)}" if package == "compolens" and inner else module


def _instrument_texts(name: str, seen: set[str]) -> list[str]:
    """The docstrings behind an imported name: its own, its module's, and those of what its module imports in turn."""
    if name in seen:
        return []
    seen.add(name)
    path, inside = PACKAGE, name.split(".")[1:]
    while inside and ((path / f"{inside[0]}.py").is_file() or (path / inside[0]).is_dir()):
        path /= inside.pop(0)
    is_package = path.is_dir()
    tree = _parsed(path / "__init__.py" if is_package else path.with_suffix(".py"))
    if is_package:  # it hands names on: follow those asked for, no others
        return [text for n in _imported(tree) if n.split(".")[-1] in inside for text in _instrument_texts(n, seen)]
    own = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name in inside]
    texts = [ast.get_docstring(node) or "" for node in (tree, *own)]
    return [*texts, *(text for n in _imported(tree) for text in _instrument_texts(n, seen))]
