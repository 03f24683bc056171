"""The state of one training: model, optimizer, step and history; one update, a checkpoint, the end."""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from compolens import __version__
from compolens.foundation import cells, digests, files
from compolens.foundation.configs import ConfigError
from compolens.models.base import count_parameters
from compolens.models.operands import full
from compolens.tasks.episodes import Episodes, stream
from compolens.training.cuda_graph import GraphedStep
from compolens.training.distributed import Alone, Processes
from compolens.training.folders import DIVERGED, RESUME, card, kept_weights
from compolens.training.machine import has_bfloat16_products, processor, products
from compolens.training.runs import Run
from compolens.training.scores import different, evaluate, stored_of
from compolens.training.tracking import Following

READ_EVERY = 100
"""Updates that a GPU does before its losses are read: reading waits for it."""


class Diverged(ConfigError):
    """Training produced a number that is not finite; the last good checkpoint was kept."""


class Progress(NamedTuple):
    """What `train` reports.

    Args:
        step: updates done.
        steps: updates of the whole training.
        loss: the latest training loss.
        scores: split -> the latest score.
        note: now and then a sentence.
    """

    step: int
    steps: int
    loss: float
    scores: dict[str, float]
    note: str = ""


def environment(device: str) -> dict[str, Any]:
    """What bit-equality depends on besides the run, for `device`: versions, hardware, threads."""
    kind = torch.cuda.get_device_name(device) if str(device).startswith("cuda") else platform.machine()
    return {
        "compolens": __version__,
        "torch": torch.__version__,
        "device": str(device).split(":")[0],
        "hardware": kind,
        "processor": processor(str(device)),
        "threads": torch.get_num_threads(),
    }


class Training:
    """The state of one training: model, optimizer, step and history.

    Args:
        run: what is trained, on what.
        folder: where checkpoints and results go.
        device: "cpu" or "cuda".
        progress: called with where the training is.
        group: the processes that train together (None: this one alone).
        following: the trackers (None: none).
        may_write: called before anything is written into the folder; raises where somebody else has taken it over.
    """

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
        if run.optimizer.decay_window is not None and str(device).startswith("cuda"):
            raise ConfigError("decay_window works on the CPU alone: a captured CUDA step keeps the decay it was captured with")
        if run.auxiliary is not None and (str(device).startswith("cuda") or self.group.size > 1):
            raise ConfigError("an auxiliary term works on the CPU and in one process alone: it looks at a whole batch at once")
        self.watch = run.auxiliary.watch(self.model, run.task) if run.auxiliary is not None else None
        self.graphed: GraphedStep | None = None
        self.pending: list[Tensor] = []
        self.latest = math.nan
        self.history: list[dict[str, float]] = []
        self.environments = [self._environment()]
        if (folder / RESUME).exists():
            self._resume()
        elif 0 in run.keep:
            self._keep()
        with contextlib.suppress(OSError):  # what cannot be written to is told by what writes
            (folder / DIVERGED).unlink(missing_ok=True)
        self.group.require_same(
            self.step, f"the processes see different checkpoints; {folder} must lie on a file system that all of them share"
        )
        self.parallel = self.group.parallel(self.model, self._predict)
        if run.precision == "bfloat16" and not has_bfloat16_products(device):
            note = f"{processor(device)} has no products in bfloat16: this will be slower than precision='float32'"
            self.report(Progress(self.step, run.steps, math.nan, {}, note))

    def _environment(self) -> dict[str, Any]:
        size = self.group.size
        return environment(self.device) | ({"processes": size} if size > 1 else {})

    # ---- one update --------------------------------------------------------------------------------------------------
    def advance(self) -> None:
        run, task = self.run, self.run.task
        rng = task.rng(run.data_seed, "train", self.step, run.data_device)
        episodes = task.sample(run.batch_size, "train", rng).to(self.device)
        self._set_rate(run.optimizer.rate(self.step, run.steps))
        if run.optimizer.decay_window is not None:
            self._set_decay(run.optimizer.decay_at(self.step, run.steps))
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
            scores = {k: self.history[-1][k] for k in task.splits} if self.history else {}
            self.report(Progress(self.step, run.steps, self.latest, scores))

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _set_decay(self, decay: float) -> None:
        """Weight decay of those weights that decay at all: the first group of the optimizer."""
        decayed = self.optimizer.param_groups[0]
        decayed["weight_decay"] = decay

    def _predict(self, tokens: Tensor) -> Tensor:
        with products(self.run.precision, self.device):
            prediction = self.model.answer(tokens) if self.run.answers_only else self.model(tokens)
        return full(prediction)

    def _update(self, episodes: Episodes) -> None:
        tokens, targets = self.group.part(episodes.tokens), self.group.part(episodes.targets)
        run = self.run
        loss = run.task.loss(self.parallel(tokens), targets)
        whole = loss
        if self.watch is not None and run.auxiliary is not None:
            whole = loss + run.auxiliary.strength * self.watch.term(episodes)
        self.optimizer.zero_grad(set_to_none=True)
        whole.backward()
        self.group.check_gradients(self.named)
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        value = self.group.mean(float(loss.detach()))
        if not math.isfinite(value) or not math.isfinite(float(norm)):
            self._diverged(value)  # before clipping, which would spread one bad gradient to all
        if run.optimizer.clip is not None:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), run.optimizer.clip, norm)
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
        told = f"diverged in the update after step {self.step}: loss {loss}, {where}"
        if self.group.first:
            files.write_atomically(self.folder / DIVERGED, told.encode())
        raise Diverged(
            f"training {told}. The last good checkpoint is kept "
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
        for split in run.task.splits:
            row[split] = evaluate(
                self.model, run.task, split, run.evaluation_episodes, run.data_seed, self.device, run.batch_size
            ).score
        seen = run.task.sample(run.batch_size, "test", run.task.rng(run.data_seed, "test", 0)).to(self.device)
        row |= run.architecture.statistics(self.model, seen.tokens)
        if self.watch is not None:
            with torch.no_grad():
                self.model(seen.tokens)
                row["auxiliary"] = float(self.watch.term(seen))
        self.model.train()
        self.history.append(row)

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def _keep(self) -> None:
        self._read()
        if not self.group.first:
            return
        self.may_write()
        files.write_tensors(kept_weights(self.folder, self.step), self.model.state_dict(), {"step": self.step})

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
        files.write_tensors(self.folder / RESUME, tensors, state)
        self._write_history()
        self.following.log(self.history)

    def _resume(self) -> None:
        tensors, state = files.read_tensors(self.folder / RESUME)
        weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        try:
            self.model.load_state_dict(weights)
            for key, value in tensors.items():
                if key.startswith("optimizer."):
                    _, slot, name = key.split(".", 2)
                    # the step counter of the fused optimizer lives on the parameter's device as well
                    self.optimizer.state[self.named[name]][slot] = value.to(self.device)
            self.step, self.losses, self.history = state["step"], state["losses"], state["history"]
            self.environments = state["environments"]
        except (KeyError, RuntimeError) as error:  # a checkpoint from before digests of everything in it, damaged since
            reason = " ".join(str(error).split())[:200]
            raise files.DamagedFile(
                f"{self.folder / RESUME} is no checkpoint of this run ({reason}); restore it, or delete it and train again"
            ) from error
        note = f"resumed at step {self.step}"
        here = {"processes": 1, **self._environment()}
        before = here | {"processes": 1, **self.environments[-1]}  # earlier versions wrote down less
        if before != here:
            changed = {k: v for k, v in here.items() if v != before[k]}
            self.environments.append(self._environment())
            note += f" in another environment ({changed}): the weights will not equal an uninterrupted run's bit for bit"
        self.report(Progress(self.step, self.run.steps, float("nan"), {}, note))

    def _write_history(self) -> None:
        first = ["step", "loss", *self.run.task.splits]
        more = [name for row in self.history[:1] for name in row if name not in first]
        table = pd.DataFrame(self.history, columns=[*first, *more])
        files.write_atomically(self.folder / "history.csv", cells.escaped(table).to_csv(index=False).encode())

    # ---- the end -----------------------------------------------------------------------------------------------------
    def _final(self, split: str, precision: str = "float32") -> dict[str, float]:
        """The score on a split, with its standard error over compositions, with products in this precision."""
        run, n = self.run, 4 * self.run.evaluation_episodes
        with products(precision, self.device):
            result = evaluate(self.model, run.task, split, n, f"final/{run.data_seed}", self.device, 256)
        return {"score": result.score, "se": result.se, "episodes": different(run.task, split, n)}

    def finish(self) -> dict[str, Any]:
        run = self.run
        self.model.eval()
        if not self.history:
            self._evaluate()
        scores: dict[str, Any] = {"step": self.step, "score": run.task.score_name}
        for split in run.task.splits:
            scores[split] = self._final(split)
        if run.precision != "float32":
            scores["precision"] = run.precision
            scores["mixed precision"] = {split: self._final(split, run.precision) for split in run.task.splits}
        scores |= stored_of(run.task)
        scores["parameters"] = count_parameters(self.model)
        scores["environments"] = self.environments
        self.may_write()
        self._write_history()
        files.write_tensors(self.folder / "weights.safetensors", self.model.state_dict(), {"step": self.step})
        files.write_atomically(self.folder / "README.md", card(run, self.folder.name, scores).encode())
        digests.finish(self.folder, scores)  # last: the presence of scores.json means "finished"
        self.following.log(self.history)
        (self.folder / RESUME).unlink(missing_ok=True)
        return scores
