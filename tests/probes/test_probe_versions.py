"""A table is stale when its numbers changed, not when a file did: versions, old folders, changed tables; and numbers held."""

import ast
import hashlib
import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import probe_numbers
import pytest

from compolens import tables
from compolens.foundation import builtin, table_files, versions
from compolens.measures import factorisation
from compolens.training import scores

PROBES = builtin.built_in("probes")
ZOO = Path(__file__).parents[2] / "trained_models"
SHIPPED = [(place.parent, name) for place in sorted(ZOO.rglob("tables")) for name in table_files.names(place)]


# ---- the numbers of every probe --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_gives_the_numbers_that_are_held_for_its_version(name):
    measured = probe_numbers.measure(name)
    problem = probe_numbers.problem(name, measured)
    assert not problem, problem
    outside = probe_numbers.outside(measured)
    assert outside.empty, f"values beside their own intervals:\n{outside.to_string()}"


def test_no_value_of_a_shipped_table_of_the_current_version_lies_beside_its_interval():
    """Some of tables of earlier versions do; these are drawn with a warning until they are measured again."""
    rows = 0
    for model, name in SHIPPED:
        provenance = json.loads((model / "tables" / f"{name}.json").read_text())
        then = provenance.get("probe_version")
        if name in PROBES and then is not None and then == versions.describe(PROBES[name])["probe_version"]:
            found = pd.read_csv(tables.path_of(model, name))
            assert probe_numbers.outside(found).empty, tables.path_of(model, name)
            rows += int(found["lo"].notna().sum()) if "lo" in found else 0
    assert rows > 10_000


def test_a_value_beside_its_interval_is_seen():
    rows = [(0.5, 0.4, 0.6), (0.5, 0.51, 0.6), (0.5, 0.4, 0.49), (0.5, np.nan, np.nan), (0.5, 0.4, np.nan), (0.5, 0.5, 0.5)]
    found = probe_numbers.outside(pd.DataFrame(rows, columns=["value", "lo", "hi"]))
    assert list(found.index) == [1, 2, 4], "half an interval is none"


def test_numbers_are_held_for_every_probe_that_declares_a_version_and_for_no_other():
    declared = {name for name, path in PROBES.items() if versions.describe(path)["probe_version"] is not None}
    assert {path.stem for path in probe_numbers.HELD.iterdir()} == declared


def test_every_probe_with_a_shipped_table_declares_a_version():
    shipped = {name for _, name in SHIPPED} & set(PROBES)
    assert len(shipped) > 15 and not [name for name in shipped if versions.describe(PROBES[name])["probe_version"] is None]


def test_every_kind_of_number_is_held_intervals_and_controls_too():
    for path in probe_numbers.HELD.iterdir():
        held, name = probe_numbers.read(path), path.stem
        assert held["value"].notna().any() and held["lo"].notna().any() and held["hi"].notna().any(), name
        assert set(held["control"]) > {""}, name


@pytest.fixture
def held(tmp_path):
    """A copy of the numbers held, to edit."""
    return shutil.copytree(probe_numbers.HELD, tmp_path / "held")


def numbers(held, name):
    return probe_numbers.read(held / f"{name}.csv").drop(columns="version")


def measured(held, name):
    frame = numbers(held, name)
    return frame.drop(columns=[column for column in frame if column.endswith(probe_numbers.WITHIN)])


def test_a_constant_three_calls_away_changes_the_numbers(monkeypatch):
    """code_structure → left_out → _predicted → EPISODES_PER_EFFECT."""
    monkeypatch.setattr(factorisation, "EPISODES_PER_EFFECT", 6)
    problem = probe_numbers.problem("code_structure")
    assert problem.startswith(
        "the numbers of code_structure have changed: raise its version in probes/code_structure.py, "
        "then write them down again with: python tests/probe_numbers.py code_structure\n"
    )


def test_an_interval_that_changes_alone_is_a_change(monkeypatch):
    monkeypatch.setattr(scores.Evaluation, "interval", property(lambda self: (self.score - 0.1, self.score + 0.1)))
    problem = probe_numbers.problem("transfer")
    assert "the numbers of transfer have changed" in problem and ": lo " in problem and ": value " not in problem


@pytest.mark.parametrize("name", ["transfer", "code_structure"])
def test_rounding_is_no_change_and_what_is_more_than_rounding_is_one(held, name):
    frame = measured(held, name)
    assert probe_numbers.problem(name, frame.assign(value=frame["value"] * (1 + 1e-4)), held) == ""
    assert ": value " in probe_numbers.problem(name, frame.assign(value=frame["value"] * 1.01), held)
    assert ": value " in probe_numbers.problem(name, frame.assign(value=frame["value"].where(frame.index > 2)), held)
    assert "rows were held" in probe_numbers.problem(name, frame.iloc[1:].reset_index(drop=True), held)
    assert "columns: " in probe_numbers.problem(name, frame.assign(more=1.0), held)
    renamed = frame["metric"].where(frame.index > 2, "another name")
    assert ": metric " in probe_numbers.problem(name, frame.assign(metric=renamed), held)


def test_a_raised_version_without_its_numbers_says_so(held):
    frame = pd.read_csv(held / "transfer.csv")
    frame.assign(version=frame["version"] + 1).to_csv(held / "transfer.csv", index=False)
    problem = probe_numbers.problem("transfer", held=held)
    assert problem.endswith("write them down again with: python tests/probe_numbers.py transfer") and "version 2" in problem


def test_a_new_probe_names_what_is_to_be_done(held, tmp_path, monkeypatch):
    shutil.copytree(builtin.room("probes"), tmp_path / "probes")
    monkeypatch.setattr(builtin, "room", lambda kind: tmp_path / kind)
    new = tmp_path / "probes" / "a_new_one.py"
    shutil.copy(PROBES["transfer"], new)
    problem = probe_numbers.problem("a_new_one", held=held)
    assert problem == "no numbers of a_new_one are held yet; write them down with: python tests/probe_numbers.py a_new_one"
    monkeypatch.setattr(probe_numbers, "HELD", held)
    monkeypatch.setattr(probe_numbers, "NOISES", 1)
    probe_numbers.write("a_new_one")
    assert probe_numbers.problem("a_new_one", measured(held, "a_new_one"), held) == ""
    np.testing.assert_allclose(numbers(held, "a_new_one")["value"], numbers(held, "transfer")["value"], 1e-3, 1e-4)
    new.write_text(re.sub(r"^version = ", "edition = ", new.read_text(), flags=re.MULTILINE))
    assert "declares no version" in probe_numbers.problem("a_new_one", held=held)
    (held / "a_new_one.csv").unlink()
    assert probe_numbers.problem("a_new_one", held=held) == "", "no version, no promise"


# ---- what is no change -----------------------------------------------------------------------------------------------
class Cleaned(ast.NodeTransformer):
    """Documents and annotates everything anew."""

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.returns = ast.Name("object", ast.Load())
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            argument.annotation = ast.Constant("Documented")
        return self._documented(node)

    def visit_ClassDef(self, node):
        self.generic_visit(node)
        return self._documented(node)

    def visit_Module(self, node):
        self.generic_visit(node)
        return self._documented(node)

    def visit_Assign(self, node):
        if len(node.targets) > 1 or not isinstance(node.targets[0], ast.Name):
            return node
        return ast.AnnAssign(node.targets[0], ast.Constant("a note"), node.value, 1)

    def _documented(self, node):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        node.body = [ast.Expr(ast.Constant(f"Is this another text about {getattr(node, 'name', 'it')}?")), *body]
        return node


def cleaned(source):
    tree = ast.fix_missing_locations(Cleaned().visit(ast.parse(source)))
    lines = ast.unparse(tree).replace("    ", "  ").splitlines()
    return "# A comment.\n" + "\n\n".join(lines) + "\n# Another.\n"


@pytest.fixture(scope="module")
def cleaned_probes(tmp_path_factory):
    """The built-in probes, each commented, documented, annotated and formatted in another way."""
    folder = tmp_path_factory.mktemp("cleaned")
    for path in PROBES.values():
        (folder / path.name).write_text(cleaned(path.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


@pytest.fixture
def clean(cleaned_probes, tmp_path, monkeypatch):
    """A copy of them, to edit, in place of the built-in ones."""
    shutil.copytree(cleaned_probes, tmp_path / "probes")
    monkeypatch.setattr(builtin, "room", lambda kind: tmp_path / kind)
    return builtin.built_in("probes")


def test_every_shipped_table_is_current():
    assert len(SHIPPED) > 700
    why = {place: tables.why_stale(*place) for place in SHIPPED}
    older = {place for place, reason in why.items() if reason.startswith(versions.INTERVALS)}
    assert {place: reason for place, reason in why.items() if reason and place not in older} == {}
    assert {name for _, name in older} <= {name for name in PROBES if versions.values_since(PROBES[name])}
    assert all(tables.why_not(*place) == "" for place in sorted(older)[::40]), "their values are drawn"


def test_no_clean_up_of_a_probe_makes_a_shipped_table_stale(clean):
    assert clean.keys() == PROBES.keys() and all(clean[name].read_bytes() != PROBES[name].read_bytes() for name in PROBES)
    why = {place: tables.why_stale(*place) for place in SHIPPED}
    assert {place: reason for place, reason in why.items() if reason and not reason.startswith(versions.INTERVALS)} == {}


@pytest.mark.parametrize("name", PROBES)
def test_a_clean_up_does_not_count_without_a_version_either(clean, name):
    before, after = versions.describe(PROBES[name]), versions.describe(clean[name])
    assert before["recipe"] == after["recipe"] and before["probe_version"] == after["probe_version"]
    source = ast.parse(PROBES[name].read_text(encoding="utf-8"))
    numbers = [node for node in ast.walk(source) if isinstance(node, ast.Constant) and type(node.value) in (int, float)]
    numbers[-1].value += 1
    changed = clean[name]
    changed.write_text(ast.unparse(source))
    assert versions.describe(changed)["recipe"] != before["recipe"]


SAME = """
import math
SIZE = 3
def probe(trained, *, n=2):
    total = SIZE * n
    return total
class Kept:
    x: int = 1
"""


@pytest.mark.parametrize(
    "other",
    [
        SAME.replace("SIZE = 3", "SIZE: int = (3)  # so many"),
        SAME.replace("SIZE = 3", 'SIZE = 3\n"""How many."""'),
        SAME.replace("trained, *, n=2)", "trained: object, *, n: int = 2) -> float"),
        SAME.replace("    total =", '    """Why?"""\n    total: int\n    total: int ='),
        SAME.replace("x: int", "x: float"),
        SAME.replace("import math", "from __future__ import annotations\nfrom typing import Any\nimport math"),
        SAME.replace("class Kept:", "class Kept:\n    'Kept.'\n    pass\n"),
        SAME.replace("SIZE = 3", "version: int = 4\nSIZE = 3"),
    ],
)
def test_what_does_not_count(tmp_path, other):
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text(SAME)
    second.write_text(other)
    assert first.read_bytes() != second.read_bytes()
    assert versions.describe(first)["recipe"] == versions.describe(second)["recipe"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 3", "SIZE = 3.0"), ("n=2", "n=1"), ("n=2", "n"), ("import math", "import cmath as math"),
        ("SIZE * n", "SIZE + n"), ("x: int = 1", "x = 1"), ("x: int = 1", "x: ClassVar[int] = 1"), ("x: int = 1", "x: int"),
        ("    return total", "    pass"),
    ],
)  # fmt: skip
def test_what_counts(tmp_path, old, new):
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text(SAME)
    second.write_text(SAME.replace(old, new))
    assert versions.describe(first)["recipe"] != versions.describe(second)["recipe"]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("version = 3", 3), ("version: int = 4", 4), ("version = True", None), ("version = '3'", None),
        ("version = 1 + 1", None), ("def f():\n    version = 3", None), ("x = version = 3", None),
        ("version = (", None), ("", None),
    ],
)  # fmt: skip
def test_a_version_is_read_without_running_the_file(tmp_path, line, version):
    path = tmp_path / "mine.py"
    path.write_text(f"raise SystemExit('this file was run')\n{line}\n")
    assert versions.describe(path)["probe_version"] == version


# ---- tables, older and newer than versions ---------------------------------------------------------------------------
def folder(path, name="patching", table=True, **provenance):
    """A model's folder with one table of a probe."""
    (path / "tables").mkdir(parents=True)
    (path / "weights.safetensors").write_bytes(b"weights")
    file = path / "tables" / f"{name}.csv"
    file.write_text("metric,value,lo,hi,split,site,role,control,n\nscore,0.5,,,ood,,,,3\n")
    known = {"weights": tables.file_digest(path / "weights.safetensors")} | provenance
    known |= {"table": tables.file_digest(file)} if table else {}
    file.with_suffix(".json").write_text(json.dumps(known))
    return path


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_first_versions_are_those_of_every_probe_of_that_time():
    first = json.loads(versions.FIRST.read_text())
    assert len(first) == 18 and all(set(known.values()) == {1} for known in first.values())
    assert all(len(key) == 64 for known in first.values() for key in known)


def declare(probe, **numbers):
    """What a probe's file says of its version, and nothing else of the kind."""
    kept = re.sub(r"^(version|values_since)\b.*\n", "", probe.read_text(), flags=re.MULTILINE)
    probe.write_text(kept + "".join(f"{name} = {number}\n" for name, number in numbers.items()))


def test_an_old_table_of_a_known_file_is_current_until_the_version_is_raised(tmp_path, clean):
    (first,) = json.loads(versions.FIRST.read_text())["patching"]
    model = folder(tmp_path / "m", table=False, recipe=first, recipe_path=None)
    declare(clean["patching"], version=1)
    assert tables.why_stale(model, "patching") == ""
    declare(clean["patching"], version=2)
    why = tables.why_stale(model, "patching")
    assert why == "the probe changed since it was measured: version 1 then, version 2 here"


def test_an_old_table_of_another_file_is_from_an_earlier_version_and_not_damaged(tmp_path):
    model = folder(tmp_path / "m", table=False, recipe="0" * 64, recipe_path=None)
    why = tables.why_stale(model, "patching")
    assert why == "it was measured with an earlier version of the project; it is not damaged"
    with pytest.warns(
        tables.StaleTable, match=r"patching\.csv is stale: .* not damaged; measure it again with: compolens probe"
    ):
        tables.read(model, "patching")


def test_an_old_table_of_ones_own_probe_is_current_while_its_file_is_the_same(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(SAME)
    model = folder(tmp_path / "m", "mine", table=False, recipe=digest(mine), recipe_path=str(mine))
    assert tables.why_stale(model, "mine") == ""
    mine.write_text(SAME + "# a comment\n")
    assert "in its numbers or in its comments alone" in tables.why_stale(model, "mine")


def test_a_version_decides_where_there_is_one_and_the_code_where_there_is_none(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("version = 2\n" + SAME)
    model = folder(tmp_path / "m", "mine", **versions.describe(mine))
    mine.write_text("version = 2\n" + SAME.replace("SIZE = 3", "SIZE = 6 // 2"))
    assert tables.why_stale(model, "mine") == ""
    mine.write_text("version = 3\n" + SAME)
    assert "version 2 then, version 3 here" in tables.why_stale(model, "mine")
    mine.write_text(SAME)
    assert tables.why_stale(model, "mine") == "", "the code is what it was"
    mine.write_text(SAME.replace("SIZE = 3", "SIZE = 4"))
    assert tables.why_stale(model, "mine") == "the probe changed since it was measured"


def test_a_table_whose_intervals_alone_are_older_is_measured_again_but_drawn(tmp_path, clean):
    probe = clean["patching"]
    declare(probe, version=1)
    model = folder(tmp_path / "m", **versions.describe(probe))
    path = tables.path_of(model, "patching")
    rows = pd.DataFrame([tables.row("score", 0.5, lo=0.4, hi=0.6, control=c) for c in ("", "untrained")])
    tables.save(
        model, "patching", rows, {"weights": tables.file_digest(model / "weights.safetensors"), **versions.describe(probe)}
    )
    declare(probe, version=3, values_since=1)
    assert tables.why_stale(model, "patching").startswith(versions.INTERVALS) and tables.why_not(model, "patching") == ""
    with pytest.warns(
        tables.OlderIntervals, match="version 1 then, version 3 here; measure again with: compolens probe patching"
    ):
        assert tables.read(model, "patching")["value"].tolist() == [0.5, 0.5]
    other = shutil.copytree(model, tmp_path / "other")
    with tables.read_once(), pytest.warns(tables.OlderIntervals) as told:
        for one in (model, other, model):
            with warnings.catch_warnings():  # after which Python has forgotten what it has said
                tables.read(one, "patching")
    assert len(told) == 1, "one sentence for all the models of a figure"
    declare(probe, version=3, values_since=2)
    assert "the probe changed since it was measured" in tables.why_not(model, "patching") and path.exists()


def test_equal_versions_of_different_files_are_not_taken_for_the_same(tmp_path):
    """A changed copy of a built-in probe, with its name and its version."""
    copy = tmp_path / "patching.py"
    copy.write_text(PROBES["patching"].read_text() + "\nCHANGED = True\n")
    model = folder(tmp_path / "m", **versions.describe(PROBES["patching"]))
    assert tables.why_stale(model, "patching") == ""
    assert tables.why_stale(model, "patching", copy) == "the probe changed since it was measured"
    assert tables.why_stale(model, "patching", shutil.copy(PROBES["patching"], copy)) == ""


def test_a_table_that_was_edited_is_not_read_and_one_without_a_digest_never(tmp_path):
    model = folder(tmp_path / "m", **versions.describe(PROBES["patching"]))
    old = folder(tmp_path / "old", table=False, **versions.describe(PROBES["patching"]))
    for each in (model, old):
        path = tables.path_of(each, "patching")
        path.write_text(path.read_text().replace("0.5", "0.9"))
    assert tables.why_stale(model, "patching") == tables.CHANGED and tables.why_stale(old, "patching") == ""
    command = f"measure it again with: compolens probe patching {model}"
    with pytest.raises(tables.UnusableTable, match=rf"patching\.csv changed after it was measured; {command}"):
        tables.read(model, "patching")
    assert tables.read(old, "patching")["value"].tolist() == [0.9]
