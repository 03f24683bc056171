"""What readings say of models whose failure was planted: by codes that readouts tell, and else by compositions."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from compolens import recipes
from compolens.diagnosis import readings
from compolens.zoo.folders import TrainedModel

HERE = Path(__file__).parents[1] / "benchmarks" / "diagnosis"
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))


def rows_of(case):
    """The rows about readings of `nonlinear_code`; what is written is not asked."""
    inside = recipes.load_recipe("probes", "nonlinear_code").__globals__
    trained = TrainedModel(case.run, pytest.importorskip("cases").model_of(case), case.run.task, Path("planted"), 0)
    one = inside["_Measured"](trained, trained.model, "", 256, 0)
    one.read(128)
    return pd.DataFrame(one.rows)


@pytest.mark.parametrize(
    ("case", "told", "part"),
    [
        ("c062", True, "inference"),  # noise, which readouts that know other held-out compositions take off
        ("c021", True, "use"),  # the code as radii: at the context, and not behind it
        ("c109", False, "use"),  # as grid cells, which no readout tells; one part is lost behind the context
        ("c046", False, "inference"),  # as a clock; every x is taken with the y of another
        ("c080", False, None),  # as a clock, inferred and carried: that it is not executed, readings do not tell
    ],
)
def test_readings_of_planted_models(case, told, part):
    plan = pytest.importorskip("second_plan").plan()
    rows = rows_of(plan[case].case())
    found = readings.told_at(rows)
    assert any(one.role == "context" for one in found) == told
    reading = readings.reading_of(found, readings.named_at(rows))
    assert (reading and reading.part) == part
