"""Products in the orientation that is faster, dropped codes and permuted copies are what their plain forms are."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from compolens.models.hyla import relaid
from compolens.models.linear import rms_head
from compolens.models.operands import as_operand, full, product
from compolens.training.machine import products

EXACT = {"rtol": 0, "atol": 1e-12}


def double(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


@pytest.mark.parametrize(("n", "k", "m"), [(5, 4, 2), (2, 4, 5), (3, 3, 3), (6, 1, 2), (1, 7, 1)])
def test_a_product_is_the_product_with_all_its_derivatives(n, k, m):
    x, y = double(2, 3, n, k), double(2, 3, k, m)
    torch.testing.assert_close(product(x, y), x @ y, **EXACT)
    assert gradcheck(product, (x, y), check_forward_ad=True) and gradgradcheck(product, (x, y))
    torch.testing.assert_close(torch.func.vmap(product)(x, y), x @ y, **EXACT)
    weight = torch.randn(2, 3, n, m, dtype=torch.double)
    ours, plain = (torch.autograd.grad((f(x, y) * weight).sum(), (x, y)) for f in (product, torch.matmul))
    torch.testing.assert_close(ours, plain, **EXACT)


def test_a_product_of_unequal_batches_broadcasts_as_torchs_does():
    x, y = double(2, 3, 5, 4), double(4, 2)
    torch.testing.assert_close(product(x, y), x @ y, **EXACT)


@pytest.mark.parametrize("transposed", [False, True])
def test_in_mixed_precision_a_product_is_that_of_the_rounded_factors(transposed):
    x, y = torch.randn(3, 6, 4), torch.randn(3, 4, 2)
    x = x.mT.contiguous().mT if transposed else x
    with products("bfloat16", "cpu"):
        result = product(x, y)
    assert result.dtype == torch.bfloat16
    expected = x.bfloat16().double() @ y.bfloat16().double()
    torch.testing.assert_close(result.double(), expected, rtol=2**-8, atol=1e-6)  # rounded once


def test_operands_are_rounded_in_mixed_precision_alone_and_widened_again():
    x = torch.randn(5)
    assert as_operand(x) is x and full(x) is x
    with products("bfloat16", "cpu"):
        assert torch.equal(as_operand(x), x.bfloat16())
    assert torch.equal(full(x.bfloat16()), x.bfloat16().float())
    assert full(x.double()).dtype == torch.double


def test_dropping_codes_while_normalising_them_is_dropping_them_after():
    scores = double(2, 3, 4, 4)
    kept = (torch.rand(4, 4) > 0.3).double() / 0.7
    assert 0 < int((kept == 0).sum()) < 16
    torch.testing.assert_close(rms_head(scores, kept), rms_head(scores) * kept, **EXACT)
    assert gradcheck(rms_head, (scores, kept)) and gradgradcheck(rms_head, (scores, kept))


def test_a_permuted_copy_is_contiguous_and_so_is_its_gradient():
    x = double(2, 3, 4)
    order = (2, 0, 1)
    assert torch.equal(relaid(x, order), x.permute(order)) and relaid(x, order).is_contiguous()
    assert gradcheck(lambda t: relaid(t, order), x, check_forward_ad=True) and gradgradcheck(lambda t: relaid(t, order), x)
    (relaid(x, order) * torch.randn(4, 2, 3, dtype=torch.double)).sum().backward()
    assert x.grad.is_contiguous()
