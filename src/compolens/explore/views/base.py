"""What a view is, and the Python that repeats it."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import NamedTuple

from compolens.explore.sets import Number, units
from compolens.explore.state import State, to_ranges
from compolens.explore.subjects import Subject
from compolens.figures import Drawing


class View(NamedTuple):
    """A figure, the one number that it is quoted by, and a program that prints that number.

    Args:
        drawing: the figure.
        number: the number that it is quoted by.
        what: what the number is.
        python: a program that prints that number.
        cells: where a click leads: (column, row) of a heat map, or (column, 0), -> what is chosen there.
    """

    drawing: Drawing
    number: Number
    what: str
    python: str
    cells: dict[tuple[int, int], tuple]


def extent(subject: Subject, state: State) -> str:
    """What the numbers reach: shown beside every figure.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        A sentence for one episode, else how many episodes and compositions, and over what intervals run.
    """
    if state.single:
        return "One episode: no claim."
    composition = subject.bases(state).composition.cpu().numpy()
    count, unit = len(set(composition.tolist())), units(composition)[1]
    plural = "composition" if count == 1 else "compositions"
    reach = " of this composition" if unit == "episodes" else ""
    return (
        f"{len(composition)} episodes of {count} {plural}; intervals: 95 % over {unit}{reach}. "
        "One model, one seed: no claim about architectures."
    )


def opening(subject: Subject, state: State, *imports: str) -> list[str]:
    """The lines by which a program comes to the model and the chosen episodes.

    Args:
        subject: the model under study.
        state: what the reader has chosen.
        imports: further lines of imports.

    Returns:
        The lines, which define `trained`, `task`, `model`, `drawn`, `chosen` and `episodes`.
    """
    picked = f"list({_range(state.chosen)})" if len(state.chosen) > 1 and _run(state.chosen) else list(state.chosen)
    return [
        "import torch",
        "",
        "import compolens",
        "from compolens.activations import draw",
        *imports,
        *imports_of(subject),
        "",
        f"trained = {loading(subject)}",
        "task, model = trained.task, trained.model",
        f'(drawn,) = draw(task, "{state.split}", {subject.count}, {subject.seed}, batch={subject.count})',
        f"chosen = torch.tensor({picked})",
        "episodes = drawn.take(chosen)",
    ]


def loading(subject: Subject) -> str:
    """The call by which a program loads a model.

    Args:
        subject: the model under study.

    Returns:
        An expression; the classes that it names are those of `imports_of`.
    """
    trained = subject.trained
    at = "" if trained.step == trained.run.steps else f", step={trained.step}"
    own = f", classes=[{', '.join(one.__name__ for one in subject.classes)}]" if subject.classes else ""
    return f"compolens.load({str(trained.folder)!r}{at}{own})"


def imports_of(subject: Subject) -> list[str]:
    """The lines by which a program comes to the classes of one's own that a model's folder names.

    Args:
        subject: the model under study.

    Returns:
        Lines for every module or file that they come from; none where the folder needs none.
    """
    lines: list[str] = []
    for place in dict.fromkeys(one.__module__ for one in subject.classes):
        names = [one.__name__ for one in subject.classes if one.__module__ == place]
        if PathFinder.find_spec(place.partition(".")[0]) is not None:
            lines.append(f"from {place} import {', '.join(names)}")
            continue
        lines += ["from pathlib import Path", "from compolens.recipes import load_file"]
        lines.append(f"own = load_file(Path({str(sys.modules[place].__file__)!r}))")
        lines.append(f"{', '.join(names)} = {', '.join('own.' + name for name in names)}")
    return lines


def _run(numbers: tuple[int, ...]) -> bool:
    return "," not in to_ranges(numbers)


def _range(numbers: tuple[int, ...]) -> str:
    return f"range({numbers[0]}, {numbers[-1] + 1})"
