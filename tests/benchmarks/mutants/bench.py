"""How many small changes of the code the tests notice: a seeded sample of cosmic-ray's mutants of measures, tables, diagnosis.

    make bench-mutants
    python tests/benchmarks/mutants/bench.py --sample 300 --seed 0 --minutes 90
    python tests/benchmarks/mutants/bench.py --file measures/intervals.py --sample 40

A mutant is the code with one operator, number, comparison or condition replaced; annotations are left alone. It is caught if a
test that runs its function fails, or does not end, and passes without the mutant. Tests are asked in processes that are forked
off one that has imported them; the mutated function takes the place of its own. What was found is kept in a folder: a bench
that was stopped goes on where it was, and what has survived is asked again once the tests have changed. Survivors that no test
can catch stand with the reason in explained.toml.

Prints the share that is caught, and what survives. Needs cosmic-ray: pip install -c constraints.txt -e ".[mutants]".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

from running import Test, Yard, relevant
from sampling import ROOT, SRC, Mutant, files, mutated, sample

EXPLAINED = Path(__file__).parent / "explained.toml"
MOST, MORE = 5.0, 60.0
"""Seconds of tests that are asked of every mutant; then of those that are left and not explained."""


def explained() -> dict[tuple[str, str, str], str]:
    """(file, line before, line after) -> why no test can tell the two apart."""
    entries = tomllib.loads(EXPLAINED.read_text())["mutant"]
    return {(entry["file"], entry["before"], entry["after"]): entry["why"] for entry in entries}


def key(mutant: Mutant) -> str:
    """Of a mutant's result: the code that it makes."""
    return f"{mutant.file}:{hashlib.sha256(mutated(mutant).encode()).hexdigest()[:16]}"


def asked_of(tests: list[Test]) -> str:
    """Digest of tests and their files: a survivor of others is asked again."""
    digest = hashlib.sha256(repr(sorted(test.name for test in tests)).encode())
    for name in sorted({test.file for test in tests}):
        digest.update((ROOT / "tests" / name).read_bytes())
    return digest.hexdigest()[:16]


def read(path: Path) -> dict[str, dict[str, str]]:
    """Results by their key, the later ones in place of the earlier."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["key"]: entry for entry in map(json.loads, lines)}


def chosen_of(paths: list[Path], size: int, seed: int, kept: Path) -> list[Mutant]:
    """The sample, which takes some time to draw, as it was kept for these files."""
    digest = hashlib.sha256(repr((size, seed, [(path.name, path.read_bytes()) for path in paths])).encode()).hexdigest()[:16]
    place = kept / f"sample-{digest}.json"
    if not place.exists():
        kept.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(sample(paths, size, seed)))
    return [Mutant(*entry) for entry in json.loads(place.read_text())]


def tell(chosen: list[Mutant], results: dict[str, dict[str, str]], seed: int) -> None:
    """The share that is caught, by file, and every survivor."""
    why, tried = explained(), [mutant for mutant in chosen if key(mutant) in results]
    survivors = [mutant for mutant in tried if results[key(mutant)]["became"] == "survives"]
    reasons = {mutant: why.get((mutant.file, mutant.before, mutant.after), "") for mutant in survivors}
    rows, lost, same = (
        Counter(mutant.file for mutant in some) for some in (tried, survivors, [m for m in survivors if reasons[m]])
    )
    print("| file | mutants | caught | explained | open |", "| --- | --- | --- | --- | --- |", sep="\n")
    for file in sorted(rows):
        print(f"| {file} | {rows[file]} | {rows[file] - lost[file]} | {same[file]} | {lost[file] - same[file]} |")
    for mutant in survivors:
        print(f"{'explained: ' + reasons[mutant] if reasons[mutant] else 'survives'}: {mutant}")
    caught, n = len(tried) - len(survivors), max(len(tried), 1)
    print(
        f"{caught} of {len(tried)} mutants caught ({caught / n:.1%}), {same.total()} explained, "
        f"{lost.total() - same.total()} open; sample of {len(chosen)}, seed {seed}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="how many mutants (default 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=90.0, help="stop after so many (default 90)")
    parser.add_argument("--file", nargs="+", help="only of these files, named below src/compolens")
    parser.add_argument(
        "--kept", type=Path, default=ROOT / "runs" / "mutants", help="folder of what was found (default %(default)s)"
    )
    parser.add_argument("--show", action="store_true", help="only print what was found so far")
    options = parser.parse_args()
    paths = [SRC / name for name in options.file] if options.file else files()
    chosen, began = chosen_of(paths, options.sample, options.seed, options.kept), time.monotonic()
    kept = options.kept / "results.jsonl"
    results, why = read(kept), explained()
    if options.show:
        tell(chosen, results, options.seed)
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        yard = Yard(Path(place), options.kept)
        tests = yard.tests()
        for most in (MOST, MORE):
            for mutant in chosen:
                if time.monotonic() - began > 60 * options.minutes:
                    break
                asked = relevant(mutant, (SRC / mutant.file).read_text(), tests, most)
                known = results.get(key(mutant))
                if known and (known["became"] == "caught" or known["asked"] == asked_of(asked)):
                    continue
                if (mutant.file, mutant.before, mutant.after) in why:
                    asked = []  # none can tell
                    if known:
                        continue
                started = time.monotonic()
                by = yard.catches(mutant, asked)
                found = {"became": "caught" if by else "survives", "by": by, "asked": asked_of(asked), "mutant": str(mutant)}
                results[key(mutant)] = {"key": key(mutant), **found}
                with open(kept, "a") as file:
                    print(json.dumps(results[key(mutant)]), file=file)
                said = f"caught by {by}" if by else "survives"
                print(f"{time.monotonic() - started:.1f} s, {len(asked)} tests, {said}: {mutant}", flush=True)
    tell(chosen, results, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
