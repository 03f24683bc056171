"""A claim measured again over every defensible choice: a specification curve with joint nulls.

A single number rests on choices that could have been made otherwise (layer, penalty, rank, control, …). Here a claim is
measured under all their combinations; shown are all effects, sorted, above the choices that lead to them (Simonsohn, Simmons &
Nelson, "Specification curve analysis", 2020). Specifications share data, so the curve is tested as a whole: it is computed
again under permuted labels, and once more with model and control swapped, composition by composition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens.activations.sites import at_role, sites
from compolens.activations.streams import draw, record
from compolens.challenge.specification_curve import Evidence, Specification, draw_curve, tabulate
from compolens.figures import Drawing
from compolens.foundation.configs import ConfigError, nearest, require
from compolens.hooks import HookedModel
from compolens.interventions.oracles import code_features
from compolens.measures.readouts import PENALTIES, Moments
from compolens.tasks import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel, load


def claims() -> dict[str, tuple[str, Callable[..., Evidence]]]:
    """Name -> (the claim, the function that measures it over specifications)."""
    return {
        "latent_code": (
            "The code of held-out compositions is decodable from the residual stream, better than from the control",
            latent_code,
        )
    }


FIXED = (1.0, 100.0, None)
"""Penalties that a readout may be given, on standardised features; None: chosen among `PENALTIES` by leaving training
compositions out."""
RANKS = (None, 8, 16)
HIDDEN = (0, 128)
"""Random rectified features beside the linear ones: 128 make a two-layer network with a random first layer, in closed form."""
CONTROLS = ("raw input", "untrained control")
FOLDS = 4
INPUTS = ("as trained", "skewed")


class Challenge(NamedTuple):
    """What a claim's effects are under every specification.

    Args:
        table: a row per specification (metric "effect") and the summary's rows.
        drawing: the specification curve.
    """

    table: pd.DataFrame
    drawing: Drawing


def run(
    folder: str | Path,
    claim: str = "latent_code",
    *,
    episodes: int = 2048,
    permutations: int = 20,
    seed: int = 0,
    classes: Iterable[type] = (),
) -> Challenge:
    """Measure a claim about a model under every specification.

    Effects are differences of R² on held-out compositions (0: no better than the control), lo and hi 95 % bootstrap intervals
    over compositions; decoded values are clipped to the range seen in training.

    Two nulls, each with a p-value (one-sided) for the median effect and for the share of specifications with a positive one.
    "permuted codes": codes shuffled over all training episodes, so that neither features know them; any code that is better
    decodable from the model rejects it. "swapped with control": the model's features are as good as the control's, so their
    roles are exchanged at random per held-out composition; the claim's own null, with few compositions a blunt one.

    Args:
        folder: the model's folder.
        claim: a name of `claims()`.
        episodes: training episodes a readout is fitted on, and held-out ones it is scored on; at least 64.
        permutations: of the codes, shared by all specifications; at least 1.
        seed: which episodes.
        classes: as in `zoo.load`.

    Returns:
        The table and the curve.

    Raises:
        ConfigError: there is no such claim.
    """
    known = claims()
    if claim not in known:
        raise ConfigError(f"no claim {claim!r}; {nearest(claim, known)}")
    require(episodes >= 64 and permutations >= 1, f"need episodes >= 64, permutations >= 1; got {episodes}, {permutations}")
    trained = load(folder, classes=classes)
    specifications = choices(trained)
    sentence, measure = known[claim]
    evidence = measure(trained, specifications, episodes=episodes, permutations=permutations, seed=seed)
    table = tabulate(specifications, evidence, episodes)
    omitted = "; ".join(f"{what}: {why}" for what, why in left_out(trained).items())
    return Challenge(table, draw_curve(f"{sentence}: {trained.name}", table, specifications, evidence, omitted))


# ---- choices ---------------------------------------------------------------------------------------------------------
def choices(trained: TrainedModel) -> list[Specification]:
    """Every combination of choices that apply to the model `trained`; `left_out` says which do not.

    Layers: all that a block leaves, and the explicit code where there is one; the embedding carries no code by design."""
    here = [p for p in sites(trained.model) if p.layer > 0 and p.role in (*trained.model.roles, "all")]
    omitted = left_out(trained)
    full = getattr(trained.task, "n_context", 0)
    contexts = (full,) if "context length" in omitted else (full, full // 2)
    shares = (1.0,) if "number of compositions" in omitted else (1.0, 0.5)
    laws = INPUTS[:1] if "law of inputs" in omitted else INPUTS
    controls = tuple(c for c in CONTROLS if c not in omitted)
    options = product(here, FIXED, RANKS, HIDDEN, shares, contexts, laws, controls)
    return [Specification(p.layer, p.role, p.hook_name, *rest) for p, *rest in options]


def left_out(trained: TrainedModel) -> dict[str, str]:
    """Choices that do not apply to the model `trained`, each with the reason."""
    task, found = trained.task, {}
    try:
        (one,) = draw(task, "train", 1, "challenge/law", trained.device)
        _shown_to(task, one, "skewed")
    except ConfigError as error:
        found["law of inputs"] = str(error)
    if trained.why_no_untrained_control:
        found["untrained control"] = f"not available: {trained.why_no_untrained_control}"
    try:
        shorter, fewer = shortened(trained, trained.model, getattr(task, "n_context", 0) // 2)
        (seen,) = record(shorter, draw(fewer, "train", 2, "challenge/fewer", trained.device), [sites(shorter)[0].hook_name])
        _ = [at_role(seen.sites[p.hook_name], shorter, p.role) for p in sites(shorter)[:1]]
    except ConfigError as error:
        found["context length"] = " ".join(str(error).split())[:120]
    (batch,) = draw(task, "train", 512, "challenge/half", compositions=half(task), batch=512)
    (whole,) = draw(task, "train", 512, "challenge/half", batch=512)
    some, every = ((code_features(task, b.codes).std(0) > 0).cpu() for b in (batch, whole))
    if bool((every & ~some).any()):
        found["number of compositions"] = "half of the training compositions do not show every part of the code"
    return found


def half(task: TaskFamily) -> tuple[int, ...]:
    """Every second training composition of `task`."""
    return task.compositions("train")[::2]


def shortened(trained: TrainedModel, model: HookedModel, n_context: int) -> tuple[HookedModel, TaskFamily]:
    """The same weights on a task that shows fewer examples.

    Args:
        trained: the model with its run and task.
        model: whose weights are taken.
        n_context: examples shown, at least 1.

    Returns:
        The model and the task.

    Raises:
        ConfigError: the weights do not fit.
    """
    require(hasattr(trained.task, "n_context"), "the family has no number of examples to change")
    require(n_context >= 1, f"{n_context} examples are too few")
    task = replace(trained.task, n_context=n_context)  # type: ignore[call-arg]
    shorter = replace(trained.run, task=task).build().to(trained.device).eval()
    weights, fitting = model.state_dict(), shorter.state_dict()
    other = [name for name in weights if name not in fitting or fitting[name].shape != weights[name].shape]
    require(not other, f"the shape of {', '.join(other[:2])} depends on the number of examples")
    shorter.load_state_dict(weights)
    return shorter, task


# ---- the claim -------------------------------------------------------------------------------------------------------
class Data(NamedTuple):
    """One context length and law of inputs; everything in pairs (train, held out).

    Args:
        features: by source ("raw input", or (model, hook point, role)), (n, features) float64.
        labels: (n, width) codes.
        composition: (n,) ints.
    """

    features: dict[Any, tuple[Tensor, Tensor]]
    labels: tuple[Tensor, Tensor]
    composition: tuple[Tensor, Tensor]


def latent_code(
    trained: TrainedModel, specifications: list[Specification], *, episodes: int, permutations: int, seed: int
) -> Evidence:
    """Decodability of every part of the code (`TaskFamily.factors`: coefficients, or one-hot values).

    Args:
        trained: the model with its run and task.
        specifications: under which it is measured.
        episodes: per split.
        permutations: of the codes.
        seed: which episodes.

    Returns:
        Effects and nulls.
    """
    models, hook_names = {"": trained.model}, {(s.site, s.role) for s in specifications}
    if any(s.control == "untrained control" for s in specifications):
        models["untrained control"] = trained.untrained_control()
    data = {}
    for context, law in sorted({(s.context, s.inputs) for s in specifications}):
        same = context == getattr(trained.task, "n_context", 0)
        here = {n: (m, trained.task) if same else shortened(trained, m, context) for n, m in models.items()}
        data[context, law] = observe(here, sorted(hook_names), law, episodes, seed, trained.device)
    return measure(data, specifications, permutations, seed)


def _shown_to(task: TaskFamily, episodes: Episodes, law: str) -> Episodes:
    """The episodes, or the same codes with the inputs of another law."""
    return episodes if law == INPUTS[0] else task.render(episodes.codes, task.skewed(episodes.inputs))


def observe(models, hook_names, law, episodes, seed, device) -> Data:
    """Features of train and held-out episodes at all sites, of model and untrained control, and the raw input's.

    Args:
        models: "" or a control's name -> (model, task).
        hook_names: (hook point, role) of every site.
        law: of the inputs, "as trained" or "skewed".
        episodes: per split.
        seed: which episodes.
        device: where the models are.

    Returns:
        What readouts are fitted on and scored on.
    """
    task = models[""][1]
    codes, compositions, parts = [], [], []
    for split in ("train", "ood"):
        batches = [_shown_to(task, b, law) for b in draw(task, split, episodes, f"challenge/{seed}", device)]
        found: dict[Any, Tensor] = {"raw input": torch.cat([task.raw_statistic(b) for b in batches])}
        for name, (model, _) in models.items():
            seen = list(record(model, batches, sorted({hook_name for hook_name, _ in hook_names})))
            for hook_name, role in hook_names:
                found[name, hook_name, role] = torch.cat([at_role(a.sites[hook_name], model, role).double() for a in seen])
        parts.append(found)
        codes.append(torch.cat([code_features(task, b.codes) for b in batches]))
        compositions.append(torch.cat([b.composition for b in batches]))
    features = {key: (parts[0][key], parts[1][key]) for key in parts[0]}
    return Data(features, (codes[0], codes[1]), (compositions[0], compositions[1]))


def measure(data: dict[tuple[int, str], Data], specifications: list[Specification], permutations: int, seed: int) -> Evidence:
    """The effects of all specifications, under the true codes and the same permutations of them.

    Args:
        data: (examples shown, law of inputs) -> what was observed.
        specifications: under which it is measured.
        permutations: of the codes.
        seed: of the permutations.

    Returns:
        Effects and nulls.
    """
    errors: dict[tuple, dict[float | None, tuple[Tensor, Tensor]]] = {}
    spread: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
    rows = []
    for s in specifications:
        shown = (s.context, s.inputs)
        here = data[shown]
        own, other = ("", s.site, s.role), s.control if s.control == "raw input" else (s.control, s.site, s.role)
        if shown not in spread:
            spread[shown] = _spread(here), _permuted(here, permutations, seed)
        total, y = spread[shown]
        for source in (own, other):
            key = (source, shown, s.rank, s.hidden, s.share)
            if key not in errors:
                errors[key] = _errors(here, source, y, s, seed)
        (a, a_null), (b, b_null) = (errors[source, shown, s.rank, s.hidden, s.share][s.penalty] for source in (own, other))
        sst = total.sum(0)
        fair = [1 - (e.sum(0) / sst).mean() for e in (a, b)]
        null = ((b_null - a_null) / sst).mean(1)
        rows.append((((b - a) / sst).mean(1), (total / sst).mean(1), *fair, null))
    return Evidence(*(torch.stack(list(column)).cpu().numpy() for column in zip(*rows, strict=True)))


def _varies(here: Data) -> Tensor:
    """Parts of the code that vary in training and among held-out compositions."""
    first, second = here.labels
    found = (first.std(0) > 1e-9) & (second.std(0) > 1e-9)
    require(bool(found.any()), "no part of the code varies on both splits, so none can be decoded; draw more episodes")
    return found


def _spread(here: Data) -> Tensor:
    """(composition, part): squared deviation of held-out codes from their overall mean."""
    y, composition = here.labels[1][:, _varies(here)], here.composition[1]
    square = (y - y.mean(0)).square()
    return torch.stack([square[composition == c].sum(0) for c in composition.unique()])


def _permuted(here: Data, permutations: int, seed: int) -> Tensor:
    """(n, (1 + P) * parts): training codes, then the same shuffled over episodes, P times."""
    y = here.labels[0][:, _varies(here)]
    rng = np.random.default_rng([seed, len(y)])
    orders = [torch.from_numpy(rng.permutation(len(y))).to(y.device) for _ in range(permutations)]
    return torch.cat([y, *(y[order] for order in orders)], dim=1)


def _errors(here: Data, source: Any, y: Tensor, s: Specification, seed: int) -> dict[float | None, tuple[Tensor, Tensor]]:
    """penalty -> squared errors on held-out episodes: (composition, part) of true codes, (P, part) of permuted ones."""
    ids = here.composition[0].unique()
    used = ids[::2] if s.share < 1 else ids
    rows = torch.isin(here.composition[0], used)
    x, out = (part.double() for part in here.features[source])
    x, out = _shown(x[rows], out, s.rank, s.hidden, seed)
    y, group = y[rows], here.composition[0][rows]
    folds = [torch.isin(group, used[i::FOLDS]) for i in range(min(FOLDS, len(used)))]
    parts = [Moments.of(x[fold], y[fold]) for fold in folds]
    whole = Moments.total(parts)
    wanted = here.labels[1][:, _varies(here)]
    width = wanted.shape[1]
    missed = torch.zeros(len(PENALTIES), y.shape[1] // width, dtype=torch.float64, device=x.device)
    for part in parts if len(parts) > 1 else []:
        missed += torch.stack([part.sse(r).view(-1, width).sum(1) for r in (whole - part).fit(PENALTIES)])
    best = missed.argmin(0)
    low, high = y.amin(0), y.amax(0)  # beyond what was seen a readout extrapolates, and R² has no floor
    decoded = [r(out).clamp(low, high).unflatten(1, (-1, width)) for r in whole.fit(PENALTIES)]
    squares = torch.stack([(one - wanted[:, None]).square() for one in decoded])
    chosen = squares[best, :, torch.arange(len(best))].transpose(0, 1)
    by_penalty: dict[float | None, Tensor] = dict(zip(PENALTIES, squares, strict=True)) | {None: chosen}
    composition = here.composition[1]

    def summed(e: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([e[composition == c, 0].sum(0) for c in composition.unique()]), e[:, 1:].sum(0)

    return {penalty: summed(by_penalty[penalty]) for penalty in FIXED}


def _shown(x: Tensor, out: Tensor, rank: int | None, hidden: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features as the readout sees them: standardised, cut to their first principal components, with random features."""
    mean, scale = x.mean(0), x.std(0)
    scale = torch.where(scale > 1e-9 * x.abs().amax(0).clamp(min=1e-300), scale, torch.inf)
    x, out = (x - mean) / scale, (out - mean) / scale
    if rank is not None and rank < x.shape[1]:
        axes = torch.linalg.eigh(x.T @ x)[1][:, -rank:]
        x, out = x @ axes, out @ axes
    if hidden:
        size = x.square().mean().sqrt().clamp(min=1e-300) * x.shape[1] ** 0.5
        rng = np.random.default_rng([seed, x.shape[1], hidden])
        matrix, bias = (torch.from_numpy(rng.standard_normal(shape)).to(x) for shape in ((x.shape[1], hidden), (hidden,)))
        x, out = (torch.cat([part, torch.relu(part / size @ matrix + bias)], dim=1) for part in (x, out))
    return x, out
