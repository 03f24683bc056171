"""One file of a folder is damaged; a command on it gives what it gives on the whole folder, or says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from outcomes import Case, Kind, Result, Said, command, fault, tried
from world import World, rng_of, run_of

import compolens
from compolens import tables
from compolens.activations.reading import Recording
from compolens.tasks import SPLITS, FixedEpisodes

VALUES = [None, True, False, 0, -1, 1, 99, 10**30, 0.5, -1e308, 1e400, "", "no", "../x", [], [1], {}, {"class": "Run"}, "1e5"]
"""What takes the place of a value in JSON."""


class Damage(NamedTuple):
    """text: what was done; visible: whether a folder from before digests lets anybody see it."""

    text: str
    visible: bool = True


# ---- how a file is damaged -------------------------------------------------------------------------------------------
def flip(path: Path, rng: Random) -> Damage:
    content = bytearray(path.read_bytes())
    if not content:
        return Damage("nothing")
    at, bit = rng.randrange(len(content)), rng.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(bytes(content))
    return Damage(f"bit {bit} of byte {at} flipped", visible=False)


def truncate(path: Path, rng: Random) -> Damage:
    size = path.stat().st_size
    kept = rng.choice([0, 1, size // 2, max(size - 1, 0), rng.randrange(max(size, 1))])
    path.write_bytes(path.read_bytes()[:kept])
    return Damage(f"truncated to {kept} of {size} bytes", visible=False)


def replace(path: Path, rng: Random) -> Damage:
    content = rng.choice(
        [b"", b"\x00" * 64, b"null\n", b"[]\n", b"{}\n", b"\xff\xfe\x00", b"a,b\n1,2\n", b'"text"\n', b"[" * 5000]
    )
    path.write_bytes(content)
    return Damage(f"replaced by {content[:12]!r}", visible=False)


def remove(path: Path, rng: Random) -> Damage:
    path.unlink()
    return Damage("deleted")


def grow(path: Path, rng: Random) -> Damage:
    extra = rng.choice([b"\n", b"x", b"\x00" * 9, path.read_bytes()[-200:]])
    path.write_bytes(path.read_bytes() + extra)
    return Damage(f"{extra[:12]!r} appended", visible=False)


def swap(path: Path, rng: Random) -> Damage:
    """A neighbour's content."""
    others = sorted(p for p in path.parent.iterdir() if p.is_file() and p != path and p.suffix == path.suffix)
    if not others:
        return remove(path, rng)
    other = rng.choice(others)
    path.write_bytes(other.read_bytes())
    return Damage(f"replaced by {other.name}", visible=False)


def edit_json(path: Path, rng: Random) -> Damage:
    """One value, at any depth, changed or taken out."""
    try:
        whole = json.loads(path.read_text())
    except ValueError:
        return flip(path, rng)
    spots: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            spots.append((value, key))
            walk(value[key])

    walk(whole)
    if not spots:
        return flip(path, rng)
    parent, key = rng.choice(spots)
    if rng.random() < 0.25:
        del parent[key]
        text = f"{key!r} taken out"
    else:
        before, parent[key] = parent[key], rng.choice(VALUES)
        text = f"{key!r} set from {before!r:.40} to {parent[key]!r}"
    path.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    return Damage(text, visible=False)


def edit_csv(path: Path, rng: Random) -> Damage:
    """A cell, a row or a column name."""
    lines = path.read_text().splitlines()
    row = rng.randrange(len(lines))
    how = rng.choice(["cell", "cell", "cell", "twice", "out", "shorter"])
    cells = lines[row].split(",")
    if how == "cell":
        k = rng.randrange(len(cells))
        before, cells[k] = cells[k], rng.choice(["", "9.5", "-1", "nan", "inf", "text", "=1+1", "1e999", "0"])
        lines[row], text = ",".join(cells), f"row {row}: {before!r} → {cells[k]!r}"
    elif how == "twice":
        lines.insert(row, lines[row])
        text = f"row {row} twice"
    elif how == "out":
        text = f"row {row} taken out: {lines.pop(row)[:60]!r}"
    else:
        lines[row], text = ",".join(cells[:-1]), f"row {row} without its last cell"
    path.write_text("\n".join(lines) + "\n")
    return Damage(text, visible=False)


def damages(path: Path) -> list[Callable[[Path, Random], Damage]]:
    """The ways that suit a kind of file; editing more often than bits."""
    general: list[Callable] = [flip, flip, truncate, replace, remove, grow, swap]
    return general + {".json": [edit_json] * 6, ".csv": [edit_csv] * 6}.get(path.suffix, [])


# ---- what is asked of the folder -------------------------------------------------------------------------------------
def models(folder: Path) -> Said:
    return command(["models", str(folder)])


def summary(folder: Path) -> Said:
    return command(["models", "--summary", str(folder)])


def diagnosis(folder: Path) -> Said:
    return command(["models", "--diagnosis", str(folder)])


def probe(folder: Path) -> Said:
    """The table's own numbers count as output: whether it was up to date or measured again."""
    said = command(["probe", "generalization", str(folder), "--episodes", "48"])
    path = tables.path_of(folder, "generalization")
    found = path.read_text() if said.status == 0 and path.is_file() else ""
    return said._replace(out=found, data=True)


def report(folder: Path) -> Said:
    page = folder.parent / "page.html"
    page.unlink(missing_ok=True)
    said = command(["report", str(folder), "-o", str(page)])
    notes = _notes(page.read_text()) if page.is_file() else ""
    return said._replace(err=said.err + notes)


def _notes(page: str) -> str:
    """What a page says about folders, its numbers and figures left out."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    return "\n".join(
        line.strip() for line in re.sub(r"<[^>]+>", "\n", text).splitlines() if re.search(r"[a-z]{3,} [a-z]{2,}", line)
    )


def analyze(folder: Path) -> Said:
    out = folder.parent / "figures"
    said = command(["analyze", "who_generalizes", str(folder), "--out", str(out)])
    drawn = out / "who_generalizes.csv"
    return said._replace(out=drawn.read_text() if said.status == 0 and drawn.is_file() else "", data=True)


def _as_said(function: Callable[[], str]) -> Said:
    """A call of the API as if it were a command: its own errors are status 2."""
    value, became, told = tried(function)
    if became is None:
        return Said(0, value, told, None, data=True)
    return (
        Said(2, "", became.detail, None)
        if became.kind is Kind.TOLD
        else Said(None, became.where, became.detail, Raised(became))
    )


class Raised(Exception):
    """Carries what an exception of the API was classified as."""


def gather(folder: Path) -> Said:
    return _as_said(lambda: compolens.gather(folder, "generalization").to_csv(index=False))


def load(folder: Path) -> Said:
    def content() -> str:
        trained = compolens.load(folder)
        weights = {name: tensor.double().sum().item() for name, tensor in trained.model.state_dict().items()}
        return f"{trained.run} {trained.step} {weights}"

    return _as_said(content)


def recording(folder: Path) -> Said:
    def content() -> str:
        found = Recording(folder)
        sums = {name: (found[name].shape, float(np.abs(np.asarray(found[name], dtype=float)).sum())) for name in found.names}
        return f"{sums} {found.rows} {found.info}"

    return _as_said(content)


def episodes(folder: Path) -> Said:
    def content() -> str:
        task = FixedEpisodes(str(folder))
        drawn = {split: task.sample(20, split, task.rng(0, split)) for split in SPLITS}
        sums = [
            [float(part.double().abs().sum()) for part in (d.tokens, d.targets, *d.codes.values())] for d in drawn.values()
        ]
        return f"{task.dimensions} {task.code_kinds} {sums} {[d.composition.tolist() for d in drawn.values()]}"

    return _as_said(content)


def resume(folder: Path) -> Said:
    def content() -> str:
        compolens.train(run_of("softmax", init_seed=1), folder)
        trained = compolens.load(folder)
        return " ".join(str(tensor.double().sum().item()) for tensor in trained.model.state_dict().values())

    return _as_said(content)


READERS: dict[str, list[tuple[Callable[[Path], Said], int]]] = {
    "softmax": [(models, 12), (load, 15), (probe, 6), (gather, 15), (summary, 9), (diagnosis, 9), (report, 1), (analyze, 1)],
    "old": [(models, 4), (load, 5), (probe, 3), (gather, 5), (summary, 2), (diagnosis, 2)],
    "begun": [(resume, 4), (models, 1), (load, 1)],
    "recorded": [(recording, 4), (load, 1), (models, 1)],
    "fixed": [(episodes, 1)],
}
"""Folder of the world -> what is asked of it, and how often."""


# ---- a case ----------------------------------------------------------------------------------------------------------
WHOLE: dict[tuple[str, str], Said] = {}
"""What each reader says of the undamaged folder."""


def whole(world: World, name: str, reader: Callable[[Path], Said]) -> Said:
    if (name, reader.__name__) not in WHOLE:
        WHOLE[name, reader.__name__] = reader(world.fresh(name) / name)
    return WHOLE[name, reader.__name__]


def case(world: World, seed: int, number: int) -> Case:
    rng = rng_of(seed, "damage", number)
    name = rng.choices(list(READERS), [8, 2, 2, 2, 2])[0]
    readers, weights = zip(*READERS[name], strict=True)
    reader = rng.choices(readers, weights)[0]
    file = rng.choice(world.files(name))
    how = rng.choice(damages(Path(file)))

    def run() -> Result:
        expected = whole(world, name, reader)
        folder = world.fresh(name)
        done = how(folder / file, rng)
        if (folder / file).is_file() and (folder / file).read_bytes() == (world.pristine / file).read_bytes():
            return Result(Kind.RIGHT, "", done.text)
        found = judged(expected, reader(folder / name), Path(file), name == "old")
        return found._replace(detail=f"{done.text} | {found.detail}", where=f"{reader.__name__}, {_kind(file)}: {found.where}")

    return Case(f"damage: {reader.__name__}", f"{how.__name__} {file}", run)


def _kind(file: str) -> str:
    path = Path(file)
    return (
        path.name
        if path.suffix == ".json" and path.parent.name != "tables"
        else f"{path.parent.name}/*{''.join(path.suffixes)}"
    )


def judged(expected: Said, said: Said, file: Path, old: bool) -> Result:
    """The same, told, or silently something else."""
    if isinstance(said.error, Raised):
        return said.error.args[0]
    if (wrong := fault(said)) is not None:
        return wrong
    if (said.status, said.out) == (expected.status, expected.out) and not said.err.replace(expected.err, ""):
        return Result(Kind.RIGHT)
    new = [line for line in said.text.splitlines() if line not in expected.text]
    if said.status not in (0, expected.status) or any(_names(line, file) for line in new):
        return Result(Kind.TOLD, "", " / ".join(new)[:200])
    if said.out == expected.out:
        return Result(Kind.RIGHT, "", "said more, the same result")
    shown = next((line for line in new), "")[:160]
    return Result(Kind.OLD if old else Kind.WRONG, "other output, nothing said", shown)


def _names(line: str, file: Path) -> bool:
    """Whether a line tells of the file: a sentence with its name or its table's, or that something is not there."""
    names = (file.name, file.name.split(".")[0] + ".csv", "not finished", "no table", "no provenance", "left out", "is stale")
    return bool(re.search(r"[a-z]{2,} [a-z]{2,}", line)) and any(name in line for name in names)


torch.set_num_threads(1)
