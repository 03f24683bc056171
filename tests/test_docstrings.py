"""Docstrings of what is public name every parameter, one a line, where an editor and the site show them.

What has to be documented follows from rules. A function or class needs an `Args:` block that names its parameters, in their
order, and nothing else. With it go `Returns:` where something is returned, and `Raises:` for errors of ours that it raises.

Not asked for are: names with an underscore (but for dataclasses that public ones inherit fields from), properties, overloads,
methods that take what a documented method of a base class of ours takes, and a single parameter that the first paragraph names
in `backticks`. A dataclass documents the fields that it adds.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "compolens"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SECTIONS = ("Args", "Returns", "Raises")
DESCRIBED_ELSEWHERE = {"property", "cached_property", "setter", "overload"}


def name_of(node):
    """The last word of a dotted name, with or without arguments: `dataclass` of `dataclasses.dataclass(frozen=True)`."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def parameters(function, is_method=False):
    """What a caller may hand over, in order."""
    given = function.args
    names = [one.arg for one in given.posonlyargs + given.args]
    if is_method and "staticmethod" not in map(name_of, function.decorator_list):
        names = names[1:]
    names += [given.vararg.arg] if given.vararg else []
    names += [one.arg for one in given.kwonlyargs] + ([given.kwarg.arg] if given.kwarg else [])
    return [name for name in names if not name.startswith("_")]


def fields(cls):
    """The parameters of a class: the fields that a dataclass or named tuple adds, else those of its `__init__`."""
    described = [*map(name_of, cls.decorator_list), *map(name_of, cls.bases)]
    if not {"dataclass", "NamedTuple"} & set(described):
        return next((parameters(m, True) for m in cls.body if isinstance(m, FUNCTIONS) and m.name == "__init__"), [])
    found = [one for one in cls.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    found = [one for one in found if name_of(one.annotation) != "ClassVar" and "init=False" not in ast.unparse(one)]
    return [one.target.id for one in found if not one.target.id.startswith("_")]


def sections(docstring):
    """(first paragraph, section -> names before a colon, or None where lines have none) of a docstring."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):$", docstring, flags=re.MULTILINE)
    found = {}
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        found[title] = re.findall(r"^    \*{0,2}(\w+): \S", text, re.MULTILINE) if title != "Returns" else None
    return parts[0].split("\n\n")[0], found


def raised(function):
    """Errors of ours that a function raises itself."""
    found = {name_of(node.exc) for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc}
    calls = {name_of(node) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return (our_errors() & found) | ({"ConfigError"} if "require" in calls else set())


def complaints(node, names):
    """What the docstring of a function or class lacks."""
    first, found = sections(ast.get_docstring(node) or "")
    if not names or (len(names) == 1 and "Args" not in found and f"`{names[0]}`" in first):
        return []
    if "Args" not in found:
        return [f"has no Args: block for {', '.join(names)}"]
    said = []
    if found["Args"] != names:
        said.append(f"takes {names}, but Args: names {found['Args']}")
    if list(found) != [title for title in SECTIONS if title in found]:
        said.append(f"has its blocks in the order {list(found)}, not {list(SECTIONS)}")
    if isinstance(node, FUNCTIONS):
        returns = node.returns is not None and ast.unparse(node.returns) not in ("None", "typing.NoReturn")
        said += ["has no Returns: block"] if returns and "Returns" not in found else []
        said += [f"raises {error}, which Raises: does not name" for error in raised(node) - set(found.get("Raises", []))]
    return said


def bases(cls, classes):
    """The base classes of ours, and theirs."""
    own = [classes[name] for name in map(name_of, cls.bases) if name in classes and classes[name] is not cls]
    return own + [further for base in own for further in bases(base, classes)]


def inherits(method, cls, classes):
    """Whether a base class of ours documents a method of this name and these parameters."""
    above = [
        one for base in bases(cls, classes) for one in base.body if isinstance(one, FUNCTIONS) and one.name == method.name
    ]
    return any(ast.get_docstring(one) and parameters(one, True) == parameters(method, True) for one in above)


def is_public(node):
    return not node.name.startswith("_") and not DESCRIBED_ELSEWHERE & set(map(name_of, node.decorator_list))


def hands_fields_down(cls, classes):
    """Whether a public class inherits the fields of this dataclass."""
    if "dataclass" not in map(name_of, cls.decorator_list):
        return False
    return any(cls in bases(other, classes) for other in classes.values() if is_public(other))


def documented(tree, classes):
    """(label, node, parameters) of everything in a module whose parameters have to be documented."""
    for node in tree.body:
        if isinstance(node, FUNCTIONS) and is_public(node):
            yield node.name, node, parameters(node)
        if not isinstance(node, ast.ClassDef):
            continue
        if is_public(node) or hands_fields_down(node, classes):
            yield node.name, node, fields(node)
        methods = [one for one in node.body if isinstance(one, FUNCTIONS) and is_public(one) and is_public(node)]
        for method in methods:
            if not inherits(method, node, classes):
                yield f"{node.name}.{method.name}", method, parameters(method, True)


@cache
def classes_of(tree):
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def problems(tree, others=()):
    """Everything that the docstrings of a module lack; others: classes of other modules, by name."""
    known = dict(others) | classes_of(tree)
    return [f"{label} {said}" for label, node, names in documented(tree, known) for said in complaints(node, names)]


FILES = sorted(SOURCE.rglob("*.py"))
PACKAGES = sorted({path.relative_to(SOURCE).parts[0] for path in FILES})


@cache
def trees():
    """path -> syntax tree of every file of the package."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


@cache
def all_classes():
    """The classes of the package by name."""
    return {name: node for tree in trees().values() for name, node in classes_of(tree).items()}


@cache
def our_errors():
    """The names of the package's errors."""
    found = (node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {node.name for node in found if any(re.search("Error$|^DoesNotApply$", name_of(base)) for base in node.bases)}


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_every_parameter(package):
    own = {path: tree for path, tree in trees().items() if path.relative_to(SOURCE).parts[0] == package}
    found = [f"{path.relative_to(SOURCE)}: {said}" for path, tree in own.items() for said in problems(tree, all_classes())]
    assert not found, "\n".join(found)


def test_there_is_something_to_check():
    found = [names for tree in trees().values() for _, _, names in documented(tree, all_classes() | classes_of(tree))]
    assert sum(map(bool, found)) > 700


BLOCKS = """
def one(a, *, b=1) -> int:
    '''What it is.

    Args:
        a: one.
        b: another,
            on two lines: this one, too.

    Returns:
        A number.

    Raises:
        ConfigError: always.
    '''
    raise ConfigError("no")
"""
OTHERS = """
class Base:
    def method(self, a, b):
        '''Documented.

        Args:
            a: one.
            b: another.
        '''

class Derived(Base):
    def method(self, a, b):
        return a

    @property
    def known(self): ...

    def _hidden(self, a, b): ...

def single(a):
    '''What `a` is.'''
"""


@pytest.mark.parametrize("source", [BLOCKS, OTHERS])
def test_what_the_rules_allow(source):
    assert problems(ast.parse(source)) == []


@pytest.mark.parametrize(
    ("source", "was", "becomes", "said"),
    [
        (BLOCKS, "Args:\n        a: one.\n", "Args:\n", "Args: names ['b']"),
        (BLOCKS, "a: one.", "a: one.\n        c: none.", "Args: names ['a', 'c', 'b']"),
        (BLOCKS, "(a, *, b=1)", "(b, a)", "takes ['b', 'a']"),
        (BLOCKS, "Args:", "a: one; b: another.", "no Args: block"),
        (BLOCKS, "    Returns:\n        A number.\n", "", "no Returns: block"),
        (BLOCKS, "ConfigError: always", "KeyError: always", "raises ConfigError"),
        (OTHERS, "return a", "...", ""),
        (OTHERS, "Derived(Base)", "Derived", "Derived.method has no Args: block"),
        (OTHERS, "`a`", "a", "single has no Args: block"),
        (OTHERS, "_hidden", "shown", "Derived.shown has no Args: block"),
        (OTHERS, "class Derived(Base):", "@dataclass\nclass _Derived:\n    x: int\n\nclass Last(_Derived):", "_Derived has"),
    ],
)
def test_what_the_rules_do_not_allow(source, was, becomes, said):
    assert was in source
    found = problems(ast.parse(source.replace(was, becomes, 1)))
    assert [one for one in found if said in one] if said else not found
