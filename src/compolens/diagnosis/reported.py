"""Numbers that papers report, with their source, for settings that are theirs: shown beside ours, never mixed with them."""

from __future__ import annotations

from typing import Any, NamedTuple

TABLE_A1 = "2406.05816 (v4), Table A1: mean ± standard error over three seeds"


class Quoted(NamedTuple):
    """A reported score.

    Args:
        value: as a fraction.
        se: its standard error, as a fraction.
        metric: the metric under which ours is comparable.
        source: paper and table.
    """

    value: float
    se: float
    metric: str
    source: str


_A1 = {
    "SoftmaxTransformer": ((63.28, 2.31), (56.56, 1.05)),
    "LinearAttention": ((59.89, 5.22), (56.30, 1.11)),
    "HYLA": ((81.13, 7.77), (69.13, 1.90)),
    "LinearRMSHead": ((68.93, 5.10), (59.01, 2.50)),
    "HYLAWithoutRMSHead": ((81.27, 7.88), (62.53, 5.73)),
    "HYLAWithoutNonlinearity": ((84.54, 5.32), (56.54, 0.21)),
    "HYLAWithoutBoth": ((79.42, 7.43), (56.33, 1.41)),
    "HYLAWithSoftmax": ((70.98, 7.08), (38.21, 2.98)),
    "DeepHYLA": ((87.65, 4.54), (66.59, 0.08)),
}
"""Held-out score in percent: fuzzy logic (32 tokens, 70 % held out), S-RAVEN (4 layers, width 1, 20 million instances)."""

_ALIKE: dict[str, dict[str, Any]] = {
    "FuzzyLogic": {
        "task.length": 32, "task.fraction_held_out": 0.7, "task.n_variables": 4, "task.n_terms": 2,
        "task.held_out": None, "task.fraction_unknown": 0.25, "task.inputs": "uniform", "task.held_out_terms": "known",
        "architecture.n_layers": 2, "architecture.d_model": 128, "architecture.n_heads": 8, "steps": 50_000, "batch_size": 128,
    },
    "SRaven": {
        "task.n_features": 4, "task.n_values": 8, "task.fraction_held_out": 0.25, "task.held_out": None, "task.permuted": True,
        "architecture.n_layers": 4, "architecture.d_model": 128, "architecture.n_heads": 16, "steps": 156_250,
        "batch_size": 128,
    },
}  # fmt: skip
"""What a model's settings must be for the table to speak of it (dropout, which the paper does not mention, is left open)."""


def held_out_score(settings: dict[str, Any]) -> Quoted | None:
    """What the paper reports for a model's held-out score, given the model's `settings` (`tables.settings`); None where
    nothing is reported."""
    alike = _ALIKE.get(settings["task"])
    if alike is None or settings["architecture"] not in _A1 or any(settings.get(k) != v for k, v in alike.items()):
        return None
    fuzzy = settings["task"] == "FuzzyLogic"
    value, se = _A1[settings["architecture"]][0 if fuzzy else 1]
    return Quoted(value / 100, se / 100, "R², mean of ratios" if fuzzy else "score", TABLE_A1)


class QuotedSparsity(NamedTuple):
    """A reported share of attention coefficients that are zero.

    Args:
        xi: the threshold.
        sparsity: the share, as a fraction.
        source: paper and figure.
    """

    xi: float
    sparsity: float
    source: str


XI_SWEEP = (
    "2511.20194, sweep of the soft threshold xi: share of coefficients that are zero; not known to us: the scale of the "
    "scores that xi acts on, the data, and what is pooled"
)

SPARSITY_BY_XI = tuple(
    QuotedSparsity(xi, percent / 100, XI_SWEEP)
    for xi, percent in ((0.003, 18.53), (0.01, 57.82), (0.03, 90.45), (0.1, 97.82), (0.3, 99.38))
)
"""A threshold says nothing without the scale of the scores: these may stand beside our curves, which need not meet them."""
