"""What the literature expects of each predictor of compositional generalization, written down before any table was made.

`docs/findings/what_predicts.md` shows this list to readers; a test holds the two together. The probe `predictors` measures
what is named here.
"""

from __future__ import annotations

from typing import NamedTuple

PROGNOSIS, CONCURRENT = "prognosis", "concurrent"
LEAGUES = {
    PROGNOSIS: "measured on training compositions alone",
    CONCURRENT: "measured with held-out inputs and codes, never targets or answers",
}


class Prediction(NamedTuple):
    """What is expected of a predictor.

    Args:
        name: the metric of the probe `predictors`.
        league: "prognosis" or "concurrent".
        direction: 1 if models that generalize are expected to have more of it, -1 if less.
        source: an arXiv number, or "this project".
        read: "text" where the source was read, "abstract" where it was not.
        expects: the expectation in a sentence.
        of_parts: whether it describes how parts are laid out at a site, so that it is defined only where a readout there says
            more of left-out training compositions than the mean does.
    """

    name: str
    league: str
    direction: int
    source: str
    read: str
    expects: str
    of_parts: bool = False


READ = "decodability, training compositions left out"
"""The predictor that says whether parts are read at the chosen site at all."""
PREDICTIONS = (
    Prediction("score on training compositions", PROGNOSIS, 1, "this project", "text",
               "what was learned better is recombined better; every other predictor has to beat it"),
    Prediction(READ, PROGNOSIS, 1, "2507.07207", "abstract",
               "successful models show linearly decodable constituents"),
    Prediction("decodability less raw input, left out", PROGNOSIS, 1, "this project", "text",
               "decodability counts only as far as it exceeds that of the raw input"),
    Prediction("linear factorisation", PROGNOSIS, 1, "2602.24264", "abstract",
               "codes of models that generalize are sums of one effect per factor", True),
    Prediction("factor cosine", PROGNOSIS, -1, "2602.24264", "abstract",
               "effects of different factors are orthogonal in models that generalize", True),
    Prediction("homomorphism error", PROGNOSIS, -1, "2601.18858", "abstract",
               "the code of a whole is predicted by its parts where the model generalizes", True),
    Prediction("evidence count", PROGNOSIS, 1, "2505.20278", "abstract",
               "the more training compositions share the parts of a held-out one, the better it is answered"),
    Prediction("effective dimension", PROGNOSIS, -1, "this project", "text",
               "a code that uses few dimensions for many compositions shares them", True),
    Prediction("decodability, held out", CONCURRENT, 1, "2407.12275", "text",
               "codes fitted on training compositions are read off held-out ones where the model generalizes"),
    Prediction("decodability less raw input, held out", CONCURRENT, 1, "this project", "text",
               "the same, as far as it exceeds that of the raw input"),
    Prediction("interference of a pair's codes", CONCURRENT, -1, "2606.13934", "abstract",
               "held-out pairs whose codes overlap more are answered worse", True),
    Prediction("share outside the span of training codes", CONCURRENT, 1, "Task Vector Geometry (2026)", "abstract",
               "new tasks are solved in a subspace nearly orthogonal to that of the trained ones", True),
    Prediction("additivity, held out", CONCURRENT, 1, "2601.18858", "abstract",
               "codes of held-out compositions are sums of effects fitted on training ones", True),
)  # fmt: skip
