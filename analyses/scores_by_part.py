"""Which parts of a composition an architecture cannot answer: its score by how many of them a composition has."""

from pathlib import Path

import pandas as pd

from compolens import tables
from compolens.diagnosis.groups import SEEDS, group, name_among, telling
from compolens.figures import Drawing, Line, Mark, Panel, Points, color_of
from compolens.foundation.configs import ConfigError, nearest

needs = ("generalization",)
SPLITS = {"test": "training compositions", "ood": "held-out compositions"}
EACH = "has the part"


def analyze(models: list[Path], *, parts: str = "") -> Drawing:
    """Draw the score of compositions by the parts that they have.

    For families that write a composition as its parts, such as "A+A+F+G": S-RAVEN (2406.05816), whose parts are rules, and the
    hyperteacher (2312.15001), whose parts are modules. Every composition counts once, however often it was drawn. Compositions
    that share a part share others too, so a score that falls with a part does not by itself say that the part is why.

    Args:
        models: folders of the models to draw, in this order.
        parts: parts to be counted together, as compositions write them, such as "F,G": the horizontal axis is then how many
            parts of a composition are among them. Without, it is the part, and compositions that have it are averaged.

    Returns:
        The drawing: a panel for training compositions and one for held-out ones. Points are seeds, lines their means, dashed
        lines the highest score that can be had.

    Raises:
        ConfigError: a family does not write compositions as parts, or there is no such part.
    """
    groups = group(models)
    scores = [[_scores(folder) for folder in g.folders] for g in groups]
    known = sorted({part for frames in scores for frame in frames for named in frame["parts"] for part in named})
    asked = tuple(part.strip() for part in parts.split(",") if part.strip())
    for part in asked:
        if part not in known:
            raise ConfigError(f"no composition has a part {part!r}; {nearest(part, known)}")
    x = f"parts that are {' or '.join(asked)}" if asked else EACH
    panels, told = [], []
    for split, name in SPLITS.items():
        marks: list[Mark] = []
        for g, frames in zip(groups, scores, strict=True):
            color, label = color_of(telling(g, groups)), name_among(g, groups)
            points = pd.concat([_by_part(frame, split, asked, x).assign(model=f.name)
                                for frame, f in zip(frames, g.folders, strict=True)])  # fmt: skip
            means = points.groupby(x, as_index=False)[["score", "ceiling"]].mean()
            marks.append(Line(means, x, "ceiling", label="can be had", color="#888888", dash=True))
            marks.append(Line(means, x, "score", label=label, color=color))
            marks.append(Points(points, x, "score", label=label, color=color, hover="model", keyed=False))
            if asked and split == "ood":
                along = zip(means[x], means["score"], strict=True)
                told.append(f"{label}: " + ", ".join(f"{n} {value:.2f}" for n, value in along))
        panels.append(Panel(name, x, tables.settings(groups[0].folders[0])["score_name"], tuple(marks)))
    caption = "Mean score over compositions, each counted once. Points: seeds; dashed: the highest score that can be had. "
    if told:
        caption += f"Held out, by how many parts are {' or '.join(asked)}: {'; '.join(told)}. "
    caption += f"With fewer than {SEEDS} seeds nothing is claimed about an architecture."
    return Drawing("Which parts can it answer?", tuple(panels), caption)


def _scores(folder: Path) -> pd.DataFrame:
    """A row per split and composition: parts, score, ceiling."""
    rows = tables.at_last_step(tables.read(folder, "generalization"))
    rows = rows[(rows["composition"] != "all") & (rows["metric"] == "score") & rows["value"].notna()]
    own = rows[(rows["reference"] == "model") & (rows["control"] == "")].set_index(["split", "composition"])["value"]
    if own.empty or not all("+" in name or len(name) == 1 for _, name in own.index):
        raise ConfigError(
            f"{folder} has no compositions that are written as parts, such as A+B; scores_by_part draws those of S-RAVEN and "
            "of the hyperteacher"
        )
    pooled = tables.pooled(folder)
    best = pooled.loc[(pooled["note"] == "ceiling") & (pooled["control"] == "reference"), "reference"].unique().tolist()
    top = rows[rows["reference"].isin(best)].set_index(["split", "composition"])["value"]
    found = pd.DataFrame({"score": own, "ceiling": top.reindex(own.index)}).reset_index()
    return found.assign(parts=found["composition"].str.split("+"))


def _by_part(frame: pd.DataFrame, split: str, asked: tuple[str, ...], x: str) -> pd.DataFrame:
    """The mean over compositions, by part or by how many parts are among those `asked`."""
    here = frame[frame["split"] == split]
    if asked:
        here = here.assign(**{x: [sum(part in asked for part in named) for named in here["parts"]]})
    else:
        here = here.assign(**{x: here["parts"].map(lambda named: sorted(set(named)))}).explode(x)
    return here.groupby(x, as_index=False)[["score", "ceiling"]].mean()
