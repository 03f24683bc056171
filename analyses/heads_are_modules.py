"""A layer of linear attention can be the hypernetwork, head for module; trained on the task it need not become that."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import Group, group
from compolens.figures import Drawing, Mark, Panel, Points

needs = ("generalization", "module_alignment")
CONTROLS = {"": "", "untrained": "untrained", "random": "random modules", "shuffled codes": "shuffled codes"}
COLORS = ("#332288", "#CC6677", "#44AA99", "#DDCC77")
CONTROL_COLOR = "#888888"


def analyze(models: list[Path]) -> Drawing:
    """Draw scores, and how well heads or generated modules match the teacher's, for models that mix modules by a code.

    The construction is that of 2407.12275; the alignment that of 2312.15001.

    Args:
        models: folders of the models to draw, in this order.

    Returns:
        The drawing. Points are seeds; grey ones are controls of the alignment.
    """
    groups = group(models)
    scores: list[Mark] = []
    matches: list[Mark] = []
    for g, color in zip(groups, COLORS * len(groups), strict=False):
        pooled = pd.concat([_scores(folder) for folder in g.folders], ignore_index=True)
        aligned = pd.concat([_alignment(folder, _short(g)) for folder in g.folders], ignore_index=True)
        scores.append(Points(_named(pooled, g, "split"), "who", "value", label=g.label, color=color, hover="model"))
        own = aligned[aligned["control"] == ""]
        matches.append(Points(own, "who", "value", label=g.label, color=color, hover="model"))
        others = aligned[aligned["control"] != ""]
        matches.append(Points(others, "who", "value", label="controls", color=CONTROL_COLOR, hover="model", open=True))
    caption = (
        "Score: pooled, on fresh episodes of training compositions (test) and on held-out compositions (ood). Alignment: mean "
        "over the teacher's neurons of the cosine with the neuron that matches best, one match for all modules together; 1 "
        "where the modules are the teacher's up to a linear map of the code. Open marks are controls: the same architecture "
        "untrained, modules drawn normal, and the map between the codes fitted on the codes of other episodes. With fewer "
        "than 5 seeds no difference is claimed."
    )
    unit = tables.settings(models[0])["score_name"]
    panels = (Panel("Score", "", unit, tuple(scores)), Panel("Modules", "", "alignment with the teacher's", tuple(matches)))
    return Drawing("Are heads modules?", panels, caption, columns=1)


def _short(g: Group) -> str:
    """The architecture's name, and that its weights are written down where nothing was trained."""
    name = g.architecture.replace("Transformer", "")
    return f"{name}, written down" if tables.settings(g.folders[0])["steps"] == 0 else name


def _named(rows: pd.DataFrame, g: Group, column: str) -> pd.DataFrame:
    return rows.assign(who=_short(g) + " " + rows[column])


def _scores(folder: Path) -> pd.DataFrame:
    rows = tables.pooled(folder)
    return rows[(rows["control"] == "") & rows["split"].isin(["test", "ood"])].assign(model=folder.name)


def _alignment(folder: Path, name: str) -> pd.DataFrame:
    rows = tables.with_untrained_control(folder, "module_alignment")
    rows = rows[(rows["metric"] == "mean alignment") & (rows["split"] == "test") & rows["value"].notna()]
    who = [" ".join(filter(None, (name, CONTROLS[control]))) for control in rows["control"]]
    return rows.assign(who=who, model=folder.name)
