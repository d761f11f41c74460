"""One rule that looks for something worth changing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_prof.analyzers.model import Finding, Report


@dataclass(frozen=True)
class Rule:
    """A rule reads a finished report and says what it finds; nothing, where there is nothing.

    Attributes:
        id: words joined by hyphens, of the findings that it makes.
        looks_for: what fires it, in one line, as docs/findings.md has it.
        find: from the report, whose own findings are still empty, to what was found.
    """

    id: str
    looks_for: str
    find: Callable[[Report], Iterable[Finding]]
