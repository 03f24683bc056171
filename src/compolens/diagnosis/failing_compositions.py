"""Which held-out composition of a model fails: what is expected of every predictor, written down before any was measured.

`docs/findings/what_predicts.md` shows this list to readers; a test holds the two together. The probe `composition_predictors`
measures what is named here.
"""

from __future__ import annotations

from compolens.diagnosis.predictions import CONCURRENT, PROGNOSIS, Prediction

EXPECTED = (
    Prediction("evidence for its parts", PROGNOSIS, 1, "2505.20278", "abstract",
               "the more training compositions show the rarest of its parts, the better it is answered"),
    Prediction("interference of its parts", PROGNOSIS, -1, "2606.13934", "abstract",
               "the more the directions of its parts overlap, the worse it is answered"),
    Prediction("conjunctions among its parts", PROGNOSIS, -1, "2405.16391", "abstract",
               "the more the codes of training compositions with its parts are their own, and no sums of parts, the worse"),
    Prediction("leak of a seen conjunction", CONCURRENT, -1, "2405.16391", "abstract",
               "the nearer its code lies to that of a training composition with one of its parts, the worse it is answered"),
    Prediction("score of training compositions with its parts", PROGNOSIS, 1, "this project", "text",
               "what is made of parts that were learned better is answered better; every other predictor has to beat it"),
)  # fmt: skip
