"""Frozen dataclasses to JSON and back: how a folder describes the run, the task and the architecture it holds.

A description is ``{"class": "Hyperteacher", "d_x": 16, ...}``. Reading one back looks the class up by name among the
classes the caller allows, so a description can never name, let alone execute, anything else. A setting that is itself a class
or a function of the user's is ``{"outside": "MyNet"}``: its name, never where it is.
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
from typing import Any


class ConfigError(ValueError):
    """A description that does not describe: what was got, what is allowed, in one line."""


class DoesNotApply(ConfigError):
    """Two things that cannot work together, such as an architecture and a task, with the reason."""


def nearest(name: str, allowed: Iterable[str], n: int = 3) -> str:
    """A ``did you mean`` clause for a misspelt name; lists what is allowed if nothing is near.

    Args:
        name: what was got.
        allowed: what may be given.
        n: most suggestions.

    Returns:
        The clause.
    """
    options = sorted({str(option) for option in allowed})
    near = difflib.get_close_matches(name, options, n=n, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(repr(option) for option in near) + "?"
    shown = ", ".join(options[:12]) + (", …" if len(options) > 12 else "")
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


def require_kinds(owner: object) -> None:
    """Check the kinds of all fields of `owner`: those annotated as float hold finite numbers, those annotated as tuples lists.

    It is for `__post_init__`, before a value is compared or gone through. None and words are let through where the annotation
    has them."""
    cls: Any = type(owner)
    for name, hint in _hints(cls).items():
        value, several = getattr(owner, name), typing.get_origin(hint) in (types.UnionType, typing.Union)
        options = typing.get_args(hint) if several else (hint,)
        if any(isinstance(value, kind) for kind in (str, types.NoneType) if kind in options):
            continue
        also = "".join(f" or {word}" for kind, word in ((str, "a word"), (types.NoneType, "None")) if kind in options)
        if float in options:
            fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            require(fits, f"{type(owner).__name__}: {name} must be a finite number{also}, got {value!r}")
        elif any(typing.get_origin(option) is tuple for option in options):
            fits = isinstance(value, list | tuple | range | set | frozenset)
            require(fits, f"{type(owner).__name__}: {name} must be a list{also}, got {value!r}")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """field -> annotation; nothing of a class whose annotations name what is not imported where it is defined."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:
        return {}
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def require_whole(owner: object, *names: str) -> None:
    """Check that fields are whole numbers.

    Args:
        owner: a dataclass.
        names: its fields.

    Raises:
        ConfigError: one is not.
    """
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole, f"{type(owner).__name__}: {name} must be a whole number, got {value!r}")


def frozen(value: Any) -> Any:
    """Lists in `value` as (nested) tuples, so that a dataclass built from JSON equals, and hashes like, the one written in
    Python."""
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value


def describe(value: Any) -> Any:
    """The JSON form of `value`, a dataclass (or a plain value inside one); a `ConfigError` for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
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
    missing = sorted(outside_names(description) - set(known))
    if missing:
        flags = " ".join(f"--with FILE.py:{name}" for name in missing)
        raise ConfigError(
            f"{', '.join(missing)} is named here, which compolens does not have and no folder brings along; hand over what "
            f"is called so: {flags}, or load(folder, classes=[{', '.join(missing)}])"
        )
    return _construct(description, known)


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
            f"(a class of your own must be handed over: load(folder, classes=[{name}]), or --with package:{name})"
        )
    cls: Any = known[name]
    allowed = [f.name for f in dataclasses.fields(cls)]
    for key in description:
        if key != "class" and key not in allowed:
            raise ConfigError(f"{name} has no setting {key!r}; {nearest(key, allowed)}")
    arguments = {k: _construct(v, known) for k, v in description.items() if k != "class"}
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error


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
