"""How an architecture learns a task family: a `Run` describes it, `train` does it, and an interrupted one resumes.

Equal `Run` means equal weights, bit for bit, on the same kind of device, torch version and thread count (CPU trainings
use one). Data is a pure function of (data_seed, split, step), so a checkpoint needs no random state: weights, the
optimizer's moments, the step and the history are enough. Under torchrun several processes train one run (`distributed`).
"""

from __future__ import annotations

import contextlib
import json
import math
import platform
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from compolens import checkpoints, distributed
from compolens.accelerator import GraphedStep
from compolens.configs import ConfigError, classes_of, construct, describe, frozen, nearest, require, require_positive
from compolens.distributed import Alone, Processes
from compolens.hooks import HookedModel
from compolens.models.base import Architecture, count_parameters
from compolens.tasks.base import SPLITS, Episodes, TaskFamily, stream
from compolens.tracking import Following, Tracker

RESUME = "resume.safetensors"
READ_EVERY = 100
"""Updates that a GPU does before its losses are read: reading waits for it."""


class Diverged(ConfigError):
    """Training produced a number that is not finite; the last good checkpoint was kept."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal, after saving; `signum` says which."""

    def __init__(self, signum: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped at step {step}; saved in {folder}: the same command goes on from there")
        self.signum = signum


@dataclass(frozen=True)
class AdamW:
    """AdamW with linear warm-up, then a cosine from lr to final * lr; weight decay on matrices only; gradients clipped.

    lr, weight_decay: as in torch; warmup: steps; final: fraction of lr at the last step; clip: largest gradient norm, or
    None for no clipping.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 1e-2
    warmup: int = 500
    final: float = 0.02
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "betas", frozen(self.betas))
        require(self.lr > 0, f"{name}: lr must be positive, got {self.lr}")
        require(self.clip is None or self.clip > 0, f"{name}: clip must be positive, or None for no clipping, got {self.clip}")
        require(self.weight_decay >= 0 and self.warmup >= 0, f"{name}: weight_decay and warmup must not be negative")

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """The optimizer; biases, gains and single vectors are not decayed."""
        decayed: list[nn.Parameter] = []
        free: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            (decayed if self.decays(name, parameter) else free).append(parameter)
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": free, "weight_decay": 0.0}]
        device = next(model.parameters()).device
        on_gpu = device.type == "cuda"  # there the step is captured, and reads its rate from the device
        lr = torch.tensor(self.lr, device=device) if on_gpu else self.lr
        groups = [g for g in groups if g["params"]]
        return torch.optim.AdamW(groups, lr=lr, betas=self.betas, fused=True, capturable=on_gpu)

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether weight decay acts on a parameter: on matrices, not on biases, whatever their shape."""
        return parameter.ndim >= 2 and not name.split(".")[-1].startswith(("b_", "bias", "rel_bias"))

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of the update that leads from `step` to `step + 1`."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, steps - self.warmup)
        return self.lr * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True)
class ReferenceAdamW(AdamW):
    """The recipe of "Attention as a hypernetwork" (2406.05816), as its code has it.

    The rate rises from 0 over `warmup` steps, falls along a cosine that ends `warmup` steps before the end (the code subtracts
    the warm-up from the schedule's length), and stays at final * lr. No clipping. decay: what weight decay acts on; "code":
    every parameter that is no vector, hence also the biases of query, key and value and the relative-bias table, as the code
    does; "paper": matrices only, as the paper says.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.1
    warmup: int = 100
    final: float = 0.1
    clip: float | None = None
    decay: str = "code"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.decay in ("code", "paper"), f"no decay {self.decay!r}; {nearest(str(self.decay), ('code', 'paper'))}")

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        return parameter.ndim != 1 if self.decay == "code" else super().decays(name, parameter)

    def rate(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return self.lr * step / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, steps - 2 * self.warmup))
        return self.lr * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress)))


RECIPES = (AdamW, ReferenceAdamW)
"""The classes that a run's `optimizer` may be of."""


@dataclass(frozen=True)
class Run:
    """Everything that decides a training's outcome.

    steps: updates (0 makes a folder of the model as built); keep: steps whose weights are kept beside the final ones;
    evaluations: how many times, evenly spaced, the scores enter history.csv; evaluation_episodes: on how many episodes
    per split; data_device: where episodes are drawn ("cpu" gives every device the same ones); answers_only: while training,
    the last block computes only the positions whose answers count: the same function, up to rounding (and, with dropout, to
    which pairs are dropped), in less time.
    """

    architecture: Architecture
    task: TaskFamily
    steps: int = 6000
    init_seed: int = 0
    data_seed: int = 0
    batch_size: int = 64
    optimizer: AdamW = field(default_factory=AdamW)
    keep: tuple[int, ...] = ()
    evaluations: int = 20
    evaluation_episodes: int = 1024
    data_device: str = "cpu"
    answers_only: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("architecture", Architecture), ("task", TaskFamily), ("optimizer", AdamW)):
            value = getattr(self, name)
            require(isinstance(value, kind), f"Run: {name} must be of a class derived from {kind.__name__}, got {value!r}")
        object.__setattr__(self, "keep", tuple(sorted(set(frozen(self.keep)))))
        require_positive(self, "batch_size", "evaluations", "evaluation_episodes")
        for name in ("steps", "init_seed", "data_seed"):
            value = getattr(self, name)
            require(isinstance(value, int), f"Run: {name} must be a whole number, got {value!r}")
        require(self.steps >= 0, f"Run: steps must not be negative, got {self.steps}")
        for step in self.keep:
            require(0 <= step <= self.steps, f"Run: keep names step {step}, outside 0 to {self.steps}")

    def build(self) -> HookedModel:
        """The model as initialised: a function of the run alone, leaving global random state as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.init_seed)
            return self.architecture.build(**self.task.dimensions)

    @property
    def evaluated_steps(self) -> set[int]:
        """The steps at which history.csv has a row, the last one included."""
        return {round(self.steps * k / self.evaluations) for k in range(1, self.evaluations + 1)} | {self.steps}


class Progress(NamedTuple):
    """What `train` reports: where it is, the latest loss and scores, and now and then a sentence."""

    step: int
    steps: int
    loss: float
    scores: dict[str, float]
    note: str = ""


class Evaluation(NamedTuple):
    """A score with its standard error over compositions (jackknife), and per composition (score, weight, episodes)."""

    score: float
    se: float
    per_composition: dict[int, tuple[float, float, int]]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the score over compositions (2,000 draws, always the same ones)."""
        scores, weights = (np.array([entry[i] for entry in self.per_composition.values()]) for i in (0, 1))
        pick = np.random.default_rng(0).integers(len(scores), size=(2000, len(scores)))
        lo, hi = np.quantile((scores[pick] * weights[pick]).sum(1) / weights[pick].sum(1), [0.025, 0.975])
        return float(lo), float(hi)


def summarise(error: np.ndarray, weight: np.ndarray, composition: np.ndarray) -> Evaluation:
    """Pool per-episode (error, weight) into 1 - sum(error)/sum(weight), with the composition as unit of replication."""
    ids = np.unique(composition)
    errors = np.array([error[composition == c].sum() for c in ids])
    weights = np.array([weight[composition == c].sum() for c in ids])
    counts = [int((composition == c).sum()) for c in ids]
    score = 1 - errors.sum() / weights.sum()
    se = float("nan")
    if len(ids) > 1:
        left_out = 1 - (errors.sum() - errors) / (weights.sum() - weights)
        se = float(np.sqrt((len(ids) - 1) * np.mean((left_out - left_out.mean()) ** 2)))
    rows = zip(ids, errors, weights, counts, strict=True)
    return Evaluation(float(score), se, {int(c): (float(1 - e / w), float(w), k) for c, e, w, k in rows})


@torch.no_grad()
def evaluate(
    model: HookedModel, task: TaskFamily, split: str, n: int, seed: int | str, device: str = "cpu", batch: int = 64
) -> Evaluation:
    """Score the model on n episodes of a split, drawn as training draws them: batch by batch from (seed, split, step)."""
    parts = []
    for step, size in enumerate(_batches(n, batch)):
        episodes = task.sample(size, split, task.rng(seed, split, step)).to(device)
        error, weight = task.errors(model(episodes.tokens), episodes.targets)
        parts.append(torch.stack([error, weight, episodes.composition.double()]).cpu())
    error, weight, composition = torch.cat(parts, dim=1).numpy()
    return summarise(error, weight, composition.astype(int))


def _batches(n: int, batch: int) -> list[int]:
    return [min(batch, n - start) for start in range(0, n, batch)]


def environment(device: str) -> dict[str, Any]:
    """What bit-equality depends on besides the run."""
    kind = torch.cuda.get_device_name(device) if str(device).startswith("cuda") else platform.machine()
    return {
        "torch": torch.__version__,
        "device": str(device).split(":")[0],
        "hardware": kind,
        "threads": torch.get_num_threads(),
    }


def train(
    run: Run,
    folder: str | Path,
    *,
    device: str = "cpu",
    progress: Callable[[Progress], None] | None = None,
    save_every: float = 20.0,
    trackers: Iterable[Tracker] = (),
    may_write: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train a run into a folder, or go on where it was interrupted; returns the final scores.

    save_every: seconds between checkpoints; trackers: who else is told the rows of history.csv; may_write: called before
    anything is written into the folder, and raises where somebody else has taken it over. A finished folder is
    returned as it is; a folder holding another run, or one in training by another process, is refused. SIGINT and SIGTERM
    save first, then raise `Interrupted`. Under torchrun every process calls this with the same arguments, and all return the
    scores; a batch that does not divide among them is refused.
    """
    folder = Path(folder)
    with distributed.together(device) as group:
        if not (folder / "config.json").exists():
            run.task.compositions("train")  # data that is not there is an error before it is a folder
        _check_group(run, folder, group)
        with _claimed(run, folder, group) as finished, _one_thread(group.device), _signals() as stop:
            if finished is not None:
                return finished
            resumed = (folder / RESUME).exists()
            with Following(trackers if group.first else (), run, folder, resumed) as following:
                loop = _Training(run, folder, group.device, progress or (lambda _: None), group, following, may_write)
                _advance_to_the_end(loop, stop, save_every)
                following.scores = scores = json.loads(group.from_first(lambda: json.dumps(loop.finish())))
            if stop:  # it came too late to stop this run, not too late to stop what the caller does next
                raise Interrupted(stop[0], loop.step, folder)
            return scores


def _advance_to_the_end(loop: _Training, stop: list[int], save_every: float) -> None:
    """All updates that are left; a signal that any process of the group got stops all of them at the same step."""
    steps, group = loop.run.steps, loop.group
    saved = time.monotonic()
    while loop.step < steps:
        loop.advance()
        signum = group.largest(stop[0] if stop else 0)
        if signum or loop.step == steps or time.monotonic() - saved > save_every:
            loop.save()
            saved = time.monotonic()
        if signum and loop.step < steps:
            group.largest(0)  # nobody leaves before the first process has saved
            raise Interrupted(signum, loop.step, loop.folder)


def _check_group(run: Run, folder: Path, group: Processes) -> None:
    """Raise unless the processes can share this run's batches."""
    if group.size == 1:
        return
    described = zlib.crc32(json.dumps([folder.name, describe(run)]).encode())
    group.require_same(described, f"the processes were given different runs; this one has {folder}. Name one run")
    distributed.check_divisible(run.batch_size, group.size)
    rng = run.task.rng(run.data_seed, "train", 0, run.data_device)
    targets = run.task.sample(run.batch_size, "train", rng).targets
    prediction = torch.randn(run.batch_size, run.task.seq, run.task.d_out, generator=rng, device=targets.device)
    distributed.check_mean(run.task.loss, prediction, targets, group.size)


@contextlib.contextmanager
def _claimed(run: Run, folder: Path, group: Processes) -> Iterator[dict[str, Any] | None]:
    """The folder, locked and described; yields the scores of a training that has already ended."""
    with contextlib.ExitStack() as held:

        def claim() -> str:
            held.enter_context(checkpoints.locked(folder))
            check_folder(run, folder)
            _sweep(folder)
            if (folder / "scores.json").exists():
                return json.dumps(checkpoints.read_json(folder / "scores.json"))
            if not (folder / "config.json").exists():
                checkpoints.write_json(folder / "config.json", {"format": 1, "run": describe(run)})
            return "null"

        yield json.loads(group.from_first(claim))


def _sweep(folder: Path) -> None:
    """Remove what a killed process left behind: half-written files, and the checkpoint of a run that had finished."""
    for torn in (*folder.glob(".*.tmp"), *folder.glob("steps/.*.tmp")):
        torn.unlink()
    if (folder / "scores.json").exists():
        (folder / RESUME).unlink(missing_ok=True)


def check_folder(run: Run, folder: Path) -> None:
    """Raise if the folder holds another run, or something that is no run."""
    config = folder / "config.json"
    if config.exists():
        described = checkpoints.read_json(config).get("run")
        try:
            same = construct(described, classes_of(run)) == run
        except ConfigError:
            same = False
        if not same:
            raise ConfigError(f"{folder} holds another run ({_difference(described, describe(run))}); choose another --out")
    elif folder.exists() and any(p.name != ".lock" and not p.name.endswith(".tmp") for p in folder.iterdir()):
        raise ConfigError(f"{folder} exists and holds no run; choose another --out")


def _difference(old: Any, new: Any, path: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(k for k in old if k not in new)]:
            if old.get(key) != new.get(key):
                return _difference(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    return f"{path or 'run'} is {old!r} there, {new!r} here"


class _Training:
    """The state of one training: model, optimizer, step and history."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        device: str,
        progress: Callable[[Progress], None],
        group: Processes | None = None,
        following: Following | None = None,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.run, self.folder, self.device, self.may_write = run, folder, device, may_write
        self.group = group or Alone(device)
        self.report = progress if self.group.first else lambda _: None
        self.following = following or Following((), run, folder, False)
        self.model = run.build().to(device)
        self.optimizer = run.optimizer.build(self.model)
        self.named = dict(self.model.named_parameters())
        # the same stream in every process: dropout here is one mask for the whole batch, so all slices get that one
        self.noise = torch.Generator(device=device)
        self.model.draw_from(self.noise)
        self.step, self.losses = 0, [0.0, 0]
        self.graphed: GraphedStep | None = None
        self.pending: list[Tensor] = []
        self.latest = math.nan
        self.history: list[dict[str, float]] = []
        self.environments = [self._environment()]
        if (folder / RESUME).exists():
            self._resume()
        elif 0 in run.keep:
            self._keep()
        self.group.require_same(
            self.step, f"the processes see different checkpoints; {folder} must lie on a file system that all of them share"
        )
        self.parallel = self.group.parallel(self.model, self._predict)

    def _environment(self) -> dict[str, Any]:
        size = self.group.size
        return environment(self.device) | ({"processes": size} if size > 1 else {})

    # ---- one update --------------------------------------------------------------------------------------------------
    def advance(self) -> None:
        run, task = self.run, self.run.task
        rng = task.rng(run.data_seed, "train", self.step, run.data_device)
        episodes = task.sample(run.batch_size, "train", rng).to(self.device)
        self._set_rate(run.optimizer.rate(self.step, run.steps))
        self.noise.manual_seed(stream(run.data_seed, "dropout", self.step))
        if episodes.tokens.is_cuda and self.group.size == 1:  # a captured step would have to send, too
            self._graphed_update(episodes)
        else:
            self._update(episodes)
        self.step += 1
        if self.step in run.keep:
            self._keep()
        if self.step in run.evaluated_steps:
            self._evaluate()
        if self.step % 20 == 0 or self.step == run.steps:
            scores = {k: self.history[-1][k] for k in SPLITS} if self.history else {}
            self.report(Progress(self.step, run.steps, self.latest, scores))

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _predict(self, tokens: Tensor) -> Tensor:
        return self.model.answer(tokens) if self.run.answers_only else self.model(tokens)

    def _update(self, episodes: Episodes) -> None:
        tokens, targets = self.group.part(episodes.tokens), self.group.part(episodes.targets)
        loss = self.run.task.loss(self.parallel(tokens), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.group.check_gradients(self.named)
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        value = self.group.mean(float(loss.detach()))
        if not math.isfinite(value) or not math.isfinite(float(norm)):
            self._diverged(value)  # before clipping, which would spread one bad gradient to all
        if self.run.optimizer.clip is not None:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.run.optimizer.clip, norm)
        self.optimizer.step()
        self.latest, self.losses = value, [self.losses[0] + value, self.losses[1] + 1]

    def _graphed_update(self, episodes: Episodes) -> None:
        """The same update on a GPU: replayed in one call, and its numbers read only every READ_EVERY steps."""
        if self.graphed is None:
            noise = self.noise if getattr(self.run.architecture, "attention_dropout", 0) else None
            parts = (self._predict, self.run.task.loss, self.model, self.optimizer, episodes.tokens, episodes.targets)
            self.graphed = GraphedStep(*parts, clip=self.run.optimizer.clip, noise=noise)
            self.noise.manual_seed(stream(self.run.data_seed, "dropout", self.step))  # warming up drew from it
        self.pending.append(torch.stack(self.graphed(episodes.tokens, episodes.targets)))
        if len(self.pending) == READ_EVERY:
            self._read()

    def _read(self) -> None:
        """Fetch the losses of the updates that a GPU has been doing."""
        if not self.pending:
            return
        numbers, self.pending = torch.stack(self.pending).cpu(), []
        if not bool(torch.isfinite(numbers).all()):
            self._diverged(float(numbers[-1, 0]), keep=False)
        self.latest = float(numbers[-1, 0])
        self.losses = [self.losses[0] + float(numbers[:, 0].double().sum()), self.losses[1] + len(numbers)]

    def _diverged(self, loss: float, keep: bool = True) -> None:
        bad = [n for n, p in self.named.items() if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
        where = f"first non-finite gradient in {bad[0]}" if bad else "gradients are finite"
        if keep:
            self.save()  # the weights before the update that failed; where these are gone, the last checkpoint stays
            self.group.largest(0)  # nobody leaves before the first process has saved
        raise Diverged(
            f"training diverged in the update after step {self.step}: loss {loss}, {where}. The last good checkpoint is kept "
            f"in {self.folder}; lower the learning rate or the clip (optimizer=AdamW(lr=…, clip=…)) and choose another --out"
        )

    def _evaluate(self) -> None:
        run = self.run
        self._read()
        losses, self.losses = self.losses, [0.0, 0]
        if not self.group.first:
            return
        self.model.eval()
        row: dict[str, float] = {"step": self.step, "loss": losses[0] / max(1, losses[1])}
        for split in SPLITS:
            row[split] = evaluate(
                self.model, run.task, split, run.evaluation_episodes, run.data_seed, self.device, run.batch_size
            ).score
        seen = run.task.sample(run.batch_size, "test", run.task.rng(run.data_seed, "test", 0)).to(self.device)
        row |= run.architecture.diagnose(self.model, seen.tokens)
        self.model.train()
        self.history.append(row)

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def _keep(self) -> None:
        self._read()
        if not self.group.first:
            return
        self.may_write()
        checkpoints.write_tensors(kept_weights(self.folder, self.step), self.model.state_dict(), {"step": self.step})

    def save(self) -> None:
        self._read()
        if not self.group.first:
            return
        self.may_write()
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.named.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{key}.{name}"] = value
        state = {
            "step": self.step,
            "losses": self.losses,
            "history": self.history,
            "environments": self.environments,
        }
        checkpoints.write_tensors(self.folder / RESUME, tensors, state)
        self._write_history()
        self.following.log(self.history)

    def _resume(self) -> None:
        tensors, state = checkpoints.read_tensors(self.folder / RESUME)
        weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        self.model.load_state_dict(weights)
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, slot, name = key.split(".", 2)
                # the step counter of the fused optimizer lives on the parameter's device as well
                self.optimizer.state[self.named[name]][slot] = value.to(self.device)
        self.step, self.losses, self.history = state["step"], state["losses"], state["history"]
        self.environments = state["environments"]
        note = f"resumed at step {self.step}"
        before, here = {"processes": 1, **self.environments[-1]}, {"processes": 1, **self._environment()}
        if before != here:
            changed = {k: v for k, v in here.items() if v != before.get(k)}
            self.environments.append(self._environment())
            note += f" in another environment ({changed}): the weights will not equal an uninterrupted run's bit for bit"
        self.report(Progress(self.step, self.run.steps, float("nan"), {}, note))

    def _write_history(self) -> None:
        first = ["step", "loss", *SPLITS]
        more = [name for row in self.history[:1] for name in row if name not in first]
        table = pd.DataFrame(self.history, columns=[*first, *more])
        checkpoints.write_atomically(self.folder / "history.csv", table.to_csv(index=False).encode())

    # ---- the end -----------------------------------------------------------------------------------------------------
    def finish(self) -> dict[str, Any]:
        run = self.run
        self.model.eval()
        if not self.history:
            self._evaluate()
        scores: dict[str, Any] = {"step": self.step, "score": run.task.score_name}
        for split in SPLITS:
            result = evaluate(
                self.model, run.task, split, 4 * run.evaluation_episodes, f"final/{run.data_seed}", self.device, 256
            )
            scores[split] = {"score": result.score, "se": result.se, "episodes": 4 * run.evaluation_episodes}
        scores["parameters"] = count_parameters(self.model)
        scores["environments"] = self.environments
        self.may_write()
        self._write_history()
        checkpoints.write_tensors(self.folder / "weights.safetensors", self.model.state_dict(), {"step": self.step})
        checkpoints.write_atomically(self.folder / "README.md", card(run, self.folder.name, scores).encode())
        checkpoints.write_json(self.folder / "scores.json", scores)  # last: its presence means "finished"
        self.following.log(self.history)
        (self.folder / RESUME).unlink(missing_ok=True)
        return scores


def kept_weights(folder: Path, step: int) -> Path:
    """Where the weights of a kept step lie."""
    return folder / "steps" / f"{step}.safetensors"


def card(run: Run, name: str, scores: dict[str, Any]) -> str:
    """The model card: what was trained on what, the split, the scores with their standard error over compositions."""
    split = run.task.describe_split()
    trained = f"{scores['step']:,} steps of {run.batch_size} episodes" if run.steps else "not trained here"
    environments = "; ".join(
        f"torch {e['torch']}, {e['device']} ({e['hardware']}), {e['threads']} thread(s)"
        + (f", {e['processes']} processes" if "processes" in e else "")
        for e in scores["environments"]
    )
    lines = [
        f"# {name}",
        "",
        f"{type(run.architecture).__name__} ({scores['parameters']:,} parameters) on {type(run.task).__name__}, {trained}.",
        "",
        f"| split | {scores['score']} | ± s.e. over compositions | episodes |",
        "|---|---|---|---|",
        *(f"| {s} | {scores[s]['score']:.4f} | {scores[s]['se']:.4f} | {scores[s]['episodes']:,} |" for s in SPLITS),
        "",
        "train: compositions seen; test: the same, fresh episodes; ood: held-out compositions.",
        "",
        "## Split",
        "",
        *(f"- {key}: {value}" for key, value in split.items()),
        "",
        "## Made with",
        "",
        f"- {environments}",
        f"- init seed {run.init_seed}, data seed {run.data_seed}; every setting is in config.json",
        "",
    ]
    return "\n".join(lines)


@contextlib.contextmanager
def _one_thread(device: str) -> Iterator[None]:
    before = torch.get_num_threads()
    if not str(device).startswith("cuda"):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM append to instead of tearing the process down; inert outside the main thread."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {s: signal.signal(s, lambda signum, _: caught.append(signum)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
