"""What a probe's file says of the numbers it gives: the `version` it declares, or else a digest of what its code does.

Read off the syntax tree, so the file is never run. A built-in probe declares ``version = 1`` and raises it when its numbers
change; of a probe without a version, comments, docstrings, annotations and formatting do not count. Where a version changed
intervals alone, ``values_since = 1`` says since which version the values themselves are the same.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compolens.foundation import builtin

FIRST = Path(__file__).with_name("first_versions.json")
"""Probe -> sha256 of its file, when provenance held that and no version -> the version whose numbers that file gave."""
INTERVALS = "its values are what the probe gives, its intervals are computed in another way now"
"""How `why_changed` begins where a table's values can be drawn as they are."""
WITHOUT_EFFECT = ("__future__", "typing", "typing_extensions", "collections.abc")
"""Modules that a file imports to annotate; where a name from them does more than that, it stands in the code as well."""
MAKES_A_FIELD = ("ClassVar", "InitVar", "KW_ONLY")
"""What an annotation in a class body may hold that changes what the class does."""


def describe(recipe: str | Path) -> dict[str, Any]:
    """What provenance keeps of the probe that measured a table.

    Args:
        recipe: The probe's file.

    Returns:
        "probe_version": the version it declares, or None; "recipe": a digest of its code; "recipe_path": where it lies, None
        for a built-in probe.
    """
    path = Path(recipe)
    version, digest = _read(path.read_bytes())
    ours = path.resolve().parent == builtin.room("probes").resolve()
    return {"probe_version": version, "recipe": digest, "recipe_path": None if ours else str(path.resolve())}


LARGEST = 10_000_000
"""Bytes that a recipe may have: what is more is none, and is not read."""


def recipe_of(name: str, provenance: dict[str, Any]) -> Path | None:
    """The file of the probe that measured a table: the built-in one, or the user's that the provenance names.

    Args:
        name: The table's name, which is the probe's.
        provenance: What was kept when the table was measured, by whomever; it may name any place of this machine.

    Returns:
        None where no such file lies there (any more). What is no file of Python's, such as a device or a pipe, is none.
    """
    own = provenance.get("recipe_path")
    if not own:
        return builtin.built_in("probes").get(name)
    try:
        path = Path(own)
        return path if path.suffix == ".py" and path.is_file() and path.stat().st_size <= LARGEST else None
    except (TypeError, ValueError, OSError):  # no path, or one that no file can have
        return None


def why_changed(name: str, provenance: dict[str, Any], recipe: str | Path) -> str:
    """Why a probe no longer gives the numbers of a table ("" if it does).

    Args:
        name: The table's name, which is the probe's.
        provenance: What was kept when the table was measured.
        recipe: The probe's file as it is now.

    Returns:
        The reason in a sentence, "" if there is none.
    """
    now = describe(recipe)
    if "probe_version" not in provenance:
        return _since_before_versions(name, provenance, Path(recipe), now)
    then = provenance["probe_version"]
    if then is not None and now["probe_version"] is not None and provenance.get("recipe_path") == now["recipe_path"]:
        return _other_version(then, now["probe_version"], Path(recipe))
    return "" if provenance["recipe"] == now["recipe"] else "the probe changed since it was measured"


def _other_version(then: int, now: int | None, recipe: Path) -> str:
    if then == now:
        return ""
    which = f"version {then} then, version {now} here"
    if now is not None and (values_since(recipe) or now) <= then < now:
        return f"{INTERVALS}: {which}"
    return f"the probe changed since it was measured: {which}"


def values_since(recipe: str | Path) -> int | None:
    """Since which version a probe's values are what they are now, where its file says so.

    Args:
        recipe: The probe's file, which is read and not run.

    Returns:
        The version that it declares as ``values_since``; None where it declares none, or is not Python.
    """
    return _values_since(Path(recipe).read_bytes())


def typed(recipe: str | Path, arguments: Mapping[str, Any]) -> list[str]:
    """The flags that were typed to measure with these arguments, where they are not a probe's defaults.

    Args:
        recipe: The probe's file, which is read and not run.
        arguments: Name -> value: numbers, text or bools, as a table's provenance holds them.

    Returns:
        The flags; of an argument whose default cannot be read off the file, its flag too.
    """
    given: list[str] = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if value == _defaults(Path(recipe).read_bytes()).get(name, _UNKNOWN) or not isinstance(
            value, bool | int | float | str
        ):
            continue
        given += [flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool) else [flag, str(value)]
    return given


_UNKNOWN = object()


@functools.lru_cache(maxsize=256)
def _defaults(source: bytes) -> dict[str, Any]:
    """Argument of a file's function `probe` -> its default, where that is written as a plain value."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found = {}
    for made in tree.body:
        if isinstance(made, ast.FunctionDef) and made.name == "probe":
            for argument, default in zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True):
                with contextlib.suppress(ValueError):
                    found[argument.arg] = ast.literal_eval(default) if default is not None else _UNKNOWN
    return found


@functools.lru_cache(maxsize=256)
def _values_since(source: bytes) -> int | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    found = [value for statement in tree.body if (value := _declared(statement, "values_since")) is not None]
    return found[-1] if found else None


def _since_before_versions(name: str, provenance: dict[str, Any], recipe: Path, now: dict[str, Any]) -> str:
    """The same for a table whose provenance holds the sha256 of the probe's file, bytes for bytes, and no version."""
    digest = provenance["recipe"]
    if digest == hashlib.sha256(recipe.read_bytes()).hexdigest():
        return ""
    if now["recipe_path"] is not None or provenance.get("recipe_path") is not None:
        return (
            "the probe changed since it was measured, in its numbers or in its comments alone: "
            "the table is from before the two were told apart"
        )
    first = json.loads(FIRST.read_text()).get(name, {}).get(digest)
    if first is None:
        return "it was measured with an earlier version of the project; it is not damaged"
    return _other_version(first, now["probe_version"], recipe)


@functools.lru_cache(maxsize=256)
def _read(source: bytes) -> tuple[int | None, str]:
    """(declared version, digest of the code) of a file; a file that Python cannot parse has the digest of its bytes."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None, hashlib.sha256(source).hexdigest()
    declared = [value for statement in tree.body if (value := _declared(statement)) is not None]
    tree.body = [statement for statement in tree.body if _declared(statement) is None]
    return declared[-1] if declared else None, hashlib.sha256(repr(_essence(tree)).encode()).hexdigest()


def _declared(statement: ast.stmt, word: str = "version") -> int | None:
    """The number in a statement ``version = 3``, annotated or not."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(statement.value, ast.Constant):
        return None
    named = len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == word
    return statement.value.value if named and type(statement.value.value) is int else None


# ---- what code does --------------------------------------------------------------------------------------------------
LEFT_OUT = {"annotation", "returns", "type_params", "type_comment", "type_ignores", "kind", "simple", "ctx"}
"""Fields of syntax trees that have no effect when the code runs (`kind`: the u of u"text"), or that follow from the others."""


def _essence(node: Any) -> Any:
    """A syntax tree as nested lists, without what has no effect; equal whichever version of Python parsed it."""
    if isinstance(node, list):
        statements = node and isinstance(node[0], ast.stmt)
        return [_essence(part) for part in (_effective(node) if statements else node)]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in LEFT_OUT and value is not None}
    if isinstance(node, ast.ClassDef):
        fields["body"] = _fields(node.body)
    found = ((name, _essence(value)) for name, value in fields.items())
    return [type(node).__name__, *(field for field in found if field[1] != [])]


def _effective(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements without docstrings and other bare constants, `pass`, and what is there for type checkers alone."""
    for statement in statements:
        if isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            continue
        if isinstance(statement, ast.ImportFrom) and statement.module in WITHOUT_EFFECT:
            continue
        if isinstance(statement, ast.Import) and all(alias.name in WITHOUT_EFFECT for alias in statement.names):
            continue
        if isinstance(statement, ast.If) and _for_type_checkers(statement):
            continue
        if not isinstance(statement, ast.AnnAssign):
            yield statement
        elif statement.value is not None:
            yield ast.Assign([statement.target], statement.value)


def _for_type_checkers(statement: ast.If) -> bool:
    name = getattr(statement.test, "id", getattr(statement.test, "attr", ""))
    return name == "TYPE_CHECKING" and not statement.orelse


def _fields(body: list[ast.stmt]) -> list[ast.stmt]:
    """A class body in which an annotated name stays told from a plain one: it may be the field of a dataclass."""
    return [_field(statement) if isinstance(statement, ast.AnnAssign) else statement for statement in body]


def _field(statement: ast.AnnAssign) -> ast.Expr:
    words = [ast.keyword(word, ast.Constant(True)) for word in MAKES_A_FIELD if word in ast.dump(statement.annotation)]
    value = [] if statement.value is None else [statement.value]
    return ast.Expr(ast.Call(ast.Name("field"), [statement.target, *value], words))
