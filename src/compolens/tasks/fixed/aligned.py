"""Sequences of different lengths, and answers at places of their own, brought to the form in which episodes are kept.

tokens   a b c d . .        . . a b c d        episodes end together, padding comes first
answers      2 3     ->             4 5        positions are one list for all episodes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from compolens.foundation.configs import ConfigError, require
from compolens.tasks.fixed.checks import IGNORED, numbers, positions


def is_ragged(answers: Any, padding: Any) -> bool:
    """Whether sequences differ in length, or are asked at places of their own.

    Args:
        answers: as `FixedEpisodes.write` takes them.
        padding: as there.

    Returns:
        True where they have to be aligned.

    Raises:
        ConfigError: answers are lists of different lengths, or rows of something else than positions.
    """
    try:
        wide = np.asarray(answers)
    except ValueError as error:
        raise ConfigError(
            "answers of every episode must be (episode, answer) positions, as many for each; write -1 where one has fewer"
        ) from error
    if wide.ndim == 2:
        require(wide.dtype.kind in "iu", f"answers of every episode must be whole numbers, positions or -1; got {wide.dtype}")
    return padding is not None or wide.ndim == 2


def aligned(tokens: Any, targets: Any, answers: Any, padding: Any) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray | None]:
    """Move episodes to end together, and name all positions at which any of them is asked.

    Args:
        tokens: (n, seq, …).
        targets: (n, seq, …) at every position, or at the answers.
        answers: positions, of which those below 0 count from the last token; or (n, answer) of every episode, -1 where there
            is none.
        padding: (n, seq) bool, True where there is no token (None: nowhere).

    Returns:
        (tokens, targets, the positions, padding), moved; targets of classes are -100 where an episode is not asked.

    Raises:
        ConfigError: padding lies between tokens, or a position is none of an episode's.
    """
    x, y = numbers("tokens", tokens), numbers("targets", targets)
    require(
        x.ndim >= 2, f"tokens must be (episode, position) ids or (episode, position, d_in) floats, got {x.dtype} {x.shape}"
    )
    n, seq = x.shape[:2]
    marks = np.zeros((n, seq), dtype=int) if padding is None else numbers("padding", padding)
    require(marks.shape == (n, seq), f"padding must be ({n}, {seq}), a row per episode, got {marks.shape}")
    other = marks[(marks != 0) & (marks != 1)]
    require(
        not other.size,
        f"padding must be True where there is no token (1 - attention_mask) and False where there is one, got {other[:1]}",
    )
    away = marks != 0
    inner = (np.diff(away.astype(int), axis=1) != 0).sum(1) > 1 + (away[:, 0] & away[:, -1])
    strange = np.flatnonzero(inner | away.all(1))
    require(
        not len(strange), f"padding of episode {strange[:1].tolist()}: it must lie before or behind the tokens, and leave some"
    )
    behind = (~away[:, ::-1]).argmax(1)  # how many places each episode moves on
    moved = (np.arange(seq)[None] - behind[:, None]) % seq
    rows = np.arange(n)[:, None]
    if behind.any() and np.ndim(answers) == 1:
        answers = _of_every_episode(answers, behind, seq)
    wide = np.ndim(answers) == 2
    where = np.asarray(answers)
    everywhere = y.ndim > 1 and y.shape[1] == seq and not (wide and where.shape[1] == seq)
    x, out = x[rows, moved], away[rows, moved]
    if everywhere:
        y = y[rows, moved]
    if not wide:
        given = None if padding is None else out
        return x, y, answers, given
    require(len(where) == n, f"answers has {len(where)} rows for {n} episodes")
    asked = where >= 0
    bad = np.flatnonzero((where >= seq).any(1) | ~asked.any(1))
    require(not len(bad), f"answers of episode {bad[:1].tolist()} must be positions below {seq}, one at least; -1: none")
    places = where + behind[:, None]
    named = sorted({int(p) for p in places[asked]})
    require(named[-1] < seq, f"answers name a position behind the last token, {named[-1] - seq + 1} too far")
    if everywhere:
        chosen = np.full_like(y, IGNORED)
        for k in range(where.shape[1]):
            here = np.flatnonzero(asked[:, k])
            chosen[here, places[here, k]] = y[here, places[here, k]]
    else:
        y = y[:, None] if y.ndim == 1 else y
        require(y.shape[1] == where.shape[1], f"targets {y.shape} have another number of answers than answers {where.shape}")
        require(y.dtype.kind == "i" or bool(asked.all()), "an answer that is not asked for needs classes as targets")
        chosen = np.full((n, seq, *y.shape[2:]), IGNORED if y.dtype.kind == "i" else 0, dtype=y.dtype)
        for k in range(where.shape[1]):
            here = np.flatnonzero(asked[:, k])
            chosen[here, places[here, k]] = y[here, k]
    short = chosen[:, named]
    one = y.dtype.kind == "f" and len(named) > where.shape[1]
    require(
        not one,
        "answers of numbers must lie at the same places once episodes end together; give classes, or count from the end",
    )
    return x, short, tuple(named), out if padding is not None else None


def _of_every_episode(answers: Any, behind: np.ndarray, seq: int) -> Any:
    """Positions, the same ones in all episodes, as (n, answer) of every one before it is moved, so that a token is asked at
    where it lies; as they are where they keep that meaning: all positions, or none but such that count from the end."""
    found, from_end = np.array(positions(answers, seq)), np.asarray(answers) < 0
    if from_end.all() or len(found) == seq:
        return answers
    return found[None] - np.where(from_end, behind[:, None], 0)


class Together(NamedTuple):
    """Episodes and their counterfactuals, aligned alike.

    Args:
        tokens: (n, seq, …) of the episodes.
        targets: (n, …) of the episodes.
        answers: the positions.
        padding: (n, seq) bool (None: nowhere).
        counterfactuals: as given, aligned, with "padding" (m, seq) where there is any (None: none were given).
    """

    tokens: np.ndarray
    targets: np.ndarray
    answers: Any
    padding: np.ndarray | None
    counterfactuals: dict[str, Any] | None


def aligned_together(
    tokens: Any, targets: Any, answers: Any, padding: Any, counterfactuals: Mapping[str, Any] | None, of: np.ndarray | None
) -> Together:
    """As `aligned`, with counterfactuals, so that a position means the same in both.

    Args:
        tokens: as in `aligned`.
        targets: as in `aligned`.
        answers: as in `aligned`.
        padding: as in `aligned`.
        counterfactuals: as `FixedEpisodes.write` takes them (None: there are none). Where they do not say their "padding" or
            "answers", these are those of the episodes whose inputs they show.
        of: (m,) the number of that episode.

    Returns:
        Both.

    Raises:
        ConfigError: as in `aligned`, or the two do not fit each other.
    """
    if counterfactuals is None or of is None:
        return Together(*aligned(tokens, targets, answers, padding), None)
    own = {"tokens": numbers("tokens", tokens), "targets": numbers("targets", targets)}
    own |= {} if padding is None else {"padding": numbers("padding", padding)}
    own |= {"answers": numbers("answers", answers)} if np.ndim(answers) == 2 else {}
    strange = sorted({"padding", "answers"} & set(counterfactuals) - set(own))
    require(not strange, f"counterfactuals say {strange}, and the episodes do not")
    both = {}
    for name, array in own.items():
        more = numbers(f"counterfactuals[{name!r}]", counterfactuals[name]) if name in counterfactuals else array[of]
        fits = more.shape == (len(of), *array.shape[1:])
        require(fits, f"counterfactuals[{name!r}] must be {(len(of), *array.shape[1:])}, got {more.shape}")
        both[name] = np.concatenate([array, more])
    found = aligned(both["tokens"], both["targets"], both.get("answers", answers), both.get("padding"))
    n, others = len(own["tokens"]), {name: array for name, array in counterfactuals.items() if name != "answers"}
    others |= {"tokens": found[0][n:], "targets": found[1][n:]}
    if found[3] is not None:
        others["padding"] = found[3][n:]
    return Together(found[0][:n], found[1][:n], found[2], None if found[3] is None else found[3][:n], others)
