"""Whatever could be imported before the rooms were rearranged still can, is the same module, and says its new name."""

import importlib
import subprocess
import sys
import warnings

import pytest

import compolens
from compolens.foundation.moved import MOVED, MOVED_NAMES, MovedFinder, install


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_module_of_the_new_one_and_says_so(old):
    sys.modules.pop(f"compolens.{old}", None)
    with pytest.warns(FutureWarning, match=f"compolens.{old} is now compolens.{MOVED[old]}; "):
        found = importlib.import_module(f"compolens.{old}")
    assert found is importlib.import_module(f"compolens.{MOVED[old]}")
    assert found.__name__ == f"compolens.{MOVED[old]}"


def test_new_names_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for new in MOVED.values():
            importlib.import_module(f"compolens.{new}")


def test_old_names_work_as_attributes_too():
    sys.modules.pop("compolens.oracles", None)
    vars(compolens).pop("oracles", None)
    with pytest.warns(FutureWarning, match="compolens.interventions.oracles"):
        assert compolens.oracles.code_features


def test_importing_the_package_and_its_public_names_warns_of_nothing():
    script = "import compolens\nfor name in compolens.__all__: getattr(compolens, name)"
    subprocess.run([sys.executable, "-W", "error::FutureWarning:compolens", "-c", script], check=True)


def test_installing_twice_is_installing_once():
    install()
    assert sum(isinstance(finder, MovedFinder) for finder in sys.meta_path) == 1


def test_nothing_of_an_old_name_is_left():
    for old, new in MOVED.items():
        assert new not in MOVED and old != new


@pytest.mark.parametrize(("old", "name"), [(old, name) for old, names in MOVED_NAMES.items() for name in names])
def test_a_function_that_moved_is_found_where_it_was(old, name):
    module = importlib.import_module(f"compolens.{old}")
    with pytest.warns(FutureWarning, match=f"compolens.{old}.{name} is now compolens.{MOVED_NAMES[old][name]}.{name}; "):
        found = getattr(module, name)
    assert found is getattr(importlib.import_module(f"compolens.{MOVED_NAMES[old][name]}"), name)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        module.no_such_name  # noqa: B018
