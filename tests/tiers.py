"""Two tiers of tests: `pytest` leaves out those in slow.txt, `pytest --slow` runs all. A file that is named is run whole.

    make test-all                                    # everything
    python -m pytest -n 2 --slow --note-slow         # everything; writes slow.txt again, by the processor time of each test

A test is slow if it takes more than `LONG`, or if it asks for a fixture of `DEAR`. Of a function whose cases are all slow, the
quickest is left in unless it takes more than `LONGEST`.
"""

import resource
from collections import defaultdict
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow.txt")
LONG, LONGEST = 0.25, 1.0
"""Seconds of processor time, child processes counted."""
KEPT = ("tests/probes/test_probe_versions.py::",)
"""How the ids of tests begin that every change has to pass, however long they take: they guard the shipped numbers."""
DEAR = {
    "tests/docs/test_docs.py": {"site", "started"},
    "tests/explore/test_show.py": {"outputs"},
    "tests/notebooks/test_notebooks.py": {"process"},
    "tests/shipped/test_shipped_contest.py": {"contest"},
    "tests/shipped/test_shipped_failing_compositions.py": {"found"},
    "tests/test_faults.py": {"world"},
    "tests/test_recipes.py": {"models", "again", "otherwise", "figures"},
    "tests/training/test_distributed.py": {"together_folder", "alone_folder"},
}
"""File -> its fixtures that take 8 to 100 seconds. What asks for one is slow, however quick by itself: of the tests that share
one, the first to run pays."""
SPENT = "processor seconds"


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests of tests/slow.txt as well")
    parser.addoption("--note-slow", action="store_true", help="write tests/slow.txt again, from the times of this run")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow") or config.args != config.getini("testpaths"):
        return
    listed = set(LIST.read_text(encoding="utf-8").splitlines())
    slow = [
        item.nodeid in listed or not DEAR.get(item.nodeid.partition("::")[0], set()).isdisjoint(item.fixturenames)
        for item in items
    ]
    config.hook.pytest_deselected(items=[item for item, left in zip(items, slow, strict=True) if left])
    items[:] = [item for item, left in zip(items, slow, strict=True) if not left]


def slow_of(spent):
    """The slow tests.

    Args:
        spent: id of a test -> processor seconds.
    """
    spent = {test: seconds for test, seconds in spent.items() if not test.startswith(KEPT)}
    functions = defaultdict(list)
    for test in spent:
        functions[test.partition("[")[0]].append(test)
    quickest = {min(tests, key=spent.__getitem__) for tests in functions.values()}
    return sorted(test for test, seconds in spent.items() if seconds > (LONGEST if test in quickest else LONG))


# ---- noting the times ------------------------------------------------------------------------------------------------
_noted = {}


def _now():
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in both)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_BEGAN] = _now()
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    yield
    item.user_properties.append((SPENT, round(_now() - item.stash[_BEGAN], 3)))


_BEGAN = pytest.StashKey()


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        _noted[report.nodeid] = dict(report.user_properties).get(SPENT, 0.0)


def pytest_sessionfinish(session):
    if session.config.getoption("--note-slow") and not hasattr(session.config, "workerinput"):
        LIST.write_text("".join(f"{test}\n" for test in slow_of(_noted)), encoding="utf-8")
