"""What a task family draws: episodes, what is known of them beside the tokens, and the random streams that they come from."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

from compolens.foundation.configs import require

SPLITS = ("train", "test", "ood")
"""train: compositions seen, for fitting; test: the same compositions, fresh randomness; ood: held-out compositions."""
VALIDATION = "validation"
"""Compositions on which settings are chosen: neither trained on nor ever reported. Only families have them whose field
`validation` says how many."""


def answered(logits: Tensor) -> Tensor:
    """The class of highest logit; -1, which is wrong whatever is asked, where one of the logits is no number.

    Args:
        logits: (..., class).

    Returns:
        (...), whole numbers.
    """
    return torch.where(logits.isnan().any(-1), -1, logits.argmax(-1))


def stream(seed: int | str, purpose: str, step: int) -> int:
    """The seed of an independent random stream, a pure function of its arguments.

    Args:
        seed: what tells experiments apart, a number or words.
        purpose: what tells streams of one seed apart, such as a split.
        step: a training step or batch number.

    Returns:
        At least 0 and below 2^63.
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def check_drawing(n: int, rng: torch.Generator) -> None:
    """Check what a family is asked for.

    Args:
        n: how many episodes.
        rng: where their randomness comes from.

    Raises:
        ConfigError: `n` is no whole number of at least 1, or `rng` no generator, such as `TaskFamily.rng` gives.
    """
    require(isinstance(n, int) and n >= 1, f"need at least one episode, got n={n}")
    require(isinstance(rng, torch.Generator), f"rng must be a torch.Generator, such as task.rng(0, 'ood'); got {rng!r:.80}")


def one_of(allowed: Tensor, rng: torch.Generator) -> Tensor:
    """One at random of those allowed, in every row.

    Args:
        allowed: (batch, n) bool; a row without True stays without.
        rng: the generator; the result is where `allowed` is.

    Returns:
        (batch, n) bool, at most one True a row.
    """
    luck = torch.rand(allowed.shape, generator=rng, device=rng.device).to(allowed.device)
    first = torch.where(allowed, luck, -1.0).argmax(1, keepdim=True)
    return torch.zeros_like(allowed).scatter(1, first, True) & allowed


class Episodes(NamedTuple):
    """A batch of episodes: what a model sees, what it should answer, and the latent code that caused both.

    Args:
        tokens: (batch, seq, d_in) floats, or (batch, seq) token ids; the answers asked for are withheld.
        targets: (batch, seq, ...), what is right at every position; loss and score read the answer positions.
        codes: name -> (batch, ...), the true latent codes in canonical form.
        composition: (batch,) ints, the unit of held-out claims.
        inputs: what was drawn independently of the code, a row per episode, so that `TaskFamily.render` can show the same
            inputs under another code.
        nuisances: name -> (batch, ...), what a readout might pick up instead of the code.
    """

    tokens: Tensor
    targets: Tensor
    codes: dict[str, Tensor]
    composition: Tensor
    inputs: Tensor
    nuisances: dict[str, Tensor]

    def to(self, device: torch.device | str) -> Episodes:
        """The same episodes on `device`."""
        return Episodes(
            self.tokens.to(device),
            self.targets.to(device),
            {name: code.to(device) for name, code in self.codes.items()},
            self.composition.to(device),
            self.inputs.to(device),
            {name: value.to(device) for name, value in self.nuisances.items()},
        )

    def take(self, index: Tensor) -> Episodes:
        """The episodes at `index`: positions in the batch (n,), or a (batch,) bool mask."""
        return Episodes(
            self.tokens[index],
            self.targets[index],
            {name: code[index] for name, code in self.codes.items()},
            self.composition[index],
            self.inputs[index],
            {name: value[index] for name, value in self.nuisances.items()},
        )


class Sheet(NamedTuple):
    """A small table that shows a part of an episode to a reader.

    Args:
        title: what it shows.
        columns: their names; empty where the table needs none.
        rows: cells as text.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Labelled(NamedTuple):
    """Where labelled items stand in the episodes of a family that shows items and their labels in turn.

    Args:
        items: (batch, n + 1, width), the question's last; how alike two are is their cosine.
        item_at: (n + 1,), the items' positions.
        label_at: (n,), the positions of the labels shown.
    """

    items: Tensor
    item_at: Tensor
    label_at: Tensor


class Readouts(NamedTuple):
    """What readouts may be fitted to where an answer is given, for categorical codes.

    "answer" counts the positions of `TaskFamily.answers`.

    Args:
        pairs: capture name -> (batch, answer, n, 2), the n (query, key) pairs whose attention code is read.
        labels: name -> (batch, answer) class numbers.
        classes: name -> what the classes are called.
        confounds: name -> (batch, answer) floats that a code may reflect instead.
        inputs: name -> (batch, answer, features), what a readout of the raw input is given.
    """

    pairs: dict[str, Tensor]
    labels: dict[str, Tensor]
    classes: dict[str, tuple[str, ...]]
    confounds: dict[str, Tensor]
    inputs: dict[str, Tensor]
