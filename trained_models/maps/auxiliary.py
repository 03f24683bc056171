"""Lines: does the held-out score follow a predictor that is trained in? Auxiliary terms at three strengths, five seeds.

`compolens map trained_models/maps/auxiliary.py --out trained_models/maps`, then `compolens analyze raised_predictors
trained_models/maps/auxiliary`. Small vanilla transformers (2 layers, width 32) on the hyperteacher at size F. Both terms act
on the mean context token after the first layer, one of the sites that the probe predictors looks at.

    DecodableFactors     the coefficients of modules are to be read linearly (predictors of decodability)
    OrthogonalFactors    modules are to have effects in directions of their own (the predictor "factor cosine")

Seed s draws teacher, numbering of modules, weights and data, the same ones at every strength. At this rate a seed that is not
reported (100) learns its training compositions to .91 in 2,500 updates.

Foreseen before any of it was trained: each term moves its own predictor, more so at a larger strength. The score on held-out
compositions does not rise with either (within .02 of the run without, at .01 and .1), and falls at 1, where the term is larger
than the task's own loss. Orthogonal effects do not cost score either, though they go with a worse score in the contest.
"""

from itertools import product

from compolens import AdamW, Cell, DecodableFactors, Hyperteacher, Map, OrthogonalFactors, Run, SoftmaxTransformer

STRENGTHS = (0.01, 0.1, 1.0)
SITE = {"hook_name": "blocks.0.hook_resid_post", "role": "context"}
kinds = {"decodable": DecodableFactors, "orthogonal": OrthogonalFactors}


def cell(s: int, kind: str, strength: float) -> Cell:
    """A run of seed s, with a term or ("none", 0) without."""
    run = Run(
        SoftmaxTransformer(n_layers=2, d_model=32), Hyperteacher(teacher_seed=s, split_seed=s), steps=3000, init_seed=s,
        data_seed=s, optimizer=AdamW(lr=2e-2), evaluations=5, evaluation_episodes=2048,
        auxiliary=kinds[kind](strength, **SITE) if kind in kinds else None,
    )  # fmt: skip
    return Cell(run, {"term": kind, "strength": strength})


cells = [cell(s, kind, strength) for s in range(5) for kind, strength in [("none", 0.0), *product(kinds, STRENGTHS)]]
maps = {
    "auxiliary": Map(
        "Predictors that are trained in", cells, x="strength", panels=("term",), learned=0.85, generalized=0.85,
        measures={"predictors": {"episodes": 512}},
    )
}  # fmt: skip
