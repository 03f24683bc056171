"""Draw docs/architecture.svg: the parts of compolens, and which may import which. `python docs/draw_architecture.py`."""

from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).resolve().with_name("architecture.svg")
WIDTH, LEFT, RIGHT, ROW, BOX, GAP = 1000, 245, 978, 74, 44, 18
TORCH, LIGHT, OUTSIDE = "#dbe9f6", "#fdf0d5", "#e3f1e1"
"""Fill of parts that compute with tensors; of parts that load without torch; of recipes and notebooks."""
ROWS: list[tuple[str, str, list[tuple[str, str, str]]]] = [
    ("outside the package", "the package, never cli", [
        ("probes/", "one model → one table", OUTSIDE), ("notebooks/, tests/", "anything public", OUTSIDE),
        ("analyses/", "tables → one figure; no torch", LIGHT),
    ]),
    ("the command line", "all of the package", [
        ("cli/", "", LIGHT), ("recipes", "", LIGHT), ("report", "", TORCH), ("explore/", "", TORCH), ("citations", "", LIGHT),
    ]),
    ("trained models", "what is to the left, and below", [
        ("activations/", "record, intervene", TORCH), ("zoo/", "folders", TORCH),
        ("network_baselines", "frozen, linear", TORCH),
        ("interventions/", "write, repair", TORCH), ("challenge/", "every choice", TORCH),
    ]),
    ("tasks meet models", "what is below (last: activations)", [
        ("references/", "ideal learners", TORCH),
        ("training/", "Run, train", TORCH), ("language_models/", "transfer", TORCH),
    ]),
    ("mutually unaware", "foundation (hooks, or tables)", [
        ("tasks/", "what is asked", TORCH), ("models/", "who answers", TORCH), ("jobs/", "here, Slurm, Ray", LIGHT),
        ("diagnosis/", "reads tables only", LIGHT),
    ]),
    ("on the foundation", "foundation alone", [
        ("hooks", "TransformerLens", TORCH), ("tables", "with provenance", LIGHT), ("figures/", "PDF, PNG, plotly", LIGHT),
    ]),
    ("the ground", "nothing of compolens", [
        ("foundation/", "configs, files, signals", LIGHT), ("measures/", "numbers from tensors", TORCH),
    ]),
]  # fmt: skip
"""Rows from top to bottom: title, what its parts may import, and the parts (name, what it does, fill)."""
CHAIN = 2
"""The row whose parts are a chain: each may import those to its left."""


def text(x: float, y: float, said: str, size: int = 13, anchor: str = "middle", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{escape(said)}</text>'


def row(number: int, title: str, may: str, parts: list[tuple[str, str, str]]) -> list[str]:
    """The band of a row with its parts."""
    top = 20 + number * ROW
    drawn = [f'<rect x="10" y="{top}" width="{WIDTH - 20}" height="{ROW - 10}" fill="#f7f7f7" stroke="#dddddd" rx="6"/>']
    drawn += [text(22, top + 27, title, 14, "start", "bold"), text(22, top + 45, f"imports: {may}", 10, "start")]
    wide = (RIGHT - LEFT - GAP * (len(parts) - 1)) / len(parts)
    for place, (name, does, fill) in enumerate(parts):
        x, y, w = LEFT + place * (wide + GAP), top + (ROW - 10 - BOX) / 2, wide
        drawn.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{BOX}" fill="{fill}" stroke="#555555" rx="4"/>')
        drawn.append(text(x + w / 2, y + (19 if does else 27), name, 13 if len(name) < 15 or w > 150 else 11, weight="bold"))
        drawn += [text(x + w / 2, y + 35, does, 11)] if does else []
        if number == CHAIN and place > 0:
            drawn.append(f'<path d="M {x:g} {y + BOX / 2:g} h {-(GAP - 2)}" stroke="#333333" marker-end="url(#head)"/>')
    return drawn


def picture() -> str:
    """The whole picture."""
    height = 20 + len(ROWS) * ROW + 34
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">'
    )
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M 0 0 L 8 4 L 0 8 z" fill="#333333"/></marker></defs>'
    )
    drawn = [head, marker, f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for number, (title, may, parts) in enumerate(ROWS):
        drawn += row(number, title, may, parts)
    x = 22
    for fill, said in (
        (TORCH, "computes with tensors"),
        (LIGHT, "loads without torch"),
        (OUTSIDE, "recipes, notebooks and tests"),
    ):
        drawn.append(f'<rect x="{x}" y="{height - 26}" width="14" height="14" fill="{fill}" stroke="#555555"/>')
        drawn.append(text(x + 20, height - 14, said, 12, "start"))
        x += 330
    return "\n".join([*drawn, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
