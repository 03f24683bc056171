"""Finding the folders of models and maps: without torch and pandas, so that a command can say at once what it is about."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError

MOST_FOLDERS = 20_000
"""How many folders are looked through for models: a root with more was mistyped."""


def finished(folder: Path) -> bool:
    """Whether the model `folder` holds a training that came to its end."""
    return (folder / "scores.json").is_file()


def find(roots: Iterable[str | Path]) -> list[Path]:
    """Every model folder at or below `roots`, sorted; a root that holds none is a `ConfigError`."""
    found: list[Path] = []
    for root in map(Path, roots):
        if map_files.is_map(root):
            raise ConfigError(
                f"{root} is a map of many models, not a model; draw it with: compolens analyze phase_diagram {root}"
            )
        if (root / "config.json").is_file():
            found.append(root)
            continue
        below = _below(root)
        if not below:
            what = "holds no trained model" if root.is_dir() else "does not exist"
            raise ConfigError(f"{root} {what}; train some with: compolens train FILE --out {root}")
        found.extend(below)
    return list(dict.fromkeys(found))


def _below(root: Path) -> list[Path]:
    """The model folders below a root, sorted; links to folders are not followed."""
    found: list[Path] = []
    if not root.is_dir():
        return found
    for looked, (place, inside, names) in enumerate(os.walk(root)):
        if looked >= MOST_FOLDERS:
            raise ConfigError(f"{root} has more than {MOST_FOLDERS:,} folders; name one that is nearer to the models")
        if map_files.is_map(place):
            inside.clear()  # its cells are its own; named themselves, they are found
        elif "config.json" in names:
            found.append(Path(place))
    return sorted(found)


def find_maps(roots: Iterable[str | Path]) -> list[Path]:
    """Every map's folder at or below `roots`, sorted; none at all is a `ConfigError`."""
    found: list[Path] = []
    for root in map(Path, roots):
        below = (
            [root]
            if map_files.is_map(root)
            else sorted(Path(place) for place, _, _ in os.walk(root) if map_files.is_map(place))
        )
        found.extend(below)
    if not found:
        named = ", ".join(map(str, roots))
        raise ConfigError(f"there is no map in {named}; make one with: compolens map FILE --out DIR")
    return list(dict.fromkeys(found))
