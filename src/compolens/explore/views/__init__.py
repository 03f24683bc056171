"""Views: each a function from (models, state) to a `View`, whose drawing, number and Python say the same."""

from compolens.explore.views.attention import attention, heads
from compolens.explore.views.base import View
from compolens.explore.views.code import code
from compolens.explore.views.diff import diff
from compolens.explore.views.episodes import worst
from compolens.explore.views.grid import grid
from compolens.explore.views.ladder import ladder
from compolens.explore.views.parts import parts
from compolens.explore.views.sites import sites

__all__ = ["View", "attention", "code", "diff", "grid", "heads", "ladder", "parts", "sites", "worst"]
