"""The folder of a run: what is found is kept as soon as it is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_prof.ab.result import Result, to_json
from spark_prof.ab.result_file import RESULT_FILE
from spark_prof.errors import CommandError, one_line
from spark_prof.files import write_whole
from spark_prof.redact import redacted_value

_PAGE = "report.html"


class Keeper:
    """The result of a run that goes on, on disk after every part.

    Args:
        folder: of the run.
        result: what is known before it begins.
    """

    def __init__(self, folder: Path, result: Result) -> None:
        self.folder = folder
        self.result: Result = redacted_value(result)
        self._write()

    def add(self, **parts: tuple[Any, ...]) -> None:
        """Appends to the parts of the result that these are named like."""
        self.set(**{name: getattr(self.result, name) + more for name, more in parts.items()})

    def set(self, **parts: Any) -> None:
        """Replaces parts of the result; secrets in them are hidden."""
        self.result = replace(self.result, **redacted_value(parts))
        self._write()

    def miss(self, line: str) -> None:
        """Says what could not be measured, and why."""
        if line and line not in self.result.missing:
            self.add(missing=(one_line(line),))

    def write_page(self) -> None:
        """Writes the page that stands alone beside the result."""
        from spark_prof.dashboards.ab_report import render_ab

        page = render_ab(self.result, "html").encode("utf-8", "backslashreplace")
        self._put(_PAGE, page)

    def _write(self) -> None:
        self._put(RESULT_FILE, to_json(self.result))

    def _put(self, name: str, content: bytes) -> None:
        try:
            write_whole(self.folder / name, content)
        except OSError as error:
            raise CommandError(
                f"cannot write {self.folder / name}: {error.strerror or error}"
            ) from error
