"""All that the tables hold of one vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from scripts.vllm_sources.architectures import breakable_architectures
from scripts.vllm_sources.log_formats import log_formats
from scripts.vllm_sources.names import has_name
from scripts.vllm_sources.options import engine_options
from scripts.vllm_sources.reached import reached
from scripts.vllm_sources.sources import SourceError, Sources
from scripts.vllm_sources.tables import Key
from scripts.vllm_sources.variables import choices_of_variables, environment_variables
from spark_prof.rules.vllm_reached import REACHED

COLUMNS: Mapping[str, str] = {
    "architectures": "architecture versions",
    "names": "name versions",
    "options": "option value versions",
    "variables": "variable kind versions",
    "log_formats": "level format module versions",
}
"""The tables, and the columns of each."""


@dataclass(frozen=True)
class Facts:
    """What the sources of one version have, by table."""

    version: str
    keys: Mapping[str, frozenset[Key]]


@cache
def names_looked_for() -> tuple[str, ...]:
    """All names that spark-prof reaches into."""
    return tuple(sorted({*reached(), *(row.name for row in REACHED)}))


def facts_of(sources: Sources) -> Facts:
    """Reads all tables of one version.

    Raises:
        SourceError: something is not where it was in any version, or is no Python.
    """
    readers: dict[str, Callable[[], frozenset[Key]]] = {
        "names": lambda: frozenset(
            (name,) for name in names_looked_for() if has_name(sources, name)
        ),
        "architectures": lambda: frozenset((name,) for name in breakable_architectures(sources)),
        "options": lambda: engine_options(sources) | choices_of_variables(sources),
        "variables": lambda: environment_variables(sources),
        "log_formats": lambda: log_formats(sources),
    }
    version = sources.version.split("+")[0]
    try:
        return Facts(version, {name: read() for name, read in readers.items()})
    except RecursionError:
        raise SourceError(f"vLLM {version}: its sources are nested too deeply") from None
