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
VARIANT_COLORS: Mapping[str, str] = {
    "SparseCoding, no threshold": ARCHITECTURE_COLORS["LinearAttention"],  # which it then is
    "SparseCoding, 90 % silenced": "#7B3294",
    "BottleneckMLP, d_hidden 64": ARCHITECTURE_COLORS["BottleneckMLP"],
    "BottleneckMLP, d_hidden 256": "#A6761D",
    "LinearSelfAttention (n_layers 2, tied True)": "#17A2B8",
    "SoftmaxTransformer (lr 0.001)": "#8FBFDD",  # not tuned
    "SoftmaxTransformer (lr 0.0333)": ARCHITECTURE_COLORS["SoftmaxTransformer"],
    "HypernetworkTransformer (lr 0.001)": "#F0B48C",
    "HypernetworkTransformer (lr 0.003)": ARCHITECTURE_COLORS["HypernetworkTransformer"],
}
"""Variants of an architecture that stand beside each other, as `diagnosis.groups.telling` names them."""
SERIES_COLORS = ("#882255", "#44AA99", "#999933", "#332288", "#CC6677", "#117733", "#AA4499", "#DDCC77")
"""For labels that are not architectures, in order of appearance (Tol's muted scheme, colour-blind safe)."""
CONTROL_COLORS = ("#444444", "#888888", "#666666", "#AAAAAA")
"""Greys for controls and reference lines, so that colour always means a result."""


def color_of(name: str) -> str:
    """The hex colour of the architecture, or of the variant, `name`: fixed for built-in ones, else derived from the name.

    The same name has the same colour in every figure, process and machine."""
    fixed = {**ARCHITECTURE_COLORS, **VARIANT_COLORS}
    if name in fixed:
        return fixed[name]
    digest = hashlib.sha256(name.encode()).digest()
    hue, lightness = int.from_bytes(digest[:4], "big") / 2**32, (0.3, 0.42, 0.54)[digest[4] % 3]
    return "#" + "".join(f"{round(255 * c):02X}" for c in colorsys.hls_to_rgb(hue, lightness, 0.55))
