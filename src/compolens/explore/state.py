"""What the reader of a page has chosen, as one value that is written to an address and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from compolens.foundation.configs import ConfigError, nearest, require, require_choice

COLOURS = ("patching", "readout R²", "readout R² minus untrained")
"""What a map of sites may show."""
WRITES = ("own code", "recombined code", "donor's code")
"""Which code is written before any of its parts is moved by hand."""

MOST = 8192
"""Episodes that are drawn of a split at most."""


def to_ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as ranges.

    Args:
        numbers: at least 0, in any order; runs of consecutive ones become ranges.

    Returns:
        Numbers and ranges, separated by commas.

    >>> to_ranges([0, 1, 2, 3, 7])
    '0-3,7'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(str(end) for end in run) for run in runs)


def from_ranges(text: str) -> tuple[int, ...]:
    """The inverse of `to_ranges`.

    Args:
        text: numbers and ranges, separated by commas.

    Returns:
        The numbers, in the order of the text.

    Raises:
        ConfigError: the text holds something else, or a range that descends.

    >>> from_ranges("0-3,7")
    (0, 1, 2, 3, 7)
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or "0").isdecimal()):
            raise ConfigError(f"episodes are whole numbers and ranges such as 0-3,7, got {text!r}")
        least, most = int(first), int(last or first)
        require(least <= most, f"a range of episodes ascends, such as {most}-{least}, got {part!r}")
        require(most < MOST, f"episodes count from 0 to {MOST - 1} at most, got {part!r}")
        found += range(least, most + 1)
    return tuple(found)


@dataclass(frozen=True)
class State:
    """Everything that a view depends on beside the models.

    Args:
        model: name of the model's folder; "": the first.
        step: training step of its weights; None: the final one.
        other: name of a second model to compare with; "": none.
        other_step: training step of its weights; None: the final one.
        split: "test" or "ood".
        episodes: how many are drawn of a split.
        seed: which ones.
        chosen: their numbers, from 0: one episode, or a set of them.
        donor: the donor of episode i is episode i + donor of the same draw (mod their number).
        layer: number of an attention layer, from 0.
        head: number of a head, from 0.
        at: layer of the site, as in `residual_sites`; an explicit code counts as one layer more. None: the explicit code where
            there is one, else the stream after the first block.
        role: token role of the site; "": the first that the layer has.
        colour: what the map of sites shows, one of `COLOURS`.
        write: which code is written at the site, one of `WRITES`.
        parts: (number, value) of the parts of the written code that are set by hand.
        search: whether the ladder has the rung "best code", whose search takes seconds.

    >>> State.from_query(State(chosen=(0, 1, 2), parts=((3, 0.5),)).to_query()).parts
    ((3, 0.5),)
    """

    model: str = ""
    step: int | None = None
    other: str = ""
    other_step: int | None = None
    split: str = "ood"
    episodes: int = 512
    seed: int = 0
    chosen: tuple[int, ...] = (0,)
    donor: int = -1
    layer: int = 0
    head: int = 0
    at: int | None = None
    role: str = ""
    colour: str = COLOURS[0]
    write: str = WRITES[1]
    parts: tuple[tuple[int, float], ...] = ()
    search: bool = False

    def __post_init__(self) -> None:
        require_choice(self.split, ("test", "ood"))
        require_choice(self.colour, COLOURS)
        require_choice(self.write, WRITES)
        require(1 <= self.episodes <= MOST, f"episodes must be from 1 to {MOST}, got {self.episodes}")
        require(len(self.chosen) > 0, "no episode is chosen; choose at least one")
        outside = [i for i in self.chosen if not 0 <= i < self.episodes]
        require(not outside, f"episode {outside[:1]} is not among the {self.episodes} drawn; they count from 0")

    @property
    def single(self) -> bool:
        """Whether one episode is looked at, and not a set."""
        return len(self.chosen) == 1

    def to_query(self) -> str:
        """What stands behind the question mark of an address: whatever differs from the defaults."""
        default = State()
        written = {
            field.name: _text(getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        }
        return urlencode(written, safe=":,-")

    @classmethod
    def from_query(cls, query: str) -> State:
        """The inverse of `to_query`.

        Args:
            query: with its question mark or without.

        Returns:
            The state; what the query does not name has its default.

        Raises:
            ConfigError: it names or holds what there is not.
        """
        return cls.of(dict(parse_qsl(query.removeprefix("?"))))

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> State:
        """A state from the texts of its settings.

        Args:
            texts: name of a setting -> its text.

        Returns:
            The state; what is not named has its default.

        Raises:
            ConfigError: a name is no setting's, or a text is not of its kind.
        """
        state, kinds = cls(), {field.name: field.type for field in fields(cls)}
        for name, text in texts.items():
            require(name in kinds, f"an address has no {name!r}; {nearest(name, kinds)}")
            try:
                changed: dict[str, Any] = {name: _value(name, text, str(kinds[name]))}
                state = replace(state, **changed)
            except ValueError as error:
                if isinstance(error, ConfigError):
                    raise
                raise ConfigError(f"{name}={text!r} in the address is not a {kinds[name]}") from error
        return state


def _text(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return ",".join(f"{i}:{x:g}" for i, x in value)
    return to_ranges(value) if isinstance(value, tuple) else str(value)


def _value(name: str, text: str, kind: str) -> object:
    if name == "chosen":
        return from_ranges(text)
    if name == "parts":
        pairs = (part.split(":") for part in filter(None, text.split(",")))
        return tuple((int(i), float(x)) for i, x in pairs)
    if kind == "bool":
        require_choice(text, ("True", "False"))
        return text == "True"
    return int(text) if kind.startswith("int") else text
