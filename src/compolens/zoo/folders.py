"""A trained model is a folder: load it, list it. Nothing in the folder is ever executed.

<run>/ config.json · weights.safetensors · scores.json · history.csv · README.md (the card) · steps/*.safetensors
       tables/X.csv (or X.csv.gz), the table of probe X · X.json, what it was measured with · X.episodes.parquet, its episodes
       digests.json: the sha256 of the files above, but for the card and the tables; who reads one that differs is told
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from compolens.activations.reading import Recording, is_recording
from compolens.activations.replaying import Replay, recorded_task
from compolens.activations.sites import sites
from compolens.activations.streams import draw, record
from compolens.activations.writing import Recorded
from compolens.foundation import digests, files
from compolens.foundation.configs import ConfigError, DoesNotApply, construct, require, shown
from compolens.foundation.files import DamagedFile
from compolens.foundation.model_folders import named, network_name
from compolens.foundation.moved import renamed
from compolens.hooks import HookedModel, TaskLoss, native_bridge
from compolens.models import ARCHITECTURES
from compolens.models import PARTS as MODEL_PARTS
from compolens.tasks import FAMILIES, TaskFamily
from compolens.tasks import PARTS as TASK_PARTS
from compolens.tasks.episodes import SPLITS
from compolens.tasks.few_shot import FewShot
from compolens.tasks.fixed.family import FixedEpisodes
from compolens.training import AUXILIARIES, DECAYS, INITIALISATIONS, RECIPES, RESUME, Run, kept_weights
from compolens.training.folders import DIVERGED
from compolens.training.machine import check_device
from compolens.zoo.adopted import NO_UNTRAINED_CONTROL, Adopted
from compolens.zoo.adopted.layouts import bridge_from_config, bridge_logits, from_config, language_logits

BUILT_IN: list[Callable[..., Any]] = [
    Adopted,
    Recorded,
    from_config,
    bridge_from_config,
    native_bridge,
    language_logits,
    bridge_logits,
    *(kind for known in (ARCHITECTURES, MODEL_PARTS, FAMILIES, TASK_PARTS) for kind in known.values()),
]
"""The classes and functions that a folder may name without the caller naming them too."""
CONTROL_EPISODES = 128
"""On how many episodes an untrained control must be finite; some overflow on one in a hundred."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with everything it came from.

    Args:
        run: what its folder describes: architecture, task, seeds and training.
        model: the network, in evaluation mode; of a recording, what replays it.
        task: the task family that it was trained on.
        folder: where it lies.
        step: the training step of its weights.
    """

    run: Run
    model: HookedModel
    task: TaskFamily
    folder: Path
    step: int

    @property
    def name(self) -> str:
        """The folder's name."""
        return named(self.folder).name

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def untrained_control(self) -> HookedModel:
        """The same run as initialised, on the same device: what the architecture shows before it has learned anything.

        Raises:
            DoesNotApply: There is none, and why (`why_no_untrained_control`): an adopted network that was given no way to
                initialise it, a recording without it. `with_untrained_control` goes through what there is.
        """
        if why := self.why_no_untrained_control:
            raise DoesNotApply(
                f"{why}; a probe that can do without it goes through trained.with_untrained_control(), which leaves it out"
            )
        if isinstance(self.model, Replay):
            return self.model.untrained_control()
        return self._initialised()

    def _initialised(self) -> HookedModel:
        run, architecture = self.run, getattr(self.run, "architecture", None)
        if isinstance(architecture, Adopted):
            run = replace(run, architecture=architecture.untrained())
        started = getattr(run, "initialisation", None)
        if started is not None and started.written_down:
            run = replace(run, initialisation=None)
        return run.build().to(self.device).eval()

    def with_untrained_control(self) -> Iterator[tuple[str, HookedModel]]:
        """("", the model), then ("untrained", its untrained control) where there is one; the first is what a row's column
        `control` says. The rows that are missing without one: `tables.not_available`."""
        yield "", self.model
        if not self.why_no_untrained_control:
            yield "untrained", self.untrained_control()

    @property
    def why_no_untrained_control(self) -> str:
        """Why there is no untrained control ("" if there is one)."""
        if isinstance(self.model, Replay):
            return self.model.why_no_untrained_control
        architecture = getattr(self.run, "architecture", None)
        if isinstance(architecture, Adopted) and architecture.reinit is None:
            return NO_UNTRAINED_CONTROL
        return "" if architecture is None or type(architecture) in ARCHITECTURES.values() else self._useless

    @cached_property
    def _useless(self) -> str:
        """Why the untrained control of a class from outside is no control: it is not finite, or the model itself."""
        control = self._initialised()
        name = type(self.run.architecture).__name__
        mend = "give a reinit that" if name == Adopted.__name__ else f"let {name} start so that it"
        pairs = list(zip(self.model.parameters(), control.parameters(), strict=False))
        if pairs and all(torch.equal(own, fresh) for own, fresh in pairs):
            return f"the untrained control has the very weights of the model; {mend} makes fresh ones"
        try:
            points = {site.hook_name for site in sites(self.model)} & set(control.hook_dict)
        except DoesNotApply:  # none was named
            points = set()
        batches = draw(self.task, "train", CONTROL_EPISODES, "untrained control", self.device)
        with torch.no_grad():
            for batch in record(control, batches, sorted(points)):
                wrong = [name for name in sorted(points) if not batch.sites[name].isfinite().all()]
                wrong += [] if batch.prediction.isfinite().all() else ["the answers"]
                if wrong:
                    return f"the untrained control is not finite at {', '.join(wrong)}; {mend} is"
        return ""

    def untrained_twin(self) -> HookedModel:
        """`untrained_control`, as it was called before version 0.2."""
        renamed("untrained_twin()", "untrained_control()")
        return self.untrained_control()

    @property
    def why_no_twin(self) -> str:
        """`why_no_untrained_control`, as it was called before version 0.2."""
        renamed("why_no_twin", "why_no_untrained_control")
        return self.why_no_untrained_control


def read_run(folder: str | Path, classes: Iterable[Callable[..., Any]] = ()) -> Run:
    """The `Run` a folder describes, never built from code in the folder.

    Args:
        folder: the model's folder.
        classes: classes of your own that the run uses, looked up by name among these and the built-in ones.

    Returns:
        The run.

    Raises:
        ConfigError: there is no config.json, it describes no run, or `classes` is no list of classes.
    """
    folder, given = Path(folder), tuple(classes) if isinstance(classes, Iterable) else (classes,)
    listed = isinstance(classes, Iterable) and all(callable(one) for one in given)
    require(listed, f"classes must be a list of classes, such as classes=[MyNet], got {shown(classes)}")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds no trained model (no config.json); `compolens models DIR` lists those below DIR")
    described = digests.read_run(folder)
    try:
        run = construct(described, [Run, *RECIPES, *DECAYS, *INITIALISATIONS, *AUXILIARIES, *BUILT_IN, *given])
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from error
    if not isinstance(run, Run):
        raise ConfigError(f"{folder / 'config.json'} describes a {type(run).__name__}, not a Run")
    digests.check(folder, digests.CONFIG)
    if isinstance(run.task, FixedEpisodes | FewShot):
        scores = digests.read_scores(folder) if (folder / "scores.json").is_file() else {}
        run.task.look_above(folder, scores.get("stored"))
    return run


def kept_steps(folder: str | Path) -> list[int]:
    """The steps of `folder` that can be loaded: those kept along the way, ascending, then the final one."""
    run_steps = read_step(Path(folder))
    steps = {int(path.stem) for path in (Path(folder) / "steps").glob("*.safetensors") if path.stem.isdigit()}
    return [*sorted(steps - {run_steps}), run_steps]


def read_step(folder: Path) -> int:
    """The final step of the finished `folder`; a `ConfigError` where it is not finished."""
    if not (folder / "scores.json").exists():
        way = "run the same `compolens train` command to go on"
        if diverged := _diverged(folder):
            way = f"its training {diverged}; lower the learning rate or the clip, and choose another --out"
        raise ConfigError(f"{folder} is not finished (no scores.json){_gone(folder)}; {way}")
    step = digests.read_scores(folder).get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        raise DamagedFile(f"{folder / 'scores.json'} does not say at which step the training ended; restore it or train again")
    return step


def _diverged(folder: Path) -> str:
    """Where and how a training diverged ("" if it did not)."""
    try:
        return (folder / DIVERGED).read_text(encoding="utf-8")[:300]
    except (OSError, UnicodeDecodeError):
        return ""


def _gone(folder: Path) -> str:
    """What is said of a folder without scores that had some; while a training ends, its checkpoint is still there."""
    had = digests.SCORES in digests.kept(folder) and not (folder / RESUME).exists()
    return f", although {digests.FILE} names them: they were deleted, or the training was killed as it ended" if had else ""


def step_reached(folder: Path) -> int:
    """How far a training in `folder` that has not ended has come, as of its last checkpoint."""
    path = folder / RESUME
    if not path.exists():
        return 0
    step = files.read_tensors(path)[1].get("step")
    if not isinstance(step, int):
        raise DamagedFile(f"{path} does not say at which step it was saved; restore it, or delete it and train again")
    return step


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
        ConfigError: the folder is not finished, keeps no such step, or describes no run.
        DamagedFile: a file is not what was written, or does not fit the others.
    """
    if not isinstance(folder, str | Path):
        raise ConfigError(f"load takes a model's folder, such as 'trained_models/F-softmax-0'; got {folder!r:.80}")
    folder = Path(folder)
    check_device(device)
    run = read_run(folder, classes)
    final = read_step(folder)
    if is_recording(folder):
        return _replayed(run, folder, step, device)
    if final != run.steps:
        raise DamagedFile(
            f"{folder / 'scores.json'} says that the training ended at step {final}, and {folder / 'config.json'} that it has "
            f"{run.steps!s:.20} steps; restore whichever was changed, or train the run again"
        )
    path = folder / "weights.safetensors"
    if step is not None and step != final:
        path = kept_weights(folder, step)
        if not path.exists():
            raise ConfigError(f"{folder} keeps no weights of step {step}; kept: {kept_steps(folder)}")
    step = final if step is None else step
    model = _with_weights(run, folder, path, step)
    return TrainedModel(run, model.to(device).eval(), run.task, folder, step)


def _with_weights(run: Run, folder: Path, path: Path, step: int) -> HookedModel:
    """The model with the weights of a file, which are the ones that were written, of this run and of this step."""
    whole = digests.is_kept(folder, path.relative_to(folder).as_posix())
    tensors, metadata = files.read_tensors(path, whole=whole is True)
    model = run.build()
    state = model.state_dict()
    wrong = [n for n in tensors if n in state and tensors[n].is_floating_point() != state[n].is_floating_point()]
    if wrong:
        raise DamagedFile(f"{path} does not fit its config.json: {wrong[0]} holds numbers of another kind")
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise DamagedFile(f"{path} does not fit its config.json: {reason[:300]}") from error
    if metadata.get("step", step) != step:
        raise DamagedFile(f"{path} holds the weights of step {metadata['step']!r:.40}, not of step {step}; restore it")
    if whole is False:
        raise digests.damage(path)
    return model


def _replayed(run: Run, folder: Path, step: int | None, device: str) -> TrainedModel:
    """What stands in for a model where its activations were recorded."""
    recording = Recording(folder)
    held = recording.info["step"]
    if step not in (None, held):
        raise ConfigError(f"{folder} is a recording of step {held}, not of {step}; record that one with --step {step}")
    model, task = Replay(recording).to(device).eval(), recorded_task(run.task, recording)
    model.task_loss = TaskLoss(task.loss)
    return TrainedModel(run, model, task, folder, held)


def overview(folder: Path, classes: Iterable[Callable[..., Any]] = ()) -> dict[str, Any]:
    """One row of `compolens models`: what it is and how it scores, or why it does not load.

    Args:
        folder: the model's folder.
        classes: as for `load`.

    Returns:
        column -> value; "note" says what is missing.
    """
    row: dict[str, Any] = {"model": named(folder).name}
    try:
        run = read_run(folder, classes)
        called = network_name(digests.read_run(folder)["architecture"])
        row |= {"architecture": called, "task": type(run.task).__name__, "steps": run.steps}
        if (folder / "scores.json").exists():
            read_step(folder)
            row |= _scores(folder)
        else:
            ended = f"; {diverged}" if (diverged := _diverged(folder)) else ""
            row["note"] = f"not finished: step {step_reached(folder):,} of {run.steps:,}{_gone(folder)}{ended}"
    except ConfigError as error:
        row = _described(folder) | row | {"note": str(error)}
    return row


def _described(folder: Path) -> dict[str, Any]:
    """What a folder says of itself although its run cannot be built, such as for a class that nobody named: its names and
    scores, as far as they are what was written."""
    row: dict[str, Any] = {}
    try:
        run = digests.read_run(folder)
        digests.check(folder, digests.CONFIG)
        row = {"architecture": network_name(run["architecture"]), "task": run["task"]["class"], "steps": run["steps"]}
        return row | (_scores(folder) if (folder / "scores.json").exists() else {})
    except (ConfigError, KeyError, TypeError):
        return row


def _scores(folder: Path) -> dict[str, Any]:
    """Scores by split, and the number of parameters; one line that names the file where it does not say them."""
    scores = digests.read_scores(folder)
    row: dict[str, Any] = {}
    for split in SPLITS:
        found = scores.get(split)
        value = found.get("score") if isinstance(found, dict) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise DamagedFile(f"{folder / 'scores.json'} lacks the score on {split!r}; restore it, or train the run again")
        row[split] = float(value)
    count = scores.get("parameters")
    if not isinstance(count, int) or isinstance(count, bool):
        raise DamagedFile(f"{folder / 'scores.json'} lacks 'parameters'; restore it, or train the run again")
    return row | {"parameters": count}
