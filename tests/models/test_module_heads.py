"""Heads that are modules: linear attention that computes the hypernetwork, against the hypernetwork written out by hand."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from compolens import (
    HypernetworkTransformer,
    Hyperteacher,
    ModuleHeads,
    Run,
    SoftmaxTransformer,
    TeacherModules,
    recipes,
    train,
)
from compolens.foundation.configs import DoesNotApply
from compolens.models.hypernetwork import HypernetworkExecutor
from compolens.tasks import UnstructuredTeacher
from compolens.zoo import TrainedModel, load

SMALL = {"d_x": 4, "d_y": 3, "d_hidden": 5, "n_modules": 6, "n_context": 4, "n_queries": 3, "code_given": True}
SCORES = "blocks.0.attn.hook_code"


def constructed(task, **sizes):
    heads = {"n_heads": task.n_modules, "d_hidden": task.d_hidden} | sizes
    return Run(ModuleHeads(**heads), task, steps=0, initialisation=TeacherModules())


def by_hand(task, episodes):
    """y = A^T relu(sum_m z_m Theta_m^T x), a question at a time."""
    modules, readout = (part.double().numpy() for part in task.teacher)
    answers = np.zeros((len(episodes.tokens), task.n_queries, task.d_y))
    for i, z in enumerate(episodes.codes["modules"].double().numpy()):
        for q, x in enumerate(episodes.inputs[i, task.n_context :].double().numpy()):
            hidden = sum(z[m] * (modules[m].T @ x) for m in range(task.n_modules))
            answers[i, q] = readout.T @ np.maximum(hidden, 0)
    return answers


@pytest.mark.parametrize(
    "task",
    [Hyperteacher(code_given=True), Hyperteacher(code_given=True, teacher_seed=7, support="disconnected", coefficients="ones"),
     Hyperteacher(**SMALL), Hyperteacher(**SMALL | {"n_queries": 1, "teacher_seed": 3})],
)  # fmt: skip
@pytest.mark.parametrize("split", ["train", "ood"])
def test_constructed_heads_are_the_hypernetwork(task, split):
    model = constructed(task).build()
    episodes = task.sample(64, split, task.rng(0, split))
    answers = model(episodes.tokens)[:, task.n_context :].detach().double().numpy()
    assert np.abs(answers - by_hand(task, episodes)).max() < 1e-5


def test_they_are_the_executor_of_the_hypernetwork_transformer_with_the_same_modules():
    task = Hyperteacher(**SMALL)
    executor = HypernetworkExecutor(task.n_modules, task.d_x, task.d_hidden, task.d_y)
    with torch.no_grad():
        executor.W_modules.copy_(task.teacher[0])
        executor.W_out.copy_(task.teacher[1])
    episodes = task.sample(32, "ood", task.rng(0, "ood"))
    theirs = executor(episodes.codes["modules"][:, None], episodes.inputs)[:, task.n_context :]
    ours = constructed(task).build()(episodes.tokens)[:, task.n_context :]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_more_heads_and_neurons_than_there_are_modules_change_nothing():
    task = Hyperteacher(**SMALL)
    episodes = task.sample(8, "ood", task.rng(0, "ood"))
    narrow, wide = constructed(task).build(), constructed(task, n_heads=9, d_hidden=11).build()
    torch.testing.assert_close(narrow(episodes.tokens), wide(episodes.tokens))


def test_a_head_is_a_module_its_score_the_coefficient_and_silencing_it_takes_the_module_away():
    task = Hyperteacher(**SMALL)
    model, episodes = constructed(task).build(), task.sample(16, "ood", task.rng(0, "ood"))
    _, cache = model.run_with_cache(episodes.tokens)
    scores = cache[SCORES]
    own = scores[:, range(task.n_context, task.seq), range(task.n_context, task.seq)]
    torch.testing.assert_close(own, episodes.codes["modules"][:, None].expand_as(own))
    assert scores[:, :, : task.n_context].abs().max() == 0  # the context says nothing that the code does not
    torch.testing.assert_close(model.head_modules(), task.teacher[0])
    for head in range(task.n_modules):

        def silence(tensor, hook, head=head):
            return tensor.index_fill(-1, torch.tensor([head]), 0.0)

        without = model.run_with_hooks(episodes.tokens, fwd_hooks=[(SCORES, silence)])
        code = episodes.codes["modules"].index_fill(1, torch.tensor([head]), 0.0)
        expected = task.answer({"modules": code}, episodes.inputs)
        torch.testing.assert_close(without[:, task.n_context :], expected[:, task.n_context :], rtol=0, atol=1e-5)


def test_a_folder_keeps_it_and_its_untrained_control_knows_no_teacher(tmp_path):
    run = dataclasses.replace(constructed(Hyperteacher(**SMALL)), evaluation_episodes=64)
    assert train(run, tmp_path / "heads")["ood"]["score"] == pytest.approx(1, abs=1e-9)
    trained = load(tmp_path / "heads")
    assert trained.run == run
    control = trained.untrained_control().state_dict()
    plain = dataclasses.replace(run, initialisation=None).build().state_dict()
    assert all(torch.equal(control[name], value) for name, value in plain.items())
    assert not torch.equal(control["blocks.0.attn.W_V"], trained.model.state_dict()["blocks.0.attn.W_V"])


def test_module_alignment_finds_the_teachers_modules_in_the_heads_under_any_mixing_of_heads():
    """z' = G z with modules mixed by the inverse of G is the same function, and the same modules."""
    task, probe = Hyperteacher(**SMALL), recipes.load_recipe("probes", "module_alignment")
    run = constructed(task)
    model = run.build().eval()
    mixing = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(6)
    attention = model.blocks[0].attn
    with torch.no_grad():
        attention.W_Q.copy_(torch.einsum("gh,hmd->gmd", mixing, attention.W_Q))
        attention.W_V.copy_(torch.einsum("gh,gmv->hmv", torch.linalg.inv(mixing), attention.W_V))
    episodes = task.sample(8, "ood", task.rng(0, "ood"))
    torch.testing.assert_close(model(episodes.tokens)[:, 4:], episodes.targets[:, 4:], rtol=0, atol=1e-4)
    table, rows = probe(TrainedModel(run, model, task, Path("x"), 0), episodes=256)
    found = table[(table["metric"] == "least alignment") & (table["split"] == "test")].set_index("control")["value"]
    assert found[""] > 0.99 > found.drop("").max() + 0.05
    assert (table["site"] == SCORES).all() and rows["score"].min() > 0.99


def test_what_has_no_code_or_too_few_heads_is_refused():
    with pytest.raises(DoesNotApply, match="code_given=False"):
        constructed(Hyperteacher(**SMALL | {"code_given": False})).build()
    with pytest.raises(DoesNotApply, match="got a ModuleHeadsTransformer for UnstructuredTeacher"):
        Run(ModuleHeads(), UnstructuredTeacher(code_given=True), initialisation=TeacherModules()).build()
    with pytest.raises(DoesNotApply, match=r"ModuleHeads\(n_heads=6, d_hidden=5\) or more, got n_heads=5"):
        constructed(Hyperteacher(**SMALL), n_heads=5).build()
    for other in (SoftmaxTransformer(), HypernetworkTransformer()):
        with pytest.raises(DoesNotApply, match="needs architecture ModuleHeads"):
            Run(other, Hyperteacher(**SMALL), initialisation=TeacherModules()).build()
