"""The known issues of vLLM and of what it runs on: dated rows, by topic in files of their own.

A row stands here only where its thread or pull request was read, and its window only as far as
that or the Python sources of vLLM's wheels tell; a figure is that of the thread, on its machine.
"""

from __future__ import annotations

from spark_prof.rules.issues_of_execution import EXECUTION, SPECULATION
from spark_prof.rules.issues_of_experts import EXPERTS
from spark_prof.rules.issues_of_layers import ATTENTION, LINEAR_LAYERS
from spark_prof.rules.known_issue import Issue

ISSUES: tuple[Issue, ...] = (*EXPERTS, *LINEAR_LAYERS, *ATTENTION, *SPECULATION, *EXECUTION)
"""In the order in which they are listed."""
