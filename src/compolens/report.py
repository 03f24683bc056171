"""One self-contained HTML page about a set of model folders: diagnosis, split, scores, figures, attention, tables, evidence.

Opens from disk without a network: plotly is inlined once, figures are rendered from the same `Drawing` as the printed ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import compolens
from compolens import recipes, tables, zoo
from compolens.diagnosis import groups, sentences
from compolens.figures import Drawing, HeatMap, Panel
from compolens.foundation.configs import ConfigError
from compolens.foundation.files import write_atomically
from compolens.tasks import TaskFamily

PAGE = Path(__file__).with_name("report_page.html")
MAX_ATTENTION = 4
"""Attention is drawn for the first model of at most this many groups."""


def write(
    folders: Sequence[Path],
    path: Path,
    classes: tuple[type, ...] = (),
    command: str = "",
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Path, list[str]]:
    """Write the page.

    Args:
        folders: model folders; those that are not finished are left out.
        path: of the page.
        classes: as for `zoo.load`.
        command: what regenerates the page, as shown on it.
        note: told of every model and every table that is left out, and why, which stands on the page too.

    Returns:
        Its path, and the diagnosis as plain lines.

    Raises:
        ConfigError: no folder is finished, or nothing was measured.
    """
    measured, notes = _choose(folders, classes)
    for sentence in notes:
        note(sentence)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", tables.StaleTable)
        judged = sentences.sentences(measured)
        figures, left_out = _figures(measured)
        shown = _tables(measured)
        attention = _attention(measured, classes)
    notes += sorted({str(w.message) for w in caught if issubclass(w.category, tables.StaleTable)} - set(notes))
    page = _render(
        judged=judged,
        models=[_model_row(f, classes) for f in measured],
        splits=_splits(measured, classes),
        figures=figures,
        left_out=left_out,
        attention=attention,
        tables=shown,
        notes=notes,
        command=command or " ".join(["compolens", "report", *(str(f) for f in folders), "-o", str(path)]),
        version=compolens.__version__,
    )
    write_atomically(path, page.encode())
    return path, plain(judged)


def _choose(folders: Sequence[Path], classes: tuple[type, ...]) -> tuple[list[Path], list[str]]:
    """(models that can be spoken of, notes): a model that is damaged, or without the table generalization, is left out; of the
    others, so are tables that are stale or damaged. ConfigError if no model is left."""
    finished = [f for f in folders if tables.finished(f)]
    if not finished:
        raise ConfigError(f"none of the {len(folders)} folders is finished; run the same `compolens train` command to go on")
    notes = [f"{f.name}: not finished, left out" for f in folders if f not in finished]
    measured, reasons = [], []
    for folder in finished:
        reason = _why_left_out(folder, classes)
        if reason:
            reasons.append(reason)
            notes.append(f"{folder.name}: left out: {reason}")
        else:
            measured.append(folder)
            told = {name: tables.why_not(folder, name) for name in tables.names(folder)}
            notes += [f"table left out: {reason}" for reason in told.values() if reason]
    if not measured:
        raise ConfigError(reasons[0])
    return measured, notes


def _why_left_out(folder: Path, classes: tuple[type, ...]) -> str:
    try:
        tables.settings(folder)
        zoo.read_run(folder, classes)
        if "note" in (row := zoo.overview(folder, classes)):
            return str(row["note"])
    except ConfigError as error:
        return str(error)
    if not tables.exists(folder, "generalization"):
        return f"nothing was measured yet; type: compolens probe generalization latent_code {folder}"
    return tables.why_not(folder, "generalization")


def plain(judged: list[tuple[str, list[sentences.Clause]]]) -> list[str]:
    """The diagnosis `judged`, from `sentences.sentences`, as lines of text."""
    return [line for who, clauses in judged for line in (who, *(f"  - {c.text}" for c in clauses))]


# ---- parts -----------------------------------------------------------------------------------------------------------
def _model_row(folder: Path, classes: tuple[type, ...]) -> dict[str, Any]:
    row = zoo.overview(folder, classes)
    settings = tables.settings(folder)
    seeds = {
        k.split(".")[-1]: settings[k]
        for k in ("init_seed", "data_seed", "task.teacher_seed", "task.split_seed")
        if k in settings
    }
    return row | {"seeds": ", ".join(f"{k.removesuffix('_seed')} {v}" for k, v in seeds.items())}


def _splits(folders: Sequence[Path], classes: tuple[type, ...]) -> list[dict[str, Any]]:
    """One entry per distinct task: what was seen, what was held out, and a picture of it where modules exist."""
    seen: dict[str, dict[str, Any]] = {}
    for folder in folders:
        task = zoo.read_run(folder, classes).task
        entry = seen.setdefault(
            repr(task), {"task": type(task).__name__, "split": _in_words(task.describe_split()), "models": [], "figure": None}
        )
        entry["models"].append(folder.name)
        entry["figure"] = entry["figure"] or _split_picture(task)
    entries = list(seen.values())
    for i, entry in enumerate(entries):
        entry["id"] = f"split-{i}"
        entry["open"] = i == 0
    return entries


def _in_words(split: dict[str, Any]) -> dict[str, str]:
    """Combinations as 0+4, lists joined."""

    def word(value: Any) -> str:
        return "+".join(map(str, value)) if isinstance(value, list) else str(value)

    return {k: " · ".join(map(word, v)) or "none" if isinstance(v, list) else str(v) for k, v in split.items()}


def _split_picture(task: TaskFamily) -> dict[str, Any] | None:
    split = task.describe_split()
    if "n_modules" not in split or any(len(c) > 2 for c in [*split["train"], *split["held_out"]]):
        return None
    rows = []
    for name, value in (("train", 1.0), ("held_out", -1.0)):
        for combination in split[name]:
            a, b = combination[0], combination[-1]
            rows += [(str(a), str(b), value), (str(b), str(a), value)]
    frame = pd.DataFrame(rows, columns=["module", "with module", "value"]).drop_duplicates()
    order = [str(m) for m in range(split["n_modules"])]
    full = pd.DataFrame([(a, b) for a in order for b in order], columns=["module", "with module"]).merge(frame, how="left")
    mark = HeatMap(full.fillna({"value": 0.0}), "module", "with module", "value", centre=0.0)
    title = "red: trained (diagonal: alone), blue: held out, white: neither"
    return _figure(Drawing("Combinations of modules", (Panel(title, "module", "with module", (mark,)),)))


def _figures(folders: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Every built-in analysis whose tables exist."""
    made, left_out = [], []
    found = recipes.built_in("analyses")
    for name in sorted(found, key=lambda name: (_order(found[name]), name)):
        path = found[name]
        try:
            drawing, used, dropped = recipes.draw(path, list(folders), {})
        except ConfigError as error:
            left_out.append(f"{name}: {error}")
            continue
        except (LookupError, ValueError) as error:  # a table from before digests, damaged since: one figure less
            left_out.append(f"{name}: cannot be drawn from these tables ({type(error).__name__}: {error})")
            continue
        entry = _figure(drawing) | {"id": name, "claim": drawing.claim, "caption": drawing.caption}
        entry["command"] = f"compolens analyze {name} {' '.join(str(f) for f in used[:3])}{' …' if len(used) > 3 else ''}"
        entry["dropped"] = [f"{Path(k).name}: {v}" for k, v in dropped.items()]
        made.append(entry)
    return made, left_out


def _order(path: Path) -> int:
    """Figures about scores come first, then those about codes, then the rest."""
    needs = getattr(recipes.load_file(path), "needs", ())
    return next((i for i, table in enumerate(("generalization", "latent_code")) if table in needs), 2)


def _figure(drawing: Drawing) -> dict[str, Any]:
    figure = drawing.plotly()
    return {"json": figure.to_json(), "height": int(figure.layout.height or 420)}


def _attention(folders: Sequence[Path], classes: tuple[type, ...]) -> list[dict[str, Any]]:
    """hook_code of one held-out episode, layer by head, for the first model of each group."""
    import torch

    from compolens.activations.streams import draw

    entries: list[dict[str, Any]] = []
    for group in groups.group(folders)[:MAX_ATTENTION]:
        trained = _first_that_loads(group.folders, classes)
        if trained is None:
            continue
        sites = [name for name in trained.model.hook_dict if name.endswith("attn.hook_code")]
        if not sites:
            continue
        episode = next(iter(draw(trained.task, "ood", 1, 0)))
        with torch.no_grad():
            _, cache = trained.model.run_with_cache(episode.tokens, names_filter=sites)
        panels = []
        for layer, site in enumerate(sites):
            code = cache[site][0].numpy()
            for head in range(code.shape[-1]):
                panels.append(_attention_panel(f"layer {layer + 1}, head {head}", code[..., head]))
        columns = code.shape[-1]
        composition = trained.task.composition_name(int(episode.composition[0]))
        drawing = Drawing(f"Attention of {trained.name}", tuple(panels), columns=columns)
        entries.append(
            _figure(drawing) | {"id": f"attention-{len(entries)}", "model": trained.name, "composition": composition}
        )
    return entries


def _first_that_loads(folders: Sequence[Path], classes: tuple[type, ...]) -> zoo.TrainedModel | None:
    """The first model of a group; one that does not load is told."""
    for folder in folders:
        try:
            return zoo.load(folder, classes=classes)
        except ConfigError as error:
            warnings.warn(f"{folder.name}: no attention is drawn of it: {error}", tables.StaleTable, stacklevel=2)
    return None


def _attention_panel(title: str, weights: np.ndarray) -> Panel:
    query, key = np.indices(weights.shape)
    frame = pd.DataFrame({"key": key.ravel(), "query": query.ravel(), "weight": weights.ravel().round(4)})
    frame[["key", "query"]] = frame[["key", "query"]].astype(str)
    centre = 0.0 if weights.min() < 0 else None
    return Panel(title, "key", "query", (HeatMap(frame, "key", "query", "weight", centre=centre),))


def _tables(folders: Sequence[Path]) -> list[dict[str, str]]:
    """Every table of every model, the rows that pool over compositions and code dimensions, folded away."""
    entries: list[dict[str, str]] = []
    for folder in folders:
        for name in tables.names(folder):
            if not tables.has(folder, name):
                continue
            path, frame = tables.path_of(folder, name), tables.read(folder, name)
            total = len(frame)
            for column, kept in (("composition", "all"), ("dimension", "mean")):
                if column in frame and (frame[column] == kept).any():
                    frame = frame[(frame[column] == kept) | ((column == "dimension") & (frame[column] == "all"))]
            frame = frame.loc[:, [c for c in frame.columns if len(frame[c].unique()) > 1 or c in ("metric", "value")]]
            command = str(tables.provenance_of(folder, name).get("command", f"compolens probe {name} {folder.name}"))
            shown = frame.to_html(index=False, na_rep="", float_format=lambda v: f"{v:.4g}", border=0, classes="table")
            entry = {"id": f"{path.stem}--{folder.name}", "model": folder.name, "name": path.stem, "html": shown}
            where = f"{len(frame)} of {total} rows; all in {folder.name}/tables/{path.name}"
            entries.append(entry | {"command": command, "shown": where})
    return entries


# ---- the page --------------------------------------------------------------------------------------------------------
def _render(**parts: Any) -> str:
    from jinja2 import Environment
    from plotly.offline import get_plotlyjs

    evidence: list[dict[str, Any]] = []
    judged = []
    for who, clauses in parts.pop("judged"):
        entry: list[dict[str, Any]] = []
        for clause in clauses:
            numbers = []
            for item in clause.evidence:
                evidence.append({"number": len(evidence) + 1, "text": str(item), "table": item.table, "models": item.models})
                numbers.append(len(evidence))
            entry.append({"text": clause.text, "numbers": numbers})
        judged.append({"who": who, "clauses": entry})
    page = Environment(autoescape=True).from_string(PAGE.read_text(encoding="utf-8"))
    return page.render(judged=judged, evidence=evidence, plotly=get_plotlyjs(), **parts)
