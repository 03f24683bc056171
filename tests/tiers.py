"""Two tiers of tests: `pytest` leaves out those in slow.txt, `pytest --slow` runs all. A file that is named is run whole.

    make test-all                                    # everything
    python -m pytest -n 2 --slow --note-slow         # everything; writes slow.txt again, by the processor time of each test

A test is slow if it takes more than `LONG`. Of a function whose cases are all slow, the quickest is left in unless it takes
more than `LONGEST`.
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
SPENT = "processor seconds"


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests of tests/slow.txt as well")
    parser.addoption("--note-slow", action="store_true", help="write tests/slow.txt again, from the times of this run")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow") or config.args != config.getini("testpaths"):
        return
    slow = set(LIST.read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in slow])
    items[:] = [item for item in items if item.nodeid not in slow]


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
