"""Maps that are shipped unfinished stand on the page with as many cells as they have."""

import re
from pathlib import Path

from compolens.foundation import map_files
from compolens.maps.work import one_of

ROOT = Path(__file__).parents[2]
MAPS = ROOT / "trained_models" / "maps"
PAGE = " ".join((ROOT / "docs" / "findings" / "what_predicts.md").read_text(encoding="utf-8").split())


def test_a_map_in_training_stands_with_its_cells():
    told = re.findall(r"`([\w-]+)` is in training, with (\d+) of its (\d+) cells", PAGE)
    assert [name for name, *_ in told] == ["diversity"]
    for name, done, cells in told:
        table, described = map_files.read_table(MAPS / name), one_of(MAPS / f"{name}.py", "maps", name)
        assert len(table) == int(done) < int(cells) == len(described.cells)
        assert set(table["cell"]) <= {cell.name for cell in described.cells}
