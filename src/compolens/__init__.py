"""compolens: why does compositional generalization succeed or fail?

Train the compared architectures on task families whose latent code is known, look inside, and argue from measurements.
Everything below is imported on first use, so that ``import compolens`` stays instant and never loads torch.
"""

import sys
from importlib import import_module
from typing import Any

from compolens.foundation.moved import MOVED, install

__version__ = "0.2.0"

install()
_HOMES = {
    "Adopted": "zoo.adopted",
    "adopt": "zoo.adopt",
    "AdamW": "training",
    "ReferenceAdamW": "training",
    "WarmupStableDecay": "training",
    "DecodableFactors": "training",
    "FanInPower": "training",
    "OrthogonalFactors": "training",
    "TeacherModules": "training",
    "Run": "training",
    "evaluate": "training",
    "train": "training",
    "Boundary": "maps",
    "Cell": "maps",
    "Map": "maps",
    "Tuning": "maps",
    "tuned": "maps",
    "TrainedModel": "zoo",
    "load": "zoo.hub",
    "push": "zoo.hub",
    "intervene": "activations",
    "record": "activations",
    "Recording": "activations",
    "gather": "tables",
    "load_recipe": "recipes",
    "show": "explore",
}
_ROOMS = (
    "activations",
    "figures",
    "hooks",
    "interventions",
    "language_models",
    "measures",
    "models",
    "recipes",
    "references",
    "tables",
    "tasks",
)
_MORE_ROOMS = (
    "training",
    "zoo",
    "diagnosis",
    "explore",
    "report",
    "challenge",
    "citations",
    "foundation",
    "jobs",
    "maps",
    "network_baselines",
)
"""Imported on first use too, but not by ``from compolens import *``."""

_NAMES = ("__version__", *_HOMES, *_ROOMS)
"""What is known without loading anything; ``from compolens import *`` asks `__getattr__` for ``__all__``."""
_REGISTRIES = (
    ("compolens.models", "ARCHITECTURES"),
    ("compolens.models", "PARTS"),
    ("compolens.tasks", "FAMILIES"),
    ("compolens.tasks", "PARTS"),
)


def __getattr__(name: str) -> Any:
    if name == "__all__":  # the names, and every architecture, task family and part of one, which loads torch
        return [*_NAMES, *sorted({made for room, registry in _REGISTRIES for made in getattr(import_module(room), registry)})]
    if name in _HOMES:
        return getattr(import_module(f"compolens.{_HOMES[name]}"), name)
    if name in _ROOMS or name in _MORE_ROOMS:
        return import_module(f"compolens.{name}")
    if name in MOVED:
        return import_module(f"compolens.{name}")
    if name[:1].isupper():  # an architecture, a task family or a part of one: the folders are the registry
        for room, registry in _REGISTRIES:
            if name in (made := getattr(import_module(room), registry)):
                return made[name]
    raise AttributeError(f"module 'compolens' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What tab completion shows; architectures and task families too, once something has loaded them (and torch)."""
    described = [sys.modules[room].__dict__.get(registry, {}) for room, registry in _REGISTRIES if room in sys.modules]
    return sorted({*_NAMES, *_MORE_ROOMS, *(name for registry in described for name in registry), "__doc__", "__file__"})
