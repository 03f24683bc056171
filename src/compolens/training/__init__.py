"""How an architecture learns a task family: a `Run` describes it, `train` does it, and an interrupted one resumes.

Equal `Run` means equal weights, bit for bit, on the same kind of device, torch version and thread count (CPU trainings
use one). Data is a pure function of (data_seed, split, step), so a checkpoint needs no random state: weights, the
optimizer's moments, the step and the history are enough. Under torchrun several processes train one run (`distributed`).
"""

from typing import Any

from compolens.foundation.moved import elsewhere
from compolens.training.auxiliary import AUXILIARIES, Auxiliary, DecodableFactors, OrthogonalFactors
from compolens.training.folders import RESUME, card, check_folder, kept_weights
from compolens.training.initialisation import INITIALISATIONS, FanInPower, Initialisation, TeacherModules
from compolens.training.loop import Interrupted, train
from compolens.training.optimizers import (
    DECAYS,
    RECIPES,
    AdamW,
    AllButVectors,
    MatricesOnly,
    ReferenceAdamW,
    WarmupStableDecay,
)
from compolens.training.runs import Run
from compolens.training.scores import different, evaluate, stored_of
from compolens.training.state import Diverged, Progress, environment

__all__ = [
    "AUXILIARIES", "DECAYS", "INITIALISATIONS", "RECIPES", "RESUME", "AdamW", "AllButVectors", "Auxiliary", "DecodableFactors",
    "Diverged", "FanInPower", "Initialisation", "Interrupted", "MatricesOnly", "OrthogonalFactors", "Progress",
    "ReferenceAdamW", "Run", "TeacherModules", "WarmupStableDecay", "card", "check_folder", "different", "environment",
    "evaluate", "kept_weights", "stored_of", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return elsewhere(__name__, name)
