"""S-RAVEN with 4 features: the page tells what the cards and tables of the runs of ten and twenty million instances hold."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from findings import ZOO, cells, listed, shown

from compolens import tables
from compolens.foundation import files

TEXT = (ZOO.parent / "docs" / "findings" / "fuzzy_logic_and_sraven.md").read_text(encoding="utf-8")
PAGE = " ".join(TEXT.split())
NAMED = {"HYLA": "hyla", "softmax attention": "softmax"}
SEEDS = range(3)


def folder(who, seed, millions=10):
    return ZOO / "sraven4" / f"{who}-{millions}M-{seed}"


def card(who, seed, split="ood", what="score", millions=10):
    return files.read_json(folder(who, seed, millions) / "scores.json")[split][what]


@cache
def rows_of(who, seed, millions=10):
    rows = tables.at_last_step(tables.read(folder(who, seed, millions), "generalization"))
    return rows[(rows["composition"] == "all") & rows["value"].notna()]


def value(who, seed, reference, metric="score", split="ood", millions=10):
    rows = rows_of(who, seed, millions)
    return float(
        rows.loc[(rows["split"] == split) & (rows["metric"] == metric) & (rows["reference"] == reference), "value"].item()
    )


def history(who, seed, millions=10):
    return pd.read_csv(folder(who, seed, millions) / "history.csv")


def held_out(who):
    return np.array([card(who, s) for s in SEEDS])


# ---- scores ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMED)
def test_the_page_tells_the_scores_by_seed(name):
    who = NAMED[name]
    expected = [
        listed(held_out(who)),
        listed(card(who, s, "test") for s in SEEDS),
        listed((value(who, s, "model", "share of ceiling") for s in SEEDS), 2),
        listed((value(who, s, "model", "score, unambiguous") for s in SEEDS), 2),
        listed((history(who, s)["loss"].iloc[-1] for s in SEEDS), 2),
        {"hyla": ".691 ± .019", "softmax": ".566 ± .011"}[who],
    ]
    assert cells(TEXT, "architecture, 10 million instances", name) == expected
    assert {card(who, s, split, "episodes") for s in SEEDS for split in ("test", "ood")} == {16_384}


def test_the_page_tells_what_could_be_had_and_what_memory_gives():
    for row, reference in {
        "*can be had*": "Bayes, whole panel",
        "*best training combination*": "best training composition",
    }.items():
        told = [listed(value("hyla", s, reference, split=split) for s in SEEDS) for split in ("ood", "test")]
        assert cells(TEXT, "architecture, 10 million instances", row)[:2] == told
        assert value("softmax", 0, reference) == value("hyla", 0, reference)  # models of one seed share the episodes
    memory = np.array([value("hyla", s, "best training composition") for s in SEEDS])
    above = {who: held_out(who) > memory for who in NAMED.values()}
    assert above["softmax"].all() and list(above["hyla"]) == [True, False, True]


def test_the_rule_is_applied_as_it_was_written():
    apart = held_out("hyla") - held_out("softmax")
    assert f"HYLA less softmax attention is {listed(apart)} in seeds 0, 1 and 2" in PAGE
    first, second, third = np.abs(apart) <= 0.02
    assert first and not second and third and not (apart > 0.05).any() and 'So by the rule: "not seen at 10M".' in PAGE
    written = (ZOO / "sraven_paper.py").read_text(encoding="utf-8")
    assert 'both within\n   2 points: "not seen at 10M"; else a third pair decides' in written


def test_hyla_learns_late_and_one_seed_had_not_by_the_end():
    losses = {(who, s): history(who, s)["loss"].iloc[-1] for who in NAMED.values() for s in SEEDS}
    assert all(losses["hyla", s] > losses["softmax", s] for s in SEEDS)
    late = history("hyla", 2).set_index("step")["loss"]
    told = [f"{late.loc[step]:.2f}".lstrip("0") for step in (34180, 43945)]
    assert "in seed 2 it falls from {} to {} between the steps 34,180 and 43,945".format(*told) in PAGE
    drops = {s: -history("hyla", s).set_index("step")["loss"].loc[19531:].diff(2).min() for s in SEEDS}
    assert drops[2] > 2 * max(drops[0], drops[1])
    assert f"In seed 1 no such fall had come by the end ({shown(losses['hyla', 1], 2)})" in PAGE


def test_what_is_missing_is_learning_first():
    lost = {who: [card(who, s, "test") - card(who, s) for s in SEEDS] for who in NAMED.values()}
    assert f"HYLA loses {listed(lost['hyla'])}, softmax attention {listed(lost['softmax'])}" in PAGE


def test_the_page_says_on_what_the_runs_were_trained():
    on = {}
    for who in NAMED.values():
        for s in SEEDS:
            made = files.read_json(folder(who, s) / "scores.json")["environments"]
            on[who, s] = [one["device"] for one in made]
    assert on.pop(("softmax", 0)) == ["cpu"] and on.pop(("hyla", 0)) == ["cpu", "cuda"]
    assert set(map(tuple, on.values())) == {("cuda",)}
    assert "`softmax-10M-0` was trained on a CPU, `hyla-10M-0` went on from step 43,497 on a GPU, and the other four" in PAGE


def test_the_page_tells_what_the_pilots_chose():
    def at_the_end(who, rate):
        return pd.read_csv(ZOO / "sraven4" / f"pilot-{who}-lr{rate}" / "history.csv")["loss"].iloc[-1]

    told = [f"{at_the_end(who, rate):.2f}" for who in ("hyla", "softmax") for rate in ("0.001", "0.0003")]
    assert "HYLA with {} nats at that rate and {} at 3e-4, softmax attention with {} and {}".format(*told) in PAGE
    for who in NAMED.values():
        assert at_the_end(who, "0.001") < at_the_end(who, "0.0003")
        assert {files.read_json(folder(who, s) / "config.json")["run"]["optimizer"]["lr"] for s in SEEDS} == {1e-3}


# ---- codes -----------------------------------------------------------------------------------------------------------
PROGRESSIONS = [f"progression {offset}" for offset in ("+1", "+2", "-1", "-2")]


@cache
def readouts(who, seed, millions=10):
    """Readouts of the rule on held-out combinations."""
    rows = tables.at_last_step(tables.read(folder(who, seed, millions), "attention_code"))
    return rows[(rows["split"] == "ood") & (rows["label"] == "rule") & (rows["shown"] == "as trained")]


def accuracies(who, seed, role, control="", millions=10):
    rows = readouts(who, seed, millions)
    return rows[(rows["metric"] == "balanced accuracy") & (rows["role"] == role) & (rows["control"] == control)]


def recalls(who, seed, millions=10):
    """Recall by rule at the layer whose code to the row mates says most."""
    whole, rows = accuracies(who, seed, "row mates", millions=millions), readouts(who, seed, millions)
    site = whole.loc[whole["value"].idxmax(), "site"]
    here = (rows["metric"] == "recall") & (rows["control"] == "") & (rows["role"] == "row mates") & (rows["site"] == site)
    return rows[here].set_index("class")["value"]


@pytest.mark.parametrize("name", NAMED)
def test_the_page_tells_how_well_the_rule_is_read_out(name):
    roles = ("row mates", "self")
    expected = [listed((accuracies(NAMED[name], s, role)["value"].max() for s in SEEDS), 2) for role in roles]
    assert cells(TEXT, "10 million instances, balanced accuracy of the rule", name) == expected


def test_what_the_readouts_stand_beside():
    models = [(who, s) for who in NAMED.values() for s in SEEDS]
    products = {model: accuracies(*model, "input", "raw input, products")["value"].item() for model in models}
    untrained = {
        role: max(accuracies(*model, role, "untrained")["value"].max() for model in models) for role in ("row mates", "self")
    }
    table = "10 million instances, balanced accuracy of the rule"
    for who in NAMED.values():  # models of one seed share the episodes
        assert cells(TEXT, table, "*products of the two raw values*")[0] == listed((products[who, s] for s in SEEDS), 2)
    assert cells(TEXT, table, "*untrained controls, at most*") == [shown(value, 2) for value in untrained.values()]
    above = {model for model in models if accuracies(*model, "row mates")["value"].max() > products[model]}
    assert above == set(models) - {("hyla", 1)}


def test_which_rules_the_code_tells_apart():
    found = {(who, s): recalls(who, s) for who in NAMED.values() for s in SEEDS}
    three = [listed((found[who, s]["distribute three"] for s in SEEDS), 2) for who in NAMED.values()]
    assert "recall of distribute-three is {} in HYLA and {} in softmax attention".format(*three) in PAGE
    learned = min(found["hyla", s][PROGRESSIONS].min() for s in (0, 2))
    late = [shown(end(found["hyla", 1][PROGRESSIONS]), 2) for end in (min, max)]
    told = "at least {} in HYLA's seeds 0 and 2, and {} to {} in seed 1".format(shown(learned, 2), *late)
    assert told in PAGE
    both = [value for one in found.values() for value in one[["addition", "subtraction"]]]
    assert "Recall of either is {} to {}.".format(*(shown(end(both), 2) for end in (min, max))) in PAGE


def cosines_of_rules(who, seed, millions=10):
    """The cosines of the mean codes to the row mates of pairs of rules, and of them that of addition and subtraction, by layer
    from the second on."""
    rows = tables.at_last_step(tables.read(folder(who, seed, millions), "latent_geometry"))
    same = (rows["metric"] == "cosine") & (rows["split"] == "ood") & (rows["role"] == "row mates") & (rows["by"] == "rule")
    rows = rows[same & (rows["control"] == "") & (rows["class"] != rows["other"])]
    for layer in (1, 2, 3):
        here = rows[rows["layer"] == layer]
        yield here["value"], here[(here["class"] == "addition") & (here["other"] == "subtraction")]["value"].item()


def test_addition_and_subtraction_share_a_mean_code():
    least = 1.0
    for who in NAMED.values():
        for s in SEEDS:
            for pairs, pair in cosines_of_rules(who, s):
                least = min(least, pair)
                assert who != "hyla" or pair == pairs.max()
    assert f"is at least {shown(least, 2)} from the second layer on, in all six models" in PAGE


def test_no_model_has_learned_its_training_combinations():
    from compolens.diagnosis.label import LEARNED

    assert all(value(who, s, "model", "share of ceiling", "test") < LEARNED for who in NAMED.values() for s in SEEDS)
    assert f"All six models score below {shown(LEARNED, 1)} of what can be had on training combinations." in PAGE


# ---- twenty million instances ----------------------------------------------------------------------------------------
LONG = {"seed": 0, "millions": 20}
REPORTED = {"hyla": ".691 ± .019", "softmax": ".566 ± .011"}


@pytest.mark.parametrize("name", NAMED)
def test_the_page_tells_the_scores_of_the_long_pair(name):
    who = NAMED[name]
    expected = [
        shown(card(who, **LONG)),
        shown(card(who, split="test", **LONG)),
        shown(value(who, reference="model", metric="share of ceiling", **LONG), 2),
        shown(value(who, reference="model", metric="score, unambiguous", **LONG), 2),
        shown(history(who, **LONG)["loss"].iloc[-1], 2),
        REPORTED[who],
    ]
    assert cells(TEXT, "architecture, 20 million instances", name) == expected
    assert [one["device"] for one in files.read_json(folder(who, **LONG) / "scores.json")["environments"]] == ["cuda"]
    assert value(who, reference="model", metric="share of ceiling", split="test", **LONG) < 0.9


def by_composition(who, split="ood", millions=20):
    """composition -> panel accuracy, of seed 0."""
    rows = tables.at_last_step(tables.read(folder(who, 0, millions), "generalization"))
    own = rows[(rows["composition"] != "all") & (rows["reference"] == "model") & rows["value"].notna()]
    own = own[(own["metric"] == "score") & (own["split"] == split)]
    return own.set_index("composition")["value"].sort_index()


def test_by_how_much_hyla_leads_in_the_long_pair():
    apart = card("hyla", **LONG) - card("softmax", **LONG)
    assert f"**HYLA is ahead by {shown(apart)}; the paper has .125.**" in PAGE
    each = (by_composition("hyla") - by_composition("softmax")).to_numpy()
    drawn = np.random.default_rng(0).choice(each, (10_000, len(each))).mean(1)
    told = ", ".join(shown(end) for end in np.quantile(drawn, [0.025, 0.975]))
    combinations = f"Over the {len(each)} held-out combinations, each counted once, HYLA is ahead by"
    assert f"{combinations} {shown(each.mean())} [{told}]" in PAGE


def test_when_hyla_passes_softmax_attention():
    ours, theirs = (history(who, **LONG).set_index("step")["train"] for who in ("hyla", "softmax"))
    quarter = "(step 39,062) HYLA still stands behind, at {} on training combinations against {}."
    assert quarter.format(shown(ours[39062]), shown(theirs[39062])) in PAGE
    assert (ours[ours.index > 39062] > theirs[theirs.index > 39062]).all()
    gained = [shown(one.iloc[-1] - one[one.index > 156_250 * 2 / 3].iloc[0]) for one in (ours, theirs)]
    assert "Over the last third HYLA gains {} there and softmax attention {}.".format(*gained) in PAGE


def by_arithmetic(who, millions=20):
    """Held-out panel accuracy by how many features follow addition (F) or subtraction (G)."""
    scores = by_composition(who, millions=millions)
    return scores.groupby([sum(rule in "FG" for rule in name.split("+")) for name in scores.index]).mean()


def test_hyla_is_ahead_on_addition_and_subtraction_alone():
    hyla, softmax = ([shown(by_arithmetic(who)[n], 2) for n in range(4)] for who in ("hyla", "softmax"))
    told = (
        "both answer {0} and {4} of the panels. With one feature that follows addition or subtraction HYLA answers {1} and "
        "softmax attention {5}, with two {2} and {6}, with three {3} and {7}."
    )
    assert told.format(*hyla, *softmax) in PAGE
    before = [shown(by_arithmetic(who, 10)[n], 2) for n in (1, 2) for who in ("hyla", "softmax")]
    assert "both answered such panels alike ({} and {} with one, {} and {} with two)".format(*before) in PAGE


def test_who_guesses_between_sum_and_difference_is_right_in_five_of_eight():
    same = sum((x + y) % 8 == (x - y) % 8 for x in range(8) for y in range(8)) / 64
    right = same + (1 - same) / 2
    told = "in {} of such features. With .9 without such features, that makes {} of panels with one of them and {} with two."
    assert told.format(shown(right), shown(0.9 * right, 2), shown(0.9 * right**2, 2)) in PAGE
    for n, guess in ((1, 0.9 * right), (2, 0.9 * right**2)):
        assert by_arithmetic("softmax")[n] < guess < by_arithmetic("hyla")[n]


def told_apart(who, first="addition", second="subtraction", split="ood", **where):
    """Rows of the probe for two rules."""
    rows = tables.at_last_step(tables.read(folder(who, **LONG), "told_apart"))
    rows = rows[(rows["split"] == split) & (rows["control"] == where.pop("control", ""))]
    for column, wanted in {"class": first, "other": second, **where}.items():
        rows = rows[rows[column] == wanted]
    return rows


def test_softmax_attention_does_not_infer_which_of_two_rules_it_is():
    ours, theirs = (told_apart(who, metric="told apart").iloc[0] for who in ("hyla", "softmax"))
    spread = [f"{shown(one.value)} [{shown(one.lo)}, {shown(one.hi)}]" for one in (ours, theirs)]
    assert "the right one has {} in HYLA and {} in softmax attention".format(*spread) in PAGE
    assert theirs.lo < 0.5 < theirs.hi and ours.lo > 0.5
    assert told_apart("hyla", metric="same question")["value"].item() == 1
    both = [shown(told_apart(who, metric="both answers")["value"].item()) for who in ("hyla", "softmax")]
    assert "Both results together have {} and {}".format(*both) in PAGE
    least = []
    for who in ("hyla", "softmax"):
        rows = tables.at_last_step(tables.read(folder(who, **LONG), "told_apart"))
        rows = rows[(rows["metric"] == "told apart") & (rows["control"] == "") & (rows["class"] != "all")]
        rows = rows[(rows["split"] == "ood") & ~((rows["class"] == "addition") & (rows["other"] == "subtraction"))]
        least.append(shown(rows["value"].min(), 2))
    assert "are told apart to {} and more in HYLA, and to {} in softmax attention".format(*least) in PAGE
    for who in ("hyla", "softmax"):
        untrained = told_apart(who, "all", "all", metric="told apart", control="untrained")["value"].item()
        assert untrained == pytest.approx(0.5, abs=0.01)


def test_where_the_rule_arrives_in_the_answer():
    at = {"metric": "recovered", "site": "blocks.0.hook_resid_post"}
    covered = [shown(told_apart("hyla", role=role, **at)["value"].item(), 2) for role in ("readout", "context")]
    told = "covers {} of the way to that run's answer; at the tokens of the examples and the operands {}."
    assert told.format(*covered) in PAGE


def test_the_code_of_the_long_pair_does_not_tell_addition_from_subtraction():
    found = {who: recalls(who, **LONG) for who in NAMED.values()}
    told = "has a recall of {} for addition and {} for subtraction in HYLA, {} and {} in softmax attention"
    assert told.format(*(shown(found[who][rule], 2) for who in found for rule in ("addition", "subtraction"))) in PAGE
    least = min(pair for who in NAMED.values() for _, pair in cosines_of_rules(who, **LONG))
    assert f"the cosine of their mean codes is at least {shown(least, 2)} from the second layer on" in PAGE
    best = [accuracies(who, role="row mates", **LONG)["value"].max() for who in NAMED.values()]
    assert "is {} in HYLA, as in `hyla-10M-0`, and {} in softmax attention".format(*(shown(one, 2) for one in best)) in PAGE
    assert shown(accuracies("hyla", 0, "row mates")["value"].max(), 2) == shown(best[0], 2)


# ---- mixed precision -------------------------------------------------------------------------------------------------
def again(name, precision, seed):
    return files.read_json(ZOO / "precision" / f"{name}-{precision}-{seed}" / "scores.json")["ood"]["score"]


def shipped(name, seed):
    return files.read_json(ZOO / f"{name}-{seed}" / "scores.json")["ood"]["score"]


@pytest.mark.parametrize(
    ("row", "who"), {"as shipped, float32": None, "again, float32": "float32", "again, bfloat16": "bfloat16"}.items()
)
def test_the_page_tells_what_mixed_precision_changes_on_hyperteacher(row, who):
    found = [shipped("F-softmax", s) if who is None else again("F-softmax", who, s) for s in range(5)]
    told = [listed(found)]
    for name in ("hyla", "softmax"):
        seeds = range(3) if who != "float32" else range(name == "hyla")  # the yardstick: of HYLA, seed 0
        told.append(listed(shipped(f"sraven3-{name}", s) if who is None else again(f"sraven3-{name}", who, s) for s in seeds))
    assert cells(TEXT, "held out, trained", row) == told


def test_the_yardstick_of_mixed_precision_is_rounding_alone():
    plain = np.array([again("F-softmax", "float32", s) - shipped("F-softmax", s) for s in range(5)])
    mixed = np.array([again("F-softmax", "bfloat16", s) - shipped("F-softmax", s) for s in range(5)])
    told = "by {} at most, and a training in bfloat16 from the shipped one by {}"
    assert told.format(*(shown(np.abs(one).max()) for one in (plain, mixed))) in PAGE
    apart = abs(again("sraven3-hyla", "float32", 0) - shipped("sraven3-hyla", 0))
    assert f"Two trainings in float32 of HYLA's seed 0 are {shown(apart)} apart" in PAGE


def test_what_mixed_precision_costs_on_raven():
    changed = {
        name: [again(f"sraven3-{name}", "bfloat16", s) - shipped(f"sraven3-{name}", s) for s in range(3)]
        for name in ("hyla", "softmax")
    }
    told = "is {} with HYLA and {} with softmax attention: five of six do not lose."
    assert told.format(*map(listed, changed.values())) in PAGE
    assert sum(round(change, 3) >= 0 for one in changed.values() for change in one) == 5
    assert f"HYLA's mean over three seeds, {listed([np.mean(changed['hyla'])])}, is within that" in PAGE
