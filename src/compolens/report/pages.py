"""What stands on a page about a set of model folders: cards, split, scores, figures, attention, cited rows."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import compolens
from compolens import tables, zoo
from compolens.diagnosis import cards, sentences
from compolens.diagnosis.decomposition import NOTHING
from compolens.diagnosis.groups import CopiedModel
from compolens.figures import plotlyjs
from compolens.foundation import versions
from compolens.foundation.configs import ConfigError
from compolens.foundation.files import write_atomically
from compolens.report.attention import attention
from compolens.report.drawn import decisive, figures, shared
from compolens.report.drawn import inapplicable as refused
from compolens.report.evidence import Cited
from compolens.tasks import TaskFamily

OLDER = re.compile(rf"tables '(\w+)': {re.escape(versions.INTERVALS)}")
"""What a warning says of tables whose intervals are of an older version."""
CODE = re.compile(r"`([^`]+)`")
"""What is to be typed, in a sentence."""
PAGE = Path(__file__).with_name("page.html")
SPLITS = ("train", "test", "ood")


class Page(NamedTuple):
    """A page that was written, and what it says.

    Args:
        path: the page.
        cards: one for each group of models.
        compared: what is said of two groups.
        lines: the whole diagnosis as plain lines.
    """

    path: Path
    cards: list[cards.Card]
    compared: list[sentences.Clause]
    lines: list[str]


def write(
    folders: Sequence[Path],
    path: Path,
    classes: tuple[type, ...] = (),
    command: str = "",
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Path, list[str]]:
    """Write the page.

    Args:
        folders: as in `page`.
        path: as in `page`.
        classes: as in `page`.
        command: as in `page`.
        note: as in `page`.

    Returns:
        Its path, and the diagnosis as plain lines.

    Raises:
        ConfigError: no folder is finished, or nothing was measured.
    """
    made = page(folders, path, classes, command, note)
    return made.path, made.lines


def page(
    folders: Sequence[Path],
    path: Path,
    classes: tuple[type, ...] = (),
    command: str = "",
    note: Callable[[str], None] = lambda _: None,
    inapplicable: Iterable[tuple[str, str, str]] = (),
) -> Page:
    """Write the page; what it says comes back.

    Args:
        folders: model folders; those that are not finished are left out.
        path: of the page.
        classes: as for `zoo.load`.
        command: what regenerates the page, as shown on it.
        note: told of every model and every table that is left out, and why, which stands on the page too.
        inapplicable: (model, probe, reason) of probes that do not apply.

    Returns:
        The page, its cards, and the diagnosis as plain lines.

    Raises:
        ConfigError: no folder is finished, or nothing was measured.
    """
    measured, notes = _choose(folders, classes)
    for sentence in notes:
        note(sentence)
    with warnings.catch_warnings(record=True) as caught, tables.read_once():
        for kind in (tables.StaleTable, CopiedModel):
            warnings.simplefilter("always", kind)
        judged, compared = sentences.judgements(measured)
        drawn = figures(measured, refused(measured, classes, inapplicable))
        maps, without = attention(measured, classes)
    stale = [w for w in caught if issubclass(w.category, tables.StaleTable) and str(w.message) not in notes]
    for sentence in sorted({str(w.message) for w in stale if not issubclass(w.category, tables.OlderIntervals)}):
        note(sentence)
    notes += in_one(sorted({str(w.message) for w in stale}))
    for sentence in sorted({str(w.message) for w in caught if issubclass(w.category, CopiedModel)}):
        note(sentence)
        notes.append(sentence)
    cited = Cited(measured, path)
    told = [cards.card(one) for one in judged]
    first = decisive(drawn.made)
    common = shared([*([first] if first else []), *drawn.made])
    text = _render(
        cards=[_card(one, cited) for one in told],
        compared=cited.clauses(compared),
        models=[_model_row(f, classes) for f in measured],
        splits=_splits(measured, classes),
        decisive=first,
        common=common,
        figures=drawn.made,
        lacking=drawn.lacking,
        other=drawn.other,
        refused=drawn.refused,
        attention=maps,
        without_attention=without,
        evidence=cited.evidence,
        tables=cited.tables(),
        files=cited.files(),
        notes=notes,
        command=command or " ".join(["compolens", "report", *(str(f) for f in folders), "-o", str(path)]),
        version=compolens.__version__,
    )
    write_atomically(path, text.encode())
    return Page(path, told, list(compared), plain(sentences.in_order(judged, compared)))


def in_one(told: Sequence[str]) -> list[str]:
    """What is told of tables whose intervals are of an older version, as one sentence for all of them.

    Args:
        told: warnings of tables.

    Returns:
        The other warnings as they are, then that sentence.
    """
    older = [found[1] for found in map(OLDER.match, told) if found]
    if len(older) < 2:
        return list(told)
    said = f"{len(older)} tables hold the values that their probes give, with intervals computed in an older way; "
    others = [text for text in told if not OLDER.match(text)]
    return [*others, f"{said}measure again with: compolens probe {' '.join(older)} FOLDER"]


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
        raise ConfigError("; ".join(dict.fromkeys(reasons)))
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
        return f"nothing was measured yet; type: {tables.command_of(('generalization', 'latent_code'), folder)}"
    return tables.why_not(folder, "generalization")


def plain(judged: list[tuple[str, list[sentences.Clause]]]) -> list[str]:
    """The diagnosis `judged`, from `sentences.sentences`, as lines of text."""
    return [line for who, clauses in judged for line in (who, *(f"  - {c.text}" for c in clauses))]


# ---- parts -----------------------------------------------------------------------------------------------------------
def _card(one: cards.Card, cited: Cited) -> dict[str, Any]:
    """A card for the page: its clauses with numbers, its bar with widths in percent."""
    kinds = ("rests_on", "sentences", "change", "evidence")
    told = {kind: cited.clauses(getattr(one, kind)) for kind in kinds}
    return told | {"card": one, "bar": _bar(one), "rests": sorted({n for c in told["rests_on"] for n in c["numbers"]})}


def _bar(one: cards.Card) -> list[dict[str, Any]]:
    """What is answered, then the parts of the loss that are there: where each begins and ends, in percent of the bar.

    The bar is the ceiling, or what lies between the ceiling and a score below 0. A part below 0 has no width. The parts
    are measured on other episodes than the score, so they need not fill the bar."""
    if not one.parts:
        return []
    there = {name: loss for name, loss in one.parts.items() if abs(loss.value) >= NOTHING}
    lengths = {"answered": max(one.score, 0.0), **{name: max(loss.value, 0.0) for name, loss in there.items()}}
    whole, start, bar = max(sum(lengths.values()), one.ceiling, 1e-9), 0.0, []
    for name, length in lengths.items():
        shown = f"{one.score:.3f}" if name == "answered" else str(there[name])
        bar.append({"name": name, "start": 100 * start / whole, "width": 100 * length / whole, "shown": shown})
        start += length
    return bar


def _model_row(folder: Path, classes: tuple[type, ...]) -> dict[str, Any]:
    """What was trained; its scores are those of the table generalization, which the cards speak of, too."""
    row = {key: value for key, value in zoo.overview(folder, classes).items() if key not in SPLITS}
    settings = tables.settings(folder)
    seeds = {
        k.split(".")[-1]: settings[k]
        for k in ("init_seed", "data_seed", "task.teacher_seed", "task.split_seed")
        if k in settings
    }
    frame = tables.at_last_step(tables.read(folder, "generalization"))
    own = frame[(frame["metric"] == "score") & (frame["composition"] == "all") & (frame["control"] == "")]
    scores = {split: float(own[own["split"] == split]["value"].iloc[0]) for split in SPLITS if (own["split"] == split).any()}
    return row | scores | {"seeds": ", ".join(f"{k.removesuffix('_seed')} {v}" for k, v in seeds.items())}


def _splits(folders: Sequence[Path], classes: tuple[type, ...]) -> list[dict[str, Any]]:
    """One entry per distinct task: what was seen, what was held out, and a table of pairs where modules exist."""
    seen: dict[str, dict[str, Any]] = {}
    for folder in folders:
        task = zoo.read_run(folder, classes).task
        split = _in_words(task.describe_split())
        entry = seen.setdefault(repr(task), {"task": type(task).__name__, "split": split, "models": [], "pairs": _pairs(task)})
        entry["models"].append(folder.name)
    return list(seen.values())


def _in_words(split: dict[str, Any]) -> dict[str, str]:
    """Combinations as 0+4, lists joined."""

    def word(value: Any) -> str:
        return "+".join(map(str, value)) if isinstance(value, list) else str(value)

    return {k: " · ".join(map(word, v)) or "none" if isinstance(v, list) else str(v) for k, v in split.items()}


def _pairs(task: TaskFamily) -> list[list[str]]:
    """[module][with module]: "trained", "held out" or "neither"; the diagonal is a module alone. Empty where combinations are
    of more than two."""
    split = task.describe_split()
    if "n_modules" not in split or any(len(c) > 2 for c in [*split["train"], *split["held_out"]]):
        return []
    kinds = [["neither"] * split["n_modules"] for _ in range(split["n_modules"])]
    for kind, combinations in (("trained", split["train"]), ("held out", split["held_out"])):
        for combination in combinations:
            a, b = combination[0], combination[-1]
            kinds[a][b] = kinds[b][a] = kind
    return kinds


def coded(text: str) -> str:
    """A sentence as HTML, with what stands between backticks as code.

    Args:
        text: the sentence.

    Returns:
        Markup, everything else escaped.
    """
    from markupsafe import Markup, escape

    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))


# ---- the page --------------------------------------------------------------------------------------------------------
def _render(**parts: Any) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True)
    environment.filters["coded"] = coded
    made = environment.from_string(PAGE.read_text(encoding="utf-8"))
    return made.render(plotly=plotlyjs.script(), template=plotlyjs.template(), **parts)
