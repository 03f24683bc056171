"""Episodes of one's own, damaged in every way: refused in a sentence, or stored as they are."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch
from outcomes import Case, Kind, Result, tried
from world import World, episodes, remove, rng_of

from compolens.tasks import SPLITS, FixedEpisodes

ODD: list[Any] = [
    None, True, 3, -1, 10**9, 10**30, 1.5, "text", [], {}, [[]], [1, [2, 3]], np.zeros(0), np.array(None), b"x", object(),
    np.zeros((80, 5, 3), dtype=complex), np.array(["a"] * 80), np.full((80, 5, 3), "1"), np.zeros((80, 5, 3, 2)),
]  # fmt: skip
WAYS = (
    "huge", "nan", "inf", "masked", "object", "ids", "negative", "torch", "bool", "short", "leak", "int64", "half", "list",
    "negative zero", "subnormal",
)  # fmt: skip
"""How an array is changed."""
NAMES = (
    "tokens",
    "targets",
    "composition",
    "split",
    "codes",
    "kinds",
    "inputs",
    "answers",
    "d_x",
    "mask",
    "blocks",
    "at_least",
)


def odd_value(name: str, rng: Random) -> Any:
    chosen = rng.choice(ODD)
    if name == "codes" and rng.random() < 0.6:
        return {rng.choice(["modules", "", "../x", "a/b", "a" * 300, 3]): chosen}
    if name == "kinds" and rng.random() < 0.6:
        return {rng.choice(["modules", "none"]): rng.choice(["continuous", "categorical", "odd", 1, None])}
    if name == "mask" and rng.random() < 0.7:
        return rng.choice(
            [np.full((5, 5), v) for v in (0.5, 1, 2, -1, np.nan, True, 0)] + [np.ones((5, 4)), np.eye(5), np.ones(5)]
        )
    if name == "answers" and rng.random() < 0.7:
        return rng.choice([(), (7,), (-9,), (0, 0), (True,), (1.5,), "last", [None], (-1, 4), 4, range(5)])
    if name == "d_x" and rng.random() < 0.7:
        return rng.choice([True, False, 0, 1, 1.5, 3, 4, -1, "1", 1.0, np.int64(1), np.float32(1)])
    if name == "blocks" and rng.random() < 0.7:
        return rng.choice([[[0, 1], [2, 3], [4]], [[0]], [[9]], [[]], [[0, 0], [1]], [[True]], [[0.5]], "ab", [0, 1]])
    if name == "split" and rng.random() < 0.7:
        return rng.choice([["train"] * 80, ["tst"] * 80, [0] * 80, ["train"] * 79, np.array([None] * 80), [b"train"] * 80])
    if name == "composition" and rng.random() < 0.7:
        large = np.full(80, 2**63, dtype=np.uint64)
        return rng.choice([
            np.arange(80), np.zeros(80), np.full(80, 0.5), np.full(80, np.nan), ["a"] * 80, [True] * 80, large, [10**30] * 80,
            [[1]] * 80, np.ma.masked_equal([0] * 80, 0),
        ])  # fmt: skip
    return chosen


def change(given: dict[str, Any], rng: Random) -> str:
    """Change one argument of `write`; says how."""
    if rng.random() < 0.55:
        name = rng.choice(NAMES)
        given[name] = odd_value(name, rng)
        return f"{name}={str(given[name])[:60]!r} ({type(given[name]).__name__})"
    name = rng.choice(["tokens", "targets", "modules"])
    array = np.array(given["codes"]["modules"] if name == "modules" else given[name])
    at = tuple(rng.randrange(n) for n in array.shape)
    how = rng.choice(WAYS)
    array = _changed(array, at, how, rng)
    if how in ("leak", "negative zero"):
        name, array = "tokens", np.array(given["tokens"])
        other = np.flatnonzero(given["split"] == rng.choice(["test", "ood"]))[0]
        array[other] = array[0]
        given["targets"] = np.array(given["targets"])
        given["targets"][other] = given["targets"][0]
        if how == "negative zero":
            array[0, 0, 0], array[other, 0, 0] = 0.0, -0.0
    if name == "modules":
        given["codes"] = {"modules": array}
    else:
        given[name] = array
    return f"{name}: {how}"


def _changed(array: np.ndarray, at: tuple[int, ...], how: str, rng: Random) -> Any:
    if how in ("huge", "nan", "inf", "subnormal"):
        array = array.astype(float)
        array[at] = {"huge": 10.0 ** rng.choice([39, 100, 300]), "nan": np.nan, "inf": np.inf, "subnormal": 1e-320}[how]
    elif how == "masked":
        return np.ma.masked_array(array, mask=np.arange(array.size).reshape(array.shape) == 3)
    elif how in ("ids", "negative"):
        array = np.abs(array * 10).astype(int)[..., 0]
        array.flat[0] = -1 if how == "negative" else rng.choice([10**5, 10**9, 2**62])
    elif how == "torch":
        return torch.tensor(array, dtype=rng.choice([torch.float64, torch.bfloat16, torch.float16]))
    elif how == "list":
        return array.tolist()
    elif how == "short":
        return array[:-1]
    elif how in ("object", "bool", "int64", "half"):
        return array.astype({"object": object, "bool": bool, "int64": np.int64, "half": np.float16}[how])
    return array


def case(world: World, seed: int, number: int) -> Case:
    rng = rng_of(seed, "arrays", number)
    given = episodes()
    text = change(given, rng)

    def run() -> Result:
        folder = world.work / "written"
        remove(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        name = text.split("=")[0].split(" (")[0]
        written, became, told = tried(lambda: FixedEpisodes.write(folder, **given))
        if became is None:
            wrong, became, _ = tried(lambda: differs(written, given))
            if became is None:
                became = Result(Kind.WRONG, wrong, wrong) if wrong and not told else Result(Kind.RIGHT)
            else:
                became = Result(Kind.WRONG, f"written, then not readable: {became.where}", became.detail)
        elif folder.exists() and any(folder.iterdir()):
            became = Result(Kind.WRONG, "refused, and left files behind", became.detail)
        return became._replace(where=f"{name}: {became.where}")

    return Case("FixedEpisodes arrays", f"write({text})", run)


def differs(task: FixedEpisodes, given: dict[str, Any]) -> str:
    """What is not stored as it was given; "" if all is."""
    given = given | {"codes": given["codes"] or {}}
    if given.get("d_x") is not None and (isinstance(task.d_x, bool) or type(task.d_x) is not int):
        return f"d_x is {task.d_x!r}"
    if task.d_in > 10**7:
        return f"ids make tokens {task.d_in:,} wide"
    if given.get("mask") is not None:
        mask = np.asarray(given["mask"])
        if not np.array_equal(np.asarray(task.mask), mask):
            return "mask is another"
    parts = [given[name] for name in ("tokens", "targets", "composition")] + list(given["codes"].values())
    if any(isinstance(part, np.ma.MaskedArray) and np.any(part.mask) for part in parts):
        return "a masked array lost its mask"
    split = np.asarray(given["split"])
    rows = {}
    for word in SPLITS:
        drawn = task.sample(int((split == word).sum()), word, task.rng(0, word))
        rows[word] = {row.tobytes() for row in (drawn.tokens + 0.0).numpy()}
        parts = [drawn.tokens, drawn.targets, *drawn.codes.values()]
        if not all(torch.isfinite(part.double()).all() for part in parts):
            return "numbers that are not finite were stored"
        for name, part in (("tokens", drawn.tokens), ("targets", drawn.targets), *drawn.codes.items()):
            own = torch.as_tensor(given["codes"][name] if name in drawn.codes else given[name]).double().numpy()[split == word]
            alike = part.dim() == own.ndim and part.shape[1:] == own.shape[1:] and part.is_floating_point()
            if alike and not np.allclose(np.sort(part.numpy().ravel()), np.sort(own.astype(np.float32).ravel())):
                return f"{name} came back as other numbers"
    if rows["train"] & (rows["test"] | rows["ood"]):
        return "an episode is in two splits"
    return ""
