"""What `nonlinear_code` says of states whose compositions and noise are known."""

import pytest
import torch

from compolens import recipes


@pytest.fixture(scope="module")
def inside():
    return recipes.load_recipe("probes", "nonlinear_code").__globals__


def test_scatter_is_the_share_of_an_error_that_averages_away(inside):
    draw, composition = torch.Generator().manual_seed(0), torch.arange(200) % 50
    noise = torch.randn(200, 8, generator=draw)
    same = torch.randn(50, 8, generator=draw)[composition]
    assert inside["_scatter"](same, composition) == pytest.approx(0, abs=1e-9)
    assert inside["_scatter"](noise, composition) == pytest.approx(1, abs=0.1)  # four episodes of each do not bias it
    assert inside["_scatter"](noise + same, composition) == pytest.approx(0.5, abs=0.1)
    assert inside["_scatter"](noise, torch.arange(200)) != inside["_scatter"](noise, torch.arange(200))  # NaN: one of each


def test_the_nearest_composition_is_as_often_the_own_one_whatever_its_number_of_episodes(inside):
    """Two states of equal law: a composition of few episodes must not seem farther from itself than from one of many."""
    draw = torch.Generator().manual_seed(0)
    composition = torch.cat([torch.zeros(400), torch.arange(1, 101).repeat_interleave(2), torch.tensor([101.0])]).long()
    x = torch.randn(len(composition), 6, generator=draw).double()
    found = inside["_nearest_other"](x, composition)
    assert found[-1] == -1  # alone: nothing to lie near to
    x = x + 20 * torch.randn(102, 6, generator=draw).double()[composition]
    found = inside["_nearest_other"](x, composition)
    assert (found == composition)[:-1].double().mean() > 0.97
    two = torch.cat([torch.zeros(100), torch.ones(2).repeat(100)]).long()
    names = torch.cat([torch.zeros(100), torch.arange(1, 101).repeat_interleave(2)]).long()
    y = torch.randn(len(names), 6, generator=draw).double()
    y[two == 1] += 4
    nearest = inside["_nearest_other"](y, names)
    assert (nearest[two == 1] > 0).double().mean() > 0.97  # not the many that lie elsewhere
