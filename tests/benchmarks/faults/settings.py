"""Nonsense in every setting of runs, tasks, architectures and optimizers: refused in a sentence, or it means what it says."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import types
import typing
from pathlib import Path
from random import Random
from typing import Any

from outcomes import Case, Kind, Result, tried
from world import MODELS, SIZES, TASK, World, rng_of

from compolens import Run, train
from compolens.foundation.configs import construct, describe
from compolens.models import ARCHITECTURES
from compolens.models import PARTS as MODEL_PARTS
from compolens.tasks import FAMILIES
from compolens.tasks import PARTS as TASK_PARTS
from compolens.training import RECIPES

NONSENSE: list[Any] = [
    None, True, False, "", "false", "1", "no such word", 0, -1, 1, 2, 3, 7, 10**4, 10**7, 10**18, 10**40, -(10**40), 0.0, -0.0,
    0.5, 1.5, -0.5, 1e-320, 1e308, math.nan, math.inf, -math.inf, [], (), (1,), (0, 0), (-1,), ("a",), (1.5,), [None], {},
    {"class": "Run"}, b"1", 1j, object(), (1,) * 50,
]  # fmt: skip
SHARE = re.compile(r"fraction|share|dropout|_rate$|probability|^final$")
"""Fields that hold a share, from 0 to 1."""
SMALL = {"n_layers": 1, "d_model": 8, "n_heads": 2}


def subjects() -> dict[str, Any]:
    """Every class that a description may name -> an instance of it, small where it has sizes."""
    found: dict[str, Any] = {}
    for name, cls in {**ARCHITECTURES, **FAMILIES, **MODEL_PARTS, **TASK_PARTS, **{c.__name__: c for c in RECIPES}}.items():
        names = {field.name for field in dataclasses.fields(cls)}
        for settings in ({k: v for k, v in SMALL.items() if k in names}, {}):
            value, became, _ = tried(lambda cls=cls, settings=settings: cls(**settings))
            if became is None:
                found[name] = value
                break
    return found | {"Run": Run(MODELS["softmax"], TASK, steps=1, batch_size=4, evaluations=1, evaluation_episodes=16)}


SUBJECTS = {name: subject for name, subject in subjects().items() if dataclasses.fields(subject)}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the kind that an annotation says; finite, where it says float."""
    if hint is Any:
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, option) for option in inner)
    if origin is tuple:
        each = [inner[0]] * len(value) if isinstance(value, tuple) and inner[1:] == (...,) else inner
        return isinstance(value, tuple) and len(value) == len(each) and all(map(fits, value, each))
    if origin is typing.Literal:
        return value in inner
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e308 and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = origin or hint
    return isinstance(value, kind) if isinstance(kind, type) else True


def case(world: World, seed: int, number: int) -> Case:
    rng = rng_of(seed, "settings", number)
    name = rng.choice(sorted(SUBJECTS)) if rng.random() < 0.8 else "Run"
    subject = SUBJECTS[name]
    field = rng.choice(dataclasses.fields(subject))
    value = _value(rng, getattr(subject, field.name, None))
    text = f"{name}({field.name}={value!r})"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)

    def run() -> Result:
        changed, became, _ = tried(lambda: dataclasses.replace(subject, **{field.name: value}))
        if became is not None:
            return became._replace(where=f"{name}.{field.name}: {became.where}")
        hint = typing.get_type_hints(type(subject)).get(field.name, Any)
        held = getattr(changed, field.name)
        if not fits(held, hint):
            return Result(Kind.WRONG, f"{name}.{field.name} is {hint}, takes another kind", f"{text} is taken")
        if SHARE.search(field.name) and isinstance(held, int | float) and not 0 <= held <= 1:
            return Result(Kind.WRONG, f"{name}.{field.name} is a share, takes {held!r:.12}", f"{text} is taken")
        found = _used(world, changed, field.name)
        return found._replace(where=f"{name}.{field.name}: {found.where}", detail=f"{text}: {found.detail}")

    return Case("settings", text, run)


def _value(rng: Random, now: Any) -> Any:
    """Nonsense, or a neighbour of the value that is there."""
    if isinstance(now, int | float) and not isinstance(now, bool) and rng.random() < 0.3:
        return rng.choice([now + 1, -now, now * 2, float(now), str(now), now / 3, [now]])
    return rng.choice(NONSENSE)


def _used(world: World, changed: Any, field: str) -> Result:
    """What is taken is read back as itself, and a training with it ends, or says why not."""
    kinds = {type(changed), *(type(v) for v in SUBJECTS.values())}
    back, became, _ = tried(lambda: construct(describe(changed), kinds))
    if became is not None:
        return became._replace(where=f"read back: {became.where}")
    if back != changed:
        return Result(Kind.WRONG, "reads back as another", f"{back!r:.80}")
    run, became, _ = tried(lambda: _run_with(changed))
    if became is not None or run is None:
        return became or Result(Kind.RIGHT)
    if run.steps > 3 or run.batch_size > 4096 or run.evaluation_episodes > 4096:
        return Result(Kind.RIGHT, "", "meant, perhaps; not tried")
    folder = world.work / "trained"
    shutil.rmtree(folder, ignore_errors=True)
    _, became, _ = tried(lambda: train(run, Path(folder)))
    return became or Result(Kind.RIGHT)


def _run_with(changed: Any) -> Run | None:
    """The smallest run that this is a part of; None where none is that small."""
    few = {"steps": 1, "batch_size": 4, "evaluations": 1, "evaluation_episodes": 16}
    kind = type(changed).__name__
    if kind == "Run":
        return changed
    if kind in {cls.__name__ for cls in RECIPES}:
        return Run(MODELS["softmax"], TASK, optimizer=changed, **few)
    if kind == "Hyperteacher":
        return Run(MODELS["softmax"], changed, **few)
    if kind in ("SoftmaxTransformer", "HypernetworkTransformer", "LinearAttentionTransformer"):
        return Run(changed, TASK, **few)
    if kind in ("FuzzyLogic", "LinearRegression", "Relations", "SRaven"):
        return Run(ARCHITECTURES["SoftmaxTransformer"](**SIZES, n_ctx=64), changed, **few)
    return None
