"""In a notebook: live where widgets are, a picture elsewhere, and said which of the two it is."""

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from compolens import load, show
from compolens.explore import Subject, live
from compolens.foundation.configs import ConfigError

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def subject(tiny_models):
    return Subject(load(tiny_models["softmax"]), 32)


@pytest.fixture
def cache(subject):
    return subject.model.run_with_cache(subject.drawn("ood").tokens[:4])[1]


def slider(shown, name):
    (found,) = [control for control in shown.widget.children[0].children if control.description == name]
    return found


def test_a_control_that_is_moved_changes_figure_caption_and_program(subject):
    pytest.importorskip("ipywidgets")
    shown = show.code(subject)
    before = shown.widget.children[1].to_dict(), shown.widget.children[2].value, shown.python
    slider(shown, "module 1").value = 0.9
    after = shown.widget.children[1].to_dict(), shown.widget.children[2].value, shown.python
    assert all(one != two for one, two in zip(before, after, strict=True))
    assert "(1, 0.9)" in shown.python and shown.chosen["module 1"] == 0.9


def test_attention_of_any_cache_is_shown_by_layer_head_and_episode(cache, subject):
    shown = show.attention(cache, roles=subject.model.roles, layer=1)
    assert "blocks.1.attn.hook_pattern" in str(shown) and "no claim" in str(shown)
    assert "Mean of 4" in str(shown.set(episode=-1, layer=0))
    plain = show.attention({"blocks.0.attn.hook_pattern": cache["pattern", 0]})  # no model, no roles
    assert plain.drawing.plotly().data
    with pytest.raises(ConfigError, match="no attention weights"):
        show.attention({"hook_embed": cache["hook_embed"]})
    with pytest.raises(ConfigError, match="head 9"):
        show.attention(cache, head=9)
    with pytest.raises(ConfigError, match="did you mean 'layer'"):
        shown.set(layr=1)


def test_attention_without_a_batch_is_of_one_episode(subject):
    tokens = subject.drawn("ood").tokens[:1]
    _, cache = subject.model.run_with_cache(tokens, remove_batch_dim=True)
    shown = show.attention(cache, head=1)
    batched = show.attention(subject.model.run_with_cache(tokens)[1], head=1)
    assert "One episode: no claim" in str(shown) and list(shown.controls["head"].choices) == [0, 1]
    grids = [each.drawing.panels[0].marks[0].grid()[0] for each in (shown, batched)]
    assert np.array_equal(*grids, equal_nan=True) and np.nansum(grids[0]) > 0


def test_what_is_no_cache_is_named(cache, subject):
    for given, said in (
        (subject.trained, r"got a TrainedModel; type _, cache = trained\.model\.run_with_cache\(tokens\)"),
        (subject.model, r"got a \w+; type _, cache = model\.run_with_cache\(tokens\)"),
        (cache["pattern", 0], r"weights of shape \(4, 2, 9, 9\); type show\.attention\({"),
        ({"blocks.0.attn.hook_pattern": cache["pattern", 0][0, 0]}, r"hook_pattern is \(9, 9\); allowed: \(batch, head"),
    ):
        with pytest.raises(ConfigError, match=said):
            show.attention(given)
    for wrong, said in (({"layer": 1.5}, "layer 1.5: .* allowed: 0 to 1"), ({"episode": "a"}, "episode 'a': .* 0 to 3")):
        with pytest.raises(ConfigError, match=said):
            show.attention(cache, **wrong)


def test_numbers_are_taken_of_any_kind_and_what_is_none_is_named(subject):
    assert show.ladder(subject, episodes=np.int64(3)).python == show.ladder(subject, episodes=3).python
    for wrong, said in (
        (lambda: show.ladder(subject, episodes="a"), r"such as 3 or range\(8\), got 'a'"),
        (lambda: show.patch(subject, donor=1.5), "donor must be a whole number, got 1.5"),
        (lambda: show.code(subject, at=1.5), "at must be a whole number, got 1.5"),
        (lambda: show.code(subject, at=9), "no site at layer 9; allowed: 0, 1, 2$"),
        (lambda: show.code(subject, role="querry"), "no role 'querry' at layer 1; allowed: context, "),
        (lambda: show.code(subject, at=2, role="context"), "no role 'context' at layer 2; .*; it is at layer 0, 1$"),
        (lambda: show.code(subject).set(**{"module 1": 50.0}), r"module 1 cannot be 50.0; allowed: 0.0 to 1.0$"),
        (lambda: show.code(subject).set(**{"module 1": "a"}), "module 1 cannot be 'a'; allowed: 0.0 to 1.0$"),
        (lambda: show.diff(subject, subject).set(layer=1.0), "layer cannot be 1.0; allowed: 0 to 1$"),
        (lambda: show.grid(subject).set(split="odd"), "split cannot be 'odd'; did you mean 'ood'"),
    ):
        with pytest.raises(ConfigError, match=said):
            wrong()


def test_an_episode_that_is_its_own_donor_is_refused_with_the_reason(subject):
    for view in (show.patch, show.parts):
        for donor in (0, 32):
            with pytest.raises(ConfigError, match=f"its own donor: nothing is moved; choose another than donor={donor}"):
                view(subject, episodes=range(4), donor=donor)


def test_each_shows_widgets_and_keeps_a_picture(subject, tiny_models):
    pytest.importorskip("ipywidgets")
    other = load(tiny_models["softmax"], step=0)
    for shown in (
        show.grid(subject),
        show.patch(subject, episodes=0),
        show.parts(subject, episodes=0),
        show.diff(subject, Subject(other, 32)),
    ):
        assert WIDGET in shown._repr_mimebundle_()
        assert shown._repr_png_().startswith(b"\x89PNG")
        assert shown.python.startswith("import torch")


def test_without_widgets_the_picture_says_so(subject, monkeypatch):
    monkeypatch.setattr(live, "NEEDED", ("no_such_package",))
    shown = show.grid(subject)
    assert WIDGET not in shown._repr_mimebundle_() and shown._repr_png_().startswith(b"\x89PNG")
    assert "A picture, not live: no_such_package not installed" in shown._repr_mimebundle_()["text/plain"]


GAPS = """
import torch
shown = show.attention({"blocks.0.attn.hook_pattern": torch.tensor([[[[1.0, float("nan")], [0.5, 0.5]]]])})
assert any(value != value for value in shown.drawing.plotly().data[0].z.flatten())
shown
"""


@pytest.fixture(scope="module")
def outputs(tiny_models):
    """What a kernel sends for cells that show a grid, its drawing, and a map with gaps."""
    pytest.importorskip("ipywidgets")
    first = f"from compolens import show; shown = show.grid({str(tiny_models['softmax'])!r}); shown"
    cells = [nbformat.v4.new_code_cell(source) for source in (first, "shown.drawing", GAPS)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=600, startup_timeout=600, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def test_a_kernel_sends_widgets_picture_and_interactive_drawing(outputs):
    shown, drawing = (
        next(output["data"] for output in sent if output.output_type == "execute_result") for sent in outputs[:2]
    )
    assert {WIDGET, "image/png", "text/plain"} <= set(shown)
    assert {"application/vnd.plotly.v1+json", "image/png"} <= set(drawing)


def test_a_map_with_gaps_reaches_its_cell_without_a_warning(outputs):
    assert [output.output_type for output in outputs[2]] == ["execute_result"]  # JSON has no NaN
