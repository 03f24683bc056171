"""Text classification on GLUE (1804.07461), read from disk: one sentence, or a pair, and its class.

    [0] … [0]  word  word  …  word  [answer]                      SST-2, CoLA
    [0] … [0]  word  …  word  [next text]  word  …  word  [answer]   MRPC, RTE, QNLI

A word is a run of letters and digits in lower case, or a punctuation mark. Its token holds its three-letter parts, each in one
of `features` places that a checksum of the part chooses: there is no vocabulary, and no word is unknown. Two more places mark
the next text and the answer. Short texts are filled up in front with tokens of 0.

No latent code of a sentence is known but its class. A composition is a range of lengths. Held out are longer texts than those
of training:

    train   train.tsv, texts of at most `longest` words
    test    dev.tsv, the same lengths
    ood     both files, texts with more words, up to twice as many; longer ones are left out

Every line is one episode; batches draw lines uniformly, with replacement.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from compolens.foundation.configs import nearest, require, require_positive
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import SPLITS, Episodes, answered, check_drawing
from compolens.tasks.glue.files import LAYOUTS, read_examples

WORD = re.compile(r"\w+|[^\w\s]")
RANGES = 4
"""Training has so many ranges of lengths, and so have the held-out texts."""


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case.

    Args:
        text: any.

    Returns:
        Runs of letters and digits, and punctuation marks, in order.
    """
    return WORD.findall(text.lower())


def features_of(word: str, width: int) -> Tensor:
    """A word as a vector: which three-letter parts it has, its beginning and end marked.

    Args:
        word: at least a letter.
        width: of the vector.

    Returns:
        (width,) with norm 1.
    """
    marked, found = f"<{word}>", torch.zeros(width)
    for i in range(max(1, len(marked) - 2)):
        found[zlib.crc32(marked[i : i + 3].encode()) % width] += 1
    return found / found.norm()


class _Lines(NamedTuple):
    """The lines that are used: ids of their tokens (line, seq), classes, numbers of words, and the compositions of these."""

    ids: Tensor
    label: Tensor
    words: Tensor
    composition: Tensor


@dataclass(frozen=True)
class Glue(TaskFamily):
    """The family; the module says what an episode looks like.

    Args:
        data: the folder that holds GLUE, a folder per task. It is read when an episode or a composition is first asked for. It
            stands in config.json; `--data DIR` on the command line replaces it, and equal descriptions draw equal episodes
            only from equal files.
        name: the task: SST-2, CoLA, MRPC, RTE or QNLI.
        longest: words of the longest text, or pair of texts, that is trained on; a multiple of 4.
        features: places for parts of words, 8 or more.
    """

    data: str = ""
    name: str = "SST-2"
    longest: int = 24
    features: int = 256

    missing: ClassVar[dict[str, str]] = {
        "render": "its texts come from files, which show each under its own class alone",
        "attention_code": "its class is that of a whole text, which no one pair of words stands for",
        "latent_geometry": "its class is that of a whole text, which no one pair of words stands for",
        "patching": "it needs the same inputs under two codes, and its texts come from files",
    }
    code_kinds: ClassVar[dict[str, str]] = {"class": "categorical"}
    score_name: ClassVar[str] = "accuracy"
    ceiling: ClassVar[str] = "not known"

    def __post_init__(self) -> None:
        require(isinstance(self.data, str | os.PathLike), f"Glue: data must be the path of a folder, got {self.data!r}")
        object.__setattr__(self, "data", os.fspath(self.data))
        super().__post_init__()
        require(self.name in LAYOUTS, f"Glue: there is no task {self.name!r} here; name is one of {', '.join(LAYOUTS)}; "
                f"{nearest(self.name, LAYOUTS)}")  # fmt: skip
        require_positive(self, "longest", "features")
        require(self.longest % RANGES == 0, f"Glue: longest must be a multiple of {RANGES}, got {self.longest}")
        require(self.longest <= 512, f"Glue: longest must be at most 512 words, got {self.longest}")
        require(8 <= self.features <= 65536, f"Glue: features must be from 8 to 65536, got {self.features}")

    @property
    def setting(self) -> str:
        return f"{type(self).__name__} {self.name}, up to {self.longest} words"

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        """Parts of words, and the two marks."""
        return self.features + 2

    @property
    def d_out(self) -> int:
        return len(LAYOUTS[self.name].classes)

    @property
    def seq(self) -> int:
        return 2 * self.longest + len(LAYOUTS[self.name].texts)

    @property
    def answers(self) -> tuple[int, ...]:
        return (self.seq - 1,)

    # ---- files and the split -----------------------------------------------------------------------------------------
    @cached_property
    def _read(self) -> tuple[_Lines, Tensor, dict[str, Tensor], int]:
        """The lines that are used, token vectors (token, d_in), split -> numbers of its lines, and how many are left out."""
        examples = read_examples(self.data, self.name)
        cut = [[words_of(text) for text in example.texts] for example in examples]
        length = torch.tensor([sum(map(len, texts)) for texts in cut])
        file = torch.tensor([example.file for example in examples])
        composition = (length - 1).clamp(min=0) // (self.longest // RANGES)
        short = (length >= 1) & (length <= self.longest)
        both = set(composition[short & (file == 0)].tolist()) & set(composition[short & (file == 1)].tolist())
        known = short & torch.isin(composition, torch.tensor(sorted(both), dtype=torch.long))
        masks = {"train": known & (file == 0), "test": known & (file == 1)}
        masks["ood"] = (length > self.longest) & (length <= 2 * self.longest)
        for split, mask in masks.items():
            require(
                bool(mask.any()),
                f"Glue: the split {split!r} of {self.name} has no text, with {int(length.min())} to {int(length.max())} words "
                f"in {len(length)} lines and longest={self.longest}; choose another longest",
            )
        vocabulary: dict[str, int] = {}
        ids = torch.zeros(len(examples), self.seq, dtype=torch.long)
        for row, texts in zip(ids, cut, strict=True):
            line = self._line(texts, vocabulary)
            if len(line) <= self.seq:
                row[self.seq - len(line) :] = torch.tensor(line)
        vectors = torch.zeros(len(vocabulary) + 3, self.d_in)
        vectors[1, -2] = vectors[2, -1] = 1
        for word, at in vocabulary.items():
            vectors[at, : self.features] = features_of(word, self.features)
        label = torch.tensor([example.label for example in examples])
        places = {split: mask.nonzero()[:, 0] for split, mask in masks.items()}
        return _Lines(ids, label, length, composition), vectors, places, len(length) - sum(map(len, places.values()))

    @staticmethod
    def _line(texts: list[list[str]], vocabulary: dict[str, int]) -> list[int]:
        """The tokens of a line: 0 fills up, 1 marks the next text, 2 the answer, words follow as they come."""
        found: list[int] = []
        for number, text in enumerate(texts):
            found += [1] * (number > 0)
            found += [vocabulary.setdefault(word, len(vocabulary) + 3) for word in text]
        return [*found, 2]

    def compositions(self, split: str) -> tuple[int, ...]:
        """Ranges of lengths, counted from the shortest."""
        self.check_split(split)
        lines, _, places, _ = self._read
        return tuple(lines.composition[places["ood" if split == "ood" else "train"]].unique().tolist())

    def composition_name(self, composition: int) -> str:
        step = self.longest // RANGES
        return f"{composition * step + 1} to {(composition + 1) * step} words"

    def describe_split(self) -> dict[str, Any]:
        lines, _, places, left = self._read
        counts = {split: Counter(lines.label[places[split]].tolist()) for split in SPLITS}
        classes = LAYOUTS[self.name].classes
        told = {split: {name: counts[split][i] for i, name in enumerate(classes)} for split in SPLITS}
        return {"lines": told, "left_out": left}

    # ---- episodes ----------------------------------------------------------------------------------------------------
    @cached_property
    def _tables(self) -> dict[torch.device, tuple[_Lines, Tensor, dict[str, Tensor]]]:
        return {}

    def _on(self, device: torch.device) -> tuple[_Lines, Tensor, dict[str, Tensor]]:
        if device not in self._tables:
            lines, vectors, places, _ = self._read
            moved = {split: where.to(device) for split, where in places.items()}
            self._tables[device] = _Lines(*(part.to(device) for part in lines)), vectors.to(device), moved
        return self._tables[device]

    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        """`inputs` (batch, 1) says which lines these are, those of train.tsv first. The nuisance is the number of words."""
        check_drawing(n, rng)
        chosen = self.choose_compositions(split, compositions)
        lines, vectors, places = self._on(rng.device)
        where = places[split]
        if compositions is not None:
            where = where[torch.isin(lines.composition[where], torch.tensor(chosen, device=rng.device))]
        which = where[torch.randint(len(where), (n,), generator=rng, device=rng.device)]
        label = lines.label[which]
        codes, nuisances = {"class": label}, {"words": lines.words[which].double()}
        tokens, targets = vectors[lines.ids[which]], label[:, None].expand(-1, self.seq).contiguous()
        return Episodes(tokens, targets, codes, lines.composition[which], which[:, None], nuisances)

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """The sum of all tokens, (batch, d_in): a bag of the parts of words."""
        return episodes.tokens.double().sum(1)

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy at the last token."""
        return cross_entropy(prediction[:, -1], targets[:, -1])

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the class of highest logit is wrong."""
        wrong = (answered(prediction[:, -1]) != targets[:, -1]).double()
        return wrong, torch.ones_like(wrong)

    def metrics(self, prediction: Tensor, targets: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The score, and two more.

        "balanced accuracy": every class weighs the same as in training, so one class alone scores 1/2. "F1" is that of the
        second class, by which GLUE judges MRPC: 2 TP / (2 TP + FP + FN).
        """
        wrong, one = self.errors(prediction, targets)
        found = (1 - wrong) * (targets[:, -1] == 1)
        lines, _, places, _ = self._read
        share = torch.bincount(lines.label[places["train"]], minlength=self.d_out).double() / len(places["train"])
        weight = (1 / (self.d_out * share.clamp(min=1e-9))).to(wrong.device)[targets[:, -1]]
        return {
            "score": (wrong, one),
            "balanced accuracy": (wrong * weight, weight),
            "F1": (wrong, wrong + 2 * found),
        }
