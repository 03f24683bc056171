"""Views are functions from models and a state to a figure, a number, and a program that prints that number."""

import contextlib
import html
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from compolens import adopt, load, recipes
from compolens.activations import record
from compolens.explore import State, Subject, edits, views
from compolens.explore.explorer import DEPENDS, Explorer
from compolens.explore.frozen import frozen
from compolens.explore.sets import mean, pooled
from compolens.explore.state import COLOURS, WRITES, from_ranges, to_ranges
from compolens.explore.views.attention import labels_of, ticks_of
from compolens.explore.views.diff import difference
from compolens.explore.views.grid import by_composition
from compolens.explore.views.ladder import SEARCHED, rungs
from compolens.explore.views.parts import effects
from compolens.explore.views.sites import patched
from compolens.figures import plotlyjs
from compolens.foundation.configs import ConfigError

DRAWN = 48
ONE = State(episodes=DRAWN)
SET = State(episodes=DRAWN, chosen=tuple(range(24)), split="test")


@pytest.fixture(scope="module")
def subjects(tiny_models, tiny_categorical_models, tiny_regression_models):
    """name -> the model, of every tiny one."""
    folders = {**tiny_models, **tiny_categorical_models, **tiny_regression_models}
    return {name: Subject(load(folder), DRAWN) for name, folder in folders.items()}


def printed(program):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(program, {})
    return float(said.getvalue().split()[-1])


# ---- the state -------------------------------------------------------------------------------------------------------
STATES = st.builds(
    State,
    model=st.sampled_from(["", "softmax", "a b&c"]), step=st.none() | st.integers(0, 9),
    split=st.sampled_from(["test", "ood"]),
    chosen=st.sets(st.integers(0, 99), min_size=1, max_size=9).map(lambda found: tuple(sorted(found))),
    donor=st.integers(-9, 9), layer=st.integers(0, 3), at=st.none() | st.integers(0, 4), role=st.sampled_from(["", "context"]),
    colour=st.sampled_from(COLOURS), write=st.sampled_from(WRITES),
    parts=st.dictionaries(st.integers(0, 9), st.integers(-20, 20).map(lambda x: x / 10), max_size=3).map(
        lambda found: tuple(sorted(found.items()))
    ),
)  # fmt: skip


@given(STATES)
@settings(max_examples=60, deadline=None)
def test_an_address_holds_the_whole_state(state):
    assert State.from_query("?" + state.to_query()) == state


@given(st.sets(st.integers(0, 300), max_size=40).map(sorted))
@settings(max_examples=40, deadline=None)
def test_ranges_hold_every_number(numbers):
    assert from_ranges(to_ranges(numbers)) == tuple(numbers)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("modell=x", "did you mean 'model'"),
        ("split=odd", "did you mean 'ood'"),
        ("chosen=1-x", "ranges such as 0-3,7"),
        ("chosen=512", "not among the 512"),
        ("chosen=3-1", "ascends, such as 1-3, got '3-1'"),
        ("chosen=0-99999999999", "from 0 to 8191 at most"),
        ("layer=one", "layer='one'"),
        ("parts=1", "parts='1'"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(query, said):
    with pytest.raises(ConfigError, match=said):
        State.from_query(query)


# ---- numbers ---------------------------------------------------------------------------------------------------------
def test_intervals_run_over_compositions_then_episodes_then_nothing():
    error, weight = np.array([0.1, 0.2, 0.4, 0.1]), np.ones(4)
    assert pooled(error, weight, np.array([0, 0, 1, 1])).unit == "compositions"
    assert pooled(error, weight, np.zeros(4)).unit == "episodes"
    alone = pooled(error[:1], weight[:1], np.zeros(1))
    assert alone.unit == "" and math.isnan(alone.lo) and alone.value == pytest.approx(0.9)
    middle, lo, hi = mean(np.stack([error, weight], 1), np.array([0, 0, 1, 1]))
    assert middle == pytest.approx([0.2, 1.0]) and lo[0] < 0.2 < hi[0]
    assert (lo[1], hi[1]) == pytest.approx((1.0, 1.0))  # what does not vary has no interval


def test_intervals_of_means_and_of_differences_are_the_textbooks_where_units_weigh_the_same():
    """Student's t over units: of the units' means, and of the paired differences of two models."""
    rng, composition = np.random.default_rng(0), np.repeat(np.arange(7), 4)
    values = rng.normal(size=(28, 2))
    for k, (middle, *ends) in enumerate(zip(*mean(values, composition), strict=True)):
        of_units = values[:, k].reshape(7, 4).mean(1)
        assert middle == pytest.approx(of_units.mean())
        assert ends == pytest.approx(stats.t.interval(0.95, 6, of_units.mean(), stats.sem(of_units)), rel=5e-3)
    one, two = (pd.DataFrame({"error": e, "weight": 1.0, "composition": composition}) for e in np.abs(values).T)
    found, paired = difference(one, two), (two["error"] - one["error"]).to_numpy().reshape(7, 4).mean(1)
    assert found.value == pytest.approx(paired.mean()) and found.unit == "compositions"
    wanted = stats.ttest_1samp(paired, 0).confidence_interval(0.95)
    assert (found.lo, found.hi) == pytest.approx((wanted.low, wanted.high), rel=5e-3)
    alone = difference(one[:4], two[:4])
    assert math.isnan(alone.lo) and alone.unit == ""


def test_the_interval_of_a_difference_covers_where_percentiles_do_not():
    """Five compositions of unequal weight, two models whose true scores differ by 0.1, 400 times."""
    hits = 0
    for k in range(400):
        rng = np.random.default_rng(k)
        weight = np.exp(0.8 * rng.normal(size=5))
        frames = [
            pd.DataFrame({"error": weight * lack * rng.gamma(4.0, 0.25, size=5), "weight": weight, "composition": range(5)})
            for lack in (0.2, 0.3)
        ]
        found = difference(*frames)
        hits += found.lo <= 0.1 <= found.hi
    assert 0.92 <= hits / 400 <= 0.99, "percentiles of a bootstrap: about 0.8"


# ---- every view of every family --------------------------------------------------------------------------------------
VIEWS = ("grid", "worst", "sites", "heads", "attention", "code", "ladder", "parts")


@pytest.mark.parametrize("state", [ONE, SET], ids=["one", "set"])
@pytest.mark.parametrize("name", ["softmax", "hypernetwork", "hyla", "fuzzy", "sparse", "descent"])
def test_every_view_is_drawn_and_its_program_prints_its_number(subjects, name, state):
    for view in VIEWS:
        shown = getattr(views, view)(subjects[name], state)
        assert shown.drawing.plotly().data
        assert printed(shown.python) == pytest.approx(shown.number.value, rel=1e-4, abs=1e-5, nan_ok=True), (view, shown.what)
        assert state.single == (shown.number.unit == "") or view == "grid" or math.isnan(shown.number.lo)


@pytest.mark.parametrize(
    "settings", [{"colour": COLOURS[2]}, {"write": WRITES[0]}, {"write": WRITES[2]}, {"parts": ((2, 0.7),)}]
)
def test_programs_of_other_settings_print_the_number_too(subjects, settings):
    view = views.sites if "colour" in settings else views.code
    shown = view(subjects["softmax"], replace(SET, **settings))
    assert printed(shown.python) == pytest.approx(shown.number.value, rel=1e-4, abs=1e-5)


def test_patching_over_a_set_is_what_the_probe_measures(subjects, tiny_models):
    table, _ = recipes.load_recipe("probes", "patching")(load(tiny_models["hypernetwork"]), episodes=DRAWN)
    subject, state = subjects["hypernetwork"], State(episodes=DRAWN, chosen=tuple(range(DRAWN)))
    table = table[(table["split"] == "ood") & (table["control"] == "")].set_index(["layer", "role"])
    for site, number in zip(subject.sites, patched(subject, state), strict=True):
        if (site.layer, site.role) in table.index:
            row = table.loc[(site.layer, site.role)]
            wanted = (row["value"], row["lo"], row["hi"])
            assert (number.value, number.lo, number.hi) == pytest.approx(wanted, abs=1e-4, nan_ok=True)


def test_effects_of_parts_over_a_set_are_what_the_probe_measures(subjects, tiny_models):
    table, _ = recipes.load_recipe("probes", "components")(load(tiny_models["hypernetwork"]), episodes=DRAWN)
    subject, state = subjects["hypernetwork"], State(episodes=DRAWN, chosen=tuple(range(DRAWN)))
    table = table[(table["split"] == "ood") & (table["control"] == "") & (table["metric"] == "effect")]
    table = table[table["counterfactual"] == "whole code"].set_index("component")
    found = effects(subject, state)
    assert [part.name for part, _ in found] == list(table.index)
    for part, number in found:
        row = table.loc[part.name]
        assert (number.value, number.lo, number.hi) == pytest.approx(
            (row["value"], row["lo"], row["hi"]), abs=1e-4, nan_ok=True
        )


def test_scores_are_those_of_the_task(subjects):
    for split, name in (("ood", "softmax"), ("test", "fuzzy")):
        subject = subjects[name]
        with torch.no_grad():
            wanted = subject.task.score(subject.model(subject.drawn(split).tokens), subject.drawn(split).targets)
        assert views.grid(subject, replace(ONE, split=split)).number.value == pytest.approx(wanted, abs=1e-5)


def test_held_out_compositions_are_hatched(subjects):
    subject = subjects["softmax"]
    (heat,) = views.grid(subject, ONE).drawing.panels[0].marks
    hatched = {(row["x"], row["y"]) for _, row in heat.data[heat.data["held_out"]].iterrows()}
    assert hatched == {("0", "3"), ("1", "4"), ("2", "5")}
    assert len(heat.hatches()) == 3 and set(by_composition(subject)["held_out"]) == {True, False}


def test_a_click_on_the_grid_leads_to_the_worst_episode_of_that_composition(subjects, tiny_models):
    explorer = Explorer([tiny_models["softmax"]])
    cells = explorer.view("grid", ONE).cells
    for cell, (composition, split) in list(cells.items())[:4]:
        state = explorer.clicked("grid", ONE, *cell)
        rows = subjects["softmax"].results(split)
        rows = rows[rows["composition"] == composition]
        assert state.split == split and state.chosen == (int(rows.loc[rows["error"].idxmax(), "episode"]),)
    assert explorer.clicked("grid", ONE, 99, 99) == ONE


# ---- attention -------------------------------------------------------------------------------------------------------
def test_positions_are_called_by_their_roles():
    labels = labels_of(12, {"context": range(9), "readout": [-2, -1]})
    assert labels == [*(f"context {i}" for i in range(9)), "position 9", "readout 0", "readout 1"]
    assert ticks_of(labels) == {"context 0": "context", "context 8": "8", "readout 0": "readout"}


def test_masked_pairs_are_missing_and_no_others(subjects, tiny_task):
    drawing = views.attention(subjects["softmax"], ONE).drawing
    values, _, _ = drawing.panels[0].marks[0].grid()
    assert (np.isfinite(values) == tiny_task.mask.numpy()).all()


# ---- codes that are written ------------------------------------------------------------------------------------------
def test_random_subspaces_make_moves_of_the_same_length_and_rank(subjects):
    """Whatever is written lies in the directions that the control turns, so its moves are as long as those they stand for."""
    subject = subjects["softmax"]
    site = subject.site(replace(SET, at=1, role="context"))
    at, base = subject.code_at(site), subject.bases(SET)
    (seen,) = record(subject.model, [base], [site[1]])
    where = edits.positions(subject.model, site.role)
    shown = at.shown(seen.sites[site[1]][:, where])
    for code in (subject.features(base), torch.rand(len(base.tokens), 6).double()):
        moved = at.write(subject.model, seen.sites[site[1]], code)[:, where] - shown
        basis = edits.moved_directions(at).to(moved)
        assert (moved @ basis @ basis.T - moved).abs().max() < 1e-4 * moved.abs().max()
    assert edits.edit(subject, SET, site, code).rank == basis.shape[1] <= 2 * 6


def test_the_donors_code_written_whole_is_compared_with_the_donors_task(subjects):
    subject, state = subjects["hypernetwork"], replace(SET, write="donor's code")
    aims = edits.goals(subject, state, edits.code_to_write(subject, state))
    wanted = subject.task.render(subject.donors(state).codes, subject.bases(state).inputs)
    assert torch.equal(aims.written.targets, wanted.targets)
    by_hand = tuple((i, float(x)) for i, x in enumerate(subject.features(subject.donors(ONE))[0]))
    one = replace(ONE, write="own code", parts=by_hand)
    aims = edits.goals(subject, one, edits.code_to_write(subject, one))
    assert torch.allclose(
        aims.written.targets, subject.task.render(subject.donors(ONE).codes, subject.bases(ONE).inputs).targets
    )


def test_of_an_episode_that_is_its_own_donor_the_code_is_its_own(subjects):
    subject = subjects["softmax"]
    for write in WRITES[1:]:
        shown = views.code(subject, replace(SET, donor=0, write=write))
        assert "An episode is its own donor: nothing is moved." in shown.drawing.caption and "own task" in shown.what
        assert printed(shown.python) == pytest.approx(shown.number.value, rel=1e-4)


def test_codes_of_categories_have_no_task_of_their_own_when_moved_by_hand(subjects):
    shown = views.code(subjects["fuzzy"], replace(ONE, parts=((0, 0.5),)))
    assert "cannot show a task" in shown.drawing.caption and "own task" in shown.what


def test_codes_without_factors_are_moved_as_they_are(subjects):
    """Linear regression names no factors; its weights are numbers, so a task under weights moved by hand is known."""
    subject = subjects["descent"]
    assert subject.part_names() == ["weights: 0", "weights: 1", "weights: 2"]
    state = replace(ONE, write=WRITES[0], parts=((1, -0.7),))
    code = edits.code_to_write(subject, state)
    aim = edits.goals(subject, state, code).written
    assert aim.codes["weights"][0, 1] == pytest.approx(-0.7) and not torch.equal(aim.targets, subject.bases(state).targets)
    least, most = subject.span
    assert min(least) < 0 < max(most)


# ---- the ladder ------------------------------------------------------------------------------------------------------
def test_rungs_are_what_other_views_say_of_them(subjects):
    subject, state = subjects["hypernetwork"], replace(SET, search=True)
    found, missing = rungs(subject, state.split, subject.numbers(state), state)
    scores = {rung.name: rung.number.value for rung in found}
    assert list(scores) == ["own answer", "own code written", "true code written", "best code", "ceiling"] and not missing
    assert scores["own answer"] == pytest.approx(views.worst(subject, state).number.value)
    as_is = views.code(subject, replace(state, write=WRITES[0])).number.value  # against its own task
    assert scores["true code written"] == pytest.approx(as_is) and scores["ceiling"] == pytest.approx(1)
    assert next(rung for rung in found if rung.name == "best code").n == SEARCHED


def test_what_no_family_can_say_is_missing_from_the_ladder_with_its_reason(subjects):
    shown = views.ladder(subjects["sparse"], replace(ONE, search=True))
    assert "No best code: Relations cannot ask what its context shows" in shown.drawing.caption
    own, mean_of = shown.drawing.panels[0].marks
    assert (own.label, mean_of.label[:24]) == ("this episode", "mean of its composition,")


# ---- two models ------------------------------------------------------------------------------------------------------
def test_differences_are_antisymmetric_and_vanish_for_equal_models(subjects, tiny_models):
    one, two = subjects["softmax"], Subject(load(tiny_models["softmax"], step=0), DRAWN)
    there, back = views.diff(one, two, ONE).number, views.diff(two, one, ONE).number
    assert there.value == pytest.approx(-back.value) and there.lo == pytest.approx(-back.hi, abs=1e-6)
    same = difference(one.results("ood"), one.results("ood"))
    assert (same.value, same.lo, same.hi) == (0, 0, 0)
    assert printed(views.diff(one, two, replace(ONE, other_step=0)).python) == pytest.approx(there.value, abs=1e-5)


def test_a_difference_says_what_the_two_are_to_one_another(subjects, tiny_models):
    one, early = subjects["softmax"], Subject(load(tiny_models["softmax"], step=0), DRAWN)
    assert "The same model twice: no difference" in views.diff(one, one, ONE).drawing.caption
    assert "Two steps of one training: no claim" in views.diff(one, early, ONE).drawing.caption
    assert "Two models, one seed each: no claim" in views.diff(one, subjects["hypernetwork"], ONE).drawing.caption


def test_models_of_different_tasks_are_not_compared(subjects):
    with pytest.raises(ConfigError, match="different tasks"):
        views.diff(subjects["softmax"], subjects["fuzzy"], ONE)


# ---- the task as its family shows it ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "said"),
    [("softmax", "module"), ("hyla", "last panel"), ("fuzzy", "∧"), ("sparse", "composition"), ("plain", "target")],
)
def test_families_show_their_episodes(subjects, name, said):
    subject = subjects[name]
    sheets = subject.task.sheets(subject.drawn("ood"), subject.answers("ood"))
    assert said in str(sheets)
    assert all(len(row) == len(sheet.columns or sheet.rows[0]) for sheet in sheets for row in sheet.rows)


def test_the_grid_of_sraven_withholds_the_last_panel_and_marks_what_is_wrong(subjects):
    subject = subjects["hyla"]
    episodes = subject.drawn("ood")
    panels, last = subject.task.sheets(episodes, subject.answers("ood"))
    assert panels.rows[2][2] == "? ?" and len(last.rows) == 2
    wrong = subject.answers("ood")[0, -2:].argmax(-1) != episodes.targets[0, -2:]
    assert [row[-1] == "wrong" for row in last.rows] == wrong.tolist()


# ---- what a page asks ------------------------------------------------------------------------------------------------
def test_views_are_computed_again_only_where_what_they_depend_on_has_changed(tiny_models):
    explorer = Explorer(tiny_models.values())
    assert explorer.view("grid", ONE) is explorer.view("grid", replace(ONE, head=1, chosen=(3,)))
    assert explorer.view("attention", ONE) is not explorer.view("attention", replace(ONE, head=1))
    assert all(set(names) <= set(State.__dataclass_fields__) for names in DEPENDS.values())


def test_sites_and_parts_are_offered_or_said_to_be_missing(tiny_models, tiny_regression_models):
    explorer = Explorer([tiny_models["hypernetwork"], tiny_regression_models["plain"]])
    facts = explorer.facts(ONE)
    assert facts.site == (3, "all") and facts.steps == [0, 1, 2] and len(facts.parts) == 6 and not facts.missing
    facts = explorer.facts(replace(ONE, model="plain"))
    assert [name for name, *_ in facts.parts] == ["weights: 0", "weights: 1", "weights: 2"]
    with pytest.raises(ConfigError, match="no model 'softmax'"):
        explorer.facts(replace(ONE, model="softmax"))


def test_moving_about(tiny_models):
    explorer = Explorer([tiny_models["softmax"]])
    assert explorer.step_by(ONE, -1).chosen == (DRAWN - 1,) and explorer.step_by(ONE, 1).chosen == (1,)
    same = explorer.of_composition(ONE)
    composition = explorer.subject(ONE).drawn("ood").composition
    assert same.chosen == tuple((composition == composition[0]).nonzero()[:, 0].tolist())
    assert explorer.all_drawn(ONE).chosen == tuple(range(DRAWN))
    assert explorer.layer_by(ONE, -1).layer == 1 and explorer.layer_by(replace(ONE, layer=1), 1).layer == 0
    assert explorer.head_by(ONE, -1).head == 1 and explorer.head_by(replace(ONE, head=1), 1).head == 0


# ---- frozen ----------------------------------------------------------------------------------------------------------
def test_a_frozen_page_holds_every_view_and_the_state_and_asks_nothing_of_any_host(tiny_models):
    explorer = Explorer([tiny_models["softmax"], tiny_models["hypernetwork"]])
    state = replace(ONE, chosen=(3,), other="hypernetwork", parts=((2, 0.5),))
    page = frozen(explorer, state).replace(plotlyjs.script(), "")
    assert not re.findall(r"(?:src|href)=\"(?!data:)|https?://", page)
    assert state.to_query() in html.unescape(page)
    for name in DEPENDS:
        view, held = explorer.view(name, state), re.search(rf'id="data-plot-{name}">(.*?)</script>', page).group(1)
        kinds = [trace["type"] for trace in json.loads(held)["data"]]
        assert set(kinds) == {trace.type for trace in view.drawing.plotly().data}
        assert f"{view.what}: {view.number}" in html.unescape(page)


def test_a_frozen_page_says_what_is_missing(tiny_models, tmp_path):
    """An adopted network without attention and without a residual stream, whose class comes from a file of one's own."""
    (tmp_path / "own.py").write_text(OWN)
    own = recipes.load_file(tmp_path / "own.py")
    adopt(own.Mean(), load(tiny_models["softmax"]).task, sites={"hook_mean": "inner"}, evaluation_episodes=8).save(
        tmp_path / "m"
    )
    explorer = Explorer([tmp_path / "m"], (own.Mean,))
    page = html.unescape(frozen(explorer, replace(ONE, episodes=24)))
    assert "no hook point of attention weights" in page and "does not show its whole residual stream" in page
    shown = explorer.view("grid", replace(ONE, episodes=24))
    assert printed(shown.python) == pytest.approx(shown.number.value, rel=1e-4)  # the program knows where the class is


OWN = """
import torch


class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = torch.nn.Identity(), torch.nn.Linear(7, 2)
        self.eval()

    def forward(self, tokens):
        return self.last(self.inner(tokens.cumsum(1)))
"""
