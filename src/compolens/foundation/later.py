"""Imports of other packages that are put off: a name stands for itself, and is imported when it is used for the first time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class Later:
    """Stands for a class or a function of a module that is not imported yet; what is done to it is done to that.

    Args:
        module: the module's full name.
        name: of the class or the function.
    """

    def __init__(self, module: str, name: str) -> None:
        self._names = module, name

    def _itself(self) -> Any:
        module, name = self._names
        return getattr(importlib.import_module(module), name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._itself(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._itself()(*args, **kwargs)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._itself())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._itself())

    def __mro_entries__(self, bases: tuple) -> tuple:
        return (self._itself(),)

    def __or__(self, other: Any) -> Any:
        return self._itself() | (other._itself() if isinstance(other, Later) else other)

    def __ror__(self, other: Any) -> Any:
        return other | self._itself()


class _StandIn(ModuleType):
    """A module that has `Later` names alone; whoever still has it afterwards finds the names of the module itself."""

    def __init__(self, module: str, names: Collection[str]) -> None:
        super().__init__(module)
        self.__spec__ = ModuleSpec(module, None, is_package=True)
        self.__path__: list[str] = []
        for name in names:
            setattr(self, name, Later(module, name))

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        if module is self or name.startswith("__"):
            raise AttributeError(f"{self.__name__!r} stands for a module, and {name!r} was not expected to be asked of it")
        return getattr(module, name)


@contextmanager
def put_off(names: Mapping[str, Collection[str]], absent: Collection[str] = ()) -> Iterator[None]:
    """Inside, ``from module import name`` of what is listed imports nothing, and the name is a `Later`.

    What is imported already is left as it is.

    Args:
        names: module -> the names that are asked of it, the modules of a package beside the package itself. Another name is
            an ImportError inside.
        absent: packages that inside are as if they were not installed.

    Returns:
        The context.
    """
    known = {module.partition(".")[0] for module in [*names, *absent]} & sys.modules.keys()
    put = {module: _StandIn(module, asked) for module, asked in names.items() if module.partition(".")[0] not in known}
    inside: dict[str, Any] = {**put, **dict.fromkeys(set(absent) - known)}
    sys.modules.update(inside)
    try:
        yield
    finally:
        for module, standing in inside.items():
            if module in sys.modules and sys.modules[module] is standing:
                del sys.modules[module]


def alone(package: str, name: str) -> ModuleType:
    """A module of a package that imports much more than the module needs: without running the package's own file.

    Args:
        package: its full name.
        name: the module's name in it.

    Returns:
        The module. Where the package is not imported yet it still is not afterwards, nor are its modules: whoever imports them
        gets others. Where the module needs more of the package than its modules, all of it is imported.

    Raises:
        ImportError: there is no such module.
    """
    if package not in sys.modules:
        parent = importlib.import_module(package.rpartition(".")[0])
        standing = ModuleType(package)
        standing.__path__ = [str(Path(folder) / package.rpartition(".")[2]) for folder in parent.__path__]
        sys.modules[package] = standing
        try:
            return importlib.import_module(f"{package}.{name}")
        except ImportError:
            pass  # imported whole by the last line
        finally:
            for module in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
                del sys.modules[module]
    return importlib.import_module(f"{package}.{name}")
