"""Why a model fails: its loss in parts, the learner it is closest to, a label, and sentences. Reads tables; no torch."""

from compolens.diagnosis.label import Diagnosis, diagnose, measured

__all__ = ["Diagnosis", "diagnose", "measured"]
