"""A trained model with what views ask of it again and again: its episodes, its answers, its control, how its codes are read.

Everything here is a pure function of the model and of (split, number of episodes, seed); it is kept because it is asked for
often, so that a page answers at once.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from compolens.activations.sites import Site, sites
from compolens.activations.streams import BATCH, Activations, draw, record
from compolens.explore.state import State
from compolens.foundation.configs import DoesNotApply, nearest, require
from compolens.hooks import HookedModel
from compolens.interventions.oracles import CodeAt, code_features, fit_codes, readings
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

FIT = 1024
"""Episodes of training compositions on which readouts and writers are fitted."""


def code_numbers(task: TaskFamily, codes: dict[str, Tensor]) -> Tensor:
    """A code as numbers: its factors side by side; of a family that names none, its continuous codes as they are.

    Args:
        task: the family.
        codes: as in `Episodes.codes`.

    Returns:
        (batch, width) float64.

    Raises:
        DoesNotApply: the family names no factors, and its codes are categories.
    """
    try:
        return code_features(task, codes)
    except DoesNotApply:
        continuous = [codes[name].double().flatten(1) for name in _continuous(task)]
        if not continuous:
            raise
        return torch.cat(continuous, dim=1)


def _continuous(task: TaskFamily) -> list[str]:
    return [name for name, kind in task.code_kinds.items() if kind == "continuous"]


class Subject:
    """One model under study.

    Args:
        trained: the model, with its task and folder.
        episodes: how many are drawn of a split; fewer where a family has fewer stored.
        seed: which ones.
        classes: classes and functions of one's own that its folder names.
    """

    def __init__(
        self, trained: TrainedModel, episodes: int = State.episodes, seed: int = 0, classes: tuple[Any, ...] = ()
    ) -> None:
        self.trained, self.count, self.seed, self.classes = trained, episodes, seed, classes
        self.model: HookedModel = trained.model
        self.task: TaskFamily = trained.task
        self._drawn: dict[str, Episodes] = {}
        self._answers: dict[str, Tensor] = {}
        self._codes: dict[tuple[Site, bool], CodeAt] = {}
        self._read: dict[str, Tensor] = {}
        self._seen: dict[tuple[str, tuple[int, ...], str, bool], Activations] = {}

    @property
    def title(self) -> str:
        """The folder's name, with the step where it is not the last."""
        return f"{self.trained.name}, step {self.trained.step:,}"

    # ---- episodes and answers ----------------------------------------------------------------------------------------
    def drawn(self, split: str) -> Episodes:
        """All episodes that are drawn of a split: those that probes draw for the same number and seed.

        Args:
            split: "test" or "ood".

        Returns:
            The episodes, on the model's device.
        """
        if split not in self._drawn:
            (self._drawn[split],) = draw(self.task, split, self.count, self.seed, self.trained.device, batch=self.count)
        return self._drawn[split]

    @torch.no_grad()
    def answers(self, split: str) -> Tensor:
        """The model's predictions on all episodes that are drawn of a split.

        Args:
            split: "test" or "ood".

        Returns:
            (episode, seq, d_out).
        """
        if split not in self._answers:
            tokens = self.drawn(split).tokens
            self._answers[split] = torch.cat([self.model(part) for part in tokens.split(BATCH)])
        return self._answers[split]

    def results(self, split: str) -> pd.DataFrame:
        """How every drawn episode of a split is scored, a row per episode.

        Args:
            split: "test" or "ood".

        Returns:
            The columns episode, composition, name, held_out, error, weight, score (1 is perfect).
        """
        episodes = self.drawn(split)
        error, weight = (part.cpu().numpy() for part in self.task.errors(self.answers(split), episodes.targets))
        composition = episodes.composition.cpu().numpy()
        names = {int(c): self.task.composition_name(int(c)) for c in set(composition.tolist())}
        frame = pd.DataFrame({"episode": range(len(error)), "composition": composition})
        frame["name"] = [names[int(c)] for c in composition]
        frame["held_out"] = split == "ood"
        return frame.assign(error=error, weight=weight, score=1 - error / weight)

    def numbers(self, state: State) -> Tensor:
        """The numbers of the chosen episodes.

        Args:
            state: what the reader has chosen.

        Returns:
            (n,) from 0.

        Raises:
            ConfigError: fewer episodes are drawn.
        """
        count = len(self.drawn(state.split).tokens)
        require(max(state.chosen) < count, f"episode {max(state.chosen)} is not among the {count} of {state.split!r}")
        return torch.tensor(state.chosen)

    def bases(self, state: State) -> Episodes:
        """The chosen episodes.

        Args:
            state: what the reader has chosen.

        Returns:
            (n) episodes, in the order chosen.
        """
        return self.drawn(state.split).take(self.numbers(state))

    def donors(self, state: State) -> Episodes:
        """For each of the chosen episodes, its donor.

        Args:
            state: what the reader has chosen.

        Returns:
            (n) episodes.
        """
        drawn = self.drawn(state.split)
        return drawn.take((self.numbers(state) + state.donor) % len(drawn.tokens))

    def own_donors(self, state: State) -> bool:
        """Whether every episode is its own donor.

        Args:
            state: what the reader has chosen.

        Returns:
            True where the donor lies no episodes further, or once around.
        """
        return state.donor % len(self.drawn(state.split).tokens) == 0

    def check_donors(self, state: State) -> None:
        """Check that donors are other episodes, so that something can be moved.

        Args:
            state: what the reader has chosen.

        Raises:
            ConfigError: they are not.
        """
        own = self.own_donors(state)
        require(not own, f"an episode is its own donor: nothing is moved; choose another than donor={state.donor}, such as -1")

    # ---- the control -------------------------------------------------------------------------------------------------
    @cached_property
    def untrained(self) -> HookedModel:
        """The untrained control; `DoesNotApply` where there is none."""
        return self.trained.untrained_control()

    # ---- sites -------------------------------------------------------------------------------------------------------
    @cached_property
    def sites(self) -> list[Site]:
        """Where something can be read or put: those of `compolens.activations` that this model has."""
        found = [site for site in sites(self.model) if site.hook_name in self.model.hook_dict]
        if not found:
            raise DoesNotApply(f"{self.trained.name} has no residual stream under the names of TransformerLens")
        return found

    def site(self, state: State) -> Site:
        """The site that the state names.

        Args:
            state: what the reader has chosen.

        Returns:
            The site; where the state names none, the explicit code, else the stream after the first block.

        Raises:
            DoesNotApply: the model has no such site.
        """
        layers = [site.layer for site in self.sites]
        chosen = state.at
        if chosen is None:  # the explicit code stands one layer above the last
            chosen = max(layers) if max(layers) > self.model.cfg.n_layers else sorted(set(layers))[:2][-1]
        for site in self.sites:
            if site.layer == chosen and state.role in ("", site.role):
                return site
        here = [site.role for site in self.sites if site.layer == chosen]
        if not here:
            raise DoesNotApply(f"no site at layer {chosen}; allowed: {', '.join(map(str, dict.fromkeys(layers)))}")
        there = [str(site.layer) for site in self.sites if site.role == state.role]
        told = f"; it is at layer {', '.join(there)}" if there else ""
        raise DoesNotApply(f"no role {state.role!r} at layer {chosen}; {nearest(state.role, here)}{told}")

    def seen(self, state: State, site: Site, untrained: bool = False) -> Activations:
        """The chosen episodes at a site's hook point, with the answers to them.

        Args:
            state: what the reader has chosen.
            site: whose hook point is recorded.
            untrained: in the untrained control instead.

        Returns:
            What was recorded; kept while a code is moved, which changes neither episodes nor site.
        """
        key = (state.split, state.chosen, site.hook_name, untrained)
        if key not in self._seen:
            while len(self._seen) >= 4:
                del self._seen[next(iter(self._seen))]  # the oldest
            model = self.untrained if untrained else self.model
            (self._seen[key],) = record(model, [self.bases(state)], [site.hook_name])
        return self._seen[key]

    @cached_property
    def patterns(self) -> list[str]:
        """The hook points of attention weights, by layer."""
        return [name for name in self.model.hook_dict if name.endswith("hook_pattern")]

    @cached_property
    def heads(self) -> list[int]:
        """The number of heads of every layer of `patterns`."""
        with torch.no_grad():
            _, cache = self.model.run_with_cache(self.drawn("test").tokens[:1], names_filter=self.patterns)
        return [int(cache[name].shape[1]) for name in self.patterns]

    # ---- codes -------------------------------------------------------------------------------------------------------
    def code_at(self, site: Site, untrained: bool = False) -> CodeAt:
        """How the code stands at a site, fitted on episodes of training compositions.

        Args:
            site: where it is read.
            untrained: in the untrained control instead.

        Returns:
            Readout and writer, fitted once and kept.
        """
        if (site, untrained) not in self._codes:
            self._fit([site], untrained)
        return self._codes[site, untrained]

    def codes_everywhere(self, untrained: bool = False) -> list[CodeAt]:
        """What `code_at` gives, at every site.

        Args:
            untrained: in the untrained control instead.

        Returns:
            Readout and writer of each site, in the order of `sites`.
        """
        missing = [site for site in self.sites if (site, untrained) not in self._codes]
        if missing:
            self._fit(missing, untrained)
        return [self._codes[site, untrained] for site in self.sites]

    def _fit(self, where: list[Site], untrained: bool) -> None:
        model = self.untrained if untrained else self.model
        fits = list(draw(self.task, "train", FIT, self.seed, self.trained.device))
        for found in fit_codes(model, self.task, fits, where, code_numbers):
            self._codes[found.site, untrained] = found

    @cached_property
    def best_read(self) -> CodeAt:
        """How the code stands where training compositions that the fit has not seen are read best."""
        return max(self.codes_everywhere(), key=lambda at: at.left_out)

    def read(self, split: str) -> Tensor:
        """The codes of all drawn episodes as a readout tells them at `best_read`.

        The readout is fitted on training compositions and, for held-out episodes, on further held-out ones of every
        composition but the one that is read.

        Args:
            split: "test" or "ood".

        Returns:
            (episode, parts) float64.
        """
        if split not in self._read:
            at, device = self.best_read, self.trained.device
            seen = list(record(self.model, [self.drawn(split)], [at.site.hook_name]))
            others = draw(self.task, split, FIT, f"{self.seed}/others", device) if split == "ood" else ()
            ((self._read[split],),) = readings(self.model, self.task, [at], seen, others, code_numbers)
        return self._read[split]

    def part_names(self) -> list[str]:
        """What the numbers of a code are called, in the order of `code_numbers`."""
        codes = self.drawn("ood").codes
        try:
            factors = self.task.factors(codes)
        except DoesNotApply:
            factors = {name: codes[name].flatten(1) for name in _continuous(self.task)}
        found: list[str] = []
        for name, x in factors.items():
            found += [name] if x.shape[1] == 1 else [f"{name}: {value}" for value in range(x.shape[1])]
        return found

    @cached_property
    def span(self) -> tuple[list[float], list[float]]:
        """Between which values each part of a code can be moved: those of training compositions, and from 0 to 1 at least."""
        known = self.features(self.drawn("test"))
        return known.amin(0).clamp(max=0.0).tolist(), known.amax(0).clamp(min=1.0).tolist()

    def features(self, episodes: Episodes) -> Tensor:
        """The codes of episodes as numbers.

        Args:
            episodes: n episodes of the model's task.

        Returns:
            (n, parts) float64.
        """
        return code_numbers(self.task, episodes.codes)


def opened(folder: str | Path, step: int | None, state: State, classes: tuple[Any, ...] = ()) -> Subject:
    """The model of a folder, ready to be looked at.

    Args:
        folder: a finished model folder.
        step: one of the kept steps; None: the final weights.
        state: says how many episodes are drawn, and which.
        classes: classes of your own that the folder names.

    Returns:
        The model with its episodes.
    """
    from compolens.zoo.folders import load

    return Subject(load(folder, step, classes), state.episodes, state.seed, classes)
