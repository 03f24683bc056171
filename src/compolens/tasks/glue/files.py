"""The tab-separated files of GLUE (1804.07461), read from a folder. Nothing is downloaded, and nothing is written there.

    DIR/<task>/train.tsv    the public train set
    DIR/<task>/dev.tsv      the public development set; labels of test.tsv are not public, and it is not read

Columns are parted by single tabs, without quotes. All files but those of CoLA begin with a line of names:

    SST-2   sentence  label                                       0 or 1
    CoLA    (source)  (label)  (mark of the source)  (sentence)   0 or 1
    MRPC    Quality  #1 ID  #2 ID  #1 String  #2 String           0 or 1
    RTE     index  sentence1  sentence2  label                    not_entailment or entailment
    QNLI    index  question  sentence  label                      not_entailment or entailment
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from compolens.foundation.configs import ConfigError, nearest, require

WHERE = "https://gluebenchmark.com/tasks"
FILES = ("train.tsv", "dev.tsv")


class Layout(NamedTuple):
    """How a task's files are laid out.

    Args:
        columns: of a line; "" where nobody reads it.
        texts: the columns that hold text, in order.
        label: the column that holds the label.
        classes: what the labels are, in the order of their numbers.
        named: whether the first line names the columns.
    """

    columns: tuple[str, ...]
    texts: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    named: bool = True


BINARY, ENTAILED = ("0", "1"), ("not_entailment", "entailment")
LAYOUTS = {
    "SST-2": Layout(("sentence", "label"), ("sentence",), "label", BINARY),
    "CoLA": Layout(("source", "label", "mark", "sentence"), ("sentence",), "label", BINARY, named=False),
    "MRPC": Layout(("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), ("#1 String", "#2 String"), "Quality", BINARY),
    "RTE": Layout(("index", "sentence1", "sentence2", "label"), ("sentence1", "sentence2"), "label", ENTAILED),
    "QNLI": Layout(("index", "question", "sentence", "label"), ("question", "sentence"), "label", ENTAILED),
}
"""Name of the folder -> what its files look like."""


class Example(NamedTuple):
    """A line of a file.

    Args:
        texts: one text or two.
        label: number of the class.
        file: which of `FILES` it is from, as a number.
    """

    texts: tuple[str, ...]
    label: int
    file: int


def read_examples(data: str, name: str) -> tuple[Example, ...]:
    """All lines of a task's files, those of train.tsv first.

    Read once per process, and again if a file changed.

    Args:
        data: the folder that holds GLUE, a folder per task.
        name: the task, one of `LAYOUTS`.

    Returns:
        The examples.

    Raises:
        ConfigError: there is no such folder or file, or a line does not have the layout.
    """
    paths = [_path(data, name, file) for file in FILES]
    return _read(name, tuple((path, path.stat().st_mtime_ns) for path in paths))


def _path(data: str, name: str, file: str) -> Path:
    """A file that is there, or an error that says what to download, and where to put it."""
    require(name in LAYOUTS, f"Glue: there is no task {name!r} here; {nearest(name, LAYOUTS)}")
    fix = (
        f"; download {name} from {WHERE} and unpack it, so that DIR/{name}/train.tsv and DIR/{name}/dev.tsv are there, then "
        "name DIR: Glue(data=…) in Python, compolens train … --data DIR, or data in the config.json of a trained model"
    )
    require(bool(data), f"Glue reads GLUE from disk and downloads nothing, but has no folder to read{fix}")
    root = Path(data).expanduser()
    require(root.is_dir(), f"Glue: there is no folder {data!r}{fix}")
    path = root / name / file
    require(path.is_file(), f"Glue: there is no file {path}{fix}")
    return path


@lru_cache(maxsize=4)
def _read(name: str, paths: tuple[tuple[Path, int], ...]) -> tuple[Example, ...]:
    return tuple(example for number, (path, _) in enumerate(paths) for example in read_file(path, name, number))


def read_file(path: Path, name: str, number: int = 0) -> list[Example]:
    """The lines of one file.

    Args:
        path: the file.
        name: the task, one of `LAYOUTS`.
        number: which of `FILES` it is.

    Returns:
        The examples, in the order of the lines; empty lines are left out.

    Raises:
        ConfigError: a line does not have the layout, the text is not UTF-8, or there is no line.
    """
    layout = LAYOUTS[name]
    try:
        lines = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"Glue: {path} is no UTF-8 text ({error}); get it anew from {WHERE}") from error
    wanted = f"{name} has {len(layout.columns)} columns parted by tabs: {', '.join(layout.columns)}"
    if layout.named:
        first, lines = tuple(lines[0].split("\t")), lines[1:]
        require(first == layout.columns, f"Glue: {path} begins with the columns {', '.join(first)[:120]!r}, but {wanted}")
    found = []
    for at, line in enumerate(lines, start=1 + layout.named):
        if not line.strip():
            continue
        cells = dict(zip(layout.columns, line.split("\t"), strict=False))
        count = line.count("\t") + 1
        require(count == len(layout.columns), f"Glue: line {at} of {path} has {count} columns, but {wanted}")
        label = cells[layout.label].strip()
        told = f"Glue: line {at} of {path} has the label {label!r}; {name} has {' and '.join(layout.classes)}"
        require(label in layout.classes, told)
        found.append(Example(tuple(cells[column] for column in layout.texts), layout.classes.index(label), number))
    require(bool(found), f"Glue: {path} holds no line; get it anew from {WHERE}")
    return found
