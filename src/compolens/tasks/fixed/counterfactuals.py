"""The same inputs under other codes, stored: which episode shows an input under a code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compolens.foundation.configs import ConfigError, nearest, require, shown
from compolens.tasks.episodes import Episodes
from compolens.tasks.fixed.checks import Arrays, numbers, one_a_row
from compolens.tasks.fixed.stored import Stored

WANTED = ("of", "tokens", "targets", "composition", "codes")
RAGGED = ("padding", "answers")
"""What counterfactuals may say besides, where sequences differ in length."""


def shown_by(given: Mapping[str, Any], n: int, ragged: bool = False) -> np.ndarray:
    """Whose inputs counterfactuals show.

    Args:
        given: as `FixedEpisodes.write` takes them.
        n: how many episodes there are.
        ragged: whether sequences differ in length.

    Returns:
        (m,) numbers of episodes.

    Raises:
        ConfigError: an array is missing, means nothing, or names no episode.
    """
    require(isinstance(given, Mapping), f"counterfactuals must be a mapping with {', '.join(WANTED)}; got {shown(given)}")
    for name in WANTED:
        require(name in given, f"counterfactuals has no {name!r}; it needs {', '.join(WANTED)}")
    known = (*WANTED, *RAGGED) if ragged else WANTED
    for name in given:
        require(name in known, f"counterfactuals has {name!r}, which means nothing here; {nearest(name, known)}")
    of = numbers("counterfactuals['of']", given["of"])
    whole = of.ndim == 1 and of.dtype.kind == "i" and len(of) > 0 and of.min() >= 0 and of.max() < n
    require(whole, f"counterfactuals['of'] must name episodes, whole numbers from 0 to {n - 1}, one a row")
    return of


def checked_counterfactuals(
    given: Mapping[str, Any], found: Arrays, kinds: Mapping[str, str], order: np.ndarray
) -> dict[str, np.ndarray]:
    """The arrays as they are stored.

    Args:
        given: "of" (m,), and tokens, targets, composition, codes of m rows.
        found: the episodes, sorted.
        kinds: code -> its kind.
        order: (n,) the number, as given, of every sorted episode.

    Returns:
        name -> array; "of" counts sorted episodes.

    Raises:
        ConfigError: an array is missing or does not fit the episodes.
    """
    n, of = len(found.tokens), shown_by(given, len(found.tokens), ragged=True)
    tokens, m = numbers("counterfactuals['tokens']", given["tokens"]), len(of)
    require(tokens.shape == (m, *found.tokens.shape[1:]), f"counterfactuals['tokens'] must be {m} rows like tokens")
    require(tokens.dtype == found.tokens.dtype, f"counterfactuals['tokens'] must be {found.tokens.dtype}, as tokens are")
    y = numbers("counterfactuals['targets']", given["targets"])
    short = y[:, None] if y.ndim == found.targets.ndim - 1 else y
    targets = np.zeros((m, *found.targets.shape[1:]), dtype=found.targets.dtype)
    if short.shape == targets.shape:
        targets = short.astype(targets.dtype)
    else:
        fits = short.shape == (m, len(found.answers), *found.targets.shape[2:])
        require(fits, f"counterfactuals['targets'] must be {m} rows like targets, got {y.shape}")
        targets[:, list(found.asked)] = short
    words = one_a_row("counterfactuals['composition']", given["composition"])
    if found.names:
        number = {name: i for i, name in enumerate(found.names)}
        strange = sorted({str(word) for word in words.tolist()} - set(number))
        require(not strange, f"counterfactuals name a composition that no episode has: {', '.join(strange[:4])}")
        words = np.array([number[str(word)] for word in words.tolist()])
    composition = numbers("counterfactuals['composition']", words)
    known = set(np.unique(found.composition).tolist())
    require(len(composition) == m, f"counterfactuals['composition'] must have {m} rows, got {len(composition)}")
    strange_numbers = sorted(set(np.unique(composition).tolist()) - known)
    require(not strange_numbers, f"counterfactuals name a composition that no episode has: {strange_numbers[:4]}")
    require(
        isinstance(given["codes"], Mapping) and set(given["codes"]) == set(kinds),
        f"counterfactuals['codes'] must have the codes {', '.join(kinds)}",
    )
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    arrays = {"of": place[of], "tokens": tokens, "targets": targets, "composition": composition.astype(np.int64)}
    if "padding" in given:
        arrays["padding"] = np.asarray(given["padding"], dtype=bool)
    for name, code in given["codes"].items():
        here = numbers(f"counterfactuals['codes'][{name!r}]", code)
        wanted = (m, *found.codes[name].shape[1:])
        require(here.shape == wanted, f"counterfactuals['codes'][{name!r}] must be {wanted}, got {here.shape}")
        arrays[f"codes.{name}"] = here.astype(found.codes[name].dtype)
    return arrays


class Counterfactuals:
    """Every stored episode and counterfactual by the input that it shows and its code.

    Args:
        stored: the folder.
    """

    def __init__(self, stored: Stored) -> None:
        self.stored, self.names = stored, list(stored.manifest["codes"])
        n = len(stored.composition)
        own = self._keys(np.arange(n), [np.array(stored.array(f"codes.{name}")) for name in self.names])
        more = [np.array(stored.array(f"counterfactual/codes.{name}")) for name in self.names]
        others = self._keys(np.array(stored.array("counterfactual/of")), more)
        self.place = {key: n + i for i, key in enumerate(others)} | {key: i for i, key in enumerate(own)}

    @staticmethod
    def _keys(row: np.ndarray, codes: list[np.ndarray]) -> list[bytes]:
        parts = [row.astype(np.int64)[:, None].view(np.uint8).reshape(len(row), -1)]
        same = [c + c.dtype.type(0) for c in codes]  # 0 and -0 are one number, though not in bytes
        parts += [np.ascontiguousarray(c.reshape(len(c), -1)).view(np.uint8).reshape(len(c), -1) for c in same]
        return [one.tobytes() for one in np.concatenate(parts, 1)]

    def take(self, codes: dict[str, Tensor], inputs: Tensor) -> Episodes:
        """The episodes that show inputs under codes.

        Args:
            codes: as in `Episodes.codes`.
            inputs: (batch, 1) the numbers of the rows whose inputs are shown.

        Returns:
            The episodes, on the device of `inputs`.

        Raises:
            ConfigError: one of them was not stored.
        """
        kinds = {name: self.stored.array(f"codes.{name}").dtype for name in self.names}
        given = [codes[name].cpu().numpy().astype(kinds[name]) for name in self.names]
        rows = inputs.reshape(len(inputs), -1)[:, 0].cpu().numpy()
        where = [self.place.get(key, -1) for key in self._keys(rows, given)]
        absent = [i for i, place in enumerate(where) if place < 0]
        if absent:
            example = ", ".join(f"{name} {codes[name][absent[0]].tolist()}" for name in self.names)
            raise ConfigError(
                f"{self.stored.folder} stores no counterfactual of {len(absent)} of {len(where)} that are asked for, such as "
                f"the inputs of row {int(rows[absent[0]])} under {example}; write every input under every combination of codes"
            )
        n = len(self.stored.composition)

        def read(name: str, own_name: str = "") -> Tensor:
            own, more = self.stored.array(own_name or name), self.stored.array(f"counterfactual/{name}")
            return torch.from_numpy(np.stack([own[w] if w < n else more[w - n] for w in where]))

        tokens, vocabulary = read("tokens"), self.stored.manifest.get("vocabulary")
        if vocabulary is not None:
            tokens = torch.nn.functional.one_hot(tokens, vocabulary).float()
        if self.stored.manifest.get("padding"):
            tokens = tokens * ~read("padding", "more/padding")[:, :, None].bool()
        found = Episodes(
            tokens, read("targets"), {name: read(f"codes.{name}") for name in self.names}, read("composition"), inputs, {}
        )
        return found.to(inputs.device)
