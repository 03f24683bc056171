"""Text in a CSV stays text: what a spreadsheet would run is written so that it does not, and read back as it was."""

import io

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compolens.foundation.cells import FORMULA, NUMBER, escape, escaped, unescape, unescaped

FORMULAS = ["=1+1", '=HYPERLINK("http://x","y")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "=\r=1", "=", "-", "@"]
PLAIN = ["", "a", "'", "''", "'a", "softmax", "0+4", "a=b", "-1", "+0.5", "-1e-5", "-inf", "1", "-.5", "nan"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_begins_as_text(text):
    assert escape(text) == f"'{text}".replace("\r", "␍") and unescape(escape(text)) == text


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_and_numbers_are_written_as_they_are(text):
    assert escape(text) == text == unescape(text)


@given(st.text(alphabet="'=+-@\t\ra1.e", max_size=6))
def test_whatever_is_written_is_read_back_and_no_formula_is_written(text):
    written = escape(text)
    assert unescape(written) == text
    assert not FORMULA.match(written) or written.startswith("'") or NUMBER.fullmatch(written)


def test_a_table_comes_back_and_its_numbers_are_not_touched():
    frame = pd.DataFrame({"=name": FORMULAS, "value": range(10), "mixed": [-1.5, "=x", None, True, *PLAIN[:6]]})
    before = frame.copy(deep=True)
    text = escaped(frame).to_csv(index=False)
    cells = [cell for row in pd.read_csv(io.StringIO(text), header=None, dtype=str).fillna("").to_numpy() for cell in row]
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t") and not NUMBER.fullmatch(cell)]
    read = unescaped(pd.read_csv(io.StringIO(text), dtype={"'=name": str}))
    assert read["=name"].tolist() == FORMULAS and read["value"].tolist() == list(range(10))
    pd.testing.assert_frame_equal(frame, before)
