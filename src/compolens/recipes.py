"""Probes and analyses: found by path or by bare name, run with provenance. A recipe is a file with one plain function.

    probes/X.py     probe(trained, *, episodes=…, seed=…, …) -> table, or (table, per-episode rows); docstring = the question
    analyses/X.py   needs = ("table", …); analyze(models, *, …) -> Drawing;                       docstring = the claim

Keyword arguments become flags, the docstring the help text. Built-in recipes travel with the package.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from numbers import Real
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import compolens
from compolens.foundation import map_files
from compolens.foundation.builtin import built_in, room
from compolens.foundation.configs import ConfigError, DoesNotApply, nearest, shown
from compolens.foundation.model_folders import named

if TYPE_CHECKING:
    import pandas as pd

    from compolens.figures import Look

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
    return _docstring(path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=256)
def _docstring(source: str) -> str:
    text = ast.get_docstring(ast.parse(source)) or ""
    return text.splitlines()[0] if text else "(no docstring)"


_LOADED = "compolens_file_"
"""What the names of modules begin with that `load_file` makes."""


_FOLDERS: set[Path] = set()
"""Where the files stood that `load_file` has run."""


class _Afresh(importlib.machinery.SourceFileLoader):
    """Reads a file whenever it is loaded: Python's own cache takes a file of equal size, edited within a second, for the
    same."""

    def get_code(self, fullname: str) -> CodeType:
        return _compiled(self.get_data(self.path), self.path)


@functools.lru_cache(maxsize=256)
def _compiled(source: bytes, path: str) -> CodeType:
    """The code of a file that holds `source`, compiled once as long as it does."""
    return importlib.abc.InspectLoader.source_to_code(source, path)


def load_file(path: Path) -> ModuleType:
    """Run the Python file `path`, which the caller named, and return its module; a `ConfigError` where it fails."""
    name = f"{_LOADED}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve(), loader=_Afresh(name, str(path.resolve())))
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
        raise ConfigError(f"{path} failed to load: {type(error).__name__}: {error}{_meant(error)}") from error
    finally:
        sys.path[:] = before if str(here) in before else [*before, str(here)]
    return module


def _meant(error: Exception) -> str:
    """What could have been meant, where a dataclass such as `Run` was given a setting that it does not have."""
    told = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    made = trace.tb_frame.f_globals.get(told[1]) if told and trace else None
    if told is None or not dataclasses.is_dataclass(made):
        return ""
    return f"; {nearest(told[2], [field.name for field in dataclasses.fields(made) if field.init], cutoff=0.6, most=20)}"


def _forget_namesakes(here: Path) -> None:
    """What files loaded earlier imported from their own folders, where this folder has a file of that name."""
    elsewhere = _FOLDERS - {here}
    _FOLDERS.add(here)
    for file in here.glob("*.py") if elsewhere else ():
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
    if hasattr(module, "taken_from_twin"):
        warnings.warn(
            f"{path}: taken_from_twin is read no longer; name these columns in tables.not_available(rows, why, measured=…)",
            FutureWarning,
            stacklevel=2,
        )
    return function


def check_names(files: Sequence[Path], kind: str = "probes") -> None:
    """Check that no two recipes write the same table or figure.

    Args:
        files: of the recipes; what they write is called as they are.
        kind: "probes" or "analyses".

    Raises:
        ConfigError: two files have one name, or a probe of the user's has that of a built-in one.
    """
    known: dict[str, Path] = {}
    written = "table" if kind == "probes" else "figure"
    for file in files:
        own = built_in(kind).get(file.stem) if kind == "probes" else None
        other = known.setdefault(file.stem, file)
        if own is not None and own.resolve() != file.resolve():
            other = own
        if other.resolve() != file.resolve():
            told = f"{file} has the name of {'a built-in probe' if other == own else other}, so that both write the {written}"
            raise ConfigError(f"{told} {file.stem!r}; rename the file")


def options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of the recipe `function`: its flags."""
    return {
        name: parameter
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def check_steps(steps: str) -> None:
    """Raise a `ConfigError` unless `steps` is something to ask for: "final", "all" or a number."""
    if steps not in ("final", "all") and not (steps.isdecimal() and len(steps) < 19):
        raise ConfigError(f"--steps must be final, all or a number, got {shown(steps)}")


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

    check_names([path])
    function, name = load_recipe("probes", path), shlex.quote(named(folder).name)
    wanted = wanted_steps(folder, steps)
    parts, rows = [], []
    for step in wanted:
        note(f"step {step}" if len(wanted) > 1 else "")
        trained = zoo.load(folder, step, classes, device)
        if path.stem in trained.task.missing:
            raise DoesNotApply(f"{type(trained.task).__name__}: {trained.task.missing[path.stem]}")
        table, episodes = _measured(path, function(trained, **arguments))
        parts.append(table.assign(step=step))
        if episodes is not None:
            rows.append(episodes.assign(step=step))
    provenance = {
        "weights": tables.file_digest(folder / "weights.safetensors"),
        **versions.describe(path),
        "arguments": {k: v for k, v in arguments.items() if v is not None},
        "steps": wanted,
        "version": compolens.__version__,
        "command": f"compolens probe {path.stem if path.stem in built_in('probes') else shlex.quote(str(path))} {name}",
    }
    all_rows = pd.concat(rows, ignore_index=True) if rows else None
    return tables.save(folder, path.stem, pd.concat(parts, ignore_index=True), provenance, all_rows)


def _measured(path: Path, result: Any) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """What a probe returned: the table, and the per-episode rows if there are any."""
    import pandas as pd

    table, episodes = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    for name, frame in (("table", table), ("per-episode rows", episodes)):
        if not isinstance(frame, pd.DataFrame) and not (frame is None and name != "table"):
            raise ConfigError(
                f"{path}: probe() must return a DataFrame, or one and a DataFrame of per-episode rows; as {name} it gave "
                f"{type(frame).__name__}"
            )
        if frame is not None and frame.columns.has_duplicates:
            raise ConfigError(f"{path}: its {name} has the column {frame.columns[frame.columns.duplicated()][0]!r} twice")
    for column in {"value", "lo", "hi"} & set(table.columns):
        odd = next((one for one in table[column] if not (one is None or isinstance(one, Real))), None)
        if odd is not None:
            kind = type(odd).__name__
            raise ConfigError(f"{path}: the column {column!r} of its table must hold numbers, got a {kind}; write float(…)")
    return table, episodes


def run_analysis(
    path: Path,
    models: list[Path],
    arguments: dict[str, Any],
    out: Path,
    look: Look | str = "page",
    note: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draw one analysis from the models' tables; writes <name>.pdf, .png, .csv and a .json that names the runs.

    Args:
        path: the recipe's file.
        models: model folders; those without a table that is needed are left out, which the .json says.
        arguments: the recipe's keyword arguments.
        out: where the files go.
        look: how the figure is to look; a word is its width.
        note: told of every model that is left out, and why.

    Returns:
        The paths of the files.

    Raises:
        ConfigError: no model has every table that is needed, or the look asks for what the figure has not got.
    """
    from compolens import figures

    look = figures.Look(look) if isinstance(look, str) else look
    drawing, used, dropped = draw(path, models, arguments)
    for model, reason in dropped.items():
        note(f"{model} is left out: {reason}")
    sidecar = {
        "recipe": path.name,
        "runs": [str(m) for m in used],
        "dropped": dropped,
        "arguments": {k: v for k, v in arguments.items() if v is not None},
        "version": compolens.__version__,
        "versions": {name: metadata.version(name) for name in ("numpy", "pandas", "matplotlib", "plotly")},
        "command": shlex.join(analysis_command(path, used, arguments, out, look)),
    }
    try:
        with look.styled():
            return figures.save(look.arranged(drawing), out, path.stem, look.width, sidecar, dpi=look.dpi)
    except ValueError as error:  # what the look asks for; what an analysis raises itself is its own
        raise error if isinstance(error, ConfigError) else ConfigError(f"{path.stem}: {error}") from error


def analysis_command(path: Path, models: list[Path], arguments: dict[str, Any], out: Path, look: Look) -> list[str]:
    """The words to type for a figure: its recipe (by path where it is not a built-in one), models, flags and look.

    Args:
        path: the recipe's file.
        models: the models that are drawn.
        arguments: the recipe's keyword arguments.
        out: where the files go.
        look: how the figure is to look.

    Returns:
        The command, word by word.
    """
    own = built_in("analyses").get(path.stem) != path
    words = ["compolens", "analyze", str(path) if own else path.stem, *map(str, models), "--out", str(out)]
    for name, parameter in options(load_recipe("analyses", path)).items():
        value = arguments.get(name, parameter.default)
        if value is None or value == parameter.default:
            continue
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words + look.flags()


def draw(path: Path, models: list[Path], arguments: dict[str, Any]) -> tuple[Any, list[Path], dict[str, str]]:
    """The drawing of an analysis.

    A model whose tables lack a column that the analysis reads is left out too: such a table is from before there were
    digests that tell a damaged one.

    Args:
        path: the analysis' file.
        models: model folders.
        arguments: keyword arguments of the analysis.

    Returns:
        (drawing, models in it, model left out -> reason).

    Raises:
        ConfigError: no model has every table that is needed, or the analysis draws nothing from them.
    """
    from compolens import tables

    with tables.read_once():
        used, dropped = choose_models(path, models)
        analyze = load_recipe("analyses", path)
        try:
            return _drawn(path, analyze(used, **arguments)), used, dropped
        except KeyError as error:
            lacking = _lacking(path, used, error)
            left = [model for model in used if str(model) not in lacking]
            if not lacking:
                raise
            if not left:
                raise ConfigError(f"{path.stem}: {next(iter(lacking.values()))}") from error
            return _drawn(path, analyze(left, **arguments)), left, dropped | lacking


def _drawn(path: Path, drawing: Any) -> Any:
    """The drawing of an analysis, which must hold something."""
    from compolens import figures

    if isinstance(drawing, figures.Drawing) and not any(len(mark.shown) for panel in drawing.panels for mark in panel.marks):
        raise ConfigError(f"{path.stem}: nothing is drawn from the tables of these models; name others, or other flags")
    return drawing


def _lacking(path: Path, models: list[Path], error: KeyError) -> dict[str, str]:
    """Model -> reason, for models none of whose tables has the column that an analysis did not find. Where no model has it, a
    built-in analysis is right that there should be one; one of the caller's may have misspelt it."""
    from compolens import tables

    said = str(error.args[0]) if error.args else ""
    columns = re.findall(r"'([^']+)'", said) or [said]  # of several columns pandas says: "['a', 'b'] not in index"
    needs, found = load_file(path).needs, {}
    for model in models if needs else ():  # a map is no model, and has no such tables
        held = {column for name in needs for column in tables.read(model, name)}
        if lacking := [column for column in columns if column not in held]:
            found[str(model)] = str(tables.lacks(model, needs[0], lacking[0]))
    misspelt = len(found) == len(models) and path.resolve().parent != room("analyses").resolve()
    return {} if misspelt else found


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

    if of_maps(path):
        maps = [model for model in models if map_files.is_map(model)]
        if not maps:
            raise ConfigError(f"{path.stem} draws maps, and there is none among those named; make one: compolens map FILE")
        return maps, {str(model): "is no map" for model in models if model not in maps}
    needs = getattr(load_file(path), "needs", None)
    if not isinstance(needs, tuple):
        raise ConfigError(f'{path} must say which tables it needs: needs = ("generalization",)')
    used, dropped, ways = [], {}, {}
    for model in models:
        reason, way = _why_left_out(model, needs)
        if reason:
            dropped[str(model)], ways[str(model)] = reason, way
        else:
            used.append(model)
    if not used:
        first, reason = next(iter(dropped.items()))
        told = reason if reason.startswith(first) else f"{first} {reason}"
        raise ConfigError(f"{path.stem}: {told}{ways[first]}")
    return used, dropped


def of_maps(path: Path) -> bool:
    """Whether the analysis in the file `path` draws maps, not models: it says ``of = "maps"``."""
    return getattr(load_file(path), "of", "models") == "maps"


def _why_left_out(model: Path, needs: tuple[str, ...]) -> tuple[str, str]:
    """Why a model cannot be drawn ("" if it can), and what to type if that is not said: tables that it does not have, or that
    cannot be used, or its description."""
    from compolens import tables

    try:
        tables.settings(model)
    except ConfigError as error:
        return str(error), ""
    if missing := [name for name in needs if not tables.exists(model, name)]:
        probes = [name if name in built_in("probes") else f"{name}.py" for name in missing]  # one's own goes by its file
        return f"has no table {', '.join(missing)}", f"; type: {tables.command_of(probes, model)}"
    return "; ".join(reason for name in needs if (reason := tables.why_not(model, name))), ""
