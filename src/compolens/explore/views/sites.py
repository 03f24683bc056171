"""The model as a map, layers by token roles: what patching moves there, or how well the code is read there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from compolens.activations.sites import Site, positions, put
from compolens.activations.streams import BATCH, record
from compolens.explore.sets import Number, pooled
from compolens.explore.state import State
from compolens.explore.subjects import Subject
from compolens.explore.views.base import View, extent, imports_of, loading, opening
from compolens.figures import Drawing, HeatMap, Panel
from compolens.foundation.configs import DoesNotApply
from compolens.interventions.interchange import Held, check_renders, interchange, remaining

NONE = Number(float("nan"), float("nan"), float("nan"), "")


@torch.no_grad()
def patched(subject: Subject, state: State) -> list[Number]:
    """For every site, how much of the way the answer moves to the donor's when the donor's activation is put there.

    The donor run shows the base's inputs under the donor's code. 1: all of the way; 0: none; negative: away from it.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        In the order of the sites, with intervals over the chosen set.

    Raises:
        DoesNotApply: the family cannot show inputs under another code.
        ConfigError: every episode is its own donor.
    """
    check_renders(subject.task)
    subject.check_donors(state)
    base = subject.bases(state)
    shown = subject.task.render(subject.donors(state).codes, base.inputs)
    hooks = list(dict.fromkeys(site.hook_name for site in subject.sites))
    ((own,), (donor,)) = (list(record(subject.model, [episodes], hooks)) for episodes in (base, shown))
    at, composition = subject.task.answers, base.composition.cpu().numpy()
    found = []
    for site in subject.sites:
        held, where = Held(own.sites[site.hook_name], donor.sites[site.hook_name]), positions(subject.model, site.role)
        edited = interchange(held, where)
        parts = zip(base.tokens.split(BATCH), edited.split(BATCH), strict=True)
        answer = torch.cat([put(subject.model, tokens, site, part) for tokens, part in parts])
        error, weight = remaining(answer, own.prediction, donor.prediction, at, base.targets)
        found.append(pooled(error.cpu().numpy(), weight.cpu().numpy(), composition))
    return found


def readable(subject: Subject, untrained: bool = False) -> list[float]:
    """For every site, R² of the code read there, on training compositions that the fit has not seen.

    Args:
        subject: the model under study.
        untrained: read in the untrained control instead.

    Returns:
        In the order of the sites: 1 is perfect, 0 the mean predictor, may be negative.
    """
    return [at.left_out for at in subject.codes_everywhere(untrained)]


def sites(subject: Subject, state: State) -> View:
    """The map; the number is that of the selected site. A click chooses a site.

    Args:
        subject: the model under study.
        state: what the reader has chosen.

    Returns:
        The view.
    """
    if state.colour == "patching":
        numbers, what, centre = patched(subject, state), "share of the way to the donor's answer", None
        note = _donor(subject, state) + extent(subject, state)
    else:
        minus = "minus" in state.colour
        values = np.array(readable(subject)) - (np.array(readable(subject, untrained=True)) if minus else 0)
        numbers = [NONE._replace(value=float(value)) for value in values]
        what, centre = f"{state.colour} of the code", 0.0 if minus else None
        note = "Fitted on training compositions; scored on those that the fit has not seen. Not about the chosen episodes."
    layers = list(dict.fromkeys(site.layer for site in subject.sites))
    roles = list(dict.fromkeys(site.role for site in subject.sites))
    frame, cells = _frame(subject, numbers, layers, roles)
    heat = HeatMap(frame, "role", "layer", "value", centre=centre, label=what, hover="told")
    drawing = Drawing(f"{state.colour}: {subject.title}", (Panel("", "token role", "layer", (heat,)),), note)
    chosen = subject.sites.index(subject.site(state)) if _has(subject, state) else 0
    site = subject.sites[chosen]
    program = _python(subject, state, site) if state.colour == "patching" else _python_readout(subject, state, site)
    return View(drawing, numbers[chosen], f"{what}, layer {site.layer}, {site.role}", program, cells)


def _has(subject: Subject, state: State) -> bool:
    try:
        subject.site(state)
    except DoesNotApply:
        return False
    return True


def _frame(subject: Subject, numbers: list[Number], layers: list[int], roles: list[str]) -> tuple[pd.DataFrame, dict]:
    found = {(site.layer, site.role): (site, number) for site, number in zip(subject.sites, numbers, strict=True)}
    rows, cells = [], {}
    for i, layer in enumerate(layers):
        for j, role in enumerate(roles):
            site, number = found.get((layer, role), (None, NONE))
            told = "nothing reads these tokens here" if site is None else f"{site.hook_name}, {role}: {number}"
            rows.append({"role": role, "layer": _layer(subject, layer), "value": number.value, "told": told})
            if site is not None:
                cells[j, i] = (layer, role)
    return pd.DataFrame(rows), cells


def _layer(subject: Subject, layer: int) -> str:
    last = subject.model.cfg.n_layers
    return "0: tokens embedded" if layer == 0 else "explicit code" if layer > last else f"{layer}: after block {layer - 1}"


def _donor(subject: Subject, state: State) -> str:
    if not state.single:
        return f"The donor of episode i is episode i{state.donor:+d}, shown with the base's inputs. "
    number = int((subject.numbers(state)[0] + state.donor) % len(subject.drawn(state.split).tokens))
    name = subject.task.composition_name(int(subject.donors(state).composition[0]))
    return f"Donor: the code of episode {number} ({name}), shown with the base's inputs. "


def _python(subject: Subject, state: State, site: Site) -> str:
    lines = [
        *opening(
            subject,
            state,
            "from compolens import intervene",
            "from compolens.activations import positions, record",
            "from compolens.interventions.interchange import remaining",
        ),
        f"donors = drawn.take((chosen + {state.donor}) % len(drawn.tokens))",
        "shown = task.render(donors.codes, episodes.inputs)  # the same inputs under the donors' codes",
        f"hook, where = {site.hook_name!r}, positions(model, {site.role!r})",
        "(donor,) = record(model, [shown], [hook])",
        "",
        "",
        "def patch(activation):",
        "    activation[:, where] = donor.sites[hook][:, where]",
        "    return activation",
        "",
        "",
        "before, after = (intervene(model, episodes, edits) for edits in ({}, {hook: patch}))",
        "error, weight = remaining(after, before, donor.prediction, task.answers, episodes.targets)",
        "print(float(1 - error.sum() / weight.sum()))",
    ]
    return "\n".join(lines) + "\n"


def _python_readout(subject: Subject, state: State, site: Site) -> str:
    minus = "minus" in state.colour
    lines = [
        "import compolens",
        "from compolens.activations import draw, sites",
        "from compolens.explore.subjects import code_numbers",
        "from compolens.interventions.oracles import fit_codes",
        *imports_of(subject),
        "",
        f"trained = {loading(subject)}",
        f'fits = list(draw(trained.task, "train", 1024, {subject.seed}))',
        f"(site,) = [s for s in sites(trained.model) if (s.layer, s.role) == ({site.layer}, {site.role!r})]",
        f"models = (trained.model, {'trained.untrained_control()' if minus else ''})",
        "r2 = [fit_codes(model, trained.task, fits, [site], code_numbers)[0].left_out for model in models]",
        f"print(r2[0]{' - r2[1]' if minus else ''})",
    ]
    return "\n".join(lines) + "\n"
