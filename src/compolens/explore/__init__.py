"""Looking at models interactively: views, each a function from (models, state) to a figure, in notebooks and on a local page.

    state       what the reader has chosen; written to an address and read back
    subjects    a model with its episodes, answers, control and codes
    sets        numbers of one episode, or of a set with an interval
    views/      grid, episodes, attention, sites, code, diff: each tested without a browser
    show        the same in notebooks: `compolens.show`
    page/       the same on a page: `compolens explore FOLDER…`
"""

from compolens.explore import show
from compolens.explore.state import State
from compolens.explore.subjects import Subject

__all__ = ["State", "Subject", "show"]
