"""Maps and tunings: what is described is trained once, resumes, and is chosen on validation alone."""

import dataclasses
import json
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from compolens import (
    AdamW,
    Boundary,
    Cell,
    HypernetworkTransformer,
    Hyperteacher,
    Map,
    Run,
    SoftmaxTransformer,
    cli,
    tables,
)
from compolens.foundation import digests, files, map_files
from compolens.foundation.configs import ConfigError
from compolens.jobs import Local
from compolens.maps import cost, make, tuned
from compolens.maps.grid import digest_of
from compolens.maps.tuning import stretched
from compolens.maps.work import check_measures, collect, left, one_of, train_cell
from compolens.measures.tuned import choose, errors
from compolens.training import train

FILE = """
from compolens import AdamW, Cell, HypernetworkTransformer, Hyperteacher, Map, Run, SoftmaxTransformer, Tuning

small = dict(d_x=3, d_y=2, d_hidden=4, n_context=6, n_queries=3)
short = dict(batch_size=4, evaluations=2, evaluation_episodes=16)
tiny = SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2)


def cell(support, seed):
    task = Hyperteacher(**small, support=support, teacher_seed=seed, split_seed=seed)
    return Cell(Run(tiny, task, steps=4, init_seed=seed, data_seed=seed, **short), {"support": support, "wide": False})


maps = {"toy": Map("a toy", [cell(s, k) for s in ("cube", "two cliques") for k in (0, 1)], x="support", keep=("*cube*seed=0",),
                   learned=0.5, keep_history=True)}
task = Hyperteacher(**small, validation=3, teacher_seed=9, split_seed=9)
base = dict(task=task, steps=4, init_seed=9, data_seed=9, optimizer=AdamW(warmup=2), **short)
runs = {"softmax": Run(tiny, **base), "hypernetwork": Run(HypernetworkTransformer(n_layers=1, d_model=8, n_heads=2), **base)}
tunings = {"toy": Tuning("a toy", runs, lr=(1e-3, 3e-3), weight_decay=(1e-2,), steps=(4,), most=4)}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A map and a tuning, each made by its command."""
    place = tmp_path_factory.mktemp("maps")
    (place / "grid.py").write_text(FILE)
    assert cli.main(["map", str(place / "grid.py"), "--out", str(place / "maps")]) == 0
    assert cli.main(["tune", str(place / "grid.py"), "--out", str(place / "tuning")]) == 0
    return place


# ---- maps ------------------------------------------------------------------------------------------------------------
def test_a_row_holds_the_scores_of_exactly_that_run(made, tmp_path):
    table = map_files.read_table(made / "maps" / "toy")
    described = one_of(made / "grid.py", "maps", "toy")
    assert sorted(table["cell"]) == sorted(c.name for c in described.cells)
    cell = described.cells[3]
    row = table.set_index("cell").loc[cell.name]
    scores = train(cell.run, tmp_path / "alone")
    for split in ("train", "test", "ood"):
        assert row[split] == pytest.approx(scores[split]["score"], rel=1e-6)
        assert row[f"{split} se"] == pytest.approx(scores[split]["se"], rel=1e-6)
    assert row["support"] == cell.knobs["support"] and row["seed"] == cell.run.init_seed
    history = tables.gather(made / "maps" / "toy", "history").query("cell == @cell.name")
    alone = pd.read_csv(tmp_path / "alone" / "history.csv")
    assert np.allclose(history[["step", "train", "test", "ood"]], alone[["step", "train", "test", "ood"]])


def test_weights_are_kept_only_where_asked_and_are_found_as_models(made):
    cells = made / "maps" / "toy" / "cells"
    (kept,) = (p for p in cells.iterdir() if p.is_dir() and not p.name.startswith("."))
    assert kept.name == "support=cube_wide=False_seed=0" and tables.find([cells]) == [kept]
    assert map_files.read_table(made / "maps" / "toy").set_index("cell")["kept"].sum() == 1
    assert not list(cells.glob("*.row.json"))


def test_a_map_is_no_model_and_a_model_no_map(made):
    with pytest.raises(ConfigError, match="is a map of many models, not a model"):
        tables.find([made / "maps" / "toy"])
    with pytest.raises(ConfigError, match="holds no trained model"):
        tables.find([made / "maps"])
    assert tables.find_maps([made]) == [made / "maps" / "toy", made / "tuning" / "toy"]
    with pytest.raises(ConfigError, match="a map has no table 'latent_code'"):
        tables.gather(made / "maps" / "toy", "latent_code")
    with pytest.raises(ConfigError, match="gather one kind at a time"):
        tables.gather([made / "maps" / "toy", *tables.find([made / "maps" / "toy" / "cells"])], "table")
    for place in (made / "maps" / "*", made / "maps" / "**", made / "maps"):  # the models in its cells are the map's
        assert len(tables.gather(place, "table")) == 4


def test_what_is_there_is_not_trained_again_and_new_cells_are(made, tmp_path):
    described = one_of(made / "grid.py", "maps", "toy")
    folder = made / "maps" / "toy"
    before = digests.of_file(folder / "table.csv")
    assert left(folder, described.cells) == []
    assert make(str(made / "grid.py"), "maps", "toy", described.cells, folder, Local(1)).results == {}
    assert digests.of_file(folder / "table.csv") == before
    partly = tmp_path / "partly"
    make(str(made / "grid.py"), "maps", "toy", described.cells[:1], partly, Local(1))
    assert [c.name for c in left(partly, described.cells)] == [c.name for c in described.cells[1:]]
    make(str(made / "grid.py"), "maps", "toy", described.cells, partly, Local(1))
    whole, pieces = (map_files.read_table(f).drop(columns=["seconds", "map"]) for f in (folder, partly))
    pd.testing.assert_frame_equal(whole, pieces)


def test_the_recorded_command_names_the_cells_that_were_asked_for(made, tmp_path):
    """Words to type again: commands for some cells each stand one after the other until one asks for all of them."""
    file, out = made / "grid.py", tmp_path / "maps"
    names = [cell.name for cell in one_of(file, "maps", "toy").cells]

    def said(*more):
        assert cli.main(["map", str(file), "toy", "--out", str(out), *more]) == 0
        return map_files.provenance(out / "toy")["command"]

    whole = f"compolens map {file} toy --out {out}"
    first, second = (f"{whole} --cells {name}" for name in names[:2])
    assert said("--cells", names[0]) == first
    assert said("--cells", names[1]) == f"{first} && {second}"
    assert said("--cells", names[0]) == f"{first} && {second}"
    assert said() == whole
    assert said("--cells", names[1]) == whole


def test_rows_that_a_killed_command_left_are_taken_in(made, tmp_path):
    described = one_of(made / "grid.py", "maps", "toy")
    collect(tmp_path / "map", described)
    row = {"cell": described.cells[0].name, "seed": 0, "run": "x", "test": 0.5}
    row["run"] = digest_of(described.cells[0].run)
    (tmp_path / "map" / "cells").mkdir()
    path = tmp_path / "map" / "cells" / f"{row['cell']}.row.json"
    path.write_text(json.dumps({"row": row, "history": [], "environments": []}))
    assert len(left(tmp_path / "map", described.cells)) == 3
    assert collect(tmp_path / "map", described)["test"].tolist() == [0.5] and not path.exists()


@pytest.mark.parametrize("refused", ["table.csv", "history.csv", "provenance.json"])
def test_a_map_goes_on_after_the_disk_refused_one_of_its_files(made, tmp_path, monkeypatch, refused):
    described, folder = one_of(made / "grid.py", "maps", "toy"), tmp_path / "map"
    make(str(made / "grid.py"), "maps", "toy", described.cells[:1], folder, Local(1))
    write = files.write_atomically

    def full(path, *content):
        if path == folder / refused and (refused != "provenance.json" or "next" in map_files.provenance(folder)):
            raise files.SaveError("no space left")
        write(path, *content)

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(files.SaveError):
        make(str(made / "grid.py"), "maps", "toy", described.cells, folder, Local(1))
    monkeypatch.undo()
    assert not map_files.damaged(folder) and len(map_files.read_table(folder)) in (1, 4)
    make(str(made / "grid.py"), "maps", "toy", described.cells, folder, Local(1))
    for name in ("table.csv", "history.csv"):
        whole, after = (map_files.read_table(f, name).drop(columns="map") for f in (made / "maps" / "toy", folder))
        pd.testing.assert_frame_equal(*(t.drop(columns="seconds", errors="ignore") for t in (whole, after)))
    assert "next" not in map_files.provenance(folder)


def test_what_a_killed_command_took_in_already_is_not_taken_in_twice(made, tmp_path, monkeypatch):
    described, folder = one_of(made / "grid.py", "maps", "toy"), tmp_path / "map"
    monkeypatch.setattr(Path, "unlink", lambda path, **more: None)
    make(str(made / "grid.py"), "maps", "toy", described.cells[:1], folder, Local(1))
    monkeypatch.undo()
    before = map_files.read_table(folder, "history.csv")
    collect(folder, described)
    pd.testing.assert_frame_equal(map_files.read_table(folder, "history.csv"), before)


def test_knobs_that_are_words_stay_words(tmp_path):
    words = '"support": support, "word": {"cube": "None"}.get(support, "064")'
    lines = FILE.replace('"support": support, "wide": False', words)
    (tmp_path / "grid.py").write_text(lines)
    assert cli.main(["map", str(tmp_path / "grid.py"), "--out", str(tmp_path)]) == 0
    collect(tmp_path / "toy", one_of(tmp_path / "grid.py", "maps", "toy"))
    assert sorted(map_files.read_table(tmp_path / "toy")["word"]) == ["064", "064", "None", "None"]


def test_knobs_are_read_as_they_were_described(tmp_path):
    """Words that a CSV takes for no value, and whole numbers of more than eight digits among fractions."""
    knobs = '"word": {"cube": ""}.get(support, "nan"), "size": {"cube": 0.5}.get(support, 123456789)'
    (tmp_path / "grid.py").write_text(
        FILE.replace('"support": support, "wide": False', knobs).replace('x="support"', 'x="size"')
    )
    described = one_of(tmp_path / "grid.py", "maps", "toy")
    for _ in range(2):  # what was read once more is written once more
        row = {"test": 0.5, "seed": 0}
        (tmp_path / "toy" / "cells").mkdir(parents=True, exist_ok=True)
        for cell in described.cells:
            left = {"cell": cell.name, **cell.knobs, **row, "run": digest_of(cell.run)}
            content = json.dumps({"row": left, "history": [], "environments": []})
            (tmp_path / "toy" / "cells" / f"{cell.name}.row.json").write_text(content)
        collect(tmp_path / "toy", described)
        table = map_files.read_table(tmp_path / "toy").set_index("cell")
        for cell in described.cells:
            assert table.loc[cell.name, ["word", "size"]].to_dict() == cell.knobs


def test_a_cell_that_another_command_took_into_the_table_is_not_trained_again(made, monkeypatch):
    monkeypatch.setattr("compolens.maps.work.train", lambda *_, **__: pytest.fail("this trains it again"))
    described = one_of(made / "grid.py", "maps", "toy")
    arguments = (str(made / "grid.py"), "maps", "toy", described.cells[1].name, str(made / "maps" / "toy"), "cpu")
    row = map_files.read_table(made / "maps" / "toy").set_index("cell").loc[described.cells[1].name]
    assert f"test {row['test']:.4f}" in train_cell(*arguments, report=lambda *_: None)


def test_commands_wait_for_one_another_at_the_files_of_a_map(made, tmp_path):
    held = files.locked(tmp_path / "map")
    held.__enter__()
    threading.Timer(0.1, held.__exit__, (None, None, None)).start()
    assert collect(tmp_path / "map", one_of(made / "grid.py", "maps", "toy")).empty


def test_what_a_map_cannot_measure_is_told_before_anything_is_trained(made, tmp_path):
    described = one_of(made / "grid.py", "maps", "toy")
    for measures, message in (
        ({"generalisation": {}}, "no recipe 'generalisation' in probes; did you mean 'generalization'"),
        ({"generalization": {"episods": 9}}, "unexpected keyword argument 'episods'; it takes episodes"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_measures(dataclasses.replace(described, measures=measures))
    lines = FILE.replace("keep_history=True", "measures={'generalisation': {}}")
    (tmp_path / "grid.py").write_text(lines)
    assert cli.main(["map", str(tmp_path / "grid.py"), "--out", str(tmp_path)]) == 2 and not (tmp_path / "toy").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"keep": "*layer*"}, r"Map: keep must be a list of words, got '\*layer\*'"),
        ({"panels": "support"}, "Map: panels must be a list of words"),
        ({"predicted": "theory"}, r"Map: predicted must be a list of entries, each Boundary\(\)"),
        ({"measures": ["generalization"]}, r"Map: measures must name probes and their arguments, such as \{"),
    ],
)
def test_settings_of_a_map_of_another_kind_are_refused(made, more, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(one_of(made / "grid.py", "maps", "toy"), **more)


def test_a_map_with_brackets_in_its_name_is_no_pattern(made, tmp_path, capsys):
    (tmp_path / "grid.py").write_text(FILE + 'maps = {"a[1]": maps["toy"], "a1": maps["toy"]}')
    assert cli.main(["map", str(tmp_path / "grid.py"), "a[1]", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["a[1]"]


def test_how_many_at_a_time_is_checked_before_the_cost_is_told_and_a_shard_is_listed_alone(made, capsys):
    for command in ("map", "tune"):
        for more in ([], ["--list"]):
            assert cli.main([command, str(made / "grid.py"), "--out", str(made / "none"), "--jobs", "0", *more]) == 2
            said = capsys.readouterr()
            assert said.out == "" and "--jobs must be at least 1, got 0" in said.err
        assert cli.main([command, str(made / "grid.py"), "--out", str(made / "none"), "--list", "--shard", "1/2"]) == 0
        assert capsys.readouterr().out.splitlines()[2].split()[:3] == ["toy", "2", "0"]
    assert not (made / "none").exists()


def test_a_cell_that_is_described_otherwise_is_refused(made, tmp_path):
    described = one_of(made / "grid.py", "maps", "toy")
    first = described.cells[0]
    longer = dataclasses.replace(described, cells=[Cell(dataclasses.replace(first.run, steps=9), first.knobs)])
    with pytest.raises(ConfigError, match=r"holds the cell .* not described so any more"):
        collect(made / "maps" / "toy", longer)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is no map"):
        collect(tmp_path / "other", described)


def test_a_changed_table_is_told(made, tmp_path, capsys):
    import shutil

    shutil.copytree(made / "maps" / "toy", tmp_path / "toy")
    assert cli.main(["models", "--check", str(tmp_path)]) == 0
    table = tmp_path / "toy" / "table.csv"
    table.write_text(table.read_text().replace("cube", "club", 1))
    with pytest.raises(ConfigError, match="changed after it was written"):
        map_files.read_table(tmp_path / "toy")
    capsys.readouterr()
    assert cli.main(["models", "--check", str(tmp_path)]) == 1
    assert "table.csv changed after it was written" in capsys.readouterr().out


def test_the_cost_is_said_before_anything_is_trained(made, tmp_path, capsys):
    assert cli.main(["map", str(made / "grid.py"), "--list", "--out", str(tmp_path / "none")]) == 0
    told = capsys.readouterr()
    assert "core-hours left" in told.out and not (tmp_path / "none").exists()
    cells = one_of(made / "grid.py", "maps", "toy").cells
    long = [Cell(dataclasses.replace(c.run, steps=4000), c.knobs) for c in cells]
    (few, sizes), (many, _) = cost(cells), cost(long)
    assert sizes == 1 and many > 20 * few > 0


def test_a_training_that_diverges_is_a_row_without_scores_and_is_never_chosen(tmp_path):
    lines = FILE.replace("lr=(1e-3, 3e-3)", "lr=(1e-3, 1e30)").replace("most=4", "most=2")
    (tmp_path / "grid.py").write_text(lines)
    assert cli.main(["tune", str(tmp_path / "grid.py"), "--out", str(tmp_path)]) == 0
    table = map_files.read_table(tmp_path / "toy")
    diverged = table[table["lr"] == 1e30]
    assert diverged["validation"].isna().all() and diverged["note"].str.contains("diverged").all()
    assert {best.choice.settings["lr"] for best in tuned(tmp_path / "toy").values()} == {1e-3}


def test_descriptions_that_mean_nothing_are_refused(made, capsys):
    run = one_of(made / "grid.py", "maps", "toy").cells[0].run
    with pytest.raises(ConfigError, match="the same knobs"):
        Map("m", [Cell(run, {"a": 1}), Cell(run, {"b": 1})], x="a")
    with pytest.raises(ConfigError, match="twice; give every cell its own knobs or seed"):
        Map("m", [Cell(run, {"a": 1}), Cell(run, {"a": 1})], x="a")
    with pytest.raises(
        ConfigError, match=r"twice; names hold letters.* the values 'x²' and 'x³' of 'a' look alike: rename one"
    ):
        Map("m", [Cell(run, {"a": "x²"}), Cell(run, {"a": "x³"})], x="a")
    with pytest.raises(ConfigError, match="twice; their runs differ, but neither a knob nor the run's init_seed does"):
        Map("m", [Cell(run, {"a": 1}), Cell(dataclasses.replace(run, data_seed=9), {"a": 1})], x="a")
    with pytest.raises(ConfigError, match="may not be called 'test se', which is a column of every map"):
        Cell(run, {"test se": 1})
    with pytest.raises(ConfigError, match="no knob 'd_xx'; did you mean 'd_x'"):
        Map("m", [Cell(run, {"d_x": 1})], x="d_xx")
    with pytest.raises(ConfigError, match="a column of every map"):
        Cell(run, {"seed": 1})
    with pytest.raises(ConfigError, match="at least two points"):
        Boundary("b", "x", ((1, 1),), "falls")
    assert cli.main(["map", str(made / "grid.py"), "toi"]) == 2
    assert "did you mean 'toy'" in capsys.readouterr().err


COMPARING = """
from compolens import Cell, LinearRegression, Map, Run, SoftmaxTransformer

task = LinearRegression.garg(d_x=2, n_context=3)
run = Run(SoftmaxTransformer(n_layers=1, d_model=8, n_heads=2), task, steps=2, batch_size=4, evaluation_episodes=16)
maps = {"toy": Map("a toy", [Cell(run, {"wide": False})], x="wide", keep=("*",), measures={
    "gd_equivalence": {"episodes": 8, "fits": 4, "references": "GD, 1 step; least squares"},
    "generalization": {"episodes": 64},
})}
"""


def test_what_a_row_compares_is_in_the_name_of_its_column_where_nothing_else_tells_rows_apart(tmp_path):
    (tmp_path / "grid.py").write_text(COMPARING)
    assert cli.main(["map", str(tmp_path / "grid.py"), "--out", str(tmp_path)]) == 0
    (row,) = map_files.read_table(tmp_path / "toy").to_dict("records")
    cell = tmp_path / "toy" / "cells" / row["cell"]
    own = tables.read(cell, "gd_equivalence").query("metric == 'ILWD' and split == 'ood' and control == 'untrained'")
    for reference, value in zip(own["reference"], own["value"], strict=True):
        assert row[f"ILWD · ood · output · last query · untrained · model · {reference}"] == pytest.approx(value, rel=1e-6)
    assert "loss · test · output · last query · reference · least squares · teacher scale · 2.0" in row
    assert row["R² of linearity · test · output · last query"] <= 1  # told apart by the split: nothing follows


# ---- tuning ----------------------------------------------------------------------------------------------------------
def settings(lr, error, se=0.02, ood=0.5, steps=100, test=None):
    lacks = np.exp(error)
    test_score = 1 - lacks if test is None else test
    return {
        "lr": lr, "weight_decay": 0.01, "steps": steps, "validation": 1 - lacks, "validation se": se * lacks, "ood": ood,
        "test": test_score,
    }  # fmt: skip


def test_an_architecture_that_always_diverges_is_told_and_keeps_no_other_from_being_tuned(made, tmp_path, capsys):
    tuning = one_of(made / "grid.py", "tunings", "toy")
    inside = planted(tuning, {"softmax": 3e-3, "hypernetwork": 3e-3})(tuning.values)
    lost = inside.assign(validation=inside["validation"].where(inside["who"] == "softmax"))
    assert tuning.extended(lost) == tuning.extended(inside)
    assert tuning.extended(inside.assign(validation=np.nan)) == tuning.values
    lines = FILE.replace("lr=(1e-3, 3e-3)", "lr=(1e29, 1e30)").replace("most=4", "most=2")
    (tmp_path / "grid.py").write_text(lines)
    assert cli.main(["tune", str(tmp_path / "grid.py"), "--out", str(tmp_path)]) == 0
    assert "softmax: diverged at each of 2 settings" in "".join(capsys.readouterr())
    assert tuned(tmp_path / "toy") == {}
    with pytest.raises(ConfigError, match="toy: softmax diverged at every setting; tune it at smaller learning rates"):
        tuned(tmp_path / "toy")["softmax"]


def test_a_rate_next_to_one_that_diverged_is_not_at_the_edge():
    rows = pd.DataFrame([settings(lr, e) for lr, e in ((1e-4, -1.0), (1e-3, -2.0), (1e-2, np.nan))])
    best = choose(rows)
    assert best.settings["lr"] == 1e-3 and best.edges == () and best.tried == 3


def test_the_best_is_chosen_on_validation_and_what_could_as_well_have_been_is_told():
    rows = pd.DataFrame(
        [
            settings(1e-3, -2.00, ood=0.70, test=0.99),
            settings(3e-3, -3.00, ood=0.86, test=0.95),
            settings(1e-2, -2.99, ood=0.93, test=0.90),
            settings(3e-2, -2.90, ood=0.99, test=0.90),
        ]
    )
    best = choose(rows)
    assert best.settings["lr"] == 3e-3 and best.error == pytest.approx(-3) and best.error_se == pytest.approx(0.02)
    assert best.held_out == 0.86 and best.held_out_range == (0.86, 0.93) and best.close == 2
    assert best.by_training["lr"] == 1e-3 and best.edges == () and best.tried == 4
    assert choose(rows[:2]).edges == ("lr",)


def test_held_out_scores_never_decide():
    rows = pd.DataFrame([settings(lr, e) for lr, e in ((1e-3, -1.0), (3e-3, -2.0), (1e-2, -1.5))])
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert choose(rows.assign(ood=rng.normal(size=3))).settings["lr"] == 3e-3


def test_errors_are_logs_of_what_lacks():
    assert np.allclose(errors(np.array([0.0, 0.9, 0.99])), np.log([1, 0.1, 0.01]))


def planted(tuning, best):
    """A table of the tuning's present grid in which the error is least at one rate for each architecture."""

    def table(values):
        rows = []
        for cell in tuning.cells(values):
            far = abs(np.log(cell.knobs["lr"] / best[cell.knobs["who"]]))
            rows.append({"cell": cell.name, **cell.knobs} | settings(cell.knobs["lr"], -3 + far, steps=cell.knobs["steps"]))
        return pd.DataFrame(rows)

    return table


def test_a_best_value_at_the_edge_extends_the_grid_of_all_alike(made):
    tuning = dataclasses.replace(one_of(made / "grid.py", "tunings", "toy"), lr=(1e-3, 3e-3, 9e-3), most=6)
    inside = planted(tuning, {"softmax": 3e-3, "hypernetwork": 3e-3})
    assert tuning.extended(inside(tuning.values))["lr"] == tuning.lr
    low = planted(tuning, {"softmax": 3e-4, "hypernetwork": 3e-3})
    once = tuning.extended(low(tuning.values))
    assert once["lr"] == (0.000333, 1e-3, 3e-3, 9e-3)
    counts = pd.Series([cell.knobs["who"] for cell in tuning.cells(once)]).value_counts()
    assert set(counts) == {4}, "equal budgets"
    both = planted(tuning, {"softmax": 1e-5, "hypernetwork": 1.0})
    twice = tuning.extended(both(tuning.values))
    assert len(twice["lr"]) == 5 and twice["lr"][0] < 1e-3 and twice["lr"][-1] > 9e-3
    far = planted(tuning, {"softmax": 1e3, "hypernetwork": 1e3})
    values = tuning.values
    for _ in range(5):
        values = tuning.extended(far(values))
    assert len(values["lr"]) == 6, "never more settings than `most`"
    assert tuning.extended(low(tuning.values)[:-1]) == tuning.values, "only once all of it is measured"


def test_an_end_that_more_measuring_found_not_to_be_best_is_not_extended(made):
    """With room for one end, the upper one is tried; it is better, and with more room nothing is tried at the lower one."""
    small = dataclasses.replace(one_of(made / "grid.py", "tunings", "toy"), lr=(1e-3, 3e-3, 9e-3), most=4)
    softmax = {1e-3: -2.0, 3e-3: -1.0, 9e-3: -1.5, 0.027: -3.0, 0.081: -2.5}

    def table(values):
        rate = {"softmax": softmax, "hypernetwork": {lr: -abs(lr - 9e-3) - (lr == 9e-3) for lr in softmax}}
        cells = small.cells(values)
        return pd.DataFrame(
            {"cell": cell.name, **cell.knobs}
            | settings(cell.knobs["lr"], rate[cell.knobs["who"]][cell.knobs["lr"]], steps=cell.knobs["steps"])
            for cell in cells
        )

    once = small.extended(table(small.values))
    assert once["lr"] == (1e-3, 3e-3, 9e-3, 0.027)
    assert small.extended(table(once)) == once, "no room"
    large = dataclasses.replace(small, most=9)
    twice = large.extended(table(once))
    assert twice["lr"] == (1e-3, 3e-3, 9e-3, 0.027, 0.081)
    assert large.extended(table(twice)) == twice


def test_grids_are_extended_at_their_own_ratio():
    assert stretched((1.0, 10.0), 1, 2) == (0.1, 1.0, 10.0, 100.0, 1000.0)
    assert stretched((1000, 2000), 1, 1) == (500, 1000, 2000, 4000)
    assert stretched((0.1,), 3, 3) == (0.1,)


def test_every_cell_of_an_extended_grid_is_found_by_its_name(made):
    """Grids grow value by value, each rounded: from 1e-5 and 2.5e-5 the fourth is 1.56e-4, and not 1.5625e-4."""
    toy = one_of(made / "grid.py", "tunings", "toy")
    tuning = dataclasses.replace(toy, runs={"softmax": toy.runs["softmax"]}, lr=(1e-5, 2.5e-5), most=13)
    values = dict(tuning.values)
    for _ in range(11):
        values = tuning.extended(planted(tuning, {"softmax": 1.0})(values))
    assert len(values["lr"]) == 13 and values["lr"][:5] == (1e-5, 2.5e-5, 6.25e-5, 1.56e-4, 3.89e-4)
    for cell in tuning.cells(values):
        assert tuning.cell(cell.name) == cell
    short = dataclasses.replace(tuning, lr=(1e-3,), steps=(1, 2))
    least = pd.DataFrame(
        [{"cell": c.name, **c.knobs} | settings(1e-3, c.knobs["steps"], steps=c.knobs["steps"]) for c in short.cells()]
    )
    assert short.extended(least) == short.values, "there is no shorter training than a step"


def test_what_was_tuned_makes_the_runs(made):
    best = tuned(made / "tuning" / "toy")
    assert set(best) == {"softmax", "hypernetwork"}
    table = map_files.read_table(made / "tuning" / "toy")
    assert table.groupby("who").size().tolist() == [4, 4], "two rates, then extended at both edges as far as `most`"
    for who, found in best.items():
        rows = table[table["who"] == who]
        assert found.choice.settings["lr"] == rows.loc[rows["validation"].idxmax(), "lr"]
        run = found.run(Run(SoftmaxTransformer(), Hyperteacher(), steps=7))
        assert run == Run(
            SoftmaxTransformer(), Hyperteacher(), steps=4,
            optimizer=AdamW(lr=found.choice.settings["lr"], weight_decay=found.choice.settings["weight_decay"]),
        )  # fmt: skip
    with pytest.raises(ConfigError, match="holds no tuning yet; make it with: compolens tune"):
        tuned(made / "nowhere")
    with pytest.raises(ConfigError, match=r"is a folder of tunings; name one of them, such as '.*toy'"):
        tuned(made / "tuning")
    with pytest.raises(ConfigError, match="toy is a map, and no tuning"):
        tuned(made / "maps" / "toy")
    with pytest.raises(ConfigError, match="no architecture 'sofmax'; did you mean 'softmax'"):
        best["sofmax"]


def test_a_tuning_has_ended_when_its_extended_grid_is_measured(made, tmp_path):
    tuning = one_of(made / "grid.py", "tunings", "toy")
    assert tuning.ended(made / "tuning" / "toy") and not tuning.ended(made / "nowhere")
    folder, config = made / "tuning" / "toy", map_files.read_config(made / "tuning" / "toy")
    table = map_files.read_table(folder).drop(columns="map")
    described = {cell.name for cell in tuning.cells()}
    for kept, chosen in ((table["cell"].isin(described), True), (table["cell"].isin(sorted(described)[1:]), False)):
        (tmp_path / "toy").mkdir(exist_ok=True)
        map_files.write(tmp_path / "toy", config, table[kept], None, {"environments": [], "command": ""})
        assert not tuning.ended(tmp_path / "toy")
        if chosen:
            assert set(tuned(tmp_path / "toy")) == {"softmax", "hypernetwork"}
        else:
            with pytest.raises(ConfigError, match="1 of 4 settings are not measured yet"):
                tuned(tmp_path / "toy")
    map_files.write(tmp_path / "toy", config, table.drop(table.index[~table["cell"].isin(described)][0]), None, {})
    with pytest.raises(ConfigError, match=r"its grid was extended, and not all .*\(settings tried: .* 3.*\)"):
        tuned(tmp_path / "toy")


def test_comparisons_that_are_not_fair_are_refused(made):
    tuning = one_of(made / "grid.py", "tunings", "toy")
    run = tuning.runs["softmax"]
    for name, wrong, message in (
        ("validation", dataclasses.replace(run.task, validation=0), "sets no compositions aside"),
        ("seed", dataclasses.replace(run.task, teacher_seed=3), "one of those reported"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(tuning, runs={name: dataclasses.replace(run, task=wrong)})
    other = Run(HypernetworkTransformer(), run.task, steps=4, init_seed=9, data_seed=9, batch_size=8)
    with pytest.raises(ConfigError, match="differs from the others in more than its architecture"):
        dataclasses.replace(tuning, runs={"softmax": run, "hypernetwork": other})
    with pytest.raises(ConfigError, match=r"lr must be several values, such as \(0\.001,\), got 0\.001"):
        dataclasses.replace(tuning, lr=1e-3)
    with pytest.raises(ConfigError, match="more than most=4"):
        dataclasses.replace(tuning, lr=(1e-4, 1e-3, 3e-3, 1e-2, 3e-2))
