"""What readouts find, by layer: what is drawn is what the tables hold, each control as what it is."""

import handmade
import pytest
from handmade import analyze, marks

from compolens import LinearRegression, MixturePrior, Run, SoftmaxTransformer
from compolens.foundation.configs import ConfigError

NORMAL = LinearRegression.garg(d_x=2, n_context=4)
ONES = LinearRegression(
    d_x=2, n_context=4, inputs=NORMAL.inputs, prior=MixturePrior(((1.0, 1.0),), 1e-3), layout=NORMAL.layout, loss_scale=1.0
)
TASKS = {"as fitted": 0.0, "other inputs": 0.1, "weights × 2": 0.2}


def by_hand(more):
    """R² that tell everything by their digits."""
    for target, t in (("moments", 0.0), ("weights", 0.01)):
        for readout, r in (("linear", 0.0), ("two layers", 0.001)):
            for shown, s in ((2, 0.0), (4, 0.0001)):
                for control, c in (("", 0.5), ("untrained", 0.3), ("shuffled", 0.0), ("raw input", 0.25)):
                    for tasks, less in TASKS.items():
                        if control == "shuffled" and tasks != "as fitted":
                            continue
                        for layer in (-1,) if control == "raw input" else (0, 1, 2):
                            row = {"target": target, "readout": readout, "shown": shown, "tasks": tasks, "layer": layer}
                            value = more + c + t + r + s - less + 0.05 * layer
                            row |= {"split": "test" if tasks == "as fitted" else "ood", "control": control}
                            yield row | {"metric": "r2", "value": value}
                            yield row | {"metric": "attention on answers", "value": 9.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, found = tmp_path_factory.mktemp("moments"), []
    for name, task, more in (("normal-0", NORMAL, 0.0), ("normal-1", NORMAL, 0.002), ("ones-0", ONES, -0.4)):
        seed = int(name[-1])
        run = Run(SoftmaxTransformer(n_layers=2, d_model=8, n_heads=2), task, steps=2, init_seed=seed, data_seed=seed)
        handmade.save(handmade.write(root / name, run), "moments_and_weights", by_hand(more), role="prefix")
        found.append(root / name)
    return found


def test_a_panel_shows_a_target_and_a_readout_a_line_per_seed_and_control(folders):
    drawing = analyze("moments_before_weights", folders)
    titles = [f"{target}, {readout}" for target in ("XᵀY", "least-squares weights") for readout in ("linear", "two layers")]
    assert [panel.title for panel in drawing.panels] == titles
    lines = marks(drawing, "Line", panel=titles[3])
    found = {name: part.sort_values("x")["y"].tolist() for name, part in lines.groupby("series", sort=False)}
    expected = [
        [c + more + 0.0111 + 0.05 * layer for layer in (0, 1, 2)]
        for c, more in ((0.5, 0), (0.5, 0.002), (0.3, 0), (0.3, 0.002), (0, 0), (0, 0.002), (0.5, -0.4))
    ]
    expected.append([0.25 + 0.001 + 0.0111 - 0.05] * 3)  # the tokens themselves, mean over seeds
    assert [pytest.approx(line) for line in expected] == list(found.values())
    assert [name for name in lines["label"].unique() if name] == [
        "model", "untrained", "other episodes' targets", "trained on other weights", "tokens",
    ]  # fmt: skip


def test_held_out_tasks_and_shorter_prompts_are_drawn_where_asked(folders):
    drawing = analyze("moments_before_weights", folders[:1], tasks="weights × 2", shown=2)
    line = marks(drawing, "Line", panel="XᵀY, linear").query("label == 'model'")
    assert line["y"].tolist() == pytest.approx([0.3, 0.35, 0.4])
    assert "After 2 examples, tasks weights × 2" in drawing.caption


def test_only_models_of_one_task_are_drawn_as_models(folders):
    drawing = analyze("moments_before_weights", folders[2:])
    assert marks(drawing, "Line", panel="XᵀY, linear").query("label == 'model'")["y"].tolist() == pytest.approx(
        [0.1001, 0.1501, 0.2001]
    )


def test_other_tasks_and_lengths_are_refused(folders):
    with pytest.raises(ConfigError, match="no such choice 'ood'"):
        analyze("moments_before_weights", folders, tasks="ood")
    with pytest.raises(ConfigError, match="no readouts after 3 examples; choose from 2, 4"):
        analyze("moments_before_weights", folders, shown=3)
