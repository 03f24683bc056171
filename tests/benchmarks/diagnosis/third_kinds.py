"""The third fresh set's planted models as architectures, as in `kinds`."""

from __future__ import annotations

from dataclasses import dataclass

from kinds import Planted
from third_mechanisms import Disturbed, Guessed, Patchwork, Redundant, Smoothed, TooLate


@dataclass(frozen=True)
class PlantedRedundant(Planted):
    """`Redundant`."""

    mechanism = Redundant


@dataclass(frozen=True)
class PlantedGuessed(Planted):
    """`Guessed`."""

    mechanism = Guessed


@dataclass(frozen=True)
class PlantedTooLate(Planted):
    """`TooLate`."""

    mechanism = TooLate


@dataclass(frozen=True)
class PlantedDisturbed(Planted):
    """`Disturbed`."""

    mechanism = Disturbed


@dataclass(frozen=True)
class PlantedPatchwork(Planted):
    """`Patchwork`."""

    mechanism = Patchwork


@dataclass(frozen=True)
class PlantedSmoothed(Planted):
    """`Smoothed`."""

    mechanism = Smoothed
