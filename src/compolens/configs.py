"""Frozen dataclasses to JSON and back: how a folder describes the run, the task and the architecture it holds.

A description is ``{"class": "Hyperteacher", "d_x": 16, ...}``. Reading one back looks the class up by name among the
classes the caller allows, so a description can never name, let alone execute, anything else.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from typing import Any


class ConfigError(ValueError):
    """A description that does not describe: what was got, what is allowed, in one line."""


class DoesNotApply(ConfigError):
    """Two things that cannot work together, such as an architecture and a task, with the reason."""


def nearest(name: str, allowed: Iterable[str], n: int = 3) -> str:
    """A ``did you mean`` clause for a misspelt name; lists what is allowed if nothing is near."""
    options = sorted({str(option) for option in allowed})
    near = difflib.get_close_matches(name, options, n=n, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(repr(option) for option in near) + "?"
    shown = ", ".join(options[:12]) + (", …" if len(options) > 12 else "")
    return f"allowed: {shown}" if shown else "none is allowed here"


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError` with the message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def require_choice(value: str, allowed: Iterable[str]) -> None:
    """Raise `ConfigError` unless a setting is one of the words it may be."""
    options = list(allowed)
    require(value in options, f"no such choice {value!r}; {nearest(str(value), options)}")


def require_positive(owner: object, *names: str) -> None:
    """Every named field of a dataclass is an int of at least 1."""
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{type(owner).__name__}: {name} must be a whole number of at least 1, got {value!r}")


def frozen(value: Any) -> Any:
    """Lists as (nested) tuples, so that a dataclass built from JSON equals, and hashes like, the one written in Python."""
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value


def describe(value: Any) -> Any:
    """The JSON form of a dataclass (or of a plain value inside one)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"cannot describe a {type(value).__name__}; allowed: numbers, strings, lists and dataclasses")


def construct(description: Any, classes: Iterable[type]) -> Any:
    """The inverse of `describe`, building only from the classes given. Unknown classes and keys are errors."""
    known = {cls.__name__: cls for cls in classes}
    if isinstance(description, list):
        return tuple(construct(item, known.values()) for item in description)
    if not isinstance(description, dict):
        return description
    name = description.get("class")
    if not isinstance(name, str) or name not in known:
        hint = nearest(str(name), known)
        raise ConfigError(
            f"unknown class {name!r} in a description; {hint} "
            f"(a class of your own must be handed over: load(folder, classes=[{name}]), or --with package:{name})"
        )
    cls = known[name]
    allowed = [f.name for f in dataclasses.fields(cls)]
    for key in description:
        if key != "class" and key not in allowed:
            raise ConfigError(f"{name} has no setting {key!r}; {nearest(key, allowed)}")
    arguments = {k: construct(v, known.values()) for k, v in description.items() if k != "class"}
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from error


def classes_of(value: Any) -> set[type]:
    """The classes of a dataclass and of all dataclasses inside it: what its description can be read back with."""
    if isinstance(value, list | tuple):
        return set().union(*map(classes_of, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return set()
    return {type(value)}.union(*(classes_of(getattr(value, f.name)) for f in dataclasses.fields(value)))


def classes_in(package: str, base: type) -> dict[str, type]:
    """Every public concrete subclass of `base` defined in the modules of a package. The folder is the registry."""
    module = importlib.import_module(package)
    found: dict[str, type] = {}
    for info in sorted(pkgutil.iter_modules(module.__path__), key=lambda info: info.name):
        content = importlib.import_module(f"{package}.{info.name}")
        for name, value in vars(content).items():
            is_ours = inspect.isclass(value) and value.__module__ == content.__name__
            is_kind = is_ours and issubclass(value, base) and value is not base
            if is_kind and not inspect.isabstract(value) and not name.startswith("_"):
                found[name] = value
    return found
