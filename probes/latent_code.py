"""Where can the task's latent code be read out linearly, and is the readout shared with compositions never trained on?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.labels import LabelledFeatures, labelled
from compolens.activations.sites import Site, at_role, named_stream
from compolens.activations.streams import Activations, draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.foundation.progress import progress
from compolens.hooks import HookedModel
from compolens.measures import logistic
from compolens.measures.intervals import summarise
from compolens.measures.logistic import Explained, LogisticReadouts
from compolens.measures.readouts import (
    PENALTIES,
    GroupedR2,
    Moments,
    RidgeReadout,
    add_by_group,
    exact_active_set,
    grouped_r2,
    leave_groups_out,
)
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 6  # raised whenever its numbers change
values_since = 6  # its values; version 6 reads interleaved sequences at their last answer
# versions 2 and 3 changed intervals alone, 4 the penalties that are tried: those of every other readout

PENALTIES_OF_CLASSES = logistic.PENALTIES
KEPT_EPISODES = 1024
GROUPS_LEFT_OUT = 4
"""Of held-out compositions, for the fit "leave one out" of categories."""
CONTROLS = ("", "shuffled", "control task")
"""What a readout is fitted to, side by side: the code itself, then both controls."""


class Fitted(NamedTuple):
    """A site's readout of [code, shuffled code, control task], its penalty and its score on left-out compositions."""

    readout: RidgeReadout
    l2: float
    left_out: float


RAW = Site(-1, "input moments", "context")
"""Stands for the raw input among the sites."""


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 4096,
    seed: int = 0,
    l2: float | None = None,
    threshold: float = 0.25,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """R² of a linear readout of the latent code, and its exact recovery, at every layer and token role.

    Continuous codes are read by ridge regression, categorical ones by a logistic readout for each of their parts
    (`TaskFamily.categories`); of a family that has both, the continuous ones alone. Readouts are fitted on training
    compositions and scored on held-out ones, as 2407.12275 decodes the latent code. Three fits (column `fit`) mean different
    things: "fitted on train" uses training compositions; "leave one out" these and all held-out compositions but the one
    scored; "within" other episodes of the held-out compositions. Where the first is low and "within" is high, the code is
    there but not shared with held-out compositions. Only a low "within" says that it is lost. For categories, "leave one out"
    leaves held-out compositions out in four groups, each fit has 2,048 episodes at most, and a part that belongs to one answer
    is read where that is given.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: episodes per fit, and again per split, 8 or more; more of them narrow the intervals.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.
        l2: penalty of the ridge on standardised features, 0 or more. By default chosen per site among powers of ten from
            0.01 to 10,000, by leaving compositions out within training; of logistic readouts, among 1, 10, 100 and 1,000.
        threshold: a decoded coefficient above it counts as active; 0.25 is halfway between 0 and the smallest active one, 0.5.

    Returns:
        The table, and rows per episode (true and decoded code at the best site, score). lo, hi of R²:
        t intervals over compositions (`measures.readouts.grouped_r2`); of exact recovery: `measures.intervals.Evaluation`.

        - "r2": of the code, per `dimension` and their "mean"; 1 is perfect, 0 the mean code, may be negative. Of categories it
          is the share of deviance that is explained, 1 - log-likelihood / log-likelihood of the class frequencies.
        - "active set exact": share of episodes whose active dimensions are all recovered, and no others; of categories: whose
          classes are all decoded rightly.
        - "balanced accuracy" (of categories): mean over classes of the share decoded rightly, 1 over their number by chance.
        - "selectivity": R² minus that of the control task.
        - control "raw input": the same readout of the input's own moments.
        - control "untrained": of the untrained control.
        - control "shuffled": codes of other episodes.
        - control "control task": the code's dimensions renumbered at random per composition, which can be memorised but not
          shared; of categories, their classes.

    Raises:
        DoesNotApply: the family's codes have no parts to read.
        ConfigError: episodes is below 8, or l2 below 0.
    """
    require(episodes >= 8, f"need at least 8 episodes, got {episodes}; type --episodes 4096")
    require(l2 is None or l2 >= 0, f"a penalty is 0 or more, got --l2 {l2}; leave it out to have one chosen")
    if "continuous" not in trained.task.code_kinds.values():
        return _categorical(trained, episodes, seed, PENALTIES_OF_CLASSES if l2 is None else (l2,))
    dimensions = _dimensions(trained)
    rows: list[dict] = []
    for control, model in trained.with_untrained_control():
        sites = _sites(model) + ([RAW] if control == "" else [])
        fit = _moments(trained, model, sites, "train", episodes, f"{seed}/fit")
        fitted = {site: _fit(groups, len(dimensions), l2) for site, groups in fit.items()}
        held_out = _moments(trained, model, sites, "ood", episodes, f"{seed}/fit")
        best = max((s for s in sites if s != RAW), key=lambda s: fitted[s].left_out)
        kept = _Kept(trained, fitted, best, len(dimensions), threshold)
        score = f"{seed}/score"
        scored = {split: _moments(trained, model, sites, split, episodes, score, kept) for split in ("test", "ood")}
        for site in progress(sites, "read at site"):
            name = "raw input" if site == RAW else control
            results = _results(
                fitted[site], fit[site], held_out[site], {split: m[site] for split, m in scored.items()}, len(dimensions)
            )
            rows += [row for row in _rows(site, results, dimensions, name, fitted[site].l2, episodes) if _wanted(row, control)]
            rows += kept.recovery(site, name, episodes)
        if control == "":
            episode_rows = kept.frame()
    own = (row for row in rows if row["control"] == "" and row["dimension"] not in dimensions)
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("l2",))
    return pd.DataFrame(rows), episode_rows


def _dimensions(trained: TrainedModel) -> list[str]:
    """The names of the dimensions of the continuous codes."""
    task = trained.task
    continuous = [name for name, kind in task.code_kinds.items() if kind == "continuous"]
    one = next(draw(task, "train", 1, 0)).codes
    return [f"{name}[{i}]" for name in continuous for i in range(one[name].reshape(1, -1).shape[1])]


def _sites(model: HookedModel) -> list[Site]:
    """The residual stream at every layer and token role, then the model's explicit code where it has one."""
    sites = [Site(layer, hook_name, role) for layer, hook_name in named_stream(model).items() for role in model.roles]
    explicit = [Site(model.cfg.n_layers + 1, "hook_code", "all")] if "hook_code" in model.hook_dict else []
    return sites + explicit


def _code(task: TaskFamily, episodes: Episodes) -> torch.Tensor:
    continuous = [name for name, kind in task.code_kinds.items() if kind == "continuous"]
    return torch.cat([code.reshape(len(code), -1) for code in map(episodes.codes.__getitem__, continuous)], dim=1)


def _control_task(code: Tensor, composition: Tensor) -> Tensor:
    """The code with its dimensions renumbered at random per composition: memorisable, but with nothing to share."""
    orders = {
        c: torch.randperm(code.shape[1], generator=torch.Generator().manual_seed(c)) for c in composition.unique().tolist()
    }
    order = torch.stack([orders[c] for c in composition.tolist()]).to(code.device)
    return code.gather(1, order)


def _moments(
    trained: TrainedModel, model: HookedModel, sites: list[Site], split: str, n: int, seed: str, kept: _Kept | None = None
) -> dict[Site, dict[int, Moments]]:
    """site -> composition -> moments of (features, [code, shuffled code, control task]), in one pass over n episodes."""
    totals: dict[Site, dict[int, Moments]] = {site: {} for site in sites}
    hooks = list(dict.fromkeys(site.hook_name for site in sites if site != RAW))
    for batch in record(model, draw(trained.task, split, n, seed, trained.device), hooks):
        code, composition = _code(trained.task, batch.episodes), batch.episodes.composition
        shuffle = torch.randperm(len(code), generator=torch.Generator().manual_seed(len(code))).to(code.device)
        targets = torch.cat([code, code[shuffle], _control_task(code, composition)], dim=1)
        for site in sites:
            raw = site == RAW
            x = trained.task.raw_statistic(batch.episodes) if raw else at_role(batch.sites[site.hook_name], model, site.role)
            add_by_group(totals[site], x, targets, composition)
            if kept is not None:
                kept.add(split, site, x, code, batch)
    return totals


def _fit(groups: dict[int, Moments], width: int, l2: float | None) -> Fitted:
    penalties = PENALTIES if l2 is None else (l2,)
    best, scores = leave_groups_out([m.outputs(slice(0, width)) for m in groups.values()], penalties)
    return Fitted(Moments.total(groups.values()).fit([best])[0], best, max(scores))


def _results(
    fitted: Fitted,
    trained_on: dict[int, Moments],
    held_out: dict[int, Moments],
    scored: dict[str, dict[int, Moments]],
    width: int,
) -> Iterator[tuple[tuple[str, str, str], GroupedR2]]:
    """(fit, split, control) -> pooled R²; the shuffled and control-task columns only where the fit is on training."""
    for which, control in enumerate(CONTROLS):
        part = slice(which * width, (which + 1) * width)
        readout = RidgeReadout(fitted.readout.weight[:, part], fitted.readout.bias[part], fitted.l2)
        for split, groups in scored.items():
            yield ("fitted on train", split, control), grouped_r2({c: m.outputs(part) for c, m in groups.items()}, readout)
    part = slice(0, width)
    fit, score = ({c: m.outputs(part) for c, m in groups.items()} for groups in (held_out, scored["ood"]))
    whole = Moments.total(fit.values())
    score = {c: m for c, m in score.items() if c in fit}
    yield ("within", "ood", ""), grouped_r2(score, whole.fit([fitted.l2])[0])
    whole = whole + Moments.total(m.outputs(part) for m in trained_on.values())
    yield ("leave one out", "ood", ""), grouped_r2(score, {c: (whole - fit[c]).fit([fitted.l2])[0] for c in score})


def _row(
    metric: str, value: float, lo: float, hi: float, split: str, site: Site, control: str, n: int, **more: Any
) -> dict[str, Any]:
    where: dict[str, Any] = {"split": split, "site": site.hook_name, "role": site.role, "control": control, "n": n}
    return tables.row(metric, value, lo=lo, hi=hi, **where, layer=site.layer, **more)


def _rows(
    site: Site, results: Iterable[tuple[tuple[str, str, str], GroupedR2]], dimensions: list[str], name: str, l2: float, n: int
) -> Iterator[dict[str, Any]]:
    """One row for the mean over dimensions, one per dimension for the measurement itself, and selectivity."""
    pooled = {}
    for (fit, split, control), r2 in results:
        label = control or name if name in ("", "raw input") else f"{name}, {control}".strip(", ")
        if name == "raw input" and control:
            label = f"raw input, {control}"
        if control == "control task" and len(dimensions) == 1:
            pooled[fit, split, control] = np.nan
            yield _row("r2", np.nan, np.nan, np.nan, split, site, label, n, fit=fit, dimension="mean", l2=l2, note=ONE)
            continue
        pooled[fit, split, control] = r2.mean
        yield _row("r2", r2.mean, r2.lo, r2.hi, split, site, label, n, fit=fit, dimension="mean", l2=l2)
        if name == "" and control == "":
            for dimension, value in zip(dimensions, r2.per_output, strict=True):
                yield _row("r2", value, np.nan, np.nan, split, site, label, n, fit=fit, dimension=dimension, l2=l2)
    for split in ("test", "ood"):
        value = pooled["fitted on train", split, ""] - pooled["fitted on train", split, "control task"]
        why: dict[str, Any] = {"note": ONE} if len(dimensions) == 1 else {}
        fit = "fitted on train"
        yield _row("selectivity", value, np.nan, np.nan, split, site, name, n, fit=fit, dimension="mean", l2=l2, **why)


ONE = "not available: a code of one number has no other order of its dimensions"
"""Why there is no control task."""


def _wanted(row: dict[str, Any], control: str) -> bool:
    """The untrained control is a control itself: its own shuffled rows would only say 0 again."""
    return control == "" or "," not in row["control"]


class _Kept:
    """What needs the episodes themselves: exact recovery everywhere, decoded codes of the first episodes at the best site."""

    def __init__(self, trained: TrainedModel, fitted: dict[Site, Fitted], best: Site, width: int, threshold: float) -> None:
        self.task, self.fitted, self.best, self.width, self.threshold = trained.task, fitted, best, width, threshold
        self.recovered: dict = {}
        self.parts: list[pd.DataFrame] = []
        self.counts = {"test": 0, "ood": 0}

    def add(self, split: str, site: Site, x: Tensor, code: Tensor, batch: Activations) -> None:
        """Count a batch's recovered active sets at a site; at the best one keep its first episodes."""
        decoded = self.fitted[site].readout(x)[:, : self.width]
        exact = exact_active_set(decoded, code, self.threshold)
        counts = self.recovered.setdefault((site, split), {})
        for c in batch.episodes.composition.unique().tolist():
            here = batch.episodes.composition == c
            seen, right = counts.get(c, (0, 0))
            counts[c] = (seen + int(here.sum()), right + int(exact[here].sum()))
        room = KEPT_EPISODES - self.counts[split]
        if site == self.best and room > 0:
            error, weight = self.task.errors(batch.prediction, batch.episodes.targets)
            names = [self.task.composition_name(c) for c in batch.episodes.composition[:room].tolist()]
            columns = {"score": 1 - error / weight, "active_set_exact": exact}
            lists = {"code": code, "decoded": decoded}
            frame: dict[str, Any] = {k: v[:room].cpu().numpy() for k, v in columns.items()}
            frame |= {k: list(v[:room].float().cpu().numpy()) for k, v in lists.items()}
            where = {"split": split, "composition": names, "site": site.hook_name, "role": site.role}
            self.parts.append(pd.DataFrame(where | frame))
            self.counts[split] += len(names)

    def recovery(self, site: Site, control: str, n: int) -> Iterator[dict[str, Any]]:
        """The share of episodes whose active set is exactly recovered, with its interval over compositions."""
        for split in ("test", "ood"):
            counts = self.recovered[site, split]
            seen, right = np.array(list(counts.values()), dtype=float).T
            pooled = summarise(seen - right, seen, np.array(list(counts)))
            yield _row(
                "active set exact",
                pooled.score,
                *pooled.interval,
                split,
                site,
                control,
                n,
                fit="fitted on train",
                dimension="all",
            )

    def frame(self) -> pd.DataFrame:
        """The kept episodes, a row each."""
        return pd.concat(self.parts, ignore_index=True)


# ---- categorical codes -----------------------------------------------------------------------------------------------
class Fits(NamedTuple):
    """A part of a site's labels (those of the whole episode, or of one answer): their names, number of classes, and the
    readouts of [classes, shuffled classes, control task], or of the classes alone, with the score on left-out compositions."""

    names: tuple[str, ...]
    answer: int
    classes: tuple[int, ...]
    readouts: LogisticReadouts
    left_out: float

    @property
    def controlled(self) -> bool:
        return len(self.readouts.classes) > len(self.classes)


def _categorical(
    trained: TrainedModel, episodes: int, seed: int, penalties: tuple[float, ...]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table of a family whose codes are categories."""
    task = trained.task
    if not task.categories(next(draw(task, "train", 1, 0)).codes):
        raise DoesNotApply(
            f"{type(task).__name__} names no part of its codes ({task.code_kinds or 'it has none'}); what to write: "
            "code_kinds = {NAME: 'categorical' or 'continuous'} and the codes in Episodes.codes, or factors(codes)"
        )
    rows: list[dict] = []
    for control, model in trained.with_untrained_control():
        sites = _sites(model) + ([RAW] if control == "" else [])

        def seen(split: str, use: str, model: HookedModel = model, sites: list[Site] = sites) -> LabelledFeatures:
            drawn = draw(task, split, episodes, f"{seed}/{use}", trained.device)
            return labelled(task, model, drawn, sites, record, RAW)

        fit, held_out = seen("train", "fit"), seen("ood", "fit")
        scored = {split: seen(split, "score") for split in ("test", "ood")}
        levels = {n: 1 + max(int(p.labels[n].max()) for p in (fit, held_out, *scored.values())) for n in fit.labels}
        fitted = {site: _readouts(fit, site, levels, penalties, controlled=control == "") for site in sites}
        for site in progress(sites, "read at site"):
            name = "raw input" if site == RAW else control
            found = _class_rows(site, name, fitted[site], fit, held_out, scored, episodes)
            rows += [row for row in found if _wanted(row, control)]
        if control == "":
            best = max((s for s in sites if s != RAW), key=lambda s: np.nan_to_num(_left_out(fitted[s]), nan=-1.0))
            frame = _class_frame(task, best, fitted[best], scored)
    own = (row for row in rows if row["control"] == "" and row["dimension"] in ("mean", "all"))
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("l2",))
    return pd.DataFrame(rows), frame


def _groups(data: LabelledFeatures, site: Site, levels: dict[str, int]) -> list[tuple[tuple[str, ...], int]]:
    """Labels by the features that they are read from: (names, answer), -1 where all are read from the same ones.

    A label of which the fit shows a single class is left out."""
    names = [n for n, y in data.labels.items() if len(y.unique()) > 1 and levels[n] > 1]
    if data.features[site].ndim == 2:
        return [(tuple(names), -1)] if names else []
    at = {j: tuple(n for n in names if max(data.answer[n], 0) == j) for j in range(data.features[site].shape[1])}
    return [(found, j) for j, found in at.items() if found]


def _x(data: LabelledFeatures, site: Site, answer: int) -> Tensor:
    x = data.features[site]
    return x if answer < 0 else x[:, answer]


def _y(data: LabelledFeatures, names: tuple[str, ...]) -> Tensor:
    return torch.stack([data.labels[name] for name in names], 1)


def _three(y: Tensor, classes: tuple[int, ...], composition: Tensor) -> Tensor:
    """[classes, those of other episodes, classes renumbered at random per composition], side by side."""
    shuffle = torch.randperm(len(y), generator=torch.Generator().manual_seed(len(y))).to(y.device)
    renumbered = torch.empty_like(y)
    for c in composition.unique().tolist():
        rng = torch.Generator().manual_seed(c)
        orders = [torch.randperm(k, generator=rng).to(y.device) for k in classes]
        here = composition == c
        renumbered[here] = torch.stack([order[y[here, i]] for i, order in enumerate(orders)], 1)
    return torch.cat([y, y[shuffle], renumbered], 1)


def _readouts(
    fit: LabelledFeatures, site: Site, levels: dict[str, int], penalties: tuple[float, ...], controlled: bool
) -> list[Fits]:
    found = []
    for names, answer in _groups(fit, site, levels):
        classes = tuple(levels[name] for name in names)
        x, y = _x(fit, site, answer), _y(fit, names)
        l2, left_out = logistic.leave_groups_out(x, y, classes, fit.composition, penalties)
        wanted = _three(y, classes, fit.composition) if controlled else y
        (readouts,) = LogisticReadouts.fit(x, wanted, (3 if controlled else 1) * classes, [l2])
        found.append(Fits(names, answer, classes, readouts, left_out))
    return found


def _left_out(fits: list[Fits]) -> float:
    return float(np.average([f.left_out for f in fits], weights=[len(f.names) for f in fits])) if fits else np.nan


def _explained(site: Site, fits: Iterable[tuple[Fits, LogisticReadouts]], data: LabelledFeatures, which: int = 0) -> Explained:
    """What readouts say of the labels of a split, or of their shuffled or renumbered classes."""
    said: list[Tensor] = []
    answers, true = [], []
    for one, readouts in fits:
        x, k = _x(data, site, one.answer), len(one.names)
        said += readouts.log_probabilities(x)
        answers.append(readouts.answers(x))
        y = _y(data, one.names)
        true.append(_three(y, one.classes, data.composition)[:, which * k : (which + 1) * k] if which else y)
    return Explained.of(said, torch.cat(answers, 1), torch.cat(true, 1), data.composition)


def _class_results(
    site: Site, fits: list[Fits], fit: LabelledFeatures, held_out: LabelledFeatures, scored: dict[str, LabelledFeatures]
) -> Iterator[tuple[tuple[str, str, str], Explained]]:
    """(fit, split, control) -> what is explained; controls only where the fit is on training."""
    for which, control in enumerate(CONTROLS if fits[0].controlled else CONTROLS[:1]):
        part = [(f, f.readouts.part(which * len(f.names), (which + 1) * len(f.names))) for f in fits]
        for split, data in scored.items():
            yield ("fitted on train", split, control), _explained(site, part, data, which)
    known = held_out.composition.unique()
    shown = scored["ood"]
    kept = torch.isin(shown.composition, known)
    if not bool(kept.any()):
        return  # no composition was drawn twice, so there is nothing that was both fitted and scored
    shown = _some(shown, site, kept)

    def again(rows: Tensor, more: LabelledFeatures | None) -> list[tuple[Fits, LogisticReadouts]]:
        found = []
        for f in fits:
            x, y = _x(held_out, site, f.answer)[rows], _y(held_out, f.names)[rows]
            if more is not None:
                x, y = torch.cat([_x(more, site, f.answer), x]), torch.cat([_y(more, f.names), y])
            found.append((f, LogisticReadouts.fit(x, y, f.classes, [f.readouts.l2])[0]))
        return found

    everything = torch.ones_like(held_out.composition, dtype=torch.bool)
    yield ("within", "ood", ""), _explained(site, again(everything, None), shown)
    number = torch.bucketize(held_out.composition, known) % GROUPS_LEFT_OUT
    parts = []
    for group in number.unique().tolist():
        here = torch.bucketize(shown.composition, known) % GROUPS_LEFT_OUT == group
        if bool(here.any()):
            parts.append(_explained(site, again(number != group, fit), _some(shown, site, here)))
    yield ("leave one out", "ood", ""), Explained.stacked(parts)


def _some(data: LabelledFeatures, site: Site, rows: Tensor) -> LabelledFeatures:
    labels = {name: y[rows] for name, y in data.labels.items()}
    return LabelledFeatures({site: data.features[site][rows]}, labels, data.answer, data.composition[rows], data.score[rows])


def _class_rows(
    site: Site,
    name: str,
    fits: list[Fits],
    fit: LabelledFeatures,
    held_out: LabelledFeatures,
    scored: dict[str, LabelledFeatures],
    n: int,
) -> Iterator[dict[str, Any]]:
    if not fits:
        return
    dimensions = [d for f in fits for d in f.names]
    l2, pooled = max(f.readouts.l2 for f in fits), {}
    for (how, split, control), found in _class_results(site, fits, fit, held_out, scored):
        label = control or name if name == "" else f"{name}, {control}".rstrip(", ")
        more: dict[str, Any] = {"fit": how, "l2": l2}
        value, lo, hi = found.r2()
        pooled[how, split, control] = value
        yield _row("r2", value, lo, hi, split, site, label, n, dimension="mean", **more)
        if how == "fitted on train":
            value, lo, hi = found.balanced_accuracy()
            yield _row("balanced accuracy", value, lo, hi, split, site, label, n, dimension="mean", **more)
        if name == "" and control == "":
            for dimension, one in zip(dimensions, found.per_label(), strict=True):
                yield _row("r2", one, np.nan, np.nan, split, site, label, n, dimension=dimension, **more)
        if how == "fitted on train" and control == "":
            share = summarise(found.rows - found.exact, found.rows, np.arange(len(found.rows)))
            lo, hi = share.interval
            yield _row("active set exact", share.score, lo, hi, split, site, label, n, fit=how, dimension="all")
    for split in ("test", "ood") if fits[0].controlled else ():
        value = pooled["fitted on train", split, ""] - pooled["fitted on train", split, "control task"]
        yield _row("selectivity", value, np.nan, np.nan, split, site, name, n, fit="fitted on train", dimension="mean", l2=l2)


def _class_frame(task: TaskFamily, site: Site, fits: list[Fits], scored: dict[str, LabelledFeatures]) -> pd.DataFrame:
    """The first episodes of every split: true and decoded classes at a site, and the model's score."""
    parts = []
    for split, data in scored.items():
        told = [f.readouts.part(0, len(f.names)).answers(_x(data, site, f.answer)) for f in fits]
        decoded, true = torch.cat(told, 1), torch.cat([_y(data, f.names) for f in fits], 1)
        rows = slice(0, KEPT_EPISODES)
        names = [task.composition_name(c) for c in data.composition[rows].tolist()]
        frame: dict[str, Any] = {"split": split, "composition": names, "site": site.hook_name, "role": site.role}
        frame |= {"score": data.score[rows].cpu().numpy()}
        frame |= {"active_set_exact": (decoded == true).all(1)[rows].cpu().numpy()}
        frame |= {n: list(v[rows].float().cpu().numpy()) for n, v in {"code": true, "decoded": decoded}.items()}
        parts.append(pd.DataFrame(frame))
    return pd.concat(parts, ignore_index=True)
