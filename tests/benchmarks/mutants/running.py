"""Tests in processes that are forked off one that has imported them: which functions each test runs, and whether one of them
fails where a mutant is."""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import hashlib
import importlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sampling import ROOT, SRC, Mutant, files, function_at, mutated

TESTS = ROOT / "tests"
ASKED = ("measures", "maps/test_phase_diagram.py", "diagnosis", "tables", "zoo/test_damage.py")
"""Where the tests are that are asked of a mutant: what mirrors the mutated rooms."""
SEEN = "_compolens_seen"
"""A name among the builtins, of what functions say their names to."""
WALL = 300.0
"""Seconds of waiting after which a test does not end."""
MEMORY = 12 * 2**30
TRAINED = ("models", "categorical", "regression")
"""Folders of tiny models that many tests read, trained once, without a mutant: training runs nothing of what is mutated."""


class Test(NamedTuple):
    """name: as pytest has it, below tests/; seconds: of work; functions: "FILE:NAME" of those that it runs."""

    name: str
    seconds: float
    functions: frozenset[str]

    @property
    def file(self) -> str:
        return self.name.split("::")[0]


class Yard:
    """A copy of the source in which mutants are made, and what is kept from one run to the next.

    Args:
        place: The copy's folder; made anew.
        kept: What each test runs, and the tiny models.
    """

    def __init__(self, place: Path, kept: Path) -> None:
        self.place, self.kept, self.runs = place, kept, 0
        self.passes: dict[str, bool] = {}
        kept.mkdir(parents=True, exist_ok=True)
        for room in ("src", "probes", "analyses"):
            shutil.copytree(ROOT / room, place / room, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", place)
        sys.path[:0] = [str(place / "src"), str(TESTS), *sorted({str((TESTS / file).parent) for file in _files()})]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join([str(place / "src"), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(place / "hypothesis"), "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1",
            "PYTEST_XDIST_WORKER": "gw0",  # the tests' shared folder then lies beside that of the run
        }  # fmt: skip
        for file in _files():
            with contextlib.suppress(Exception, pytest.skip.Exception):  # then the child that is asked for it says so
                importlib.import_module(Path(file).stem)

    # ---- what each test runs -----------------------------------------------------------------------------------------
    def tests(self) -> list[Test]:
        """Every test that passes without a mutant, measured where its file is new or has changed."""
        found = []
        for file in _files():
            found += self._tests_of(TESTS / file)
        return found

    def _tests_of(self, file: Path) -> list[Test]:
        name = file.relative_to(TESTS).as_posix()
        kept = self.kept / "runs" / f"{name.replace('/', '.')}.json"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if not kept.exists() or json.loads(kept.read_text())["digest"] != digest:
            self.instrument()
            self.child(lambda: self.covered(file), [str(file)], cpu=1200.0, keep=True)
            self.restore()
            answer = json.loads((self.kept / "answer.json").read_text()) if (self.kept / "answer.json").exists() else []
            (self.kept / "answer.json").unlink(missing_ok=True)
            passed = [entry for entry in answer if entry["passed"]]
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(json.dumps({"digest": digest, "tests": passed}))
            failed = [entry["name"] for entry in answer if not entry["passed"]]
            seconds = sum(entry["seconds"] for entry in passed)
            print(
                f"{name}: {len(passed)} tests, {seconds:.0f} s; not asked, since they fail or are skipped: {failed}",
                flush=True,
            )
        return [
            Test(entry["name"], entry["seconds"], frozenset(entry["functions"]))
            for entry in json.loads(kept.read_text())["tests"]
        ]

    def covered(self, file: Path) -> int:
        self.forget()
        return Coverage().run([str(file)], self.kept / "answer.json")

    def forget(self) -> None:
        """Have the package and its tests imported anew."""
        rooms = (str(self.place), str(TESTS))
        for name in [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(rooms)]:
            if name not in ("bench", "running", "sampling", "__main__"):
                del sys.modules[name]

    def instrument(self) -> None:
        """Have every function that may be mutated say that it runs."""
        for path in files():
            name = path.relative_to(SRC).as_posix()
            _write(self.place / "src" / "compolens" / name, telling(path.read_text(), name))

    def restore(self) -> None:
        for path in files():
            _write(self.place / "src" / "compolens" / path.relative_to(SRC), path.read_text())

    # ---- a mutant ----------------------------------------------------------------------------------------------------
    def catches(self, mutant: Mutant, tests: list[Test]) -> str:
        """The test that fails with the mutant in place, or does not end, and passes without it; "" where there is none."""
        left = {test.name: test for test in tests}
        target = self.place / "src" / "compolens" / mutant.file
        original = target.read_text()
        while left:
            try:
                _write(target, mutated(mutant))
                failed = self.fails(list(left.values()), mutant)
            finally:
                _write(target, original)
            if not failed or self.sound(failed, left):
                return failed
            print(f"not asked any more, since it fails without a mutant too: {failed}", flush=True)
            left = {name: test for name, test in left.items() if failed not in (name, test.file)}
        return ""

    def fails(self, tests: list[Test], mutant: Mutant | None = None) -> str:
        """The first of these tests that fails as the code stands, or the file that cannot be read; "" where all pass."""

        def ask() -> int:
            if mutant is not None and not put(mutant):
                self.forget()
            return _asked(order, last)

        by_file: dict[str, list[Test]] = {}
        for test in tests:
            by_file.setdefault(test.file, []).append(test)
        order = [test.name for file in by_file.values() for test in sorted(file, key=lambda test: test.seconds)]
        last = self.place / "last"
        last.write_text(order[0].split("::")[0] if order else "")
        limit = 20.0 + 3 * sum(test.seconds for test in tests)
        return last.read_text() if self.child(ask, order, cpu=limit) != 0 else ""

    def sound(self, failed: str, tests: dict[str, Test]) -> bool:
        """Whether what has failed with a mutant passes without: a test, or the reading of a file of tests."""
        if failed not in self.passes:
            asked = [test for name, test in tests.items() if failed in (name, test.file)]
            self.passes[failed] = bool(asked) and not self.fails(sorted(asked, key=lambda test: test.seconds)[:1])
        return self.passes[failed]

    def child(self, do: Callable[[], int], asked: list[str], cpu: float, keep: bool = False) -> int:
        """Do something in a process of its own; 0 if all went well. With `keep`, the tiny models that it trained stay."""
        if not asked:
            return 0
        self.runs += 1
        base = self.place / "runs" / str(self.runs)
        shared = base / "shared"
        for name in TRAINED:
            if (self.kept / name).exists():
                shutil.copytree(self.kept / name, shared / name)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                _quietly(base, cpu)
                os._exit(do())
            os._exit(99)
        status = _ended(pid)
        for name in TRAINED:
            if keep and (shared / name).exists():
                shutil.rmtree(self.kept / name, ignore_errors=True)
                shutil.copytree(shared / name, self.kept / name)
        shutil.rmtree(base, ignore_errors=True)
        return status


def _files() -> list[str]:
    """The files of the tests that are asked."""
    found = [sorted((TESTS / room).rglob("test_*.py")) if (TESTS / room).is_dir() else [TESTS / room] for room in ASKED]
    return [file.relative_to(TESTS).as_posix() for files in found for file in files]


def put(mutant: Mutant) -> bool:
    """Give the function that is imported the mutant's code. False where it stands in none, and the file is to be read anew."""
    path = SRC / mutant.file
    function = function_at(path.read_text(), mutant.line)
    live = sys.modules.get("compolens." + mutant.file.removesuffix(".py").replace("/", "."))
    if not function or live is None or mutant.before.startswith("@"):
        return False
    other = types.ModuleType(live.__name__)
    other.__dict__.update(__package__=live.__package__, __file__=live.__file__)
    try:
        exec(compile(mutated(mutant), str(live.__file__), "exec"), other.__dict__)
        old, new = _function(live, function), _function(other, function)
        old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
    except Exception:  # it cannot be read, or is no plain function
        return False
    return True


def _function(module: types.ModuleType, name: str) -> types.FunctionType:
    """The function beneath decorators and properties."""
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    while not isinstance(found, types.FunctionType) or hasattr(found, "__wrapped__"):
        found = next(getattr(found, word) for word in ("__wrapped__", "__func__", "fget", "func") if hasattr(found, word))
    return found


def telling(source: str, file: str) -> str:
    """Source whose outermost functions, and methods, say "FILE:NAME" when they begin."""
    tree = ast.parse(source)

    def into(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                into(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{file}:{prefix}{node.name}"
                call = ast.parse(f"getattr(__import__('builtins'), {SEEN!r}, len)({name!r})").body
                first = int(ast.get_docstring(node) is not None)
                node.body[first:first] = call

    into(tree.body, "")
    return ast.unparse(ast.fix_missing_locations(tree))


def relevant(mutant: Mutant, source: str, tests: list[Test], most: float) -> list[Test]:
    """The tests that run the mutant's function; where it stands in none, those that run any of its module, or nothing at all,
    since they may read it otherwise. Those of the folder that mirrors the module's come first, then the quick ones, up to so
    many seconds in all."""
    name = f"{mutant.file}:{function_at(source, mutant.line)}"
    known = {function for test in tests for function in test.functions}
    inside = not name.endswith(":") and name in known
    found = [test for test in tests if (name in test.functions if inside else _reads(test, mutant.file) or not test.functions)]
    room, stem = mutant.file.split("/")[0].removesuffix(".py"), Path(mutant.file).stem
    found.sort(key=lambda test: (stem not in test.file, room not in test.file and bool(test.functions), test.seconds))
    kept, total = [], 0.0
    for test in found:
        total += test.seconds
        if kept and total > most:
            break
        kept.append(test)
    return kept


def _reads(test: Test, file: str) -> bool:
    return any(function.startswith(f"{file}:") for function in test.functions)


def _write(target: Path, text: str) -> None:
    target.write_text(text)
    for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
        compiled.unlink()  # the time and size in it may be those of another mutant


def _quietly(base: Path, cpu: float) -> None:
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    base.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # what the parent imported is never collected
    off = ("xdist", "unraisableexception", "threadexception")
    OPTIONS[:] = ["-x", "-q", "--timeout", "0", f"--basetemp={base / 'gw0'}", "--rootdir", str(ROOT)]
    OPTIONS[:] += [word for plugin in off for word in ("-p", f"no:{plugin}")]
    if "COMPOLENS_MUTANTS_DEBUG" not in os.environ:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)


OPTIONS: list[str] = []
"""Of pytest, in a child."""


def _ended(pid: int) -> int:
    began = time.monotonic()
    used = -1.0
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        work = _work(pid)
        if work > used + 0.05:
            used, began = work, time.monotonic()
        if time.monotonic() - began > WALL:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            break
        time.sleep(0.02)
    with contextlib.suppress(OSError):  # what a test left behind
        os.killpg(pid, signal.SIGKILL)
    return status


def _work(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _asked(order: list[str], last: Path) -> int:
    files = list(dict.fromkeys(str(TESTS / name.split("::")[0]) for name in order))
    with contextlib.redirect_stdout(io.StringIO()):
        return int(pytest.main([*OPTIONS, *files], plugins=[Chosen(order, last)]))


class Chosen:
    """A plugin of pytest: these tests, in this order; the file `last` names the one that was begun last."""

    def __init__(self, order: list[str], last: Path) -> None:
        self.place, self.last = {name: place for place, name in enumerate(order)}, last

    def pytest_collectstart(self, collector: Any) -> None:
        if isinstance(collector, pytest.Module):
            self.last.write_text(_name(collector))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((item for item in items if _name(item) in self.place), key=lambda item: self.place[_name(item)])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.last.write_text(nodeid.removeprefix("tests/"))


class Coverage:
    """A plugin of pytest: which functions of the package each test runs, and for how long it works.

    What a fixture runs counts for every test that asks for the fixture, whichever of them is first.
    """

    def __init__(self) -> None:
        self.fixtures: dict[str, set[str]] = {}
        self.tests: dict[str, dict[str, Any]] = {}

    def run(self, files: list[str], answer: Path) -> int:
        options = [option for option in OPTIONS if option != "-x"]
        pytest.main([*options, *files], plugins=[self])
        for entry in self.tests.values():
            asked = entry.pop("fixtures")
            entry["functions"] = sorted(set(entry["functions"]).union(*(self.fixtures.get(name, ()) for name in asked)))
        answer.write_text(json.dumps(list(self.tests.values())))
        return 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[set[str]]:
        """What is run meanwhile."""
        outer = getattr(builtins, SEEN, len)
        found: set[str] = set()
        setattr(builtins, SEEN, found.add)
        try:
            yield found
        finally:
            setattr(builtins, SEEN, outer)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        with self.watched() as found:
            result = yield
        self.fixtures.setdefault(fixturedef.argname, set()).update(found)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        began = time.process_time()
        entry = {"name": _name(item), "passed": False, "seconds": 0.0, "functions": [], "fixtures": list(item.fixturenames)}
        self.tests[_name(item)] = entry
        with self.watched() as found:
            result = yield
        entry |= {"passed": True, "seconds": time.process_time() - began, "functions": sorted(found)}
        return result


def _name(item: Any) -> str:
    return item.nodeid.removeprefix("tests/")
