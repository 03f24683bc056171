"""One training in several processes: who they are, which episodes each takes, and what they have to agree on.

Started by ``torchrun``, every process draws the same global batch and answers its own slice; DistributedDataParallel
(Li et al. 2020, 2006.15704) averages the gradients. For a loss that is a mean over episodes, and slices of equal size, that
average is the gradient of the global batch, so losses and weights are those of one process up to rounding. Without torchrun
there is one process, `Alone`, and nothing is sent, split or rounded.
"""

from __future__ import annotations

import contextlib
import gc
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from compolens.foundation.configs import ConfigError, require

PATIENCE = timedelta(hours=2)
"""How long processes wait for the first one, which evaluates and saves; one that dies is noticed at once."""

ARRIVAL = timedelta(minutes=10)
"""How long processes wait for all of them to come."""


class PeerLost(ConfigError):
    """Another process of the group ended before its time; its own message says why."""


class Processes(ABC):
    """The processes that train one run: this one is number `rank` of `size`; only the `first` writes, evaluates, prints."""

    rank: int
    size: int
    device: str

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    @abstractmethod
    def part(self, batch: Tensor) -> Tensor:
        """This process's slice (batch / size, ...) of the global `batch` (batch, ...)."""

    @abstractmethod
    def parallel(self, model: nn.Module, predict: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A forward pass whose backward leaves the global batch's gradient in the parameters.

        Args:
            model: the model.
            predict: answers with `model`.

        Returns:
            `predict`, wrapped.
        """

    @abstractmethod
    def check_gradients(self, named: dict[str, nn.Parameter]) -> None:
        """Raise, after backward, if a parameter took no part in the loss and its gradient was therefore not averaged.

        Args:
            named: name -> parameter.

        Raises:
            ConfigError: such a parameter, by name.
        """

    @abstractmethod
    def mean(self, value: float) -> float:
        """The mean of `value` over processes; every process gets it."""

    @abstractmethod
    def largest(self, value: int) -> int:
        """The largest `value` of the processes' whole numbers; every process gets it. Also where they wait for one another."""

    @abstractmethod
    def from_first(self, act: Callable[[], str]) -> str:
        """What `act` says, called by the first process alone; where it fails, every process raises with its message."""

    def require_same(self, value: int, message: str) -> None:
        """Require, in every process, that they all have the same number.

        Args:
            value: this process's number.
            message: what the error says.

        Raises:
            ConfigError: they have not.
        """
        require(self.largest(value) == -self.largest(-value), message)


class Alone(Processes):
    """One process on `device`: all of the batch, and nobody to ask."""

    rank, size = 0, 1

    def __init__(self, device: str) -> None:
        self.device = device

    def part(self, batch: Tensor) -> Tensor:
        return batch

    def parallel(self, model: nn.Module, predict: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return predict

    def check_gradients(self, named: dict[str, nn.Parameter]) -> None:
        pass

    def mean(self, value: float) -> float:
        return value

    def largest(self, value: int) -> int:
        return value

    def from_first(self, act: Callable[[], str]) -> str:
        return act()


class Group(Processes):
    """The processes of torch's default process group, each with its slice, this one on `device`."""

    def __init__(self, device: str) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device

    def part(self, batch: Tensor) -> Tensor:
        return batch.chunk(self.size)[self.rank]

    def parallel(self, model: nn.Module, predict: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        for module in model.modules():
            if callable(observe := getattr(module, "observe", None)):  # what a module learns from a batch is the global one's
                module.observe = self._observing(observe)  # type: ignore[assignment]
        own = [torch.device(self.device)] if self.device.startswith("cuda") else None
        return nn.parallel.DistributedDataParallel(_Predicting(model, predict), device_ids=own)

    def _observing(self, observe: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def everyone(values: Tensor) -> None:
            parts = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(self.size)]
            dist.all_gather(parts, values.contiguous())
            observe(torch.cat(parts))

        return everyone

    def check_gradients(self, named: dict[str, nn.Parameter]) -> None:
        unused = [name for name, parameter in named.items() if parameter.requires_grad and parameter.grad is None]
        require(
            not unused,
            f"parameter {', '.join(unused[:3])} takes no part in the loss, which training in several processes cannot do; "
            "remove it from the architecture, or train without torchrun",
        )

    def mean(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total) / self.size

    def largest(self, value: int) -> int:
        most = torch.tensor(value, device=self.device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most)

    def from_first(self, act: Callable[[], str]) -> str:
        said, failure = "", None
        if self.first:
            try:
                said = "+" + act()
            except (ConfigError, OSError) as error:
                said, failure = "-" + str(error), error
        said = self._tell(said)
        if failure is not None:
            raise failure
        require(said.startswith("+"), said[1:])
        return said[1:]

    def _tell(self, text: str) -> str:
        """The first process's text, in every process; as plain bytes, since torch's own way unpickles."""
        content = text.encode()
        length = self.largest(len(content))
        sent = torch.tensor(list(content) if self.first else [0] * length, dtype=torch.uint8, device=self.device)
        dist.broadcast(sent, src=0)
        return bytes(sent.tolist()).decode()


class _Predicting(nn.Module):
    """A module whose forward is any way of answering: DistributedDataParallel knows only forward, and `model` stays bare."""

    def __init__(self, model: nn.Module, predict: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.predict = model, predict

    def forward(self, tokens: Tensor) -> Tensor:
        return self.predict(tokens)


def check_divisible(batch_size: int, size: int) -> None:
    """Require that every process gets equally many episodes of a batch.

    Args:
        batch_size: episodes of a global batch.
        size: processes.

    Raises:
        ConfigError: they do not; it says which batch sizes and process counts would do.
    """
    below = batch_size - batch_size % size
    near = " or ".join(str(n) for n in (below, below + size) if n)
    counts = ", ".join(str(n) for n in range(1, batch_size + 1) if batch_size % n == 0)
    require(
        batch_size % size == 0,
        f"a batch of {batch_size} episodes does not divide among {size} processes; choose batch_size={near}, "
        f"or --nproc-per-node (times --nnodes) among {counts}",
    )


def check_mean(loss: Callable[[Tensor, Tensor], Tensor], prediction: Tensor, targets: Tensor, size: int) -> None:
    """Require that the loss of a batch is the mean of its slices' losses, since gradients are averaged over processes.

    Args:
        loss: (prediction, targets) -> scalar.
        prediction: (batch, seq, d_out), of any values, to try the loss on.
        targets: (batch, seq, ...).
        size: processes.

    Raises:
        ConfigError: it differs from the mean by more than rounding, 1e-4 of it.
    """
    whole = float(loss(prediction, targets))
    mean = sum(float(loss(*part)) for part in zip(prediction.chunk(size), targets.chunk(size), strict=True)) / size
    require(
        abs(whole - mean) <= 1e-4 * abs(whole),
        f"the loss of a batch, {whole:.6g}, is not the mean of the losses of its {size} slices, {mean:.6g}, so it cannot be "
        "trained in several processes; make the loss a mean over episodes, or train without torchrun",
    )


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    require(text.isdecimal(), f"the environment variable {name} must be a whole number, as torchrun sets it; got {text!r}")
    return int(text)


def launched() -> tuple[int, int]:
    """(rank, size) of this process as torchrun tells it in the environment; (0, 1) without torchrun."""
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return 0, 1
    rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    require(rank < size, f"RANK={rank} must be below WORLD_SIZE={size}; start the processes with torchrun")
    return rank, size


@contextlib.contextmanager
def together(device: str) -> Iterator[Processes]:
    """The processes that train together: those that torchrun started, those of a group that exists, or this one alone.

    Args:
        device: "cpu" (gloo), or "cuda" (nccl; every process takes the GPU of its LOCAL_RANK).

    Returns:
        A context; a group made here is closed at its end.
    """
    exists = dist.is_available() and dist.is_initialized()
    size = dist.get_world_size() if exists else launched()[1]
    if size == 1:
        yield Alone(device)
        return
    own = _own_device(device)
    if not exists:
        _join("nccl" if own.startswith("cuda") else "gloo")
    try:
        with _noticing_lost_peers():
            yield Group(own)
    finally:
        if not exists:
            last: Any = dist.group.WORLD
            dist.destroy_process_group()
            gc.collect()  # its threads end with the last that knows the group; if that is at exit, they can abort the process
            del last  # what else knew it would hold Python's lock while it waits for these threads, and they may need it


def _own_device(device: str) -> str:
    if not device.startswith("cuda"):
        return device
    require(device == "cuda", f"under torchrun every process takes a GPU of its own: say cuda instead of {device}")
    number, count = _number("LOCAL_RANK", 0), torch.cuda.device_count()
    require(number < count, f"process {number} of this machine finds {count} GPU(s); lower --nproc-per-node to {count}")
    torch.cuda.set_device(number)
    return f"cuda:{number}"


def _join(backend: str) -> None:
    try:
        store, rank, size = _meeting_place()
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        dist.barrier()  # who leaves before the others have come leaves them waiting
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"the processes could not find one another ({reason}); start them with "
            "torchrun --nproc-per-node N -m compolens.cli train FILE NAME, or unset RANK and WORLD_SIZE"
        ) from error


def _meeting_place() -> tuple[dist.Store, int, int]:
    """torchrun's store, this process's rank and how many there are.

    The store outlives a group: a new one that reads the addresses of the old one finds nobody there. On one machine every
    group therefore gets keys of its own; on several, whose counts of restarts may differ, torch's are used as they are.
    """
    store, rank, size = next(iter(rendezvous("env://", timeout=ARRIVAL)))
    if _number("LOCAL_WORLD_SIZE", 0) == size:
        attempt = f"compolens/{_number('TORCHELASTIC_RESTART_COUNT', 0)}"
        earlier = (store.add(f"{attempt}/joined", 1) - 1) // size
        store = dist.PrefixStore(f"{attempt}/{earlier}", store)
    return store, rank, size


@contextlib.contextmanager
def _noticing_lost_peers() -> Iterator[None]:
    """Turn what gloo and nccl say when a process is gone into one line that tells what to do."""
    try:
        yield
    except RuntimeError as error:
        if not _is_about_peers(error):
            raise
        raise PeerLost(
            "another process of this training has ended, so this one stops as well; the message of the other says why. "
            "The same command goes on from the last checkpoint"
        ) from error


def _is_about_peers(error: Any) -> bool:
    return isinstance(error, dist.DistError) or any(name in str(error).lower() for name in ("gloo", "nccl"))
