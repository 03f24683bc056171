"""The documentation site: `make docs`, or sphinx-build -W -b html docs docs/_build."""

import gc
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.domains.python import PythonDomain
from sphinx.pycode.parser import Parser

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402

import compolens  # noqa: E402

project, author, version = "compolens", "The compolens developers", compolens.__version__
release, language, html_show_copyright = version, "en", False
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme, html_title = "furo", f"compolens {version}"
html_copy_source = html_show_sourcelink = False
smartquotes = False  # column values are quoted as they are
html_css_files, html_static_path = ["wide.css"], ["_static"]
myst_heading_anchors = 3  # formulas are written in Unicode: they need no script, and so no network
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_use_type_comments = False  # there are none; looking for them reads the source of every function again
python_maximum_signature_line_length = 90
NOTEBOOK = re.compile(r"\]\((?:\.\./)+notebooks/(\w+)\.ipynb\)")
SECTION = re.compile(r"(Args|Returns|Raises):\n(.*)", re.DOTALL)
CODE = re.compile(r"``(.+?)``|`([^`]+)`")


def as_rst(lines: list[str]) -> list[str]:
    """A docstring as it is written here (plain sentences, `code` in single quotes) in reStructuredText.

    That would read stars, bars and underscores as markup. Whatever is indented or drawn keeps its lines, but for the blocks
    of parameters, which become lists."""
    out: list[str] = []
    for paragraph in "\n".join(lines).strip("\n").split("\n\n"):
        rows = paragraph.split("\n")
        if block := SECTION.fullmatch(paragraph):
            out += _listed(*block.groups())
        elif any(row.startswith((" ", "|", "+--")) for row in rows):
            out += ["::", "", *(f"    {row}" for row in rows), ""]
        else:
            out += ["\\ " + _escaped(" ".join(rows)), ""]
    return out


def _listed(title: str, text: str) -> list[str]:
    """A block of a docstring: what is returned as a sentence, parameters and errors one an item."""
    if title == "Returns":
        return [f"**{title}:** " + _escaped(" ".join(text.split())), ""]
    items = (" ".join(item.split()).partition(": ") for item in re.split(r"\n(?= {4}\S)", text))
    return [f"**{title}:**", "", *(f"* ``{name}``: {_escaped(said)}" for name, _, said in items), ""]


def _escaped(text: str) -> str:
    out, end = "", 0
    for match in CODE.finditer(text):
        code = (match.group(1) or match.group(2)).strip()
        out += re.sub(r"([\\*|_`<])", r"\\\1", text[end : match.start()]) + rf"\ ``{code}``\ "
        end = match.end()
    return out + re.sub(r"([\\*|_`<])", r"\\\1", text[end:])


class QuickDomain(PythonDomain):
    """Finds nothing for a name that nothing documented ends with, as most annotations are, without looking at all names."""

    name = "py"
    endings: set[str] = set()  # noqa: RUF012 (of the build in which it was made)
    counted = -1

    def find_obj(self, env: Any, modname: str, classname: str, name: str, *kind: Any, **more: Any) -> Any:
        if self.counted != len(self.objects):
            self.endings, self.counted = {full.rpartition(".")[2] for full in self.objects}, len(self.objects)
        if name.removesuffix("()").rpartition(".")[2] not in self.endings:
            return []
        return super().find_obj(env, modname, classname, name, *kind, **more)


def setup(app: Any) -> None:
    """Makes the generated pages, and has docstrings read as they are written."""
    gc.disable()  # pages are trees of many small objects, and looking through them for garbage again and again takes long
    Parser.parse_definition = lambda parser: None  # type: ignore[method-assign]  # where names are defined is shown nowhere
    generate.write_pages(HERE / "reference")
    app.add_domain(QuickDomain, override=True)
    app.connect("source-read", lambda app, name, source: source.__setitem__(0, _to_pages(name, source[0])))
    app.connect("autodoc-process-docstring", lambda app, what, name, obj, options, lines: _replace(lines))
    app.connect("autodoc-skip-member", lambda app, what, name, obj, skip, options: skip or _says_nothing(obj))


def _to_pages(name: str, text: str) -> str:
    """Links to notebooks, which lead to files where the repository is read, lead to their pages on the site."""
    up = "../" * name.count("/")
    return NOTEBOOK.sub(rf"]({up}reference/notebooks/\1.md)", text)


def _says_nothing(obj: Any) -> bool:
    """A field of a named tuple, which Python describes by its number."""
    return str(getattr(obj, "__doc__", "")).startswith("Alias for field number")


def _replace(lines: list[str]) -> None:
    lines[:] = as_rst(list(lines))
