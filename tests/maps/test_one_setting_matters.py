"""One knob's difference: paired by seed at equal other knobs, of runs that both learned."""

import numpy as np
import pandas as pd
import pytest
from handmade import write_map

from compolens import recipes
from compolens.figures import Line, Points
from compolens.foundation.configs import ConfigError
from compolens.measures.intervals import mean_interval

WIDTHS = (1.0, 2.0)
OUTPUTS = (1, 8)


def gain(seed, outputs, width):
    return 0.1 * seed + 0.3 / outputs + width


def planted(seeds=range(5), failed=()):
    """The cube is ahead by `gain` held out, and behind by .01 on training compositions."""
    rows = []
    for s in seeds:
        for support, sign in (("cube", 0.5), ("two cliques", -0.5)):
            for d_y in OUTPUTS:
                for width in WIDTHS:
                    cell = f"{support}-{d_y}-{width:g}-{s}"
                    row = {"cell": cell, "support": support, "d_y": d_y, "student width": width, "seed": s, "run": "r"}
                    row |= {"test": 0.2 if cell in failed else 0.95 - 0.01 * sign, "ood": sign * gain(s, d_y, width)}
                    rows.append(row)
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def written(folder, table):
    return write_map(folder, table, x="d_y", y="support", panels=["student width"], knobs=["support", "d_y", "student width"])


@pytest.fixture
def analyze():
    return recipes.load_recipe("analyses", "one_setting_matters")


def of(panel, kind, label):
    return next(m for m in panel.marks if isinstance(m, kind) and m.label == label).data


def test_differences_are_paired_by_seed_and_have_the_interval_of_their_mean(analyze, tmp_path):
    drawing = analyze([written(tmp_path / "map", planted())])
    assert [panel.title for panel in drawing.panels] == ["planted, student width 1", "planted, student width 2"]
    for panel, width in zip(drawing.panels, WIDTHS, strict=True):
        line = of(panel, Line, "held-out compositions").set_index("d_y")
        points = of(panel, Points, "held-out compositions").set_index(["d_y", "seed"])["ood"]
        for d_y in OUTPUTS:
            gains = np.array([gain(s, d_y, width) for s in range(5)])
            assert [points[d_y, s] for s in range(5)] == pytest.approx(gains)
            assert line.loc[d_y, "mean"] == pytest.approx(gains.mean())
            assert line.loc[d_y, ["lo", "hi"]].tolist() == pytest.approx(mean_interval(gains))
        assert of(panel, Line, "training compositions")["mean"].tolist() == pytest.approx([-0.01] * 2)
    lo, hi = mean_interval([gain(s, 1, 1.0) for s in range(5)])
    assert f"planted, student width 1: at d_y 1, +1.500 [{lo:+.3f}, {hi:+.3f}] over 5 pairs." in drawing.caption


def test_the_other_order_turns_every_sign(analyze, tmp_path):
    folder = written(tmp_path / "map", planted())
    one, other = (analyze([folder], first=a, second=b) for a, b in (("cube", "two cliques"), ("two cliques", "cube")))
    for a, b in zip(one.panels, other.panels, strict=True):
        forth, back = (of(panel, Line, "held-out compositions") for panel in (a, b))
        assert forth["mean"].tolist() == pytest.approx((-back["mean"]).tolist())
        assert forth["lo"].tolist() == pytest.approx((-back["hi"]).tolist())


def test_a_pair_counts_only_where_both_learned_and_few_pairs_have_no_interval(analyze, tmp_path):
    failed = ("cube-1-1-0", "two cliques-1-1-1")
    drawing = analyze([written(tmp_path / "map", planted(failed=failed))])
    line = of(drawing.panels[0], Line, "held-out compositions").set_index("d_y")
    assert line["pairs"].to_dict() == {1: 3, 8: 5} and line.loc[1, ["lo", "hi"]].isna().all()
    assert line.loc[1, "mean"] == pytest.approx(np.mean([gain(s, 1, 1.0) for s in (2, 3, 4)]))
    assert "(no interval) over 3 pairs" in drawing.caption and drawing.caption.endswith("compositions: 2 pairs.")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"knob": "suport"}, "has no knob 'suport'; did you mean 'support'"),
        ({"first": "ring"}, "support is never 'ring'; the table has cube, two cliques"),
    ],
)
def test_what_cannot_be_compared_is_named(analyze, tmp_path, more, message):
    with pytest.raises(ConfigError, match=message):
        analyze([written(tmp_path / "map", planted())], **more)


def test_runs_without_a_partner_are_no_pairs(analyze, tmp_path):
    lonely = planted(seeds=range(1))
    lonely.loc[lonely["support"] == "cube", "seed"] = 7
    with pytest.raises(ConfigError, match="no two runs that differ in support alone; train more of its cells"):
        analyze([written(tmp_path / "map", lonely)])


def test_a_map_of_one_knob_has_one_column_of_pairs(analyze, tmp_path):
    table = planted().query("d_y == 1 and `student width` == 1").drop(columns=["d_y", "student width"])
    drawing = analyze([write_map(tmp_path / "map", table, x="support", y="", panels=[], knobs=["support"])])
    (panel,) = drawing.panels
    line = of(panel, Line, "held-out compositions")
    assert line["support"].tolist() == ["cube less two cliques"]
    assert line["mean"].item() == pytest.approx(np.mean([gain(s, 1, 1.0) for s in range(5)]))


def test_a_number_may_be_typed_as_one_likes(analyze, tmp_path):
    table = planted().query("d_y == 1 and support == 'cube'").drop(columns=["d_y", "support"])
    table["rate"] = table.pop("student width") * 1e-3
    folder = write_map(tmp_path / "map", table, x="rate", y="", panels=[], knobs=["rate"])
    one, other = (analyze([folder], knob="rate", first=a, second=b) for a, b in (("2e-3", "1e-3"), ("0.002", ".001")))
    means = [of(drawing.panels[0], Line, "held-out compositions")["mean"].item() for drawing in (one, other)]
    assert means == pytest.approx([0.5, 0.5])
    with pytest.raises(ConfigError, match=r"rate is never '3e-3'; the table has 0.001, 0.002"):
        analyze([folder], knob="rate", first="3e-3", second="1e-3")
