"""RAVEN-10000, read from disk: the missing panel of a Raven matrix, regressed as an image (data: 1903.02741; use: 2511.20194).

A 3 x 3 grid of images. In every row, rules say how layout (number or position of the shapes), type, size and color go on from
panel to panel, separately for each of one or two components. The last panel is asked for, pixel by pixel, without candidates:

    panel 0 [patches]   panel 1 [patches]   panel 2 [patches]      row 0 \\ examples
    panel 3 [patches]   panel 4 [patches]   panel 5 [patches]      row 1 /
    panel 6 [patches]   panel 7 [patches]   panel 8 [0 0 … 0]      row 2   the question

    token P² * panel + patch: the pixels of one of P x P equal patches, in [0, 1]; those of panel 8 are zero and asked for

The score is that of 2511.20194: the share of panels with PSNR = 10 log10(1/MSE) above 40 dB, that is MSE < 1e-4. How that
paper turns images into tokens, at which resolution, and which configurations it reads is not known; all three are ours here.

A composition is a configuration with the rules of all its components, e.g. "L-R CPAD+CCPD". Some are held out:

    train   files of the public train set, of training compositions
    test    files of the public val and test sets, of training compositions (nothing here is chosen on val)
    ood     all files of held-out compositions, none of which is trained on, whatever their public set

Every file is one episode; batches draw files uniformly, with replacement. The ceiling is below 1 and not known: the generator
redraws positions where a rule is about number, and turns shapes whose angle an earlier shape need not show. What follows from
its rules for sure is the stratum "determined".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from compolens.foundation.configs import frozen, nearest, require, require_positive
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import SPLITS, Episodes, check_drawing
from compolens.tasks.raven import split as raven_split
from compolens.tasks.raven.files import ABSENT, CONFIGURATIONS, LAYOUT_RULES, PIXELS, RULES, Puzzles, read_puzzles

DECIBELS = 40
"""A panel counts as right above this PSNR (2511.20194)."""
KEEP_SHAPES = ("constant", "progression of position", "distribute three of position")
"""Layout rules under which the panels of a row show the same shapes, moved if at all by the rule."""


@dataclass(frozen=True)
class Raven(TaskFamily):
    """The family; the module says what an episode looks like.

    fraction_held_out: of each configuration's compositions, drawn with split_seed; those without both a train file and a val
    or test file, which could not be trained and tested on, are held out first. held_out: names of compositions instead; of the
    others, those that could not be trained and tested on are left out. allow_unseen_rules: whether a held-out composition may
    have a rule that no training composition of its configuration has in the same component on the same attribute.

    Args:
        data: the folder that holds RAVEN-10000, or another set in its layout, a folder per configuration. It is read when an
            episode or composition is first asked for. It stands in config.json; `--data DIR` on the command line replaces it,
            and equal descriptions draw equal episodes only from equal files.
        configurations: which of its folders, in the order of `CONFIGURATIONS`.
        size: panels are averaged down to size x size pixels; a divisor of 160.
        patches: P, so that a panel is P x P tokens; a divisor of size.
        fraction_held_out: of each configuration's compositions, drawn with `split_seed`; those without both a train file and a
            val or test file, which could not be trained and tested on, are held out first.
        held_out: names of held-out compositions instead; of the others, those that could not be trained and tested on are left
            out.
        allow_unseen_rules: whether a held-out composition may have a rule that no training composition of its configuration
            has in the same component on the same attribute.
        split_seed: draws which compositions are held out.
    """

    data: str = ""
    configurations: tuple[str, ...] = tuple(CONFIGURATIONS)
    size: int = 20
    patches: int = 2
    fraction_held_out: float = 0.25
    held_out: tuple[str, ...] | None = None
    allow_unseen_rules: bool = False
    split_seed: int = 0

    missing: ClassVar[dict[str, str]] = {
        "render": "its images come from files, which show each puzzle under its own rules alone",
        "attention_code": "a rule acts on shapes, which no one pair of patches stands for",
        "latent_geometry": "a rule acts on shapes, which no one pair of patches stands for",
        "patching": "it needs the same inputs under two codes, and its images come from files",
    }
    code_kinds: ClassVar[dict[str, str]] = {"configuration": "categorical", "rules": "categorical"}
    score_name: ClassVar[str] = "panels above 40 dB"
    ceiling: ClassVar[str] = "not known"

    def __post_init__(self) -> None:
        require(isinstance(self.data, str | os.PathLike), f"Raven: data must be the path of a folder, got {self.data!r}")
        object.__setattr__(self, "data", os.fspath(self.data))
        super().__post_init__()
        object.__setattr__(self, "configurations", frozen(self.configurations))
        object.__setattr__(self, "held_out", frozen(self.held_out))
        require_positive(self, "size", "patches")
        require(
            PIXELS % self.size == 0, f"Raven: size must divide {PIXELS}, so that whole pixels are averaged, got {self.size}"
        )
        require(self.size % self.patches == 0, f"Raven: patches must divide size={self.size}, got {self.patches}")
        for name in self.configurations:
            require(name in CONFIGURATIONS, f"no configuration {name!r}; {nearest(str(name), CONFIGURATIONS)}")
        ordered = tuple(name for name in CONFIGURATIONS if name in self.configurations)
        require(
            len(ordered) > 0 and self.configurations == ordered,
            f"configurations must be listed once each and in their own order, got {list(self.configurations)}; "
            f"write {list(ordered or CONFIGURATIONS)}",
        )
        fraction = self.fraction_held_out
        require(0 < fraction < 1, f"fraction_held_out must lie between 0 and 1, got {fraction}")
        names = self.held_out
        require(
            names is None or (isinstance(names, tuple) and len(names) > 0 and all(isinstance(name, str) for name in names)),
            f"held_out must list names of compositions such as 'Center CPAD', got {names!r}",
        )

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        """Pixels of a patch."""
        return (self.size // self.patches) ** 2

    @property
    def d_out(self) -> int:
        return self.d_in

    @property
    def seq(self) -> int:
        return 9 * self.patches**2

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(8 * self.patches**2, self.seq))

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The rows of the grid, the one with the question last; equal positions in them show equal parts of a panel."""
        length = 3 * self.patches**2
        return tuple(tuple(range(row * length, (row + 1) * length)) for row in range(3))

    # ---- the split ---------------------------------------------------------------------------------------------------
    @cached_property
    def _puzzles(self) -> Puzzles:
        return read_puzzles(self.data, self.configurations, self.size)

    @cached_property
    def _composition(self) -> Tensor:
        """(puzzle,) the composition of every puzzle."""
        return raven_split.number(self._puzzles.configuration, self._puzzles.rules)

    @cached_property
    def _split(self) -> raven_split.Split:
        found = self._composition.unique().tolist()
        public = self._puzzles.subset == 0
        with_train, with_test = (set(self._composition[mask].tolist()) for mask in (public, ~public))
        usable = [c for c in found if c in with_train and c in with_test]
        if self.held_out is not None:
            split = raven_split.listed(found, usable, self.held_out)
        else:
            split = raven_split.drawn(found, usable, self.fraction_held_out, self.split_seed, self.allow_unseen_rules)
        unseen = raven_split.unseen_rules(split.train, split.ood)
        require(
            self.allow_unseen_rules or not unseen,
            f"the split leaves {', '.join(unseen)} unseen in training, so nothing could generalize to it; "
            "hold out other compositions, or say allow_unseen_rules=True",
        )
        return split

    @cached_property
    def _files(self) -> dict[str, Tensor]:
        """split -> (file,) the indices of its puzzles."""
        trained, held_out = (torch.isin(self._composition, torch.tensor(part)) for part in self._split[:2])
        public = self._puzzles.subset == 0
        masks = {"train": trained & public, "test": trained & ~public, "ood": held_out}
        return {split: mask.nonzero().squeeze(1) for split, mask in masks.items()}

    def compositions(self, split: str) -> tuple[int, ...]:
        """Numbers that depend on configuration and rules alone, not on which files there are."""
        self.check_split(split)
        return self._split.ood if split == "ood" else self._split.train

    def composition_name(self, composition: int) -> str:
        """The configuration as 1903.02741 calls it, and for each component the initials of its rules (C, P, A, D) on layout
        (n: of number, p: of position), type, size and color, e.g. ``"O-IG CPCD+DnCAC"``."""
        return raven_split.name(composition)

    def describe_split(self) -> dict[str, Any]:
        counts: dict[str, Any] = {}
        for title, compositions in zip(("compositions", "held_out", "left_out"), self._split, strict=True):
            there = raven_split.per_configuration(compositions)
            counts[title] = {name: len(there.get(name, ())) for name in self.configurations}
        files = {split: len(self._files[split]) for split in SPLITS}
        return counts | {"files": files, "unseen_rules": raven_split.unseen_rules(self._split.train, self._split.ood)}

    # ---- episodes ----------------------------------------------------------------------------------------------------
    @cached_property
    def _tables(self) -> dict[torch.device, tuple[Puzzles, Tensor, dict[str, Tensor]]]:
        return {}

    def _on(self, device: torch.device) -> tuple[Puzzles, Tensor, dict[str, Tensor]]:
        """(the puzzles, their compositions, the files of each split) on a device."""
        if device not in self._tables:
            files = {split: places.to(device) for split, places in self._files.items()}
            self._tables[device] = self._puzzles.to(device), self._composition.to(device), files
        return self._tables[device]

    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        """`inputs` (batch, 1) says which puzzles these are. Nuisances are mean brightnesses, in [0, 1]: "operand_magnitude" of
        the two panels beside the answer, "target_value" of the answer."""
        check_drawing(n, rng)
        chosen = self.choose_compositions(split, compositions)
        puzzles, composition, files = self._on(rng.device)
        places = files[split]
        if compositions is not None:
            places = places[torch.isin(composition[places], torch.tensor(chosen, device=rng.device))]
        which = places[torch.randint(len(places), (n,), generator=rng, device=rng.device)]
        panels = puzzles.panels[which].float() / 255
        targets = self.patched(panels)
        tokens = targets.clone()
        tokens[:, self.answers[0] :] = 0
        codes = {"configuration": puzzles.configuration[which], "rules": puzzles.rules[which]}
        brightness = panels.mean((2, 3))
        nuisances = {"operand_magnitude": brightness[:, 6:8].mean(1), "target_value": brightness[:, 8]}
        return Episodes(tokens, targets, codes, composition[which], which[:, None], nuisances)

    def revealed(self, episodes: Episodes) -> Tensor:
        return episodes.targets

    def patched(self, panels: Tensor) -> Tensor:
        """Images as tokens: patches, and the pixels of a patch, in reading order.

        Args:
            panels: (batch, 9, size, size).

        Returns:
            (batch, seq, pixels of a patch).
        """
        side, p = self.size // self.patches, self.patches
        return panels.reshape(-1, 9, p, side, p, side).transpose(3, 4).reshape(-1, self.seq, self.d_in)

    def panels(self, tokens: Tensor) -> Tensor:
        """Tokens as images: the inverse of `patched`.

        Args:
            tokens: tokens, targets or a prediction, (batch, seq, pixels of a patch).

        Returns:
            (batch, 9, size, size).
        """
        side, p = self.size // self.patches, self.patches
        return tokens.reshape(-1, 9, p, p, side, side).transpose(3, 4).reshape(-1, 9, self.size, self.size)

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Squared error per pixel of the last panel, averaged over the batch."""
        first = self.answers[0]
        return (prediction[:, first:] - targets[:, first:]).square().mean()

    def _mse(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """(batch,) squared error per pixel of the last panel, in double precision."""
        first = self.answers[0]
        return (prediction.double() - targets.double())[:, first:].square().mean((1, 2))

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The share of panels above 40 dB: a panel is right if its MSE is below 1e-4."""
        wrong = (self._mse(prediction, targets) >= 10 ** (-DECIBELS / 10)).double()
        return wrong, torch.ones_like(wrong)

    def metrics(self, prediction: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The score; the mean of min(PSNR, 40 dB) over 40 dB; and pixel R², pooled.

        Pixel R²: 1 is perfect, 0 the mean of the puzzle's eight shown panels, pixel by pixel; may be negative.
        """
        mse = self._mse(prediction, targets)
        psnr = -10 * mse.clamp(min=10 ** (-DECIBELS / 10)).log10()
        panels = targets.double().unflatten(1, (9, self.patches**2))
        variance = (panels[:, :8].mean(1) - panels[:, 8]).square().mean((1, 2))
        return {
            "score": self.errors(prediction, targets),
            "PSNR / 40 dB": (DECIBELS - psnr, torch.full_like(psnr, DECIBELS)),
            "pixel R²": (mse, variance),
        }

    def strata(self, episodes: Episodes) -> dict[str, Tensor]:
        """Puzzles whose last panel follows from their rules: each row keeps its shapes, and moves them, if at all, by rule.

        Elsewhere the generator draws positions, or turns new shapes by angles that no panel need show; some answers follow
        there, too, but which ones cannot be told from the rules.
        """
        rules = episodes.codes["rules"]
        keeping = torch.tensor([LAYOUT_RULES.index(rule) for rule in KEEP_SHAPES], device=rules.device)
        kept = torch.isin(rules[..., 0], keeping) & (rules[..., 1] == RULES.index("constant"))
        return {"determined": (kept | (rules[..., 0] == ABSENT)).all(1)}
