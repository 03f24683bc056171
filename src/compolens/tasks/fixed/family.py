"""Episodes that somebody else made: a fixed set on disk, with the latent codes, compositions and split that its maker names.

    task = FixedEpisodes.write("mine", tokens=…, targets=…, codes={"modules": z}, composition=c, split=s)
    task = FixedEpisodes.convert("mine.parquet", "mine")         # or .npz, .safetensors, with columns of these names
    task = FixedEpisodes("mine")                                 # from then on; so says config.json

    train   episodes of training compositions: what a training draws from
    test    other episodes of the same compositions, which a training never sees
    ood     episodes of held-out compositions

What is written is checked first (shapes, finite numbers, compositions and episodes in two splits, too few of a kind).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from compolens.foundation.configs import DoesNotApply, nearest, require, shown
from compolens.tasks.base import WHAT_RENDER_UNLOCKS, TaskFamily
from compolens.tasks.episodes import SPLITS, Episodes, answered
from compolens.tasks.fixed.aligned import aligned_together, is_ragged
from compolens.tasks.fixed.checks import checked, numbers
from compolens.tasks.fixed.counterfactuals import Counterfactuals, checked_counterfactuals, shown_by
from compolens.tasks.fixed.files import READERS, describe_arrays, save
from compolens.tasks.fixed.stored import MANIFEST, Stored, StoredEpisodes

FIXED = (
    "its episodes are fixed, and nobody knows the answers of the same inputs under another code; store them, "
    "FixedEpisodes.write(…, counterfactuals={…}), or name a class of yours, class Mine(FixedEpisodes) "
    f"with render(self, codes, inputs); {WHAT_RENDER_UNLOCKS}"
)


CODELESS = "it was given no codes; FixedEpisodes.write(…, codes={NAME: array})"
CODED = ("latent_code", "code_structure", "erase_code", "attention_code", "latent_geometry", "predictors")
"""What reads codes."""
COUNTERFACTUAL = ("patching", "swap_code", "swap_factor", "inference_or_execution", "repair")
"""What needs the same inputs under another code."""
IGNORED = -100
"""The class of an answer that is not asked for, as in torch."""


@dataclass(frozen=True)
class FixedEpisodes(StoredEpisodes, TaskFamily):
    """The family; the module says how a folder is written.

    Equal descriptions draw equal episodes only from equal folders. A recording (`compolens.record(…, to=folder)`) is such a
    folder, too.

    Targets that are floats are regressed on (squared error; the score is R², where 0 is the mean answer of training, position
    by position, and may be negative); whole numbers are classes (cross-entropy; an episode is right if all its answers are).
    Token ids are shown as one-hot vectors. A code of floats is continuous, of whole numbers categorical, unless `kinds` says
    otherwise. A measurement uses no episode twice: where it asks for more than are stored, it has all of them and a
    `FewerEpisodes` warning says so; of test and ood, one half is kept for what is fitted there, the other for what is scored.

    Args:
        data: the folder, opened when something is first asked of it. It stands in config.json; `--data DIR` replaces it.
    """

    data: str = ""

    ceiling: ClassVar[str] = "not known"

    def __post_init__(self) -> None:
        require(
            isinstance(self.data, str | os.PathLike), f"FixedEpisodes: data must be the path of a folder, got {self.data!r}"
        )
        object.__setattr__(self, "data", os.fspath(self.data))
        super().__post_init__()

    # ---- writing -----------------------------------------------------------------------------------------------------
    @classmethod
    def write(
        cls,
        folder: str | Path,
        *,
        tokens: Any,
        targets: Any,
        composition: Any,
        split: Any,
        codes: Mapping[str, Any] | None = None,
        kinds: Mapping[str, str] | None = None,
        inputs: Any = None,
        answers: Any = (-1,),
        d_x: int | None = None,
        mask: Any = None,
        blocks: Sequence[Sequence[int]] | None = None,
        padding: Any = None,
        counterfactuals: Mapping[str, Any] | None = None,
        at_least: int = 8,
    ) -> FixedEpisodes:
        """Check arrays (numpy, torch or lists, a row per episode), write them to a folder, and return the family.

        Args:
            folder: where the episodes go.
            tokens: (n, seq, d_in) floats, or (n, seq) ids.
            targets: (n, seq, d_out) floats or (n, seq) classes, or only those of the answers, (n, answer, d_out), (n, answer),
                or for a single answer (n, d_out), (n,).
            composition: (n,) numbers or words.
            split: (n,) words "train", "test", "ood".
            codes: name -> (n, ...), the true latent codes.
            kinds: name -> "continuous" or "categorical", where the code's type says the wrong one.
            inputs: (n, ...) what was drawn independently of the code.
            answers: positions that are asked for (default: the last): the same ones in all episodes, of which those below 0
                count from an episode's last token; or (n, answer) positions of every episode in its own tokens, -1 where it
                has fewer. Targets are then those of the answers, (n, answer) classes, in this order; for language models, an
                answer's position is that of the token before it.
            d_x: where tokens are (input, answer) pairs, the leading coordinates that are the input; targets are then those
                answers.
            mask: (seq, seq) bool, True where [query, key] may attend.
            blocks: groups of positions that belong together, that of the answers last.
            padding: (n, seq) bool, True where a position holds no token (the opposite of an attention mask), before or behind
                the others. Episodes are moved to end together, so that padding comes first; `Episodes.tokens` are all zero
                there, of ids as of floats.
            counterfactuals: the same inputs under other codes, m of them: "of" (m,) the episode whose inputs are shown, and
                "tokens", "targets", "composition", "codes" as above, of m rows. A probe pairs any two codes of a split, so
                every input is wanted under every combination of codes. Where sequences differ in length, "padding" and
                "answers" too, unless they are those of the episode whose inputs are shown.
            at_least: episodes per composition and split.

        Returns:
            The family that draws from the folder.

        Raises:
            ConfigError: an array does not fit, or the folder holds other episodes or a trained model.
        """
        named = isinstance(folder, str | os.PathLike) and bool(str(folder).strip())
        require(named, f"the folder must be a path, such as 'my_episodes', got {shown(folder)}")
        ragged = is_ragged(answers, padding)
        of = None if counterfactuals is None else shown_by(counterfactuals, len(tokens), ragged)
        if ragged:
            tokens, targets, answers, padding, counterfactuals = aligned_together(
                tokens, targets, answers, padding, counterfactuals, of
            )
        found = checked(tokens, targets, {} if codes is None else codes, composition, split, answers, at_least, padding)
        seq = found.tokens.shape[1]
        for name, code in found.codes.items():
            if len(code) > 1 and (code == code[:1]).all():
                warnings.warn(
                    f"codes[{name!r}] is the same in every episode, so nothing can be learned of it; leave it out",
                    stacklevel=2,
                )
        described = describe_arrays(found, {} if kinds is None else kinds, d_x, blocks)
        arrays = {"tokens": found.tokens, "targets": found.targets, "composition": found.composition}
        arrays |= {f"codes.{name}": code for name, code in found.codes.items()}
        order = np.argsort([SPLITS.index(word) for word in np.asarray(split).tolist()], kind="stable")
        if padding is not None:
            arrays["more/padding"] = padding[order]
        if counterfactuals is not None:
            require(inputs is None, "inputs are told by counterfactuals['of'], so leave them out")
            more = checked_counterfactuals(counterfactuals, found, described["kinds"], order)
            arrays |= {f"counterfactual/{name}": array for name, array in more.items()}
            for name, kind in described["kinds"].items():
                if kind == "categorical":
                    levels = int(more[f"codes.{name}"].max()) + 1
                    described["levels"][name] = max(described["levels"][name], levels)
            for key, name in (("vocabulary", "tokens"), ("n_classes", "targets")):
                if described[key] is not None:
                    described[key] = max(described[key], int(more[name].max()) + 1)
        if inputs is not None:
            drawn = numbers("inputs", inputs)
            require(len(drawn) == len(found.tokens), f"inputs has {len(drawn)} rows for {len(found.tokens)} episodes")
            arrays["more/inputs"] = drawn[order]
        if mask is not None:
            allowed = numbers("mask", mask)
            require(allowed.shape == (seq, seq), f"mask must be ({seq}, {seq}), got {allowed.shape}")
            strange = allowed[(allowed != 0) & (allowed != 1)]
            require(not strange.size, f"mask must hold True (1) and False (0) alone, got {strange[:1].tolist()}")
            require(bool(allowed.any(1).all()), "mask: every position must see at least one; itself, for instance")
            described["mask"] = allowed.astype(int).tolist()
        if padding is not None:
            described["padding"] = True
        if counterfactuals is not None:
            described["counterfactuals"] = True
        save(Path(folder), arrays, described | {"inputs": inputs is not None})
        return cls(os.fspath(folder))

    @classmethod
    def convert(cls, file: str | Path, folder: str | Path, **settings: Any) -> FixedEpisodes:
        """Write the episodes of a file, and return the family.

        The arrays or columns are called tokens, targets, composition, split and codes.<name> (and inputs). In a parquet file
        tokens and the like are columns of lists; split and composition may be words there and in .npz, numbers in
        .safetensors, where split 0, 1, 2 stands for train, test, ood.

        Args:
            file: a .npz, .safetensors or .parquet file.
            folder: where the episodes go.
            settings: the other keyword arguments of `write`.

        Returns:
            The family that draws from the folder.

        Raises:
            ConfigError: the file cannot be read, lacks a column, or has one that means nothing here.
        """
        path = Path(file)
        require(path.suffix in READERS, f"{path}: cannot read {path.suffix or 'that'}; allowed: {', '.join(READERS)}")
        require(path.is_file(), f"there is no file {path}")
        columns = READERS[path.suffix](path)
        needed = ("tokens", "targets", "composition", "split")
        for name in needed:
            require(name in columns, f"{path} has no {name!r}; {nearest(name, columns)}")
        codes = {name.removeprefix("codes."): value for name, value in columns.items() if name.startswith("codes.")}
        for name in columns:
            known = name in (*needed, "inputs") or name.startswith("codes.")
            require(known, f"{path} has {name!r}, which means nothing here; codes are called codes.{name}")
        plain = {name: value for name, value in columns.items() if not name.startswith("codes.")}
        return cls.write(folder, codes=codes, **plain, **settings)

    # ---- shape -------------------------------------------------------------------------------------------------------
    @cached_property
    def _folder(self) -> Stored:
        require(self.data != "", "FixedEpisodes needs a folder: FixedEpisodes('my_episodes'); FixedEpisodes.write makes one")
        seen_from = [Path(), *vars(self).get("_above", ())]
        found = [path / self.data for path in seen_from if (path / self.data / MANIFEST).is_file()]
        wanted = vars(self).get("_wanted")
        same = [path for path in found if wanted in (None, Stored(path).manifest.get("sha256"))]
        require(
            bool(same) or not found,
            f"{' and '.join(dict.fromkeys(map(str, found)))} holds other episodes than those that the model was made on "
            f"(sha256 {str(wanted)[:16]}…); put those back, or cd to the folder in which {self.data!r} is theirs",
        )
        return Stored(same[0] if same else self.data)

    def look_above(self, folder: Path, wanted: str | None = None) -> None:
        """Look for a relative `data` also in the folders above this one, where it is not below the one in which one works.

        Args:
            folder: a model's folder, which may be asked for from anywhere.
            wanted: sha256 of the episodes that the model was made on; others of that name are passed by (None: not known).
        """
        object.__setattr__(self, "_above", tuple(folder.resolve().parents))
        object.__setattr__(self, "_wanted", wanted)

    @property
    def stored(self) -> Stored:
        return self._folder

    @property
    def d_in(self) -> int:
        return self._folder.manifest.get("vocabulary") or int(self._folder.array("tokens").shape[2])

    @property
    def d_out(self) -> int:
        """Numbers, or classes, of an answer."""
        return self._folder.manifest.get("n_classes") or int(self._folder.array("targets").shape[2])

    @property
    def seq(self) -> int:
        return int(self._folder.array("tokens").shape[1])

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(self._folder.manifest["answers"])

    @property
    def d_x(self) -> int | None:
        """Leading coordinates of a token that are an input; None where tokens are no (input, answer) pairs."""
        return self._folder.manifest.get("d_x")

    @property
    def mask(self) -> Tensor | None:
        allowed = self._folder.manifest.get("mask")
        return None if allowed is None else torch.tensor(allowed, dtype=torch.bool)

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...] | None:
        blocks = self._folder.manifest.get("blocks")
        return None if blocks is None else tuple(tuple(block) for block in blocks)

    # ---- what it can do ----------------------------------------------------------------------------------------------
    @property
    def code_kinds(self) -> dict[str, str]:  # type: ignore[override]
        """As written."""
        return dict(self._folder.manifest["kinds"])

    @property
    def missing(self) -> dict[str, str]:  # type: ignore[override]
        """Nothing that needs another code for the same inputs, unless these were stored or a subclass renders them; and
        nothing that reads codes, where there are none."""
        found: dict[str, str] = {}
        if type(self).render is FixedEpisodes.render and not self._folder.manifest.get("counterfactuals"):
            found |= dict.fromkeys(("render", *COUNTERFACTUAL), FIXED)
        if not self.code_kinds:
            found |= dict.fromkeys((*CODED, *COUNTERFACTUAL), CODELESS)
        return found

    @property
    def _factors_are_columns(self) -> bool:
        return type(self).factors is FixedEpisodes.factors

    @property
    def score_name(self) -> str:  # type: ignore[override]
        return "accuracy" if self._classes else "R²"

    @property
    def _classes(self) -> bool:
        return self._folder.manifest.get("n_classes") is not None

    # ---- compositions ------------------------------------------------------------------------------------------------
    def compositions(self, split: str) -> tuple[int, ...]:
        self.check_split(split)
        return self._compositions["ood" if split == "ood" else "train"]

    @cached_property
    def _compositions(self) -> dict[str, tuple[int, ...]]:
        stored = {s: np.unique(self._folder.composition[slice(*rows)]).tolist() for s, rows in self._folder.rows.items()}
        seen = stored.get("train", []) or stored.get("test", [])
        return {"train": tuple(seen), "ood": tuple(stored.get("ood", []))}

    def composition_name(self, composition: int) -> str:
        """As it was called in what was written; its number if it was not."""
        return self._folder.manifest.get("names", {}).get(str(composition), str(composition))

    def describe_split(self) -> dict[str, Any]:
        """Compositions by name, episodes per split, and a digest of them all, in which equal folders agree."""
        named = {s: [self.composition_name(c) for c in self.compositions(s)] for s in ("train", "ood")}
        episodes = {split: stop - start for split, (start, stop) in self._folder.rows.items()}
        digest = str(self._folder.manifest.get("sha256", ""))[:16]
        return {"train": named["train"], "held_out": named["ood"], "episodes": episodes, "digest": digest}

    # ---- counterfactuals ---------------------------------------------------------------------------------------------
    @cached_property
    def _counterfactuals(self) -> Counterfactuals:
        return Counterfactuals(self._folder)

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """The stored episodes that show these inputs under those codes; a subclass may compute them.

        A subclass that returns `self.made(…)` gives tokens and targets as `write` takes them.

        Args:
            codes: as in `Episodes.codes`.
            inputs: as in `Episodes.inputs`: the rows' numbers where no inputs were stored.

        Returns:
            The episodes.

        Raises:
            ConfigError: no counterfactuals were stored, or not these.
        """
        if not self._folder.manifest.get("counterfactuals"):
            return super().render(codes, inputs)
        return self._counterfactuals.take(codes, inputs)

    def made(self, tokens: Tensor, targets: Tensor, codes: dict[str, Tensor], composition: Tensor, inputs: Tensor) -> Episodes:
        """Episodes from what a subclass's `render` computes.

        Args:
            tokens: (batch, seq, d_in) floats or (batch, seq) ids.
            targets: as `write` takes them, at every position or at the answers alone.
            codes: as in `Episodes.codes`.
            composition: (batch,) numbers.
            inputs: as they were given.

        Returns:
            The episodes, ids one-hot and targets at every position.
        """
        if not tokens.is_floating_point():
            tokens = one_hot(tokens, self.d_in).float()
        short = targets[:, None] if targets.ndim == (2 if targets.is_floating_point() else 1) else targets
        if short.shape[1] != self.seq:
            whole = short.new_zeros(len(short), self.seq, *short.shape[2:])
            whole[:, list(self.answers)] = short
            short = whole
        return Episodes(tokens, short, codes, composition, inputs, {})

    # ---- factors and raw inputs --------------------------------------------------------------------------------------
    def factors(self, codes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The coordinates of continuous codes; those of categorical ones, one-hot."""
        if not self.code_kinds:
            raise DoesNotApply(f"{type(self).__name__}: {CODELESS}")
        levels, found = self._folder.manifest["levels"], {}
        for name, kind in self.code_kinds.items():
            columns = codes[name].flatten(1) if codes[name].ndim > 1 else codes[name][:, None]
            for i, column in enumerate(columns.unbind(1)):
                called = name if columns.shape[1] == 1 else f"{name}[{i}]"
                found[called] = one_hot(column.long(), levels[name]).float() if kind == "categorical" else column[:, None]
        return found

    def examples(self, episodes: Episodes) -> tuple[Tensor, Tensor] | None:
        """Where tokens are (input, answer) pairs with the asked ones last."""
        first = self.answers[0]
        if not self._folder.manifest.get("pairs") or first == 0:
            return None
        return episodes.tokens[..., : self.d_x], episodes.targets[:, :first]

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """The tokens; where these are (input, answer) pairs, the context's moments E[y xᵀ] and E[y], with y all but x."""
        first, tokens = self.answers[0], episodes.tokens.double()
        if not self._folder.manifest.get("pairs") or first == 0:
            return tokens.flatten(1)
        x, y = tokens[:, :first, : self.d_x], tokens[:, :first, self.d_x :]
        return torch.cat([(y.transpose(1, 2) @ x / first).flatten(1), y.mean(1)], dim=1)

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def _at_answers(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        at = list(self.answers)
        return prediction[:, at], targets[:, at]

    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Squared error, or cross-entropy in nats; the mean over the answers."""
        found, wanted = self._at_answers(prediction, targets)
        if self._classes:
            return cross_entropy(found.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
        return (found - wanted).square().mean()

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """R² about the mean answer of training; or, for classes, 1 where any answer of the episode is wrong."""
        found, wanted = self._at_answers(prediction, targets)
        if self._classes:
            wrong = ((answered(found) != wanted) & (wanted != IGNORED)).any(1).double()
            return wrong, torch.ones_like(wrong)
        mean = self._mean_answer.to(wanted.device)
        error, spread = found.double() - wanted.double(), wanted.double() - mean
        return error.square().sum((1, 2)), spread.square().sum((1, 2))

    def metrics(self, prediction: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The score; for classes, also the accuracy of single answers."""
        measured = {"score": self.errors(prediction, targets)}
        if self._classes and len(self.answers) > 1:
            found, wanted = self._at_answers(prediction, targets)
            asked = wanted != IGNORED
            wrong = ((answered(found) != wanted) & asked).double().sum(1) / asked.double().sum(1)
            measured["accuracy per answer"] = (wrong, torch.ones_like(wrong))
        return measured

    @cached_property
    def _mean_answer(self) -> Tensor:
        """(answer, d_out), over what training shows; read in pieces."""
        start, stop = self._folder.rows.get("train") or next(iter(self._folder.rows.values()))
        targets, at = self._folder.array("targets"), list(self.answers)
        pieces = (targets[i : min(i + 4096, stop)][:, at] for i in range(start, stop, 4096))
        return torch.from_numpy(np.asarray(sum(p.sum(0, dtype=np.float64) for p in pieces) / (stop - start)))
