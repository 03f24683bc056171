"""What interventions say: sentences from tables whose truth is known."""

import itertools

import pytest
from handmade import save, write

from compolens import Run, SoftmaxTransformer
from compolens.diagnosis import groups, interventional, sentences

EARLY, LATE = ("blocks.0.hook_resid_post", 1, "context"), ("blocks.1.hook_resid_post", 2, "readout")
KINDS = {"random orthogonal": 0.02, "random whitened": 0.05, "random variance-matched": 0.03, "shuffled codes": 0.04}


@pytest.fixture
def folder(tmp_path, tiny_task):
    return write(tmp_path / "one", Run(SoftmaxTransformer(n_layers=2, d_model=16, n_heads=2), tiny_task))


def at(place):
    return dict(zip(("site", "layer", "role"), place, strict=True))


def erase(folder, cost, back=0.1, **kinds):
    """`cost` of erasing at EARLY; a place without random subspaces, where it would cost more, must not be chosen."""
    rows = []
    for split in ("test", "ood"):
        known = {"scope": "one layer", "split": split, "metric": "drop"}
        rows += [known | at(EARLY) | {"control": "", "value": cost}, known | at(LATE) | {"control": "", "value": 0.9}]
        rows += [known | at(EARLY) | {"control": k, "value": v, "hi": v + 0.01} for k, v in (KINDS | kinds).items()]
        rows.append(known | at(EARLY) | {"control": "", "metric": "r2 best downstream", "value": back})
        rows.append(known | at(EARLY) | {"control": "", "scope": "from here on", "value": 0.8})
    save(folder, "erase_code", rows)
    (found,) = interventional.findings([folder])
    return found.text


def test_an_erasure_counts_where_it_costs_more_than_every_null(folder):
    text = erase(folder, 0.3)
    assert "erased at layer 1, context tokens it loses 0.300" in text and text.endswith("what is erased is used")
    assert "up to 0.060 (whitened, 95 % quantile) and another episode's code 0.040" in text


@pytest.mark.parametrize("null", KINDS)
def test_one_null_that_costs_as_much_takes_the_claim_away(folder, null):
    assert erase(folder, 0.3, **{null: 0.31}).endswith("no more than chance would")
    assert "nothing can be said, since the code is back further on (R² 0.89)" in erase(folder, 0.3, back=0.89, **{null: 0.31})


def test_an_exchange_names_its_rank_and_the_place_where_it_moves_most(folder):
    rows, curve = [], {1: 0.3, 2: 0.75, 4: 0.8, 16: 0.82}
    for (rank, value), (place, share) in itertools.product(curve.items(), ((EARLY, 1.0), (LATE, 0.5))):
        known = {"metric": "recovered", "split": "test", "rank": rank, "value": share * value} | at(place)
        rows += [
            known | {"control": ""},
            known | {"control": "copied", "value": -0.4},
            known | {"control": "", "split": "ood"},
        ]
    save(folder, "swap_code", rows)
    (found,) = interventional.findings([folder])
    assert found.text == (
        "another episode's activations at layer 1, context tokens take its answer 0.82 of the way to that episode's code "
        "(copied answers: -0.40); 2 learned directions carry nine tenths of that"
    )


def test_an_exchange_stands_beside_what_needs_no_search_and_beside_natural_states(folder):
    shares = {
        ("", 16): 0.8, ("", 8): 0.7, ("copied", 16): 0.1, ("least divergent half", 16): 0.81, ("norm-matched random", 16): 0.3,
        ("mean difference", 16): 0.6, ("mean difference", 4): 0.5, ("readout", 8): 0.4, ("neurons", 16): 0.2,
    }  # fmt: skip
    known = {"split": "test"} | at(EARLY)
    rows = [
        known | {"metric": "recovered", "control": control, "rank": rank, "value": value, "hi": value + 0.05}
        for (control, rank), value in shares.items()
    ]
    rows.append(known | at(LATE) | {"metric": "recovered", "control": "", "rank": 64, "value": 0.95})  # without placebos
    for directions, size in (("all", 9.0), ("sensitive", 1.2)):
        far = known | {"metric": "divergence", "directions": directions}
        rows += [far | {"control": "", "rank": 16, "value": size}, far | {"control": "natural", "rank": 0, "value": size / 2}]
    save(folder, "swap_code", rows)
    (found,) = interventional.findings([folder])
    assert found.text.endswith(
        "; at layer 1, context tokens, 16 learned directions recover 0.80 (on the half of the pairs whose states diverge "
        "least 0.81), random ones along which states move as far 0.30 (95 % quantile 0.35), directions that need no search: "
        "mean difference 0.60, readout 0.40, neurons 0.20; states lie 1.20 from natural ones along the directions that "
        "answers depend on, natural ones 0.60"
    )
    assert {number.where["control"] for number in found.numbers} >= {"norm-matched random", "readout", "natural"}


def test_an_exchange_that_leads_nowhere_is_said_to(folder):
    known = {"metric": "recovered", "split": "test", "rank": 16, "value": -400.0} | at(EARLY)
    save(folder, "swap_code", [known | {"control": ""}, known | {"control": "copied"}])
    (found,) = interventional.findings([folder])
    assert found.text == (
        "no place is known whose activations, exchanged, take its answer towards another episode's (at best none)"
    )


@pytest.mark.parametrize(
    ("test", "ood", "score", "end"),
    [
        (0.9, 0.8, 0.7, "in combinations that it was never trained on too"),
        (0.9, 0.8, 0.1, "that it was trained on, not in others"),  # no better than random coordinates
        (0.9, 0.2, 0.7, "that it was trained on, not in others"),
        (0.9, 0.8, float("nan"), "cannot be told, without an interval of the score"),
        (0.3, 0.2, 0.7, "no place is known where they are used one by one"),
    ],
)
def test_factors_are_called_re_used_only_where_one_alone_is_followed_beyond_chance(folder, test, ood, score, end):
    rows = []
    for split, recovered in (("test", test), ("ood", ood)):
        known = {"factor": "all", "split": split, "chosen": True} | at(EARLY)
        rows.append(known | {"metric": "recovered", "control": "", "value": recovered})
        rows.append(known | {"metric": "score", "control": "", "value": score, "lo": score - 0.02})
        rows.append(known | {"metric": "score", "control": "random coordinates", "value": 0.05, "hi": 0.2})
        rows.append(known | {"metric": "recovered", "control": "", "value": 0.99, "factor": "module 1"})
        rows.append(known | at(LATE) | {"metric": "recovered", "control": "", "value": 0.99, "chosen": False})
        tokens = {"site": "tokens", "layer": 0, "role": "all", "chosen": False}
        rows.append(known | tokens | {"metric": "score", "control": "shown", "value": 0.95})
    save(folder, "swap_factor", rows)
    (found,) = interventional.findings([folder])
    assert found.text.endswith(end) and f"{test:.2f} of the way" in found.text and "itself 0.95" in found.text


def test_the_diagnosis_has_these_sentences_with_their_numbers(folder):
    erase(folder, 0.3)
    save(
        folder, "generalization",
        [
            {"metric": "score", "value": value, "split": split, "control": control, "reference": name, "composition": c,
             "weight": 1.0, "note": ""}
            for split, c in itertools.product(("test", "ood"), ("all", "0+3", "1+4"))
            for control, name, value in (("", "model", 0.9), ("reference", "in-context ridge", 0.3))
        ],
    )  # fmt: skip
    (group,) = groups.group([folder])
    (clause,) = [c for c in sentences.judge(group) if c.text.startswith("with its code erased")]
    assert clause.evidence[0].table == "erase_code" and clause.evidence[0].value == pytest.approx(0.3)
    assert {e.where["control"] for e in clause.evidence} == {"", *KINDS}
