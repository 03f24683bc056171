"""Many small models as one table: a map over knobs, and the tuning of an architecture, both through jobs, both resumable.

A file describes them: ``maps = {"name": Map(...)}`` for `compolens map`, ``tunings = {"name": Tuning(...)}`` for
`compolens tune`. Each becomes a folder of its own kind (`foundation.map_files`).
"""

from compolens.maps.grid import Boundary, Cell, Map
from compolens.maps.tuning import Tuned, Tuning, tuned
from compolens.maps.work import cost, make

__all__ = ["Boundary", "Cell", "Map", "Tuned", "Tuning", "cost", "make", "tuned"]
