"""Names that modules had before version 0.2: each still imports, with a warning that says the new one."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MOVED = {
    "accelerator": "training.cuda_graph",
    "adapters": "language_models",
    "adapters.language_models": "language_models.wrapped",
    "adapters.pattern_study": "language_models.pattern_study",
    "adapters.transfer": "language_models.transfer",
    "adopted": "zoo.adopted",
    "adopted.architecture": "zoo.adopted.architecture",
    "adopted.model": "zoo.adopted.model",
    "adopted.taps": "zoo.adopted.taps",
    "adoption": "zoo.adopt",
    "causes": "diagnosis.interventional",
    "checkpoints": "foundation.files",
    "claims": "jobs.leases",
    "configs": "foundation.configs",
    "decomposition": "diagnosis.decomposition",
    "distributed": "training.distributed",
    "groups": "diagnosis.groups",
    "interchange": "interventions.interchange",
    "models.reference_weights": "models.jax_weights",
    "oracles": "interventions.oracles",
    "places": "foundation.builtin",
    "quoted": "diagnosis.reported",
    "recordings": "activations",
    "recordings.reading": "activations.reading",
    "recordings.replaying": "activations.replaying",
    "recordings.writing": "activations.writing",
    "repairs": "interventions.repairs",
    "resemblance": "diagnosis.closest_learner",
    "sharing": "zoo.hub",
    "signals": "foundation.signals",
    "specification_curve": "challenge.specification_curve",
    "tasks.episode_checks": "tasks.fixed.checks",
    "tasks.episode_files": "tasks.fixed.files",
    "tasks.fixed_episodes": "tasks.fixed.family",
    "tasks.raven_files": "tasks.raven.files",
    "tasks.raven_split": "tasks.raven.split",
    "tasks.sraven_posterior": "tasks.sraven.posterior",
    "tasks.stored_episodes": "tasks.fixed.stored",
    "tracking": "training.tracking",
    "training.sizes": "training.memory",
    "untrained": "network_baselines",
    "verdict": "diagnosis.sentences",
}
"""Old name -> new name, both below the package."""

_SITES = {"Place": "activations.sites.Site", "places": "activations.sites.sites"}
MOVED_NAMES = {
    "activations": _SITES,
    "activations.labels": {"Labelled": "activations.labels.LabelledFeatures"},
    "activations.sites": _SITES,
    "diagnosis.sentences": {
        name: f"diagnosis.evidence.{name}" for name in ("beside_the_paper", "ceiling", "readout", "stratum")
    },
    "jobs": {"run_claimed": "jobs.base.run_leased"},
    "jobs.leases": {"Claim": "jobs.leases.Lease", "Claims": "jobs.leases.Leases"},
    "models.transformer": {name: f"models.attention.{name}" for name in ("RelativeBias", "relative_buckets")},
    "tables": {
        **{name: f"measures.intervals.{name}" for name in ("paired_interval", "two_level_interval", "weighted_mean")},
        "with_twins": "tables.with_untrained_control",
    },
    "training": {name: f"measures.intervals.{name}" for name in ("Evaluation", "summarise")},
    "zoo.adopted": {"NO_TWIN": "zoo.adopted.NO_UNTRAINED_CONTROL"},
}
"""Module -> name that it had -> that thing's module and name now."""

_PACKAGE = __name__.partition(".")[0]


class _Elsewhere(importlib.abc.Loader):
    """Puts the module of the new name instead of that of the old one."""

    def __init__(self, new: str) -> None:
        self.new = new

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.new)


class MovedFinder(importlib.abc.MetaPathFinder):
    """Finds modules under the names that they had."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that moved, as `importlib` asks for it.

        Args:
            name: the module's full name.
            path: not used.
            target: not used.

        Returns:
            The spec; None for every name that did not move.
        """
        package, _, inner = name.partition(".")
        if package != _PACKAGE or inner not in MOVED:
            return None
        new = f"{_PACKAGE}.{MOVED[inner]}"
        warnings.warn(f"{name} is now {new}; the old name works in this version only", FutureWarning, stacklevel=2)
        return importlib.machinery.ModuleSpec(name, _Elsewhere(new))


def elsewhere(module: str, name: str) -> Any:
    """What a module answers to a name that it no longer has, in its own ``__getattr__``.

    Args:
        module: the module's name.
        name: what is asked for.

    Returns:
        What has the name now.

    Raises:
        AttributeError: the name never was.
    """
    old = module.removeprefix(f"{_PACKAGE}.")
    if name not in MOVED_NAMES.get(old, {}):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    where, _, new = f"{_PACKAGE}.{MOVED_NAMES[old][name]}".rpartition(".")
    renamed(f"{module}.{name}", f"{where}.{new}", stacklevel=4)
    return getattr(importlib.import_module(where), new)


def renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that something has another name now, and that the old one goes with the next version.

    Args:
        old: the name that was used.
        new: the name to use.
        stacklevel: whose line the warning shows, as in `warnings.warn`.
    """
    warnings.warn(f"{old} is now {new}; the old name works in this version only", FutureWarning, stacklevel=stacklevel)


def install() -> None:
    """Let imports look here first; done once, however often it is called."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())
