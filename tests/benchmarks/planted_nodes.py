"""Which heads and MLPs carry a code is trained into an ordinary transformer, and then looked for.

python tests/benchmarks/planted_nodes.py [MODELS [STEPS]]. The code is written on every token. A causal model says what
becomes of it: one head carries its first modules, another head its other ones, and the last MLP makes the answer of both.
It is trained in by strict interchange-intervention training (2407.14494), of one summed loss:

    interchange   weight 1    the source's activation of a chosen node: the answer under the source's part of the code
    behaviour     weight 1    nothing exchanged: the base's own answer
    strictness    weight 1    the source's activation of any other node: the base's own answer

One chosen node in turn, and one other node drawn by what its exchange still does, are exchanged per step. So the truth is
known of every node, and of no edge. It holds as far as `verified` says.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import average_precision_score

from compolens import Hyperteacher, SoftmaxTransformer, recipes
from compolens.activations.streams import draw
from compolens.interventions.components import Component, components, hold
from compolens.measures.intervals import mean_interval

TASK = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=4, n_queries=4, code_given=True)
ARCHITECTURE = SoftmaxTransformer(n_layers=3, d_model=48, n_heads=4)
FIRST = 3
"""Modules that the first head carries; the second carries the others."""
BATCH, RATE = 64, 3e-3
WAYS = ("effect", "integrated attribution", "attribution", "mean ablation", "resample ablation")


@dataclass(frozen=True)
class Truth:
    """The nodes of the causal model: first and second carry the code, last makes the answer; all others do nothing."""

    first: Component
    second: Component
    last: Component

    @classmethod
    def drawn(cls, parts: list[Component], seed: int) -> "Truth":
        """Two heads of different layers before the last, at random, and the last MLP."""
        rng = np.random.default_rng(seed)
        heads = [part for part in parts if part.kind == "head"]
        layers = rng.permutation(max(part.layer for part in parts) + 1)[:2]
        one, other = (rng.choice([part.name for part in heads if part.layer == layer]) for layer in layers)
        named = {part.name: part for part in parts}
        return cls(named[one], named[other], parts[-1])

    @property
    def nodes(self) -> tuple[Component, ...]:
        return self.first, self.second, self.last


def answer(codes, x):
    """(batch, seq, d_y): what the task's teacher answers under any code, also one of no composition."""
    modules, readout = TASK.teacher
    weights = torch.einsum("bm,mdh->bdh", codes, modules)
    return torch.relu(torch.einsum("bqd,bdh->bqh", x, weights)) @ readout


def wanted(truth, part, base, source):
    """The answers where one node's activation is the source's."""
    ours, theirs = base.codes["modules"], source.codes["modules"]
    if part == truth.last:
        return answer(theirs, source.inputs)
    here = torch.arange(ours.shape[1]) < FIRST
    taken = {truth.first: here, truth.second: ~here}.get(part, torch.zeros_like(here))
    return answer(torch.where(taken, theirs, ours), base.inputs)


def moved(model, base, part, given):
    """The answers where one node's activation is `given`, with its graph."""
    put = [(part.hook_name, lambda tensor, hook: part.put(tensor, given))]
    return model.run_with_hooks(base.tokens, fwd_hooks=put)[:, list(TASK.answers)]


def held(model, episodes, parts):
    """The answers, and hook point -> activation, with its graph: what a source holds is trained too."""
    seen = {}

    def keep(tensor, hook):
        seen[hook.name] = tensor

    prediction = model.run_with_hooks(episodes.tokens, fwd_hooks=[(name, keep) for name in {p.hook_name for p in parts}])
    return prediction[:, list(TASK.answers)], seen


def error(prediction, target):
    return (prediction - target[:, list(TASK.answers)]).square().mean()


def plant(model, parts, truth, steps, seed):
    """Train it in; changed in place. The last losses: interchange, behaviour, strictness."""
    unused = [part for part in parts if part not in truth.nodes]
    optimizer, told = torch.optim.Adam(model.parameters(), lr=RATE), None
    rng, left = np.random.default_rng(seed), np.ones(len(unused))
    for step, base in enumerate(draw(TASK, "train", steps * BATCH, f"{seed}/planting", "cpu", batch=BATCH)):
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / 100) * (1 - step / steps)
        source = base.take(torch.arange(BATCH).roll(1))
        own, here = held(model, base, parts)
        theirs = {name: activation.roll(1, 0) for name, activation in here.items()}
        at = int(rng.choice(len(unused), p=left / left.sum()))
        used, other = truth.nodes[step % 3], unused[at]
        told = (
            error(moved(model, base, used, theirs[used.hook_name]), wanted(truth, used, base, source)),
            error(own, answer(base.codes["modules"], base.inputs)),
            error(moved(model, base, other, theirs[other.hook_name]), wanted(truth, other, base, source)),
        )
        left[at] = 0.7 * left[at] + 0.3 * float(told[2].detach())
        optimizer.zero_grad()
        torch.stack(told).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [float(value.detach()) for value in told]


@torch.no_grad()
def verified(model, parts, truth, split, n=512):
    """How far the truth holds: R² of the answers, plain and with a node of the truth exchanged (the least), and the largest
    share of the answers' variance that any other node changes."""
    (base,) = draw(TASK, split, n, "verified", "cpu", batch=n)
    source = base.take(torch.arange(n).roll(1))
    states = hold(model, source, parts).sites
    own = model(base.tokens)[:, list(TASK.answers)]

    def r2(prediction, target):
        return 1 - float((prediction - target).square().sum() / (target - target.mean(0)).square().sum())

    def exchanged(part):
        return moved(model, base, part, states[part.hook_name])

    last = list(TASK.answers)
    reached = [r2(exchanged(part), wanted(truth, part, base, source)[:, last]) for part in truth.nodes]
    others = {part.name: 1 - r2(exchanged(part), own) for part in parts if part not in truth.nodes}
    worst = max(others, key=others.get)
    behaviour = r2(own, answer(base.codes["modules"], base.inputs)[:, last])
    return {"behaviour": behaviour, "interchange, least": min(reached), "strict, worst": others[worst], "worst": worst}


def scored(model, parts, truth, seed, episodes=128):
    """way -> average precision of its ranking of the nodes; from the probe's own table."""
    stand_in = SimpleNamespace(
        task=TASK, model=model, device="cpu", with_untrained_control=lambda: [("", model)], why_no_untrained_control=""
    )
    table, _ = recipes.load_recipe("probes", "components")(stand_in, episodes=episodes, seed=seed)
    true = np.array([part in truth.nodes for part in parts])
    some = table[(table["split"] == "ood") & (table["control"] == "") & table["counterfactual"].isin(["whole code", ""])]
    found = {}
    for way in WAYS:
        values = some[some["metric"] == way].set_index("component")["value"]
        found[way] = average_precision_score(true, np.abs(values[[part.name for part in parts]].to_numpy()))
    (base,) = draw(TASK, "ood", episodes, seed, "cpu", batch=episodes)
    other = TASK.render({name: code.roll(1, 0) for name, code in base.codes.items()}, base.inputs)
    both = [hold(model, each, parts).sites for each in (base, other)]
    length = [float(part.of(both[1][part.hook_name] - both[0][part.hook_name]).norm()) for part in parts]
    orders = np.random.default_rng(seed).random((1000, len(parts)))
    found["magnitude"] = average_precision_score(true, length)
    found["random"] = float(np.mean([average_precision_score(true, order) for order in orders]))
    return found | {"prevalence": true.mean()}


def planted(seed, steps):
    """(model, its parts, truth, losses) with the truth trained in."""
    torch.manual_seed(seed)
    model = ARCHITECTURE.build(**TASK.dimensions)
    parts = components(model, draw_one().tokens)
    truth = Truth.drawn(parts, seed)
    losses = plant(model, parts, truth, steps, seed)
    return model.eval(), parts, truth, losses


def draw_one():
    return next(iter(draw(TASK, "train", 2, 0)))


def main(models: int, steps: int) -> None:
    rows = []
    for seed in range(models):
        model, parts, truth, losses = planted(seed, steps)
        print(f"{seed}: {', '.join(part.name for part in truth.nodes)}; losses {', '.join(f'{v:.4f}' for v in losses)}")
        for split in ("test", "ood"):
            told = verified(model, parts, truth, split)
            print(f"   {split}: {', '.join(f'{k} {v:.3f}' if k != 'worst' else f'({v})' for k, v in told.items())}")
        rows.append(scored(model, parts, truth, seed))
        torch.manual_seed(seed + 1000)
        untrained = ARCHITECTURE.build(**TASK.dimensions).eval()
        rows[-1]["effect, untrained"] = scored(untrained, parts, truth, seed)["effect"]
        print("   " + ", ".join(f"{way} {value:.3f}" for way, value in rows[-1].items()), flush=True)
    for way, values in pd.DataFrame(rows).items():
        lo, hi = mean_interval(values.to_numpy()) if models > 1 else (np.nan, np.nan)
        print(f"{way:24} {values.mean():.3f} [{lo:.3f}, {hi:.3f}], least {values.min():.3f}, {models} models")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(*(int(word) for word in (sys.argv[1:] + ["3", "1500"][len(sys.argv) - 1 :])))
