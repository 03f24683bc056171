"""What a task family is: it draws episodes whose latent task code, and whose held-out compositions, are known exactly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from compolens.foundation.configs import ConfigError, DoesNotApply, nearest, require, require_kinds
from compolens.foundation.memory import require_room
from compolens.tasks.episodes import SPLITS, VALIDATION, Episodes, Labelled, Readouts, Sheet, one_of, stream

WHAT_RENDER_UNLOCKS = (
    "it unlocks patching, components, edges, swap_code, swap_factor, nonlinear_code, inference_or_execution, task_vectors and "
    "repair"
)

MOST_COMPOSITIONS = 50_000
"""How many compositions a family may have: all are listed, looked up and held apart one by one."""


def require_few(name: str, counts: Iterable[int], advice: str) -> None:
    """Check that a family has few enough compositions to be listed, before they are.

    Args:
        name: The family's name.
        counts: How many compositions there are, in parts that are added up for as long as it matters.
        advice: Which settings to change.

    Raises:
        ConfigError: There are more than `MOST_COMPOSITIONS`.
    """
    total = 0
    for count in counts:
        total += count
        if total > MOST_COMPOSITIONS:
            raise ConfigError(f"{name}: there are more than {MOST_COMPOSITIONS:,} compositions, too many to list; {advice}")


def _spread(values: Tensor, answers: int) -> Tensor:
    """(batch, answers): a number of an episode beside each of its answers."""
    return values.reshape(len(values), 1).float().expand(-1, answers)


def _brief(values: Tensor) -> str:
    """A few numbers as text."""
    flat = values.detach().flatten().tolist()
    shown = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in flat[:24]]
    return "  ".join(shown) + (" …" if len(flat) > 24 else "")


@dataclass(frozen=True)
class TaskPart:
    """A setting of a family that is a description itself, such as a law of inputs; plain fields, frozen."""

    def __post_init__(self) -> None:
        require_kinds(self, nested=True)


@dataclass(frozen=True)
class TaskFamily(ABC):
    """A family of tasks: the description is the constructor, and equal descriptions draw equal episodes.

    Everything random is a pure function of (the family's own seeds) and of the generator handed to `sample`; the teacher
    and the split are drawn on the CPU, so every device faces the same task. Subclasses are frozen dataclasses with plain
    fields. What a family cannot do, or a probe cannot do with it, it lists in `missing`, name -> reason; tables then
    say "not available: reason".
    """

    missing: ClassVar[dict[str, str]] = {}
    code_kinds: ClassVar[dict[str, str]] = {}
    """For every latent code: "continuous" or "categorical"."""
    score_name: ClassVar[str] = "score"
    ceiling: ClassVar[str] = "true code"
    """The reference whose score no learner can be expected to exceed."""

    def __post_init__(self) -> None:
        """Checks the kinds of all fields; a subclass that has its own begins it with this one."""
        require_kinds(self)
        fraction = getattr(self, "fraction_held_out", 0)  # also where a listed split leaves it without effect
        require(0 <= fraction <= 1, f"fraction_held_out must lie between 0 and 1, got {fraction}")

    @property
    def setting(self) -> str:
        """The family with what distinguishes it from others of its class, in a few words, seeds left out: how figures and
        tables of models call what was asked. A function of the fields alone; folders keep it."""
        return type(self).__name__

    # ---- shape: what a model may need to know to be built ------------------------------------------------------------
    @property
    @abstractmethod
    def d_in(self) -> int:
        """Width of one token."""

    @property
    @abstractmethod
    def d_out(self) -> int:
        """Width of one answer."""

    @property
    @abstractmethod
    def seq(self) -> int:
        """Tokens per episode."""

    @property
    @abstractmethod
    def answers(self) -> tuple[int, ...]:
        """Positions whose predictions count."""

    @property
    def mask(self) -> Tensor | None:
        """(seq, seq) bool, [query, key] True where attention is allowed; None: everywhere."""
        return None

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...] | None:
        """Groups of positions that belong together, the target group last; None where there are none. Not a model's blocks."""
        return None

    @property
    def dimensions(self) -> dict[str, Any]:
        """The keyword arguments of `Architecture.build`.

        d_x, where a family has it, is how many leading coordinates of a token are the query's input.
        """
        require_room(self.seq**2, f"a mask of {self.seq} by {self.seq} tokens", "choose shorter episodes")
        return {
            "d_in": self.d_in,
            "d_out": self.d_out,
            "seq": self.seq,
            "answers": self.answers,
            "d_x": getattr(self, "d_x", None),
            "mask": self.mask,
            "blocks": self.blocks,
        }

    # ---- episodes ----------------------------------------------------------------------------------------------------
    def rng(self, seed: int | str, split: str, step: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
        """A generator that is a pure function of (seed, split, step); splits never share randomness, nor do steps.

        Args:
            seed: of the experiment, a number or words such as "0/score".
            split: "train", "test" or "ood".
            step: the training step, 0 for evaluation.
            device: where the generator draws; devices draw different numbers.

        Returns:
            A fresh generator.

        Raises:
            ConfigError: there is no such split.
        """
        self.check_split(split)
        generator = torch.Generator(device=device)
        generator.manual_seed(stream(seed, split, step))
        return generator

    @abstractmethod
    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        """Fresh episodes of a split, on the generator's device.

        Args:
            n: how many, at least 1.
            split: "train", "test" or "ood".
            rng: the generator, as `rng` gives it.
            compositions: only these of the split's compositions (None: all of them, equally likely).

        Returns:
            `n` episodes.

        Raises:
            ConfigError: n is below 1 or rng no generator (`check_drawing`), or a composition does not belong to the split
                (`choose_compositions`).
        """

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """The exact counterfactual: these inputs under those codes. Deterministic.

        Args:
            codes: as in `Episodes.codes`, (batch, ...) each.
            inputs: as in `Episodes.inputs`, (batch, ...).

        Returns:
            The episodes that these inputs make under those codes.

        Raises:
            ConfigError: the family cannot render; `missing` says why.
        """
        reason = self.missing.get("render", f"write render(self, codes, inputs) -> Episodes; {WHAT_RENDER_UNLOCKS}")
        raise ConfigError(f"{type(self).__name__} cannot render: {reason}")

    @property
    def can_render(self) -> bool:
        """Whether the same inputs can be shown under another code."""
        return "render" not in self.missing and type(self).render is not TaskFamily.render

    @property
    def why_no_render(self) -> str:
        """Why the same inputs cannot be shown under another code, and what to write; "" if they can."""
        if self.can_render:
            return ""
        return self.missing.get("render", f"write render(self, codes, inputs) -> Episodes; {WHAT_RENDER_UNLOCKS}")

    def examples(self, episodes: Episodes) -> tuple[Tensor, Tensor] | None:
        """In-context regression as pairs of input and answer.

        Args:
            episodes: a batch of episodes.

        Returns:
            x (batch, seq, d_x) of all positions, and y (batch, n, d_y) of the first n, which are shown. None for a family
            whose episodes are no such pairs.
        """
        return None

    def labelled(self, episodes: Episodes) -> Labelled | None:
        """Items and their labels, where a family shows them in turn.

        Args:
            episodes: a batch of episodes.

        Returns:
            Items and positions. None for a family whose episodes are made otherwise.
        """
        return None

    def repeated(self, episodes: Episodes, times: int) -> Episodes | None:
        """Episodes of the same tasks that show the first items again and again.

        Args:
            episodes: a batch of episodes.
            times: how often they are shown, 2 or more; what is left over at the end stays as it is.

        Returns:
            The episodes. None where a family does not say.
        """
        return None

    def context_asked(self, episodes: Episodes) -> tuple[Tensor, Tensor] | None:
        """The context's own inputs, asked as questions beside the whole context.

        Args:
            episodes: a batch of episodes.

        Returns:
            Tokens (batch, m, seq, d_in) of m sequences an episode, and their targets (batch, m, seq, ...), known from the
            context alone. None where that cannot be asked.
        """
        return None

    def candidates(self, episodes: Episodes, allowed: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """The answers under each allowed composition, for families whose composition alone decides the answers.

        Where a family does not say, can render, and has categorical codes alone, one combination of them a composition: the
        inputs under that combination, and how far the tokens then differ.

        Args:
            episodes: a batch of episodes.
            allowed: the compositions to try.

        Returns:
            The answers (batch, len(allowed), seq, d_out), and each composition's squared error (batch, len(allowed)) on the
            examples. None where there is more to be fitted.
        """
        table = self._combinations if self.can_render else None
        if table is None:
            return None
        answers, errors = [], []
        for composition in allowed:
            codes = {n: c[[composition]].expand_as(episodes.codes[n]).to(episodes.tokens.device) for n, c in table.items()}
            shown = self.render(codes, episodes.inputs)
            classes = not shown.targets.is_floating_point()
            answers.append(50.0 * one_hot(shown.targets.clamp(min=0), self.d_out).double() if classes else shown.targets)
            errors.append((shown.tokens.double() - episodes.tokens.double()).square().flatten(1).sum(1))
        return torch.stack(answers, 1), torch.stack(errors, 1)

    @cached_property
    def _combinations(self) -> dict[str, Tensor] | None:
        """The codes of every composition by its number; None where they are not categorical, not one a composition, or where
        no episode shows a composition."""
        if not self.code_kinds or set(self.code_kinds.values()) != {"categorical"}:
            return None
        drawn = [self.sample(2048, split, self.rng("codes", split)) for split in ("train", "ood")]
        composition = torch.cat([one.composition for one in drawn])
        found = {}
        for name in self.code_kinds:
            code = torch.cat([one.codes[name] for one in drawn])
            table = code.new_zeros(self.n_compositions, *code.shape[1:])
            table[composition] = code
            if not torch.equal(table[composition], code):
                return None
            found[name] = table
        return found if len(composition.unique()) == self.n_compositions else None

    def skewed(self, inputs: Tensor) -> Tensor:
        """Inputs of a law symmetric about 0, moved to a skewed law of equal mean and variance.

        What is easy to read out of symmetric inputs may not be of these.

        Args:
            inputs: as in `Episodes.inputs`.

        Returns:
            The same shape.

        Raises:
            DoesNotApply: the inputs have no symmetric law for which there is a skewed one.
        """
        raise DoesNotApply(f"the inputs of {type(self).__name__} have no symmetric law for which there is a skewed one")

    def revealed(self, episodes: Episodes) -> Tensor:
        """The tokens with what is asked for shown where it is asked for: a block that is complete.

        Args:
            episodes: a batch of episodes.

        Returns:
            (batch, seq, d_in).

        Raises:
            DoesNotApply: the family does not say what its tokens look like once the answer is shown.
        """
        raise DoesNotApply(f"{type(self).__name__} does not say what its tokens look like once the answer is shown")

    # ---- compositions ------------------------------------------------------------------------------------------------
    @abstractmethod
    def compositions(self, split: str) -> tuple[int, ...]:
        """The compositions of `split`; "test" has those of "train". "validation", where a family has it, has its own."""

    @property
    def n_compositions(self) -> int:
        """Compositions are numbers below this one; some may be in no split."""
        return 1 + max(composition for split in self.splits for composition in self.compositions(split))

    @abstractmethod
    def composition_name(self, composition: int) -> str:
        """What `composition` is called in tables and figures, e.g. ``"0+4"``."""

    @abstractmethod
    def describe_split(self) -> dict[str, Any]:
        """What the training support covers and what it holds out; JSON-ready."""

    # ---- factors -----------------------------------------------------------------------------------------------------
    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The parts that compositions share, as features: a coefficient, or a one-hot value.

        Where a family does not say, they are the columns of its codes: coordinates of continuous ones, those of categorical
        ones one-hot.

        Args:
            codes: as in `Episodes.codes`.

        Returns:
            name -> (batch, width) floats.

        Raises:
            DoesNotApply: the family does not say which factors its codes are made of, nor of which kind these are.
        """
        if not self.code_kinds:
            raise DoesNotApply(
                f"{type(self).__name__} does not say which factors its codes are made of, as code_structure, erase_code, "
                "inference_or_execution and swap_factor ask; write code_kinds = {NAME: 'continuous' or 'categorical'}, "
                "or factors(self, codes) -> {NAME: (batch, width)}"
            )
        found = {}
        for name, column in self._columns(codes).items():
            categorical = not column.is_floating_point()
            found[name] = one_hot(column, self._levels[name]).float() if categorical else column[:, None]
        return found

    def _columns(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The columns of the codes: (batch,) floats of continuous ones, ints of categorical ones."""
        found = {}
        for name, kind in self.code_kinds.items():
            flat = codes[name].flatten(1) if codes[name].ndim > 1 else codes[name][:, None]
            for i, column in enumerate(flat.unbind(1)):
                called = name if flat.shape[1] == 1 else f"{name}[{i}]"
                found[called] = column.float() if kind == "continuous" else column.long()
        return found

    @cached_property
    def _known_drawn(self) -> tuple[dict[str, Tensor], Tensor]:
        """The codes and compositions of some episodes, training and held-out ones, always the same ones."""
        drawn = [self.sample(2048, split, self.rng("codes", split)) for split in ("train", "ood")]
        codes = {name: torch.cat([one.codes[name] for one in drawn]) for name in drawn[0].codes}
        return codes, torch.cat([one.composition for one in drawn])

    @property
    def _known_codes(self) -> dict[str, Tensor]:
        """The codes of these episodes."""
        return self._known_drawn[0]

    @cached_property
    def _known(self) -> dict[str, Tensor]:
        """The columns of these codes."""
        return self._columns(self._known_codes)

    @cached_property
    def _levels(self) -> dict[str, int]:
        """Of every categorical column, how many classes it has."""
        found = {name: column for name, column in self._known.items() if not column.is_floating_point()}
        for name, column in found.items():
            if int(column.min()) < 0:
                raise DoesNotApply(
                    f"{type(self).__name__}: the code {name} holds {int(column.min())}; classes count from 0, "
                    "or write factors(self, codes) -> {NAME: (batch, width)}"
                )
        return {name: int(column.max()) + 1 for name, column in found.items()}

    def categories(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The categorical parts of the code as class numbers, for logistic readouts: the values of one-hot factors, whether a
        factor of one coordinate is there, or, where no factors are named, every column of a categorical code.

        Args:
            codes: as in `Episodes.codes`.

        Returns:
            name -> (batch,) ints from 0; or (batch, answer), where every answer has a class of its own, which is read there.
        """
        if "continuous" in self.code_kinds.values():
            return {}
        try:
            parts = self.factors(codes)
        except DoesNotApply:
            flat = {n: codes[n].reshape(len(codes[n]), -1).long() for n, k in self.code_kinds.items() if k == "categorical"}
            return {(n if c.shape[1] == 1 else f"{n}[{i}]"): c[:, i] for n, c in flat.items() for i in range(c.shape[1])}
        return {name: x.argmax(1) if x.shape[1] > 1 else x[:, 0].ne(0).long() for name, x in parts.items()}

    def parts(self, codes: dict[str, Tensor]) -> list[tuple[str, ...]]:
        """The names of the factors that are in each episode's code: coefficients that are not 0, and the values of one-hot
        factors.

        Args:
            codes: as in `Episodes.codes`.

        Returns:
            A tuple of names for every episode.
        """
        found: list[tuple[str, ...]] = [()] * len(next(iter(codes.values())))
        for name, x in self.factors(codes).items():
            single = x.shape[1] == 1
            for i, (there, value) in enumerate(zip(x.ne(0).any(1).tolist(), x.argmax(1).tolist(), strict=True)):
                found[i] += ((name if single else f"{name} {value}"),) if there else ()
        return found

    def exchange(
        self, base: dict[str, Tensor], source: dict[str, Tensor], rng: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Codes that differ from the base's in one part, taken from the source: what `swap_factor` calls the counterfactual.

        Where a family does not say, and its factors are the columns of its codes, one column is the source's; or, of codes of
        which some coordinates are 0, one that is there makes room for one of the source's. Only what makes a composition of
        the family is exchanged: a combination of classes, or of coordinates that are not 0, that its episodes show.

        Args:
            base: the codes to change, as in `Episodes.codes`.
            source: the codes that the part is taken from, as many.
            rng: draws which part is exchanged.

        Returns:
            The codes, and a mask (batch, factor) bool in the order of `factors`: True where a factor has the source's value
            (two factors where one of a set of parts makes room for another). A row without True: no exchange is possible there
            that leads to a composition of the family other than the base's and the source's.

        Raises:
            DoesNotApply: the family does not say which factors its codes are made of, or names factors of its own and not how
                they are exchanged.
        """
        if type(self).factors is not TaskFamily.factors and not self._factors_are_columns:
            raise DoesNotApply(
                f"{type(self).__name__} names factors and not how one is exchanged, which swap_factor asks; write "
                "exchange(self, base, source, rng) -> (codes, mask (batch, factor) bool)"
            )
        self.factors(base)  # says so where there are none
        ours, theirs = (torch.stack([c.double() for c in self._columns(codes).values()], 1) for codes in (base, source))
        continuous = torch.tensor([c.is_floating_point() for c in self._columns(base).values()], device=ours.device)

        def pattern(values: Tensor) -> Tensor:
            return torch.where(continuous, values.ne(0).double(), values)

        every = pattern(torch.stack([c.double() for c in self._known.values()], 1).to(ours))
        known, which = every.unique(dim=0, return_inverse=True)
        composition = self._known_drawn[1].to(ours.device)
        numbers = composition.new_zeros(len(known)).index_put((which,), composition)
        told = torch.equal(numbers[which], composition)  # else several compositions share a pattern

        def number(values: Tensor) -> Tensor:
            """The composition of patterns, -1 where none is known."""
            same = (values[:, None] == known).all(2)
            return torch.where(same.any(1), numbers[same.long().argmax(1)], -1)

        one = one_of(ours != theirs, rng)
        taken = one_of((ours != 0) & (theirs == 0) & continuous, rng)
        given = one_of((theirs != 0) & (ours == 0) & continuous, rng)
        mask = torch.zeros_like(one)
        for wanted in (one, torch.where((taken.any(1) & given.any(1))[:, None], taken | given, False)):
            new = pattern(torch.where(wanted, theirs, ours))
            possible = wanted.any(1) & ~mask.any(1) & (new[:, None] == known).all(2).any(1)
            if len(known) > 1:  # else the composition is not told by which parts are there
                possible &= (new != pattern(ours)).any(1) & (new != pattern(theirs)).any(1)
            if len(known) > 1 and told:
                possible &= (number(new) != number(pattern(ours))) & (number(new) != number(pattern(theirs)))
            mask = mask | (wanted & possible[:, None])
        mixed, first, codes = torch.where(mask, theirs, ours), 0, dict(base)
        for name in self.code_kinds:
            width = base[name][0].numel()
            codes[name] = mixed[:, first : first + width].reshape(base[name].shape).to(base[name])
            first += width
        return codes, mask

    @property
    def _factors_are_columns(self) -> bool:
        return False

    # ---- loss and score ----------------------------------------------------------------------------------------------
    @abstractmethod
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """The training loss, read at the answer positions.

        Args:
            prediction: (batch, seq, d_out).
            targets: as in `Episodes.targets`.

        Returns:
            A scalar.
        """

    @abstractmethod
    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The terms of the score, which is 1 - sum(error) / sum(weight).

        Args:
            prediction: (batch, seq, d_out).
            targets: as in `Episodes.targets`.

        Returns:
            (error, weight), each (batch,) float64.
        """

    def score(self, prediction: Tensor, targets: Tensor) -> float:
        """The score, pooled over everything given.

        Args:
            prediction: (batch, seq, d_out).
            targets: as in `Episodes.targets`.

        Returns:
            1 is perfect; `score_name` says what it is.
        """
        error, weight = self.errors(prediction, targets)
        return float(1 - error.detach().sum() / weight.sum())

    def metrics(self, prediction: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The score's terms, and those of whatever else the family is reported in.

        Args:
            prediction: (batch, seq, d_out).
            targets: as in `Episodes.targets`.

        Returns:
            name -> (error, weight) as in `errors`.
        """
        return {"score": self.errors(prediction, targets)}

    def strata(self, episodes: Episodes) -> dict[str, Tensor]:
        """Parts of a set of episodes on which scores are shown as well, e.g. "unambiguous".

        Args:
            episodes: a batch of episodes.

        Returns:
            name -> (batch,) bool.
        """
        return {}

    @property
    def variants(self) -> dict[str, TaskFamily]:
        """name -> the same tasks shown in another way, for analysis: never trained on."""
        return {}

    # ---- for readers -------------------------------------------------------------------------------------------------
    def sheets(self, episodes: Episodes, prediction: Tensor) -> list[Sheet]:
        """The first episode as a reader sees it: what it is made of, and targets beside answers; families show more.

        Args:
            episodes: any number; only the first is shown.
            prediction: (batch, seq, d_out), a model's answers to them.

        Returns:
            Tables, in reading order.
        """
        made = tuple((name, _brief(code[0])) for name, code in episodes.codes.items())
        composition = int(episodes.composition[0])
        name = self.composition_name(composition) if composition >= 0 else "none of the family"
        rows = tuple(self._question(episodes.targets[0], prediction[0], at) for at in self.answers[:8])
        columns = ("position", "target", "answer")
        asked = len(self.answers)
        title = "questions" if len(rows) == asked else f"questions 1 to {len(rows)} of {asked}"
        return [Sheet("what it is made of", (), (("composition", name), *made)), Sheet(title, columns, rows)]

    def _question(self, targets: Tensor, prediction: Tensor, at: int) -> tuple[str, str, str]:
        """Position, target and answer; an answer to a question with classes is the likeliest class."""
        answer = prediction[at] if targets.is_floating_point() else prediction[at].argmax(-1)
        return str(at % len(targets)), _brief(targets[at]), _brief(answer)

    # ---- readouts ----------------------------------------------------------------------------------------------------
    def readouts(self, episodes: Episodes) -> Readouts:
        """Where a categorical code can be read, and what else could be read there.

        Where a family does not say: `categories`, at every answer, from the pair of this token with itself.

        Args:
            episodes: a batch of episodes.

        Returns:
            Pairs, labels and confounds by name.

        Raises:
            DoesNotApply: the family has no categorical code.
        """
        found = self.categories(episodes.codes)
        if not found:
            known = f"its codes are {self.code_kinds}" if self.code_kinds else "its codes have no kinds"
            raise DoesNotApply(
                f"{type(self).__name__} has no categorical code to read ({known}); where one is, write "
                "code_kinds = {NAME: 'categorical'}; it unlocks attention_code and latent_geometry"
            )
        n, at = len(episodes.tokens), torch.tensor([a % self.seq for a in self.answers], device=episodes.tokens.device)
        labels = {name: y if y.ndim == 2 else y[:, None].expand(n, len(at)) for name, y in found.items()}
        pairs = at[:, None, None].expand(-1, 1, 2).expand(n, -1, -1, -1)
        many = {name: 1 + int(y.max()) for name, y in self.categories(self._known_codes).items()}
        where = torch.eye(len(at), device=at.device).expand(n, -1, -1)
        raw = self.raw_statistic(episodes)[:, None].expand(n, len(at), -1)
        return Readouts(
            pairs={"self": pairs},
            labels=labels,
            classes={name: tuple(map(str, range(many[name]))) for name in labels},
            confounds={name: _spread(value, len(at)) for name, value in episodes.nuisances.items() if value.numel() == n},
            inputs={"raw input": torch.cat([raw, where.to(raw)], 2) if len(at) > 1 else raw},
        )

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """What a linear readout of the latent code must beat, computed from the inputs alone.

        Args:
            episodes: a batch of episodes.

        Returns:
            (batch, features) float64.
        """
        return episodes.tokens.flatten(1).double()

    # ---- checks ------------------------------------------------------------------------------------------------------
    @property
    def splits(self) -> tuple[str, ...]:
        """`SPLITS`, and `VALIDATION` where the family sets compositions aside."""
        return (*SPLITS, VALIDATION) if getattr(self, "validation", 0) else SPLITS

    def check_split(self, split: str) -> None:
        """Raises a `ConfigError` unless `split` is one of `splits`."""
        if split == VALIDATION and VALIDATION not in self.splits:
            raise ConfigError(
                f"no split 'validation': this {type(self).__name__} sets no compositions aside for it; families with the "
                "field `validation` are told how many, such as Hyperteacher(validation=4)"
            )
        if split not in self.splits:
            raise ConfigError(f"no split {split!r}; {nearest(str(split), self.splits)}")

    def choose_compositions(self, split: str, compositions: Sequence[int] | None) -> tuple[int, ...]:
        """The compositions to draw from, after checking that those asked for belong to the split.

        Args:
            split: "train", "test" or "ood".
            compositions: those asked for (None: all of the split).

        Returns:
            At least one composition.

        Raises:
            ConfigError: one does not belong to the split, or none is left.
        """
        self.check_split(split)
        available = self.compositions(split)
        if compositions is None:
            chosen = available
        else:
            chosen = tuple(int(c) for c in compositions)
            for composition in chosen:
                if composition not in available:
                    raise ConfigError(f"composition {composition} is not in split {split!r}; it has {list(available)}")
        if not chosen:
            raise ConfigError(f"split {split!r} has no composition to draw from")
        return chosen
