"""Few-shot prompts for language models: an operation on words, where it is applied, and a format, composed as text.

    cat sun : CAT    dog sea : DOG    red cup :       (operation upper, of the first word, in the format "x : y")
    ^ two words      ^ examples       ^ the question; asked is the first token of its answer

A composition is an operation, a place (the first or the second of two words) and a format. Held out are pairs of operation
and place, or of operation and format: training shows each of the two in other company. The same words under another
composition are another prompt, so counterfactuals are exact. Text becomes tokens by a tokenizer of a local folder,
or one token a word.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from compolens.foundation.configs import ConfigError, added_later, frozen, nearest, require, require_positive
from compolens.tasks.base import TaskFamily, require_few
from compolens.tasks.episodes import Episodes, Sheet, answered, check_drawing

OPERATIONS: dict[str, Callable[[str], str]] = {
    "copy": lambda word: word,
    "upper": str.upper,
    "reverse": lambda word: word[::-1],
    "first letter": lambda word: word[0],
    "last letter": lambda word: word[-1],
    "plural": lambda word: word + "s",
    "double": lambda word: word + word,
}
"""What can be done to a word."""
FORMATS = ("{x} : {y}\n", "{x} -> {y} ; ", "in {x} out {y}\n")
"""How an example is written; {x} are the two words, {y} is the answer."""
WORDS = (
    "cat", "dog", "sun", "sea", "red", "cup", "bed", "pig", "hat", "map", "ink", "oak", "rye", "fox", "jar", "key", "log",
    "net", "owl", "pie", "web", "van", "tub", "gem",
)  # fmt: skip
COUNTED = ("question", "all")
"""Which answers a loss counts."""
IGNORED = -100
"""The target of a position that no loss counts, as in transformers."""
SMALL = 1024
"""Tokens of a vocabulary up to which prompts are shown one-hot, as architectures here take them; beyond, as ids."""


@dataclass(frozen=True)
class FewShot(TaskFamily):
    """The family; the module says what a prompt looks like.

    Codes: "operation", "place", "format" (batch,) numbers. Scored is whether the token of highest logit is the first token of
    the answer. Padding comes first: all zero one-hot, or the id -1.

    >>> task = FewShot(n_examples=2)
    >>> drawn = task.sample(3, "ood", task.rng(0, "ood"))
    >>> drawn.tokens.shape == (3, task.seq, task.d_in), task.answers == (task.seq - 1,)
    (True, True)

    Args:
        operations: names in `OPERATIONS`, or in `maps`.
        places: which of the two words is meant, among "first" and "second".
        formats: templates with {x} and {y}, which ends the text it can be asked by.
        words: the words, at least n_examples + 1 pairs of them.
        maps: further operations on these words: (name, the answers in the order of `words`), such as antonyms.
        n_examples: examples before the question.
        fraction_held_out: of the pairs (operation, place) and (operation, format), drawn with `split_seed` so that each
            operation, place and format is trained.
        tokenizer: a local folder with a tokenizer of transformers; "": one token a word.
        split_seed: draws which pairs are held out.
        counted: which answers the loss counts: "question", the last one, or "all": those of the examples too, which a causal
            model tells from the examples before. Scored is always the question's.
    """

    operations: tuple[str, ...] = ("copy", "upper", "reverse", "last letter")
    places: tuple[str, ...] = ("first", "second")
    formats: tuple[str, ...] = FORMATS[:2]
    words: tuple[str, ...] = WORDS
    maps: tuple[tuple[str, tuple[str, ...]], ...] = ()
    n_examples: int = 4
    fraction_held_out: float = 0.25
    tokenizer: str = ""
    split_seed: int = 0
    counted: str = added_later("question")

    code_kinds: ClassVar[dict[str, str]] = {"operation": "categorical", "place": "categorical", "format": "categorical"}
    score_name: ClassVar[str] = "accuracy of the first token"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "n_examples")
        for name in ("operations", "places", "formats", "words", "maps"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        for entry in self.maps:
            pair = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], tuple)
            require(pair, f"maps must list (name, answers in the order of words), got {entry!r}")
        known = [*OPERATIONS, *(name for name, _ in self.maps)]
        for name in self.operations:
            require(name in known, f"no operation {name!r}; {nearest(str(name), known)}, or give it in maps")
        for name in self.places:
            require(name in ("first", "second"), f"no place {name!r}; {nearest(str(name), ('first', 'second'))}")
        for template in self.formats:
            fits = template.count("{x}") == 1 and template.count("{y}") == 1 and template.index("{x}") < template.index("{y}")
            require(fits, f"a format has {{x}} and then {{y}}, once each, such as {FORMATS[0]!r}; got {template!r}")
        for word in self.words:
            require(bool(word.strip()), f"words must not be empty, got {word!r}; leave it out")
        for name, answers in self.maps:
            require(len(answers) == len(self.words), f"maps: {name!r} has {len(answers)} answers for {len(self.words)} words")
        require(self.counted in COUNTED, f"FewShot: counted is {self.counted!r}; {nearest(str(self.counted), COUNTED)}")
        distinct = all(len(set(part)) == len(part) > 0 for part in (self.operations, self.places, self.formats, self.words))
        require(distinct, "operations, places, formats and words must each be listed once")
        for o, w in product(range(len(self.operations)), range(len(self.words))):
            told = f"{self.operations[o]!r} makes nothing of {self.words[w]!r}; every word needs an answer"
            require(bool(self.answer(o, w).strip()), told)
        need = 2 * (self.n_examples + 1)
        require(len(self.words) >= need, f"{self.n_examples} examples and a question take {need} words, got {len(self.words)}")
        require_few(type(self).__name__, [len(self._universe)], "name fewer operations or formats")
        _ = self._split

    # ---- compositions ------------------------------------------------------------------------------------------------
    @cached_property
    def _universe(self) -> list[tuple[int, int, int]]:
        return list(product(range(len(self.operations)), range(len(self.places)), range(len(self.formats))))

    @cached_property
    def _split(self) -> tuple[list[int], list[int]]:
        """(train, ood) as indices into the universe."""
        places, formats, fraction = len(self.places), len(self.formats), self.fraction_held_out
        require(0 < fraction < 1, f"fraction_held_out must lie between 0 and 1, got {fraction}")
        pairs = [(o, 1, p) for o in range(len(self.operations)) for p in range(places) if places > 1]
        pairs += [(o, 2, f) for o in range(len(self.operations)) for f in range(formats) if formats > 1]
        require(bool(pairs), "two places or two formats at least are needed, or no pair can be held out")
        count = max(1, int(fraction * len(pairs)))
        shuffler = random.Random(self.split_seed)
        for _ in range(1000):
            out = set(shuffler.sample(pairs, count))
            train = [c for c in self._universe if (c[0], 1, c[1]) not in out and (c[0], 2, c[2]) not in out]
            whole = [len({c[k] for c in train}) for k in range(3)]
            if whole == [len(self.operations), places, formats] and len(train) > 1:
                ood = [i for i, c in enumerate(self._universe) if c not in train]
                return [self._universe.index(c) for c in train], ood
        raise ConfigError(
            f"with fraction_held_out={fraction} no split in 1,000 draws trains every operation, place and "
            "format; hold out less"
        )

    def compositions(self, split: str) -> tuple[int, ...]:
        """Numbers in the product of operations, places and formats."""
        self.check_split(split)
        return tuple(self._split[split == "ood"])

    @property
    def n_compositions(self) -> int:
        return len(self._universe)

    def composition_name(self, composition: int) -> str:
        operation, place, form = self._universe[composition]
        return f"{self.operations[operation]}, {self.places[place]}, format {form + 1}"

    def describe_split(self) -> dict[str, Any]:
        named = {split: [self.composition_name(c) for c in self.compositions(split)] for split in ("train", "ood")}
        return {"train": named["train"], "held_out": named["ood"]}

    # ---- text --------------------------------------------------------------------------------------------------------
    def answer(self, operation: int, word: int) -> str:
        """What an operation makes of a word.

        Args:
            operation: its number among `operations`.
            word: its number among `words`.

        Returns:
            The text.
        """
        name = self.operations[operation]
        given = dict(self.maps)
        return given[name][word] if name in given else OPERATIONS[name](self.words[word])

    @cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        """Text -> ids."""
        if self.tokenizer:
            loaded = self._tokenizer
            return lambda text: list(loaded.encode(text, add_special_tokens=False))
        known = {piece: i for i, piece in enumerate(self._pieces)}
        return lambda text: [known[piece] for piece in _split_words(text)]

    @cached_property
    def _pieces(self) -> list[str]:
        """The vocabulary where there is no tokenizer."""
        texts = [*self.formats, *self.words]
        texts += [self.answer(o, w) for o in range(len(self.operations)) for w in range(len(self.words))]
        pieces = [piece for text in texts for piece in _split_words(text.replace("{x}", " ").replace("{y}", " "))]
        return list(dict.fromkeys(pieces))

    @cached_property
    def _vocabulary(self) -> int:
        if not self.tokenizer:
            return len(self._pieces)
        return len(self._tokenizer)

    @cached_property
    def _tokenizer(self) -> Any:
        """As transformers reads it; a relative path counts from where one is, or from above the model's folder."""
        from transformers import AutoTokenizer

        seen_from = [Path(), *vars(self).get("_above", ())]
        found = next((path / self.tokenizer for path in seen_from if (path / self.tokenizer).is_dir()), self.tokenizer)
        try:
            return AutoTokenizer.from_pretrained(str(found), local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError) as error:
            reason = f"it holds none that can be read ({' '.join(str(error).split())[:200]})"
            if not Path(found).is_dir():
                reason = f"there is no such folder; the path counts from {os.getcwd()!r}, or from one above the model's"
            raise ConfigError(f"no tokenizer in {self.tokenizer!r}: {reason}; name a folder that holds one") from None

    def look_above(self, folder: Path, wanted: str | None = None) -> None:
        """Look for a relative `tokenizer` also in the folders above this one.

        Args:
            folder: a model's folder, which may be asked for from anywhere.
            wanted: of stored episodes; there are none here.
        """
        object.__setattr__(self, "_above", tuple(folder.resolve().parents))

    def _asked(self, form: int, first: int, second: int, gap: str = "") -> str:
        """The text of an example up to its answer, with `gap` around the words."""
        words = f"{gap}{self.words[first]} {self.words[second]}{gap}"
        return self.formats[form].split("{y}")[0].replace("{x}", words).rstrip(" ")

    @cached_property
    def _known_pieces(self) -> dict[tuple, list[int]]:
        """Ids of texts that were encoded, which come again and again."""
        return {}

    def _ids(self, *key: int) -> list[int]:
        """(format, first, second): of the question; (format, operation, word, 0): of the answer with what follows it;
        (operation, word): of the answer alone."""
        if key not in self._known_pieces:
            gap = "" if self.tokenizer else " "  # where a word is a token, so is what touches it
            if len(key) == 3:
                text = self._asked(*key, gap=gap)
            elif len(key) == 4:
                text = " " + self.answer(key[1], key[2]) + gap + self.formats[key[0]].split("{y}")[1]
            else:
                text = " " + self.answer(*key)
            self._known_pieces[key] = self._encode(text)
        return self._known_pieces[key]

    def prompt(self, codes: dict[str, Tensor], inputs: Tensor, row: int) -> str:
        """The text of an episode, without its answer.

        Args:
            codes: as in `Episodes.codes`.
            inputs: as in `Episodes.inputs`.
            row: which episode.

        Returns:
            The text.
        """
        operation, place, form = (int(codes[name][row]) for name in self.code_kinds)
        text = ""
        for i, (first, second) in enumerate(inputs[row].tolist()):
            text += self._asked(form, first, second)
            if i < self.n_examples:
                text += " " + self.answer(operation, (first, second)[self._where(place)]) + self.formats[form].split("{y}")[1]
        return text

    def _where(self, place: int) -> int:
        return ("first", "second").index(self.places[place])

    # ---- shape -------------------------------------------------------------------------------------------------------
    @property
    def d_in(self) -> int:
        return self._vocabulary

    @property
    def d_out(self) -> int:
        return self._vocabulary

    @cached_property
    def _longest(self) -> int:
        """Tokens of the longest prompt that there can be."""
        n, best = range(len(self.words)), 0
        for form in range(len(self.formats)):
            asked = max(len(self._ids(form, a, b)) for a in n for b in (0, len(self.words) - 1, a))
            shown = max(len(self._ids(form, o, w, 0)) for o in range(len(self.operations)) for w in n)
            best = max(best, (self.n_examples + 1) * asked + self.n_examples * shown)
        return best + (2 * self.n_examples if self.tokenizer else 0)

    @property
    def seq(self) -> int:
        return self._longest

    @property
    def answers(self) -> tuple[int, ...]:
        return (self.seq - 1,)

    # ---- episodes ----------------------------------------------------------------------------------------------------
    def sample(self, n: int, split: str, rng: torch.Generator, compositions: Sequence[int] | None = None) -> Episodes:
        check_drawing(n, rng)
        chosen = torch.tensor(self.choose_compositions(split, compositions))
        composition = chosen[torch.randint(len(chosen), (n,), generator=rng, device=rng.device).cpu()]
        order = torch.rand(n, len(self.words), generator=rng, device=rng.device).argsort(1).cpu()
        inputs = order[:, : 2 * (self.n_examples + 1)].unflatten(1, (-1, 2))
        codes = torch.tensor(self._universe)[composition]
        return self.render(dict(zip(self.code_kinds, codes.unbind(1), strict=True)), inputs).to(rng.device)

    def render(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """These pairs of words (batch, example, 2) under those codes."""
        device, rows, told = inputs.device, [], []
        words, wanted = inputs.cpu().tolist(), []
        columns = [codes[name].cpu().tolist() for name in self.code_kinds]
        for pairs, operation, place, form in zip(words, *columns, strict=True):
            ids: list[int] = []
            asked: list[int] = []
            for i, (first, second) in enumerate(pairs):
                ids += self._ids(form, first, second)
                meant = (first, second)[self._where(place)]
                if i < self.n_examples:
                    asked.append(len(ids) - 1)
                    ids += self._ids(form, operation, meant, 0)
            wanted.append(self._ids(operation, meant)[0])
            require(len(ids) <= self.seq, f"a prompt has {len(ids)} tokens, more than the {self.seq} found beforehand")
            rows.append([-1] * (self.seq - len(ids)) + ids)
            told.append([self.seq - len(ids) + at for at in asked])
        tokens = torch.tensor(rows, device=device)
        targets = tokens.roll(-1, 1).clamp(min=0)  # at every other position, what comes next
        if self.counted == "all":
            answers = torch.zeros_like(targets, dtype=torch.bool).scatter(1, torch.tensor(told, device=device).long(), True)
            targets = torch.where(answers, targets, IGNORED)
        targets[:, -1] = torch.tensor(wanted, device=device)
        if self._vocabulary <= SMALL:
            tokens = one_hot(tokens + 1, self._vocabulary + 1)[..., 1:].float()
        first, second, third = (codes[name].to(device) for name in self.code_kinds)
        composition = (first * len(self.places) + second) * len(self.formats) + third
        own = {name: codes[name].to(device) for name in self.code_kinds}
        return Episodes(tokens, targets, own, composition, inputs, {})

    def context_asked(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Each example's words as the question after all examples; only its answer's target is known."""
        asked = []
        for i in range(self.n_examples):
            inputs = episodes.inputs.clone()
            inputs[:, -1] = inputs[:, i]
            asked.append(self.render(episodes.codes, inputs))
        return torch.stack([one.tokens for one in asked], 1), torch.stack([one.targets for one in asked], 1)

    def candidates(self, episodes: Episodes, allowed: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """As in the base class, of small vocabularies; beyond, the answers of all compositions would take too much memory."""
        return super().candidates(episodes, allowed) if self._vocabulary <= SMALL else None

    def raw_statistic(self, episodes: Episodes) -> Tensor:
        """How often each token occurs (of large vocabularies, of each group of them), and the last two tokens."""
        tokens = episodes.tokens
        ids = torch.where(tokens.ne(0).any(-1), tokens.argmax(-1), -1) if tokens.is_floating_point() else tokens
        width = min(self._vocabulary, SMALL)
        hot = one_hot(torch.where(ids < 0, width, ids % width), width + 1)[..., :width].double()
        return torch.cat([hot.sum(1), hot[:, -1], hot[:, -2]], 1)

    # ---- loss and score ----------------------------------------------------------------------------------------------
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the first token of the answers that are counted, in nats."""
        if self.counted == "question" or prediction.stride(1) == 0:  # known at the question alone, as of large vocabularies
            return cross_entropy(prediction[:, -1], targets[:, -1])
        return cross_entropy(prediction.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def errors(self, prediction: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the answer's first token is not the one of highest logit."""
        wrong = (answered(prediction[:, -1]) != targets[:, -1]).double()
        return wrong, torch.ones_like(wrong)

    # ---- for readers -------------------------------------------------------------------------------------------------
    def sheets(self, episodes: Episodes, prediction: Tensor) -> list[Sheet]:
        """The prompt as text, and the answer."""
        operation, place, _ = (int(episodes.codes[name][0]) for name in self.code_kinds)
        word = int(episodes.inputs[0, -1, self._where(place)])
        hit = int(prediction[0, -1].argmax()) == int(episodes.targets[0, -1])
        made = (("composition", self.composition_name(int(episodes.composition[0]))),)
        text = tuple((line,) for line in self.prompt(episodes.codes, episodes.inputs, 0).splitlines())
        asked = ((self.answer(operation, word), "right" if hit else "wrong"),)
        return [Sheet("what it is made of", (), made), Sheet("prompt", (), text), Sheet("question", ("answer", ""), asked)]


def _split_words(text: str) -> list[str]:
    """Words, and every end of a line as one of its own."""
    return [piece for piece in text.replace("\n", " \n ").split(" ") if piece]
