"""A small part of the campaign of faults (make bench-faults), and that it sees faults where there are some."""

import importlib
import sys
from pathlib import Path

import findings
import pytest

from compolens import tables

PLACE = Path(__file__).parent / "benchmarks" / "faults"
sys.path.insert(0, str(PLACE))

import arrays  # noqa: E402
import bench  # noqa: E402
import damage  # noqa: E402
import hostile  # noqa: E402
import kills  # noqa: E402
import settings  # noqa: E402
from outcomes import Kind, Said, command, fault  # noqa: E402
from world import build  # noqa: E402


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return build(tmp_path_factory.mktemp("world"))


def quick(make, numbers, world, slow=("report", "analyze", "explain", "recording")):
    """Faults among cases, without those that take seconds."""
    cases = [make(world, 7, number) for number in numbers]
    cases = [case for case in cases if not any(word in f"{case.campaign} {case.text}" for word in slow)]
    found = [(case.text, case.run()) for case in cases]
    assert len(found) > len(numbers) // 3
    return [f"{text}: {result}" for text, result in found if result.kind.is_fault]


@pytest.mark.parametrize(
    ("make", "cases"),
    [(settings.case, 120), (arrays.case, 60), (damage.case, 30), (hostile.case, 25), (kills.case, 25), (kills.disk, 8)],
    ids=["settings", "arrays", "damage", "hostile", "kills", "disk"],
)
def test_no_case_is_a_fault(make, cases, world):
    assert quick(make, range(cases), world) == []


# ---- the page --------------------------------------------------------------------------------------------------------
def shown():
    """Row -> column -> number, of the table in docs/reliability.md."""
    page = (Path(__file__).parents[1] / "docs" / "reliability.md").read_text(encoding="utf-8")
    lines = page.split(bench.MARKS[0])[1].split(bench.MARKS[1])[0].strip().splitlines()
    header, _, *rows = [findings.columns(line) for line in lines if line.startswith("|")]
    return page, {row[0]: dict(zip(header[1:], map(int, row[1:]), strict=True)) for row in rows}


def test_the_page_shows_a_whole_campaign_without_a_fault():
    page, rows = shown()
    whole = rows.pop("all")
    assert whole["tried"] == 3000 and rows["the command itself"]["tried"] == 200
    assert list(whole) == ["tried", *(kind.value for kind in Kind)]
    assert whole == {column: sum(row[column] for row in rows.values()) for column in whole}
    assert not any(whole[kind.value] for kind in Kind if kind.is_fault)
    assert all(row["tried"] == sum(row.values()) - row["tried"] for row in rows.values())
    kills = {name: row["tried"] for name, row in rows.items() if name.startswith("kills: ")}
    by_write, by_time = kills["kills: explain"], kills["kills: the command explain"]
    told = (
        f"Of the {sum(kills.values())} kills, {by_write + by_time} are of `explain`: {by_write} at a write, {by_time} of the"
    )
    assert sum(kills.values()) - kills["kills: report"] >= 300 and told in " ".join(page.split())


def test_a_campaign_puts_its_table_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{bench.MARKS[0]}\nold\n{bench.MARKS[1]}\nafter\n")
    bench.write(page, "| new |")
    bench.write(page, "| newer |")
    assert page.read_text() == f"before\n{bench.MARKS[0]}\n\n| newer |\n\n{bench.MARKS[1]}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="has no lines"):
        bench.write(page, "| new |")


# ---- that it sees them -----------------------------------------------------------------------------------------------
def test_a_table_drawn_as_true_though_it_changed_is_silently_wrong(world, monkeypatch):
    whole = damage.gather(world.fresh("softmax") / "softmax")
    path = tables.path_of(world.work / "softmax", "generalization")
    path.write_text(path.read_text().replace("score,", "score,9", 1))
    told = damage.gather(world.work / "softmax")
    assert damage.judged(whole, told, path, old=False).kind is Kind.TOLD
    silent = whole._replace(out=whole.out.replace("0.", "1."))
    assert damage.judged(whole, silent, path, old=False).kind is Kind.WRONG
    assert damage.judged(whole, silent, path, old=True).kind is Kind.OLD
    assert damage.judged(whole, whole, path, old=False).kind is Kind.RIGHT


@pytest.mark.parametrize("error", [KeyError("reference"), RecursionError("deep"), ZeroDivisionError("division by zero")])
def test_what_nobody_foresaw_is_seen(monkeypatch, error):
    def broken(*_):
        raise error

    monkeypatch.setattr("compolens.tables.find", broken)
    assert fault(command(["models", "."])).kind is Kind.UNFORESEEN


@pytest.mark.parametrize(
    ("out", "err", "kind"),
    [
        ("\x1b[31mred", "", Kind.WRONG),
        ("", "compolens: error: [Errno 2] No such file or directory: 'x'", Kind.UNFORESEEN),
        ("", "Traceback (most recent call last):\n  …\nKeyError: 'x'", Kind.EXCEPTION),
    ],
)
def test_what_a_command_must_not_say_is_seen(out, err, kind):
    assert fault(Said(2, out, err, None)).kind is kind
    assert fault(Said(0, "a table", "compolens: error: there is no folder x", None)) is None


def test_a_setting_of_another_kind_is_seen():
    assert not settings.fits("false", bool) and not settings.fits(1, bool) and settings.fits(True, bool)
    assert not settings.fits(True, int) and not settings.fits(float("nan"), float) and settings.fits(None, float | None)
    assert settings.fits((1, 2), tuple[int, ...]) and not settings.fits((1, "a"), tuple[int, ...])


def test_a_process_is_killed_before_the_write_it_is_to_be_killed_before(tmp_path):
    def write():
        for name in "abc":
            (tmp_path / name).write_text(name)

    assert kills.child(write, tmp_path) == (0, "3")
    for name in "abc":
        (tmp_path / name).unlink()
    assert kills.child(write, tmp_path, kill_at=2)[0] == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_a_full_disk_is_told_and_a_file_cut_off(tmp_path):
    def write():
        (tmp_path / "a").write_bytes(b"x" * 100)

    assert kills.child(write, tmp_path, limit=10, full=True)[1].startswith("EXCEPTION\nOSError")
    assert kills.child(write, tmp_path, limit=10)[0] == 25 and (tmp_path / "a").stat().st_size == 10


def test_a_full_disk_leaves_no_module_cut_short(tmp_path, monkeypatch):
    """What a child imports beside its work is imported by others after it."""
    (tmp_path / "imported_where_the_disk_is_full.py").write_text("numbers = " + repr(list(range(500))))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def imported():
        return importlib.import_module("imported_where_the_disk_is_full")

    assert kills.child(imported, tmp_path, limit=100, full=True)[1].isdigit()
    assert imported().numbers[-1] == 499
