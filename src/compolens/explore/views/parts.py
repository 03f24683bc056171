"""Heads and MLPs: how far each alone moves the answer to the donor's."""

from __future__ import annotations

import pandas as pd

from compolens.explore.sets import Number, pooled
from compolens.explore.state import State
from compolens.explore.subjects import Subject
from compolens.explore.views.base import View, extent, opening
from compolens.figures import Drawing, HeatMap, Panel
from compolens.interventions.components import Component, answers_of, components, exchanged, hold, shift
from compolens.interventions.interchange import check_renders
from compolens.measures.intervals import Scale


def effects(subject: Subject, state: State) -> list[tuple[Component, Number]]:
    """For every head and MLP, how much of the way the answer moves when its activation comes from the donor's run.

    The donor run shows the base's inputs under the donor's code. The way is from the base's own answer to the donor run's.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The parts, block after block, with intervals over the chosen set. 1: all of the way; 0: none.

    Raises:
        DoesNotApply: the family cannot show inputs under another code, or the model has no hook point of a head or an MLP.
        ConfigError: every episode is its own donor.
    """
    check_renders(subject.task)
    subject.check_donors(state)
    base = subject.bases(state)
    shown = subject.task.render(subject.donors(state).codes, base.inputs)
    parts = components(subject.model, base.tokens)
    own, donor = hold(subject.model, base, parts), hold(subject.model, shown, parts)
    goal = shift(subject.task, own.prediction, donor.prediction, base.targets)
    weight, composition = goal.weight.cpu().numpy(), base.composition.cpu().numpy()
    found = []
    for part in parts:
        answer = exchanged(subject.model, base, own, part, donor.sites[part.hook_name])
        moved = goal.along(answers_of(subject.task, answer, base.targets)).cpu().numpy()
        found.append((part, pooled(weight - moved, weight, composition, Scale.PLAIN)))
    return found


def parts(subject: Subject, state: State) -> View:
    """The map, layers by parts; the number is that of the part of largest effect.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The view.
    """
    found = effects(subject, state)
    rows = [
        {
            "part": part.name.removeprefix(f"L{part.layer}"),
            "layer": str(part.layer),
            "effect": number.value,
            "told": f"{part.hook_name}: {number}",
        }
        for part, number in found
    ]
    heat = HeatMap(pd.DataFrame(rows), "layer", "part", "effect", centre=0.0, hover="told")
    note = "Each head or MLP alone takes its activation from the donor's run. " + extent(subject, state)
    drawing = Drawing(f"Heads and MLPs: {subject.title}", (Panel("", "layer", "head or MLP", (heat,)),), note)
    part, number = max(found, key=lambda one: abs(one[1].value))
    return View(
        drawing, number, f"share of the way to the donor's answer, {part.name} alone", _python(subject, state, part), {}
    )


def _python(subject: Subject, state: State, part: Component) -> str:
    chosen = f"[:, :, {part.head}]" if part.axis == 2 else (f"[:, :, :, {part.head}]" if part.axis == 3 else "[:]")
    lines = [
        *opening(subject, state, "from compolens import intervene", "from compolens.activations import record"),
        f"donors = drawn.take((chosen + {state.donor}) % len(drawn.tokens))",
        "shown = task.render(donors.codes, episodes.inputs)  # the same inputs under the donors' codes",
        f"hook = {part.hook_name!r}",
        "(donor,) = record(model, [shown], [hook])",
        "",
        "",
        "def exchange(activation):",
        f"    activation{chosen} = donor.sites[hook]{chosen}",
        "    return activation",
        "",
        "",
        "def answers(prediction):",
        "    found = prediction[:, list(task.answers)].double()",
        "    return found if episodes.targets.is_floating_point() else found - found.mean(-1, keepdim=True)",
        "",
        "",
        "before, after = (answers(intervene(model, episodes, edits)) for edits in ({}, {hook: exchange}))",
        "way = answers(donor.prediction) - before",
        "print(float(((after - before) * way).sum() / way.square().sum()))",
    ]
    return "\n".join(lines) + "\n"
