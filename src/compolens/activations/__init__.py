"""What hook points saw: streamed beside the codes that caused it, edited, written to disk, reopened and replayed.

    <folder>/ recording.json · config.json · scores.json · <site>.npy · prediction.npy · tokens.npy · codes.<name>.npy …

Beside recorded activations lie the episodes that caused them, in the layout of `FixedEpisodes`. recording.json is written
last: a folder without it was interrupted.
"""

from compolens.activations.reading import NotRecorded, Recording, is_recording
from compolens.activations.replaying import RecordedEpisodes, Replay, recorded_task
from compolens.activations.sites import Place, at_answers, at_role, places, positions, put, residual_sites
from compolens.activations.streams import Activations, draw, intervene, record
from compolens.activations.writing import Recorded, Writer

__all__ = [
    "Activations", "NotRecorded", "Place", "Recorded", "RecordedEpisodes", "Recording", "Replay", "Writer", "at_answers",
    "at_role", "draw", "intervene", "is_recording", "places", "positions", "put", "record", "recorded_task", "residual_sites",
]  # fmt: skip
