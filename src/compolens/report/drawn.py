"""The figures of a page: every built-in analysis whose tables exist, and in a few words those whose tables do not."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from compolens import recipes, tables, zoo
from compolens.figures import WIDE, Drawing, plotlyjs
from compolens.foundation.configs import ConfigError

DECISIVE = ("diagnoses", "who_generalizes")
"""The first of these that can be drawn stands beside the cards: the shares and parts that labels are read off."""
BESIDE = 560
"""Pixels that the figure beside the cards has."""
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z(])")
"""Between two sentences of a caption."""


class Figures(NamedTuple):
    """What is drawn, and what is not.

    Args:
        made: figures for the page.
        lacking: command that measures what is missing -> the analyses that wait for it.
        other: analyses that cannot be drawn for another reason, with it.
        refused: probe -> why it does not apply, and to which models; without it, these analyses cannot be drawn.
    """

    made: list[dict[str, Any]]
    lacking: dict[str, list[str]]
    other: list[str]
    refused: dict[str, str]


def figures(folders: Sequence[Path], refused: Mapping[str, Mapping[str, Sequence[str]]]) -> Figures:
    """Draw every built-in analysis that can be drawn of some models.

    Args:
        folders: the models.
        refused: as `inapplicable` returns it.

    Returns:
        The figures, those about scores first, and what was not drawn.
    """
    found = {name: path for name, path in recipes.built_in("analyses").items() if not recipes.of_maps(path)}
    waiting: dict[str, list[str]] = {}
    done = Figures([], {}, [], {})
    for name in sorted(found, key=lambda name: (_order(found[name]), name)):
        if missing := _missing(found[name], folders):
            hopeless = [probe for probe in missing if sum(map(len, refused.get(probe, {}).values())) >= len(folders)]
            for probe in hopeless:
                waiting.setdefault(probe, []).append(name)
            if not hopeless:
                done.lacking.setdefault(f"compolens probe {' '.join(missing)}", []).append(name)
            continue
        try:
            done.made.append(_entry(name, found[name], list(folders)))
        except ConfigError as error:
            done.other.append(f"{name}: {str(error).removeprefix(f'{name}: ')}")
        except (LookupError, ValueError) as error:  # a table from before digests, damaged since: one figure less
            done.other.append(f"{name}: cannot be drawn from these tables ({type(error).__name__}: {error})")
    for probe, reasons in refused.items():
        told = "; ".join(f"{_named(models, folders)}: {reason}" for reason, models in reasons.items())
        lost = f" ({', '.join(waiting[probe])} cannot be drawn)" if probe in waiting else ""
        done.refused[probe] = f"{told}{lost}"
    return done


def _named(models: Sequence[str], folders: Sequence[Path]) -> str:
    if len(models) == len(folders) > 1:
        return "all models"
    return ", ".join(models[:4]) + (f" and {len(models) - 4} more" if len(models) > 4 else "")


def decisive(made: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Take the figure that stands on the first screen out of `made`.

    Args:
        made: the figures; the one that is found is removed.

    Returns:
        It; None where none of `DECISIVE` was drawn.
    """
    for name in DECISIVE:
        for i, entry in enumerate(made):
            if entry["id"] == name:
                entry = made.pop(i)
                drawing = replace(entry["drawing"], columns=1)
                return entry | on_page(drawing, BESIDE)
    return None


def shared(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Take the sentences that stand in several captions out of them: a definition is read once.

    Args:
        entries: figures of the page; their captions lose these sentences.

    Returns:
        The sentences, in the order in which they are met.
    """
    parts = [SENTENCE.split(entry["caption"]) for entry in entries]
    count = Counter(sentence for part in parts for sentence in set(part) if sentence)
    often = [sentence for sentence in dict.fromkeys(s for part in parts for s in part) if count[sentence] > 1]
    for entry, part in zip(entries, parts, strict=True):
        entry["caption"] = " ".join(sentence for sentence in part if sentence not in often)
    return often


def on_page(drawing: Drawing, width: int = WIDE) -> dict[str, Any]:
    """A drawing as the page holds it.

    Args:
        drawing: what is shown.
        width: pixels that it has there.

    Returns:
        "json": plotly's, without the template that all share; "height" in pixels; "panels": how many stand side by side;
        "name": what a screen reader says.
    """
    figure = drawing.json(width)
    name = f"{drawing.claim} {'; '.join(panel.title for panel in drawing.panels)}"
    side_by_side = min(drawing.columns or 3, len(drawing.panels))
    return {"json": plotlyjs.inline(figure), "height": int(figure["layout"]["height"]), "panels": side_by_side, "name": name}


def inapplicable(
    folders: Sequence[Path], classes: tuple[type, ...], raised: Iterable[tuple[str, str, str]] = ()
) -> dict[str, dict[str, list[str]]]:
    """Which built-in probes do not apply: those that a task says it does not allow, and those that said so themselves.

    Args:
        folders: the models.
        classes: as for `zoo.load`.
        raised: (model, probe, reason) of probes that were begun.

    Returns:
        Probe -> reason -> names of models; probes in the order of their names.
    """
    probes, found = recipes.built_in("probes"), dict[str, dict[str, list[str]]]()
    for folder in folders:
        task = zoo.read_run(folder, classes).task
        for probe, why in task.missing.items():
            if probe in probes:
                found.setdefault(probe, {}).setdefault(f"{type(task).__name__}: {why}", []).append(folder.name)
    for model, probe, why in raised:
        if model not in (name for models in found.get(probe, {}).values() for name in models):
            found.setdefault(probe, {}).setdefault(why, []).append(model)
    return dict(sorted(found.items()))


def _missing(path: Path, folders: Sequence[Path]) -> list[str]:
    """The tables that an analysis needs and that no model has."""
    needs = getattr(recipes.load_file(path), "needs", ())
    return [name for name in needs if not any(tables.exists(folder, name) for folder in folders)]


def _order(path: Path) -> int:
    """Figures about scores come first, then those about codes, then the rest."""
    needs = getattr(recipes.load_file(path), "needs", ())
    return next((i for i, table in enumerate(("generalization", "latent_code")) if table in needs), 2)


def _entry(name: str, path: Path, folders: list[Path]) -> dict[str, Any]:
    drawing, used, dropped = recipes.draw(path, folders, {})
    command = shlex.join(["compolens", "analyze", name, *map(str, used[:3])]) + " …" * (len(used) > 3)
    entry = {"id": name, "claim": drawing.claim, "caption": drawing.caption, "command": command, "drawing": drawing}
    return entry | on_page(drawing) | {"dropped": [f"{Path(k).name}: {v}" for k, v in dropped.items()]}
