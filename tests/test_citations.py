"""Citations: every paper that a docstring names has an entry, and a folder cites what it is made of."""

import ast
import inspect
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

import compolens
from compolens import citations, cli
from compolens.foundation.configs import ConfigError
from compolens.training import DECAYS, RECIPES, Run
from compolens.zoo.folders import BUILT_IN

ROOT = Path(__file__).parents[1]
KNOWN = citations.Bibliography.read()
SOURCES = [p for place in ("src/compolens", "probes", "analyses") for p in sorted((ROOT / place).rglob("*.py"))]
NAMED = {number: path for path in SOURCES for number in citations.ARXIV.findall(path.read_text(encoding="utf-8"))}
SHIPPED = ROOT / "trained_models" / "F-softmax-0"


def entries(text):
    """key -> (kind, fields) of BibTeX, read strictly and without the code under test."""
    text = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    found = {}
    while text.strip():
        head = re.match(r"\s*@(\w+)\{([\w.:-]+),", text)
        assert head, f"no entry begins here: {text[:60]!r}"
        depth, end = 1, head.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        inside, text = text[head.end() : end - 1], text[end:]
        assert head.group(2) not in found, "a key is unique"
        fields = re.findall(r"^  (\w+) = \{(.*)\},$", inside, flags=re.MULTILINE)
        assert len(fields) == len(inside.strip().splitlines()), "a field a line"
        found[head.group(2)] = (head.group(1), dict(fields))
    return found


BIB = entries(citations.PAPERS.read_text(encoding="utf-8"))
REQUIRED = {"inproceedings": {"booktitle"}, "article": {"journal"}, "misc": set()}


# ---- the entries -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", sorted(NAMED))
def test_every_paper_that_the_code_names_has_an_entry(number):
    assert number in KNOWN.keys, f"{NAMED[number].name} names arXiv:{number}; add it to {citations.PAPERS.name}"


def test_no_entry_is_left_without_anyone_who_names_it():
    assert set(KNOWN.keys) == set(NAMED)


@pytest.mark.parametrize("key", BIB)
def test_every_entry_is_whole(key):
    kind, fields = BIB[key]
    assert {"title", "author", "year"} | REQUIRED[kind] <= set(fields) and all(fields.values())
    assert re.fullmatch(r"(19|20)\d\d", fields["year"]) and fields["title"].startswith("{")
    if key != "compolens":
        assert re.fullmatch(citations.ARXIV, fields["eprint"]) and fields["url"].endswith(fields["eprint"])
        assert int(fields["year"]) >= 2000 + int(fields["eprint"][:2]), "no paper appears before its preprint"
        assert all(author.count(", ") == 1 for author in fields["author"].split(" and "))
    assert "\n".join(fields.values()).isascii(), "accents as LaTeX writes them, for every engine"


def test_all_entries_are_read_and_no_paper_stands_twice():
    assert list(KNOWN.entries) == list(BIB)
    assert max(Counter(fields.get("eprint") for _, fields in BIB.values()).values()) == 1


def plain(text):
    """LaTeX without braces and accents, Unicode without accents."""
    import unicodedata

    text = re.sub(r"\{\\[\"'~`^]?\\?(\w)\}", r"\1", text).replace("ł", "l").replace("Ł", "L")
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().strip("{}")


def test_citation_cff_says_the_same():
    described = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert described["version"] == compolens.__version__ and described["title"] == plain(BIB["compolens"][1]["title"])
    listed = {ref["identifiers"][0]["value"].removeprefix("arXiv:"): ref for ref in described["references"]}
    assert set(listed) == set(KNOWN.keys)
    for number, reference in listed.items():
        fields = BIB[KNOWN.keys[number]][1]
        authors = " and ".join(f"{a['family-names']}, {a['given-names']}" for a in reference["authors"])
        said = (plain(reference["title"]), plain(authors), str(reference["year"]))
        assert said == (plain(fields["title"]), plain(fields["author"]), fields["year"])


# ---- what a folder cites ---------------------------------------------------------------------------------------------
def test_a_shipped_model_cites_its_task_its_architecture_and_its_tables(capsys):
    assert cli.main(["cite", str(SHIPPED)]) == 0
    found = entries(capsys.readouterr().out)
    assert found["compolens"][1]["version"] == compolens.__version__
    numbers = {fields.get("eprint") for _, fields in found.values()}
    assert {"2407.12275", "2312.15001", "1706.03762"} <= numbers  # the hyperteacher, its theory, attention
    assert "2602.24264" in numbers  # the table code_structure
    assert "2306.03819" in numbers  # inference_or_execution writes codes by erasing them
    assert not {"2406.05816", "2511.20194", "2212.07677"} & numbers


def made(tmp_path, task, architecture, tables=()):
    """A folder as far as citing reads it."""
    (tmp_path / "tables").mkdir(parents=True)
    run = {"class": "Run", "architecture": architecture, "task": task, "optimizer": {"class": "AdamW"}}
    (tmp_path / "config.json").write_text(json.dumps({"format": 1, "run": run}))
    for name, recipe in tables:
        (tmp_path / "tables" / f"{name}.csv").write_text("metric\n")
        (tmp_path / "tables" / f"{name}.json").write_text(json.dumps({"recipe_path": recipe}))
    return tmp_path


def numbers(*arguments):
    return {use.arxiv for use in citations.uses(*arguments)}


def test_a_class_cites_by_its_docstring_and_by_its_modules(tmp_path):
    folder = made(
        tmp_path, {"class": "FuzzyLogic"}, {"class": "SoftmaxTransformer", "transfer": {"class": "RelativeTransfer"}}
    )
    assert numbers(folder) == {"2406.05816", "1706.03762", "2511.20194"}
    assert {use.by for use in citations.uses(folder)} == {"FuzzyLogic", "SoftmaxTransformer", "RelativeTransfer"}


def test_a_training_recipe_cites_only_what_is_its_own(tmp_path):
    folder = made(tmp_path, {"class": "Relations"}, {"class": "SoftmaxTransformer"})
    assert "2406.05816" not in numbers(folder)
    config = json.loads((folder / "config.json").read_text())
    config["run"]["optimizer"]["class"] = "ReferenceAdamW"
    (folder / "config.json").write_text(json.dumps(config))
    assert "2406.05816" in numbers(folder)


def test_a_table_cites_its_probe_and_the_measures_that_the_probe_imports(tmp_path):
    folder = made(tmp_path, {"class": "Hyperteacher"}, {"class": "SoftmaxTransformer"}, [("gd_equivalence", None)])
    new = {use.arxiv for use in citations.uses(folder) if use.by == "table gd_equivalence"}
    texts = [(ROOT / place).read_text() for place in ("probes/gd_equivalence.py", "src/compolens/measures/agreement.py")]
    named = {n for text in texts for n in citations.ARXIV.findall(ast.get_docstring(ast.parse(text)))}
    assert named and named <= new


def test_every_room_that_is_followed_is_there():
    package = citations.PACKAGE
    assert all((package / name).is_dir() or (package / f"{name}.py").is_file() for name in citations.INSTRUMENTS)
    assert all((package / name).is_dir() for name in citations.DESCRIBED)


@pytest.mark.parametrize("kind", [Run, *BUILT_IN, *RECIPES, *DECAYS], ids=lambda kind: kind.__name__)
def test_every_class_that_a_folder_may_name_is_cited_by_its_docstrings(kind, tmp_path):
    folder = made(tmp_path, {"class": kind.__name__}, {"class": "SoftmaxTransformer"})
    texts = f"{sys.modules[kind.__module__].__doc__ or ''}\n{inspect.getdoc(kind) if '__doc__' in vars(kind) else ''}"
    assert set(citations.ARXIV.findall(texts)) == {use.arxiv for use in citations.uses(folder) if use.by == kind.__name__}


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("from compolens.interventions.interchange import NAME", "interventions/interchange.py"),
        ("from compolens.network_baselines import NAME", "network_baselines.py"),
        ("from compolens.interchange import NAME", "interventions/interchange.py"),
        ("from compolens.untrained import NAME", "network_baselines.py"),
    ],
)
def test_a_probe_of_yours_cites_the_instruments_that_it_imports(line, where, tmp_path):
    """Under the names that they had before version 0.2, too, for as long as these import."""
    tree = ast.parse((citations.PACKAGE / where).read_text(encoding="utf-8"))
    named = set(citations.ARXIV.findall(ast.get_docstring(tree)))
    name = next(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    probe = tmp_path / "my_probe.py"
    probe.write_text(f'"""Is it so?"""\n{line.replace("NAME", name)}\n')
    folder = made(tmp_path / "m", {"class": "Hyperteacher"}, {"class": "SoftmaxTransformer"}, [("my_probe", str(probe))])
    assert named and named <= {use.arxiv for use in citations.uses(folder) if use.by == "table my_probe"}


def test_what_is_yours_is_cited_by_its_docstring_alone_and_never_run(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text('"""After 2401.99999."""\nraise SystemExit("executed")\nclass MyNet:\n    """As in 1706.03762."""\n')
    probe = tmp_path / "my_probe.py"
    probe.write_text('"""Is it so (2402.88888)?"""\nraise SystemExit("executed")\n')
    folder = made(tmp_path / "m", {"class": "Hyperteacher"}, {"outside": "MyNet"}, [("my_probe", str(probe))])
    assert "2401.99999" not in numbers(folder) and "2402.88888" in numbers(folder)
    assert {"2401.99999", "1706.03762"} <= numbers(folder, [mine])
    assert cli.main(["cite", str(folder), "--with", f"{mine}:MyNet"]) == 0
    found = entries(capsys.readouterr().out)
    assert found["arxiv-2401.99999"] == ("misc", {
        "title": "arXiv:2401.99999", "eprint": "2401.99999", "archiveprefix": "arXiv", "url": "https://arxiv.org/abs/2401.99999",
    })  # fmt: skip


def test_several_models_cite_each_paper_once_and_say_who_uses_it(tmp_path):
    softmax = {"class": "SoftmaxTransformer"}
    folders = [made(tmp_path / "a", {"class": "Relations"}, softmax), made(tmp_path / "b", {"class": "Hyperteacher"}, softmax)]
    text = citations.bibtex(folders)
    assert text.count("@inproceedings{vaswani2017attention,") == 1
    assert "% SoftmaxTransformer\n@inproceedings{vaswani2017attention," in text and "% Relations\n" in text


# ---- what cannot be cited --------------------------------------------------------------------------------------------
def test_a_folder_without_a_model_is_refused_in_one_line(tmp_path, capsys):
    with pytest.raises(ConfigError, match="holds no trained model"):
        citations.uses(tmp_path)
    assert cli.main(["cite", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("[]")
    assert cli.main(["cite", str(tmp_path)]) == 2
    assert "describes no run" in capsys.readouterr().err


def test_a_class_of_yours_is_named_with_its_file(tmp_path, capsys):
    assert cli.main(["cite", str(SHIPPED), "--with", "my_package.nets:MyNet"]) == 2
    assert "FILE.py:CLASS" in capsys.readouterr().err
    assert cli.main(["cite", str(SHIPPED), "--with", f"{tmp_path / 'nowhere.py'}:MyNet"]) == 2
    assert f"there is no file {tmp_path / 'nowhere.py'}" in capsys.readouterr().err
    (tmp_path / "broken.py").write_text("def (")
    assert cli.main(["cite", str(SHIPPED), "--with", f"{tmp_path / 'broken.py'}:MyNet"]) == 2
    assert "broken.py is not a Python file that can be read" in capsys.readouterr().err
