"""Which colour stands for what: architectures keep theirs in every figure, controls are grey."""

from __future__ import annotations

import colorsys
import hashlib
from collections.abc import Mapping

ARCHITECTURE_COLORS: Mapping[str, str] = {  # Okabe-Ito; no other label gets one of these unless asked
    "SoftmaxTransformer": "#0072B2",
    "HypernetworkTransformer": "#D55E00",
    "BottleneckMLP": "#009E73",
    "LinearAttention": "#56B4E9",
    "HYLA": "#E69F00",
    "SparseCoding": "#CC79A7",
}
SERIES_COLORS = ("#882255", "#44AA99", "#999933", "#332288", "#CC6677", "#117733", "#AA4499", "#DDCC77")
"""For labels that are not architectures, in order of appearance (Tol's muted scheme, colour-blind safe)."""
CONTROL_COLORS = ("#444444", "#888888", "#666666", "#AAAAAA")
"""Greys for controls and reference lines, so that colour always means a result."""


def color_of(name: str) -> str:
    """The hex colour of the architecture `name`: fixed for the built-in ones, else derived from the name alone.

    The same name has the same colour in every figure, process and machine."""
    if name in ARCHITECTURE_COLORS:
        return ARCHITECTURE_COLORS[name]
    digest = hashlib.sha256(name.encode()).digest()
    hue, lightness = int.from_bytes(digest[:4], "big") / 2**32, (0.3, 0.42, 0.54)[digest[4] % 3]
    return "#" + "".join(f"{round(255 * c):02X}" for c in colorsys.hls_to_rgb(hue, lightness, 0.55))
