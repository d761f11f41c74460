"""Whether bundles are parts of one run: recorded together, with different ranks in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle

SHARED_TABLES = frozenset({"log", "cubins", "functions"})
"""Tables of all processes of a bundle, kept as rank 0's."""

_ALIKE = ("vllm", "model", "model_config", "quantization", "dtype", "parallel")
"""Facts that all ranks of one run share."""


def check_same_run(parts: Sequence[Bundle]) -> None:
    """Refuses parts that do not belong together.

    Raises:
        CommandError: one line that says which and why.
    """
    owners: dict[str, Bundle] = {}
    for part in parts:
        if not part.ranks:
            raise CommandError(f"{part.path} has no rank; give the folders that hold the ranks")
        for name in part.meta.tables:
            if name.rpartition("-rank")[0] in SHARED_TABLES:
                continue
            other = owners.setdefault(name, part)
            if other is not part:
                what = name.removesuffix(".parquet").replace("-rank", " of rank ")
                raise CommandError(
                    f"{other.path} and {part.path} both hold {what}; give different ranks of one "
                    "run"
                )
    first = parts[0]
    for part in parts[1:]:
        if why := _difference(first, part):
            raise CommandError(f"{first.path} and {part.path} are not of one run: {why}")


def _difference(first: Bundle, second: Bundle) -> str | None:
    """Why the two cannot be parts of one run."""
    runs = [_runs(part) for part in (first, second)]
    if all(runs) and runs[0] != runs[1]:
        return "they were recorded by different calls of spark-prof record"
    commands = [part.meta.command for part in (first, second)]
    if all(commands) and commands[0] != commands[1]:
        return "their commands differ"
    ours, theirs = (_rank_facts(part) for part in (first, second))
    for name in _ALIKE:
        if name in ours and name in theirs and ours[name] != theirs[name]:
            return f"{name} differs ({ours[name]!r:.40} and {theirs[name]!r:.40})"
    return None


def _runs(part: Bundle) -> set[str]:
    found = {str(fact.get("run") or "") for fact in part.meta.facts.values()}
    return found - {""}


def _rank_facts(part: Bundle) -> Mapping[str, Any]:
    return part.facts(part.ranks[0]) if part.ranks else {}
