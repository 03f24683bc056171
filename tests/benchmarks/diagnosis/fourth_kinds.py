"""The fourth fresh set's planted models as architectures, as in `kinds`."""

from __future__ import annotations

from dataclasses import dataclass

from fourth_mechanisms import ByColumn, Deferred, Intruder, Lapsing, Turned, Untranslated
from kinds import Planted


@dataclass(frozen=True)
class PlantedDeferred(Planted):
    """`Deferred`."""

    mechanism = Deferred


@dataclass(frozen=True)
class PlantedIntruder(Planted):
    """`Intruder`."""

    mechanism = Intruder


@dataclass(frozen=True)
class PlantedLapsing(Planted):
    """`Lapsing`."""

    mechanism = Lapsing


@dataclass(frozen=True)
class PlantedUntranslated(Planted):
    """`Untranslated`."""

    mechanism = Untranslated


@dataclass(frozen=True)
class PlantedTurned(Planted):
    """`Turned`."""

    mechanism = Turned


@dataclass(frozen=True)
class PlantedByColumn(Planted):
    """`ByColumn`."""

    mechanism = ByColumn
