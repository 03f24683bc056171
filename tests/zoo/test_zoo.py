"""The zoo: a folder loads as the model that was saved, or says in one line why it does not."""

import json
import os
import re
import shutil
from dataclasses import dataclass, replace

import pytest
import torch

from compolens import Run, SoftmaxTransformer, load, train, zoo
from compolens.foundation.configs import ConfigError
from compolens.foundation.files import SaveError, locked, read_tensors, write_tensors
from compolens.models import Architecture
from compolens.training import evaluate


@pytest.fixture(params=["softmax", "hypernetwork"])
def folder(request, tiny_models):
    return tiny_models[request.param]


@pytest.fixture
def copy(tiny_models, tmp_path):
    """A trained folder that may be damaged."""
    return shutil.copytree(tiny_models["softmax"], tmp_path / "copy")


def refusal(action, *arguments, **options):
    """The message, which is one line."""
    with pytest.raises(ConfigError) as caught:
        action(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# ---- what loads ------------------------------------------------------------------------------------------------------
def test_a_folder_loads_as_what_was_trained(folder, tiny_task):
    trained = load(folder)
    assert trained.task == trained.run.task == tiny_task
    assert trained.step == trained.run.steps == 2 and trained.folder == folder and trained.name == folder.name
    assert trained.device == torch.device("cpu") and not trained.model.training
    weights, metadata = read_tensors(folder / "weights.safetensors")
    assert metadata == {"step": 2}
    state = trained.model.state_dict()
    assert state.keys() == weights.keys() and all(torch.equal(state[name], weights[name]) for name in weights)


def test_a_loaded_model_scores_what_the_folder_says(folder):
    trained, scores = load(folder), json.loads((folder / "scores.json").read_text())
    for split in ("train", "test", "ood"):
        again = evaluate(trained.model, trained.task, split, 256, "final/0", batch=256)
        assert again.score == pytest.approx(scores[split]["score"], abs=1e-6)
        assert again.se == pytest.approx(scores[split]["se"], abs=1e-6)


def test_what_is_no_folder_is_refused_with_what_to_write():
    with pytest.raises(ConfigError, match=r"takes a model's folder, such as .*; got None"):
        load(None)


def test_loading_twice_gives_equal_models_that_share_nothing(folder):
    first, second = load(folder).model, load(folder).model
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert any(parameter.any() for parameter in second.parameters())


def test_the_kept_steps_load(folder, tiny_task):
    assert zoo.kept_steps(folder) == [0, 1, 2]
    models = {step: load(folder, step=step) for step in (0, 1, 2)}
    assert [trained.step for trained in models.values()] == [0, 1, 2]
    weights = [torch.cat([p.flatten() for p in trained.model.parameters()]) for trained in models.values()]
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])
    built = models[0].run.build().state_dict()
    assert all(torch.equal(value, built[name]) for name, value in models[0].model.state_dict().items())


def test_the_untrained_control_is_the_model_as_initialised(folder):
    trained, start = load(folder), load(folder, step=0)
    untrained = trained.untrained_control().state_dict()
    assert all(torch.equal(value, untrained[name]) for name, value in start.model.state_dict().items())


def test_training_into_a_finished_folder_changes_nothing(copy):
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    scores = train(zoo.read_run(copy), copy)
    assert scores == json.loads((copy / "scores.json").read_text())
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()} == before


# ---- a class from outside --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Mine(Architecture):
    """An architecture that the package does not know."""

    width: int = 8

    def build(self, **dimensions):
        return SoftmaxTransformer(n_layers=1, d_model=self.width, n_heads=1).build(**dimensions)


@pytest.fixture(scope="module")
def foreign(tiny_task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign") / "mine"
    train(Run(Mine(width=12), tiny_task, steps=1, batch_size=4, evaluations=1, evaluation_episodes=32), folder)
    return folder


def test_a_class_from_outside_loads_when_it_is_handed_over(foreign):
    trained = load(foreign, classes=[Mine])
    assert trained.run.architecture == Mine(width=12) and trained.model.cfg.d_model == 12


def test_a_class_from_outside_is_refused_otherwise(foreign):
    message = refusal(load, foreign)
    assert "unknown class 'Mine'" in message and "classes=[Mine]" in message and "--with" in message
    for wrong in (Mine, "Mine", ["Mine"]):
        assert "classes must be a list of classes, such as classes=[MyNet], got" in refusal(load, foreign, classes=wrong)
    assert "config.json" in message


# ---- what does not load ----------------------------------------------------------------------------------------------
def test_a_step_that_was_not_kept_names_those_that_were(folder):
    message = refusal(load, folder, step=7)
    assert "keeps no weights of step 7" in message and "[0, 1, 2]" in message


def test_a_folder_without_a_model_is_refused(tmp_path):
    assert "holds no trained model" in refusal(load, tmp_path)
    assert "holds no trained model" in refusal(load, tmp_path / "nowhere")


def test_an_unfinished_folder_says_how_to_go_on(copy):
    (copy / "scores.json").unlink()
    message = refusal(load, copy)
    assert "is not finished" in message and "compolens train" in message


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1], ids=lambda keep: f"cut at {keep}")
def test_truncated_weights_are_refused(copy, keep):
    path = copy / "weights.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    message = refusal(load, copy)
    assert "truncated or corrupted" in message and str(path) in message


@pytest.mark.parametrize("content", [b"\x80\x04garbage" * 50, b'{"not": "safetensors"}', b"\xff" * 64])
def test_files_that_are_no_weights_are_refused(copy, content):
    (copy / "weights.safetensors").write_bytes(content)
    assert "truncated or corrupted" in refusal(load, copy)


def test_corrupted_weights_of_a_kept_step_are_refused(copy):
    path = copy / "steps" / "1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "1.safetensors" in refusal(load, copy, step=1)
    assert load(copy).step == 2


def test_missing_weights_are_refused(copy):
    (copy / "weights.safetensors").unlink()
    assert "there is no" in refusal(load, copy)


def test_weights_of_another_model_are_refused(copy, tiny_models):
    shutil.copy(tiny_models["hypernetwork"] / "weights.safetensors", copy / "weights.safetensors")
    assert "does not fit its config.json" in refusal(load, copy)


@pytest.mark.parametrize("change", ["missing", "extra", "reshaped"])
def test_weights_that_do_not_fit_exactly_are_refused(copy, change):
    tensors, metadata = read_tensors(copy / "weights.safetensors")
    if change == "missing":
        del tensors["unembed.b_U"]
    elif change == "extra":
        tensors["unembed.b_V"] = torch.zeros(2)
    else:
        tensors["unembed.b_U"] = torch.zeros(3)
    write_tensors(copy / "weights.safetensors", tensors, metadata)
    message = refusal(load, copy)
    assert "does not fit its config.json" in message and "unembed.b_" in message


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", '"run"', "{}", '{"format": 1}', '{"run": null}', '{"run": []}'])
def test_a_configuration_that_describes_no_run_is_refused(copy, text):
    (copy / "config.json").write_text(text)
    assert "config.json" in refusal(load, copy)


def test_a_configuration_that_is_no_text_is_refused(copy):
    (copy / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "not valid JSON" in refusal(load, copy)


def test_a_configuration_that_describes_something_else_is_refused(copy):
    edit(copy / "config.json", lambda config: config.update(run={"class": "AdamW"}))
    assert "describes a AdamW, not a Run" in refusal(load, copy)


@pytest.mark.parametrize("part", [(), ("run",), ("run", "architecture"), ("run", "task"), ("run", "optimizer")], ids=str)
def test_an_unknown_key_is_refused_wherever_it_is(copy, part):
    def change(config):
        for key in part:
            config = config[key]
        config["wieght_decay"] = 0

    edit(copy / "config.json", change)
    message = refusal(load, copy)
    assert "'wieght_decay'" in message and "config.json" in message


@pytest.mark.parametrize("part", ["architecture", "task"])
@pytest.mark.parametrize("value", [None, 3, {"class": "AdamW"}, {"class": "os.system"}], ids=str)
def test_a_run_with_a_part_of_the_wrong_kind_is_refused(copy, part, value):
    edit(copy / "config.json", lambda config: config["run"].update({part: value}))
    assert "config.json" in refusal(load, copy)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"step": "two"}'])
def test_scores_that_are_damaged_are_refused(copy, text):
    (copy / "scores.json").write_text(text)
    assert "scores.json" in refusal(load, copy)


@pytest.mark.parametrize("device", ["x", "", "cuda:99", "mps:7"])
def test_a_device_that_is_not_here_is_refused(folder, device):
    assert f"device {device!r} cannot be used" in refusal(load, folder, device=device)


@pytest.mark.parametrize("name", ["config.json", "scores.json", "weights.safetensors"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_named_and_not_read(copy, name, kind):
    """A device or a pipe could be read for ever."""
    path = copy / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    message = refusal(load, copy)
    assert name in message and ("is no file" in message or "no config.json" in message)


@pytest.mark.parametrize("name", ["config.json", "scores.json", "weights.safetensors", "digests.json", ".lock"])
def test_a_link_out_of_a_folder_is_not_followed(copy, name, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes((copy / name).read_bytes() if name != ".lock" else b"dear")
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(outside)
    if name == ".lock":
        with pytest.raises(SaveError, match="not followed"), locked(copy):
            pass
        assert outside.read_bytes() == b"dear"
        return
    message = refusal(load, copy)
    assert name in message and "leads out of" in message
    (copy / name).unlink()
    (copy / "inside").write_bytes(outside.read_bytes())
    (copy / name).symlink_to("inside")
    (tmp_path / "link").symlink_to(copy)
    assert load(tmp_path / "link").step == load(copy).step  # a link within the folder, and one to the folder


def test_a_configuration_of_lists_in_lists_without_end_is_refused(copy):
    text = (copy / "config.json").read_text()
    for depth in (400, 900, 100_000):
        deep = '"held_out": ' + "[" * depth + "]" * depth
        (copy / "config.json").write_text(re.sub(r'"held_out": null', deep, text))
        assert "config.json" in refusal(load, copy)
        (copy / "config.json").write_text('{"format": 1, "run": ' + '{"class": ' * depth + "1" + "}" * depth + "}")
        assert "config.json" in refusal(load, copy)


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "a\0b"], ids=["long", "deep", "null"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path, name):
    refusal(load, name)
    refusal(load, f"{tmp_path}/{name}")


def test_loading_changes_nothing_in_the_folder(copy):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    load(copy)
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


# ---- overview --------------------------------------------------------------------------------------------------------
def test_an_overview_says_what_a_model_is_and_how_it_scores(folder):
    row, scores = zoo.overview(folder), json.loads((folder / "scores.json").read_text())
    assert row["model"] == folder.name and row["task"] == "Hyperteacher" and row["steps"] == 2
    assert row["architecture"] == type(load(folder).run.architecture).__name__
    assert row["parameters"] == sum(p.numel() for p in load(folder).model.parameters())
    assert [row[split] for split in ("train", "test", "ood")] == [scores[split]["score"] for split in ("train", "test", "ood")]
    assert "note" not in row


def test_an_overview_of_an_unfinished_model_says_so(copy):
    (copy / "scores.json").unlink()
    assert zoo.overview(copy)["note"].startswith("not finished: step ")


def test_an_overview_of_what_does_not_load_says_why(copy, foreign):
    assert "unknown class 'Mine'" in zoo.overview(foreign)["note"]
    assert "note" not in zoo.overview(foreign, classes=[Mine])
    (copy / "config.json").write_text("{")
    assert "not valid JSON" in zoo.overview(copy)["note"]


def test_every_model_that_is_trained_here_has_an_untrained_control(tiny_models):
    trained = load(tiny_models["softmax"])
    (own, model), (control, untrained) = trained.with_untrained_control()
    assert trained.why_no_untrained_control == own == "" and control == "untrained"
    assert model is trained.model and untrained is not trained.model


@dataclass(frozen=True)
class Unscaled(Architecture):
    """Its embedding as initialised may be infinite."""

    infinite: bool = False

    def build(self, **dimensions):
        model = SoftmaxTransformer(n_layers=2, d_model=8, n_heads=1).build(**dimensions)
        with torch.no_grad():
            model.W_E.mul_(float("inf") if self.infinite else 1.0)
        return model


def test_an_untrained_control_of_ones_own_class_that_is_not_finite_says_so(tiny_models, tiny_task):
    trained = load(tiny_models["softmax"])
    own = replace(trained, run=replace(trained.run, architecture=Unscaled(infinite=True)))
    why = own.why_no_untrained_control
    assert why.startswith("the untrained control is not finite at") and why.endswith("let Unscaled start so that it is")
    assert [control for control, _ in own.with_untrained_control()] == [""]
    assert replace(own, run=replace(trained.run, architecture=Unscaled())).why_no_untrained_control == ""
