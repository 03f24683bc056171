"""Folders made to do harm: what is no regular file, what lies outside, what is deep or huge, what speaks to the terminal."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import damage
from outcomes import Case, Kind, Result, fault
from world import World, remove, rng_of

SECRET = "s3cr3t-outside"
HTML = "<script>alert(1)</script>"
WORDS = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "a\rb",
    "\x9b2J",
    "\u202egnp",
    HTML,
    "=cmd()",
    "../../etc",
    "x" * 5000,
    "\ud800",
]
READERS = {
    "softmax": [(damage.models, 8), (damage.load, 8), (damage.gather, 8), (damage.probe, 6), (damage.summary, 6),
                (damage.diagnosis, 6), (damage.report, 1)],
    "recorded": [(damage.recording, 1), (damage.models, 1), (damage.load, 1)],
    "fixed": [(damage.episodes, 1)],
    "begun": [(damage.resume, 1), (damage.models, 1)],
}  # fmt: skip


# ---- what is done to the folder --------------------------------------------------------------------------------------
def fifo(path: Path, rng: Random) -> str:
    remove(path)
    os.mkfifo(path)
    return "a FIFO"


def device(path: Path, rng: Random) -> str:
    remove(path)
    path.symlink_to("/dev/zero")
    return "a link to /dev/zero"


def directory(path: Path, rng: Random) -> str:
    remove(path)
    path.mkdir()
    return "a directory"


def link_out(path: Path, rng: Random) -> str:
    """A link to the file itself, moved out of the folder."""
    outside = _world(path) / "outside"
    outside.mkdir(exist_ok=True)
    target = outside / path.name
    os.replace(path, target)
    path.symlink_to(target)
    return "a link to a file outside"


def link_secret(path: Path, rng: Random) -> str:
    secret = _world(path) / "secret.txt"
    secret.write_text(SECRET)
    remove(path)
    path.symlink_to(secret)
    return "a link to a secret"


def loop(path: Path, rng: Random) -> str:
    remove(path)
    path.symlink_to(path.name)
    return "a link to itself"


def deep(path: Path, rng: Random) -> str:
    n = rng.choice([900, 10**5])
    path.write_text("[" * n + "]" * n)
    return f"JSON {n} deep"


def deep_inside(path: Path, rng: Random) -> str:
    n = rng.choice([500, 50_000])
    _put(path, rng, "DEEP")
    path.write_text(path.read_text().replace('"DEEP"', '{"class": ' * n + "1" + "}" * n, 1))
    return f"a value {n} deep"


def word(path: Path, rng: Random) -> str:
    """Terminal escapes, HTML, formulas in a string."""
    chosen = rng.choice(WORDS)
    if path.suffix == ".csv":
        lines = path.read_text().splitlines()
        cells = lines[-1].split(",")
        cells[0] = chosen.encode("utf-8", "replace").decode().replace("\r", " ")
        path.write_text("\n".join([*lines[:-1], ",".join(cells)]) + "\n")
    else:
        _put(path, rng, chosen, only=str)
    return f"the text {chosen[:20]!r}"


def size(path: Path, rng: Random) -> str:
    chosen = rng.choice([10**5, 10**7, 10**9, 10**15, 10**30, -(10**9)])
    _put(path, rng, chosen, only=int)
    return f"the number {chosen:.0e}"


def header(path: Path, rng: Random) -> str:
    """The declared length of a safetensors or .npy header, or a shape."""
    content = bytearray(path.read_bytes())
    if path.suffix == ".safetensors":
        content[:8] = struct.pack("<Q", rng.choice([2**62, 2**40, 10**8, 0]))
    else:
        content = bytearray(content.replace(b"'shape': (", b"'shape': (9999999999, ", 1).ljust(len(content)))
    path.write_bytes(bytes(content))
    return "a header that promises more than there is"


def pickled(path: Path, rng: Random) -> str:
    path.write_bytes(b"\x80\x04cos\nsystem\n(S'touch " + str(_world(path) / "executed").encode() + b"'\ntR.")
    return "a pickle that runs a command"


def many(path: Path, rng: Random) -> str:
    path.write_bytes(path.read_bytes() + b"a,b,c,d,e,f,g,h\n" * 10**6)
    return "a million lines more"


def _world(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.name == "work")


def _put(path: Path, rng: Random, value: Any, only: type = object) -> None:
    """One value of a JSON file, of a kind."""
    whole = json.loads(path.read_text())
    spots: list[tuple[Any, Any]] = []

    def walk(found: Any) -> None:
        for key in list(found) if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
            if isinstance(found[key], only) and not (only is int and isinstance(found[key], bool)):
                spots.append((found, key))
            walk(found[key])

    walk(whole)
    if not spots:
        spots = [(whole, "more")]
    parent, key = rng.choice(spots)
    parent[key] = value
    path.write_text(json.dumps(whole, ensure_ascii=False, indent=2), errors="surrogatepass")


ANY: list[Callable] = [fifo, device, directory, link_out, link_secret, loop, pickled]
KINDS: dict[str, list[Callable]] = {
    ".json": [deep, deep_inside, word, word, word, size, size, size], ".csv": [word, many],
    ".safetensors": [header], ".npy": [header],
}  # fmt: skip


# ---- a case ----------------------------------------------------------------------------------------------------------
def case(world: World, seed: int, number: int) -> Case:
    rng = rng_of(seed, "hostile", number)
    if rng.random() < 0.1:
        return _provenance(world, rng)
    name = rng.choices(list(READERS), [7, 1, 1, 1])[0]
    reader = rng.choices(*zip(*READERS[name], strict=True))[0]
    file = rng.choice(world.files(name))
    how = rng.choice(ANY + KINDS.get(Path(file).suffix, []) * 2)

    def run() -> Result:
        expected = damage.whole(world, name, reader)
        folder = world.fresh(name)
        text = how(folder / file, rng)
        found = _judged(world, folder, expected, reader(folder / name), Path(file), how)
        return found._replace(
            where=f"{reader.__name__}, {damage._kind(file)} is {text[:24]}: {found.where}", detail=f"{text} | {found.detail}"
        )

    return Case("hostile folders", f"{how.__name__} {file}, then {reader.__name__}", run)


def _provenance(world: World, rng: Random) -> Case:
    """A table whose provenance names another file as its probe."""
    place = rng.choice(["/dev/zero", "FIFO", "/etc/passwd", "x" * 5000, "\x00", "\x1b[31m", ".", 7, ["/dev/zero"]])
    reader = rng.choice([damage.gather, damage.probe, damage.summary])

    def run() -> Result:
        expected = damage.whole(world, "softmax", reader)
        folder = world.fresh("softmax")
        path = folder / "softmax" / "tables" / "generalization.json"
        known = json.loads(path.read_text())
        os.mkfifo(folder / "pipe")
        known["recipe_path"] = str(folder / "pipe") if place == "FIFO" else place
        path.write_text(json.dumps(known))
        found = _judged(world, folder, expected, reader(folder / "softmax"), path, _provenance)
        return found._replace(where=f"{reader.__name__}, recipe_path={place!r:.20}: {found.where}")

    return Case("hostile folders", f"recipe_path={place!r:.30}, then {reader.__name__}", run)


def _judged(world: World, folder: Path, expected: Any, said: Any, file: Path, how: Callable) -> Result:
    if (folder / "executed").exists():
        return Result(Kind.WRONG, "a command from the folder was executed")
    page = folder / "page.html"
    if page.is_file() and HTML in page.read_text(errors="replace"):
        return Result(Kind.WRONG, "HTML from the folder is HTML of the page")
    if SECRET in said.text:
        return Result(Kind.WRONG, "content from outside is shown")
    if isinstance(said.error, damage.Raised):
        return said.error.args[0]
    if (wrong := fault(said)) is not None:
        return wrong
    if (said.status, said.out) == (expected.status, expected.out):
        same = how is link_out and file.name in ("config.json", "scores.json", "weights.safetensors", "generalization.csv")
        if same and _was_read(file.name, expected, said):
            return Result(Kind.WRONG, "followed a link out of the folder", said.out[:200])
        return Result(Kind.RIGHT)
    if said.status != 0 or any(damage._names(line, file) for line in said.text.splitlines()):
        return Result(Kind.TOLD, "", said.err[:200])
    if how is word:  # another text may be shown: without escapes, which `fault` has looked for
        return Result(Kind.RIGHT, "", "shown as text")
    new = [line for line in said.text.splitlines() if line not in expected.text]
    return Result(Kind.WRONG, "other output, nothing said", " / ".join(new)[:200])


def _was_read(name: str, expected: Any, said: Any) -> bool:
    """Whether the command cannot have said this without the file: nothing was said of leaving it out."""
    weights, table = "{" in said.out, "metric," in said.out  # a table that is up to date is not measured, nor config.json read
    reads = {"config.json": not table or "architecture" in said.out, "scores.json": not table, "weights.safetensors": weights}
    reads["generalization.csv"] = table
    return reads[name] and said.err == expected.err
