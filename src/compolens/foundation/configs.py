"""Frozen dataclasses to JSON and back: how a folder describes the run, the task and the architecture it holds.

A description is ``{"class": "Hyperteacher", "d_x": 16, ...}``. Reading one back looks the class up by name among the
classes the caller allows, so a description can never name, let alone execute, anything else. A setting that is itself a class
or a function of the user's is ``{"outside": "MyNet"}``: its name, never its place.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar


class ConfigError(ValueError):
    """A description that does not describe: what was got, what is allowed, in one line."""


class WrongKind(ConfigError, TypeError):
    """A setting that holds another kind of value than it is for, such as a word where a number belongs."""


class DoesNotApply(ConfigError):
    """Two things that cannot work together, such as an architecture and a task, with the reason."""


def nearest(name: str, allowed: Iterable[str], n: int = 3, cutoff: float = 0.5, most: int = 12) -> str:
    """A ``did you mean`` clause for a misspelt name; lists what is allowed if nothing is near.

    Args:
        name: what was got.
        allowed: what may be given.
        n: most suggestions.
        cutoff: how near they have to be, from 0 to 1 (equal).
        most: how many names are listed where none is near.

    Returns:
        The clause.
    """
    options = sorted({str(option) for option in allowed})
    near = difflib.get_close_matches(name, options, n=n, cutoff=cutoff)
    if near:
        return "did you mean " + " or ".join(repr(option) for option in near) + "?"
    shown = ", ".join(options[:most]) + (", …" if len(options) > most else "")
    return f"allowed: {shown}" if shown else "none is allowed here"


def require(condition: bool, message: str) -> None:
    """Check a condition.

    Args:
        condition: what has to hold.
        message: what the error says.

    Raises:
        ConfigError: it does not hold.
    """
    if not condition:
        raise ConfigError(message)


def require_choice(value: str, allowed: Iterable[str]) -> None:
    """Check that a setting is one of the words it may be.

    Args:
        value: the setting.
        allowed: the words.

    Raises:
        ConfigError: it is none of them.
    """
    options = list(allowed)
    require(value in options, f"no such choice {value!r}; {nearest(str(value), options)}")


def require_positive(owner: object, *names: str) -> None:
    """Check that fields are whole numbers of at least 1.

    Args:
        owner: a dataclass.
        names: its fields.

    Raises:
        ConfigError: one is not.
    """
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{type(owner).__name__}: {name} must be a whole number of at least 1, got {value!r}")


def require_kinds(owner: object, nested: bool = False) -> None:
    """Every field of a dataclass holds what its annotation says: for `__post_init__`, before a value is compared.

    bool, int (of 64 bits), float (finite, and within single precision, in which it is used), str, tuples (given as any kind of
    list), other dataclasses, and choices among them. A default stands for itself, whatever the annotation.

    Args:
        owner: The dataclass. Fields whose annotation cannot be told from outside (such as a class that is imported for type
            checkers alone) are let through.
        nested: Also check what lies in lists of lists; left out where the class itself says more of that.

    Raises:
        WrongKind: Names the class, the field, what is allowed and what was got.
    """
    cls: Any = type(owner)
    hints = _hints(cls)
    for field in dataclasses.fields(cls):
        value, hint = getattr(owner, field.name), hints.get(field.name, Any)
        if value is not field.default and not _fits(value, hint, nested):
            raise WrongKind(f"{cls.__name__}: {field.name} must be {_said(hint)}, got {shown(value)}")


LISTS = (list, tuple, range, set, frozenset)
"""What may be given for a field that is annotated as a tuple."""
WHOLE, REAL = 2**63 - 1, 3.4028234663852886e38
"""The largest whole number, and the largest number, that tensors hold: int64 and float32."""


def _fits(value: Any, hint: Any, nested: bool) -> bool:
    """Whether a value is of the kind that an annotation says; nested: lists inside lists included."""
    if hint is Any or hint is object or isinstance(hint, TypeVar):
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option, nested) for option in inner)
    if origin is typing.Literal:
        return any(value == option and type(value) is type(option) for option in inner)
    if origin is tuple or hint is tuple:
        return isinstance(value, LISTS) and _fit_each(tuple(value), inner, nested)
    if hint in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float) if hint is float else int):
            return False
        return abs(value) <= (REAL if hint is float else WHOLE)  # which no NaN is
    kind = origin or hint
    return not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or isinstance(value, kind)


def _fit_each(values: tuple[Any, ...], inner: tuple[Any, ...], nested: bool) -> bool:
    if not nested and any(kind is tuple or typing.get_origin(kind) is tuple for kind in inner):
        return True
    if len(inner) == 2 and inner[1] is Ellipsis:
        inner = (inner[0],) * len(values)
    if not inner or len(inner) != len(values):
        return not inner
    return all(_fits(value, kind, nested) for value, kind in zip(values, inner, strict=True))


_WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a word", types.NoneType: "None"}
_MANY = {bool: "truth values", int: "whole numbers", float: "finite numbers", str: "words"}


def _said(hint: Any) -> str:
    """What an annotation allows, in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_said(option) for option in inner)
    if origin is tuple or hint is tuple:
        fixed = inner and inner[-1] is not Ellipsis
        return f"a list of {len(inner)} {_several(inner[0])}" if fixed else f"a {_several(hint, 'list')}"
    if hint in _WORDS:
        return _WORDS[hint]
    concrete = [f"{name}()" for name in sorted(_concrete(hint))] if inspect.isclass(hint) else []
    if len(concrete) > 1:
        return f"one of {', '.join(concrete)}"
    return concrete[0] if concrete else str(getattr(hint, "__name__", hint))


def _several(hint: Any, word: str = "lists") -> str:
    """The same in the plural."""
    if typing.get_origin(hint) is tuple or hint is tuple:
        inner = typing.get_args(hint)
        return f"{word} of {_several(inner[0])}" if inner else word
    return _MANY.get(hint, f"entries, each {_said(hint)}")


def _concrete(cls: type) -> set[str]:
    """The names of a dataclass and of those derived from it that can be made, at most a few."""
    if not dataclasses.is_dataclass(cls):
        return set()
    own = set() if inspect.isabstract(cls) or cls.__name__.startswith("_") else {cls.__name__}
    return own.union(*map(_concrete, cls.__subclasses__()))


def shown(value: Any, longest: int = 200) -> str:
    """A value in a message: its repr, cut in the middle where it is long.

    Args:
        value: anything.
        longest: characters of a repr that is shown whole; of a longer one about three quarters of these. A whole number of
            more digits than this is not written out.

    Returns:
        The text.
    """
    if isinstance(value, int) and abs(value) > 10**longest:
        return f"a whole number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= longest else f"{text[: longest // 2]} … {text[-longest // 4 :]}"


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """field -> annotation; the plain ones alone where a class names in others what is not imported where it is defined."""
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        plain = {kind.__name__: kind for kind in (bool, int, float, str)}
        return {field.name: plain.get(str(field.type), Any) for field in dataclasses.fields(cls)}
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def frozen(value: Any) -> Any:
    """Lists in `value` as (nested) tuples, so that a dataclass built from JSON equals, and hashes like, the one written in
    Python."""
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value


_LATER = "left out of descriptions where it has its default"


def added_later(default: Any) -> Any:
    """A field that a described class got after folders had been written: left out of a description where it has its default.

    So an equal run is described by equal bytes, whichever version wrote them. The field is given by name only, which leaves
    the order of the others as it was.

    Args:
        default: what it was before there was the field; immutable.

    Returns:
        What a dataclass takes for a field.
    """
    return dataclasses.field(default=default, kw_only=True, metadata={_LATER: True})


def describe(value: Any) -> Any:
    """The JSON form of `value`, a dataclass (or a plain value inside one); a `ConfigError` for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = [f for f in dataclasses.fields(value) if _LATER not in f.metadata or getattr(value, f.name) != f.default]
        fields = {f.name: describe(getattr(value, f.name)) for f in told}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if callable(value) and not dataclasses.is_dataclass(value):
        return {"outside": _name(value)}
    raise ConfigError(f"cannot describe a {type(value).__name__}; allowed: numbers, strings, lists and dataclasses")


def _name(value: Callable[..., Any]) -> str:
    """What a class or a function is called; only those that a file defines by this name can be handed over again."""
    name = getattr(value, "__name__", "")
    if not name.isidentifier() or not (inspect.isclass(value) or inspect.isfunction(value)):
        raise ConfigError(
            f"cannot describe {name or type(value).__name__}: a folder keeps classes and functions by name, and this has none "
            "that a file defines; write it as `def my_function(…): …` in a file of your own and use that"
        )
    return name


def construct(description: Any, classes: Iterable[Callable[..., Any]]) -> Any:
    """The inverse of `describe`.

    Args:
        description: what `describe` returned.
        classes: classes and functions that may be named; nothing else is ever built.

    Returns:
        The dataclass.

    Raises:
        ConfigError: it names an unknown class, or an unknown key.
    """
    known = {cls.__name__: cls for cls in classes}
    try:
        return _checked(description, known)
    except RecursionError:
        raise ConfigError("a description of lists in lists without end describes nothing") from None


def _checked(description: Any, known: dict[str, Callable[..., Any]]) -> Any:
    missing = sorted(outside_names(description) - set(known))
    if missing:
        missing += sorted(_class_names(description) - set(known))  # all that is to be handed over at once
        flags = " ".join(f"--with FILE.py:{name}" for name in missing)
        raise ConfigError(
            f"{', '.join(missing)} is named here, which compolens does not have and no folder brings along; hand over what "
            f"is called so: {flags}, or load(folder, classes=[{', '.join(missing)}])"
        )
    return _construct(description, known)


def _class_names(description: Any) -> set[str]:
    if isinstance(description, list):
        return set().union(*map(_class_names, description))
    if not isinstance(description, dict):
        return set()
    own = {description["class"]} if isinstance(description.get("class"), str) else set()
    return own.union(*map(_class_names, description.values()))


def outside_names(description: Any) -> set[str]:
    """The names of classes and functions of a user's that a `description` refers to."""
    if isinstance(description, list):
        return set().union(*map(outside_names, description))
    if not isinstance(description, dict):
        return set()
    if set(description) == {"outside"}:
        return {str(description["outside"])}
    return set().union(*map(outside_names, description.values()))


def _construct(description: Any, known: dict[str, Callable[..., Any]]) -> Any:
    if isinstance(description, list):
        return tuple(_construct(item, known) for item in description)
    if not isinstance(description, dict):
        return description
    if set(description) == {"outside"}:
        return known[str(description["outside"])]
    name = description.get("class")
    if not isinstance(name, str) or not dataclasses.is_dataclass(known.get(name)):
        hint = nearest(str(name), known)
        raise ConfigError(
            f"unknown class {name!r} in a description; {hint} "
            f"(a class of your own must be handed over: load(folder, classes=[{name}]), --with FILE.py:{name}, or "
            f"--with package:{name})"
        )
    cls: Any = known[name]
    allowed = [f.name for f in dataclasses.fields(cls)]
    for key in description:
        if key != "class" and key not in allowed:
            raise ConfigError(f"{name} has no setting {key!r}; {nearest(key, allowed)}")
    arguments = {k: _construct(v, known) for k, v in description.items() if k != "class"}
    try:
        made = cls(**arguments)
    except ConfigError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise ConfigError(f"{name}: {' '.join(str(error).split()) or type(error).__name__}") from error
    require_kinds(made, nested=True)
    return made


def classes_of(value: Any) -> set[Callable[..., Any]]:
    """What the description of `value` can be read back with: the classes of all dataclasses in it, and classes and functions
    that are settings."""
    if isinstance(value, list | tuple):
        return set().union(*map(classes_of, value))
    if not dataclasses.is_dataclass(value):
        return {value} if inspect.isclass(value) or inspect.isfunction(value) else set()
    if isinstance(value, type):
        return set()
    return {type(value)}.union(*(classes_of(getattr(value, f.name)) for f in dataclasses.fields(value)))


def classes_in(package: str, base: type) -> dict[str, type]:
    """Every public concrete subclass of a class in a package. The folder is the registry.

    Args:
        package: the package's name.
        base: the class.

    Returns:
        name -> class.
    """
    module = importlib.import_module(package)
    found: dict[str, type] = {}
    for info in sorted(pkgutil.walk_packages(module.__path__, f"{package}."), key=lambda info: info.name):
        content = importlib.import_module(info.name)
        for name, value in vars(content).items():
            is_ours = inspect.isclass(value) and value.__module__ == content.__name__
            is_kind = is_ours and issubclass(value, base) and value is not base
            if is_kind and not inspect.isabstract(value) and not name.startswith("_"):
                found[name] = value
    return found
