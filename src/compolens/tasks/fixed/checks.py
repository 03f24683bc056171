"""What a set of episodes must satisfy before anything is trained on it: shapes, numbers, splits, leaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from compolens.foundation.configs import ConfigError, nearest, require, shown
from compolens.tasks.episodes import SPLITS


class Arrays(NamedTuple):
    """Checked arrays, a row per episode, sorted by split; float32 or int64.

    Args:
        tokens: (n, seq, d_in) floats, or (n, seq) ids.
        targets: (n, seq, d_out) floats or (n, seq) classes, zero away from the answers where only these were given.
        codes: name -> (n, ...).
        composition: (n,) numbers.
        names: what compositions are called, () if by their number.
        split: (n,) words.
        answers: positions that are asked for, at least 0, ascending.
        asked: the same in the order in which they were given, in which targets of the answers alone come.
        everywhere: whether targets were given at every position.
    """

    tokens: np.ndarray
    targets: np.ndarray
    codes: dict[str, np.ndarray]
    composition: np.ndarray
    names: tuple[str, ...]
    split: np.ndarray
    answers: tuple[int, ...]
    asked: tuple[int, ...]
    everywhere: bool


def checked(
    tokens: Any,
    targets: Any,
    codes: Mapping[str, Any],
    composition: Any,
    split: Any,
    answers: Sequence[int],
    at_least: int,
    padding: np.ndarray | None = None,
) -> Arrays:
    """The arrays as they will be stored.

    Args:
        tokens: (n, seq, d_in) floats, or (n, seq) ids.
        targets: at every position or at the answers alone, as in `FixedEpisodes.write`.
        codes: name -> (n, ...).
        composition: (n,) numbers or words.
        split: (n,) words "train", "test", "ood".
        answers: positions that are asked for; may be negative.
        at_least: episodes per composition and split.
        padding: (n, seq) bool, True where there is no token (None: nowhere); two episodes that differ in it are two.

    Returns:
        The arrays, rows sorted by split.

    Raises:
        ConfigError: what is wrong, and where.
    """
    require(isinstance(codes, Mapping), f"codes must be a mapping from names to arrays, got {shown(codes)}")
    require(_whole(at_least) and at_least >= 1, f"at_least must be a whole number of at least 1, got {shown(at_least)}")
    x, y = numbers("tokens", tokens), numbers("targets", targets)
    require(
        x.ndim == (2 if x.dtype.kind == "i" else 3),
        f"tokens must be floats (episode, position, d_in) or whole numbers (episode, position), got {x.dtype} {x.shape}",
    )
    require(x.size > 0, f"tokens hold nothing: they are {x.shape}; give at least one number a token, and one token an episode")
    n, seq = x.shape[:2]
    where = positions(answers, seq)
    y, everywhere = _targets(y, n, seq, where)
    kept = {name: numbers(f"codes[{name!r}]", code) for name, code in codes.items()}
    which, names = _compositions(composition)
    words = _words("split", split)
    lengths = {"tokens": n, "targets": len(y), "composition": len(which), "split": len(words)}
    lengths |= {f"codes[{name!r}]": len(code) for name, code in kept.items()}
    require(len(set(lengths.values())) == 1, f"every array has a row per episode; got {lengths}")
    for name in np.unique(words).tolist():
        require(name in SPLITS, f"no split {name!r}; {nearest(str(name), SPLITS)}")
    order = np.argsort([SPLITS.index(word) for word in words.tolist()], kind="stable")
    kept = {name: code[order] for name, code in kept.items()}
    ascending = tuple(sorted(where))
    found = Arrays(x[order], y[order], kept, which[order], names, words[order], ascending, where, everywhere)
    _check_splits(found, at_least)
    _check_leaks(found, order, np.zeros((n, 0), bool) if padding is None else padding[order])
    _check_answers(found)
    return found


IGNORED = -100
"""The class of an answer that is not asked for."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number that is kept: float32."""
MOST_CLASSES = 2**18
"""How many token ids, classes, levels of a code and compositions there may be: all are counted, most shown one-hot."""


def numbers(name: str, value: Any) -> np.ndarray:
    """An array of finite numbers from whatever holds them.

    Args:
        name: what it is called in errors.
        value: a numpy array, torch tensor, list or column of lists, a row per episode.

    Returns:
        float32 or int64.

    Raises:
        ConfigError: rows of different shapes, or anything that is no finite number; it names the first.
    """
    try:
        array = _dense(_array(value))
    except ValueError as error:
        raise ConfigError(f"{name}: the episodes do not all have the same shape ({error})") from error
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be read as numbers ({' '.join(str(error).split())[:200]})") from error
    require(array.ndim >= 1, f"{name} must have a row per episode, got the single value {shown(value)}")
    hidden = int(np.ma.getmaskarray(value).sum()) if isinstance(value, np.ma.MaskedArray) else 0
    require(not hidden, f"{name} has {hidden} masked entries, which no file keeps; fill them, or drop these episodes")
    if array.dtype.kind in "bui":
        _check_each(name, array, array > 2**63 - 1, ", beyond int64")
        return np.ascontiguousarray(array, dtype=np.int64)
    require(array.dtype.kind == "f", f"{name} must hold numbers, got {array.dtype}")
    _check_each(name, array, ~np.isfinite(array), "")
    _check_each(name, array, np.abs(array) > LARGEST, f", beyond float32 (at most {LARGEST:.3g})")
    return np.ascontiguousarray(array, dtype=np.float32)


def _array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.double() if value.is_floating_point() else value).numpy()
    return value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)


def _check_each(name: str, array: np.ndarray, broken: np.ndarray, what: str) -> None:
    """Raise, naming the first entry that is marked as broken."""
    if not broken.any():
        return
    place = np.argwhere(broken)[0].tolist()
    more = int(broken.sum()) - 1
    at, value = ", ".join(map(str, place)), array[tuple(place)]
    raise ConfigError(f"{name}[{at}] is {value}{what}, and so are {more} more; drop or repair these episodes")


def few(name: str, array: np.ndarray, what: str) -> None:
    """Check that whole numbers are small enough to be counted from 0 one by one.

    Args:
        name: what they are called in the error, in the plural.
        array: any shape, whole numbers; the largest of them is compared.
        what: what each of them numbers, such as "classes".

    Raises:
        ConfigError: one is `MOST_CLASSES` or more.
    """
    largest = int(array.max(initial=0))
    require(
        largest < MOST_CLASSES,
        f"{name} reach {largest}, and {what} are counted from 0 and at most {MOST_CLASSES:,}; number them anew, without gaps",
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def one_a_row(name: str, given: Any) -> np.ndarray:
    """Numbers or words as an array.

    Args:
        name: what they are called in the error.
        given: a number or word per episode.

    Returns:
        The array.

    Raises:
        ConfigError: the rows differ in length.
    """
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{name} must be one number or word per episode, got {shown(given)}") from error


def _words(name: str, given: Any) -> np.ndarray:
    """(episode,) words."""
    words = one_a_row(name, given.tolist() if hasattr(given, "tolist") else given)
    require(words.ndim == 1, f"{name} must be one word per episode, got {shown(given)}")
    strange = [word for word in words.tolist() if not isinstance(word, str)]
    require(not strange, f"{name} must hold words, got {shown(strange[0]) if strange else ''}")
    return words


def _dense(array: np.ndarray) -> np.ndarray:
    """Columns of lists (of lists) as one block."""
    if (
        array.dtype != object
        or array.ndim == 0
        or not len(array)
        or not hasattr(array[0], "__len__")
        or isinstance(array[0], str)
    ):
        return array
    return np.stack([_dense(np.asarray(cell)) for cell in array])


def positions(answers: Sequence[int], seq: int) -> tuple[int, ...]:
    """The positions that are asked for, the same ones in all episodes.

    Args:
        answers: positions; may be negative.
        seq: tokens of an episode.

    Returns:
        The positions, at least 0, in the order in which they were given.

    Raises:
        ConfigError: these are no positions, or one comes twice.
    """
    listed = isinstance(answers, Sequence | np.ndarray | torch.Tensor) and not isinstance(answers, str)
    require(listed, f"answers must list positions, such as (-1,); got {shown(answers)}")
    answers = answers.tolist() if hasattr(answers, "tolist") else answers
    require(isinstance(answers, Sequence), f"answers must list positions, such as (-1,); got {shown(answers)}")
    for answer in answers:
        require(
            _whole(answer) and -seq <= answer < seq,
            f"answers must be positions of the {seq} tokens (-{seq} to {seq - 1}), got {answer!r}",
        )
    where = tuple(int(answer) % seq for answer in answers)
    require(0 < len(where) == len(set(where)), f"answers must name one position or more, each once, got {list(answers)}")
    return where


def _targets(y: np.ndarray, n: int, seq: int, answers: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """Targets at every position, and whether they were given at every position."""
    classes, short = y.dtype.kind == "i", len(answers)
    if not classes and y.ndim == 2 and y.shape[1] == seq:
        raise ConfigError(
            f"targets {y.shape} could be one number at every position or {seq} numbers at the answer; "
            "write targets[:, :, None] for the first, targets[:, None, :] for the second"
        )
    if short == 1 and y.ndim == (1 if classes else 2):
        y = y[:, None]
    expected = (
        "(episode, position) or (episode, answer)" if classes else "(episode, position, d_out) or (episode, answer, d_out)"
    )
    right = y.ndim == (2 if classes else 3) and y.shape[1] in (seq, short) and y.size > 0
    require(right, f"targets must be {expected} with {seq} positions and {short} answer(s); got {y.dtype} {y.shape}")
    if y.shape[1] == seq:
        return y, True
    whole = np.zeros((len(y), seq, *y.shape[2:]), dtype=y.dtype)
    whole[:, list(answers)] = y
    return whole, False


def _compositions(composition: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """(episode,) numbers, and what they are called if they were given as words."""
    given = (
        composition.detach().cpu().numpy() if isinstance(composition, torch.Tensor) else one_a_row("composition", composition)
    )
    hidden = isinstance(composition, np.ma.MaskedArray) and bool(np.ma.getmaskarray(composition).any())
    require(not hidden, "composition has masked entries, which no file keeps; drop these episodes")
    require(given.ndim == 1, f"composition must be one number or word per episode, got the shape {given.shape}")
    if given.dtype.kind in "UO":
        names, which = np.unique(_words("composition", given), return_inverse=True)
        return which.astype(np.int64), tuple(names.tolist())
    require(given.dtype.kind in "ui", f"composition must hold whole numbers or words, got {given.dtype}")
    require(not len(given) or given.min() >= 0, f"compositions are numbered from 0, got {given.min() if len(given) else ''}")
    few("compositions", given, "they")
    return given.astype(np.int64), ()


def _check_splits(found: Arrays, at_least: int) -> None:
    """All three splits, compositions where they belong, and enough episodes of each."""
    counts = {}
    for split in SPLITS:
        here, number = np.unique(found.composition[found.split == split], return_counts=True)
        counts[split] = dict(zip(here.tolist(), number.tolist(), strict=True))
    for split, meaning in zip(SPLITS, ("is trained on", "holds more of train's compositions", "holds others"), strict=True):
        require(len(counts[split]) > 0, f"no episode is of split {split!r}, which {meaning}; all three are needed")

    def named(some: set[int]) -> str:
        shown = [found.names[c] if found.names else str(c) for c in sorted(some)]
        return ", ".join(shown[:6]) + (", …" if len(shown) > 6 else "")

    train, test, ood = (set(counts[split]) for split in SPLITS)
    for split, own in (("train", train), ("test", test)):
        leak = own & ood
        require(
            not leak, f"leak: {len(leak)} composition(s) are in {split!r} and in 'ood' ({named(leak)}); held out is never seen"
        )
    require(
        test <= train, f"test asks for compositions that training never shows ({named(test - train)}); those belong to ood"
    )
    require(train <= test, f"these compositions have no test episodes ({named(train - test)}); set some of train's aside")
    require(len(train) >= 2, "training has a single composition; to recombine, it takes two or more")
    for split in SPLITS:
        few = {c for c, number in counts[split].items() if number < at_least}
        require(
            not few,
            f"fewer than {at_least} {split} episodes of {len(few)} composition(s) ({named(few)}: "
            f"{min(counts[split][c] for c in few) if few else 0}); give more, leave them out, or say at_least=1",
        )


def _check_leaks(found: Arrays, order: np.ndarray, padding: np.ndarray) -> None:
    """No episode of test or ood may be one of train's; 0 and -0 are one number, though not in bytes, padding none."""
    rows = {split: np.flatnonzero(found.split == split) for split in SPLITS}
    tokens = found.tokens + found.tokens.dtype.type(0)
    if padding.size:
        tokens[padding] = 0
    keys = [one.tobytes() + away.tobytes() for one, away in zip(tokens, padding, strict=True)]
    seen = {keys[row]: row for row in rows["train"].tolist()}
    for split in ("test", "ood"):
        same = [(seen[keys[row]], row) for row in rows[split].tolist() if keys[row] in seen]
        if same:
            trained, asked = (int(order[row]) for row in same[0])
            raise ConfigError(
                f"leak: {len(same)} episode(s) of {split!r} have the very tokens of a training episode "
                f"(episode {asked} those of {trained}); drop them on one side"
            )


def _check_answers(found: Arrays) -> None:
    """Something must vary in what is asked for."""
    y = found.targets[:, list(found.answers)]
    asked = y[y != IGNORED]
    require(
        y.dtype.kind == "f" or (asked.size > 0 and asked.min() >= 0),
        f"targets are classes, numbered from 0 ({IGNORED}: not asked for); got {asked.min() if asked.size else IGNORED}",
    )
    require(found.tokens.dtype.kind == "f" or found.tokens.min() >= 0, f"token ids count from 0, got {found.tokens.min()}")
    for name, array, what in (("targets", found.targets, "classes"), ("tokens", found.tokens, "token ids")):
        if array.dtype.kind == "i":
            few(name, array, what)
    trained = y[found.split == "train"]
    require(bool((trained != trained[:1]).any()), "all training episodes have the same answer; there is nothing to learn")
