"""Whatever could be imported before the rooms were rearranged still can, is the same module, and says its new name."""

import importlib
import subprocess
import sys
import warnings

import pytest
import torch

import compolens
from compolens import recipes
from compolens.activations.streams import draw
from compolens.cli.flags import Parser
from compolens.cli.recipe_flags import add_recipe_flags
from compolens.foundation.moved import MOVED, MOVED_NAMES, MovedFinder, install
from compolens.interventions import interchange


@pytest.fixture
def trained(tiny_models):
    return compolens.load(tiny_models["softmax"])


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_module_of_the_new_one_and_says_so(old):
    sys.modules.pop(f"compolens.{old}", None)
    with pytest.warns(FutureWarning, match=f"compolens.{old} is now compolens.{MOVED[old]}; "):
        found = importlib.import_module(f"compolens.{old}")
    assert found is importlib.import_module(f"compolens.{MOVED[old]}")
    assert found.__name__ == f"compolens.{MOVED[old]}"


def test_new_names_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for new in MOVED.values():
            importlib.import_module(f"compolens.{new}")


def test_old_names_work_as_attributes_too():
    sys.modules.pop("compolens.oracles", None)
    vars(compolens).pop("oracles", None)
    with pytest.warns(FutureWarning, match="compolens.interventions.oracles"):
        assert compolens.oracles.code_features


def test_importing_the_package_and_its_public_names_warns_of_nothing_and_waits_for_no_other_package():
    """What TransformerLens uses in few functions takes a third of the time that it takes without them, and so long again does
    torch's compiler, which torch's optimizers import. Its interchange tools are quick, the package around them is not."""
    script = """
import sys, compolens, torch
from compolens.hooks import interchange_tools
from compolens.measures.optimizers import Adam
for name in compolens.__all__: getattr(compolens, name)
compolens.AdamW().build(torch.nn.Linear(2, 2)).step()
Adam(torch.nn.Linear(2, 2).parameters()).step()
interchange_tools().neuron_basis(3, [1])
print(*sorted({"datasets", "transformers", "pytest", "torch._dynamo"} & set(sys.modules)), "transformer_lens" in sys.modules)
"""
    command = [sys.executable, "-W", "error::FutureWarning:compolens", "-c", script]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == ["True"]


def test_installing_twice_is_installing_once():
    install()
    assert sum(isinstance(finder, MovedFinder) for finder in sys.meta_path) == 1


def test_nothing_of_an_old_name_is_left():
    for old, new in MOVED.items():
        assert new not in MOVED and old != new


@pytest.mark.parametrize(("old", "name"), [(old, name) for old, names in MOVED_NAMES.items() for name in names])
def test_a_function_that_moved_is_found_where_it_was(old, name):
    module = importlib.import_module(f"compolens.{old}")
    where, _, new = MOVED_NAMES[old][name].rpartition(".")
    with pytest.warns(FutureWarning, match=f"compolens.{old}.{name} is now compolens.{where}.{new}; "):
        found = getattr(module, name)
    assert found is getattr(importlib.import_module(f"compolens.{where}"), new)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        module.no_such_name  # noqa: B018


def test_sites_answer_to_their_old_field_and_models_to_their_old_methods(trained):
    site = compolens.activations.Site(1, "blocks.0.hook_resid_post", "context")
    with pytest.warns(FutureWarning, match=r"Site.site is now Site.hook_name"):
        assert site.site == site.hook_name
    with pytest.warns(FutureWarning, match=r"untrained_control\(\)"):
        old = trained.untrained_twin()
    new = trained.untrained_control().state_dict()
    assert all(torch.equal(value, new[name]) for name, value in old.state_dict().items())
    with pytest.warns(FutureWarning, match="why_no_untrained_control"):
        assert trained.why_no_twin == ""


def test_what_reads_a_site_is_still_found_where_it_was(trained):
    site = compolens.activations.Site(2, "blocks.1.hook_resid_post", "readout")
    with pytest.warns(FutureWarning, match=r"model\.reader\(\*site\)"):
        read = interchange.reader(trained.model, site)
    assert torch.equal(read, trained.model.reader(*site))


def test_a_recording_takes_the_untrained_control_under_its_old_name(trained, tmp_path):
    batches = {"test": list(draw(trained.task, "test", 8, 0, trained.device))}
    with pytest.warns(FutureWarning, match=r"record\(untrained=…\)"):
        compolens.record(
            trained.model, batches, ["hook_embed"], to=tmp_path / "r", run=trained.run, twin=trained.untrained_control()
        )
    assert (tmp_path / "r" / "untrained" / "hook_embed.npy").exists()


def test_recipes_and_flags_answer_to_their_old_names():
    assert recipes.locate("analyses", "verdicts") == recipes.locate("analyses", "diagnoses")
    parser = Parser()
    add_recipe_flags(parser, "analyses", ["rule_similarity"])
    assert [parser.parse_args([flag]).recipe_untrained for flag in ("--no-twins", "--no-untrained", "--twins")] == [
        False,
        False,
        True,
    ]
