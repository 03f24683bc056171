"""Would it answer held-out compositions if its code were right, or does it fail to execute what it is given?"""

import numpy as np
import pandas as pd
import torch

from compolens.activations import draw, places, record
from compolens.configs import DoesNotApply
from compolens.oracles import Search, best_code, code_features, fit_codes, written
from compolens.training import summarise
from compolens.zoo import TrainedModel

RUNGS = ("own answer", "own code written", "true code written", "best code")


def probe(
    trained: TrainedModel,
    *,
    episodes: int = 512,
    fitted: int = 1024,
    searched: int = 64,
    search_steps: int = 60,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A ladder of interventions at the place where the code is read (column `rung`), scored on the same questions:

    "own answer"; "own code written": what a linear readout finds of the code, at the place where it is read best, is written
    there; "true code written": the episode's own code is; "best code": a code searched for through the frozen rest of the
    model, fitted to the context's examples alone and scored on fresh questions. Steps up the ladder are what is lost to use,
    to inference, to the form of the code; what is missing at the top is lost to execution.

    episodes: per split, for all rungs but the last; fitted: training episodes for readouts and writers; searched,
    search_steps: episodes per split and Adam steps of the search. The place is where writing another code moves the answers of
    training compositions most (rows "recovered": 1 is all the way to that code's answers, 0 not at all); "true code written"
    has rows for every place. Scores as in `generalization`, rows per composition included, lo and hi 95 % over compositions.
    code_width and n_fitted: free numbers of the code, and values it was fitted to. Controls: the same on the untrained twin,
    its search included; another episode's code written.
    """
    task = trained.task
    if "render" in task.missing:
        raise DoesNotApply(f"no answers are known under other codes; {type(task).__name__}: {task.missing['render']}")
    code_features(task, next(draw(task, "train", 1, seed)).codes)
    ladder = _Ladder(task, trained.model, "", seed, trained.device)
    read, source = ladder.fit(fitted)
    twin = _Ladder(task, trained.untrained_twin(), "untrained", seed, trained.device)
    twin_read, twin_source = twin.fit(fitted, (read.place, source.place))  # the twin is looked at where the model is
    kept = []
    for split in ("test", "ood"):
        kept.append(ladder.climb(split, episodes, read, source))
        twin.climb(split, episodes, twin_read, twin_source)
        ladder.search(split, searched, read, source, Search(search_steps))
        twin.search(split, searched, twin_read, twin_source, Search(search_steps))
    return pd.DataFrame(ladder.rows + twin.rows), pd.concat(kept, ignore_index=True)


class _Ladder:
    """One model's ladder: readouts and writers at every place, the place where the code is read, the scores of all rungs."""

    def __init__(self, task, model, control, seed, device):
        self.task, self.model, self.control, self.seed, self.device = task, model, control, seed, device
        self.rows: list[dict] = []

    def fit(self, n, where=None):
        """(where the code is read, where it is decoded best): as chosen on training compositions, or at the places given."""
        batches = list(draw(self.task, "train", n, f"{self.seed}/fit", self.device))
        self.codes = fit_codes(self.model, self.task, batches, places(self.model))
        for at in self.codes:
            pooled = self._recovered(at, max(n // 2, 2))
            self._row("recovered", "another code written", "train", at.place, pooled.score, pooled.interval, n // 2)
            if not self.control:
                self._row("left-out R²", "decoded", "train", at.place, at.left_out, n=n)
        known = {at.place: at for at in self.codes}
        if where is not None:
            return tuple(known[place] for place in where)
        values = [row["value"] for row in self.rows if row["metric"] == "recovered"]
        return self.codes[int(np.argmax(values))], max(self.codes, key=lambda at: at.left_out)

    def _row(self, metric, rung, split, place, value, interval=(np.nan, np.nan), n=0, **more):
        at = {"site": place.site, "role": place.role, "layer": place.layer}
        row = {"metric": metric, "rung": rung, "value": value, "lo": interval[0], "hi": interval[1], "split": split, **at}
        self.rows.append(row | {"control": self.control, "n": n, "composition": "all", "chosen": 0} | more)

    def _recovered(self, at, n):
        """How far the answers of training compositions move to another code's when that code is written: 1 is all of it."""
        parts = []
        for batch in draw(self.task, "train", n, f"{self.seed}/choose", self.device):
            codes = {name: code.roll(1, 0) for name, code in batch.codes.items()}
            wanted = self.task.render(codes, batch.inputs).targets
            moved = written(self.model, batch, at, code_features(self.task, codes))
            with torch.no_grad():
                still = self.model(batch.tokens)
            error, before = (self.task.errors(p, wanted)[0] for p in (moved, still))
            parts.append(torch.stack([error, before, batch.composition.double()]).cpu().numpy())
        return summarise(*np.concatenate(parts, axis=1))

    def climb(self, split, n, read, source):
        """Every rung but the search; returns per-episode rows of the model's own answer and of that with the true code."""
        results: dict = {}
        sites = list(dict.fromkeys(at.place.site for at in self.codes))
        for batch in draw(self.task, split, n, f"{self.seed}/score", self.device):
            (seen,) = record(self.model, [batch], sites)
            true, decoded = code_features(self.task, batch.codes), source.decode(self.model, seen.sites[source.place.site])
            answers = {("own answer", read, ""): seen.prediction}
            wanted = [("own code written", read, "", decoded), ("true code written", read, "another code", true.roll(1, 0))]
            for rung, at, control, code in [*wanted, *(("true code written", at, "", true) for at in self.codes)]:
                answers[rung, at, control] = written(self.model, batch, at, code, seen.sites[at.place.site])
            for key, prediction in answers.items():
                found = torch.stack([*self.task.errors(prediction, batch.targets), batch.composition.double()])
                results.setdefault(key, []).append(found.cpu().numpy())
        for (rung, at, control), parts in results.items():
            name = ", ".join(filter(None, (self.control, control)))
            self._scores(rung, split, at.place, *np.concatenate(parts, axis=1), control=name, chosen=int(at is read))
        own, true = (np.concatenate(results[rung, read, ""], axis=1) for rung in ("own answer", "true code written"))
        names = [self.task.composition_name(int(c)) for c in own[2]]
        columns = {"split": split, "composition": names, "score": 1 - own[0] / own[1], "true_code": 1 - true[0] / true[1]}
        return pd.DataFrame(columns)

    def search(self, split, n, read, source, search):
        """The rung "best code", and the own answers to the same questions; a row that says why where there is none."""
        parts = []
        try:
            for batch in draw(self.task, split, n, f"{self.seed}/search", self.device, batch=min(n, 64)):
                (seen,) = record(self.model, [batch], [source.place.site])
                starts = self._starts(batch, source.decode(self.model, seen.sites[source.place.site]))
                found = best_code(self.model, self.task, batch, read, starts, search)
                scored = [*self.task.errors(found.prediction, batch.targets), batch.composition.double()]
                parts.append(torch.stack([*scored, *self.task.errors(seen.prediction, batch.targets)]).cpu().numpy())
        except DoesNotApply as error:
            self._row("score", "best code", split, read.place, np.nan, control="not available", note=str(error), chosen=1)
            return
        error, weight, composition, *own = np.concatenate(parts, axis=1)
        more = {"code_width": found.width, "n_fitted": found.fitted}
        self._scores("best code", split, read.place, error, weight, composition, chosen=1, **more)
        self._scores("own answer, searched", split, read.place, *own, composition, chosen=1)

    def _starts(self, batch, decoded):
        """Codes to search from: what is read from the model, codes of other episodes, and their mean."""
        n = len(batch.tokens)
        others = next(draw(self.task, "train", n, f"{self.seed}/start", self.device, batch=n))
        code = code_features(self.task, others.codes)
        return [decoded, code, code.mean(0).expand_as(code)]

    def _scores(self, rung, split, place, error, weight, composition, **more):
        """The pooled row, and at the chosen place one per composition."""
        pooled = summarise(error, weight, composition)
        self._row("score", rung, split, place, pooled.score, pooled.interval, len(error), weight=weight.sum(), **more)
        if more["chosen"]:
            for c, (score, share, n) in pooled.per_composition.items():
                name = self.task.composition_name(c)
                self._row("score", rung, split, place, score, n=n, composition=name, weight=share, **more)
