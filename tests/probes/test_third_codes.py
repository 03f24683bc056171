"""The control "another code" counts only episodes whose third code is neither the source's nor the base's."""

from importlib import import_module

import numpy as np
import pytest
import torch

from compolens import Run, SoftmaxTransformer, load, recipes, train
from compolens.activations.streams import draw
from compolens.interventions.interchange import other_code
from compolens.tasks import Hyperteacher, Relations

PATCHING = import_module(recipes.load_recipe("probes", "patching").__module__)
COMPONENTS = import_module(recipes.load_recipe("probes", "components").__module__)
SITE, EPISODES = "blocks.0.hook_resid_pre", 128


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("third") / "model"
    train(
        Run(SoftmaxTransformer(n_layers=1, d_model=16, n_heads=2), Relations(), steps=0, evaluation_episodes=32),
        folder,
    )
    return load(folder)


def by_hand(trained, put):
    """The share of the way to the source's answers that `put` (a hook, given the third run's activation) goes, and how many
    pairs it is of."""
    task, model = trained.task, trained.model.eval()
    (base,) = draw(task, "ood", EPISODES, 0, batch=EPISODES)
    source, third = (task.render({name: code.roll(k, 0) for name, code in base.codes.items()}, base.inputs) for k in (1, 2))
    code = list(zip(*(code.tolist() for code in base.codes.values()), strict=True))
    apart = np.array([code[i - 2] not in (code[i - 1], code[i]) for i in range(EPISODES)])

    def answers(prediction):
        return prediction[:, list(task.answers)].double().flatten(1)

    with torch.no_grad():
        _, held = model.run_with_cache(third.tokens)
        start, goal = answers(model(base.tokens)), answers(model(source.tokens))
        reached = answers(model.run_with_hooks(base.tokens, fwd_hooks=[put(held)]))
    return start, goal, reached, apart


def test_patching_counts_third_codes_that_are_others(trained):
    table, _ = PATCHING.probe(trained, episodes=EPISODES)
    at = trained.model.roles["context"]

    def put(held):
        def edit(x, hook):
            x[:, at] = held[SITE][:, at]
            return x

        return SITE, edit

    start, goal, reached, apart = by_hand(trained, put)
    left, way = (reached - goal).square().sum(1).numpy(), (start - goal).square().sum(1).numpy()
    assert 0 < (~apart & (way > 0)).sum() < EPISODES / 2
    row = table[(table["site"] == SITE) & (table["role"] == "context") & (table["split"] == "ood")].set_index("control")
    assert row.loc["another code", "value"] == pytest.approx(1 - left[apart].sum() / way[apart].sum(), rel=1e-4)
    assert abs(1 - left.sum() / way.sum() - row.loc["another code", "value"]) > 1e-3, "the others would change it"


def test_components_count_third_codes_that_are_others(trained):
    table, _ = COMPONENTS.probe(trained, episodes=EPISODES)
    site = "blocks.0.hook_mlp_out"
    start, goal, reached, apart = by_hand(trained, lambda held: (site, lambda x, hook: held[site]))
    along, way = ((reached - start) * (goal - start)).sum(1).numpy(), (start - goal).square().sum(1).numpy()
    rows = table[(table["component"] == "L0MLP") & (table["split"] == "ood") & (table["metric"] == "effect")]
    row = rows[(rows["control"] == "another code")].squeeze()
    assert row["value"] == pytest.approx(along[apart].sum() / way[apart].sum(), rel=1e-4)


@pytest.mark.parametrize("probe", [PATCHING, COMPONENTS], ids=["patching", "components"])
def test_where_no_third_code_is_another_it_is_said(trained, probe):
    """Of two episodes, the third code is the base's own."""
    table, _ = probe.probe(trained, episodes=2)
    control = table[table["control"] == "another code"]
    assert len(control) and control["value"].isna().all()
    assert control["note"].str.startswith("not available: in no episode is the third code another").all()


def test_codes_are_others_in_any_of_their_numbers():
    task = Hyperteacher(d_x=4, d_y=2, d_hidden=6, n_modules=6, n_context=6, n_queries=3)
    episodes = task.sample(8, "test", task.rng(0, "test"))
    same = {name: code.clone() for name, code in episodes.codes.items()}
    next(iter(same.values()))[3].flatten()[-1] += 1
    assert other_code(episodes, episodes._replace(codes=same)).tolist() == [False] * 3 + [True] + [False] * 4
