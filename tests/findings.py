"""Reading the pages of findings, whose numbers tests hold against tables."""


def cells(page: str, table: str, row: str) -> list[str]:
    """The cells of a row of a page's table, but for its heading.

    Args:
        page: the page's text.
        table: heading of the table's first column.
        row: heading of the row.

    Returns:
        A text per column.
    """
    (found,) = [cells for heading, *cells in rows(page, table) if heading == row]
    return found


def rows(page: str, table: str) -> list[list[str]]:
    """The rows of a page's table, without its head.

    Args:
        page: the page's text.
        table: heading of the table's first column, or the first headings, as they stand between bars.

    Returns:
        A text per column, the first one too.
    """
    _, _, rest = page.partition(f"| {table} |")
    assert rest, table
    return [columns(line) for line in rest.split("\n\n")[0].splitlines()[2:]]


def columns(line: str) -> list[str]:
    """The texts of a table's line, one per column."""
    return [cell.strip() for cell in line.strip("|").split("|")]
