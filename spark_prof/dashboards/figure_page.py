"""Draws one figure as an HTML file that opens offline."""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go
import plotly.io

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_CONFIG = {"displaylogo": False, "responsive": True}


def figure_page(figure: go.Figure, title: str) -> str:
    """Draws a figure as a page of its own, plotly.js included.

    Args:
        figure: its labels safe, see `charts.label`.
        title: of the page, any text.
    """
    drawn = plotly.io.to_html(figure, full_html=False, include_plotlyjs=True, config=_CONFIG)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n</head>\n<body>\n{drawn}\n</body>\n</html>\n"
    )
