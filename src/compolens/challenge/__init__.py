"""A claim measured again over every defensible choice: a specification curve with joint nulls."""

from compolens.challenge.measured import Challenge, claims, run

__all__ = ["Challenge", "claims", "run"]
