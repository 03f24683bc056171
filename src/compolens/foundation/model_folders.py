"""Finding the folders of models and maps: without torch and pandas, so that a command can say at once what it is about."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from compolens.foundation import map_files
from compolens.foundation.configs import ConfigError

MOST_FOLDERS = 20_000
"""How many folders are looked through for models: a root with more was mistyped."""


def finished(folder: Path) -> bool:
    """Whether the model `folder` holds a training that came to its end."""
    return (folder / "scores.json").is_file()


def named(folder: str | Path) -> Path:
    """`folder` by a path that ends with its name, which "." and ".." do not."""
    folder = Path(folder)
    return folder.resolve() if folder.name in ("", "..") else folder


def escaped(pattern: str) -> str:
    """`pattern` with its brackets as characters like others: * and ? alone stand for what may vary."""
    return pattern.replace("[", "[[]")


def distinct(folders: Iterable[Path]) -> list[Path]:
    """Each of `folders` once, as it was spelled first: relative and absolute paths, ".." and links lead to the same one."""
    found: dict[Path, Path] = {}
    for folder in folders:
        found.setdefault(folder.resolve(), folder)
    return list(found.values())


ADOPTED = "Adopted"
"""The class of the description of every network that was made elsewhere."""
MADE_BY = {"from_config": "", "bridge_from_config": "TransformerBridge of ", "native_bridge": "TransformerBridge"}
"""What makes language models again -> what these are called, before the name of their layout."""


def network_name(described: Mapping[str, Any]) -> str:
    """What an architecture is called for readers: its class; an adopted network by what makes it, or by its layout.

    Args:
        described: as in config.json, ``{"class": "SoftmaxTransformer", …}``.

    Returns:
        The name, such as "MyNet" or "gpt2".
    """
    if described["class"] != ADOPTED or not isinstance(described.get("module"), Mapping):
        return described["class"]
    name, layout = str(described["module"].get("outside")), network_arguments(described).get("model_type", "")
    return f"{MADE_BY[name]}{layout}" or name if name in MADE_BY else name


def network_arguments(described: Mapping[str, Any]) -> dict[str, Any]:
    """What an adopted network is made from, by name; the entries of a language model's configuration one by one.

    Args:
        described: as in config.json.

    Returns:
        name -> plain value.
    """
    found = {name: value for name, value in described.get("arguments", [])}
    if described["module"].get("outside") in MADE_BY and isinstance(found.get("config"), str):
        config = json.loads(found.pop("config"))
        return found | (config if isinstance(config, dict) else {})
    return found


def sites_name(described: Mapping[str, Any]) -> str:
    """The sites of an adopted network in two words: how many, and what tells them from others.

    Args:
        described: as in config.json.

    Returns:
        The words, such as "5 (3f2a)".
    """
    sites = described.get("sites", [])
    return f"{len(sites)} ({hashlib.sha256(json.dumps(sites).encode()).hexdigest()[:4]})"


def find(roots: Iterable[str | Path]) -> list[Path]:
    """Every model folder at or below `roots`, sorted; a root that holds none is a `ConfigError`."""
    found: list[Path] = []
    for root in map(Path, roots):
        if map_files.is_map(root):
            raise ConfigError(
                f"{root} is a map of many models, not a model; draw it with: "
                f"compolens analyze phase_diagram {shlex.quote(str(root))}"
            )
        if (root / "config.json").is_file():
            found.append(named(root))
            continue
        below = _below(root)
        if not below:
            if root.exists() and not root.is_dir():
                raise ConfigError(f"{root} is a file; name the folder of a model, or one with models in it")
            if maps := _maps_below(root):
                draw = f"compolens analyze phase_diagram {shlex.quote(str(maps[0]))}"
                raise ConfigError(f"{root} holds no trained model, but maps of many; draw one with: {draw}")
            what = "holds no trained model" if root.is_dir() else "does not exist"
            raise ConfigError(f"{root} {what}; train some with: compolens train FILE --out {shlex.quote(str(root))}")
        found.extend(below)
    return distinct(found)


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


def _maps_below(root: Path) -> list[Path]:
    return sorted(Path(place) for place, _, _ in os.walk(root) if map_files.is_map(place))


def find_maps(roots: Iterable[str | Path]) -> list[Path]:
    """Every map's folder at or below `roots`, sorted; none at all is a `ConfigError`."""
    found: list[Path] = []
    for root in map(Path, roots):
        found.extend([named(root)] if map_files.is_map(root) else _maps_below(root))
    if not found:
        typed = ", ".join(map(str, roots))
        raise ConfigError(f"there is no map in {typed}; make one with: compolens map FILE --out DIR")
    return distinct(found)
