"""Of a model's held-out compositions, those fail whose parts training showed rarely, and whose codes are near seen ones'."""

from pathlib import Path

import pandas as pd

from compolens.diagnosis.contest import FAMILIES, Judged
from compolens.diagnosis.failing_compositions import MODELS, gathered, judge, references
from compolens.diagnosis.predictions import LEAGUES
from compolens.figures import Bars, Drawing, Panel, Points, Rule
from compolens.figures.words import counted

needs = ("generalization", "composition_predictors")


def analyze(models: list[Path], *, families: int = FAMILIES, least: int = MODELS) -> Drawing:
    """Draw how often each predictor orders two held-out compositions of one model by their scores.

    Evidence is that of 2505.20278, interference that of 2606.13934, conjunctions those of 2405.16391.

    Args:
        models: folders of the models to judge on.
        families: in how many families a predictor has to be defined to enter.
        least: of how many models.

    Returns:
        The drawing. Bars are agreements, averaged over models and then over clusters (setting and teacher), with 95 %
        intervals over clusters and compositions. Open points are single families, yellow points the same predictor measured on
        the untrained control. Predictors that are defined too rarely stand behind the others, and their names say so. Last
        come two references: interference dealt at random, and the score measured a second time.
    """
    frame = gathered(models)
    found, beside = judge(frame, families, least), references(frame)
    entered, left = frame["model"].nunique(), len(frame.attrs["left_out"])
    named = [(one.name if one.enters else f"{one.name} (too few)", one) for one in found]
    named += [(name, one) for name, one in beside.items() if not name.endswith(", untrained")]
    judged = f"{counted(entered, 'model')} of {counted(frame['family'].nunique(), 'family', 'families')}"
    caption = (
        f"{judged} that learned their training compositions ({left} "
        "others are left out). A predictor is right about two held-out compositions of one model, with equally many parts, if "
        "the one with more of it (or less, where that was expected) scores higher; 0.5 is chance. "
        + " ".join(f"{one.name} ({one.league}): {_told(one)}." for one in found)
        + f" Prognosis: {LEAGUES['prognosis']}; concurrent: {LEAGUES['concurrent']}."
    )
    return Drawing("Which held-out composition fails?", (_panel(named, beside),), caption)


def _told(one: Judged) -> str:
    if not one.enters:
        return one.why_not
    behind = f"{one.pairs} pairs in {one.clusters} clusters"
    return f"{one.agreement:.2f} [{one.lo:.2f}, {one.hi:.2f}], p {one.p_corrected:.3f}, {behind}"


def _panel(named: list[tuple[str, Judged]], beside: dict[str, Judged]) -> Panel:
    bars = pd.DataFrame([(name, one.agreement, one.lo, one.hi) for name, one in named],
                        columns=["predictor", "agreement", "lo", "hi"])  # fmt: skip
    single = pd.DataFrame([(name, value, family) for name, one in named for family, value in one.by_family.items()],
                          columns=["predictor", "agreement", "family"])  # fmt: skip
    control = {name: beside.get(f"{one.name}, untrained") for name, one in named}
    untrained = pd.DataFrame([(name, one.agreement) for name, one in control.items() if one is not None],
                             columns=["predictor", "agreement"])  # fmt: skip
    marks: list = [
        Bars(bars, "predictor", "agreement", label="all models", lo="lo", hi="hi"),
        Points(single, "predictor", "agreement", label="one family", hover="family", open=True),
    ]
    if len(untrained):
        marks.append(Points(untrained, "predictor", "agreement", label="untrained control", color="#DDAA33"))
    marks.append(Rule(0.5, label="chance"))
    return Panel("pairs of held-out compositions within a model", "", "signs that agree", tuple(marks), y_range=(0, 1.05))
