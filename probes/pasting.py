"""Does the upper part of a trained model work as it is under a new embedding, and on compositions never trained on?"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from compolens import tables
from compolens.activations.sites import residual_sites
from compolens.activations.streams import draw, record
from compolens.foundation.configs import DoesNotApply, require
from compolens.measures.intervals import mean_interval, summarise
from compolens.measures.optimizers import Adam
from compolens.measures.readouts import Moments
from compolens.models.bottleneck import CodeTransformer
from compolens.models.token_stream import TokenSpaceTransformer
from compolens.models.transformer import Transformer
from compolens.references import PosteriorMean
from compolens.tasks import LinearRegression, RepresentationRegression
from compolens.tasks.base import TaskFamily
from compolens.tasks.episodes import stream
from compolens.zoo.folders import TrainedModel

version = 1  # raised whenever its numbers change

RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates that every trained network chooses among."""
TRIED = 512
"""Episodes by whose loss a rate is chosen."""
DRAWS = 1000


class Embedding(NamedTuple):
    """What is trained below the pasted layers.

    Args:
        name: in the table.
        blocks: transformer blocks after the linear map of tokens.
        copied: the token of an answer also holds its input.
    """

    name: str
    blocks: int
    copied: bool = False


LINEAR, COPIED = Embedding("linear", 0), Embedding("linear, x copied", 0, copied=True)


class Condition(NamedTuple):
    """What stands above the new embedding.

    Args:
        control: as in the table.
        source: whose layers: "trained", "untrained" or "".
        lower: its lower layers, not its upper ones.
        layers_free: whether these layers are trained.
        readout_free: whether what reads answers off the stream is trained, too.
    """

    control: str
    source: str
    lower: bool
    layers_free: bool
    readout_free: bool


CONDITIONS = (
    Condition("", "trained", lower=False, layers_free=False, readout_free=False),
    Condition("untrained", "untrained", lower=False, layers_free=False, readout_free=True),
    Condition("lower layers", "trained", lower=True, layers_free=False, readout_free=True),
    Condition("embedding alone", "", lower=False, layers_free=True, readout_free=True),
    Condition("all trained", "untrained", lower=False, layers_free=True, readout_free=True),
)


class Budget(NamedTuple):
    """What every network may spend: updates, updates of each trial of a rate, episodes of an update."""

    steps: int
    tuning_steps: int
    batch: int


def probe(
    trained: TrainedModel,
    *,
    boundary: int = -1,
    blocks: int = 1,
    updates: int = 400,
    tuning_steps: int = 40,
    batch: int = 32,
    episodes: int = 2048,
    seed: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores of frozen upper layers under an embedding that is trained anew, beside the same with other layers (2310.10616).

    A model of regression on a representation is pasted onto plain linear regression, whose inputs play the part of the
    representation: if its upper layers regress, a new embedding is all that they lack. A model of another family is pasted
    onto its own task: then the question is what the frozen part does on held-out compositions under an embedding that was
    trained, as it was, on training compositions alone.

    Args:
        trained: the trained model, with its run, task and folder.
        boundary: the layer above which layers are kept; 0 enters the first block, l leaves block l; of a model with a
            code, one more than there are blocks keeps what executes it. -1: where Phi(x) is read out best on training
            compositions, below the last block; what executes the code; of other models, half of the blocks.
        blocks: transformer blocks of the largest new embedding, 1 or more.
        updates: of the new embedding, at the rate that is chosen.
        tuning_steps: updates of each trial of a learning rate, of three.
        batch: episodes of an update.
        episodes: scored episodes per split, 2 or more.
        seed: seed of the episodes, of the new weights and of the trials, which are never those of a training.

    Returns:
        The table, and a row per episode and split (score: under pasted layers and the largest embedding). Column `embedding`:
        blocks after a linear map of every token; where inputs and answers are tokens in turn also "linear", that map alone,
        and "linear, x copied", where the token of an answer also holds its input. `boundary`: the layer above which layers are
        kept. `rate`: of three learning rates, that with the least loss on training compositions; `free`: scalars that were
        trained.

        - "score": as the target's family scores. lo, hi: 95 % over compositions.
        - "loss of a trial": at each rate, on training compositions.
        - "squared error" (linear regression): by `examples`, those before the answer. lo, hi: 95 % over episodes (t).
        - "paste gap" (linear regression): mean over numbers of examples from 1 of (error - Bayes) / (zero - Bayes): 0 is the
          posterior mean, 1 an answer of 0. lo, hi: 95 % over episodes (bootstrap).
        - control "untrained": upper layers of the untrained control, frozen. "lower layers": the trained model's below the
          boundary, frozen. "embedding alone": no layers. "all trained": upper layers trained from fresh weights. In all four
          what reads the answers off the stream is trained, too; pasted layers keep theirs. All under the largest embedding.
        - control "posterior mean", "zero" (linear regression): reference learners. "as trained" (other families): the model.

    Raises:
        DoesNotApply: the model is no stack of blocks on an embedding.
        ConfigError: a boundary that the model does not have, or a count that is too small.
    """
    model, task = trained.model, trained.task
    if not isinstance(model, Transformer) or isinstance(model, TokenSpaceTransformer):
        raise DoesNotApply(f"{type(model).__name__} has no embedding below a stack of blocks, so nothing can be pasted")
    if model.cfg.n_layers < 2 and not isinstance(model, CodeTransformer):
        raise DoesNotApply(
            f"{type(model).__name__} has one block, so there are no upper layers to paste; 2 or more are needed"
        )
    counts = {"blocks": blocks, "updates": updates, "tuning_steps": tuning_steps, "batch": batch, "episodes": episodes}
    for name, count in counts.items():
        least = 2 if name == "episodes" else 1
        require(count >= least, f"{name} must be {least} or more, got {count}; type --{name.replace('_', '-')} {least}")
    layer = _boundary(trained, boundary, seed)
    target = task.plain if isinstance(task, RepresentationRegression) else task
    scored = _Scored(trained, target, episodes, seed)
    rows = list(scored.references(layer))
    pasting = _Pasting(trained, target, layer, Budget(updates, tuning_steps, batch), seed)
    *simple, largest = _embeddings(target, blocks)
    for embedding, conditions in [*((one, CONDITIONS[:1]) for one in simple), (largest, CONDITIONS)]:
        for condition in conditions:
            if condition.control == "untrained" and trained.why_no_untrained_control:
                continue
            network, rate, free, trials = pasting.best(embedding, condition)
            known: dict[str, Any] = {"control": condition.control, "embedding": embedding.name, "boundary": layer}
            at: dict[str, Any] = {"split": "train", "site": "output", "role": "readout", "n": TRIED}
            rows += [tables.row("loss of a trial", loss, **at, rate=r, **known) for r, loss in trials.items()]
            answers = {split: _answers(network, target, embedding, shown) for split, shown in scored.shown.items()}
            rows += [row | known | {"rate": rate, "free": free} for row in scored.rows(answers)]
            if not condition.control:
                kept = scored.frame(answers)
    own = (row for row in rows if not row["control"] and row["embedding"] == largest.name)
    rows += tables.not_available(own, trained.why_no_untrained_control, measured=("rate", "free"))
    return pd.DataFrame(rows), kept


# ---- where, and under what -------------------------------------------------------------------------------------------
def _boundary(trained: TrainedModel, wanted: int, seed: int) -> int:
    model = trained.model
    layers, code = model.cfg.n_layers, isinstance(model, CodeTransformer)
    most = layers + 1 if code else layers - 1
    require(
        wanted == -1 or 1 <= wanted <= most,
        f"boundary must be -1 or from 1 to {most} (this model has {layers} blocks), got {wanted}",
    )
    if wanted != -1:
        return wanted
    if code:
        return layers + 1
    task = trained.task
    return _best_representation(trained, task, seed) if isinstance(task, RepresentationRegression) else layers // 2


def _best_representation(trained: TrainedModel, task: RepresentationRegression, seed: int) -> int:
    """The layer at whose tokens of inputs a ridge readout of Phi(x) has the least error on other training episodes."""
    model, sites = trained.model, residual_sites(trained.model)
    moments: dict[str, dict[int, Moments]] = {}
    for part in ("fit", "choose"):
        totals: dict[int, list[Moments]] = {layer: [] for layer in sites if 0 < layer < model.cfg.n_layers}
        for batch in record(model, draw(task, "train", TRIED, f"{seed}/{part}", trained.device), list(sites.values())):
            phi = task.prompts(batch.episodes).asked.flatten(0, 1)
            for layer, found in totals.items():
                found.append(Moments.of(batch.sites[sites[layer]][:, list(task.answers)].flatten(0, 1), phi))
        moments[part] = {layer: Moments.total(found) for layer, found in totals.items()}
    errors = {layer: float(moments["choose"][layer].sse(m.fit([1.0])[0]).sum()) for layer, m in moments["fit"].items()}
    return min(errors, key=lambda layer: errors[layer])


def _embeddings(target: TaskFamily, blocks: int) -> list[Embedding]:
    largest = Embedding(f"{blocks} block{'s' * (blocks > 1)}", blocks)
    turns = isinstance(target, LinearRegression) and target.interleaved
    return [LINEAR, COPIED, largest] if turns else [largest]


def _shown(tokens: Tensor, target: TaskFamily, embedding: Embedding) -> Tensor:
    """What the new embedding sees: where x is copied, (batch, seq, d_x + d_y), else the tokens."""
    if not embedding.copied:
        return tokens
    assert isinstance(target, LinearRegression)
    joint = tokens.new_zeros(*tokens.shape[:2], target.d_x + target.d_y)
    joint[:, 0::2, : target.d_x] = tokens[:, 0::2, : target.d_x]
    joint[:, 1::2, : target.d_x] = tokens[:, 0:-1:2, : target.d_x]
    joint[:, 1::2, target.d_x :] = tokens[:, 1::2, : target.d_y]
    return joint


# ---- training --------------------------------------------------------------------------------------------------------
class _Pasting:
    """Networks made of a new embedding and other layers, trained on training compositions of the target."""

    def __init__(self, trained: TrainedModel, target: TaskFamily, boundary: int, budget: Budget, seed: int) -> None:
        self.trained, self.target, self.boundary, self.budget, self.seed = trained, target, boundary, budget, seed
        control = self._anew if trained.why_no_untrained_control else trained.untrained_control
        self.sources = {"trained": trained.model, "untrained": control()}

    def best(self, embedding: Embedding, condition: Condition) -> tuple[Transformer, float, int, dict[float, float]]:
        """(the network trained at the best rate, that rate, scalars that were free, rate -> loss of its trial)."""
        trials = {}
        for rate in RATES:
            network, free = self._paste(embedding, condition)
            self._train(network, free, embedding, rate, self.budget.tuning_steps, f"{self.seed}/trial")
            trials[rate] = self._loss(network, embedding)
        rate = min(trials, key=lambda r: (not np.isfinite(trials[r]), trials[r]))
        network, free = self._paste(embedding, condition)
        self._train(network, free, embedding, rate, self.budget.steps, f"{self.seed}/paste")
        return network.eval(), rate, sum(p.numel() for p in free), trials

    def _paste(self, embedding: Embedding, condition: Condition) -> tuple[Transformer, list[nn.Parameter]]:
        """A new embedding below the condition's layers, and the parameters that are trained."""
        network, layers = self._fresh(embedding), self.trained.model.cfg.n_layers
        source: Any = self.sources.get(condition.source)
        below = list(network.blocks[: embedding.blocks])
        fixed: list[nn.Module] = []
        if source is not None:
            chosen = slice(0, self.boundary) if condition.lower else slice(self.boundary, layers)
            above = [copy.deepcopy(block) for block in source.blocks[chosen]]
            fixed += above
            if not condition.lower:
                for name in self._readout(network):
                    part = copy.deepcopy(getattr(source, name))
                    setattr(network, name, part)
                    if not condition.readout_free or self.boundary > layers:
                        fixed.append(part)
        else:
            above = []
        network.blocks = nn.ModuleList([*below, *above])
        network.cfg.n_layers = len(network.blocks)
        network.requires_grad_(True)
        for part in [] if condition.layers_free else fixed:
            part.requires_grad_(False)
        return network, [p for p in network.parameters() if p.requires_grad]

    def _readout(self, network: Transformer) -> list[str]:
        """The parts above the last block that belong to the upper layers."""
        executor = ["executor"] if isinstance(network, CodeTransformer) else []
        return executor if self.boundary > self.trained.model.cfg.n_layers else ["ln_final", "unembed", *executor]

    def _anew(self) -> Transformer:
        """The model's architecture on its own task, with new weights."""
        run = self.trained.run
        model: Any = replace(run, init_seed=stream(f"{self.seed}/{run.init_seed}", "paste", 1)).build()
        return model.to(self.trained.device)

    def _fresh(self, embedding: Embedding) -> Transformer:
        """The model's architecture with new weights, for the embedding's tokens; as many blocks as it needs."""
        run, task = self.trained.run, self.target
        if embedding.copied:
            assert isinstance(task, LinearRegression)
            task = LinearRegression(task.d_x + task.d_y, task.d_y, task.n_context, layout=task.layout)  # tokens as wide
        described: Any = run.architecture
        seed = stream(f"{self.seed}/{run.init_seed}", "paste", 0)
        fresh = replace(run, architecture=replace(described, n_layers=max(1, embedding.blocks)), task=task, init_seed=seed)
        model: Any = fresh.build()
        return model.to(self.trained.device)

    def _train(
        self, network: Transformer, free: list[nn.Parameter], embedding: Embedding, rate: float, steps: int, seed: str
    ) -> None:
        """Adam, its rate falling linearly to 0, gradients of norm 1 at most. Equal seeds show equal episodes."""
        optimizer = Adam(free, lr=rate)
        with torch.enable_grad():
            for step in range(steps):
                optimizer.param_groups[0]["lr"] = rate * min(1, 20 * (step + 1) / steps) * (1 - step / steps)
                rng = self.target.rng(f"measure/{seed}", "train", step)
                batch = self.target.sample(self.budget.batch, "train", rng).to(self.trained.device)
                loss = self.target.loss(network(_shown(batch.tokens, self.target, embedding)), batch.targets)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(free, 1.0)
                optimizer.step()

    @torch.no_grad()
    def _loss(self, network: Transformer, embedding: Embedding) -> float:
        (batch,) = draw(self.target, "train", TRIED, f"{self.seed}/choose", self.trained.device, batch=TRIED)
        return float(self.target.loss(network(_shown(batch.tokens, self.target, embedding)), batch.targets))


@torch.no_grad()
def _answers(network: nn.Module, target: TaskFamily, embedding: Embedding, batches: list) -> Tensor:
    return torch.cat([network(_shown(b.tokens, target, embedding)) for b in batches])


# ---- the table -------------------------------------------------------------------------------------------------------
class _Scored:
    """The scored episodes of the target, and what learners that are not trained here make of them."""

    def __init__(self, trained: TrainedModel, target: TaskFamily, episodes: int, seed: int) -> None:
        self.trained, self.target = trained, target
        self.shown = {s: list(draw(target, s, episodes, f"{seed}/score", trained.device)) for s in ("test", "ood")}
        self.targets = {s: torch.cat([b.targets for b in shown]) for s, shown in self.shown.items()}
        self.composition = {s: torch.cat([b.composition for b in shown]).cpu().numpy() for s, shown in self.shown.items()}
        self.examples = np.zeros(0, dtype=int)
        self.risks: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def references(self, boundary: int) -> Iterator[dict[str, Any]]:
        """Rows of the posterior mean and of the answer 0; where the target is the model's own task, of the model."""
        known = {"embedding": "", "boundary": boundary}
        if not isinstance(self.target, LinearRegression):
            own = {s: _answers(self.trained.model, self.target, LINEAR, shown) for s, shown in self.shown.items()}
            yield from (row | known | {"control": "as trained"} for row in self.rows(own))
            return
        self.examples = self.target.prompts(self.shown["test"][0]).shown.cpu().numpy()
        ideal = PosteriorMean()
        if why := ideal.why_not(self.target):
            raise DoesNotApply(f"the paste gap is measured from the posterior mean: {why}")
        found = {s: torch.cat([ideal.predict(self.target, b) for b in shown]) for s, shown in self.shown.items()}
        zero = {s: torch.zeros_like(answers) for s, answers in found.items()}
        self.risks = {s: (self._risk(s, found[s]), self._risk(s, zero[s])) for s in found}
        for control, answers in (("posterior mean", found), ("zero", zero)):
            yield from (row | known | {"control": control} for row in self.rows(answers))

    def _risk(self, split: str, answers: Tensor) -> np.ndarray:
        """(episode, answer): squared errors, mean over outputs."""
        at = list(self.target.answers)
        wrong = answers[..., : self.targets[split].shape[-1]].double() - self.targets[split].double()
        return wrong[:, at].square().mean(2).cpu().numpy()

    def frame(self, answers: dict[str, Tensor]) -> pd.DataFrame:
        """A row per split and episode, with its composition and score."""
        parts = []
        for split, said in answers.items():
            error, weight = (part.cpu().numpy() for part in self.target.errors(said, self.targets[split]))
            names = [self.target.composition_name(int(c)) for c in self.composition[split]]
            parts.append(pd.DataFrame({"split": split, "composition": np.array(names), "score": 1 - error / weight}))
        return pd.concat(parts, ignore_index=True)

    def rows(self, answers: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
        """What is measured of a learner's answers (episodes, seq, d_out) by split."""
        for split, said in answers.items():
            error, weight = (part.cpu().numpy() for part in self.target.errors(said, self.targets[split]))
            pooled = summarise(error, weight, self.composition[split])
            lo, hi = pooled.interval
            known: dict[str, Any] = {"split": split, "site": "output", "role": "readout", "n": len(said)}
            yield tables.row("score", pooled.score, lo=lo, hi=hi, **known)
            if not self.risks:
                continue
            ideal, zero = self.risks[split]
            risk = self._risk(split, said)
            for n in np.unique(self.examples).tolist():
                one = risk[:, self.examples == n].mean(1)
                lo, hi = mean_interval(one)
                yield tables.row("squared error", float(one.mean()), lo=lo, hi=hi, examples=n, **known)
            value, lo, hi = paste_gap(*(part[:, self.examples > 0] for part in (risk, ideal, zero)))
            yield tables.row("paste gap", value, lo=lo, hi=hi, **known)


def paste_gap(risk: np.ndarray, ideal: np.ndarray, zero: np.ndarray) -> tuple[float, float, float]:
    """Mean over answers of (risk - ideal) / (zero - ideal), each of these a mean over episodes.

    Args:
        risk: (episode, answer) squared errors of a learner, each answer after one example or more.
        ideal: those of the posterior mean.
        zero: those of the answer 0.

    Returns:
        The gap, and its 95 % percentile interval over resampled episodes.
    """
    draws = np.random.default_rng(0).multinomial(len(risk), np.full(len(risk), 1 / len(risk)), size=DRAWS)
    some = np.concatenate([np.ones((1, len(risk))), draws]) / len(risk)
    means = [some @ part for part in (risk, ideal, zero)]
    gaps = ((means[0] - means[1]) / (means[2] - means[1])).mean(1)
    lo, hi = np.quantile(gaps[1:], (0.025, 0.975))
    return float(gaps[0]), min(float(lo), float(gaps[0])), max(float(hi), float(gaps[0]))
