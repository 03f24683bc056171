"""Who may know whom, and what no file may do: read off the syntax trees of everything in the repository."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import compolens

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "compolens"

LIBRARY = {
    "foundation", "measures", "hooks", "tables", "figures", "tasks", "models", "jobs", "references", "training",
    "network_baselines", "language_models", "activations", "zoo", "interventions", "challenge", "diagnosis", "recipes",
    "report", "citations", "explore", "maps",
}  # fmt: skip
MAY_IMPORT = {
    # floor 0: nothing of ours
    "foundation": set(),
    "measures": set(),
    # floor 1: the foundation only
    "hooks": {"foundation"},
    "tables": {"foundation", "measures"},
    "figures": {"foundation"},
    "citations": {"foundation"},
    # floor 2: mutually unaware
    "tasks": {"foundation"},
    "models": {"foundation", "hooks"},
    "jobs": {"foundation"},
    "diagnosis": {"foundation", "tables", "measures"},
    # floor 3: where tasks and models meet
    "references": {"foundation", "tasks"},
    "training": {"foundation", "measures", "tasks", "models", "hooks"},
    "activations": {"foundation", "measures", "tasks", "models", "hooks", "training"},
    "language_models": {"foundation", "tasks", "models", "hooks", "activations", "training"},
    # floor 4: trained models
    "zoo": {"foundation", "tasks", "models", "hooks", "activations", "training"},
    "network_baselines": {"foundation", "tasks", "models", "hooks", "measures", "activations", "training", "zoo"},
    "interventions": {"foundation", "tasks", "hooks", "measures", "activations", "training", "zoo"},
    "challenge": LIBRARY - {"challenge", "report", "recipes", "citations", "diagnosis", "explore", "maps"},
    # floor 5: what users call
    "recipes": {"foundation", "tables", "figures", "zoo"},
    "maps": {"foundation", "measures", "tables", "tasks", "training", "jobs", "recipes"},
    "report": LIBRARY - {"report", "explore", "maps"},
    "explore": {
        "foundation",
        "measures",
        "figures",
        "tables",
        "tasks",
        "references",
        "hooks",
        "activations",
        "zoo",
        "interventions",
    },
    "cli": LIBRARY,
    "__main__": {"cli"},
    # outside
    "probes": LIBRARY - {"explore", "maps"},
    "analyses": {"foundation", "measures", "figures", "tables", "diagnosis"},
}
"""Room -> the rooms it may import (itself always). A room that is not listed here has no place in the house yet."""


def room_of(path):
    if PACKAGE in path.parents:
        return path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return path.relative_to(ROOT).parts[0]


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
RECIPES = sorted(path for kind in ("probes", "analyses") for path in (ROOT / kind).glob("*.py"))


class Trees(dict):
    """path -> its syntax tree, read when it is first asked for."""

    def __missing__(self, path):
        self[path] = ast.parse(path.read_text(encoding="utf-8"))
        return self[path]


TREES = Trees()


@cache
def everything_in(tree):
    return tuple(ast.walk(tree))


def walk(node):
    """As `ast.walk`; of a whole file, which a dozen tests look through, once."""
    return everything_in(node) if isinstance(node, ast.Module) else ast.walk(node)


def over(paths):
    """What a test says of one path, said of all of them in one test, which names each path that it is not true of."""

    def decorate(test):
        def test_every_path():
            wrong = {}
            for path in paths:
                try:
                    test(path)
                except AssertionError as error:
                    wrong[str(path.relative_to(ROOT))] = str(error)
            assert not wrong, "\n".join(f"{path}: {said}" for path, said in wrong.items())

        test_every_path.__doc__ = test.__doc__
        return test_every_path

    return decorate


EVERY_FILE, EVERY_ROOM = over([*SOURCES, *RECIPES, PACKAGE / "__init__.py"]), over([*SOURCES, *RECIPES])


def home(name):
    """The room that a public name of the package lives in; "" for the package's own, such as __version__."""
    if name in MAY_IMPORT:
        return name
    if name.startswith("_"):
        return ""
    defined = getattr(compolens, name)  # raises where nothing of that name exists
    return defined.__module__.split(".")[1]


def imported(tree):
    """Dotted names of everything a file imports, wherever in the file: "torch.nn", "compolens.tasks.base", …"""
    for node in walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the package in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node):
    """ "a.b.c" for a chain of attributes on a name, else ""."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def rooms_used(tree):
    """Rooms of ours that a file imports, or reaches as an attribute of the package."""
    names = [*imported(tree), *(dotted(node) for node in walk(tree) if isinstance(node, ast.Attribute))]
    parts = (name.split(".") for name in names)
    return {home(part[1]) for part in parts if part[0] == "compolens" and len(part) > 1} - {""}


def third_party(tree):
    return {name.split(".")[0] for name in imported(tree)}


def calls(tree):
    return [dotted(node.func) for node in walk(tree) if isinstance(node, ast.Call)]


# ---- who may know whom -----------------------------------------------------------------------------------------------
def test_every_room_has_its_place():
    assert {room_of(path) for path in [*SOURCES, *RECIPES]} <= set(MAY_IMPORT)


@EVERY_ROOM
def test_a_room_knows_only_those_below(path):
    room = room_of(path)
    allowed = MAY_IMPORT[room] | ({room} if PACKAGE in path.parents else set())
    assert rooms_used(TREES[path]) <= allowed


def test_the_table_itself_has_no_cycle():
    left = dict(MAY_IMPORT)
    while left:
        ready = {room for room, below in left.items() if not below & set(left)}
        assert ready, f"these know each other: {sorted(left)}"
        left = {room: below for room, below in left.items() if room not in ready}


def test_names_are_traced_to_where_they_are_defined():
    tree = ast.parse("from compolens import SoftmaxTransformer, tables, load, __version__\nimport compolens.tasks.base")
    assert rooms_used(tree) == {"models", "tables", "zoo", "tasks"}
    assert rooms_used(ast.parse("import compolens\nprint(compolens.Run, compolens.__file__)")) == {"training"}


@EVERY_FILE
def test_only_hooks_imports_transformer_lens(path):
    assert path == PACKAGE / "hooks.py" or "transformer_lens" not in third_party(TREES[path])


def test_hooks_does_import_transformer_lens():
    assert "transformer_lens" in third_party(TREES[PACKAGE / "hooks.py"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_recipes_import_no_recipes(path):
    assert not third_party(TREES[path]) & {"probes", "analyses", *(recipe.stem for recipe in RECIPES)}


@pytest.mark.parametrize("path", [path for path in RECIPES if room_of(path) == "analyses"], ids=lambda path: path.stem)
def test_analyses_import_no_torch(path):
    assert not third_party(TREES[path]) & {"torch", "transformer_lens", "safetensors"}


LIGHT = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES
    if room_of(path) in ("foundation", "tables", "figures", "diagnosis", "recipes", "cli", "citations")
    and path.stem != "__main__"
)
"""Modules that a command imports before it knows what is asked of it, or that draw from tables."""


def test_importing_it_does_not_import_torch():
    """All of them in one process, one after another: the first that brings torch along is named."""
    heavy = {"torch", "transformer_lens", "matplotlib", "plotly"}
    script = f"""
import importlib, sys
for name in {["compolens", *LIGHT]}:
    importlib.import_module(name)
    assert not {heavy} & set(sys.modules), name
"""
    environment = {"PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr.splitlines()[-1]


# ---- no circles ------------------------------------------------------------------------------------------------------
def module_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in [*SOURCES, PACKAGE / "__init__.py"]}


def files_used(path):
    """Modules of ours that a file imports, wherever in it."""
    names = {name if name in MODULES else name.rpartition(".")[0] for name in imported(TREES[path])}
    return names & MODULES.keys() - {module_of(path), "compolens"}


def test_no_files_import_each_other_in_a_circle():
    left = {name: files_used(path) for name, path in MODULES.items() if name != "compolens"}
    while left:
        ready = {name for name, below in left.items() if not below & set(left)}
        assert ready, f"these import each other: {sorted(left)}"
        left = {name: below for name, below in left.items() if name not in ready}


def test_the_package_exports_what_it_names():
    for name in compolens.__all__:
        assert getattr(compolens, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'SoftmaxTransfomer'"):
        compolens.SoftmaxTransfomer  # noqa: B018


# ---- what no file may do ---------------------------------------------------------------------------------------------
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "pd.read_pickle", "pandas.read_pickle"}


@EVERY_FILE
def test_nothing_is_unpickled_or_evaluated(path):
    tree = TREES[path]
    assert not third_party(tree) & UNSAFE_MODULES
    assert not set(calls(tree)) & UNSAFE_CALLS
    for node in walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            assert isinstance(node.value, ast.Constant) and node.value.value is (node.arg == "weights_only")


@EVERY_FILE
def test_files_are_run_only_where_the_caller_named_them(path):
    """`exec_module` runs a file; recipes.load_file, which gets a path from the caller, is the one place that does."""
    places = [
        function.name
        for function in walk(TREES[path])
        if isinstance(function, ast.FunctionDef)
        for node in walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "exec_module"
    ]
    assert places == (["load_file"] if path == PACKAGE / "recipes.py" else [])


GLOBAL_SEEDS = {
    "torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all",
    "torch.default_generator.manual_seed", "torch.set_rng_state", "torch.use_deterministic_algorithms", "random.seed",
    "np.random.seed", "numpy.random.seed",
}  # fmt: skip
GENERATORS = {"default_rng", "Generator", "SeedSequence", "PCG64"}


@EVERY_FILE
def test_only_run_build_seeds_globally(path):
    tree = TREES[path]
    seeding = [
        (owner.name, function.name)
        for owner in walk(tree)
        if isinstance(owner, ast.ClassDef)
        for function in owner.body
        if isinstance(function, ast.FunctionDef)
        for call in calls(function)
        if call in GLOBAL_SEEDS
    ]
    total = sum(call in GLOBAL_SEEDS for call in calls(tree))
    expected = {("Run", "build")} if path == PACKAGE / "training" / "runs.py" else set()
    assert set(seeding) == expected and total == len(seeding)


@EVERY_FILE
def test_numpys_global_generator_is_never_used(path):
    names = (dotted(node).split(".") for node in walk(TREES[path]) if isinstance(node, ast.Attribute))
    used = {name[2] for name in names if name[0] in ("np", "numpy") and name[1] == "random" and len(name) > 2}
    assert used <= GENERATORS


@EVERY_FILE
def test_no_exception_is_caught_without_naming_it(path):
    handlers = [node for node in walk(TREES[path]) if isinstance(node, ast.ExceptHandler)]
    assert all(handler.type is not None for handler in handlers)
    silent = [h for h in handlers if dotted(h.type) in ("Exception", "BaseException") and isinstance(h.body[0], ast.Pass)]
    assert not silent


@EVERY_FILE
def test_nothing_is_called_by_what_it_is_not(path):
    assert path.stem not in ("utils", "util", "common", "helpers", "misc")


@EVERY_FILE
def test_every_file_opens_with_a_sentence(path):
    docstring = ast.get_docstring(TREES[path])
    assert docstring, "a module says what it is"
    if path in RECIPES:
        first = docstring.splitlines()[0]
        assert first.endswith("?" if room_of(path) == "probes" else "."), "a probe asks, an analysis claims"


@EVERY_FILE
def test_state_is_not_shared_through_mutable_globals(path):
    """`global` statements are how module-level state changes."""
    assert not [node for node in walk(TREES[path]) if isinstance(node, ast.Global)]
