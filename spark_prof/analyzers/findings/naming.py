"""How a sentence names a kernel."""

from __future__ import annotations

import re

from spark_prof.analyzers.classify.classifier import base_name

_LONGEST = 60
_WRAPPER = re.compile(
    r"(?:^|::)(?:device_kernel|Kernel2?|kernel|run_kernel|\w*elementwise_kernel)$"
)
"""Base names that say nothing without the template arguments."""


def short_name(name: str) -> str:
    """The kernel's base name, or beginning and end of the whole where that says nothing."""
    base = base_name(name)
    if len(base) <= _LONGEST and not _WRAPPER.search(base):
        return base
    return name if len(name) <= _LONGEST else f"{name[:40]}...{name[-17:]}"
