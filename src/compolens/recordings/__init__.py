"""Activations on disk: written as they stream by, reopened without being read, and replayed to probes in place of a model.

    <folder>/ recording.json · config.json · scores.json · <site>.npy · prediction.npy · tokens.npy · codes.<name>.npy …

Beside the activations lie the episodes that caused them, in the layout of `FixedEpisodes`. recording.json is written last: a
folder without it was interrupted.
"""

from compolens.recordings.reading import NotRecorded, Recording, is_recording
from compolens.recordings.replaying import RecordedEpisodes, Replay, recorded_task
from compolens.recordings.writing import Recorded, Writer

__all__ = [
    "NotRecorded",
    "Recorded",
    "RecordedEpisodes",
    "Recording",
    "Replay",
    "Writer",
    "is_recording",
    "recorded_task",
]
