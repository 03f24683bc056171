"""What is printed is text: nothing in a folder, a name or a message moves the cursor, or passes for a line of its own."""

import errno
import io
import json
import shutil
import sys
import warnings

import pytest

from compolens import cli
from compolens.foundation.terminal import Plain, beneath, one_line, plain, visible
from compolens.jobs.display import Display

HOSTILE = "\x1b]0;mine\x07\x1b[2J\x1b[31mred\x9b\x7f\u202e"


def acts(text):
    return [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")]


def test_what_a_terminal_acts_on_is_written_out():
    assert visible("a\x1b[2Jb\rc\td\n") == "a\\x1b[2Jb\\rc\td\n" and visible("é ± ─ ·") == "é ± ─ ·"
    assert not acts(visible(HOSTILE)) and visible("\udcff\u202e") == "\\udcff\\u202e"
    assert one_line("a\nb\tc") == "a b c"


def test_what_an_encoding_lacks_is_written_out_and_all_else_is_the_streams():
    raw = io.BytesIO()
    stream = Plain(io.TextIOWrapper(raw, encoding="ascii"))
    print("0.5 ± 0.1 \x1b[0m", file=stream, flush=True)
    assert raw.getvalue() == b"0.5 \\xb1 0.1 \\x1b[0m\n" and stream.encoding == "ascii" and not stream.isatty()


@pytest.mark.parametrize("call", ["write", "flush"])
def test_a_terminal_that_was_closed_stops_nothing(monkeypatch, call):
    """Writing to one gives EIO; a training that saves after its terminal was closed goes on past its progress lines."""

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    closed = io.StringIO()
    setattr(closed, call, fail)
    monkeypatch.setattr(sys, "stderr", closed)
    with plain(), Display(1) as display:
        display.update("run", 5, 10, "loss 1")
        display.finish("run", "done")
        sys.stderr.flush()
    assert sys.stderr is closed


def test_bars_are_drawn_and_names_in_them_are_shown_as_they_are(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with plain(), Display(1, show=True) as display:
        assert display.bars.console.file is stream is beneath(sys.stderr)
        display.update(f"[red]{HOSTILE}[/nothing]", 1, 2, HOSTILE)
        display.finish(f"[red]{HOSTILE}[/nothing]", HOSTILE)
    assert "[red]\\x1b" in "".join(stream.getvalue().split()) and "\x1b]0;" not in stream.getvalue()


def test_bars_say_which_job_of_how_many_and_how_long_it_has_taken(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with plain(), Display(2, show=True) as display:
        display.update("F · latent_code", 0, 1, "measuring")
        display.update("F · swap_code", 0, 1, "measuring")
        first, second = display.bars.tasks
        assert (first.description, second.description) == ("1/2 F · latent_code", "2/2 F · swap_code")
        earlier = second.elapsed
        display.finish("F · swap_code", "failed: no codes")
        assert second.elapsed >= earlier and second.elapsed == second.elapsed, "it stands still once the job has ended"


@pytest.mark.parametrize("command", ["models", "probe", "cite", "report"])
def test_no_command_prints_what_a_folder_would_have_a_terminal_do(tiny_models, tmp_path, capsys, command):
    folder = shutil.copytree(tiny_models["softmax"], tmp_path / f"a\n{HOSTILE}")
    described = json.loads((folder / "config.json").read_text())
    described["run"]["task"]["coefficients"] = HOSTILE
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "scores.json").write_text(json.dumps({"step": 2, "score": HOSTILE, "parameters": HOSTILE}))
    first = {"probe": ["probe", "generalization"]}.get(command, [command])
    cli.main([*first, str(folder), *(["-o", str(tmp_path / "r.html")] if command == "report" else [])])
    out, err = capsys.readouterr()
    assert not acts(out + err) and ("\\x1b" in out + err or command == "cite")  # which quotes nothing


def test_an_error_is_one_line_whatever_it_quotes(tmp_path, capsys):
    assert cli.main(["models", f"{tmp_path}/a\ncompolens: done\x1b[2J"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a compolens: done\\x1b[2J" in line
    with pytest.raises(SystemExit):
        cli.main(["probe", "--no\nsuch", str(tmp_path)])
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_warning_is_one_line_without_code(capsys, monkeypatch):
    def run(options):
        warnings.warn("a table\nis old", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("compolens.cli._dispatch", run)
    before = warnings.formatwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *given: sys.stderr.write(warnings.formatwarning(*given[:4]))
        assert cli.main([]) == 0
    assert capsys.readouterr().err == "compolens: a table is old\n" and warnings.formatwarning is before
