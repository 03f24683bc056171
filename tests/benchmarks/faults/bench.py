"""Faults, damage and bad input: a seeded campaign, its table, and every fault with the way to see it again.

    make bench-faults                                                            # 3,000 cases, seed 0, at most 30 minutes
    python tests/benchmarks/faults/bench.py --cases 300 --only kills hostile --seed 1
    python tests/benchmarks/faults/bench.py --only settings --number 17          # one case, again
    python tests/benchmarks/faults/bench.py --page docs/reliability.md           # the table of that page

Of 3,000 cases 200 go through the real command; of the others, CAMPAIGNS says which share is of which kind, and the kinds
take turns. Where the time is up, the table says how many of the cases were run. Cases run one after another in a process of
their own, which is begun again where a case hangs. What a command says of a damaged folder is compared with what it says of
the whole one. Exits 1 where something is silently wrong, unforeseen, an exception, hangs, or leaves a process behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "MPLBACKEND": "Agg",
    "PYTHONWARNINGS": "",
}

import arrays
import commands
import damage
import hostile
import kills
import settings
import torch
from outcomes import Case, Kind, Result, of_exception
from watch import SECONDS, Watch
from world import World, build

Make = Callable[[World, int, int], Case]
CAMPAIGNS: dict[str, tuple[Make, int]] = {
    "damage": (damage.case, 27), "settings": (settings.case, 20), "arrays": (arrays.case, 15), "hostile": (hostile.case, 14),
    "commands": (commands.case, 10), "kills": (kills.case, 11), "disk": (kills.disk, 3),
}  # fmt: skip
"""Name -> what makes its cases, and its share of them."""
WITH_CHILDREN = ("the command itself", "kills", "disk full")
"""What its cases tell to a hang of their own; so do those that start Ray, which takes as long as the machine is busy."""
MARKS = ("<!-- campaign -->", "<!-- end of the campaign -->")
"""Around the table in docs/reliability.md."""
MEMORY = 4 * 2**30
"""Bytes that a case may take before it is told that there are no more."""


def plan(cases: int, real: int, only: list[str]) -> list[tuple[str, int]]:
    """(campaign, number) of every case."""
    chosen = {name: share for name, (_, share) in CAMPAIGNS.items() if not only or name in only}
    total, found = sum(chosen.values()), []
    for name, share in chosen.items():
        found += [(name, number) for number in range(max(1, round((cases - real) * share / total)))]
    found += [("real", number) for number in range(real)] * (not only or "real" in only)
    sizes = Counter(name for name, _ in found)
    return sorted(found, key=lambda case: (case[1] + 0.5) / sizes[case[0]])  # they take turns


def make(world: World, seed: int, name: str, number: int) -> Case:
    return (commands.real if name == "real" else CAMPAIGNS[name][0])(world, seed, number)


# ---- a process for the cases -----------------------------------------------------------------------------------------
def _work(world: World, seed: int, work: list[tuple[str, int]], writer: int) -> None:
    """The life of the process: a line when a case begins, and one with what became of it."""
    with contextlib.suppress(BaseException):  # its parent's clean-up is not its own
        _cases(world, seed, work, writer)
        os._exit(0)
    os._exit(1)


def _cases(world: World, seed: int, work: list[tuple[str, int]], writer: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    with os.fdopen(writer, "w", buffering=1) as pipe:
        for name, number in work:
            try:
                case = make(world, seed, name, number)
            except Exception as error:
                case = Case(name, f"making case {number}: {error!r}", lambda: Result(Kind.EXCEPTION, "no case"))
            print(json.dumps([case.campaign, case.text]), file=pipe)
            try:
                result = case.run()
            except Exception as error:
                result = of_exception(error)
                result = result._replace(kind=Kind.EXCEPTION, where=f"{name}: {result.where}")
            print(json.dumps([result.kind.name, result.where, result.detail[:600]]), file=pipe)


def run(world: World, seed: int, work: list[tuple[str, int]]) -> Iterator[tuple[str, int, Case, Result]]:
    """Every case with its result; a process that hangs or dies is begun again behind the case that did it."""
    done = 0
    while done < len(work):
        before, (reader, writer) = done, os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os.setpgid(0, 0)
            _work(world, seed, work[done:], writer)
        os.close(writer)
        try:
            with os.fdopen(reader, "rb", buffering=0) as pipe:
                for case, result in _listen(pid, pipe):
                    yield *work[done], case, result
                    done += 1
        finally:
            with contextlib.suppress(OSError):  # whoever asked has had enough, or a case hangs
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        if done == before:
            raise RuntimeError(f"no case was begun, and the process ended with status {status}")


def _listen(pid: int, pipe) -> Iterator[tuple[Case, Result]]:
    """What a process says, until it ends, or is ended since a case hangs."""
    lines, rest, case = [], b"", None
    watch = Watch(pid)
    while True:
        ready, _, _ = select([pipe], [], [], 0.25)
        content = os.read(pipe.fileno(), 65536) if ready else None
        if content == b"":
            if case is not None:
                yield case, Result(Kind.EXCEPTION, "the process died", case.text)
            return
        *lines, rest = (rest + (content or b"")).split(b"\n")
        for line in lines:
            found = json.loads(line)
            if case is None:
                case = Case(found[0], found[1], lambda: Result(Kind.RIGHT))
            else:
                yield case, Result(Kind[found[0]], found[1], found[2])
                case = None
            watch.again()
            with_children = case is not None and (case.campaign.startswith(WITH_CHILDREN) or "'ray'" in case.text)
            watch.work, watch.patience = (300.0, 300.0) if with_children else (SECONDS, SECONDS)
        if case is not None and watch.hangs():
            os.killpg(pid, signal.SIGKILL)
            yield case, Result(Kind.HANG, f"{case.campaign}: {case.text.split(' ')[0]}", str(watch))
            return


# ---- what is printed -------------------------------------------------------------------------------------------------
def table(results: list[tuple[str, int, Case, Result]]) -> str:
    counts: dict[str, Counter[Kind]] = {}
    for _, _, case, result in results:
        counts.setdefault(case.campaign, Counter())[result.kind] += 1
    rows = [["campaign", "tried", *(kind.value for kind in Kind)], ["---"] * (2 + len(Kind))]
    rows += [[name, str(found.total()), *(str(found[kind]) for kind in Kind)] for name, found in sorted(counts.items())]
    whole = sum(counts.values(), Counter())
    rows.append(["all", str(whole.total()), *(str(whole[kind]) for kind in Kind)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def faults(results: list[tuple[str, int, Case, Result]]) -> str:
    """Faults by their cause, the most frequent first, each with one case of it."""
    groups: dict[tuple[str, str], list] = {}
    for name, number, case, result in results:
        if result.kind.is_fault:
            thrown = result.kind in (Kind.EXCEPTION, Kind.UNFORESEEN)  # wherever it was asked for, it came from one place
            where = result.where.rsplit(": ", 1)[-1] if thrown else result.where
            groups.setdefault((result.kind.value, where), []).append((name, number, case, result))
    lines = []
    for (kind, where), found in sorted(groups.items(), key=lambda item: -len(item[1])):
        name, number, case, result = found[0]
        lines += [
            f"- {len(found)} × **{kind}**, {where}",
            f"  - `{case.text}` (--only {name} --number {number})",
            f"  - {result.detail[:300]}",
        ]
    return "\n".join(lines)


def worked() -> float:
    """Seconds of work of this process and of those that it has waited for: what one core takes where nobody else uses it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def write(page: Path, found: str) -> None:
    """Put a table in the place of the one that a page shows."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, found_end, after = rest.partition(MARKS[1])
    if not found_end:
        raise SystemExit(f"{page} has no lines {MARKS[0]} and {MARKS[1]}, between which the table goes")
    page.write_text(f"{before}{MARKS[0]}\n\n{found}\n\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=3000, help="how many (default 3000)")
    parser.add_argument("--commands", type=int, default=200, help="how many of them through the real command (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="+", default=[], choices=[*CAMPAIGNS, "real"], metavar="CAMPAIGN", help="some campaigns"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no case after so many (default 30)")
    parser.add_argument("--number", type=int, help="one case of the campaign that --only names")
    parser.add_argument(
        "--world", metavar="DIR", help="where the models are that are damaged; made there once (default: anew)"
    )
    parser.add_argument("--page", metavar="FILE", help="put the table between the marks of this page, docs/reliability.md")
    parser.add_argument("--verbose", action="store_true", help="a line for every case, not for faults alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="faults-") as own:
        root = Path(options.world or own)
        world = World(root / "pristine", root / "work") if (root / "pristine").exists() else build(root)
        work = plan(options.cases, options.commands, options.only)
        work = work if options.number is None else [(name, options.number) for name in options.only]
        began, results, cases = time.monotonic(), [], run(world, options.seed, work)
        for found in cases:
            results.append(found)
            if options.verbose or found[3].kind.is_fault:
                name, number, case, result = found
                said = f"{name} {number}: {result.kind.value}: {result.where}; {case.text}; {result.detail[:200]}"
                print(f"{time.monotonic() - began:.1f} s, {said}", file=sys.stderr, flush=True)
            if time.monotonic() - began > 60 * options.minutes:
                break
        cases.close()
    print(table(results), "", faults(results), "", sep="\n")
    if options.number is not None:
        print(*(f"{case.text}\n{result}" for _, _, case, result in results), sep="\n")
    print(
        f"{len(results)} of {len(work)} cases, seed {options.seed}, {time.monotonic() - began:.0f} s, of work {worked():.0f} s"
    )
    if options.page and len(results) < len(work):
        print(f"{options.page} keeps its table, which is of all cases; on a busy machine give more --minutes")
    elif options.page:
        write(Path(options.page), f"{table(results)}\n\n{len(results):,} cases, seed {options.seed}.")
    return int(any(result.kind.is_fault for *_, result in results))


if __name__ == "__main__":
    sys.exit(main())
