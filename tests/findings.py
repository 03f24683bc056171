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
    _, _, rest = page.partition(f"| {table} |")
    assert rest, table
    (line,) = [line for line in rest.split("\n\n")[0].splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]
