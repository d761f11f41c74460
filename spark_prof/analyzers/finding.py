"""One finding of a report, a log or a machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

_LONGEST = 60  # characters of a subject in a key


@dataclass(frozen=True)
class Finding:
    """Something worth changing."""

    id: str  # of the rule that found it
    ms_per_token: float | None
    """What the fix should bring in each token's time, at most; None where unknown."""
    text: str  # what was found, with its figures
    fix: str  # what to change
    evidence: tuple[str, ...] = ()  # what it stands on, one sentence each
    components: tuple[str, ...] = ()  # whose kernels it is about; empty where it is about none
    subject: str = ""  # what tells it from others of its rule; empty where there is but one
    key: str = ""  # its own in a document, and the same in another of the same run: id:subject
    command: str = ""  # what to type next; empty where nothing is
    measured: str = ""  # what the command's kernel was measured to bring, and where
    verify: str = ""  # what to type after the change: it shows whether that helped


def keyed(found: Iterable[Finding], verify: str = "") -> tuple[Finding, ...]:
    """The findings with their keys, and with this way to verify them where they have no other."""
    made, taken, keys = tuple(found), Counter[str](), {}
    # Figures change from run to run, and the order with them; texts begin with names.
    for number, each in sorted(enumerate(made), key=lambda pair: pair[1].text):
        subject = re.sub(r"[^A-Za-z0-9_.]+", "-", each.subject).strip("-")[:_LONGEST]
        key = f"{each.id}:{subject}" if subject else each.id
        taken[key] += 1
        keys[number] = f"{key}.{taken[key]}" if taken[key] > 1 else key
    return tuple(
        replace(each, key=keys[number], verify=each.verify or verify)
        for number, each in enumerate(made)
    )
