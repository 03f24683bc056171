"""What tests of the diagnosis share."""

import pytest

from compolens.diagnosis import stability


@pytest.fixture(autouse=True)
def few_resamples(request, monkeypatch):
    """A judgement tells how often its label comes out again; only the tests of that need all the resamples."""
    if request.module.__name__ != "test_stability":
        monkeypatch.setattr(stability, "RESAMPLES", 10)
