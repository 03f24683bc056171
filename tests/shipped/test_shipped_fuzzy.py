"""Scores on fuzzy logic and S-RAVEN: the pages tell what the tables `generalization` hold, on 16,384 episodes each."""

from functools import cache

import numpy as np
import pytest
from findings import ZOO, cells, listed, shown

from compolens import tables
from compolens.foundation import files

TEXT = (ZOO.parent / "docs" / "findings" / "fuzzy_logic_and_sraven.md").read_text(encoding="utf-8")
PAGE = " ".join(TEXT.split())
MEASURE = "R², mean of ratios"
"""That of 2406.05816."""
PAPER = {"hyla": (0.811, 0.078), "hyla-linear": (0.845, 0.053), "linear": (0.599, 0.052), "softmax": (0.633, 0.023)}
"""Its values on held-out functions, mean and standard error."""
NAMED = {
    "HYLA": "hyla",
    "HYLA without its nonlinearity": "hyla-linear",
    "linear attention": "linear",
    "softmax attention": "softmax",
}
KNOW_EXAMPLES = ("in-context kernel ridge", "in-context smoothing", "in-context ridge")
FOLDERS = sorted(path for family in ("fuzzy", "sraven3") for path in ZOO.glob(f"{family}-*"))


@cache
def rows_of(name):
    """What the last step of a model scores over all compositions."""
    rows = tables.at_last_step(tables.read(ZOO / name, "generalization"))
    return rows[(rows["composition"] == "all") & rows["value"].notna()]


def value(name, split="ood", metric=MEASURE, control="", reference=None):
    rows = rows_of(name)
    rows = rows[(rows["split"] == split) & (rows["metric"] == metric) & (rows["control"] == control)]
    return float((rows if reference is None else rows[rows["reference"] == reference])["value"].item())


def seeds(who, split="ood", metric=MEASURE, control="", reference=None):
    """A score of each seed of an architecture on fuzzy logic."""
    return [value(f"fuzzy-{who}-{s}", split, metric, control, reference) for s in range(3)]


def error(values):
    """The standard error of the mean over seeds."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def both(values):
    """Mean ± standard error, as pages show it."""
    return f"{shown(float(np.mean(values)))} ± {shown(error(values))}"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_score_rests_on_16384_episodes(folder):
    rows = rows_of(folder.name)
    assert set(rows[(rows["control"] == "") & (rows["metric"] == "score")]["n"]) == {16_384}
    assert files.read_json(folder / "tables" / "generalization.json")["arguments"]["episodes"] == 16_384


# ---- fuzzy logic -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMED)
def test_the_page_tells_each_architectures_scores_on_fuzzy_logic(name):
    own, paper = seeds(NAMED[name]), " ± ".join(map(shown, PAPER[NAMED[name]]))
    expected = [
        listed(own),
        both(own),
        paper,
        listed(seeds(NAMED[name], "test")),
        listed(seeds(NAMED[name], "ood, unknown terms")),
    ]
    assert cells(TEXT, "architecture, fuzzy logic", name) == expected


@pytest.mark.parametrize("name", KNOW_EXAMPLES)
def test_the_page_tells_what_the_examples_alone_give(name):
    told = {split: seeds("linear", split, MEASURE, "reference", name) for split in ("ood", "test", "ood, unknown terms")}
    for who in ("hyla", "softmax"):  # models of one seed share the episodes
        assert seeds(who, "ood", MEASURE, "reference", name) == pytest.approx(told["ood"])
    expected = [listed(told["ood"]), both(told["ood"]), "", listed(told["test"]), listed(told["ood, unknown terms"])]
    assert cells(TEXT, "architecture, fuzzy logic", f"*{name}*") == expected


def test_both_kinds_of_hyla_are_ahead_and_kernel_ridge_is_ahead_of_the_others():
    own = {who: seeds(who) for who in PAPER}
    gaps = [(np.mean(own[a]) - np.mean(own[b]), np.hypot(error(own[a]), error(own[b])))
            for a in ("hyla", "hyla-linear") for b in ("linear", "softmax")]  # fmt: skip
    least, widest = min(gap for gap, _ in gaps), max(spread for _, spread in gaps)
    assert f"by {shown(least, 2)} or more, with standard errors of the difference of at most {shown(widest, 2)}" in PAGE
    means = {who: np.mean(values) for who, values in own.items()}
    assert means["hyla"] > means["hyla-linear"] and PAPER["hyla"] < PAPER["hyla-linear"]
    assert means["linear"] > means["softmax"] and PAPER["linear"] < PAPER["softmax"]
    kernel = np.array(seeds("linear", "ood", MEASURE, "reference", "in-context kernel ridge"))
    assert all((kernel > own[who]).all() for who in ("linear", "softmax"))
    assert all((kernel < own[who]).all() for who in ("hyla", "hyla-linear"))
    unknown = seeds("linear", "ood, unknown terms", MEASURE, "reference", "in-context kernel ridge")
    assert f"although kernel ridge scores {shown(np.mean(unknown))} on the same" in PAGE
    assert max(max(seeds(who, "ood, unknown terms")) for who in PAPER) < 0.1


def test_how_far_linear_attention_is_from_the_papers_value():
    own = seeds("linear")
    mean, spread = PAPER["linear"]
    assert f"by {(np.mean(own) - mean) / np.hypot(error(own), spread):.1f} combined standard errors" in PAGE
    plain, still, fast, light = (
        shown(value(f"fuzzy-{name}-0")) for name in ("linear", "still-linear", "fast-linear", "light-linear")
    )
    assert f"Seed 0 scores {plain}; without dropout {still}, at the larger learning rate of the paper's grid {fast}" in PAGE
    assert f"at the smaller weight decay {light}." in PAGE
    others = [shown(value(f"fuzzy-{who}-0")) for who in ("still-hyla", "hyla", "still-softmax", "softmax")]
    assert "seed 0 of HYLA scores {} without it and {} with it, softmax attention {} and {}".format(*others) in PAGE


# ---- S-RAVEN ---------------------------------------------------------------------------------------------------------
RAVEN = {"HYLA": ("hyla", 3), "softmax attention": ("softmax", 3), "linear attention": ("linear", 1),
         "softmax attention, printed transfer": ("softmax-output", 1), "sparse coding": ("sparse", 3)}  # fmt: skip


@pytest.mark.parametrize("name", RAVEN)
def test_the_page_tells_each_architectures_scores_on_s_raven(name):
    who, n = RAVEN[name]
    expected = [listed([value(f"sraven3-{who}-{s}", split, "score") for s in range(n)]) for split in ("ood", "test")]
    assert cells(TEXT, "architecture, S-RAVEN", name) == expected


def test_softmax_attention_is_above_hyla_and_sparse_coding_in_every_pair_of_seeds():
    by_seed = {
        who: np.array([value(f"sraven3-{who}-{s}", "ood", "score") for s in range(3)]) for who in ("hyla", "softmax", "sparse")
    }
    assert (by_seed["softmax"] > by_seed["hyla"]).all() and (by_seed["softmax"] > by_seed["sparse"]).all()
    index = (ZOO.parent / "docs" / "findings" / "index.md").read_text(encoding="utf-8")
    assert "softmax attention scores above HYLA and sparse coding in three seeds of three" in index
    ceilings = [value(f"sraven3-softmax-{s}", "ood", "score", "reference", "Bayes, whole panel") for s in range(3)]
    assert f"where {shown(np.mean(ceilings), 2)} can be had" in PAGE


def test_the_page_on_transfer_tells_the_same_scores_of_sparse_coding():
    page = " ".join((ZOO.parent / "docs" / "findings" / "sparsity_or_transfer.md").read_text(encoding="utf-8").split())
    by_seed = {who: [value(f"sraven3-{who}-{s}", "ood", "score") for s in range(3)] for who in ("sparse", "softmax")}
    sparse, softmax = (", ".join(map(shown, values)) for values in by_seed.values())
    transferred = value("sraven3-softmax-output-0", "ood", "score")
    assert f"scores {sparse} on held-out combinations (three seeds), softmax attention without transfer {softmax}" in page
    assert f"with the printed transfer {shown(transferred)} (one seed)" in page
    lost = [value(f"sraven3-sparse-{s}", "test", "score") - own for s, own in enumerate(by_seed["sparse"])]
    assert f"to held-out combinations is little or nothing ({listed(lost).replace(' ', ', ')})" in page
