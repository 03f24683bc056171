"""Shipped tables are what they are: no test here changes one."""

import findings
import pytest

from compolens import tables


@pytest.fixture(scope="module", autouse=True)
def each_table_is_read_once():
    with tables.read_once(findings.IN_SHIPPED_TABLES):
        yield
