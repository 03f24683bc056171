"""Sharing: what is pushed to the hub is what loads from it, and nothing but a model folder's files ever passes."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pandas as pd
import pytest
import torch
from huggingface_hub import errors

from compolens import cli, tables, zoo
from compolens.foundation import digests
from compolens.foundation.configs import ConfigError
from compolens.zoo import hub as sharing

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The hub, as far as a model needs it: repositories in the layout of the hub's cache, in a local folder."""

    def __init__(self, root):
        self.root = root
        self.calls = []

    def repository(self, name):
        return self.root / f"models--{name.replace('/', '--')}"

    def snapshot(self, name, revision="main"):
        return self.repository(name) / "snapshots" / (self.repository(name) / "refs" / revision).read_text()

    def create_repo(self, name, **options):
        self.calls.append(("create_repo", name, options))
        (self.repository(name) / "refs").mkdir(parents=True, exist_ok=True)
        return f"https://huggingface.co/{name}"

    def create_branch(self, name, branch, **options):
        self.calls.append(("create_branch", name, branch))

    def upload_folder(self, *, repo_id, folder_path, revision, commit_message, delete_patterns):
        self.calls.append(("upload_folder", repo_id, revision))
        sha = f"{len(self.calls):02d}{SHA[2:]}"
        shutil.copytree(folder_path, self.repository(repo_id) / "snapshots" / sha)
        (self.repository(repo_id) / "refs" / (revision or "main")).write_text(sha)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Pushing goes to a local folder; loading is the real client, which finds that folder as its cache."""
    made, download = Hub(tmp_path / "hub"), huggingface_hub.snapshot_download

    def from_cache(name, **options):
        return download(name, cache_dir=made.root, local_files_only=True, **options)

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: made)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", from_cache)
    return made


@pytest.fixture
def folder(tiny_models, tmp_path):
    """A finished model with kept steps and a table."""
    copy = shutil.copytree(tiny_models["softmax"], tmp_path / "mine")
    row = dict.fromkeys(tables.COLUMNS, "") | {"metric": "score", "value": 0.25, "control": "untrained", "n": 3}
    provenance = {"weights": tables.file_digest(copy / "weights.safetensors"), "recipe": "", "arguments": {}, "steps": [2]}
    tables.save(copy, "probed", pd.DataFrame([row]), provenance, pd.DataFrame({"score": [0.5]}))
    return copy


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refusal(action, *arguments, **options):
    with pytest.raises(ConfigError) as caught:
        action(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- there and back --------------------------------------------------------------------------------------------------
def test_what_is_pushed_is_what_loads(hub, folder):
    assert sharing.push(folder, "me/mine") == "https://huggingface.co/me/mine"
    there, here = sharing.load("me/mine"), zoo.load(folder)
    assert there.folder == hub.snapshot("me/mine") and there.run == here.run and there.step == here.step == 2
    ours = here.model.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in there.model.state_dict().items())
    before, after = contents(folder), contents(there.folder)
    assert before.keys() == after.keys() and "tables/probed.episodes.parquet" in after and "steps/1.safetensors" in after
    assert [name for name in before if before[name] != after[name]] == ["README.md"]
    pd.testing.assert_frame_equal(tables.read(there.folder, "probed"), tables.read(folder, "probed"))
    first = sharing.load("me/mine", step=0)
    assert first.step == 0 and not torch.equal(first.model.state_dict()["embed.W_E"], ours["embed.W_E"])


def test_a_packed_table_is_pushed_and_read_from_there(hub, folder):
    plain = tables.read(folder, "probed")
    subprocess.run(["gzip", "-n", folder / "tables" / "probed.csv"], check=True)
    sharing.push(folder, "me/mine")
    there = hub.snapshot("me/mine")
    assert "tables/probed.csv.gz" in contents(there) and tables.names(there) == ["probed"]
    pd.testing.assert_frame_equal(tables.read(there, "probed"), plain)


def test_pushing_changes_nothing_here(hub, folder):
    before = contents(folder)
    sharing.push(folder, "me/mine")
    assert contents(folder) == before


def test_the_card_gets_a_head_once_and_says_how_to_load(hub, folder):
    sharing.push(folder, "me/mine")
    card = (hub.snapshot("me/mine") / "README.md").read_text()
    head, body = card.removeprefix("---\n").split("---\n", 1)
    assert "library_name: compolens" in head and (folder / "README.md").read_text() in body
    assert 'compolens.load("me/mine")' in body
    sharing.push(sharing.fetch("me/mine"), "you/again")
    assert (hub.snapshot("you/again") / "README.md").read_text() == card.replace("me/mine", "you/again")


def test_revisions_are_branches(hub, folder):
    sharing.push(folder, "me/mine")
    assert sharing.push(folder, "me/mine", revision="later", private=True) == "https://huggingface.co/me/mine/tree/later"
    assert [call[0] for call in hub.calls] == ["create_repo", "upload_folder", "create_repo", "create_branch", "upload_folder"]
    assert [call[2]["private"] for call in hub.calls if call[0] == "create_repo"] == [None, True]
    newest, later = sharing.load("me/mine"), sharing.load("me/mine", revision="later")
    assert newest.folder == hub.snapshot("me/mine") != later.folder == hub.snapshot("me/mine", "later")


def test_a_folder_here_comes_before_the_hub(hub, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    shutil.copytree(folder, Path("me") / "mine")
    assert sharing.load("me/mine").folder == Path("me/mine") and sharing.load(folder).folder == folder
    assert "leave out revision='main'" in refusal(sharing.load, "me/mine", revision="main")


@pytest.mark.parametrize("name", ["runs/typo", "trained_models/F-softmax-9", "mine/softmax"])
def test_a_mistyped_folder_is_said_to_be_none_and_the_hub_is_not_asked(hub, folder, monkeypatch, name):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(sharing, "fetch", lambda *_: pytest.fail("the hub was asked"))
    message = refusal(sharing.load, name)
    assert f"there is no folder {name}" in message and f"load(compolens.zoo.hub.fetch({name!r}))" in message


def test_a_mistyped_folder_is_answered_with_those_that_are_there(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    shutil.copytree(folder, Path("some") / "softmax-0")
    assert "there is no folder some/sotfmax-0; did you mean 'softmax-0'?" in refusal(sharing.load, "some/sotfmax-0")


# ---- what does not pass ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("extra", ["model.py", "weights.pkl", "tables/odd.py", "steps/1.pt", "notes/config.json", ".env"])
def test_other_files_are_refused_at_push(hub, folder, extra):
    (folder / extra).parent.mkdir(exist_ok=True)
    (folder / extra).write_text("raise SystemExit('executed')\n")
    message = refusal(sharing.push, folder, "me/mine")
    assert extra in message and "no part of a model folder" in message and not hub.calls


@pytest.mark.parametrize("litter", [".lock", "resume.safetensors", "tables/probed.lock"])
def test_what_trainings_leave_behind_is_not_sent(hub, folder, litter):
    (folder / litter).write_text("")
    sharing.push(folder, "me/mine")
    assert litter not in contents(hub.snapshot("me/mine"))


def test_other_files_are_not_asked_for(hub, folder, monkeypatch):
    """The client itself filters by these patterns: what a repository holds besides never reaches this machine."""
    from huggingface_hub.utils import filter_repo_objects

    held = [*contents(folder), "model.py", "weights.pkl", "pytorch_model.bin", "tables/run.py", "data/config.json"]
    assert sorted(filter_repo_objects(held, allow_patterns=list(sharing.FILES))) == sorted(contents(folder))
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **given: asked.append(given) or str(folder))
    sharing.fetch("me/mine")
    assert asked == [{"revision": None, "allow_patterns": list(sharing.FILES)}]


def test_other_files_in_the_cache_are_never_run(hub, folder):
    sharing.push(folder, "me/mine")
    for name in ("model.py", "__init__.py", "weights.pkl"):
        (hub.snapshot("me/mine") / name).write_text("raise SystemExit('executed')\n")
    assert sharing.load("me/mine").step == 2


def test_a_class_from_outside_has_to_be_handed_over(hub, folder):
    mine = type("Mine", (type(zoo.read_run(folder).architecture),), {})
    config = json.loads((folder / "config.json").read_text())
    config["run"]["architecture"]["class"] = "Mine"
    (folder / "config.json").write_text(json.dumps(config))
    digests.take(folder)
    assert "unknown class 'Mine'" in refusal(sharing.push, folder, "me/mine") and not hub.calls
    sharing.push(folder, "me/mine", classes=[mine])
    assert "classes=[Mine]" in refusal(sharing.load, "me/mine")
    assert isinstance(sharing.load("me/mine", classes=[mine]).run.architecture, mine)


# ---- what cannot be --------------------------------------------------------------------------------------------------
def test_an_unfinished_or_broken_folder_is_refused(hub, folder, tmp_path):
    (folder / "scores.json").rename(tmp_path / "scores.json")
    assert "is not finished" in refusal(sharing.push, folder, "me/mine")
    (tmp_path / "scores.json").rename(folder / "scores.json")
    (folder / "weights.safetensors").write_bytes((folder / "weights.safetensors").read_bytes()[:100])
    assert "weights.safetensors changed after it was written" in refusal(sharing.push, folder, "me/mine")
    assert "holds no trained model" in refusal(sharing.push, tmp_path, "me/mine")
    assert not hub.calls


@pytest.mark.parametrize("name", ["tables/stolen.csv", "README.md", "steps/7.safetensors", "tables/x.json", "tables"])
def test_nothing_that_lies_elsewhere_is_sent(hub, folder, tmp_path, name):
    """A link that leads out of the folder, to a file or to a folder, or to what is no file."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "stolen.csv").write_text("secret")
    path = folder / name
    if name == "tables":
        shutil.rmtree(path)
        path.symlink_to(private)
    else:
        path.unlink(missing_ok=True)
        path.symlink_to(private / "stolen.csv")
    message = refusal(sharing.push, folder, "me/mine")
    assert "leads out of itself" in message and name in message and not hub.calls
    path.unlink()
    if name != "tables":
        os.mkfifo(path)
        assert "what is no file" in refusal(sharing.push, folder, "me/mine") and not hub.calls


def test_links_inside_a_folder_and_the_hubs_own_are_followed(hub, folder, tmp_path):
    (folder / "tables" / "same.csv").symlink_to("probed.csv")
    sharing.push(folder, "me/mine")
    fetched = sharing.fetch("me/mine")
    blobs = fetched.parents[1] / "blobs"
    blobs.mkdir()
    (fetched / "weights.safetensors").rename(blobs / "0123")
    (fetched / "weights.safetensors").symlink_to("../../blobs/0123")  # as the hub's cache has it
    assert contents(fetched)["tables/same.csv"] == (folder / "tables" / "probed.csv").read_bytes()
    sharing.push(fetched, "me/again")
    assert sharing.load("me/again").step == 2


@pytest.mark.parametrize("name", ["mine", "me/mine/too", "../mine", "/abs/mine", "me/", "me/mi ne", ""])
def test_a_name_that_is_none_is_refused(hub, folder, name):
    assert "owner/name" in refusal(sharing.push, folder, name)
    assert "owner/name" in refusal(sharing.fetch, name)
    if name:
        assert "holds no trained model" in refusal(sharing.load, name)


def test_a_model_that_is_nowhere_says_so(hub):
    message = refusal(sharing.load, "me/absent")
    assert "there is no folder me/absent" in message and "the hub gave no model" in message


def test_a_repository_without_a_model_says_so(hub, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("# of something else\n")
    hub.create_repo("me/other")
    hub.upload_folder(repo_id="me/other", folder_path=tmp_path / "other", revision=None, commit_message="", delete_patterns=[])
    assert "holds no compolens model" in refusal(sharing.load, "me/other")


def answer(status):
    request = SimpleNamespace(method="POST", url="https://hub")
    return SimpleNamespace(headers={}, status_code=status, request=request, history=[], text="")


FAILURES = {
    "not logged in": (errors.LocalTokenNotFoundError("x"), "type: hf auth login"),
    "no repository": (errors.RepositoryNotFoundError("x", response=answer(404)), "there is no such repository"),
    "no revision": (errors.RevisionNotFoundError("x", response=answer(404)), "no such revision"),
    "offline": (errors.OfflineModeIsEnabled("x"), "HF_HUB_OFFLINE is set"),
    "refused": (errors.HfHubHTTPError("403: no right to\nwrite here", response=answer(403)), "no right to write here"),
    "no network": (ConnectionError("[Errno -2] Name or service not known"), "it cannot be reached from here"),
    "no network, said by the HTTP library": (errors.HfHubHTTPError.__bases__[0]("no route"), "it cannot be reached from here"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_the_hub_refuses_is_one_line(hub, folder, monkeypatch, failure):
    error, expected = FAILURES[failure]
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(hub, "create_repo", fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert expected in refusal(sharing.push, folder, "me/mine")
    assert expected in refusal(sharing.load, "me/mine")


# ---- on the command line ---------------------------------------------------------------------------------------------
def test_the_command_pushes_and_prints_the_address(hub, folder, capsys):
    assert cli.main(["push", str(folder), "me/mine", "--private", "--revision", "later"]) == 0
    assert capsys.readouterr().out == "https://huggingface.co/me/mine/tree/later\n"
    assert hub.calls[0] == ("create_repo", "me/mine", {"private": True, "exist_ok": True})
    assert sharing.load("me/mine", revision="later").step == 2


def test_the_command_refuses_in_one_line(hub, folder, capsys):
    (folder / "evil.py").write_text("")
    assert cli.main(["push", str(folder), "me/mine"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("compolens: error: ") and captured.err.count("\n") == 1 and "evil.py" in captured.err
