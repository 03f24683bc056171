"""Pages that are made from the code and from the model folders: hook points, the zoo, recipes, the API's modules."""

import ast
import pkgutil
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import compolens
from compolens import citations, recipes, tables
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import DoesNotApply
from compolens.foundation.files import read_json

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"n_layers": 2, "d_model": 24, "n_heads": 4, "d_code": 10, "d_hidden": 14, "n_ctx": 18}
EPISODE = {"d_x": 5, "d_y": 3, "d_hidden": 7, "n_modules": 8, "n_context": 11, "n_queries": 2}
BATCH = 17
"""Sizes that no two dimensions share, so that a number in a shape says what it is."""
GROUPS = {
    "Models and tasks": ("zoo", "training", "tasks", "models", "adoption"),
    "Measuring": ("activations", "recordings", "measures", "references", "hooks"),
    "Tables, figures, recipes": ("tables", "figures", "recipes", "configs"),
    "Sharing": ("sharing", "citations"),
}
"""The public rooms, in the order in which a reader meets them."""


def write_pages(folder: Path) -> list[Path]:
    """Write every generated page; a page that did not change is left alone, so that a second build is quick."""
    pages = {"hooks.md": hooks_page(), "zoo.md": zoo_page(ROOT / "trained_models"), "recipes.md": recipes_page()}
    pages |= {f"api/{room}.md": api_page(room) for rooms in GROUPS.values() for room in rooms}
    pages["api/index.md"] = api_index()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def as_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    columns = list(columns)
    cells = [[str(cell).replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *cells]) + "\n"


def first_line(value: Any) -> str:
    """The first sentence of a docstring; of its module's where a dataclass has only the one that Python writes."""
    text = value.__doc__ or ""
    text = import_module(value.__module__).__doc__ or "" if text.startswith(f"{value.__name__}(") else text
    return " ".join(text.split("\n\n")[0].split())


# ---- hook points -----------------------------------------------------------------------------------------------------
def small_model(architecture: type) -> tuple[Any, Any, Any]:
    """(model, task, sizes by name) of an architecture at sizes that tell dimensions apart."""
    from compolens import Hyperteacher, LinearRegression, Run

    fields = architecture.__dataclass_fields__
    small = architecture(**{name: size for name, size in SIZES.items() if name in fields})
    token_space = LinearRegression(d_x=5, n_context=11)
    for task in (Hyperteacher(**EPISODE), token_space):
        try:
            return Run(small, task).build().eval(), task, small
        except DoesNotApply:
            continue
    raise DoesNotApply(f"{architecture.__name__} is built for none of the tasks of the cheat sheet")


def shapes(architecture: type) -> dict[str, str]:
    """hook point -> its shape in words, for every one that fires in a forward pass."""
    model, task, _ = small_model(architecture)
    episodes = task.sample(BATCH, "test", task.rng(0, "test"))
    _, cache = model.run_with_cache(episodes.tokens)
    names = {
        24: "d_model", 96: "d_mlp", 4: "n_heads", 10: "d_code", 14: "d_hidden", BATCH: "batch", 12: "n_context + 1",
        task.d_in: "d_in", task.d_out: "d_out", task.seq: "seq", 5: "d_x",
    }  # fmt: skip
    found = {}
    for hook, value in cache.items():
        words = [names.get(size, str(size)) for size in value.shape]
        if hook.endswith(("hook_q", "hook_k", "hook_v", "hook_z")):
            words[-1] = "d_head"
        elif ".attn." in hook and words[-1] == "6":
            words[-1] = "d_value"
        found[_every_layer(hook)] = ", ".join(words)
    return found


def _every_layer(hook: str) -> str:
    return ".".join("{l}" if part.isdigit() else part for part in hook.split("."))


def hooks_page() -> str:
    """The cheat sheet: the hook points of every architecture with their shapes; those that have the same share a table."""
    from compolens.models import ARCHITECTURES

    sharing: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, architecture in ARCHITECTURES.items():
        sharing.setdefault(tuple(shapes(architecture).items()), []).append(name)
    text = (
        "# Hook points and shapes\n\n"
        "What fires in a forward pass, in order, made by running every architecture. `{l}` counts layers from 0. Every hook "
        "point can be read (`run_with_cache`, `record`) and edited (`run_with_hooks`, `intervene`); a misspelt name is an "
        "error that names its nearest neighbours. Names mean what they mean in TransformerLens.\n\n"
        "`n_context + 1` is the sequence of an encoder that ends in a summary token. An attention's `hook_code` is laid out "
        "query, key, head. After `model.set_use_attn_result(True)` `blocks.{l}.attn.hook_result` fires too.\n"
    )
    for having, names in sorted(sharing.items(), key=lambda item: -len(item[1])):
        listed = "\n".join(f"- `{name}`: {first_line(ARCHITECTURES[name])}" for name in names)
        rows = [(f"`{hook}`", shape) for hook, shape in having]
        text += f"\n## {_title(names)}\n\n{listed}\n\n{as_table(('hook point', 'shape'), rows)}"
    return text


def _title(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:2])}" + (f" and {len(names) - 2} more" if names[2:] else "")


# ---- model folders ---------------------------------------------------------------------------------------------------
def zoo_page(root: Path) -> str:
    """Every model folder below a root: what it is, its scores, and the tables that lie there."""
    text = ["# The zoo\n", "Every folder below `trained_models`: what it holds, and which tables were measured on it.\n"]
    folders = tables.find([root]) if root.is_dir() else []
    for place in dict.fromkeys(folder.parent for folder in folders):
        rows = [_zoo_row(folder) for folder in folders if folder.parent == place]
        text.append(f"## {place.relative_to(root.parent)}\n")
        text.append(as_table(("folder", "architecture", "task", "steps", "train", "test", "ood", "tables"), rows))
    return "\n".join(text)


def _zoo_row(folder: Path) -> list[str]:
    settings = tables.settings(folder)
    row = [f"`{folder.name}`", settings["architecture"], settings["task"], f"{settings['steps']:,}"]
    if not tables.finished(folder):
        return [*row, "", "", "", "in training"]
    scores = read_json(folder / "scores.json")
    measured = sorted(path.stem for path in (folder / "tables").glob("*.csv"))
    return [*row, *(f"{scores[split]['score']:.3f}" for split in ("train", "test", "ood")), ", ".join(measured)]


# ---- recipes and modules ---------------------------------------------------------------------------------------------
def recipes_page() -> str:
    """Every probe's question and every analysis' claim, with the papers that each names."""
    text = (
        "# Probes and analyses\n\nA probe asks a question of one model; an analysis argues a claim from the tables of many.\n"
    )
    for kind, what in (("probes", "question"), ("analyses", "claim")):
        rows = [(f"`{name}`", recipes.docstring(path), _papers(path)) for name, path in built_in(kind).items()]
        text += f"\n## {kind.capitalize()}\n\n" + as_table((kind.removesuffix("s"), what, "papers"), rows)
    return text.replace("| probe |", "| name |").replace("| analyse |", "| name |")


def _papers(path: Path) -> str:
    said = " ".join(ast.get_docstring(n) or "" for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Module))
    numbers = dict.fromkeys(citations.ARXIV.findall(said))
    return ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in numbers)


def modules(room: str) -> list[str]:
    """The modules of a room: itself, or the files of a package."""
    module = import_module(f"compolens.{room}")
    inside = [info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))]
    return [f"compolens.{room}.{name}" for name in sorted(inside)] or [f"compolens.{room}"]


def api_page(room: str) -> str:
    """One room of the API reference."""
    text = f"# compolens.{room}\n\n"
    for name in modules(room):
        title = f"## {name.removeprefix('compolens.')}\n\n" if name != f"compolens.{room}" else ""
        text += f"{title}```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n```\n\n"
    return text


def api_index() -> str:
    """The entrance of the API reference."""
    text = f"# API reference\n\nOf version {compolens.__version__}. `compolens.load`, `train`, `record`, `intervene`, `gather`"
    text += ", architectures and task families can be had from `compolens` itself.\n"
    for title, rooms in GROUPS.items():
        names = "\n".join(rooms)
        text += f"\n```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n\n{names}\n```\n"
    return text
