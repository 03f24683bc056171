"""A trained model is a folder: load it, list it. Nothing in the folder is ever executed.

<run>/ config.json · weights.safetensors · scores.json · history.csv · README.md · steps/*.safetensors · tables/*.csv
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from compolens.activations.reading import Recording, is_recording
from compolens.activations.replaying import Replay, recorded_task
from compolens.activations.writing import Recorded
from compolens.foundation import files
from compolens.foundation.configs import ConfigError, construct
from compolens.foundation.moved import renamed
from compolens.hooks import HookedModel
from compolens.models import ARCHITECTURES
from compolens.models import PARTS as MODEL_PARTS
from compolens.tasks import FAMILIES, TaskFamily
from compolens.tasks import PARTS as TASK_PARTS
from compolens.training import RECIPES, RESUME, Run, kept_weights
from compolens.zoo.adopted import NO_UNTRAINED_CONTROL, Adopted

BUILT_IN = [
    Adopted,
    Recorded,
    *(kind for known in (ARCHITECTURES, MODEL_PARTS, FAMILIES, TASK_PARTS) for kind in known.values()),
]
"""The classes that a folder may name without the caller naming them too."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with everything it came from.

    Args:
        run: what decided it.
        model: in evaluation mode.
        task: what it was trained on.
        folder: where it was loaded from.
        step: the training step of its weights.
        stand_in: whether it stands in for its untrained control, see `with_stand_in`.
    """

    run: Run
    model: HookedModel
    task: TaskFamily
    folder: Path
    step: int
    stand_in: bool = False

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def untrained_control(self) -> HookedModel:
        """The same run as initialised, on the same device: what the architecture shows before it has learned anything.
        `DoesNotApply` to an adopted network that was given no way to initialise it."""
        if self.stand_in:
            return self.model
        if isinstance(self.model, Replay):
            return self.model.untrained_control()
        run, architecture = self.run, getattr(self.run, "architecture", None)
        if isinstance(architecture, Adopted):
            run = replace(run, architecture=architecture.untrained())
        return run.build().to(self.device).eval()

    @property
    def why_no_untrained_control(self) -> str:
        """Why there is no untrained control ("" if there is one)."""
        if isinstance(self.model, Replay):
            return self.model.why_no_untrained_control
        architecture = getattr(self.run, "architecture", None)
        return NO_UNTRAINED_CONTROL if isinstance(architecture, Adopted) and architecture.reinit is None else ""

    def untrained_twin(self) -> HookedModel:
        """`untrained_control`, as it was called before version 0.2."""
        renamed("untrained_twin()", "untrained_control()")
        return self.untrained_control()

    @property
    def why_no_twin(self) -> str:
        """`why_no_untrained_control`, as it was called before version 0.2."""
        renamed("why_no_twin", "why_no_untrained_control")
        return self.why_no_untrained_control

    def with_stand_in(self) -> TrainedModel:
        """The same for a probe that cannot do without an untrained control: the model itself takes its place. Whoever asks for
        this has to take all numbers out again that are said to be the untrained control's; `recipes` does."""
        return replace(self, stand_in=True)


def read_run(folder: str | Path, classes: Iterable[Callable[..., Any]] = ()) -> Run:
    """The `Run` a folder describes, never built from code in the folder.

    Args:
        folder: the model's folder.
        classes: classes of your own that the run uses, looked up by name among these and the built-in ones.

    Returns:
        The run.

    Raises:
        ConfigError: there is no config.json, or it describes no run.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds no trained model (no config.json); `compolens models DIR` lists those below DIR")
    config = files.read_json(folder / "config.json")
    if not isinstance(config, dict) or "run" not in config:
        raise ConfigError(f'{folder / "config.json"} describes no run; it should hold {{"format": 1, "run": …}}')
    unknown = set(config) - {"format", "run"}
    if unknown:
        raise ConfigError(f"{folder / 'config.json'} has the unknown key {sorted(unknown)[0]!r}; allowed: format, run")
    try:
        run = construct(config["run"], [Run, *RECIPES, *BUILT_IN, *classes])
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from error
    if not isinstance(run, Run):
        raise ConfigError(f"{folder / 'config.json'} describes a {type(run).__name__}, not a Run")
    return run


def kept_steps(folder: str | Path) -> list[int]:
    """The steps of `folder` that can be loaded: those kept along the way, ascending, then the final one."""
    run_steps = read_step(Path(folder))
    steps = {int(path.stem) for path in (Path(folder) / "steps").glob("*.safetensors") if path.stem.isdigit()}
    return [*sorted(steps - {run_steps}), run_steps]


def read_step(folder: Path) -> int:
    """The final step of the finished `folder`; a `ConfigError` where it is not finished."""
    if not (folder / "scores.json").exists():
        raise ConfigError(f"{folder} is not finished (no scores.json); run the same `compolens train` command to go on")
    scores = files.read_json(folder / "scores.json")
    if not isinstance(scores, dict) or not isinstance(scores.get("step"), int):
        raise ConfigError(f"{folder / 'scores.json'} does not say at which step the training ended; restore it or train again")
    return scores["step"]


def step_reached(folder: Path) -> int:
    """How far a training in `folder` that has not ended has come, as of its last checkpoint."""
    path = folder / RESUME
    return int(files.read_tensors(path)[1]["step"]) if path.exists() else 0


def load(
    folder: str | Path, step: int | None = None, classes: Iterable[Callable[..., Any]] = (), device: str = "cpu"
) -> TrainedModel:
    """Load a trained model; a recording's folder gives a model that replays it.

    Args:
        folder: the model's folder.
        step: one of the kept steps (None: the final weights).
        classes: classes of your own that the run uses; they are looked up by name among these and the built-in ones, and
            nowhere else.
        device: "cpu" or "cuda".

    Returns:
        The model, in evaluation mode, with its run and task.

    Raises:
        ConfigError: the folder is not finished, keeps no such step, or its weights do not fit its config.json.
    """
    folder = Path(folder)
    run = read_run(folder, classes)
    final = read_step(folder)
    if is_recording(folder):
        return _replayed(run, folder, step, device)
    path = folder / "weights.safetensors"
    if step is not None and step != final:
        path = kept_weights(folder, step)
        if not path.exists():
            raise ConfigError(f"{folder} keeps no weights of step {step}; kept: {kept_steps(folder)}")
    tensors, _ = files.read_tensors(path)
    model = run.build()
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} does not fit its config.json: {reason[:300]}") from error
    return TrainedModel(run, model.to(device).eval(), run.task, folder, final if step is None else step)


def _replayed(run: Run, folder: Path, step: int | None, device: str) -> TrainedModel:
    """What stands in for a model where its activations were recorded."""
    recording = Recording(folder)
    held = recording.info["step"]
    if step not in (None, held):
        raise ConfigError(f"{folder} is a recording of step {held}, not of {step}; record that one with --step {step}")
    return TrainedModel(run, Replay(recording).to(device).eval(), recorded_task(run.task, recording), folder, held)


def overview(folder: Path, classes: Iterable[Callable[..., Any]] = ()) -> dict[str, Any]:
    """One row of `compolens models`: what it is and how it scores, or why it does not load.

    Args:
        folder: the model's folder.
        classes: as for `load`.

    Returns:
        column -> value; "note" says what is missing.
    """
    row: dict[str, Any] = {"model": folder.name}
    try:
        run = read_run(folder, classes)
        row |= {"architecture": type(run.architecture).__name__, "task": type(run.task).__name__, "steps": run.steps}
        if (folder / "scores.json").exists():
            read_step(folder)
            scores = files.read_json(folder / "scores.json")
            row |= {split: scores[split]["score"] for split in ("train", "test", "ood")}
            row |= {"parameters": scores["parameters"]}
        else:
            row["note"] = f"not finished: step {step_reached(folder):,} of {run.steps:,}"
    except ConfigError as error:
        row["note"] = str(error)
    except (KeyError, TypeError) as error:
        row["note"] = f"{folder / 'scores.json'} lacks {error}"
    return row
