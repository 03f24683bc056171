"""Recordings: what is written is what was seen, probes find the same numbers in it, and what it cannot know it refuses."""

import contextlib
import json
import resource
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import compolens
from compolens import cli
from compolens.activations.reading import UNFINISHED, NotRecorded, Recording, is_recording
from compolens.activations.sites import residual_sites
from compolens.activations.streams import draw, intervene, record
from compolens.foundation import digests
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import ConfigError, DoesNotApply
from compolens.foundation.files import DamagedFile, SaveError
from compolens.recipes import run_probe
from compolens.tasks import SPLITS, FixedEpisodes, SRaven
from compolens.tasks.fixed import stored
from compolens.zoo.folders import TrainedModel, load

N = 80
SITES = ["blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post", "blocks.1.attn.hook_code"]


def batches(task, n=N, splits=SPLITS, batch=32):
    return {split: draw(task, split, n, 0, batch=batch) for split in splits}


def first(task, split):
    """The first 32 of the episodes that are recorded of a split."""
    return next(iter(batches(task)[split]))


def recorded(trained, folder, sites=SITES, untrained=True, **settings):
    untrained = trained.untrained_control() if untrained else None
    return record(
        trained.model,
        batches(trained.task),
        sites,
        folder,
        run=trained.run,
        step=trained.step,
        untrained=untrained,
        **settings,
    )


@pytest.fixture(scope="module")
def trained(tiny_models):
    return load(tiny_models["softmax"])


@pytest.fixture(scope="module")
def recording(trained, tmp_path_factory):
    """Every split, with the untrained control. Read only: copy to edit."""
    return recorded(trained, tmp_path_factory.mktemp("recordings") / "softmax")


@pytest.fixture(scope="module")
def replayed(recording):
    return load(recording.folder)


# ---- written and read ------------------------------------------------------------------------------------------------
def test_a_recording_reads_back_as_what_was_recorded(trained, recording):
    for split in SPLITS:
        seen = list(record(trained.model, batches(trained.task)[split], SITES))
        part = recording.part(split)
        for site in SITES:
            np.testing.assert_array_equal(recording[site][part], torch.cat([a.sites[site] for a in seen]))
        np.testing.assert_array_equal(recording["prediction"][part], torch.cat([a.prediction for a in seen]))
        for name in ("tokens", "targets", "composition"):
            np.testing.assert_array_equal(recording[name][part], torch.cat([getattr(a.episodes, name) for a in seen]))
        codes = torch.cat([a.episodes.codes["modules"] for a in seen])
        np.testing.assert_array_equal(recording.codes["modules"][part], codes)
        assert set(recording.split[part]) == {split}
    assert len(recording) == len(recording["tokens"]) == 3 * N and list(recording.rows) == list(SPLITS)
    assert "train 80, test 80, ood 80 episodes" in repr(recording)


def test_arrays_are_mapped_and_read_only(recording):
    site = Recording(recording.folder)[SITES[0]]
    assert isinstance(site, np.memmap) and not site.flags.writeable
    with pytest.raises(
        ConfigError, match=r"holds no array 'blocks.1.hook_resid_pst'; did you mean 'blocks.1.hook_resid_post'"
    ):
        recording["blocks.1.hook_resid_pst"]


def test_any_tool_can_read_the_files(recording):
    array = np.load(recording.folder / f"{SITES[1]}.npy")
    assert array.flags.c_contiguous and array.dtype == np.float32
    np.testing.assert_array_equal(array, recording[SITES[1]])


def test_episodes_come_back_whole(trained, recording):
    drawn = first(trained.task, "ood")
    rows = recording.rows_of(drawn.tokens[:7])
    stored = recording.take(rows)
    for name in ("tokens", "targets", "composition", "inputs"):
        assert torch.equal(getattr(stored, name), getattr(drawn, name)[:7])
    assert {k: v.tolist() for k, v in stored.nuisances.items()} == {k: v[:7].tolist() for k, v in drawn.nuisances.items()}


def test_half_precision_rounds_activations_and_nothing_else(trained, recording, tmp_path):
    half = recorded(trained, tmp_path / "half", untrained=False, half=True)
    assert half[SITES[0]].dtype == np.float16 and half["prediction"].dtype == half["tokens"].dtype == np.float32
    np.testing.assert_array_equal(half[SITES[0]], recording[SITES[0]].astype(np.float16))
    batch = first(trained.task, "ood")
    _, cache = load(half.folder).model.run_with_cache(batch.tokens)
    assert cache[SITES[0]].dtype == torch.float32


def test_what_a_mask_hides_fits_into_float16(tiny_models, tmp_path):
    hidden = "blocks.0.attn.hook_attn_scores"
    kept = [
        recorded(load(tiny_models["softmax"]), tmp_path / name, untrained=False, half=half, sites=[hidden])[hidden]
        for name, half in (("half", True), ("whole", False))
    ]
    assert kept[0].dtype == np.float16 and np.isneginf(kept[1]).any()
    np.testing.assert_array_equal(np.isneginf(kept[0]), np.isneginf(kept[1]))


def test_what_float16_cannot_hold_is_an_error(trained, tmp_path):
    large = load(trained.folder)
    with torch.no_grad():
        large.model.embed.W_E.mul_(1e6)
    with pytest.raises(ConfigError, match=r"blocks.0.hook_resid_pre reaches .*more than float16 can hold"):
        recorded(large, tmp_path / "o", untrained=False, half=True)


def test_scores_are_those_of_the_recorded_episodes(trained, recording):
    scores = json.loads((recording.folder / "scores.json").read_text())
    for split in SPLITS:
        drawn = list(batches(trained.task)[split])
        prediction = torch.cat([trained.model(b.tokens) for b in drawn])
        expected = trained.task.score(prediction, torch.cat([b.targets for b in drawn]))
        assert scores[split]["score"] == pytest.approx(expected, abs=1e-6) and scores[split]["episodes"] == N


# ---- not whole, not free ---------------------------------------------------------------------------------------------
def test_an_interrupted_recording_does_not_look_whole(trained, tmp_path):
    def breaking():
        yield next(iter(draw(trained.task, "ood", 4, 0)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(trained.model, {"ood": breaking()}, SITES, tmp_path / "o", run=trained.run)
    assert (tmp_path / "o" / f"{SITES[0]}.npy").exists() and is_recording(tmp_path / "o")
    for opened in (Recording, FixedEpisodes.compositions):
        with pytest.raises(ConfigError):
            opened(
                tmp_path / "o" if opened is Recording else FixedEpisodes(tmp_path / "o"),
                *([] if opened is Recording else ["ood"]),
            )
    with pytest.raises(ConfigError):
        load(tmp_path / "o")
    again = recorded(trained, tmp_path / "o", untrained=False)  # what was left behind may be written over
    assert len(again) == 3 * N and not (tmp_path / "o" / UNFINISHED).exists()


@pytest.fixture
def no_room():
    """A context in which this process may write no file of more than some bytes, as on a disk that is full by then."""

    @contextlib.contextmanager
    def up_to(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return up_to


@pytest.mark.parametrize("size", [10, 5_000, 20_000])
def test_a_recording_for_which_there_is_no_room_names_a_path_and_leaves_nothing(trained, tmp_path, no_room, size):
    place = tmp_path / "deep" / "o"
    with no_room(size), pytest.raises(SaveError, match=rf"could not write {place}.*: File too large; nothing is left of it"):
        recorded(trained, place)
    assert not place.exists()
    with no_room(size), pytest.raises(OSError, match=r"could not (write|save)") as caught:
        FixedEpisodes.write(place, **fixed_arrays(trained.task))
    assert str(place) in str(caught.value) and not place.exists()


def fixed_arrays(task):
    """Episodes enough for files of some kB."""
    drawn = [(s, c, task.sample(24, s, task.rng(c, s), [c])) for s in SPLITS for c in task.compositions(s)]
    parts = {name: torch.cat([getattr(e, name) for *_, e in drawn]) for name in ("tokens", "targets", "composition")}
    return parts | {"split": [s for s, *_ in drawn for _ in range(24)], "answers": task.answers}


def test_what_never_began_leaves_nothing_behind(trained, tmp_path):
    with pytest.raises(ConfigError, match="need at least one episode, got 0"):
        record(trained.model, {"ood": draw(trained.task, "ood", 0, 0)}, SITES, tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_nothing_is_written_over(trained, recording, tmp_path):
    with pytest.raises(ConfigError, match="holds a recording already; delete it"):
        recorded(trained, recording.folder)
    with pytest.raises(ConfigError, match="holds a trained model; choose another folder"):
        recorded(trained, trained.folder)


def test_a_split_may_be_one_batch(trained, tmp_path):
    (drawn,) = draw(trained.task, "ood", 4, 0)
    (seen,) = record(trained.model, drawn, SITES)
    for name, one in (("episodes", drawn), ("seen", seen)):
        kept = record(trained.model, {"ood": one}, SITES, tmp_path / name)
        assert np.array_equal(kept["tokens"], drawn.tokens) and np.array_equal(kept[SITES[0]], seen.sites[SITES[0]])


def test_bad_requests_are_refused(trained, tmp_path):
    model, to = trained.model, tmp_path / "o"
    with pytest.raises(ConfigError, match=r'which split its episodes are of: record\(model, \{"ood": batches\}'):
        record(model, draw(trained.task, "ood", 4, 0), SITES, to)
    with pytest.raises(ConfigError, match=r"several splits are recorded to a folder: record\(…, to=FOLDER\)"):
        record(model, batches(trained.task), SITES)
    with pytest.raises(ConfigError, match="no split 'odd'; did you mean 'ood'"):
        record(model, {"odd": draw(trained.task, "ood", 4, 0)}, SITES, to)
    with pytest.raises(ConfigError, match=r"no hook point 'blocks.0.hook_resid_pst'; did you mean"):
        record(model, batches(trained.task), ["blocks.0.hook_resid_pst"], to)
    with pytest.raises(ConfigError, match="name at least one hook point"):
        record(model, batches(trained.task), [], to)
    with pytest.raises(ConfigError, match="no episode came"):
        record(model, {"ood": []}, SITES, to)
    assert not to.exists()


def test_a_folder_that_was_tampered_with_is_named(recording, tmp_path):
    folder = tmp_path / "o"
    shutil.copytree(recording.folder, folder)
    with open(folder / "tokens.npy", "r+b") as file:
        file.truncate(5000)
    with pytest.raises(ConfigError, match=r"tokens\.npy changed after it was written; write the folder again"):
        Recording(folder)["tokens"]
    (folder / "recording.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not describe a recording"):
        Recording(folder)


@pytest.mark.parametrize("place", [0, 0.5, -1])
def test_a_large_array_is_compared_by_blocks_and_by_check_as_a_whole(recording, tmp_path, monkeypatch, capsys, place):
    monkeypatch.setattr(stored, "LOOKED_THROUGH", 2000)
    monkeypatch.setattr(digests, "BLOCKS", 4)
    monkeypatch.setattr(digests, "BLOCK", 200)
    folder = tmp_path / "o"
    shutil.copytree(recording.folder, folder)
    manifest = json.loads((folder / stored.MANIFEST).read_text())
    stored.write_manifest(folder, {k: v for k, v in manifest.items() if k not in ("format", "files", digests.SEAL)})
    path = folder / "tokens.npy"
    content = bytearray(path.read_bytes())
    assert (
        len(content) > 2000
        and digests.of_blocks(path) == json.loads((folder / stored.MANIFEST).read_text())["files"]["tokens"]["blocks"]
    )
    Recording(folder)["tokens"]
    # the second of four blocks begins at a third of the way; between the first two lies what no block holds
    at = {0: 0, -1: len(content) - 1, 0.5: 300}[place]
    content[at] ^= 1
    path.write_bytes(content)
    if place == 0.5:
        Recording(folder)["tokens"]
    else:
        with pytest.raises(DamagedFile, match=r"tokens\.npy changed after it was written"):
            Recording(folder)["tokens"]
    assert cli.main(["models", str(folder), "--check"]) == 1
    assert "tokens.npy changed after it was written" in capsys.readouterr().out


# ---- replayed --------------------------------------------------------------------------------------------------------
def test_a_replay_shows_what_the_model_showed(trained, recording, replayed):
    batch = first(trained.task, "test")
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    for model, replay in ((trained.model, replayed.model), (trained.untrained_control(), replayed.untrained_control())):
        prediction, cache = model.run_with_cache(batch.tokens)
        again, replayed_cache = replay.run_with_cache(batch.tokens[order])
        torch.testing.assert_close(again, prediction[order], rtol=1e-5, atol=1e-6)
        assert set(replayed_cache) == set(SITES)
        for site in SITES:
            torch.testing.assert_close(replayed_cache[site], cache[site][order], rtol=1e-5, atol=1e-6)
    assert replayed.model.roles == trained.model.roles and residual_sites(replayed.model) == residual_sites(trained.model)


def test_its_task_draws_recorded_episodes_alone_and_none_twice_in_a_measurement(recording, replayed):
    task = replayed.task
    for split in SPLITS:
        (batch,) = draw(task, split, N, "any", batch=N)
        assert sorted(recording.rows_of(batch.tokens)) == list(range(*recording.rows[split]))
    with pytest.warns(compolens.tasks.fixed.stored.FewerEpisodes, match="500 episodes of split 'ood' were asked for; 80"):
        assert sum(len(b.tokens) for b in draw(task, "ood", 500, 0)) == N


def test_what_is_fitted_on_held_out_episodes_is_not_what_is_scored(recording, replayed):
    found = {}
    for purpose in ("fit", "score"):
        (batch,) = draw(replayed.task, "ood", 20, f"3/{purpose}")
        found[purpose] = set(recording.rows_of(batch.tokens).tolist())
        assert set(batch.composition.tolist()) == set(replayed.task.compositions("ood"))
    assert not found["fit"] & found["score"]


def test_the_task_is_the_models_but_for_its_episodes(trained, replayed):
    task = replayed.task
    assert isinstance(task, type(trained.task)) and type(task).__name__ == "Hyperteacher" and repr(task) == repr(trained.task)
    assert task != trained.task, "what is remembered about one must not be taken for the other"
    assert torch.equal(task.teacher[0], trained.task.teacher[0]) and task.describe_split() == trained.task.describe_split()


PROBES = {"latent_code": "softmax", "code_structure": "softmax", "generalization": "hypernetwork", "latent_geometry": "hyla"}


@pytest.mark.filterwarnings("ignore::compolens.tasks.fixed.stored.FewerEpisodes")
@pytest.mark.parametrize("probe", PROBES)
def test_probes_find_the_same_numbers_in_a_recording(probe, tiny_models, tiny_categorical_models, tmp_path):
    """As in the model itself, when it is asked about the same episodes."""
    trained = load({**tiny_models, **tiny_categorical_models}[PROBES[probe]])
    sites = [site for site in trained.model.hook_dict if site.endswith(("hook_code", "hook_resid_pre", "hook_resid_post"))]
    replayed = load(recorded(trained, tmp_path / "o", sites).folder)
    real = TrainedModel(trained.run, trained.model, replayed.task, trained.folder, trained.step)
    tables = [compolens.load_recipe("probes", probe)(one, episodes=64) for one in (replayed, real)]
    for ours, theirs in zip(*tables, strict=True):
        assert len(ours) > 5
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::compolens.tasks.fixed.stored.FewerEpisodes")
def test_without_the_untrained_control_its_rows_say_that_they_are_not_available(trained, tmp_path):
    folder = recorded(trained, tmp_path / "o", untrained=False).folder
    assert load(folder).why_no_untrained_control
    table = pd.read_csv(run_probe(built_in("probes")["code_structure"], folder, {"episodes": 40}))
    untrained = table[table["control"].fillna("") == "untrained"]
    assert len(untrained) > 5 and untrained["value"].isna().all()
    assert untrained["note"].str.contains("not available: the untrained control was not recorded").all()
    assert table[table["control"].isna()]["value"].notna().all()
    with pytest.raises(DoesNotApply, match="--untrained"):
        load(folder).untrained_control()


def test_what_was_not_recorded_is_refused(trained, recording, replayed):
    model = replayed.model
    known = first(trained.task, "ood")
    (unknown,) = draw(trained.task, "ood", 4, 1)
    mixed = torch.cat([known.tokens[:1], unknown.tokens])
    with pytest.raises(NotRecorded, match=r"4 of 5 episodes are none of those in .*: measure the model itself"):
        model(mixed)
    with pytest.raises(
        NotRecorded, match=r"holds no 'hook_embed', only blocks.0.hook_resid_pre, .*record it: … --sites hook_embed"
    ):
        next(record(model, [known], ["hook_embed"]))
    with pytest.raises(NotRecorded, match=r"blocks.0.hook_resid_post was edited"):
        intervene(model, known, {"blocks.0.hook_resid_post": torch.zeros_like})

    def in_place(activation, hook):
        activation[:, 0] = 0

    with pytest.raises(NotRecorded, match=r"blocks.0.hook_resid_post was edited"):
        model.run_with_hooks(known.tokens, fwd_hooks=[("blocks.0.hook_resid_post", in_place)])
    with pytest.raises(NotRecorded, match="cannot go on from another residual stream"):
        model.resume(torch.zeros(32, 9, 16), 1, known.tokens)
    for part in (lambda: model.unembed, lambda: model.blocks[0].mlp, lambda: len(model.blocks), lambda: list(model.blocks)):
        with pytest.raises(NotRecorded, match="a recording holds activations"):
            part()
    with pytest.raises(ConfigError, match="recorded were tokens"):
        model(known.tokens[:, :3])
    with pytest.raises(NotRecorded, match=r"does not stop at a layer, got stop_at_layer=1; read the stream"):
        model(known.tokens, stop_at_layer=1)


def test_of_no_episodes_nothing_is_shown(trained, replayed):
    none = first(trained.task, "ood").tokens[:0]
    assert torch.equal(replayed.model(none), trained.model(none))
    (seen,) = record(replayed.model, first(trained.task, "ood").take(slice(0)), SITES[0])
    assert seen.sites[SITES[0]].shape == (0, 9, 16)


def test_every_probe_measures_a_recording_or_says_why_not(recording, tmp_path):
    folder, short = tmp_path / "o", {"episodes": 24, "fitted": 24, "searched": 4, "search_steps": 1}
    shutil.copytree(recording.folder, folder)
    measured = set()
    for name, path in built_in("probes").items():
        options = compolens.recipes.options(compolens.load_recipe("probes", name))
        try:
            run_probe(path, folder, {k: v for k, v in short.items() if k in options})
            measured.add(name)
        except ConfigError as error:
            assert "\n" not in str(error)
    assert {"latent_code", "code_structure", "generalization"} <= measured
    assert not measured & {"patching", "swap_code", "swap_factor", "erase_code", "weight_structure", "dual_model"}


# ---- without a run, and as fixed episodes ----------------------------------------------------------------------------
def test_a_recording_that_knows_no_task_is_a_fixed_set_of_episodes(trained, tmp_path):
    recording = record(trained.model, batches(trained.task), SITES, tmp_path / "o")
    replayed = load(recording.folder)
    task = replayed.task
    assert isinstance(task, FixedEpisodes) and task.answers == trained.task.answers
    assert task.code_kinds == {"modules": "continuous"} and task.compositions("ood") == trained.task.compositions("ood")
    table, _ = compolens.load_recipe("probes", "code_structure")(replayed, episodes=40)
    assert table[table["control"] == ""]["value"].notna().all()
    (tmp_path / "o").rename(tmp_path / "moved")
    assert next(draw(load(tmp_path / "moved").task, "ood", 3, 0)).tokens.shape == (3, 9, trained.task.d_in)


def test_a_recording_is_a_fixed_set_of_episodes_too(trained, recording):
    task = FixedEpisodes(recording.folder)
    assert task.dimensions | {"mask": None} == trained.task.dimensions | {"mask": None}
    assert torch.equal(task.mask, trained.task.mask)
    assert [task.composition_name(c) for c in task.compositions("ood")] == ["0+3", "1+4", "2+5"]
    episodes = task.sample(9, "test", task.rng(0, "test"))
    assert set(recording.rows_of(episodes.tokens)) <= set(range(*recording.rows["test"]))


def test_classes_are_recorded_as_such(tiny_categorical_models, tmp_path):
    trained = load(tiny_categorical_models["raven-softmax"])
    recording = record(trained.model, batches(trained.task), ["blocks.0.hook_resid_post"], tmp_path / "o", run=trained.run)
    task = FixedEpisodes(recording.folder)
    assert (
        isinstance(load(recording.folder).task, SRaven) and task.d_out == trained.task.d_out and task.score_name == "accuracy"
    )
    (batch,) = draw(trained.task, "ood", 30, 0)
    prediction = trained.model(batch.tokens)
    assert task.score(prediction, batch.targets) == trained.task.score(prediction, batch.targets)


def test_what_numpy_does_not_know_is_recorded_all_the_same(trained, tmp_path):
    model = load(trained.folder).model.bfloat16()
    (batch,) = draw(trained.task, "ood", 6, 0)
    batch = batch._replace(tokens=batch.tokens.bfloat16())
    recording = record(model, {"ood": [batch]}, SITES[:1], tmp_path / "o")
    prediction, cache = model.run_with_cache(batch.tokens, names_filter=SITES[:1])
    np.testing.assert_array_equal(recording[SITES[0]], cache[SITES[0]].float())
    np.testing.assert_array_equal(recording["prediction"], prediction.detach().float())


# ---- the command line ------------------------------------------------------------------------------------------------
def test_record_then_probe_on_the_command_line(trained, tmp_path, capsys):
    out = tmp_path / "o"
    record_it = ["record", str(trained.folder), "--sites", "blocks.*.hook_resid_p*", "-o", str(out), "--episodes", "64"]
    assert cli.main([*record_it, "--splits", *SPLITS, "--untrained", "--half", "--step", "1"]) == 0
    printed = capsys.readouterr().out.split()
    assert f"{out}/blocks.1.hook_resid_post.npy" in printed and f"{out}/untrained/blocks.1.hook_resid_post.npy" in printed
    assert cli.main(["probe", "code_structure", str(out), "--episodes", "32"]) == 0
    assert load(out).step == 1
    table = compolens.tables.read(out, "code_structure")
    assert {"", "untrained", "raw input"} <= set(table["control"]) and set(table["step"]) == {1}
    assert cli.main(["models", str(out)]) == 0 and "SoftmaxTransformer" in capsys.readouterr().out
    assert cli.main(["probe", "patching", str(out)]) == 1
    assert "recording" in capsys.readouterr().err.splitlines()[-1]
    assert cli.main(record_it) == 2 and "holds a recording already" in capsys.readouterr().err
