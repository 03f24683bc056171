"""Tables: nothing without provenance and controls, nothing stale in silence; intervals over seeds and compositions."""

import json
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from compolens import citations, tables
from compolens.foundation import digests, map_files, model_folders, versions
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import paired_interval, two_level_interval, weighted_mean
from compolens.tables import COLUMNS, StaleTable
from compolens.zoo import load


@pytest.fixture
def model(tiny_models, tmp_path):
    """A copy of a trained folder, to write tables into."""
    return shutil.copytree(tiny_models["softmax"], tmp_path / "softmax")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "codes.py"
    path.write_text("def probe(trained): ...\n")
    return path


def table():
    rows = [("r2", 0.75, 0.7, 0.8, "ood", "blocks.0", "readout", control, 64) for control in ("", "untrained")]
    return pd.DataFrame(rows, columns=list(COLUMNS)).assign(composition="0+3", layer=[0, 1])


def save(folder, recipe, rows=None, **options):
    provenance = {
        "weights": tables.file_digest(folder / "weights.safetensors"),
        **versions.describe(recipe),
        "arguments": {"episodes": 64},
    }
    return tables.save(folder, "codes", table() if rows is None else rows, provenance, **options)


def test_text_that_a_spreadsheet_would_run_is_written_as_text_and_read_as_it_was(model, recipe):
    names = ["=1+1", "'=1+1", "-2", "@x", "+1|' /C calc'!A0", "softmax"]
    rows = pd.concat([table()] * 3, ignore_index=True).assign(composition=names, note=names[::-1])
    path = save(model, recipe, rows)
    read = tables.read(model, "codes")
    assert read["composition"].tolist() == names and read["note"].tolist() == names[::-1]
    cells = [cell for line in path.read_text().splitlines() for cell in line.split(",")]
    assert not [cell for cell in cells if cell[:1] in tuple("=+@")] and "'=1+1" in cells and "-2" in cells


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "no path", "long", "null", "no Python"])
def test_a_probe_that_a_folder_names_is_read_if_it_is_a_file_of_pythons(model, recipe, tmp_path, kind):
    """Whoever made a folder may have written any path there; /dev/zero would be read for ever."""
    save(model, recipe)
    place = tmp_path / "named.py"
    named = {"no path": [3], "long": "x" * 5000 + ".py", "null": "a\0.py", "no Python": "/etc/passwd"}.get(kind, str(place))
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    path = model / "tables" / "codes.json"
    provenance = json.loads(path.read_text())
    provenance["recipe_path"] = named
    assert versions.recipe_of("codes", provenance) is None and versions.recipe_of("codes", {}) is None
    provenance.pop(digests.SEAL)
    path.write_text(json.dumps(digests.sealed(provenance)))
    assert tables.why_stale(model, "codes") == ""
    assert citations.uses(model) == [] or all(use.by != "table codes" for use in citations.uses(model))


def test_a_root_that_has_no_end_is_refused(model, monkeypatch):
    monkeypatch.setattr(model_folders, "MOST_FOLDERS", 3)
    with pytest.raises(ConfigError, match="has more than 3 folders; name one that is nearer to the models"):
        tables.find([model.parent.parent])


# ---- save and read ---------------------------------------------------------------------------------------------------
def test_a_table_survives_the_disk(model, recipe):
    path = save(model, recipe)
    assert path == model / "tables" / "codes.csv"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pd.testing.assert_frame_equal(tables.read(model, "codes"), table(), check_dtype=False)


def test_an_empty_control_stays_a_string_and_a_missing_number_stays_missing(model, recipe):
    save(model, recipe, table().assign(lo=[np.nan, 0.1]))
    rows = tables.read(model, "codes")
    assert rows["control"].tolist() == ["", "untrained"]
    assert np.isnan(rows["lo"][0]) and rows["lo"][1] == 0.1


def test_compositions_are_read_as_names(model, recipe):
    save(model, recipe, table().assign(composition=["3", "10"]))
    assert tables.read(model, "codes")["composition"].tolist() == ["3", "10"]
    save(model, recipe, table().assign(composition=["None", "NA"]))
    assert tables.read(model, "codes")["composition"].tolist() == ["None", "NA"]


def test_words_of_earlier_versions_are_translated_and_others_left_alone(model, recipe):
    rows = table().assign(reference="untrained twin", fit="transfer", note="transfer")
    save(model, recipe, rows)
    read = tables.read(model, "codes")
    assert set(read["reference"]) == {"untrained control"} and set(read["fit"]) == {"fitted on train"}
    assert set(read["note"]) == {"transfer"}


def test_numbers_keep_six_digits(model, recipe):
    save(model, recipe, table().assign(value=[1 / 3, 2e-9]))
    assert tables.read(model, "codes")["value"].tolist() == pytest.approx([1 / 3, 2e-9], rel=1e-5)


def test_whole_numbers_stay_whole_though_one_is_missing(model, recipe):
    path = save(model, recipe, table().assign(units=[1234567, np.nan], few=[3, np.nan], value=[1234567, 0.5]))
    header, first, second = (line.split(",") for line in path.read_text().splitlines())
    written = [dict(zip(header, line, strict=True)) for line in (first, second)]
    assert [(row["units"], row["few"], row["value"]) for row in written] == [("1234567", "3", "1.23457e+06"), ("", "", "0.5")]
    assert tables.read(model, "codes")["units"].tolist()[0] == 1234567


def test_provenance_lies_beside_the_table(model, recipe):
    path = save(model, recipe)
    provenance = json.loads(path.with_suffix(".json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", provenance["weights"]) and re.fullmatch("[0-9a-f]{64}", provenance["recipe"])
    assert provenance["weights"] != provenance["recipe"]
    assert provenance["arguments"] == {"episodes": 64}
    assert provenance["probe_version"] is None and provenance["recipe_path"] == str(recipe)
    assert provenance["table"] == tables.file_digest(path) and "episodes" not in provenance


def test_per_episode_rows_lie_beside_the_table(model, recipe):
    episodes = pd.DataFrame({"score": [0.5, 1.0], "prediction": [[0.1, 0.2], [0.3, 0.4]]})
    path = save(model, recipe, episodes=episodes)
    again = pd.read_parquet(path.with_suffix(".episodes.parquet"))
    assert json.loads(path.with_suffix(".json").read_text())["episodes"] == tables.file_digest(
        path.with_suffix(".episodes.parquet")
    )
    assert again["score"].tolist() == [0.5, 1.0] and again["prediction"][1].tolist() == [0.3, 0.4]


def test_saving_leaves_no_temporary_file(model, recipe):
    save(model, recipe)
    assert sorted(path.name for path in (model / "tables").iterdir()) == ["codes.csv", "codes.json"]


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("column", COLUMNS)
def test_a_table_without_one_of_the_columns_is_refused(model, recipe, column):
    with pytest.raises(ConfigError, match=f"lacks the column '{column}'"):
        save(model, recipe, table().drop(columns=column))
    assert not (model / "tables").exists()


def test_a_table_without_control_rows_is_refused(model, recipe):
    with pytest.raises(ConfigError, match="no number without its controls"):
        save(model, recipe, table().assign(control=""))
    with pytest.raises(ConfigError, match="no number without its controls"):
        save(model, recipe, table().assign(control=np.nan))
    assert not (model / "tables").exists()


def test_a_missing_table_names_the_command(model):
    with pytest.raises(ConfigError, match=f"compolens probe codes.py {model}"):  # no built-in probe's: a file of one's own
        tables.read(model, "codes")
    spaced = model.rename(model.with_name("my model"))
    with pytest.raises(ConfigError, match=f"compolens probe generalization '{spaced}'"):
        tables.read(spaced, "generalisation")


# ---- staleness -------------------------------------------------------------------------------------------------------
def test_provenance_that_cannot_be_read_names_its_table_and_the_command(model, recipe):
    path = save(model, recipe)
    path.with_suffix(".json").write_text("[[[")
    with pytest.raises(tables.UnusableTable, match=r"codes.*measure it again with: compolens probe codes"):
        tables.provenance_of(model, "codes")


def test_a_warning_of_a_stale_table_points_to_who_read_it(model, recipe):
    save(model, recipe)
    shutil.copy(model / "steps" / "0.safetensors", model / "weights.safetensors")
    with pytest.warns(StaleTable) as told:
        tables.read(model, "codes")
    assert [one.filename for one in told] == [__file__]


def test_a_fresh_table_is_not_stale(model, recipe):
    save(model, recipe)
    assert tables.why_stale(model, "codes", recipe) == ""


def test_a_table_is_stale_when_the_weights_change(model, recipe):
    save(model, recipe)
    shutil.copy(model / "steps" / "0.safetensors", model / "weights.safetensors")
    with pytest.warns(StaleTable, match=f"weights changed.*compolens probe {recipe} {model}"):
        tables.read(model, "codes")


def test_a_table_is_stale_when_the_probe_changes(model, recipe):
    save(model, recipe)
    recipe.write_text("def probe(trained): return 1\n")
    with pytest.warns(StaleTable, match=r"codes\.csv is stale: the probe changed since it was measured;"):
        tables.read(model, "codes")


def test_a_table_is_stale_when_the_weights_are_gone(model, recipe):
    save(model, recipe)
    (model / "weights.safetensors").unlink()
    assert "weights changed" in tables.why_stale(model, "codes", recipe)


def test_a_block_reads_a_table_once_and_says_of_one_state_what_it_says(model, recipe):
    save(model, recipe)
    before = tables.read(model, "codes")
    with tables.read_once():
        first = tables.read(model, "codes")
        first["value"] = 0.0  # each reader has rows of its own
        tables.path_of(model, "codes").write_text("damaged")
        with tables.read_once():
            pd.testing.assert_frame_equal(tables.read(model, "codes"), before)
        pd.testing.assert_frame_equal(tables.read(model, "codes"), before)
        assert tables.has(model, "codes") and tables.why_stale(model, "codes") == ""
    assert not tables.has(model, "codes")
    with pytest.raises(tables.UnusableTable, match="changed after it was measured"), tables.read_once():
        tables.read(model, "codes")


def test_a_block_finds_a_thing_once_and_what_fails_is_not_remembered():
    asked = []

    def find():
        asked.append(len(asked))
        if len(asked) == 1:
            raise ConfigError("damaged")
        return asked

    with tables.read_once():
        with pytest.raises(ConfigError, match="damaged"):
            tables.found_once("what", find)
        with tables.read_once():
            first = tables.found_once("what", find)
        assert tables.found_once("what", find) is first and len(asked) == 2
        tables.found_once("something else", find)
    tables.found_once("what", find)
    assert len(asked) == 4


# ---- find and gather -------------------------------------------------------------------------------------------------
@pytest.fixture
def zoo(tiny_models, tmp_path, recipe):
    """Two models with a table, in a folder of their own."""
    for name, folder in tiny_models.items():
        save(shutil.copytree(folder, tmp_path / "zoo" / name), recipe)
    return tmp_path / "zoo"


def test_finding_lists_every_model_below_once(zoo):
    everything = [zoo / "hypernetwork", zoo / "softmax"]
    assert tables.find([zoo]) == everything
    assert tables.find([zoo, zoo / "softmax"]) == everything
    assert tables.find([zoo / "softmax"]) == [zoo / "softmax"]


def test_a_model_that_is_spelled_in_several_ways_is_found_once(zoo, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(zoo / "softmax")
    monkeypatch.chdir(tmp_path)
    spelled = ["zoo/softmax", zoo / "softmax", "zoo/../zoo/softmax", "link"]
    assert tables.find(spelled) == [Path("zoo/softmax")]
    assert len(tables.gather(spelled, "codes")) == 2
    for name in ("a", "b"):
        (tmp_path / "maps" / name).mkdir(parents=True)
        map_files.write(tmp_path / "maps" / name, {}, table(), None, {})
    assert tables.find_maps(["maps/a", tmp_path / "maps"]) == [Path("maps/a"), tmp_path / "maps" / "b"]
    assert len(tables.gather(["maps/a", tmp_path / "maps" / "a"], "table")) == 2


def test_a_model_that_is_the_folder_here_has_its_name(zoo, monkeypatch):
    monkeypatch.chdir(zoo / "softmax")
    assert tables.find(["."]) == [zoo / "softmax"] and tables.settings(".")["model"] == "softmax"
    assert set(tables.gather(".", "codes")["model"]) == {"softmax"} and load(".").name == "softmax"


def test_a_place_without_models_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="holds no trained model"):
        tables.find([tmp_path])
    with pytest.raises(ConfigError, match="does not exist"):
        tables.find([tmp_path / "nowhere"])


def test_gathering_joins_the_settings_as_columns(zoo):
    frame = tables.gather([zoo / "softmax", zoo / "hypernetwork"], "codes")
    assert len(frame) == 4 and frame.attrs["missing"] == []
    by_model = frame.groupby("model").first()
    assert by_model.loc["softmax", "architecture"] == "SoftmaxTransformer"
    assert by_model.loc["hypernetwork", "architecture"] == "HypernetworkTransformer"
    assert by_model.loc["hypernetwork", "architecture.d_code"] == 6
    assert set(frame["task"]) == {"Hyperteacher"} and set(frame["task.support"]) == {"connected"}
    assert set(frame["init_seed"]) == {0} and set(frame["steps"]) == {2} and set(frame["task.n_modules"]) == {6}


def test_a_setting_does_not_overwrite_a_column_of_the_table(zoo, recipe):
    save(zoo / "softmax", recipe, table().assign(steps=[7, 8]))
    assert tables.gather(zoo / "softmax", "codes")["steps"].tolist() == [7, 8]


def test_gathering_understands_globs_and_counts_each_model_once(zoo):
    everything = tables.gather(str(zoo / "**"), "codes")
    assert sorted(set(everything["model"])) == ["hypernetwork", "softmax"] and len(everything) == 4
    assert len(tables.gather([str(zoo / "*"), zoo / "softmax"], "codes")) == 4
    assert len(tables.gather(str(zoo.parent / "**"), "codes")) == 4, "at any depth"


def test_brackets_in_the_name_of_a_folder_are_no_pattern(zoo):
    for name, now in (("softmax", "m[1]"), ("hypernetwork", "m1")):
        (zoo / name).rename(zoo / now)
    assert set(tables.gather(str(zoo / "m[1]"), "codes")["model"]) == {"m[1]"}
    assert set(tables.gather(str(zoo / "*[1]"), "codes")["model"]) == {"m[1]"}
    assert set(tables.gather(str(zoo / "[m]1"), "codes")["model"]) == {"m1"}, "where no name has brackets, a set of characters"


def test_models_without_the_table_are_left_out_and_named(zoo):
    shutil.rmtree(zoo / "softmax" / "tables")
    frame = tables.gather(str(zoo / "*"), "codes")
    assert set(frame["model"]) == {"hypernetwork"}
    assert frame.attrs["missing"] == [str(zoo / "softmax")]


def test_a_table_that_no_model_has_names_the_command_and_the_nearest(zoo):
    with pytest.raises(ConfigError, match=r"of the 2 models .*'codse'.*did you mean 'codes'.*compolens probe \S+/codes.py"):
        tables.gather(str(zoo / "*"), "codse")


def test_folders_that_match_nothing_are_an_error(zoo):
    with pytest.raises(ConfigError, match="no trained model matches"):
        tables.gather(str(zoo / "nothing*"), "codes")


def test_gathering_leaves_a_stale_table_out_and_says_so(zoo):
    shutil.copy(zoo / "softmax" / "steps" / "0.safetensors", zoo / "softmax" / "weights.safetensors")
    with pytest.warns(StaleTable, match=f"{zoo / 'softmax'} is left out: .*codes.csv is stale: the weights changed"):
        frame = tables.gather(str(zoo / "*"), "codes")
    assert set(frame["model"]) == {"hypernetwork"} and frame.attrs["missing"] == []
    (reason,) = frame.attrs["left_out"].values()
    assert "measure it again with: compolens probe" in reason


def test_gathering_nothing_but_stale_tables_is_an_error_that_says_why(zoo, recipe):
    recipe.write_text("def probe(trained): return 2\n")
    with (
        pytest.warns(StaleTable),
        pytest.raises(ConfigError, match=r"the probe changed since .*; measure it again with: compolens probe"),
    ):
        tables.gather(str(zoo / "*"), "codes")


# ---- intervals -------------------------------------------------------------------------------------------------------
BETWEEN_SEEDS, BETWEEN_COMPOSITIONS, WITHIN = 0.05, 0.2, 0.4
SEEDS, COMPOSITIONS, EPISODES = 12, 20, 50


def simulated(rng, seeds=SEEDS, offset=0.0, shared=None, between=BETWEEN_COMPOSITIONS):
    """Scores 0.5 + offset + seed + composition (+ shared per seed and composition) + the noise of a mean over episodes."""
    groups = []
    for s in range(seeds):
        value = 0.5 + offset + BETWEEN_SEEDS * rng.normal() + between * rng.normal(size=COMPOSITIONS)
        value = value + WITHIN / EPISODES**0.5 * rng.normal(size=COMPOSITIONS) + (0 if shared is None else shared[s])
        groups.append(pd.DataFrame({"composition": range(COMPOSITIONS), "value": value, "weight": 1.0}))
    return groups


def analytic_error(between=BETWEEN_COMPOSITIONS):
    """Standard error of the mean score, from the variances that generated the data."""
    per_composition = between**2 + WITHIN**2 / EPISODES
    return ((BETWEEN_SEEDS**2 + per_composition / COMPOSITIONS) / SEEDS) ** 0.5


def widths(groups_of):
    return np.mean([np.diff(two_level_interval(groups_of(np.random.default_rng(k)), draws=500)[1:]) for k in range(20)])


def test_the_weighted_mean_is_the_pooled_score():
    rng = np.random.default_rng(0)
    error, weight = rng.uniform(0, 1, 12), rng.uniform(0.5, 2, 12)
    assert weighted_mean(1 - error / weight, weight) == pytest.approx(1 - error.sum() / weight.sum())


def test_the_point_is_the_mean_over_seeds_of_the_pooled_score():
    groups = [pd.DataFrame({"value": [0.0, 1.0], "weight": [1.0, 3.0]}), pd.DataFrame({"value": [0.5], "weight": [9.0]})]
    point, lo, hi = two_level_interval(groups)
    assert point == pytest.approx((0.75 + 0.5) / 2) and lo <= point <= hi


def test_the_interval_has_the_width_that_the_variances_imply():
    expected = 2 * 1.96 * analytic_error()
    assert 0.75 < widths(simulated) / expected < 1.5


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    covered = 0
    for k in range(100):
        _, lo, hi = two_level_interval(simulated(np.random.default_rng(k)), draws=400, seed=k)
        covered += lo <= 0.5 <= hi
    assert 88 <= covered <= 100


def test_a_lower_level_gives_a_narrower_interval():
    groups = simulated(np.random.default_rng(0))
    wide, narrow = (np.diff(two_level_interval(groups, level=level)[1:])[0] for level in (0.95, 0.5))
    assert 0.2 < narrow / wide < 0.5


def test_the_interval_is_far_wider_than_one_over_episodes():
    """Episodes taken for independent: the error of a mean over seeds x compositions x episodes values."""
    naive = 2 * 1.96 * WITHIN / (SEEDS * COMPOSITIONS * EPISODES) ** 0.5
    assert widths(simulated) > 4 * naive


def test_more_seeds_narrow_the_interval():
    assert widths(lambda rng: simulated(rng, seeds=3)) > 1.4 * widths(lambda rng: simulated(rng, seeds=12))


def test_compositions_are_resampled_within_a_seed():
    """With a single seed all that varies is compositions: the width is theirs."""
    expected = 2 * 1.96 * ((BETWEEN_COMPOSITIONS**2 + WITHIN**2 / EPISODES) / COMPOSITIONS) ** 0.5
    assert 0.7 < widths(lambda rng: simulated(rng, seeds=1)) / expected < 1.3


def test_seeds_that_agree_on_everything_leave_no_interval():
    groups = [pd.DataFrame({"value": [0.3] * 5, "weight": [1.0] * 5})] * 4
    assert two_level_interval(groups) == pytest.approx((0.3, 0.3, 0.3))


def test_intervals_are_a_function_of_their_seed():
    groups = simulated(np.random.default_rng(0))
    assert two_level_interval(groups, seed=1) == two_level_interval(groups, seed=1)
    assert two_level_interval(groups, seed=1) != two_level_interval(groups, seed=2)


def paired(rng, offset):
    """Two architectures on the same teachers: what makes a composition hard is common to both."""
    shared = 0.3 * rng.normal(size=(SEEDS, COMPOSITIONS)) + 0.2 * rng.normal(size=(SEEDS, 1))
    return (simulated(rng, offset=o, shared=shared, between=0.02) for o in (offset, 0.0))


def test_pairing_cancels_what_is_shared():
    left, right = paired(np.random.default_rng(0), offset=0.1)
    point, lo, hi = paired_interval(left, right)
    assert point == pytest.approx(two_level_interval(left)[0] - two_level_interval(right)[0])
    unpaired = sum(np.diff(two_level_interval(side)[1:])[0] ** 2 for side in (left, right)) ** 0.5
    assert hi - lo < unpaired / 2
    assert lo < 0.1 < hi


def test_a_paired_interval_of_equals_contains_0_as_often_as_it_says():
    covered = 0
    for k in range(60):
        _, lo, hi = paired_interval(*paired(np.random.default_rng(k), offset=0.0), draws=400)
        covered += lo <= 0 <= hi
    assert covered >= 51


def test_pairing_joins_on_the_composition_whatever_the_order():
    left, right = paired(np.random.default_rng(0), offset=0.1)
    shuffled = [group.sample(frac=1, random_state=0).reset_index(drop=True) for group in right]
    np.testing.assert_allclose(paired_interval(left, shuffled), paired_interval(left, right), rtol=1e-12)


def test_pairing_needs_as_many_seeds_on_both_sides():
    left, right = paired(np.random.default_rng(0), offset=0.0)
    with pytest.raises(ValueError):
        paired_interval(left, right[:-1])


def test_a_row_has_every_column_that_all_tables_have():
    made = tables.row("score", 0.5, split="ood", n=3, layer=2)
    assert tuple(made)[: len(COLUMNS)] == COLUMNS and made["layer"] == 2
    assert np.isnan(made["lo"]) and np.isnan(made["hi"]) and made["control"] == ""
    assert (made["metric"], made["value"], made["split"], made["n"]) == ("score", 0.5, "ood", 3)


def test_a_folder_of_folders_stands_for_the_models_below_it(zoo):
    below, named = tables.gather(zoo, "codes"), tables.gather([zoo / "softmax", zoo / "hypernetwork"], "codes")
    assert set(below["model"]) == set(named["model"]) == {"softmax", "hypernetwork"}
    with pytest.raises(ConfigError, match="was given no folder"):
        tables.gather([], "codes")


def test_a_misspelled_table_is_named(tiny_models, tmp_path):
    with pytest.raises(ConfigError, match=r"has no table 'generalisation' .*did you mean 'generalization'"):
        tables.read(tiny_models["softmax"], "generalisation")
    with pytest.raises(ConfigError, match="there is no folder"):
        tables.read(tmp_path / "nope", "generalization")
