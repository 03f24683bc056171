"""The zoo: a trained model is a folder. Folders are found and loaded, networks of one's own adopted, models shared."""

from compolens.zoo.folders import BUILT_IN, TrainedModel, kept_steps, load, overview, read_run, read_step, step_reached

__all__ = ["BUILT_IN", "TrainedModel", "kept_steps", "load", "overview", "read_run", "read_step", "step_reached"]
