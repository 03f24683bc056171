"""A damaged file never speaks: every reader gives what was written, or one line that names the file, and spares the others."""

import json
import shutil
import struct
import subprocess
import warnings
from pathlib import Path

import pandas as pd
import pytest

from compolens import Run, tables, zoo
from compolens.cli import explain, main
from compolens.foundation import digests, files, versions
from compolens.foundation.configs import ConfigError
from compolens.foundation.files import DamagedFile
from compolens.tables import StaleTable, UnusableTable
from compolens.training import train
from compolens.zoo import hub

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def model(tiny_models, tmp_path):
    """A trained folder, to be damaged."""
    return shutil.copytree(tiny_models["softmax"], tmp_path / "softmax")


@pytest.fixture
def old(model):
    """The same as it was before folders kept digests."""
    (model / "digests.json").unlink()
    return model


@pytest.fixture
def table(model, tmp_path):
    """A folder with a table and per-episode rows."""
    probe = tmp_path / "codes.py"
    probe.write_text("def probe(trained): ...\n")
    rows = [("r2", 0.75, 0.7, 0.8, "ood", "blocks.0", "readout, last", control, 64, "0+3") for control in ("", "untrained")]
    frame = pd.DataFrame(rows, columns=[*tables.COLUMNS, "composition"])
    provenance = {"weights": tables.file_digest(model / "weights.safetensors"), **versions.describe(probe)}
    tables.save(model, "codes", frame, provenance, episodes=pd.DataFrame({"score": [0.5, 1.0] * 40}))
    return model


def flipped(path, position, bit=1):
    """Write a file back with one bit changed."""
    content = bytearray(path.read_bytes())
    content[position] ^= bit
    path.write_bytes(content)


def without_digests(folder, name):
    """A table as those before digests were: nothing says what it was."""
    path = tables.path_of(folder, name).with_suffix(".json")
    known = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in known.items() if k not in ("table", "episodes", digests.SEAL)}))


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# ---- tables ----------------------------------------------------------------------------------------------------------
def test_no_changed_letter_of_a_table_is_read(table):
    path, before = tables.path_of(table, "codes"), tables.path_of(table, "codes").read_bytes()
    for position in range(0, len(before), 2):
        flipped(path, position, 1 << position % 8)
        with pytest.raises(UnusableTable, match=r"codes\.csv changed after it was measured; measure it again with: compolens"):
            tables.read(table, "codes")
        assert not tables.has(table, "codes") and tables.why_stale(table, "codes") == tables.CHANGED
        path.write_bytes(before)
    assert tables.has(table, "codes")


@pytest.mark.parametrize("part", ["codes.csv", "codes.json", "codes.episodes.parquet"])
@pytest.mark.parametrize("left", [0, 1, 0.5, -3])
def test_nothing_that_was_cut_off_is_read(table, part, left):
    path = table / "tables" / part
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content)) if isinstance(left, float) else left])
    assert "measure it again with: compolens probe" in tables.why_not(table, "codes")
    readers = {"codes.csv": [tables.read], "codes.episodes.parquet": [tables.read_episodes]}
    for read in readers.get(part, [tables.read, tables.read_episodes]):
        with pytest.raises(UnusableTable, match=rf"{path}.*; measure it again with: compolens probe"):
            read(table, "codes")


def test_per_episode_rows_are_read_as_they_were_written_or_not_at_all(table):
    assert tables.read_episodes(table, "codes")["score"].tolist() == [0.5, 1.0] * 40
    path = table / "tables" / "codes.episodes.parquet"
    flipped(path, path.stat().st_size // 2)
    assert tables.why_stale(table, "codes") == "its per-episode rows were changed after they were measured"
    path.unlink()  # as in a folder that was shared without them
    assert tables.why_stale(table, "codes") == ""
    with pytest.raises(UnusableTable, match="there is no"):
        tables.read_episodes(table, "codes")


def test_rows_of_an_earlier_measurement_are_not_taken_for_those_of_the_table(table):
    rows = tables.path_of(table, "codes").with_suffix(".episodes.parquet")
    content = rows.read_bytes()
    tables.save(table, "codes", tables.read(table, "codes"), tables.provenance_of(table, "codes"))
    assert not rows.exists() and tables.has(table, "codes")
    rows.write_bytes(content)
    assert "of an earlier measurement" in tables.why_stale(table, "codes")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "No columns to parse from file"),
        (b"\xff\xfe\x00metric", "codec can't decode"),
        (b"metric,value\nscore,0.5\n", "it lacks the column 'lo'"),
        (b'metric,value,lo,hi,split,site,role,control,n\nscore,0,5,,,,,,,3,4\na\n"', "codes.csv"),
        (b"metric,value,lo,hi,split,site,role,control,n\nscore,O.5,,,ood,,,,3\n", "column 'value' holds what is no number"),
    ],
)
def test_a_table_from_before_digests_that_is_none_is_named(table, content, said):
    without_digests(table, "codes")
    assert tables.read(table, "codes")["value"].tolist() == [0.75, 0.75]  # such tables are read as ever
    tables.path_of(table, "codes").write_bytes(content)
    with pytest.raises(UnusableTable) as caught:
        tables.read(table, "codes")
    assert said in str(caught.value) and str(tables.path_of(table, "codes")) in str(caught.value)
    assert "measure it again with: compolens probe" in str(caught.value) and "\n" not in str(caught.value)
    assert tables.why_not(table, "codes") == str(caught.value)


def test_a_table_without_provenance_is_named_with_its_command(table):
    tables.path_of(table, "codes").with_suffix(".json").unlink()
    assert tables.why_not(table, "codes").endswith(
        f"codes.csv is stale: it has no provenance; measure it again with: compolens probe codes {table}"
    )


@pytest.mark.parametrize("content", ["[]", "{}", "3", '{"weights": 3, "recipe": 4}', "[" * 100_000])
def test_provenance_that_says_nothing_is_named(table, content):
    tables.path_of(table, "codes").with_suffix(".json").write_text(content)
    assert "compolens probe codes" in tables.why_not(table, "codes")
    is_json = content in ("{}", '{"weights": 3, "recipe": 4}')
    with pytest.warns(StaleTable) if is_json else pytest.raises(UnusableTable, match=r"codes\.json"):
        tables.read(table, "codes")


# ---- folders ---------------------------------------------------------------------------------------------------------
def said_of(folder):
    """What the readers of descriptions and scores say of a folder, or the line that names a file."""
    try:
        step = zoo.read_step(folder)
        row, known = zoo.overview(folder), tables.settings(folder)
        return step, row, known
    except DamagedFile as error:
        assert str(folder) in str(error) and "\n" not in str(error)
        return None
    except ConfigError as error:
        assert "config.json" in str(error) and "\n" not in str(error)
        return None


@pytest.mark.parametrize("name", ["config.json", "scores.json", "digests.json"])
def test_no_changed_letter_of_a_description_is_taken_for_true(model, name):
    path, said = model / name, said_of(model)
    before, noticed = path.read_bytes(), 0
    for position in range(0, len(before), 5):
        flipped(path, position, 1 << position % 7)
        now = said_of(model)
        if now is None or "note" in now[1]:
            noticed += 1
            assert now is None or str(model) in now[1]["note"]
        else:
            assert now == said
        path.write_bytes(before)
    assert noticed >= 0.6 * len(range(0, len(before), 5))  # all but spaces that stand between words


def test_any_changed_byte_of_weights_or_history_is_named(model):
    for name in ("weights.safetensors", "history.csv", "steps/1.safetensors"):
        path = model / name
        before = path.read_bytes()
        for position in (0, 9, 40, len(before) // 2, len(before) - 2):
            flipped(path, position)
            (told,) = digests.damaged(model)
            assert str(path) in told and "digests.json" in told
            if name != "history.csv":
                with pytest.raises(ConfigError, match=str(path)):
                    zoo.load(model, 1 if "steps" in name else None)
            path.write_bytes(before)
    assert digests.damaged(model) == [] and zoo.load(model).step == 2


def test_whole_weights_of_another_model_are_refused(model, tiny_task, tmp_path):
    other = zoo.read_run(model)
    train(
        Run(other.architecture, tiny_task, steps=2, init_seed=5, batch_size=8, evaluations=1, evaluation_episodes=64),
        tmp_path / "m",
    )
    shutil.copy(tmp_path / "m" / "weights.safetensors", model / "weights.safetensors")
    with pytest.raises(DamagedFile, match=r"weights\.safetensors changed after it was written"):
        zoo.load(model)


def test_a_folder_from_before_digests_loads_and_is_never_called_damaged(old, capsys):
    assert zoo.load(old).step == 2 and "note" not in zoo.overview(old) and digests.damaged(old) == []
    assert main(["models", str(old), "--check"]) == 0
    assert "1 folders: 1 as they were written, 0 not; 1 written before digests" in capsys.readouterr().out


def test_digests_can_be_had_for_a_folder_from_before_them(old, capsys):
    assert main(["models", str(old), "--write-digests"]) == 0
    assert "written before digests; digests.json holds them now" in capsys.readouterr().out
    known = digests.kept(old)
    assert set(known) == {
        "config.json", "scores.json", "history.csv", "weights.safetensors", "steps/0.safetensors", "steps/1.safetensors",
    }  # fmt: skip
    flipped(old / "history.csv", 3)
    assert main(["models", str(old), "--check"]) == 1
    assert f"{old / 'history.csv'} changed after it was written" in capsys.readouterr().out
    assert main(["models", str(old), "--write-digests"]) == 0  # which mends nothing
    assert digests.kept(old) == known


def test_what_is_not_as_it_was_written_is_not_pushed(model):
    flipped(model / "history.csv", 3)
    with pytest.raises(DamagedFile, match=r"history\.csv"):
        hub.push(model, "me/mine")


def test_a_description_that_was_changed_on_purpose_is_taken_when_the_digests_are_gone(model):
    edit(model / "config.json", run=json.loads((model / "config.json").read_text())["run"] | {"evaluation_episodes": 65})
    with pytest.raises(DamagedFile, match=r"config\.json changed after .*if the change is meant, delete digests\.json there"):
        zoo.load(model)
    (model / "digests.json").unlink()
    assert zoo.load(model).run.evaluation_episodes == 65


@pytest.mark.parametrize("version", [99, "1", None, [1], 10**30])
def test_another_format_is_told(old, version):
    edit(old / "config.json", format=version)
    with pytest.raises(DamagedFile, match=r"config\.json is of format .*; install a later version, or restore the file"):
        zoo.load(old)
    with pytest.raises(DamagedFile, match=r"is of format"):
        tables.settings(old)


@pytest.mark.parametrize("steps", [3, 10**30])
def test_steps_that_the_training_did_not_have_are_told(old, steps):
    edit(old / "config.json", run=json.loads((old / "config.json").read_text())["run"] | {"steps": steps})
    told = rf"scores\.json says that the training ended at step 2, .*config\.json.* {steps}"
    with pytest.raises(ConfigError, match=told if steps < 10**9 else rf"config\.json: Run: steps must be .*, got {steps}"):
        zoo.load(old)


def test_scores_of_another_step_than_the_weights_are_told(old):
    edit(old / "scores.json", step=1)
    edit(old / "config.json", run=json.loads((old / "config.json").read_text())["run"] | {"steps": 1})
    with pytest.raises(DamagedFile, match=r"weights\.safetensors holds the weights of step 2, not of step 1"):
        zoo.load(old)


def test_weights_of_one_step_under_the_name_of_another_are_told(old):
    shutil.copy(old / "steps" / "0.safetensors", old / "steps" / "1.safetensors")
    with pytest.raises(DamagedFile, match=r"1\.safetensors holds the weights of step 0, not of step 1"):
        zoo.load(old, step=1)


@pytest.mark.parametrize("kept", ["digest", "sha256"], ids=["now", "as before"])
def test_numbers_read_as_another_kind_are_told(old, kept):
    path = old / "weights.safetensors"
    if kept == "sha256":
        tensors, metadata = files.read_tensors(path)
        from safetensors.torch import save

        told = {"compolens": json.dumps({**metadata, "sha256": files._digest_of_bytes(tensors)})}
        path.write_bytes(save(tensors, metadata=told))
        assert zoo.load(old).step == 2
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    path.write_bytes(content[: 8 + length].replace(b'"F32"', b'"I32"', 1) + content[8 + length :])
    with pytest.raises(DamagedFile, match="checksum mismatch" if kept == "digest" else "numbers of another kind"):
        zoo.load(old)


@pytest.mark.parametrize(
    "change", [{"train": 3}, {"ood": {"score": "0.5"}}, {"parameters": "many"}, {"score": 3}, {"step": True}]
)
def test_scores_that_say_something_else_are_named(old, change):
    edit(old / "scores.json", **change)
    assert "scores.json" in zoo.overview(old).get("note", "") or "score" in change
    if "score" in change:
        with pytest.raises(DamagedFile, match=r"scores\.json does not name its score"):
            tables.settings(old)


def test_scores_that_are_gone_are_missed(model):
    assert "although" not in zoo.overview(model).get("note", "")
    (model / "scores.json").unlink()
    assert "although digests.json names them: they were deleted" in zoo.overview(model)["note"]
    with pytest.raises(ConfigError, match=r"not finished \(no scores\.json\), although digests\.json names them"):
        zoo.load(model)
    (model / "digests.json").unlink()
    assert zoo.overview(model)["note"] == "not finished: step 0 of 2"


def test_a_finished_training_whose_scores_were_changed_says_so(model):
    flipped(model / "scores.json", (model / "scores.json").read_bytes().index(b"0."))
    with pytest.raises(DamagedFile, match=r"scores\.json"):
        train(zoo.read_run(model), model)


def test_a_checkpoint_whose_step_was_changed_is_not_resumed_from(tmp_path):
    path = tmp_path / "resume.safetensors"
    import torch

    files.write_tensors(path, {"model.w": torch.ones(3)}, {"step": 60, "losses": [0.5, 1]})
    content = path.read_bytes()
    path.write_bytes(content.replace(b'\\"step\\": 60', b'\\"step\\": 61', 1))
    assert path.read_bytes() != content
    with pytest.raises(DamagedFile, match="checksum mismatch"):
        files.read_tensors(path)


# ---- commands --------------------------------------------------------------------------------------------------------
def damaged_csv(folder):
    path = tables.path_of(folder, "generalization")
    path.write_bytes(path.read_bytes().replace(b"0.", b"1.", 1))


def column_renamed(folder):
    without_digests(folder, "generalization")
    path = tables.path_of(folder, "generalization")
    path.write_bytes(path.read_bytes().replace(b"reference", b"rEference", 1))


DAMAGES = {
    "csv": damaged_csv,
    "renamed": column_renamed,
    "no text": lambda folder: (
        without_digests(folder, "generalization"),
        flipped(tables.path_of(folder, "generalization"), 70, 128),
    ),
    "provenance": lambda folder: tables.path_of(folder, "generalization").with_suffix(".json").unlink(),
    "config": lambda folder: flipped(folder / "config.json", (folder / "config.json").read_bytes().index(b": 2") + 2),
    "scores": lambda folder: (folder / "scores.json").write_text("{}"),
    "weights": lambda folder: flipped(folder / "weights.safetensors", -9),
}
"""Name of a folder -> what happens to it."""


@pytest.fixture(scope="module")
def damaged(tiny_models, tmp_path_factory):
    """A whole model with a table, and one of each kind of damage beside it."""
    root = tmp_path_factory.mktemp("damaged")
    shutil.copytree(tiny_models["softmax"], root / "whole")
    assert main(["probe", "generalization", str(root / "whole"), "--episodes", "96"]) == 0
    for name, damage in DAMAGES.items():
        damage(shutil.copytree(root / "whole", root / name))
    return root


def test_an_analysis_leaves_out_what_is_damaged_and_names_it(damaged, tmp_path, capsys):
    assert main(["analyze", "who_generalizes", str(damaged / "whole"), "--out", str(tmp_path / "alone")]) == 0
    assert main(["analyze", "who_generalizes", str(damaged), "--out", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().err
    for name in DAMAGES:
        assert f"{damaged / name} is left out: " in said, name
    assert (tmp_path / "all" / "who_generalizes.csv").read_text() == (tmp_path / "alone" / "who_generalizes.csv").read_text()


def test_gathering_leaves_out_what_is_damaged_and_names_it(damaged):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = tables.gather(str(damaged / "*"), "generalization")
    assert set(frame["model"]) == {"whole", "renamed"}  # whoever gathers sees the columns
    assert {Path(folder).name for folder in frame.attrs["left_out"]} == DAMAGES.keys() - {"renamed"}
    assert len([w for w in caught if w.category is StaleTable]) == len(DAMAGES) - 1


def test_a_report_leaves_out_what_is_damaged_and_names_it(damaged, tmp_path, capsys):
    assert main(["report", str(damaged / "whole"), "-o", str(tmp_path / "alone.html")]) == 0
    alone = capsys.readouterr().out.splitlines()[:-1]
    assert main(["report", str(damaged), "-o", str(tmp_path / "all.html")]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == alone
    page = (tmp_path / "all.html").read_text(encoding="utf-8")
    for name in DAMAGES:
        assert f"{name}: left out: " in page, name
    assert main(["report", str(damaged / "csv"), "-o", str(tmp_path / "none.html")]) == 2
    assert "generalization.csv changed after it was measured; measure it again with:" in capsys.readouterr().err


def test_a_list_of_models_names_what_is_damaged(damaged, capsys):
    assert main(["models", str(damaged)]) == 0
    said = capsys.readouterr().out
    assert f"{damaged / 'config' / 'config.json'} changed after it was written" in said
    assert f"{damaged / 'scores' / 'scores.json'}" in said
    assert main(["models", str(damaged), "--summary"]) == 0
    told = capsys.readouterr()
    assert "| SoftmaxTransformer |" in told.out
    assert all(f"{name} is left out: " in told.err for name in DAMAGES)
    assert main(["models", str(damaged), "--check"]) == 1
    assert "8 folders: 2 as they were written, 6 not; 0 written before digests" in capsys.readouterr().out


def test_explaining_measures_damaged_tables_again_and_names_damaged_models(damaged, tmp_path, capsys, monkeypatch):
    root = shutil.copytree(damaged, tmp_path / "again")
    monkeypatch.setattr(explain, "EXPLAINS", ("generalization",))
    folders = [str(root / name) for name in ("whole", "csv", "no text", "provenance", "config", "scores", "weights")]
    assert main(["explain", *folders, "--episodes", "96", "-o", str(tmp_path / "page.html")]) == 1
    told = capsys.readouterr()
    for name, file in (("config", "config.json"), ("scores", "scores.json"), ("weights", "weights.safetensors")):
        assert f"{root / name / file}" in told.err
        assert f"{name}: left out: " in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "(4 seeds)" in told.out
    whole = tables.read(root / "whole", "generalization")
    for name in ("csv", "no text", "provenance"):
        pd.testing.assert_frame_equal(tables.read(root / name, "generalization"), whole)


# ---- line ends -------------------------------------------------------------------------------------------------------
def test_git_leaves_the_line_ends_of_hashed_files_alone():
    names = ["trained_models/F-softmax-0/config.json", "a/tables/b.csv", "a/weights.safetensors", "a/b.parquet"]
    done = subprocess.run(["git", "check-attr", "text", "--", *names], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    assert [line.rsplit(": ", 1)[1] for line in done.stdout.splitlines()] == ["unset"] * len(names)


def test_what_is_shipped_is_as_it_was_written():
    folders = [path.parent for path in (ROOT / "trained_models").glob("**/digests.json")]
    assert folders and [sentence for folder in folders for sentence in digests.damaged(folder)] == []
