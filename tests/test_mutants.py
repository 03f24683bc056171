"""The mutants that no test can catch: each is of a line that is there, with a reason."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXPLAINED = ROOT / "tests" / "benchmarks" / "mutants" / "explained.toml"


def test_every_mutant_that_is_explained_changes_a_line_that_is_there():
    entries = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["mutant"]
    for entry in entries:
        lines = (ROOT / "src" / "compolens" / entry["file"]).read_text(encoding="utf-8").splitlines()
        assert entry["before"] in [line.strip() for line in lines], f"{entry['file']} no longer has: {entry['before']}"
        assert entry["after"] != " ".join(entry["before"].split()) and len(entry["why"].split()) > 3
    assert len({(entry["file"], entry["after"]) for entry in entries}) == len(entries), "no mutant is explained twice"
