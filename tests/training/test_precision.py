"""Mixed precision is a matter of training alone; a process that trains leaves nothing changed behind; schedules."""

import gc
import subprocess
from pathlib import Path

import pytest
import torch
from test_training import contents, interrupt_run, make_run

from compolens.foundation import files
from compolens.foundation.configs import ConfigError
from compolens.models import HYLA, SoftmaxTransformer
from compolens.tasks import SPLITS, SRaven
from compolens.training import RESUME, Run, WarmupStableDecay, machine, state, train
from compolens.zoo.folders import load

ROOT = Path(__file__).resolve().parents[2]
MIXED = {"precision": "bfloat16", "keep": ()}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed") / "run"
    train(make_run(**MIXED), folder)
    return folder


def test_mixed_precision_moves_the_weights_and_they_stay_in_single_precision(mixed, tmp_path):
    train(make_run(keep=()), tmp_path / "run")
    single, other = (files.read_tensors(folder / "weights.safetensors")[0] for folder in (tmp_path / "run", mixed))
    assert all(weight.dtype == torch.float32 for weight in other.values())
    distance = torch.cat([(single[name] - other[name]).flatten() for name in single]).norm()
    start = make_run().build().state_dict()
    moved = torch.cat([(single[name] - start[name]).flatten() for name in single]).norm()
    assert 0 < distance < 0.2 * moved


def test_mixed_precision_resumes_bit_for_bit(mixed, tmp_path, monkeypatch):
    interrupt_run(make_run(**MIXED), tmp_path / "run", monkeypatch, 11)
    tensors, _ = files.read_tensors(tmp_path / "run" / RESUME)
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    train(make_run(**MIXED), tmp_path / "run")
    assert contents(tmp_path / "run") == contents(mixed)


def test_scores_and_probes_are_in_single_precision_and_the_card_shows_both(mixed):
    scores = files.read_json(mixed / "scores.json")
    trained = load(mixed)
    run, n = trained.run, scores["test"]["episodes"]
    for split in SPLITS:
        for precision, written in (("float32", scores), ("bfloat16", scores["mixed precision"])):
            with machine.products(precision, "cpu"):
                found = state.evaluate(trained.model, run.task, split, n, f"final/{run.data_seed}", "cpu", 256)
            assert found.score == written[split]["score"]
    card = (mixed / "README.md").read_text()
    assert "with products in bfloat16" in card
    for written in (scores, scores["mixed precision"]):
        assert all(f"| {written[split]['score']:.4f} |" in card for split in SPLITS)
    with trained.model.hooks([(lambda name: True, lambda tensor, hook: _is_single(tensor))]):
        trained.model(run.task.sample(2, "test", run.task.rng(0, "test")).tokens)


def _is_single(tensor):
    assert tensor.dtype == torch.float32


def test_the_folder_records_versions_and_processor(mixed):
    (written,) = files.read_json(mixed / "scores.json")["environments"]
    assert written["processor"] == machine.processor("cpu") and written["processor"]
    assert written["compolens"] == state.__version__


def test_a_state_written_before_they_were_recorded_goes_on_without_a_word(tmp_path, monkeypatch):
    interrupt_run(make_run(), tmp_path / "run", monkeypatch, 5)
    tensors, saved = files.read_tensors(tmp_path / "run" / RESUME)
    for new in ("compolens", "processor"):
        del saved["environments"][-1][new]
    files.write_tensors(tmp_path / "run" / RESUME, tensors, saved)
    notes = []
    train(make_run(), tmp_path / "run", progress=lambda now: notes.append(now.note))
    assert notes[0] == "resumed at step 5"


def test_a_processor_without_bfloat16_products_is_told_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_cpuinfo", lambda: "model name : Old Faithful\nflags : avx2 fma\n")
    told = []
    train(make_run(**MIXED), tmp_path / "run", progress=told.append)
    assert told[0].step == 0 and "Old Faithful has no products in bfloat16" in told[0].note and "slower" in told[0].note
    told.clear()
    train(make_run(), tmp_path / "single", progress=told.append)
    assert not any(now.note for now in told)


@pytest.mark.parametrize(
    ("flags", "expected"), [("avx512_bf16", True), ("amx_bf16 amx_tile", True), ("asimd bf16", True), ("avx2", False)]
)
def test_bfloat16_products_are_read_off_the_processors_flags(monkeypatch, flags, expected):
    monkeypatch.setattr(machine, "_cpuinfo", lambda: f"model name : X\nflags : fpu {flags}\n")
    assert machine.has_bfloat16_products("cpu") is expected


@pytest.mark.parametrize("wrong", ["float16", "bf16", "", None, 16])
def test_another_precision_is_refused_in_words(wrong):
    told = r"no precision .*(float32|bfloat16)" if isinstance(wrong, str) else f"precision must be a word, got {wrong}"
    with pytest.raises(ConfigError, match=told):
        make_run(precision=wrong)


def test_hyla_and_softmax_train_in_mixed_precision_with_dropped_codes(tmp_path):
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 8, "d_head": 2, "d_value": 2, "n_ctx": 18, "attention_dropout": 0.1}
    task = SRaven(n_features=2)
    for architecture in (HYLA(**sizes), SoftmaxTransformer(**sizes)):
        seen = []
        run = Run(
            architecture, task, steps=40, batch_size=32, evaluations=1, evaluation_episodes=16, answers_only=True, **MIXED
        )
        # a processor without products in bfloat16 is told of first, before there is a loss
        train(run, tmp_path / type(architecture).__name__, progress=lambda now, seen=seen: now.note or seen.append(now.loss))
        assert seen[-1] < seen[0]


# ---- the process -----------------------------------------------------------------------------------------------------
def test_a_training_leaves_threads_and_garbage_collection_as_they_were():
    threads, frozen = torch.get_num_threads(), gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError), machine.at_work("cpu"):
        assert torch.get_num_threads() == 1 and gc.get_freeze_count() > 0
        raise ZeroDivisionError
    assert (torch.get_num_threads(), gc.get_freeze_count()) == (threads, frozen)


def test_what_a_caller_froze_stays_frozen():
    gc.freeze()
    try:
        with machine.at_work("cpu"):
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_states_of_unfinished_trainings_are_versioned_in_folders_of_any_depth():
    for folder in ("a", "papers/a", "papers/more/a"):
        ignored = subprocess.run(["git", "check-ignore", "-q", f"trained_models/{folder}/{RESUME}"], cwd=ROOT).returncode == 0
        assert not ignored
    elsewhere = subprocess.run(["git", "check-ignore", "-q", f"runs/a/{RESUME}"], cwd=ROOT).returncode == 0
    assert elsewhere


# ---- the schedule ----------------------------------------------------------------------------------------------------
def test_the_rate_warms_up_stays_and_falls_to_its_end():
    schedule, steps = WarmupStableDecay(lr=2.0, warmup=10, decay_share=0.2), 1000
    rates = [schedule.rate(step, steps) for step in range(steps)]
    assert rates[:11] == pytest.approx([0.2 * step for step in range(11)])
    assert set(rates[10:800]) == {2.0}
    assert rates[800:] == pytest.approx([2.0 * (steps - step) / 200 for step in range(800, steps)])


def test_its_constant_part_does_not_depend_on_the_length():
    schedule = WarmupStableDecay(lr=1e-3, warmup=100)
    assert [schedule.rate(s, 1000) for s in range(800)] == [schedule.rate(s, 50_000) for s in range(800)]


def test_it_may_keep_a_rest_or_never_fall():
    assert WarmupStableDecay(lr=1.0, warmup=0, final=0.1).rate(999, 1000) == pytest.approx(0.1 + 0.9 / 200)
    assert WarmupStableDecay(lr=1.0, warmup=0, decay_share=0.0).rate(999, 1000) == 1.0


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_outside_0_and_1_is_refused(share):
    with pytest.raises(ConfigError, match=f"decay_share must be from 0 to 1, got {share}"):
        WarmupStableDecay(decay_share=share)
