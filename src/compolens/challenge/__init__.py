"""A claim measured again over every defensible choice: a specification curve with joint nulls."""

from compolens.challenge.measured import Challenge, choices, claims, left_out, run

__all__ = ["Challenge", "choices", "claims", "left_out", "run"]
