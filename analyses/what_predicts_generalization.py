"""Some numbers that need no held-out answer say which of two neighbouring models recombines better."""

from pathlib import Path

import pandas as pd

from compolens.diagnosis.contest import FAMILIES, MODELS, Judged, gathered, judge
from compolens.diagnosis.predictions import LEAGUES
from compolens.figures import Bars, Drawing, Panel, Points, Rule
from compolens.figures.words import counted
from compolens.foundation.configs import ConfigError

needs = ("generalization", "predictors")


def analyze(models: list[Path], *, families: int = FAMILIES, least: int = MODELS) -> Drawing:
    """Draw how often each predictor has the sign of the held-out score, between models that differ in one setting alone.

    Neighbours that differ in one setting are those of 1912.02178 and 2010.11924.

    Args:
        models: folders of the models to judge on.
        families: in how many families a predictor has to be defined to enter.
        least: of how many models.

    Returns:
        The drawing, a panel per league. Bars are agreements with 95 % intervals over clusters (of a task and teacher seed, or
        with a model in common); open points are single families, each judged in the direction that the others show. Predictors
        that are defined too rarely stand at the end, and their names say so.

    Raises:
        ConfigError: all are defined too rarely.
    """
    frame = gathered(models, ("predictors",))
    found = judge(frame, families, least)
    if not any(one.enters for one in found):  # bars of one pair or two would say 1.0
        there = frame["model"].nunique()
        fewer = f", or ask for fewer: --families 1 --least {there}" if 1 < there < least else ", two or more of one setting"
        raise ConfigError(
            f"no predictor can be judged on {counted(there, 'model')}: each has to be defined in "
            f"{families} families and for {least} models; name more models{fewer}"
        )
    panels = [_panel(league, [one for one in found if one.league == league]) for league in LEAGUES]
    learned, left = frame["model"].nunique(), len(frame.attrs["left_out"])
    judged = f"{counted(learned, 'model')} of {counted(frame['family'].nunique(), 'family', 'families')}"
    caption = (
        f"{judged} that learned their training compositions ({left} others "
        "are left out). A predictor is right about a pair of models that differ in one setting if the one "
        "with more of it (or less, where that was expected) also scores higher on held-out compositions; 0.5 is chance. "
        + " ".join(f"{one.name}: {_told(one)}." for one in found)
    )
    return Drawing("Which number predicts who recombines?", tuple(panels), caption, columns=1)


def _told(one: Judged) -> str:
    if not one.enters:
        return one.why_not
    behind = f"{one.pairs} pairs in {one.clusters} clusters"
    return f"{one.agreement:.2f} [{one.lo:.2f}, {one.hi:.2f}], p {one.p_corrected:.3f}, {behind}"


def _panel(league: str, found: list[Judged]) -> Panel:
    names = [one.name if one.enters else f"{one.name} (too few)" for one in found]
    numbers = {"lo": [one.lo for one in found], "hi": [one.hi for one in found]}
    bars = pd.DataFrame({"predictor": names, "agreement": [one.agreement for one in found], **numbers})
    bars[["lo", "hi"]] = bars[["lo", "hi"]].where(bars[["lo", "hi"]].notna().all(axis=1), float("nan"))
    marks: list = [Bars(bars, "predictor", "agreement", label="neighbours", lo="lo", hi="hi")]
    apart = [(name, value, family) for name, one in zip(names, found, strict=True) for family, value in one.by_family.items()]
    if apart:
        single = pd.DataFrame(apart, columns=["predictor", "agreement", "family"])
        marks.append(Points(single, "predictor", "agreement", label="one family", hover="family", open=True))
    marks.append(Rule(0.5, label="chance"))
    return Panel(f"{league}: {LEAGUES[league]}", "", "signs that agree", tuple(marks), y_range=(0, 1.05))
