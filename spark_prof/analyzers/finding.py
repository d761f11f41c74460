"""One finding of a report, a log or a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something worth changing."""

    id: str  # of the rule that found it
    # What the fix should bring in each token's time, at most; None where unknown.
    ms_per_token: float | None
    text: str  # what was found, with its figures
    fix: str
    evidence: tuple[str, ...] = ()  # what it stands on, one sentence each
    components: tuple[str, ...] = ()  # whose kernels it is about; empty where it is about none
    command: str = ""  # what to type next; empty where nothing is
    measured: str = ""  # what the command's kernel was measured to bring, and where
