"""What a page asks: models are opened once, every view is computed once per state, one thread at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compolens.explore.state import State
from compolens.foundation import digests
from compolens.foundation.configs import ConfigError, nearest

if TYPE_CHECKING:
    from compolens.explore.subjects import Subject
    from compolens.explore.views.base import View
    from compolens.tasks.episodes import Sheet

KEPT = 200
"""Views that are kept in memory."""
MODEL = ("model", "step", "episodes", "seed")
DEPENDS = {
    "grid": (*MODEL, "split"),
    "worst": (*MODEL, "split", "chosen"),
    "sites": (*MODEL, "split", "chosen", "donor", "at", "role", "colour"),
    "heads": (*MODEL, "split", "chosen", "layer"),
    "attention": (*MODEL, "split", "chosen", "layer", "head"),
    "code": (*MODEL, "split", "chosen", "donor", "at", "role", "write", "parts"),
    "parts": (*MODEL, "split", "chosen", "donor"),
    "ladder": (*MODEL, "split", "chosen", "at", "role", "search"),
    "diff": (*MODEL, "other", "other_step", "split", "chosen", "layer", "head"),
}
"""View -> the settings of a state that it depends on."""


@dataclass(frozen=True)
class Facts:
    """What the controls of a page offer for a model.

    Args:
        steps: kept training steps, ascending.
        layers: number of attention layers.
        heads: number of heads in the chosen layer.
        sites: (layer, role) of every site.
        site: the chosen one; None where the model has none.
        parts: every part of the code: (name, value that is written, least value, largest value).
        count: episodes drawn of the split.
        compositions: names of the chosen episodes' compositions, each once.
        missing: why there are no parts; "" where there are.
    """

    steps: list[int]
    layers: int
    heads: int
    sites: list[tuple[int, str]]
    site: tuple[int, str] | None
    parts: list[tuple[str, float, float, float]]
    count: int
    compositions: list[str]
    missing: str


def described(folders: Sequence[Path], tell: Callable[[str], Any]) -> list[Path]:
    """Those folders whose description is what was written; of the others it is said at once, not only when one is chosen.

    Args:
        folders: model folders, at least one.
        tell: takes the sentence that says why one is left out.

    Returns:
        Those that are left, in their order.

    Raises:
        ConfigError: none is left.
    """
    kept, reason = [], ""
    for folder in folders:
        try:
            digests.read_config(folder)
            digests.check(folder, digests.CONFIG)
            kept.append(folder)
        except ConfigError as error:
            reason = str(error)
            if len(folders) > 1:
                tell(f"{folder.name} is left out: {reason}")
    if not kept:
        raise ConfigError(reason)
    return kept


class Explorer:
    """Models by the names of their folders.

    Args:
        folders: finished model folders; equal names are told apart by the folder above.
        classes: classes of one's own that folders may name.
    """

    def __init__(self, folders: Iterable[Path], classes: tuple[Any, ...] = ()) -> None:
        found = list(folders)
        count = Counter(folder.name for folder in found)
        self.folders = {folder.name if count[folder.name] == 1 else str(folder): folder for folder in found}
        self.classes = classes
        self._lock = threading.RLock()
        self._subjects: dict[tuple[str, int | None, int, int], Subject] = {}
        self._views: dict[str, View] = {}

    # ---- models ------------------------------------------------------------------------------------------------------
    def subject(self, state: State) -> Subject:
        """The model that a state looks at.

        Args:
            state: what the reader has chosen.

        Returns:
            The model, opened.

        Raises:
            ConfigError: no folder has this name.
        """
        return self._opened(self.chosen(state), state.step, state)

    def other(self, state: State) -> Subject | None:
        """The model that a state compares with.

        Args:
            state: what the reader has chosen.

        Returns:
            The model, opened; None where none is chosen.

        Raises:
            ConfigError: no folder has this name.
        """
        if not state.other and state.other_step is None:
            return None
        return self._opened(state.other or self.chosen(state), state.other_step, state)

    def chosen(self, state: State) -> str:
        """The name of the model that a state looks at.

        Args:
            state: what the reader has chosen.

        Returns:
            A key of `folders`, if there is such a model.
        """
        return state.model or next(iter(self.folders))

    def _opened(self, name: str, step: int | None, state: State) -> Subject:
        if name not in self.folders:
            raise ConfigError(f"no model {name!r} here; {nearest(name, self.folders)}")
        key = (name, step, state.episodes, state.seed)
        with self._lock:  # imports, too: threads that import torch at the same time wait for one another for ever
            from compolens.explore.subjects import opened

            if key not in self._subjects:
                self._subjects[key] = opened(self.folders[name], step, state, self.classes)
            return self._subjects[key]

    # ---- views -------------------------------------------------------------------------------------------------------
    def key(self, name: str, state: State) -> str:
        """What a view depends on, as text: equal keys, equal views.

        Args:
            name: the view's name, one of `DEPENDS`.
            state: what the reader has chosen.

        Returns:
            The name, and the settings that count.
        """
        kept = {field.name: getattr(state, field.name) for field in fields(state) if field.name in DEPENDS[name]}
        return f"{name}?{replace(State(episodes=state.episodes), **kept).to_query()}"

    def view(self, name: str, state: State) -> View:
        """A view by its name.

        Args:
            name: its name, one of `DEPENDS`.
            state: what the reader has chosen.

        Returns:
            The view, computed once per `key`.

        Raises:
            DoesNotApply: the family or the model has no such view.
        """
        key = self.key(name, state)
        with self._lock:
            if key not in self._views:
                self._views[key] = self._made(name, state)
                if len(self._views) > KEPT:
                    del self._views[next(iter(self._views))]  # the oldest
            return self._views[key]

    def _made(self, name: str, state: State) -> View:
        from compolens.explore import views

        subject = self.subject(state)
        if name == "diff":
            other = self.other(state)
            if other is None:
                raise ConfigError("choose a second model, or a second step, to compare with")
            return views.diff(subject, other, state)
        made: dict[str, Callable[[Any, State], View]] = {
            "grid": views.grid, "worst": views.worst, "sites": views.sites, "heads": views.heads,
            "attention": views.attention, "code": views.code, "ladder": views.ladder, "parts": views.parts,
        }  # fmt: skip
        return made[name](subject, state)

    def extent(self, state: State) -> str:
        """What the numbers of a state reach.

        Args:
            state: what the reader has chosen.

        Returns:
            A sentence or two.
        """
        with self._lock:
            from compolens.explore.views.base import extent

            return extent(self.subject(state), state)

    def sheets(self, state: State) -> tuple[str, list[Sheet]]:
        """The first of the chosen episodes as its family shows it.

        Args:
            state: what the reader has chosen.

        Returns:
            (what it is called, its sheets).
        """
        with self._lock:
            subject = self.subject(state)
            numbers = subject.numbers(state)[:1]
            episode, answers = subject.drawn(state.split).take(numbers), subject.answers(state.split)[numbers]
            row = subject.results(state.split).iloc[int(numbers[0])]
            told = f"episode {int(numbers[0])}, composition {row['name']}: {subject.task.score_name} {row['score']:.3f}"
            return told, subject.task.sheets(episode, answers)

    # ---- controls ----------------------------------------------------------------------------------------------------
    def facts(self, state: State) -> Facts:
        """What can be chosen in this state.

        Args:
            state: what the reader has chosen.

        Returns:
            What the controls offer.
        """
        with self._lock:
            from compolens.zoo.folders import kept_steps

            subject = self.subject(state)
            sites, site = self._sites(subject, state)
            parts, missing = self._parts(subject, state)
            names = [subject.task.composition_name(int(c)) for c in subject.bases(state).composition]
            return Facts(
                kept_steps(subject.trained.folder), len(subject.patterns), self._heads(subject, state), sites, site, parts,
                len(subject.drawn(state.split).tokens), list(dict.fromkeys(names)), missing,
            )  # fmt: skip

    def _sites(self, subject: Subject, state: State) -> tuple[list[tuple[int, str]], tuple[int, str] | None]:
        try:
            chosen = subject.site(state)
        except ConfigError:
            return [], None
        return [(site.layer, site.role) for site in subject.sites], (chosen.layer, chosen.role)

    def _parts(self, subject: Subject, state: State) -> tuple[list[tuple[str, float, float, float]], str]:
        from compolens.explore.edits import code_to_write

        try:
            written = code_to_write(subject, state)[0].tolist()
            return list(zip(subject.part_names(), written, *subject.span, strict=True)), ""
        except ConfigError as reason:
            return [], str(reason)

    def _heads(self, subject: Subject, state: State) -> int:
        return subject.heads[min(state.layer, len(subject.heads) - 1)] if subject.heads else 0

    def layer_by(self, state: State, by: int) -> State:
        """Another attention layer, with the same head where it has that one.

        Args:
            state: what the reader has chosen.
            by: how many layers further; negative: back. The last is followed by the first.

        Returns:
            The state with the layer chosen then; unchanged where the model has no attention.
        """
        with self._lock:
            subject = self.subject(state)
            if not subject.patterns:
                return state
            there = replace(state, layer=(state.layer + by) % len(subject.patterns))
            return replace(there, head=min(state.head, self._heads(subject, there) - 1))

    def head_by(self, state: State, by: int) -> State:
        """Another head of the same layer.

        Args:
            state: what the reader has chosen.
            by: how many heads further; negative: back. The last is followed by the first.

        Returns:
            The state with the head chosen then; unchanged where the model has no attention.
        """
        with self._lock:
            count = self._heads(self.subject(state), state)
            return replace(state, head=(state.head + by) % count) if count else state

    # ---- moving about ------------------------------------------------------------------------------------------------
    def worst(self, state: State) -> State:
        """The worst episode of the chosen ones' composition.

        Args:
            state: what the reader has chosen.

        Returns:
            The state with what is chosen then.
        """
        with self._lock:
            from compolens.explore.views.episodes import ranked

            subject = self.subject(state)
            composition = int(subject.bases(state).composition[0])
            return replace(state, chosen=(int(ranked(subject, state.split, composition)["episode"].iloc[0]),), parts=())

    def of_composition(self, state: State, composition: int | None = None) -> State:
        """All drawn episodes of a composition.

        Args:
            state: what the reader has chosen.
            composition: its number; None: that of the first chosen episode.

        Returns:
            The state with what is chosen then; unchanged where none is drawn.
        """
        with self._lock:
            subject = self.subject(state)
            wanted = int(subject.bases(state).composition[0]) if composition is None else composition
            found = (subject.drawn(state.split).composition == wanted).nonzero()[:, 0].tolist()
            return replace(state, chosen=tuple(found), parts=()) if found else state

    def all_drawn(self, state: State) -> State:
        """Every episode that is drawn of the split.

        Args:
            state: what the reader has chosen.

        Returns:
            The state with what is chosen then.
        """
        with self._lock:
            return replace(state, chosen=tuple(range(len(self.subject(state).drawn(state.split).tokens))), parts=())

    def step_by(self, state: State, by: int) -> State:
        """Another episode of the same draw.

        Args:
            state: what the reader has chosen.
            by: how many episodes further, from the first chosen one; negative: back. The last is followed by the
                first.

        Returns:
            The state with what is chosen then.
        """
        with self._lock:
            count = len(self.subject(state).drawn(state.split).tokens)
            return replace(state, chosen=((state.chosen[0] + by) % count,), parts=())

    def clicked(self, name: str, state: State, column: int, row: int) -> State:
        """Where a click on a view leads.

        Args:
            name: the view's name.
            state: what the reader has chosen.
            column: of the cell, from 0.
            row: of the cell, from 0.

        Returns:
            The state that the click leads to; unchanged where the cell leads nowhere.
        """
        found = self.view(name, state).cells.get((column, row))
        if found is None:
            return state
        if name == "grid":
            composition, split = found
            return self.worst(self.of_composition(replace(state, split=split, chosen=(0,), parts=()), composition))
        if name == "worst":
            return replace(state, chosen=found, parts=())
        if name == "sites":
            return replace(state, at=found[0], role=found[1])
        return replace(state, head=found[0]) if name == "heads" else state
