"""Where the built-in recipes lie: beside the source in a checkout, inside the package when installed. No torch."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def room(kind: str) -> Path:
    """The folder of the built-in recipes of a `kind`, "probes" or "analyses"."""
    root = PACKAGE.parents[1]
    return root / kind if (root / kind).is_dir() and (root / "pyproject.toml").exists() else PACKAGE / "rooms" / kind


def built_in(kind: str) -> dict[str, Path]:
    """name -> file of the built-in recipes of a `kind`, "probes" or "analyses"."""
    return {path.stem: path for path in sorted(room(kind).glob("*.py")) if not path.stem.startswith("_")}
