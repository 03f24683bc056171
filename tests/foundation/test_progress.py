"""How far a loop is reaches whoever listens, and nobody else; a log hears of it seldom."""

from compolens.foundation import progress as told
from compolens.foundation.progress import heard_by, progress
from compolens.jobs import display
from compolens.jobs.display import Display


def test_a_listener_hears_of_loops_within_and_of_none_after(monkeypatch):
    monkeypatch.setattr(told, "EVERY", 0.0)
    heard = []
    with heard_by(lambda done, total, text: heard.append((done, total, text))):
        assert [x for outer in progress("ab", "site") for x in progress([1, 2], f"in {outer}, step")] == [1, 2, 1, 2]
    assert list(progress("ab", "site")) == ["a", "b"]
    texts = [text for *_, text in heard]
    assert texts == [
        "site 1 of 2", "in a, step 1 of 2", "in a, step 2 of 2", "site 2 of 2", "in b, step 1 of 2", "in b, step 2 of 2",
    ]  # fmt: skip
    assert all((done, total) == (0, 1) for done, total, _ in heard)


def test_a_fast_loop_is_told_of_once():
    heard = []
    with heard_by(lambda *report: heard.append(report)):
        assert list(progress(range(100), "step")) == list(range(100))
    assert heard == [(0, 1, "step 1 of 100")]


def test_a_log_has_a_line_now_and_then(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    with Display(1, show=False) as shown:
        for second in range(0, 60, 5):
            now[0] = second
            shown.update("model · probe", 0, 1, f"site {second}")
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["site 15", "site 30", "site 45"]
