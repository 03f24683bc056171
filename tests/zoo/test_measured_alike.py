"""A network of the project, adopted as if it came from elsewhere, is measured as at home: row by row, choice by choice."""

import numpy as np
import pytest

import compolens
from compolens import load_recipe

FEW = {"episodes": 64}
SHORT = {
    "generalization": FEW, "latent_code": FEW, "patching": FEW, "code_structure": FEW,
    "erase_code": FEW | {"draws": 2}, "inference_or_execution": FEW | {"fitted": 96, "searched": 4, "search_steps": 2},
    "swap_code": FEW | {"search_steps": 2, "draws": 2},
}  # fmt: skip
NEEDS_WEIGHTS = ("row space only", "null space only")
"""What asks for the next linear map, which an adopted network does not show."""
KEYS = ("metric", "split", "site", "role", "control", "layer", "dimension", "fit", "rank", "rung", "scope", "composition",
        "reference", "read_at")  # fmt: skip


@pytest.fixture(scope="module")
def both(tiny_models):
    home = compolens.load(tiny_models["softmax"])
    names = [name for name in home.model.hook_dict if ".hook_resid_" in name or name.endswith("attn.hook_code")]
    names = [name for name in names if not name.endswith("resid_mid")]
    return home, compolens.adopt(home.model, home.task, sites={name: (name, "output") for name in names})


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adopted_network_has_the_same_tables(both, name):
    tables = [load_recipe("probes", name)(one, **SHORT[name])[0] for one in both]
    for i, table in enumerate(tables):
        control = table["control"].astype(str)
        kept = ~control.str.startswith("untrained") & ~control.isin(NEEDS_WEIGHTS)
        kept &= ~(table["reference"].isin(("untrained control",)) if "reference" in table else False)
        tables[i] = table[kept].reset_index(drop=True)
    home, adopted = tables
    assert len(home) == len(adopted) > 10
    for key in [key for key in KEYS if key in home]:
        assert home[key].astype(str).tolist() == adopted[key].astype(str).tolist(), key
    for column in ("value", "lo", "hi"):
        np.testing.assert_allclose(adopted[column].to_numpy(float), home[column].to_numpy(float), rtol=0, atol=1e-4)
    for choice in [column for column in ("chosen", "effective") if column in home]:
        assert home[choice].tolist() == adopted[choice].tolist(), "the same sites are chosen"
