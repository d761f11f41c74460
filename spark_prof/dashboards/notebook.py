"""A report in a notebook: it shows itself as Markdown, in a console as text."""

from __future__ import annotations

from spark_prof.analyzers.model import Report
from spark_prof.dashboards import markdown, text


class Shown:
    """A report that a cell of a notebook ends with.

    Markdown is all that it needs: no script and no style of a page can get into the notebook, and
    it stays there when the notebook is closed, converted or looked at on GitHub.
    """

    def __init__(self, report: Report) -> None:
        self._report = report

    def _repr_markdown_(self) -> str:
        return markdown.render(self._report)

    def __repr__(self) -> str:
        return text.render(self._report)
