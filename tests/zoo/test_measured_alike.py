"""A network of the project, adopted as if it came from elsewhere, is measured as at home: row by row, choice by choice."""

import numpy as np
import pytest

import compolens
from compolens import load_recipe

FEW = {"episodes": 64}
SHORT = {
    "generalization": FEW, "latent_code": FEW, "patching": FEW, "code_structure": FEW,
    "erase_code": FEW | {"draws": 2}, "inference_or_execution": FEW | {"fitted": 96, "searched": 4, "search_steps": 2},
    "swap_code": FEW | {"search_steps": 2, "draws": 2}, "swap_factor": FEW | {"search_steps": 2, "draws": 2},
    "nonlinear_code": FEW | {"fitted": 96}, "which_prior": {"episodes": 32, "tangent_episodes": 32, "iterations": 2},
    "components": {"episodes": 32}, "activation_sparsity": FEW | {"draws": 1}, "predictors": FEW,
    "repair": FEW | {"fitted": 96, "tuning_steps": 2, "draws": 1},
}  # fmt: skip
CATEGORICAL = {
    "attention_code": ("raven-softmax", FEW), "latent_geometry": ("raven-softmax", FEW | {"points": 50}),
    "repair": ("raven-softmax", FEW | {"fitted": 96, "tuning_steps": 2, "draws": 1}),
    "predictors": ("raven-softmax", FEW), "task_vectors": ("bursty", {"episodes": 32}),
}  # fmt: skip
"""On networks whose code has classes, or whose episodes show labels."""
NEEDS_WEIGHTS = ("row space only", "null space only")
"""What asks for the next linear map, which an adopted network does not show."""
NEEDS_UNTRAINED = ("untrained control", "frozen features", "linearised net")
"""References that are fitted to what `reinit=` makes; which reference is nearest depends on whether they are there."""
KEYS = ("metric", "split", "site", "role", "control", "layer", "dimension", "fit", "rank", "rung", "scope", "composition",
        "reference", "read_at", "head", "scale", "threshold", "renormalised", "draw", "label", "shown", "class",
        "part", "counterfactual", "component")  # fmt: skip


def _twice(folder):
    """The network at home, and adopted with the sites that it has by name."""
    home = compolens.load(folder)
    wanted = ("resid_pre", "resid_post", "attn.hook_code", "hook_pattern", "hook_z", "hook_attn_out", "hook_mlp_out")
    names = [name for name in home.model.hook_dict if name.endswith(wanted)]
    return home, compolens.adopt(home.model, home.task, sites={name: (name, "output") for name in names})


@pytest.fixture(scope="module")
def both(tiny_models):
    return _twice(tiny_models["softmax"])


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adopted_network_has_the_same_tables(both, name):
    _same_tables(both, name, SHORT[name])


@pytest.mark.parametrize("name", CATEGORICAL)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adopted_network_has_the_same_tables_of_classes(tiny_categorical_models, name):
    network, arguments = CATEGORICAL[name]
    _same_tables(_twice(tiny_categorical_models[network]), name, arguments)


def _same_tables(both, name, arguments):
    tables = [load_recipe("probes", name)(one, **arguments)[0] for one in both]
    for i, table in enumerate(tables):
        control = table["control"].astype(str)
        kept = ~control.str.contains("untrained") & ~control.isin(NEEDS_WEIGHTS)
        if "reference" in table:
            kept &= ~table["reference"].isin(NEEDS_UNTRAINED)
        if name == "which_prior":
            kept &= (table["metric"] == "distance") & (control == "")
        tables[i] = table[kept].reset_index(drop=True)
    home, adopted = tables
    assert len(home) == len(adopted) > 10
    for key in [key for key in KEYS if key in home]:
        assert home[key].astype(str).tolist() == adopted[key].astype(str).tolist(), key
    for column in ("value", "lo", "hi"):  # an answer that is reached exactly has no interval, one up to rounding has
        one, other = (table[column].fillna(table["value"]).to_numpy(float) for table in (adopted, home))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)
    for choice in [column for column in ("chosen", "effective") if column in home]:
        assert home[choice].tolist() == adopted[choice].tolist(), "the same sites are chosen"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_an_adopted_network_masks_counts_nowhere(both):
    """Its mask is not shown, and is what no weight is ever 0 outside of; within it softmax has no exact zero."""
    home, adopted = both
    mask = home.model.blocks[0].attn.mask
    assert mask is not None and not mask.all(), "else there is nothing to leave out"
    table, _ = load_recipe("probes", "activation_sparsity")(adopted, episodes=64, draws=1)
    zeros = table[(table["metric"] == "exact zeros") & (table["control"] == "")]
    assert len(zeros) == 14 and (zeros["value"] == 0).all()


HALVES = {
    "attn_out": ("attn", "output"),
    "mlp_out": ("mlp", "output"),
    "attn_in": ("ln1", "input"),
    "mlp_in": ("ln2", "input"),
}


@pytest.fixture(scope="module")
def by_halves(tiny_models):
    """The same network at home, and adopted with what attention layers and MLPs read and write."""
    home = compolens.load(tiny_models["softmax"])
    sites = {name: (name, "output") for name in home.model.hook_dict if ".hook_resid_p" in name}
    for layer in range(home.model.cfg.n_layers):
        for name, (part, side) in HALVES.items():
            sites[f"blocks.{layer}.hook_{name}"] = (f"blocks.{layer}.{part}", side)
    return home, compolens.adopt(home.model, home.task, sites=sites)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adopted_network_s_mlps_have_the_effects_that_they_have_at_home(by_halves):
    """Its attention layers are parts as a whole, since where its heads are was not said."""
    tables = [load_recipe("probes", "components")(one, episodes=48)[0] for one in by_halves]
    told = ("", "another code")  # the noise is drawn part by part, and an adopted network has no untrained control
    home, adopted = (table[table["control"].isin(told)] for table in tables)
    assert {"L0A", "L1A", "L0MLP", "L1MLP"} == set(adopted["component"]) - {""}
    key = ["metric", "split", "control", "counterfactual", "component"]
    mlps = [table[table["component"].str.endswith("MLP")].set_index(key)["value"].sort_index() for table in (home, adopted)]
    assert len(mlps[0]) > 20 and mlps[0].index.equals(mlps[1].index)
    np.testing.assert_allclose(mlps[1], mlps[0], rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adopted_network_s_edges_are_the_sums_of_those_at_home(by_halves):
    """Heads, queries, keys and values together are a layer; a circuit of all edges is the network, one of none its donor."""
    tables = [load_recipe("probes", "edges")(one, episodes=24, exact=4, draws=1)[0] for one in by_halves]
    scores = []
    for table in tables:
        rows = table[(table["metric"] == "attribution") & (table["control"] == "")]
        edges = rows["edge"].str.replace(r"(L\d+)H\d+", r"\1A", regex=True).str.replace(r"\.[qkv]$", "", regex=True)
        scores.append(rows.assign(edge=edges).groupby(["split", "edge"])["value"].sum())
    assert len(scores[1]) == 2 * (1 + 2 + 3 + 4 + 5) and scores[0].index.equals(scores[1].index)
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-3, atol=1e-5)
    whole = tables[1][(tables[1]["metric"] == "faithfulness") & tables[1]["share"].isin([0.0, 1.0])].dropna(subset="value")
    np.testing.assert_allclose(whole["value"], whole["share"], rtol=0, atol=1e-4)
