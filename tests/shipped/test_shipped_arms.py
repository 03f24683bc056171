"""The arms that tell architecture from prior knowledge: each differs from its reference in what the page says alone."""

import dataclasses
import sys

import findings
import numpy as np
import pytest
from findings import ZOO, by_composition, by_seed, gap, scores, shown, with_interval

from compolens import HypernetworkTransformer, Hyperteacher, SoftmaxTransformer, tuned
from compolens.cli.train import read_runs
from compolens.foundation import files, map_files
from compolens.measures.intervals import mean_interval, paired_interval
from compolens.zoo.folders import read_run

TEXT = (ZOO.parent / "docs" / "findings" / "hyperteacher.md").read_text(encoding="utf-8")
PAGE = " ".join(TEXT.split())
VANILLA, GIVEN, HYPERNETWORK = "tuned/F-softmax", "arms/given", "tuned/F-hypernetwork"
NAMES = ("given", "two-layers", "tanh", "tanh-biases", "code-16", "code-4")
TRAINED = tuple(name for name in NAMES if name != "tanh")
ROWS = {"vanilla transformer, tuned": VANILLA, "hypernetwork transformer, tuned": HYPERNETWORK} | {
    f"`{name}`": f"arms/{name}" for name in TRAINED
}
SETTINGS = {
    "vanilla transformer": ("F", "softmax"), "hypernetwork transformer": ("F", "hypernetwork"),
    **{f"`{name}`": ("F-executors", name) for name in ("two-layers", "code-16", "code-4", "tanh")},
    "`tanh-biases`": ("F-biased", "tanh-biases"),
}  # fmt: skip
"""Row of the page -> tuning, and the name there."""


@pytest.fixture(scope="module")
def tunings():
    sys.path.insert(0, str(ZOO))
    import arms_tuning

    yield arms_tuning.tunings
    sys.path.remove(str(ZOO))


def test_every_arm_is_told_with_what_is_expected_of_it(tunings):
    described = [name for tuning in tunings.values() for name in tuning.runs]
    assert sorted(described) == sorted(NAMES)
    assert all(f"| `{name}` | " in PAGE for name in NAMES)
    trained = sorted(path.parent.name for path in (ZOO / "arms").glob("*/scores.json"))
    assert trained == sorted(f"{name}-{s}" for name in TRAINED for s in range(5))
    assert all(tunings[name].ended(ZOO / "tuning" / name) for name in tunings)


@pytest.mark.parametrize("row", SETTINGS)
def test_the_page_tells_what_was_chosen_with_the_seed_of_tuning(row):
    name, who = SETTINGS[row]
    choice, table = tuned(ZOO / "tuning" / name)[who].choice, map_files.read_table(ZOO / "tuning" / name)
    same = (table["who"] == who) & np.all([table[key] == value for key, value in choice.settings.items()], axis=0)
    ((test, held_out),) = table.loc[same, ["test", "ood"]].to_numpy()
    between = " to ".join(map(shown, choice.held_out_range))
    told = [f"{choice.settings['lr']:.3g}".lstrip("0"), shown(test), shown(held_out), f"{between} ({choice.close})"]
    assert findings.cells(TEXT, "tuned, seed 100", row) == told and not choice.edges


def test_the_page_tells_how_far_an_executor_without_biases_can_come():
    """Its answer is an odd function of x and a constant; the best one is the teacher's odd part and a constant."""
    best = {}
    for seed in (100, 0, 1, 2, 3, 4):
        task = Hyperteacher(teacher_seed=seed, split_seed=seed, validation=4 if seed == 100 else 0)
        episodes = task.sample(8192, "test", task.rng(0, "test"))
        x = episodes.tokens[..., : task.d_x]
        answer, mirrored = task.answer(episodes.codes, x), task.answer(episodes.codes, -x)
        part = (answer - mirrored) / 2 + ((answer + mirrored) / 2).mean((0, 1))
        best[seed] = float(task.score(part, episodes.targets))
    others = [best[s] for s in range(5)]
    between = f"{shown(min(others))} to {shown(max(others))}"
    assert (
        f"scores {shown(best[100])} on the training compositions of seed 100, and {between} on those of seeds 0 to 4" in PAGE
    )
    tried = map_files.read_table(ZOO / "tuning" / "F-executors")
    reached = tried[tried["who"] == "tanh"]["test"].max()
    assert f"The tuned arm reaches {shown(reached)}." in PAGE and 0.95 * best[100] < reached < best[100]
    two = tried[(tried["who"] == "two-layers") & (tried["lr"] == 0.01)]["ood"].item()
    assert f"`two-layers` had scored {shown(two)} on held-out compositions of seed 100 at the rate .01" in PAGE


def test_executors_see_the_task_of_f_and_none_contains_the_teacher(tunings):
    named = {"n_hidden": 1, "activation": "relu", "biases": False} | dataclasses.asdict(HypernetworkTransformer())
    for name, run in tunings["F-executors"].runs.items():
        assert run.task == Hyperteacher(teacher_seed=100, split_seed=100, validation=4)
        own = dataclasses.asdict(run.architecture)
        apart = {field for field, value in own.items() if value != named[field]}
        assert apart == {"two-layers": {"n_hidden"}, "tanh": {"activation"}}.get(name, {"d_code"})
    (biased,) = tunings["F-biased"].runs.values()
    assert biased == dataclasses.replace(run, architecture=biased.architecture)
    assert biased.architecture == dataclasses.replace(tunings["F-executors"].runs["tanh"].architecture, biases=True)


def test_the_code_is_given_to_the_vanilla_transformer_and_nothing_else_differs(tunings):
    (run,) = tunings["F-given"].runs.values()
    assert run.architecture == SoftmaxTransformer() and run.task.code_given
    assert dataclasses.replace(run.task, code_given=False) == next(iter(tunings["F-executors"].runs.values())).task
    episodes = run.task.sample(4, "ood", run.task.rng(0, "ood"))
    assert (episodes.tokens[..., -8:] == episodes.codes["modules"][:, None]).all()


# ---- given -----------------------------------------------------------------------------------------------------------
def lost(name, share=1.0):
    """A share of what is lost from training compositions to each held-out one."""
    pairs = zip(scores(name, "test"), by_composition(name), strict=True)
    return [rows.assign(value=share * (test - rows["value"])) for test, rows in pairs]


def test_arms_are_those_that_the_recipe_describes_at_the_rate_that_was_tuned(tunings):
    described = read_runs(ZOO / "arms.py")
    chosen = {who: tuned(ZOO / "tuning" / name)[who].choice for name, tuning in tunings.items() for who in tuning.runs}
    assert f"The rate of `given` is {shown(chosen['given'].settings['lr']).rstrip('0')}." in PAGE
    assert sorted(described) == sorted(f"{name}-{s}" for name in TRAINED for s in range(5))
    for name, run in described.items():
        assert run == read_run(ZOO / "arms" / name)
        choice = chosen[name.rpartition("-")[0]]
        assert run.optimizer.lr == choice.settings["lr"] and not choice.edges


@pytest.mark.parametrize("row", ROWS)
def test_the_page_tells_the_scores_with_and_without_z(row):
    test, held_out = (np.array(scores(ROWS[row], split)) for split in ("test", "ood"))
    assert row != "`given`" or f"scores {shown(held_out.mean())} at F. From" in PAGE
    told = [*map(shown, (test.mean(), held_out.mean(), (test - held_out).mean())), " ".join(map(shown, held_out))]
    assert findings.cells(TEXT, "F, seeds 0 to 4", row) == told


def test_the_verdict_follows_from_the_rule():
    beyond = paired_interval(lost(GIVEN), lost(VANILLA, 0.5))
    assert f"`given` loses {with_interval(beyond)} more than that" in PAGE and "execution cannot be told" in PAGE
    assert beyond[1] < 0 < beyond[0] < beyond[2], "else it is told"


def test_the_page_tells_what_is_gained_by_giving_z():
    gains = [gap(GIVEN, VANILLA, split) for split in ("ood", "test")]
    assert f"better**, by {with_interval(gains[0])}. It answers training compositions better as well, by " in PAGE
    assert with_interval(gains[1]) in PAGE and gains[0][1] > 0 and gains[1][1] > 0
    above = gap(HYPERNETWORK, GIVEN)
    assert f"it scores {with_interval(above)} higher" in PAGE and above[1] < 0 < above[2]


# ---- executors that do not contain the teacher -----------------------------------------------------------------------
MINUS = "\N{MINUS SIGN}"
EXECUTORS = ("two-layers", "tanh-biases")
"""The two that the rule asks about."""


@pytest.mark.parametrize("name", TRAINED[1:])
def test_the_page_tells_how_far_an_arm_lies_from_both_that_it_is_compared_with(name):
    told = [with_interval(gap(f"arms/{name}", other)) for other in (VANILLA, HYPERNETWORK)]
    assert findings.cells(TEXT, "held out, less", f"`{name}`") == told


def test_what_the_gap_is_owed_to_follows_from_the_rule():
    two, tanh = (gap(f"arms/{name}", VANILLA) for name in EXECUTORS)
    assert two[1] > 0 and tanh[1] < 0 < tanh[2], "else it is told"
    assert "By the rule, what the gap is owed to cannot be told." in PAGE
    ahead = by_seed("arms/two-layers", VANILLA)
    lo, hi = mean_interval(ahead)
    assert lo < 0 < two[1] and (ahead > 0).sum() == 4, "fragile"
    assert f"in four seeds of five ({' '.join(map(shown, ahead))})".replace("-", MINUS) in PAGE
    assert f"Student's t over these five gives {shown(ahead.mean())} [{shown(lo)}, {shown(hi)}].".replace("-", MINUS) in PAGE
    means = [shown(float(np.mean(scores(f"arms/{name}")))) for name in EXECUTORS]
    assert "score {} (two generated layers) and {} (tanh)".format(*means) in PAGE


def test_executors_without_the_teachers_equation_lose_less_than_the_vanilla_transformer():
    losses, learned = {}, {}
    for name in (*(f"arms/{name}" for name in EXECUTORS), VANILLA):
        test, held_out = (np.array(scores(name, split)) for split in ("test", "ood"))
        losses[name], learned[name] = shown((test - held_out).mean()), shown(test.mean())
    two, tanh, vanilla = losses.values()
    assert f"equation: they lose {two} and {tanh}, it loses {vanilla}." in PAGE
    assert f"less well ({learned['arms/tanh-biases']} for {learned[VANILLA]})" in PAGE and max(two, tanh) < vanilla


def test_which_expectations_of_executors_were_right():
    assert gap("arms/two-layers", VANILLA)[0] > 0 > gap("arms/two-layers", HYPERNETWORK)[0]
    assert gap("arms/code-4", VANILLA)[2] < 0 and "**Foreseen, and right:** `code-4` lies below" in PAGE
    between = by_seed("arms/two-layers", HYPERNETWORK)
    lo, hi = mean_interval(between)
    assert (
        lo < 0 < hi
        and f"transformer {shown(between.mean())} [{shown(lo)}, {hi:.3f}])".replace("-", MINUS).replace(" 0.", " .") in PAGE
    )
    mean, lo, _ = gap("arms/code-16", HYPERNETWORK)
    assert abs(mean) < 0.01 < -lo and f"the interval reaches {shown(lo)}".replace("-", MINUS) in PAGE
    assert gap("arms/tanh-biases", VANILLA)[0] > 0 and "**Wrong:** `tanh-biases` was expected below" in PAGE


def test_the_page_says_which_arms_another_processor_trained():
    def processors(name):
        cards = (files.read_json(ZOO / f"{name}-{s}" / "scores.json") for s in range(5))
        return {made["processor"] for card in cards for made in card["environments"]}

    apart = {name for name in TRAINED if not processors(f"arms/{name}") & processors(VANILLA)}
    assert apart == {"two-layers", "code-16", "code-4"}
    assert "`two-layers` and both widths of the code were trained on another processor" in PAGE
    plain = [files.read_json(ZOO / "precision" / f"F-softmax-float32-{s}" / "scores.json")["ood"]["score"] for s in range(5)]
    most = max(abs(again - shipped) for again, shipped in zip(plain, scores("F-softmax"), strict=True))
    assert f"moves a held-out score of F by {shown(most)} at most" in PAGE
