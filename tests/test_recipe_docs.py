"""What recipes say of themselves: every parameter described and annotated; flags and the site show it."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from compolens import cli, recipes
from compolens.cli.recipe_flags import described, sections
from compolens.foundation.builtin import built_in

ROOT = Path(__file__).parents[1]
FILES = {path.stem: path for kind in ("probes", "analyses") for path in built_in(kind).values()}
MAIN = {name: "probe" if path.parent.name == "probes" else "analyze" for name, path in FILES.items()}
GOOGLE = """What it does, in a line.

    More of it. scale: this is no block.

    Args:
        first: one line, from 0 to 1: with a colon.
        second: begins here
            and ends there, 5 % later.

    Returns:
        The table.

        - "score": what it is
          over two lines.

    Raises:
        ConfigError: too few.
    """


def functions(name, public=False):
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    found = [n for n in (tree.body if public else ast.walk(tree)) if isinstance(n, ast.FunctionDef)]
    return [n for n in found if not (public and n.name.startswith("_"))]


def parameters(function):
    given = function.args
    named = [*given.posonlyargs, *given.args, *filter(None, [given.vararg]), *given.kwonlyargs, *filter(None, [given.kwarg])]
    return [one for one in named if one.arg not in ("self", "cls")]


# ---- the recipes -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FILES)
def test_every_public_function_describes_its_parameters_in_order_and_nothing_else(name):
    for function in functions(name, public=True):
        said = described(ast.get_docstring(function) or "")
        assert list(said) == [one.arg for one in parameters(function)], f"{name}.{function.name}"
        assert all(text.endswith(".") for text in said.values()), f"{name}.{function.name}: sentences end"


@pytest.mark.parametrize("name", FILES)
def test_every_parameter_and_what_is_returned_is_annotated(name):
    for function in functions(name):
        bare = [one.arg for one in parameters(function) if one.annotation is None]
        assert not bare and (function.returns is not None or function.name == "__init__"), f"{name}.{function.name}: {bare}"


@pytest.mark.parametrize("name", FILES)
def test_a_recipe_says_in_one_line_what_it_does_then_what_it_returns(name):
    (main,) = (function for function in functions(name, public=True) if function.name == MAIN[name])
    docstring = ast.get_docstring(main)
    assert re.fullmatch(r"[A-Z][^\n]+[.?]", docstring.split("\n\n")[0]), "one sentence on one line"
    assert sections(docstring)["Returns"]
    if MAIN[name] == "probe":
        assert "untrained" in sections(docstring)["Returns"], "controls are among the rows"


# ---- reading docstrings ----------------------------------------------------------------------------------------------
def test_blocks_are_told_from_the_text_before_them():
    parts = sections(GOOGLE)
    assert parts[""] == "What it does, in a line.\n\nMore of it. scale: this is no block."
    assert parts["Returns"] == 'The table.\n\n- "score": what it is\n  over two lines.'
    assert parts["Raises"] == "ConfigError: too few."


def test_a_parameters_lines_are_joined():
    assert described(GOOGLE) == {
        "first": "one line, from 0 to 1: with a colon.",
        "second": "begins here and ends there, 5 % later.",
    }


@pytest.mark.parametrize("docstring", ["", "One line.", "Text.\n\nepisodes: per split; seed: of episodes."])
def test_a_docstring_without_blocks_describes_nothing(docstring):
    assert described(docstring) == {} and sections(docstring) == {"": docstring}


# ---- who shows them --------------------------------------------------------------------------------------------------
def test_flags_help_is_what_args_says(capsys):
    with pytest.raises(SystemExit):
        cli.main(["probe", "latent_code", "erase_code", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name in ("latent_code", "erase_code"):
        told = described(recipes.load_recipe("probes", name).__doc__)
        own = told["l2" if name == "latent_code" else "draws"]
        assert f"{name}: {own}" in text
    assert "Args:" not in text and "Returns:" in text and "(default 0.25)" in text


def test_the_site_has_flags_as_a_table_and_papers_in_every_row():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for kind, page in (("probes", generate.probes_page()), ("analyses", generate.analyses_page())):
        rows = [line for line in page.splitlines() if line.startswith("| [`")]
        assert len(rows) == len(built_in(kind))
        assert not [row for row in rows if "https://arxiv.org/abs/" not in row.rsplit("|", 2)[1]]
        assert "Args:" not in page
    page = generate.probes_page()
    assert "| `--l2` | `None` | penalty of the ridge" in page
    assert "\n- `ConfigError`: draws is below 1.\n" in page and '\n- "exact zeros": share' in page
