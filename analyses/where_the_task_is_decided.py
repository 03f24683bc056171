"""By layer and token role, how far patching one task's activations into another moves the answer to the first task's."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import group, title
from compolens.figures import Drawing, HeatMap, Panel
from compolens.foundation.configs import ConfigError

needs = ("patching",)


def analyze(models: list[Path], *, split: str = "ood") -> Drawing:
    """Draw the share of the answer that follows a patch (interchange intervention, 2303.02536), layer by token role.

    Three heat maps per architecture and setting: the patch, the control with another code's activations, which should stay
    near 0, and the untrained control.

    Args:
        models: folders of the models to draw, in this order.
        split: "ood" (held-out compositions, where the claim is decided) or "test" (training ones).

    Returns:
        The drawing. Cells are means over seeds; 1 is the whole way to the source's answer, 0 none.

    Raises:
        ConfigError: there is no such split.
    """
    if split not in ("test", "ood"):
        raise ConfigError(f"no split {split!r}; allowed: test, ood")
    groups, panels = group(models), []
    for g in groups:
        name = title(g, groups)
        frame = tables.at_last_step(tables.gather(g.folders, "patching"))
        frame = frame[frame["split"] == split]
        frame = frame[frame["layer"] <= frame[frame["role"] == "readout"]["layer"].max()]
        for control, label in (
            ("", "source's code"),
            ("another code", "another code (control)"),
            ("untrained", "untrained control"),
        ):
            rows = frame[frame["control"] == control].groupby(["layer", "role"], as_index=False, sort=False)["value"].mean()
            rows = rows.assign(layer=rows["layer"].astype(int).astype(str))
            panels.append(
                Panel(
                    f"{name}: {label}",
                    "layer",
                    "token role",
                    (HeatMap(pd.DataFrame(rows), "layer", "role", "value", centre=0.0, label="share of the way"),),
                )
            )
    caption = (
        "Activation patching between two episodes with the same inputs and different codes: share of the way that the answer "
        "moves to the source's own answer when the residual stream at a layer and token role is the source's."
    )
    return Drawing("Where is it decided which task is executed?", tuple(panels), caption, columns=3)
