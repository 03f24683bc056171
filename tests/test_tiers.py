"""Which tests a whole run leaves out: the slow ones alone, and none where a file is named."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiers


def test_a_test_is_slow_by_its_own_time_but_no_function_is_left_without_a_case_for_little():
    spent = {
        "a.py::quick": 0.1, "a.py::alone": 0.9, "a.py::long": 1.1,
        "b.py::some[one]": 0.1, "b.py::some[two]": 0.4,
        "b.py::none[one]": 0.8, "b.py::none[two]": 0.5, "b.py::none[three]": 3.0,
        "b.py::all[one]": 2.0, "b.py::all[two]": 1.5,
    }  # fmt: skip
    assert tiers.slow_of(spent) == [
        "a.py::long", "b.py::all[one]", "b.py::all[two]", "b.py::none[one]", "b.py::none[three]", "b.py::some[two]",
    ]  # fmt: skip


@pytest.mark.parametrize(("args", "slow", "left"), [(["tests"], False, 1), (["tests"], True, 3), (["tests/docs"], False, 3)])
def test_a_whole_run_leaves_out_what_is_listed(args, slow, left):
    listed = tiers.LIST.read_text(encoding="utf-8").splitlines()
    assert listed == sorted(set(listed)) and all(test.startswith("tests/") and "::" in test for test in listed)
    dear, asked = next(iter(tiers.DEAR.items()))
    named = {listed[0]: (), f"{dear}::new": ("tmp_path", *asked), "tests/test_tiers.py::new": ("tmp_path",)}
    items, gone = [SimpleNamespace(nodeid=name, fixturenames=some) for name, some in named.items()], []
    config = SimpleNamespace(
        args=args, getoption=lambda name: slow, getini=lambda name: ["tests"],
        hook=SimpleNamespace(pytest_deselected=lambda items: gone.extend(items)),
    )  # fmt: skip
    tiers.pytest_collection_modifyitems(config, items)
    assert len(items) == left and len(items) + len(gone) == 3 and items[-1].nodeid.endswith("new")


def test_dear_fixtures_are_those_of_their_files():
    root = Path(__file__).parents[1]
    for file, names in tiers.DEAR.items():
        text = (root / file).read_text(encoding="utf-8")
        assert all(re.search(rf"@pytest.fixture.*\ndef {name}\(", text) for name in names), file
