"""The page: Dash draws what `explorer` answers; one process on 127.0.0.1, nothing asked of any other host.

Dash, because its graphs are plotly's, as those of notebooks and reports are; because it ships every script that it serves; and
because one program serves the page and the cell of a notebook.
"""
