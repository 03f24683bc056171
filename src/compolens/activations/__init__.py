"""What hook points saw: streamed beside the codes that caused it, edited, written to disk, reopened and replayed.

    <folder>/ recording.json · config.json · scores.json · <site>.npy · prediction.npy · tokens.npy · codes.<name>.npy …

Beside recorded activations lie the episodes that caused them, in the layout of `FixedEpisodes`. recording.json is written
last: a folder without it was interrupted.
"""

from typing import Any

from compolens.activations.reading import NotRecorded, Recording, is_recording
from compolens.activations.replaying import RecordedEpisodes, Replay, recorded_task
from compolens.activations.sites import Site, at_answers, at_role, positions, put, residual_sites, sites
from compolens.activations.streams import Activations, draw, intervene, record
from compolens.activations.writing import Recorded, Writer
from compolens.foundation.moved import elsewhere

__all__ = [
    "Activations", "NotRecorded", "Site", "Recorded", "RecordedEpisodes", "Recording", "Replay", "Writer", "at_answers",
    "at_role", "draw", "intervene", "is_recording", "sites", "positions", "put", "record", "recorded_task", "residual_sites",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
