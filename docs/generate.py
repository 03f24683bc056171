"""Pages that are made from the code, the model folders and the notebooks: docs/reference."""

import ast
import base64
import dataclasses
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

import compolens
from compolens import citations, recipes, tables
from compolens.cli.recipe_flags import described, items, sections
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import DoesNotApply
from compolens.foundation.files import read_json

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"n_layers": 2, "d_model": 24, "n_heads": 4, "d_code": 10, "d_hidden": 14, "n_ctx": 18}
EPISODE = {"d_x": 5, "d_y": 3, "d_hidden": 7, "n_modules": 8, "n_context": 11, "n_queries": 2}
BATCH = 17
"""Sizes that no two dimensions share, so that a number in a shape says what it is."""
GROUPS = {
    "Models and tasks": ("zoo", "training", "tasks", "models"),
    "Measuring": ("activations", "interventions", "measures", "references", "hooks"),
    "Maps and tuning": ("maps",),
    "Tables, figures, recipes": ("tables", "figures", "diagnosis", "challenge", "recipes", "foundation"),
    "Looking": ("explore",),
    "Papers": ("citations",),
}
"""The public rooms, in the order in which a reader meets them."""
ESCAPED = re.compile(r"(`[^`]+`|``.+?``)|[*_|<\\[\]]")
"""Code, which stays, or a character that Markdown would read as markup."""
FENCE = "``````"
"""Fences of notebook cells, longer than any that a cell holds."""
WIDGET = "application/vnd.jupyter.widget-view+json"
"""What a page without a kernel cannot show."""


def write_pages(folder: Path) -> list[Path]:
    """Write every generated page; a page that did not change is left alone, so that a second build is quick."""
    pages = {
        "index.md": index_page(), "probes.md": probes_page(), "analyses.md": analyses_page(), "families.md": families_page(),
        "architectures.md": architectures_page(), "hooks.md": hooks_page(), "bench.md": bench_page(),
        "zoo.md": zoo_page(ROOT / "trained_models"),
    }  # fmt: skip
    pages |= notebook_pages(folder)
    pages |= {f"api/{room}.md": api_page(room) for rooms in GROUPS.values() for room in rooms}
    pages["api/index.md"] = api_index()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def index_page() -> str:
    """The entrance of the reference."""
    rows = [
        ("[probes](probes.md)", "every measurement: its question, controls, papers, arguments"),
        ("[analyses](analyses.md)", "every figure: its claim, the tables it needs"),
        ("[task families](families.md)", "what is asked"),
        ("[architectures](architectures.md)", "who answers"),
        ("[hook points](hooks.md)", "what fires in each architecture, with shapes"),
        ("[benchmarks](bench.md)", "what `make bench` prints"),
        ("[the zoo](zoo.md)", "every shipped model, its scores and tables"),
        ("[the API](api/index.md)", "modules, classes and functions"),
    ]
    names = "\n".join(re.findall(r"\((\S+)\.md\)", " ".join(name for name, _ in rows)))
    text = "# Reference\n\nMade from the code, its docstrings and the model folders when the site is built.\n\n"
    return text + as_table(("page", "what it has"), rows) + f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def as_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    columns = list(columns)
    cells = [[str(cell).replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *cells]) + "\n"


def first_line(value: Any) -> str:
    """The first paragraph of a docstring; of its module's where the class has none that says what it is."""
    text = value.__doc__ or ""
    if text.startswith(f"{value.__name__}(") or text[:1].islower():  # none of its own, or one that begins with its arguments
        text = import_module(value.__module__).__doc__ or ""
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
        getattr(model.cfg, "d_model", 24): "d_model", task.d_in: "d_in", task.d_out: "d_out", task.seq: "seq", 5: "d_x",
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
        "query, key, head. After `model.set_use_attn_result(True)` `blocks.{l}.attn.hook_result` fires too; "
        "after `model.set_use_split_qkv_input(True)` `blocks.{l}.hook_q_input`, `hook_k_input`, `hook_v_input` (batch, pos, "
        "head, d_model); after `model.set_use_hook_mlp_in(True)` `blocks.{l}.hook_mlp_in`.\n"
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
    measured = ", ".join(tables.names(folder))
    return [*row, *(f"{scores[split]['score']:.3f}" for split in ("train", "test", "ood")), measured]


# ---- recipes ---------------------------------------------------------------------------------------------------------
def probes_page() -> str:
    """Every probe's question, the controls in its table, the papers it rests on, and its arguments."""
    rows = [
        (f"[`{name}`](#{anchor(name)})", recipes.docstring(path), "; ".join(controls(name)), links(recipe_papers(path)))
        for name, path in built_in("probes").items()
    ]
    text = (
        "# Probes\n\nA probe asks a question of one trained model and adds a table to its folder. Controls are rows of the "
        "same table: below are the values of the column `control` in tables of the shipped models; rows without one are the "
        "measurement itself. A probe that does not apply to a model says so, and the others go on. `latent_code` reads "
        "continuous codes by ridge regression and categorical ones by a logistic readout; `attention_code` and "
        "`latent_geometry` read categorical ones alone.\n\n"
    )
    text += as_table(("probe", "question", "controls in the same table", "papers"), rows)
    return text + "".join(recipe_section(name, path, "probe") for name, path in built_in("probes").items())


def analyses_page() -> str:
    """Every analysis' claim, the tables it needs, the papers it names, and its arguments."""
    rows = [
        (f"[`{name}`](#{anchor(name)})", recipes.docstring(path), needs(path), links(recipe_papers(path)))
        for name, path in built_in("analyses").items()
    ]
    text = "# Analyses\n\nAn analysis argues a claim from the tables of many models, and draws it as one figure.\n\n"
    text += as_table(("analysis", "claim", "tables it needs", "papers"), rows)
    return text + "".join(recipe_section(name, path, "analyze") for name, path in built_in("analyses").items())


def anchor(name: str) -> str:
    """The anchor of a heading."""
    return name.lower()


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a recipe; not to be changed."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def shipped_tables() -> dict[str, list[Path]]:
    """Probe -> the tables of it that are shipped, packed or not, in the order of their folders."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "trained_models").rglob("tables/*.csv*")):
        found.setdefault(path.name.partition(".csv")[0], []).append(path)
    return found


def controls(probe: str, at_most: int = 3) -> list[str]:
    """The controls that stand in a probe's table, in its order, from some shipped models' tables."""
    found: dict[str, None] = {}
    for path in shipped_tables().get(probe, [])[:at_most]:
        values = pd.read_csv(path, usecols=["control"], dtype=str, keep_default_na=False)["control"]
        found |= dict.fromkeys(value for value in values.unique() if value)
    return list(found)


def recipe_section(name: str, path: Path, function: str) -> str:
    """What `--help` says of a recipe: its function's docstring and arguments."""
    (found,) = (node for node in tree_of(path).body if isinstance(node, ast.FunctionDef) and node.name == function)
    docstring = ast.get_docstring(found) or ""
    parts, told = sections(docstring), described(docstring)
    text = f"\n## {name}\n\n*{recipes.docstring(path)}*\n\n{as_markdown(parts[''])}\n"
    given = zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
    flags = [
        (f"`--{arg.arg.replace('_', '-')}`", f"`{ast.unparse(default)}`", as_markdown(told.get(arg.arg, "")))
        for arg, default in given
        if default
    ]
    text += "\n" + as_table(("flag", "default", "what it sets"), flags) if flags else ""
    for title, lead in (("Returns", "What it returns"), ("Raises", "When it refuses")):
        if title in parts:
            text += f"\n**{lead}.** {as_list(items(parts[title])) if title == 'Raises' else as_markdown(parts[title])}\n"
    return text


def as_list(told: dict[str, str]) -> str:
    """What a docstring's block says of each name, as a list."""
    return "\n\n" + "\n".join(f"- `{name}`: {as_markdown(text)}" for name, text in told.items())


def needs(path: Path) -> str:
    """The tables that an analysis names."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "needs":
            return ", ".join(f"`{name}`" for name in ast.literal_eval(node.value))
    return ""


def recipe_papers(path: Path) -> list[str]:
    """The arXiv numbers in a recipe's docstrings; of a probe also those that a model with its table cites for it."""
    described = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)]
    found = citations.ARXIV.findall("\n".join(ast.get_docstring(node) or "" for node in described))
    return list(dict.fromkeys([*found, *(citations.of_probe(path) if path.stem in shipped_tables() else [])]))


def links(numbers: Iterable[str]) -> str:
    """arXiv numbers as links."""
    return ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in numbers)


# ---- docstrings ------------------------------------------------------------------------------------------------------
def as_markdown(docstring: str) -> str:
    """A docstring's paragraphs; what is indented or drawn becomes a block that keeps its lines."""
    out = []
    for paragraph in docstring.split("\n\n"):
        rows = paragraph.strip("\n").split("\n")
        if rows[0].startswith(">>>"):
            out.append("\n".join(["```pycon", *rows, "```"]))
        elif rows[0].startswith("- "):
            items = re.split(r"\n(?=- )", "\n".join(rows))
            out.append("\n".join("- " + as_markdown(" ".join(item[2:].split())) for item in items))
        elif any(row.startswith((" ", "|")) for row in rows):
            out.append("\n".join(["```text", *rows, "```"]))
        else:
            out.append(ESCAPED.sub(lambda m: m.group(1) or "\\" + m.group(0), " ".join(rows)).replace("``", "`"))
    return "\n\n".join(out)


def own_docstring(value: Any) -> str:
    """A class's own docstring; not the signature that Python writes for a dataclass without one."""
    text = value.__doc__ or ""
    return "" if text.startswith(f"{value.__name__}(") else inspect.cleandoc(text)


def settings_of(value: Any) -> str:
    """The fields of a dataclass with their defaults, as one calls it."""
    fields = [f for f in dataclasses.fields(value) if f.init]
    shown = [f"{f.name}={f.default!r}" if f.default is not dataclasses.MISSING else f.name for f in fields]
    return f"{value.__name__}({', '.join(shown)})"


def class_papers(value: Any) -> list[str]:
    """The arXiv numbers in the docstrings of a class and of its module."""
    return list(
        dict.fromkeys(citations.ARXIV.findall(f"{import_module(value.__module__).__doc__ or ''}\n{value.__doc__ or ''}"))
    )


def class_sections(classes: dict[str, Any]) -> str:
    """A section per module: what the module says once, then each of its classes."""
    text, told = "", set()
    for name, value in classes.items():
        module = import_module(value.__module__)
        text += f"\n## {name}\n\n"
        if module.__name__ not in told:
            told.add(module.__name__)
            text += f"{as_markdown(module.__doc__ or '')}\n\n"
        own = sections(own_docstring(value))[""]
        text += f"{as_markdown(own)}\n\n" if own else ""
        text += "\n".join(["```python", *textwrap.wrap(settings_of(value), 96, subsequent_indent="    "), "```\n"])
        listed = as_list(settings_told(value)).strip()
        text += f"\n{listed}\n" if listed else ""
    return text


def settings_told(value: Any) -> dict[str, str]:
    """What a class says of its fields, in the order in which it takes them; what it inherits from a base that has no page
    of its own (with an underscore) included."""
    from_bases = [base for base in reversed(value.__mro__[1:]) if base.__name__.startswith("_")]
    told = {name: text for one in [*from_bases, value] for name, text in described(own_docstring(one)).items()}
    return {field.name: told[field.name] for field in dataclasses.fields(value) if field.name in told}


def families_page() -> str:
    """Every task family: what an episode is, its codes, its arguments."""
    from compolens.tasks import FAMILIES

    rows = [
        (f"[`{name}`](#{anchor(name)})", first_line(value), codes(value), links(class_papers(value)))
        for name, value in FAMILIES.items()
    ]
    text = "# Task families\n\nWhat is asked. [The guide](../task_families.md) has them side by side.\n\n"
    return text + as_table(("family", "what it is", "codes", "papers"), rows) + class_sections(FAMILIES)


def codes(family: Any) -> str:
    """The names of a family's codes, where the class itself says them."""
    kinds = getattr(family, "code_kinds", None)
    return ", ".join(f"`{name}` ({kind})" for name, kind in kinds.items()) if isinstance(kinds, dict) else "its folder says"


def architectures_page() -> str:
    """Every architecture: its equation, its paper, its arguments."""
    from compolens.models import ARCHITECTURES

    rows = [
        (f"[`{name}`](#{anchor(name)})", first_line(value), links(class_papers(value)))
        for name, value in ARCHITECTURES.items()
    ]
    text = (
        "# Architectures\n\nWho answers. [The guide](../architectures.md) has them side by side; "
        "[hook points and shapes](hooks.md) shows what fires.\n\n"
    )
    return text + as_table(("architecture", "what it is", "papers"), rows) + class_sections(ARCHITECTURES)


# ---- benchmarks ------------------------------------------------------------------------------------------------------
def bench_page() -> str:
    """What `make bench` prints: every number, and the bar beside it."""
    text = (
        "# Benchmarks\n\n`make bench` prints these ratios, each from one run; `make bench-diagnosis` is described under "
        "[the diagnosis benchmark](../findings/diagnosis_benchmark.md). Numbers that were measured: [speed](../speed.md). "
        "`{…}` stands for what is filled in when it runs.\n"
    )
    for path in sorted((ROOT / "tests" / "benchmarks").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        rows = [(said(call.args[0]), said(call.args[2]) if len(call.args) > 2 else "") for call in printed(tree)]
        if rows:
            text += f"\n## {path.stem}\n\n{as_markdown(ast.get_docstring(tree) or '')}\n\n"
            text += as_table(("what is printed", "bar"), rows)
    return text


def printed(tree: ast.Module) -> list[ast.Call]:
    """The calls that print a number: show(what, value, bar, met) and tell(what, value)."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return sorted((call for call in calls if call.func.id in ("show", "tell")), key=lambda call: call.lineno)  # type: ignore[attr-defined]


def said(node: ast.expr) -> str:
    """The text of a string, with `{…}` for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    return "{…}"


# ---- notebooks -------------------------------------------------------------------------------------------------------
def notebook_pages(folder: Path) -> dict[str, str]:
    """name -> page of every notebook as it was executed; pictures are written beside the pages."""
    pages, titles = {}, []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(read_json(path), path.stem, folder / "notebooks")
        titles.append(path.stem)
    listed = "\n".join(titles)
    pages["notebooks/index.md"] = (
        "# Notebooks\n\nAs they were executed; `notebooks/` has the files, and `jupyter lab notebooks` runs them.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
    return pages


def notebook_page(notebook: dict[str, Any], name: str, folder: Path) -> str:
    """One notebook: its text, its code, and what the code printed and drew."""
    parts = []
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "](../../"))  # as seen from the page
            continue
        parts.append(f"{FENCE}python\n{source}\n{FENCE}")
        for place, output in enumerate(cell.get("outputs", [])):
            parts.append(output_text(output, f"{name}-{number}-{place}.png", folder))
    return "\n\n".join(part for part in parts if part) + "\n"


def output_text(output: dict[str, Any], picture: str, folder: Path) -> str:
    """What a cell put out: a picture, a table, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        folder.mkdir(parents=True, exist_ok=True)
        content = base64.b64decode("".join(data["image/png"]))
        if not (folder / picture).exists() or (folder / picture).read_bytes() != content:
            (folder / picture).write_bytes(content)
        return f"![]({picture})"
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        return f'{FENCE}{{raw}} html\n<div class="output">{table}</div>\n{FENCE}'
    if WIDGET in data:
        return "*In the notebook a slider stands here. What the cell draws first is shown above.*"
    text = "".join(output.get("text", "") or data.get("text/plain", "")).rstrip()
    return f"{FENCE}text\n{text}\n{FENCE}" if text else ""


# ---- modules ---------------------------------------------------------------------------------------------------------
def modules(room: str) -> list[str]:
    """The modules of a room: itself, or the files of a package."""
    module = import_module(f"compolens.{room}")
    inside = pkgutil.walk_packages(getattr(module, "__path__", []), f"compolens.{room}.")
    return sorted(info.name for info in inside if not info.ispkg) or [f"compolens.{room}"]


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
