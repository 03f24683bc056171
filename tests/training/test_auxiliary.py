"""Terms added to the loss: they are what their names say, they move what they look at, and a run without one is as it was."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from compolens import AdamW, DecodableFactors, Hyperteacher, OrthogonalFactors, Run, SoftmaxTransformer
from compolens.foundation.configs import ConfigError, construct, describe
from compolens.measures.factorisation import AdditiveCode
from compolens.training import AUXILIARIES, train
from compolens.training.auxiliary import L2
from compolens.training.state import Training
from compolens.zoo import read_run

SMALL = {"d_x": 3, "d_y": 2, "d_hidden": 4, "n_context": 6, "n_queries": 3}
TINY = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2)
RUN = Run(TINY, Hyperteacher(**SMALL), steps=6, batch_size=32, evaluations=2, evaluation_episodes=16)


def codes(n=60, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=rng, dtype=torch.float64)
    factors = {name: torch.randn(n, 1, generator=rng, dtype=torch.float64) + x[:, :1] for name in "ab"}
    classes = torch.nn.functional.one_hot(torch.randint(3, (n,), generator=rng), 3).double()
    return x, factors | {"c": classes}


def test_the_decodable_term_is_the_error_of_a_readout_that_left_each_episode_out():
    x, factors = codes()
    y = torch.cat(list(factors.values()), dim=1)
    penalty = L2 * float((x - x.mean(0)).square().sum(0).mean())
    left_out = cross_val_predict(Ridge(penalty), x.numpy(), y.numpy(), cv=LeaveOneOut())
    error = np.square(y.numpy() - left_out).sum() / (y - y.mean(0)).square().sum()
    assert float(DecodableFactors().term(x, factors)) == pytest.approx(float(error), rel=1e-9)


def test_the_orthogonal_term_is_the_squared_cosine_of_fitted_effects():
    x, factors = codes()
    rng = np.random.default_rng(1)
    effects = {name: rng.normal(size=(part.shape[1], 5)) for name, part in factors.items()}
    x = torch.from_numpy(sum(part.numpy() @ effects[name] for name, part in factors.items()))
    fitted = AdditiveCode.fit(x.numpy(), {name: part.numpy() for name, part in factors.items()})
    stacked, who = [], []
    for name, weight in fitted.weights.items():
        stacked.append(weight if len(weight) == 1 else weight - fitted.centres[name] @ weight)
        who += [name] * len(weight)
    unit = np.concatenate(stacked)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    other = np.array(who)[:, None] != np.array(who)
    expected = float(np.square(unit @ unit.T)[other].mean())
    assert float(OrthogonalFactors().term(x, factors)) == pytest.approx(expected, rel=0.05)  # effects there are penalised


def test_orthogonal_effects_and_codes_that_hold_the_factors_have_next_to_no_term():
    _, factors = codes()
    apart = torch.cat([factors["a"] - factors["b"], factors["b"]], dim=1)
    two = {name: factors[name] for name in "ab"}
    own = torch.cat(list(two.values()), dim=1)
    assert float(OrthogonalFactors().term(own, two)) < 1e-3 < 0.3 < float(OrthogonalFactors().term(apart, two))
    assert float(DecodableFactors().term(own, two)) < 1e-3
    noise = torch.randn(60, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert float(DecodableFactors().term(noise, two)) > 0.9


@pytest.mark.parametrize("kind", AUXILIARIES)
def test_descent_on_a_term_lowers_it(kind):
    x, factors = codes()
    x = (x @ torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).requires_grad_()
    first = kind().term(x, factors)
    optimizer = torch.optim.Adam([x], lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        kind().term(x, factors).backward()
        optimizer.step()
    assert kind().term(x, factors).item() < 0.5 * first.item()


def test_the_term_enters_the_gradient_times_its_strength(tmp_path):
    """One update of plain gradients: what it moves beyond a run without the term is linear in the strength."""

    def gradients(auxiliary):
        run = dataclasses.replace(RUN, auxiliary=auxiliary, optimizer=AdamW(clip=None))
        training = Training(run, tmp_path, "cpu", lambda _: None)
        found = {}
        training.optimizer.step = lambda: found.update(
            {n: p.grad.clone() for n, p in training.named.items() if p.grad is not None}
        )
        training.advance()
        return torch.cat([g.flatten() for g in found.values()]).double()

    site = {"hook_name": "blocks.0.hook_resid_pre"}
    none, one, three = (gradients(a) for a in (None, DecodableFactors(1.0, **site), DecodableFactors(3.0, **site)))
    assert float((one - none).norm()) > 1e-4
    assert torch.allclose(three - none, 3 * (one - none), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", AUXILIARIES)
def test_a_run_with_a_term_resumes_bit_for_bit_and_tells_it_along_the_way(tmp_path, kind):
    run = dataclasses.replace(RUN, auxiliary=kind(0.5))
    train(run, tmp_path / "whole")

    halved = Training(run, tmp_path / "halves", "cpu", lambda _: None)
    (tmp_path / "halves").mkdir()
    for _ in range(3):
        halved.advance()
    halved.save()
    again = Training(run, tmp_path / "halves", "cpu", lambda _: None)
    assert again.step == 3
    for _ in range(3):
        again.advance()
    again.finish()
    for name in ("weights.safetensors", "history.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes(), name
    header, *rows = (tmp_path / "whole" / "history.csv").read_text().splitlines()
    told = [float(row.split(",")[header.split(",").index("auxiliary")]) for row in rows]
    assert len(told) == 2 and all(math.isfinite(value) and value > 0 for value in told)
    assert read_run(tmp_path / "whole") == run


def test_a_run_without_a_term_is_described_as_before_and_one_with_it_comes_back():
    assert "auxiliary" not in describe(RUN)
    turned = dataclasses.replace(RUN, auxiliary=OrthogonalFactors(2.0, role="readout"))
    classes = [Run, type(RUN.optimizer), Hyperteacher, SoftmaxTransformer, *AUXILIARIES]
    assert construct(describe(turned), classes) == turned != RUN


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DecodableFactors(0.0), "leave auxiliary out"),
        (lambda: DecodableFactors(math.nan), "finite number"),
        (lambda: dataclasses.replace(RUN, auxiliary=DecodableFactors(), answers_only=True), "answers_only"),
        (lambda: DecodableFactors(hook_name="blocks.7.hook_resid_post").watch(RUN.build(), RUN.task), "no hook point"),
        (lambda: DecodableFactors(role="queries").watch(RUN.build(), RUN.task), "no token role"),
    ],
)
def test_what_means_nothing_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
