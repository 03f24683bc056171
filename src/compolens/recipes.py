"""Probes and analyses: found by path or by bare name, run with provenance. A recipe is a file with one plain function.

    probes/X.py     probe(trained, *, episodes=…, seed=…, …) -> table, or (table, per-episode rows); docstring = the question
    analyses/X.py   needs = ("table", …); analyze(models, *, …) -> Drawing;                       docstring = the claim

Keyword arguments become flags, the docstring the help text. Built-in recipes travel with the package.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import compolens
from compolens.foundation.builtin import built_in, room
from compolens.foundation.configs import ConfigError, DoesNotApply, nearest

RENAMED = {"verdicts": "diagnoses"}
"""Recipes' earlier names, which still find them."""


def locate(kind: str, name: str | Path) -> Path:
    """A recipe's file, from its path or its bare name.

    Args:
        kind: "probes" or "analyses".
        name: the path or the name.

    Returns:
        The path of the file.

    Raises:
        ConfigError: there is no such recipe.
    """
    path = Path(name)
    name = RENAMED.get(str(name), name)
    if path.suffix == ".py":
        if path.is_file():
            return path
        if path.stem in built_in(kind) and path.parent.name in ("", kind):
            return built_in(kind)[path.stem]
        raise ConfigError(f"there is no recipe file {path}; `compolens {_verb(kind)} --list` names the built-in ones")
    if str(name) in built_in(kind):
        return built_in(kind)[str(name)]
    raise ConfigError(f"no recipe {str(name)!r} in {kind}; {nearest(str(name), built_in(kind))}")


def _verb(kind: str) -> str:
    return "probe" if kind == "probes" else "analyze"


def docstring(path: Path) -> str:
    """The first docstring line of the recipe file `path`, read without running it."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0] if text else "(no docstring)"


_LOADED = "compolens_file_"
"""What the names of modules begin with that `load_file` makes."""


def load_file(path: Path) -> ModuleType:
    """Run the Python file `path`, which the caller named, and return its module; a `ConfigError` where it fails."""
    name = f"{_LOADED}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    here = path.resolve().parent
    _forget_namesakes(here)
    sys.modules[name] = module  # dataclasses defined in the file look themselves up here
    before = list(sys.path)
    sys.path.insert(0, str(here))  # as `python file.py` has it, so that a file can import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} failed to load: {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = before if str(here) in before else [*before, str(here)]
    return module


def _forget_namesakes(here: Path) -> None:
    """What files loaded earlier imported from their own folders, where this folder has a file of that name."""
    loaded = [module.__file__ for name, module in sys.modules.items() if name.startswith(_LOADED) and module.__file__]
    elsewhere = {Path(file).parent for file in loaded} - {here}
    for file in here.glob("*.py"):
        known = getattr(sys.modules.get(file.stem), "__file__", None)
        if known is not None and Path(known).parent in elsewhere:
            del sys.modules[file.stem]


def load_recipe(kind: str, name: str | Path) -> Callable[..., Any]:
    """The function of a recipe: ``load_recipe("probes", "latent_code")(trained, episodes=512)``.

    Args:
        kind: "probes" or "analyses".
        name: the recipe's path or bare name.

    Returns:
        `probe` or `analyze`.

    Raises:
        ConfigError: the file defines no such function.
    """
    path = locate(kind, name)
    module = load_file(path)
    function = getattr(module, _verb(kind), None)
    if not callable(function):
        raise ConfigError(f"{path} defines no function {_verb(kind)}(); see the built-in ones in {room(kind)}")
    if kind != "probes":
        return function
    return _also_without_untrained(
        function, path.stem, tuple(getattr(module, "measured_on_untrained", getattr(module, "taken_from_twin", ())))
    )


# ---- models without an untrained control --------------------------------------------------------------------------------
MEASURED_ON_UNTRAINED = {
    "activation_sparsity": ("imposed",),
    "dual_model": ("whole",),
    "erase_code": ("rank", "unedited", "read_at"),
    "latent_code": ("l2",),
    "latent_geometry": ("point", "x", "y"),
}
"""Probe -> columns of its rows about the untrained control that are measured on it, beside value, lo and hi. A probe's file
may name them instead: ``measured_on_untrained = ("column", …)``."""
NAMED_BY_UNTRAINED = {"which_prior": ("nearest", "margin")}
"""Probe -> metrics whose column `reference` is what was found, not what was asked for."""


def _also_without_untrained(probe: Callable[..., Any], name: str, taken: tuple[str, ...]) -> Callable[..., Any]:
    """The probe, for models that have no untrained control too: rows about the untrained control then say why they are not
    available."""

    @functools.wraps(probe)
    def measure(trained: Any, **arguments: Any) -> Any:
        why = getattr(trained, "why_no_twin", "")
        if not why:
            return probe(trained, **arguments)
        result = probe(trained.with_stand_in(), **arguments)
        if isinstance(result, tuple):
            return tuple(_without_untrained(frame, name, taken, why) for frame in result)
        return _without_untrained(result, name, taken, why)

    return measure


def _without_untrained(frame: Any, name: str, taken: tuple[str, ...], why: str) -> Any:
    """The rows about the untrained control without any number: one row each of what would be there."""
    import pandas as pd

    if "control" not in frame:
        return frame
    untrained = frame["control"].str.contains("untrained")
    rows = frame[untrained].copy()
    measured = {"value", "lo", "hi", "score", *taken, *MEASURED_ON_UNTRAINED.get(name, ())} & set(rows.columns)
    points = {column for column in rows if column.startswith(("label.", "confound."))}  # a map's
    rows[sorted(measured | points)] = float("nan")
    if name in NAMED_BY_UNTRAINED:
        rows.loc[rows["metric"].isin(NAMED_BY_UNTRAINED[name]), "reference"] = "undecided"
    if "algorithm_step" in rows:
        rows.loc[rows["metric"] == "best step", "algorithm_step"] = float("nan")
    rows = rows.assign(n=0, note=f"not available: {why}").drop_duplicates()
    note = frame.get("note", "")
    return pd.concat([frame[~untrained].assign(note=note), rows]).sort_index(kind="stable").reset_index(drop=True)


def options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of the recipe `function`: its flags."""
    return {
        name: parameter
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def check_steps(steps: str) -> None:
    """Raise a `ConfigError` unless `steps` is something to ask for: "final", "all" or a number."""
    if steps not in ("final", "all") and not steps.isdigit():
        raise ConfigError(f"--steps must be final, all or a number, got {steps!r}")


def wanted_steps(folder: Path, steps: str) -> list[int]:
    """The steps that are asked for; the final one is always among them, so that no analysis ever takes weights along the way
    for the trained model.

    Args:
        folder: the model's folder.
        steps: "final", "all" or a number.

    Returns:
        Ascending steps.
    """
    from compolens import zoo

    check_steps(steps)
    final = zoo.read_step(folder)
    if steps == "all":
        return zoo.kept_steps(folder)
    return [final] if steps == "final" else sorted({int(steps), final})


def run_probe(
    path: Path,
    folder: Path,
    arguments: dict[str, Any],
    *,
    steps: str = "final",
    device: str = "cpu",
    classes: tuple[Callable[..., Any], ...] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Path:
    """Measure one model with one probe and save the table beside it.

    Args:
        path: the probe's file.
        folder: the model's folder.
        arguments: keyword arguments of the probe.
        steps: "final", "all", or a kept step's number.
        device: "cpu" or "cuda".
        classes: as for `zoo.load`.
        note: called with what is being done, when there is something to say.

    Returns:
        The path of the table.

    Raises:
        DoesNotApply: the family says that the probe cannot be measured on it.
    """
    import pandas as pd

    from compolens import tables, zoo
    from compolens.foundation import versions

    function = load_recipe("probes", path)
    wanted = wanted_steps(folder, steps)
    parts, rows = [], []
    for step in wanted:
        note(f"step {step}" if len(wanted) > 1 else "")
        trained = zoo.load(folder, step, classes, device)
        if path.stem in trained.task.missing:
            raise DoesNotApply(f"{type(trained.task).__name__}: {trained.task.missing[path.stem]}")
        result = function(trained, **arguments)
        table, episodes = result if isinstance(result, tuple) else (result, None)
        parts.append(table.assign(step=step))
        if episodes is not None:
            rows.append(episodes.assign(step=step))
    provenance = {
        "weights": tables.file_digest(folder / "weights.safetensors"),
        **versions.describe(path),
        "arguments": {k: v for k, v in arguments.items() if v is not None},
        "steps": wanted,
        "version": compolens.__version__,
        "command": f"compolens probe {path.stem} {folder.name}",
    }
    all_rows = pd.concat(rows, ignore_index=True) if rows else None
    return tables.save(folder, path.stem, pd.concat(parts, ignore_index=True), provenance, all_rows)


def run_analysis(path: Path, models: list[Path], arguments: dict[str, Any], out: Path, width: str) -> list[Path]:
    """Draw one analysis from the models' tables; writes <name>.pdf, .png, .csv and a .json that names the runs.

    Args:
        path: the analysis' file.
        models: model folders.
        arguments: keyword arguments of the analysis.
        out: where the files go.
        width: of the print, a name of `figures.WIDTHS`.

    Returns:
        The paths of the files.
    """
    from compolens import figures

    used, dropped = choose_models(path, models)
    drawing = load_recipe("analyses", path)(used, **arguments)
    sidecar = {
        "recipe": path.name,
        "runs": [str(m) for m in used],
        "dropped": dropped,
        "arguments": {k: v for k, v in arguments.items() if v is not None},
        "version": compolens.__version__,
        "versions": {name: metadata.version(name) for name in ("numpy", "pandas", "matplotlib", "plotly")},
        "command": " ".join(["compolens", "analyze", path.stem, *(str(m) for m in used)]),
    }
    return figures.save(drawing, out, path.stem, width, sidecar)


def choose_models(path: Path, models: list[Path]) -> tuple[list[Path], dict[str, str]]:
    """The models that have every table an analysis needs.

    Args:
        path: the analysis' file.
        models: model folders.

    Returns:
        (those models, dropped model -> reason).

    Raises:
        ConfigError: none is left, or the file does not say what it needs.
    """
    from compolens import tables

    needs = getattr(load_file(path), "needs", None)
    if not isinstance(needs, tuple):
        raise ConfigError(f'{path} must say which tables it needs: needs = ("generalization",)')
    used, dropped = [], {}
    for model in models:
        missing = [name for name in needs if not tables.path_of(model, name).exists()]
        stale = {n: tables.why_stale(model, n) for n in needs if n not in missing}
        if missing:
            dropped[str(model)] = f"has no table {', '.join(missing)}"
        elif any(stale.values()):
            dropped[str(model)] = "; ".join(f"{n}: {reason}" for n, reason in stale.items() if reason)
        else:
            used.append(model)
    if not used:
        first, reason = next(iter(dropped.items()))
        raise ConfigError(f"{path.stem}: {first} {reason}; type: compolens probe {' '.join(needs)} {first}")
    return used, dropped
