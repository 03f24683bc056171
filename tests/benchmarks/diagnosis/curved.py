"""How the diagnosis names models whose code is not linear: `curved_kinds` on two families.

    python tests/benchmarks/diagnosis/curved.py [--out DIR]

Twelve models, about half a minute of one core each; tables are kept in DIR, so a second call costs seconds. They are a
regression test: the rule that named such models wrongly was mended before they were made, for others like them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from cases import (  # noqa: E402
    CLASSES,
    MEASURED,
    build,
    case_of,
)
from curved_kinds import CURVED, expected  # noqa: E402

from compolens import recipes, tables  # noqa: E402
from compolens.diagnosis import label  # noqa: E402
from compolens.foundation import builtin  # noqa: E402

FAMILIES = ("teacher", "chain")
STRENGTH = 0.85


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/curved", help="where the models are built (default runs/curved)")
    out, right, count = Path(parser.parse_args(arguments).out), 0, 0
    for family in FAMILIES:
        for i, kind in enumerate(CURVED):
            case = case_of(kind, family, STRENGTH, i % 3, i % 2 == 1, expected(kind))
            folder = out / case.name
            if not (folder / "scores.json").exists():
                build(case, folder)
            for probe, given in MEASURED.items():
                if not tables.path_of(folder, probe).exists():
                    file = builtin.built_in("probes")[probe]
                    options = recipes.options(recipes.load_recipe("probes", file))
                    arguments_of = {name: parameter.default for name, parameter in options.items()} | given
                    recipes.run_probe(file, folder, arguments_of, classes=(*CLASSES, *CURVED))
            found = label.diagnose([folder])
            got = "no table" if found is None else found.label
            right, count = right + (got == case.expected), count + 1
            print(f"{case.name}: {got}" + ("" if got == case.expected else f", expected {case.expected}"), flush=True)
    print(f"right: {right} of {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
