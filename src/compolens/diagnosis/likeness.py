"""The answers of models beside those of learners: how near, and whether the errors point the same way. Reads tables only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compolens import tables
from compolens.diagnosis.measured import Measured

NEAR = 0.1
"""Answers whose squared distance to a learner's is below this share of the answers' variance are taken for that learner's."""
NEARER = 0.5
"""…if they are no more than this share as far from that learner's as from the truth."""
ALONG = 0.85
"""Cosine between a model's errors and a learner's from which the errors are taken for that learner's. A model that mixes right
answers with a learner's has a cosine of 1, however little of the learner's is in them; that of a wrong code, whose answers
are a training composition's too, comes to three quarters."""
UNLIKE = 0.76
"""…and up to which they are surely not: no planted model that is no memory came further. Between the two, a code that no
readout tells may be a failure of inference or a memory."""
FITTED = ("frozen features", "linearised net")
"""The learners of `which_prior` that know nothing of compositions, but are fitted to training compositions. All that lack a
code err towards the mean, as these do: only answers that are near to theirs, and that no code mends, are taken for theirs."""
OWN_ERRORS = {
    "generic regression": (*tables.IN_CONTEXT, "copy of a panel"),
    "memorised": ("best training composition",),
}
"""Label -> the learners whose errors nothing else shares: they know the context alone, or training compositions alone."""
NO_ERROR = 1e-6
"""Mean squared errors below this have no direction: answers are float32."""


class Like(NamedTuple):
    """A learner that a model answers like.

    Args:
        learner: its name.
        distance: of the model's answers to that learner's, squared.
        cosine: between the errors of both.
        share: how far the model goes with them, 0 at the truth, 1 at the learner's answers.
    """

    learner: str
    distance: float
    cosine: float
    share: float

    def __str__(self) -> str:
        return (
            f'the learner "{self.learner}" (distance {self.distance:.3f}; errors at cosine {self.cosine:.2f}, '
            f"{self.share:.0%} of the way)"
        )


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """name -> mean over models that have it; nothing where a model has none at all."""
    if not all(rows):
        return {}
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(found[name])) for name in sorted(found)}


class Beside(NamedTuple):
    """The models beside learners, on one split.

    Args:
        wrong: the models' own mean squared error, NaN without a table.
        learners: name -> comparison, nearest first.
    """

    wrong: float
    learners: dict[str, Like]

    @classmethod
    def on(cls, models: Sequence[Measured], split: str) -> Beside:
        """How the models' answers p compare with a learner's, q, beside the truth t: means over models that all have tables.

        Distances are squared, all in one unit, so that of the third side of a triangle tells the angle:
        2 <p - t, q - t> = |p - t|² + |q - t|² - |p - q|². (For classes: the vectors that are 1 at the answer.)

        Args:
            models: tables of models that differ in seeds alone.
            split: "test" or "ood".

        Returns:
            The comparison.
        """
        own, theirs = _means([m.distances(split) for m in models]), _means([m.errors_of_learners(split) for m in models])
        wrong, found = own.pop("truth", np.nan), {}
        for learner, far in sorted(own.items(), key=lambda item: item[1]):
            error = theirs.get(learner, 0.0)
            if wrong > NO_ERROR and error > NO_ERROR:
                both = (wrong + error - far) / 2
                found[learner] = Like(learner, far, both / float(np.sqrt(wrong * error)), both / error)
        return cls(wrong, found)

    def taken_for(self, among: Sequence[str]) -> Like | None:
        """The nearest of the learners `among` whose answers the models give, nearer than the truth; None if none is."""
        like = [self.learners[learner] for learner in self.learners if learner in among]
        return next((one for one in like if one.distance <= min(NEAR, NEARER * self.wrong)), None)

    def most_like(self, among: Sequence[str]) -> Like | None:
        """Of the learners `among`, the one whose errors are most along the models' own; None if none is there."""
        like = [self.learners[learner] for learner in among if learner in self.learners]
        return max(like, key=lambda one: one.cosine, default=None)

    def errs_like(self, among: Sequence[str]) -> Like | None:
        """`most_like` of the learners `among`, if the models' errors are its own; else None."""
        like = self.most_like(among)
        return like if like is not None and like.cosine >= ALONG else None
