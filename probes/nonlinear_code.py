"""Does a code in any form stand there, and does the answer follow it when it is written in that form?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from compolens import tables
from compolens.activations.sites import EVERYWHERE, Site, positions, put, sites
from compolens.activations.streams import Activations, draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.hooks import HookedModel
from compolens.interventions.editors import (
    Changes,
    ConditionalEditor,
    Editor,
    assemble,
    donors,
    fit_editors,
    fit_editors_without,
    put_in,
)
from compolens.interventions.natural import directions, distances, new_compositions, state
from compolens.interventions.oracles import Edits, code_features, recovered, recovered_without
from compolens.measures.capacity import Readout, control_task, fold_by_composition, folds_of
from compolens.measures.divergence import Natural
from compolens.measures.intervals import Evaluation, summarise
from compolens.measures.readouts import Moments, RidgeReadout
from compolens.tasks.episodes import Episodes
from compolens.zoo.folders import TrainedModel

version = 7  # raised whenever its numbers change
# 2 added states assembled from two donors, 3 measures how far these lie without the two, 4 added the conditional editor,
# 5 added what readouts tell of held-out compositions, 6 gives no composition its own code in the control task, 7 has the
# interval of "recovered, left out" over the compositions that are written
values_since = 6  # its values

NONLINEAR, CONDITIONAL, DONOR, ASSEMBLED = "nonlinear", "conditional", "donor", "assembled"
"""The editors, as the column `editor` names them."""
UNNATURAL = "unnatural: made of two training donors, one part of the code from each"
LEFT_OUT = "recovered, left out"
"""The metric by which an editor is asked whether it writes codes that it was not fitted to."""
NEARLY, STILL = 0.8, 0.02
"""Sites where the conditional editor moves answers by at least this share of the most, each of which may be where the code is
read; and how far any editor must move them for more to be asked of it."""
QUARTERS = 4
"""Held-out compositions are left out in so many groups, by a fit that has seen the others."""
TOKENS = 4
"""Tokens of every episode that a readout of single tokens is fitted to."""
TOLD, AT_A_TOKEN, WITH_OTHERS = "told", "told at a token", "fitted to held-out ones too"
"""What readouts tell of a split, at a site and at single tokens of it; the control whose fit has seen other held-out ones."""
NAMED = "composition told"
"""Whether a state tells its composition, in whatever form."""
THIN = 0.01
"""Share of the mean variance within compositions that is added to every direction, before all directions count alike."""
SCATTER = "scatter of what is told"
"""How much of a reading's error is noise: it averages away over episodes of a composition."""
DONORS = 6
"""Donors of every episode, of which the one is taken whose reading is nearest to the right code."""


def probe(
    trained: TrainedModel, *, episodes: int = 256, fitted: int = 512, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The code read and written with no assumption that it is linear, and how natural what is written is.

    Readouts are ridges on x, on products, and on 32 or 128 Gaussian bumps; the smallest within one standard error of the best
    on left-out training compositions is taken. The nonlinear editor erases and writes the coordinates in which the mean
    activation varies with the code. The conditional editor adds a change that depends on the code and on what else stands
    there: values behind a key have no coordinates of their own. A donor is a real episode of the same code with other inputs:
    its activation is put at the site. Where inference fails, no episode has the right code of a held-out composition:
    "assembled" puts together two training donors, one part of the code from each, and its rows are marked as unnatural. Why an
    editor may not be fitted to answers: 2507.08802. Why states must be compared with natural ones: 2511.04638.

    Args:
        trained: the trained model, with its run, task and folder.
        episodes: scored episodes per split, 8 or more.
        fitted: training episodes for readouts and editors, and half as many to choose the site, 16 or more.
        seed: seed of the episodes, which are never those of a training, even with an equal seed.

    Returns:
        The table, and rows per episode (score as is and with each edit). Column `editor` is "nonlinear", "conditional",
        "donor" or "assembled"; `capacity` names a readout; `chosen` marks the site where an editor moves the answers of
        training compositions most ("assembled": that of donors); `effective` those where the conditional editor moves them at
        least 0.8 times as much. lo, hi: 95 % over compositions.

        - "left-out R²": of readouts of a capacity on left-out training compositions; `chosen` 1 where it was taken. Control
          "control task": of the same capacity, codes exchanged between compositions (1909.03368), on fresh episodes of the
          very compositions it was fitted to; "own task" is the true code there.
        - "told": R² of the readout taken, fitted to training compositions, on the codes of a split. Control "fitted to
          held-out ones too": fitted to other held-out compositions besides; where two codes stand that are equal on training
          ones, only that fit can tell which is right.
        - "scatter of what is told": share of the squared error of that reading of held-out compositions that averages away
          over episodes of one composition: 1, noise; 0, the same wrong code every time.
        - "composition told": share of a split's episodes whose state lies nearest to the mean of the others of their own
          composition, of all that are scored, in units of the scatter within compositions.
        - "told at a token": the same as "told" of one context token, by a readout fitted to single tokens of training
          compositions; split "train": left-out R² over all tokens, "ood": of the token that tells most.
        - "among training states": share of what sets held-out compositions' mean states apart that lies within the span of
          training compositions' mean states; control "random": that of random directions.
        - "recovered": share of the way that answers move to another code's when that is written.
        - "recovered, left out": the same by editors that were fitted without the composition whose code is written, pooled
          and by composition, at effective sites (where "recovered" is 0.02 or more).
        - "left-out change": R² of the conditional editor's change on left-out training compositions.
        - "score", rung "own answer", "own code written" (as read), "true code written": pooled and per composition, at the
          chosen site. Control "another code": another episode's. Control "least divergent half": episodes whose edited states
          diverge least.
        - "divergence": mean distance of states from the nearest natural state of training compositions, in standard deviations
          per axis; control "natural": of states that nothing was done to; "natural, left out": of training compositions'
          states from those of all others, as far as a new composition is expected to lie. `directions`: "all", "sensitive"
          (those that answers depend on) or "rest".
        - "reads right": R² of the readout from states of donors, real or assembled, to the codes that are wanted.
        - control "permuted codes": editors fitted to other episodes' codes. Control "untrained": in the untrained control.

    Raises:
        DoesNotApply: the family cannot show the same inputs under another code.
        ConfigError: episodes is below 8, or fitted below 16.
    """
    task = trained.task
    if "render" in task.missing:
        raise DoesNotApply(f"no answers are known under other codes; {type(task).__name__}: {task.missing['render']}")
    require(episodes >= 8 and fitted >= 16, f"need episodes >= 8 and fitted >= 16, got {episodes} and {fitted}")
    code_features(task, next(draw(task, "train", 1, seed)).codes)
    rows: list[dict] = []
    frame, chosen = pd.DataFrame(), None
    for control, model in trained.with_untrained_control():
        one = _Measured(trained, model, control, fitted, seed)
        chosen = one.locate(chosen)
        if not control:
            one.read(episodes)
            frame = one.climb(episodes, chosen)
        rows += one.rows
    there = {(site.hook_name, site.role) for site in (chosen or {}).values()}  # the control is looked at where the model is
    own = (r for r in rows if r["control"] == "" and r["metric"] == "recovered" and (r["site"], r["role"]) in there)
    rows += tables.not_available(own, trained.why_no_untrained_control, chosen=0, effective=0)
    return pd.DataFrame(rows), frame


class _Seen(NamedTuple):
    """Batches of a split with what was recorded of them, all together: code, composition, and every site's mean state."""

    batches: list[Activations]
    code: Tensor
    composition: Tensor
    states: dict[Site, Tensor]


class _Measured:
    """One model: editors and readouts at every site, and what they find."""

    def __init__(self, trained: TrainedModel, model: HookedModel, control: str, fitted: int, seed: int) -> None:
        self.task, self.model, self.control, self.seed, self.device = trained.task, model, control, seed, trained.device
        self.points = [s for s in sites(model) if s.layer > 0 and s.role != EVERYWHERE]
        self.rows: list[dict] = []
        self.parts: dict[int, str] = {}
        self.hook_names = list(dict.fromkeys(s.hook_name for s in self.points))
        self.fitted, self.n = self._recorded("train", fitted, "fit"), fitted

    def _recorded(self, split: str, n: int, name: str) -> list[Activations]:
        return list(record(self.model, draw(self.task, split, n, f"{self.seed}/{name}", self.device), self.hook_names))

    def _row(self, metric: str, value: float, split: str, site: Site, n: int, **more: Any) -> None:
        control = ", ".join(filter(None, (self.control, more.pop("control", ""))))
        where: dict[str, Any] = {"split": split, "site": site.hook_name, "role": site.role, "control": control, "n": n}
        if more.get("editor") == ASSEMBLED:
            more["note"] = UNNATURAL
        first: dict[str, Any] = {
            "editor": "",
            "rung": "",
            "capacity": "",
            "directions": "",
            "composition": "all",
            "chosen": 0,
            "effective": 0,
        }
        self.rows.append(tables.row(metric, value, **where, layer=site.layer, **(first | more)))

    # ---- where the answers follow ------------------------------------------------------------------------------------
    def locate(self, given: dict[str, Site] | None) -> dict[str, Site]:
        """editor -> the site where it moves the answers of training compositions most; of the untrained control, where it does
        in the model."""
        points = self.points if given is None else list(dict.fromkeys(given.values()))
        pairs = self._recorded("train", max(self.n // 2, 8), "choose")
        pairs = [one for one in pairs if len(one.episodes.tokens) > 2]  # of fewer, a donor would be the counterfactual itself
        given_code = [self._donors(one.episodes) for one in pairs]
        changes = Changes.of(self.model, self.task, self.fitted, points)
        bent = {e.site: e for e in fit_editors(self.model, self.task, self.fitted, points)}
        shown = {site: editor.shown for site, editor in bent.items()}
        given_rest = {site: changes.fit(site, shown[site]) for site in points}
        self.editors: dict[str, Mapping[Site, Editor | ConditionalEditor]] = {NONLINEAR: bent, CONDITIONAL: given_rest}
        far: dict[str, dict[Site, float]] = {NONLINEAR: {}, CONDITIONAL: {}, DONOR: {}}
        for site in points:
            moved = {name: recovered(self.model, self.task, by[site], pairs) for name, by in self.editors.items()}
            for name, found in (moved | {DONOR: self._donated(site, pairs, given_code)}).items():
                capacity = bent[site].coordinates.mean_activation.capacity if name == NONLINEAR else ""
                self._moved(found, site, name, capacity=capacity)
                far[name][site] = found.score
            if not self.control:
                told = given_rest[site].left_out
                self._row("left-out change", told, "train", site, len(changes.code), editor=CONDITIONAL)
        if given is not None:
            return given
        where = {name: max(by, key=lambda site: by[site]) for name, by in far.items()}
        most = max(far[CONDITIONAL].values())
        self.effective = [site for site, value in far[CONDITIONAL].items() if value >= NEARLY * most]
        at = where[NONLINEAR]
        (noise,) = fit_editors(self.model, self.task, self.fitted, [at], permuted=True)
        self._moved(recovered(self.model, self.task, noise, pairs), at, NONLINEAR, control="permuted codes")
        at = where[CONDITIONAL]
        other = changes.permuted().fit(at, shown[at])
        self._moved(recovered(self.model, self.task, other, pairs), at, CONDITIONAL, control="permuted codes")
        self._leave_out(changes, bent[where[NONLINEAR]], [given_rest[site] for site in self.effective], pairs)
        for row in self.rows:
            here = Site(row["layer"], row["site"], row["role"])
            row["chosen"] = int(where[row["editor"]] == here)
            row["effective"] = int(here in self.effective) if row["editor"] == CONDITIONAL else row["chosen"]
        return where

    def _moved(self, found: Evaluation, site: Site, editor: str, **more: Any) -> None:
        lo, hi = found.interval
        self._row("recovered", found.score, "train", site, self.n // 2, editor=editor, lo=lo, hi=hi, **more)

    def _leave_out(
        self,
        changes: Changes,
        bent: Editor,
        given_rest: Sequence[ConditionalEditor],
        pairs: list[Activations],
    ) -> None:
        """Whether editors write codes that they were not fitted to: rows `LEFT_OUT`."""
        composition = torch.cat([one.episodes.composition for one in self.fitted])
        fold_of = fold_by_composition(composition)
        groups = range(max(fold_of.values()) + 1)
        fold = torch.tensor([fold_of[c] for c in changes.composition.tolist()], device=changes.code.device)
        without: list[tuple[str, Sequence[Edits]]] = [
            (NONLINEAR, fit_editors_without(self.model, self.task, self.fitted, bent, fold_of)),
            *(
                (CONDITIONAL, [changes.fit(editor.site, editor.shown, fold == g, editor.change.l2) for g in groups])
                for editor in given_rest
            ),
        ]
        for name, fits in without:
            site, found = fits[0].site, recovered_without(self.model, self.task, fits, fold_of, pairs)
            lo, hi = found.interval
            self._row(LEFT_OUT, found.score, "train", site, self.n // 2, editor=name, lo=lo, hi=hi)
            for c, (share, weight, n) in found.per_composition.items():
                name_of = self.task.composition_name(c)
                self._row(LEFT_OUT, share, "train", site, n, editor=name, composition=name_of, weight=weight)

    def _donors(self, batch: Episodes) -> Activations:
        """What episodes hold that have another one's code and a third one's inputs."""
        return next(record(self.model, [donors(self.task, batch, _others(batch), 2)], self.hook_names))

    def _donated(self, site: Site, pairs: list[Activations], given_code: list[Activations]) -> Evaluation:
        """`recovered` by donors."""
        parts = []
        for one, donor in zip(pairs, given_code, strict=True):
            batch, base, other = one.episodes, one.sites[site.hook_name], donor.sites[site.hook_name]
            wanted = self.task.render(_others(batch), batch.inputs).targets
            with torch.no_grad():
                moved = put(self.model, batch.tokens, site, put_in(self.model, base, other, site))
            error, before = (self.task.errors(p, wanted)[0] for p in (moved, one.prediction))
            parts.append(torch.stack([error, before, batch.composition.double()]).cpu().numpy())
        return summarise(*np.concatenate(parts, axis=1))

    # ---- reading -----------------------------------------------------------------------------------------------------
    def _look(self, seen: list[Activations]) -> _Seen:
        for one in seen:
            named = map(" · ".join, self.task.parts(one.episodes.codes))
            self.parts |= dict(zip(one.episodes.composition.tolist(), named, strict=True))
        code = torch.cat([code_features(self.task, one.episodes.codes) for one in seen])
        composition = torch.cat([one.episodes.composition for one in seen])
        states = {s: torch.cat([state(self.model, one.sites[s.hook_name], s) for one in seen]) for s in self.points}
        return _Seen(seen, code, composition, states)

    def read(self, episodes: int) -> None:
        """Readouts at every site; what sets held-out compositions apart, beside what sets training compositions apart."""
        self.known = self._look(self.fitted)
        fresh, new = (self._look(self._recorded(s, episodes, "score")) for s in ("test", "ood"))
        self.shown = {"test": fresh, "ood": new}
        self.readouts: dict[Site, Readout] = {}
        for site in self.points:
            x, n = self.known.states[site], len(self.known.code)
            readout = self.readouts[site] = Readout.fit(x, self.known.code, self.known.composition)
            for capacity, (r2, _) in readout.by_capacity.items():
                lo, hi = readout.interval(capacity)
                self._row("left-out R²", r2, "train", site, n, capacity=capacity, chosen=int(capacity == readout.capacity),
                          lo=lo, hi=hi)  # fmt: skip
            for control, (y, z) in self._tasks(fresh).items():
                features = readout.features(x)
                ridge: RidgeReadout = Moments.of(features, y).fit([readout.linear.l2])[0]
                r2 = _r2(ridge(readout.features(fresh.states[site])), z)
                self._row("left-out R²", r2, "test", site, len(z), capacity=readout.capacity, control=control)
            for split, some in self.shown.items():
                self._told(split, site, readout(some.states[site]), some, capacity=readout.capacity)
            scatter = _scatter(readout(new.states[site]) - new.code, new.composition)
            self._row(SCATTER, scatter, "ood", site, len(new.code), capacity=readout.capacity)
            for split, found in zip(("test", "ood"), self._named(site, fresh, new), strict=True):
                lo, hi = found.interval
                self._row(NAMED, found.score, split, site, len(new.code), lo=lo, hi=hi)
            others = self._with_others(readout, x, new.states[site], new)
            self._told("ood", site, others, new, capacity=readout.capacity, control=WITH_OTHERS)
            if site.role == "context":
                self._tokens(site, new)
            for control, share in self._among(site, new).items():
                self._row("among training states", share, "ood", site, len(new.code), control=control)

    def _told(self, split: str, site: Site, read: Tensor, seen: _Seen, metric: str = TOLD, **more: Any) -> None:
        """A row of R² on a split, from the codes as they are read."""
        found = _r2_by_composition(read, seen.code, seen.composition)
        lo, hi = found.interval
        self._row(metric, found.score, split, site, len(read), lo=lo, hi=hi, **more)

    def _with_others(self, readout: Readout, x: Tensor, new: Tensor, held: _Seen) -> Tensor:
        """Codes of held-out compositions as a readout tells them that was fitted to other held-out ones as well."""
        z, fold = readout.features(new), folds_of(held.composition) % QUARTERS
        known = Moments.of(readout.features(x), self.known.code)
        groups = {g: Moments.of(z[fold == g], held.code[fold == g]) for g in fold.unique().tolist()}
        whole, read = Moments.total([known, *groups.values()]), torch.zeros_like(held.code)
        for g, group in groups.items():
            read[fold == g] = (whole - group).fit([readout.linear.l2])[0](z[fold == g])
        return read

    def _named(self, site: Site, *splits: _Seen) -> list[Evaluation]:
        """By split, the share of episodes that lie nearest to the others of their own composition, of all that are there."""
        every = (self.known, *splits)
        apart = torch.cat([_from_means(seen.states[site], seen.composition) for seen in every])
        scatter = apart.T @ apart / len(apart)
        scatter += (THIN * scatter.trace() / len(scatter)).clamp(min=1e-12) * torch.eye(len(scatter)).to(scatter)
        whiten = torch.linalg.inv(torch.linalg.cholesky(scatter)).T
        states, composition = (torch.cat([pick(seen) for seen in splits]) for pick in (lambda s: s.states[site] @ whiten,
                                                                                        lambda s: s.composition))  # fmt: skip
        named, found = _nearest_other(states, composition), []
        for own, seen in zip(named.split([len(seen.code) for seen in splits]), splits, strict=True):
            kept = own >= 0
            missed = (own != seen.composition)[kept].double().cpu().numpy()
            found.append(summarise(missed, np.ones(len(missed)), seen.composition[kept].cpu().numpy()))
        return found

    def _tokens(self, site: Site, new: _Seen) -> None:
        """Whether some token of the context tells the code of held-out compositions by itself."""
        at = positions(self.model, site.role)
        x, y = (torch.cat([one.sites[site.hook_name][:, at] for one in seen.batches]).flatten(2) for seen in (self.known, new))
        n, tokens = x.shape[:2]
        which = torch.rand(n, tokens, generator=torch.Generator().manual_seed(self.seed)).argsort(1)[:, :TOKENS].to(x.device)
        some, times = x[torch.arange(n, device=x.device)[:, None], which].flatten(0, 1), which.shape[1]
        code, composition = (one.repeat_interleave(times, dim=0) for one in (self.known.code, self.known.composition))
        readout = Readout.fit(some, code, composition, (self.readouts[site].capacity,))
        lo, hi = readout.interval(readout.capacity)
        more: dict[str, Any] = {"metric": AT_A_TOKEN, "capacity": readout.capacity}
        self._row(**more, value=readout.left_out, split="train", site=site, n=len(some), lo=lo, hi=hi)
        read = [readout(y[:, token]) for token in range(tokens)]
        best = min(range(tokens), key=lambda token: float((read[token] - new.code).square().sum()))
        self._told("ood", site, read[best], new, note=f"token {best + 1} of {tokens}", **more)

    def _tasks(self, fresh: _Seen) -> dict[str, tuple[Tensor, Tensor]]:
        both, n = torch.cat([self.known.composition, fresh.composition]), len(self.known.code)
        exchanged = control_task(torch.cat([self.known.code, fresh.code]), both)
        return {"own task": (self.known.code, fresh.code), "control task": (exchanged[:n], exchanged[n:])}

    def _among(self, site: Site, new: _Seen) -> dict[str, float]:
        """The share of held-out compositions' mean states, from training's mean, that training compositions' span holds."""
        seen, held = (_means(s.states[site], s.composition) for s in (self.known, new))
        middle = seen.mean(0)
        axes, size, _ = torch.linalg.svd((seen - middle).T, full_matrices=False)
        axes = axes[:, size > 0.05 * size[0]]  # what lies along the others is sampling noise
        away = held - middle
        share = (away @ axes).square().sum() / away.square().sum().clamp(min=1e-300)
        return {"": float(share), "random": axes.shape[1] / len(axes)}

    # ---- the ladder --------------------------------------------------------------------------------------------------
    def climb(self, episodes: int, where: dict[str, Site]) -> pd.DataFrame:
        """Scores with codes written by either editor, and how far the states they make lie from natural ones."""
        frames = []
        for split, seen in self.shown.items():
            columns: dict[str, Any] = {
                "split": split,
                "composition": [self.task.composition_name(int(c)) for c in seen.composition.tolist()],
            }
            own = torch.cat([torch.stack(self.task.errors(a.prediction, a.episodes.targets)) for a in seen.batches], dim=1)
            columns["score"] = (1 - own[0] / own[1]).cpu().numpy()
            for editor, site in (*where.items(), (ASSEMBLED, where[DONOR])):
                columns[f"{editor}_true_code"] = self._scored(split, seen, editor, site, own)
            for site in self.effective:
                if site != where[CONDITIONAL]:
                    self._also(split, seen, site, own)
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True)

    def _scored(self, split: str, seen: _Seen, name: str, site: Site, own: Tensor) -> np.ndarray:
        self._scores("own answer", split, site, name, own, seen.composition)
        natural, one = Natural.fit(self.known.states[site]), self.known.batches[0]
        ways = directions(self.model, self.task, site, one.episodes, one.sites[site.hook_name])
        self._distances(split, seen.states[site], site, name, "natural", ways)
        if split == "ood":
            for way, far in new_compositions(self.known.states[site], self.known.composition, ways).items():
                self._row("divergence", float(far.mean()), "train", site, len(far), editor=name, directions=way,
                          control="natural, left out")  # fmt: skip
        best = own
        for rung, control in (("true code written", ""), ("true code written", "another code"), ("own code written", "")):
            if name not in self.editors and rung == "own code written":
                continue
            if control and bool((seen.code == seen.code[:1]).all()):
                told: dict[str, Any] = {"rung": rung, "control": control, "chosen": 1, "effective": 1, "note": SAME_CODE}
                self._row("score", np.nan, split, site, len(seen.code), editor=name, **told)
                continue
            states, errors = self._edited(name, seen, site, rung, 1 if control else 0)
            self._scores(rung, split, site, name, errors, seen.composition, control)
            if rung == "true code written" and not control:
                best = errors
                self._distances(split, states, site, name, "", ways)
                if name not in self.editors:
                    r2 = _r2(self.readouts[site](states), seen.code)
                    self._row("reads right", r2, split, site, len(states), editor=name, chosen=1)
                own_two = torch.stack([self.made.first, self.made.second], dim=1) if name == ASSEMBLED else None
                far = natural.distance(states, own_two)
                half = far <= far.median()
                self._scores(rung, split, site, name, errors[:, half], seen.composition[half], "least divergent half")
        return (1 - best[0] / best[1]).cpu().numpy()

    def _also(self, split: str, seen: _Seen, site: Site, own: Tensor) -> None:
        """The rungs of the conditional editor at another site where it moves answers nearly as much."""
        self._scores("own answer", split, site, CONDITIONAL, own, seen.composition, chosen=0)
        for rung in ("true code written", "own code written"):
            _, errors = self._edited(CONDITIONAL, seen, site, rung, 0)
            self._scores(rung, split, site, CONDITIONAL, errors, seen.composition, chosen=0)

    def _edited(self, name: str, seen: _Seen, site: Site, rung: str, by: int) -> tuple[Tensor, Tensor]:
        """States and (2, n) errors and weights with the codes of the episodes so many before."""
        if name == DONOR:
            return self._edited_by_donor(seen, site, by)
        if name == ASSEMBLED:
            return self._edited_by_two(seen, site, by)
        return self._edited_by_editor(self.editors[name][site], seen, rung, by)

    def _edited_by_editor(self, editor: Editor | ConditionalEditor, seen: _Seen, rung: str, by: int) -> tuple[Tensor, Tensor]:
        site = editor.site
        at = max(self.points, key=lambda p: self.readouts[p].left_out) if rung == "own code written" else site
        codes = self.readouts[at](seen.states[at]) if rung == "own code written" else seen.code.roll(by, 0)
        states, errors = [], []
        sizes = [len(one.prediction) for one in seen.batches]
        for one, code in zip(seen.batches, codes.split(sizes), strict=True):
            with torch.no_grad():
                edited = editor.write(self.model, one.sites[site.hook_name], code)
                answer = put(self.model, one.episodes.tokens, site, edited)
            states.append(state(self.model, edited, site))
            errors.append(torch.stack(self.task.errors(answer, one.episodes.targets)))
        return torch.cat(states), torch.cat(errors, dim=1)

    def _edited_by_donor(self, seen: _Seen, site: Site, by: int) -> tuple[Tensor, Tensor]:
        """Of some donors of every episode, the one whose reading is nearest to its code."""
        states, errors = [], []
        for one in seen.batches:
            batch, base = one.episodes, one.sites[site.hook_name]
            codes = {name: code.roll(by, 0) for name, code in batch.codes.items()}
            truth, best = code_features(self.task, codes), None
            for shift in range(1, min(DONORS, len(base) - 1) + 1):
                (other,) = record(self.model, [donors(self.task, batch, codes, shift)], [site.hook_name])
                there = other.sites[site.hook_name]
                off = (self.readouts[site](state(self.model, there, site)) - truth).square().sum(1)
                if best is None:
                    best = (there, off)
                nearer = off < best[1]
                shape = (-1,) + (1,) * (there.ndim - 1)
                best = torch.where(nearer.view(shape), there, best[0]), torch.where(nearer, off, best[1])
            with torch.no_grad():
                edited = put_in(self.model, base, best[0] if best else base, site)
                answer = put(self.model, batch.tokens, site, edited)
            states.append(state(self.model, edited, site))
            errors.append(torch.stack(self.task.errors(answer, batch.targets)))
        return torch.cat(states), torch.cat(errors, dim=1)

    def _edited_by_two(self, seen: _Seen, site: Site, by: int) -> tuple[Tensor, Tensor]:
        """States assembled from two episodes of training compositions, those that the readouts were fitted on."""
        at = positions(self.model, site.role)
        shown = torch.cat([one.sites[site.hook_name][:, at] for one in self.known.batches])
        self.made = made = assemble(seen.code.roll(by, 0), self.known.code, shown.flatten(2))
        states, errors = [], []
        sizes = [len(one.prediction) for one in seen.batches]
        for one, new in zip(seen.batches, made.states.split(sizes), strict=True):
            with torch.no_grad():
                edited = one.sites[site.hook_name].clone()
                edited[:, at] = new.view_as(edited[:, at])
                answer = put(self.model, one.episodes.tokens, site, edited)
            states.append(state(self.model, edited, site))
            errors.append(torch.stack(self.task.errors(answer, one.episodes.targets)))
        return torch.cat(states), torch.cat(errors, dim=1)

    def _distances(
        self, split: str, states: Tensor, site: Site, editor: str, control: str, ways: dict[str, Tensor | None]
    ) -> None:
        own = torch.stack([self.made.first, self.made.second], dim=1) if editor == ASSEMBLED and not control else None
        for name, far in distances(self.known.states[site], states, ways, own).items():
            self._row("divergence", float(far.mean()), split, site, len(states), editor=editor, control=control,
                      directions=name)  # fmt: skip

    def _scores(
        self,
        rung: str,
        split: str,
        site: Site,
        editor: str,
        errors: Tensor,
        composition: Tensor,
        control: str = "",
        chosen: int = 1,
    ) -> None:
        error, weight = errors.cpu().numpy()
        found = summarise(error, weight, composition.cpu().numpy())
        lo, hi = found.interval
        more: dict[str, Any] = {"editor": editor, "rung": rung, "control": control, "chosen": chosen, "effective": 1}
        self._row("score", found.score, split, site, len(error), lo=lo, hi=hi, weight=weight.sum(), **more)
        for c, (score, share, n) in found.per_composition.items() if not control else ():
            name = self.task.composition_name(c)
            self._row("score", score, split, site, n, composition=name, parts=self.parts.get(c, ""), weight=share, **more)


SAME_CODE = "not available: all of these episodes have the same code"


def _others(batch: Episodes) -> dict[str, Tensor]:
    """Every episode's code replaced by the one before it."""
    return {name: code.roll(1, 0) for name, code in batch.codes.items()}


def _means(x: Tensor, composition: Tensor) -> Tensor:
    return torch.stack([x[composition == c].mean(0) for c in composition.unique().tolist()])


def _from_means(x: Tensor, composition: Tensor) -> Tensor:
    _, which = composition.unique(return_inverse=True)
    return x - _means(x, composition)[which]


def _nearest_other(x: Tensor, composition: Tensor) -> Tensor:
    """(n,) for every state the composition whose mean is nearest, its own without itself; -1 where it is the only one."""
    names, which, counts = composition.unique(return_inverse=True, return_counts=True)
    means = _means(x, composition)
    far = (x.square().sum(1)[:, None] + means.square().sum(1) - 2 * x @ means.T).clamp(min=0)
    n, off = counts[which], (x - means[which]).square().sum(1)
    some = n > 1
    scatter = (off * n / (n - 1).clamp(min=1))[some].mean()
    # the mean of the others lies so far; a mean of few lies far from everything, by as much as it scatters
    own = off * (n / (n - 1).clamp(min=1)).square() - scatter / (n - 1).clamp(min=1)
    far = far - scatter / counts
    far[torch.arange(len(x), device=x.device), which] = own
    return torch.where(n > 1, names[far.argmin(1)], torch.full_like(names[which], -1))


def _scatter(error: Tensor, composition: Tensor) -> float:
    """Share of the squared error (n, width) that lies within compositions, of which those with one episode do not tell.

    The scatter about the mean of n episodes is 1 - 1 / n of that about the mean of all."""
    within = whole = 0.0
    for c in composition.unique().tolist():
        own = error[composition == c]
        if (n := len(own)) > 1:
            within += float((own - own.mean(0)).square().sum()) * n / (n - 1)
            whole += float(own.square().sum())
    return within / whole if whole > 0 else float("nan")


def _r2_by_composition(found: Tensor, truth: Tensor, composition: Tensor) -> Evaluation:
    """R², pooled and by composition; what it is measured against is the mean code of all."""
    error, weight = ((truth - one).square().sum(1).cpu().numpy() for one in (found, truth.mean(0)))
    return summarise(error, weight, composition.cpu().numpy())


def _r2(found: Tensor, truth: Tensor) -> float:
    return 1 - float((found - truth).square().sum() / (truth - truth.mean(0)).square().sum().clamp(min=1e-300))
