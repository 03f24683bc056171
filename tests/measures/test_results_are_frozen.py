"""What a measure or the diagnosis returns cannot be changed afterwards: every dataclass there is frozen, but for two."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest

CHANGED_LATER = {"Moments", "Group"}
"""Sums over episodes grow, and a group's folders are collected."""


@pytest.mark.parametrize("room", ["measures", "diagnosis"])
def test_results_are_frozen(room):
    package = importlib.import_module(f"compolens.{room}")
    modules = [importlib.import_module(f"compolens.{room}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]
    classes = {
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__
    }
    found = {cls.__name__: cls.__dataclass_params__.frozen for cls in classes if dataclasses.is_dataclass(cls)}
    assert found and {name for name, frozen in found.items() if not frozen} <= CHANGED_LATER
