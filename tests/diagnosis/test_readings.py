"""What readouts tell of a failure: where the code is lost if nothing writes it, and what they say against the ladder."""

import pandas as pd
import pytest
from handmade import put_back, save
from test_diagnosis import CASES, make, without

from compolens.diagnosis import label as diagnosis
from compolens.diagnosis import readings

CONTEXT, ANSWERS = ("blocks.0.hook_resid_post", "context", 1), ("blocks.1.hook_resid_post", "readout", 2)


def at(place, training, held, others=None, scatter=0.0, *, token=(0.0, 0.0), among=0.5, width=0.02):
    """Rows of `nonlinear_code` about one site."""
    site, role, layer = place
    like = {"site": site, "role": role, "layer": layer, "control": "", "composition": "all", "editor": "", "chosen": 0}

    def row(metric, value, split="ood", **more):
        return like | {"metric": metric, "value": value, "lo": value - width, "hi": value + width, "split": split} | more

    rows = [
        row("left-out R²", training, "train", chosen=1, capacity="products"),
        row("left-out R²", training + 0.5, "test", control="own task"),
        row("told", held),
        row("told", held if others is None else others, control="fitted to held-out ones too"),
        row("scatter of what is told", scatter),
        row("among training states", among),
    ]
    if role == "context":
        rows += [row("told at a token", value, split) for split, value in zip(("train", "ood"), token, strict=True)]
    return rows


def reading(*rows):
    found = readings.reading_of(readings.told_at(pd.DataFrame([row for some in rows for row in some])))
    return None if found is None else found.part


def test_a_code_is_lost_where_it_is_told_no_more():
    assert reading(at(CONTEXT, 0.8, 0.8), at(ANSWERS, 0.9, 0.1)) == "use"
    assert reading(at(CONTEXT, 0.9, 0.0), at(ANSWERS, 0.9, 0.0)) == "inference"
    assert reading(at(CONTEXT, 0.9, 0.9), at(ANSWERS, 0.9, 0.9, among=0.99)) == "execution"
    assert reading(at(CONTEXT, 0.9, 0.9), at(ANSWERS, 0.9, 0.9, among=0.5)) is None  # something stands beside it
    assert reading(at(CONTEXT, 0.6, 0.6), at(ANSWERS, 0.6, 0.6, among=0.99)) is None  # what is not told may be wrong


def test_what_is_not_known_of_held_out_ones_is_not_told_as_in_training():
    """As of a single held-out composition, whose own mean leaves nothing to tell."""
    assert reading(at(CONTEXT, 0.9, float("nan")), at(ANSWERS, 0.9, float("nan"), among=0.99)) is None
    assert reading(at(CONTEXT, 0.9, 0.9), at(ANSWERS, 0.9, 0.9, among=float("nan"))) is None


def test_where_training_is_not_told_nothing_follows():
    assert reading(at(CONTEXT, 0.1, 0.0), at(ANSWERS, 0.1, 0.0)) is None
    assert reading(at(CONTEXT, 0.1, 0.0), at(ANSWERS, 0.9, 0.0)) is None  # it may be right at the context
    assert reading(at(CONTEXT, 0.9, 0.9), at(ANSWERS, 0.1, 0.0)) is None  # it may be told to nobody, and right
    assert readings.told_at(pd.DataFrame()) == ()


def test_two_codes_of_which_a_readout_gives_the_mean_are_no_failure_of_inference():
    assert reading(at(CONTEXT, 0.9, 0.4), at(ANSWERS, 0.9, 0.4)) is None
    assert reading(at(CONTEXT, 0.9, 0.0, others=0.95), at(ANSWERS, 0.9, 0.0, others=0.95)) is None
    assert reading(at(CONTEXT, 0.9, 0.1, width=0.3), at(ANSWERS, 0.9, 0.1, width=0.3)) is None  # too few compositions to say


def test_noise_that_a_readout_takes_off_is_one_of_inference():
    noisy = at(CONTEXT, 1.0, 0.2, others=0.95, scatter=1.0), at(ANSWERS, 1.0, 0.2, others=0.95, scatter=1.0)
    assert reading(*noisy) == "inference"
    told = readings.told_at(pd.DataFrame([row for some in noisy for row in some]))
    assert readings.noise_in(told)
    nearly = at(CONTEXT, 1.0, 0.99, scatter=1.0)  # all the error there is, and nothing
    assert not readings.noise_in(readings.told_at(pd.DataFrame(nearly)))


def test_one_token_may_tell_what_their_mean_does_not():
    spoilt = at(CONTEXT, 0.9, 0.1, token=(0.5, 0.9)), at(ANSWERS, 0.9, 0.1)
    assert reading(*spoilt) == "use"
    assert reading(at(CONTEXT, 0.9, 0.1, token=(0.1, 0.9)), spoilt[1]) == "inference"  # of training, tokens tell too little


def test_what_only_readouts_that_know_held_out_ones_tell_is_lost_if_they_tell_it_no_more():
    assert reading(at(CONTEXT, 0.9, 0.6, others=0.95), at(ANSWERS, 0.9, 0.1, others=0.1)) == "use"
    assert reading(at(CONTEXT, 0.9, 0.6, others=0.95), at(ANSWERS, 0.9, 0.1, others=0.9)) is None


LOST, WRONG = (
    [*at(CONTEXT, 0.9, 0.9), *at(ANSWERS, 0.9, 0.0)],
    [*at(CONTEXT, 0.9, 0.0), *at(ANSWERS, 0.9, 0.0)],
)
NOISY = [*at(CONTEXT, 1.0, 0.6, others=0.9, scatter=1.0), *at(ANSWERS, 1.0, 0.6, others=0.9, scatter=1.0)]
UNWRITTEN = {"ood": 0.6, "true": 0.6, "moves": 0.2}


@pytest.mark.parametrize(
    ("case", "rows", "label"),
    [
        (UNWRITTEN, LOST, "infers but does not use"),
        (UNWRITTEN, WRONG, "fails to infer"),
        (UNWRITTEN, NOISY, "undecided"),
        (CASES["fails to infer"], LOST, "infers but does not use"),  # the site lies behind the failure
        (CASES["fails to infer"], WRONG, "fails to infer"),
        (CASES["infers but does not use"], LOST, "infers but does not use"),
        (CASES["infers but does not use"], NOISY, "fails to infer"),
        (CASES["infers but does not use"], WRONG, "undecided"),
        (CASES["cannot execute"], WRONG, "undecided"),  # two failures, or an editor that does not write this code
        (CASES["cannot execute"] | {"moves": 0.7}, WRONG, "fails to infer"),
        (CASES["undecided"], LOST, "infers but does not use"),
        (CASES["compositional"], WRONG, "compositional"),
        (CASES["memorised"], WRONG, "memorised"),
    ],
)
def test_the_label_by_ladder_and_readings(case, rows, label, tmp_path, tiny_task):
    folder = make(tmp_path, tiny_task, **case)
    save(folder, "nonlinear_code", rows)
    found = diagnosis.diagnose([folder])
    assert found.label == label
    assert found.blamed == "" or diagnosis._BLAMES.get(found.blamed) == label or label == "memorised"


def test_a_code_that_is_not_told_may_be_a_memory_or_a_regression(tmp_path, tiny_task):
    for name, cosine, label in (("a", 0.8, "undecided"), ("b", 0.5, "fails to infer")):
        error = 0.4  # of both: the distance of two errors of equal size at that angle
        prior = {
            "ood": {"best training composition": (2 * error * (1 - cosine), error), "truth": error},
            "test": {"truth": 0.01},
        }
        folder = make(tmp_path, tiny_task, name, **UNWRITTEN, prior=prior)
        save(folder, "nonlinear_code", WRONG)
        assert diagnosis.diagnose([folder]).label == label


@pytest.mark.parametrize(
    ("lo", "costs", "label"),
    [(0.55, 0.0, "cannot execute"), (0.4, 0.0, "cannot execute"), (0.4, 0.15, "undecided"), (0.55, 0.15, "cannot execute")],
)
def test_an_editor_above_the_gate_is_surely_there_or_leaves_little_unexplained(tmp_path, tiny_task, lo, costs, label):
    """What writing costs in training is what the editor cannot write: of a loss of .39, .15 stay unexplained then."""
    folder = make(tmp_path, tiny_task, "a", **CASES["cannot execute"])
    without(folder, 0.6)
    path = folder / "tables" / "inference_or_execution.csv"
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""]).fillna({"control": ""})
    frame.loc[frame["metric"] == "recovered, left out", "lo"] = lo
    frame.loc[(frame["split"] == "test") & frame["rung"].isin(("true code written", "best code")), "value"] -= costs
    put_back(path, frame)
    found = diagnosis.diagnose([folder])
    assert found.label == label
    assert ("as little as 0.40" in found.reasons[-1]) == (label == "undecided")


def test_a_model_that_answers_all_compositions_alike_is_compositional(tmp_path, tiny_task):
    alike = make(tmp_path, tiny_task, "alike", test=0.92, ood=0.91)
    found = diagnosis.diagnose([alike])
    assert found.label == "compositional" and "training compositions" in found.reasons[0]
    assert diagnosis.diagnose([make(tmp_path, tiny_task, "less", test=0.97, ood=0.925, floor=0.8)]).label == "undecided"
    floor = make(tmp_path, tiny_task, "floor", test=0.92, ood=0.91, floor=0.9)
    assert diagnosis.diagnose([floor]).label == "undecided"


def named(*places):
    rows = []
    for (site, role, layer), test, ood, *hi in places:
        like = {"site": site, "role": role, "layer": layer, "control": "", "metric": "composition told", "composition": "all"}
        rows += [
            like | {"split": "test", "value": test},
            like | {"split": "ood", "value": ood, "hi": hi[0] if hi else ood + 0.05},
        ]
    return rows


def by_names(*places):
    found = readings.reading_of((), readings.named_at(pd.DataFrame(named(*places))))
    return None if found is None else found.part


def test_where_no_readout_tells_the_code_it_is_lost_where_compositions_are_told_no_more():
    assert by_names((CONTEXT, 1.0, 0.3), (ANSWERS, 1.0, 0.3)) == "inference"
    assert by_names((CONTEXT, 1.0, 1.0), (ANSWERS, 1.0, 0.3)) == "use"
    assert by_names((CONTEXT, 1.0, 1.0), (ANSWERS, 1.0, 1.0)) is None  # told, and perhaps wrong
    assert by_names((CONTEXT, 1.0, 0.3), (ANSWERS, 1.0, 1.0)) is None  # found where answers are given
    assert by_names((CONTEXT, 0.4, 0.1), (ANSWERS, 1.0, 0.1)) is None  # not told in training either
    assert by_names((CONTEXT, 1.0, 0.6, 0.95), (ANSWERS, 1.0, 0.6, 0.95)) is None  # too few compositions to say
    assert by_names((CONTEXT, 1.0, 0.85), (ANSWERS, 1.0, 0.85)) is None  # a few of them only
    assert readings.named_at(pd.DataFrame()) == ()


def test_compositions_are_asked_about_only_where_no_readout_tells_the_code(tmp_path, tiny_task):
    merged = named((CONTEXT, 1.0, 1.0), (ANSWERS, 1.0, 0.3))
    for name, rows, label in (("a", merged, "infers but does not use"), ("b", [*WRONG, *merged], "fails to infer")):
        folder = make(tmp_path, tiny_task, name, **UNWRITTEN)
        save(folder, "nonlinear_code", rows if name == "b" else [*at(CONTEXT, 0.1, 0.0), *rows])
        assert diagnosis.diagnose([folder]).label == label
