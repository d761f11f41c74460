"""A regular expression that is compiled when it is first searched for.

The tables of rules have a thousand of them, of which a command needs a few.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class LazyPattern:
    """Searches like the compiled pattern, and has its groups."""

    text: str
    flags: re.RegexFlag = re.NOFLAG

    def search(self, string: str) -> re.Match[str] | None:
        """The first match in the string; None without one."""
        return self._compiled.search(string)

    @property
    def groupindex(self) -> Mapping[str, int]:
        """The number of each named group."""
        return self._compiled.groupindex

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.text, self.flags)
