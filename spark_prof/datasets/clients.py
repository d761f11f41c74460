"""What load generators measured, beside a recording that is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spark_prof.analyzers.clients.client_comparison import clients_of
from spark_prof.analyzers.clients.client_rows import ClientRow
from spark_prof.datasets.opened import opened
from spark_prof.datasets.prepared import Prepared
from spark_prof.traces.benchmarks.read import read_benchmark
from spark_prof.traces.members import is_bundle


def clients_beside(shown: Prepared, results: Sequence[Path]) -> tuple[ClientRow, ...]:
    """The runs that the recording holds, then those of the results, each beside its steps.

    Args:
        shown: a recording.
        results: results of load generators.

    Raises:
        CommandError: a result is missing or damaged.
    """
    runs = [run for path in results for run in read_benchmark(path).runs]
    if not runs:
        return shown.report.clients
    steps = shown.steps if shown.timed else pd.DataFrame()
    return (
        *shown.report.clients,
        *clients_of(runs, steps, _facts(shown), shown.report.overhead),
    )


def _facts(shown: Prepared) -> Mapping[str, Any]:
    """Of the recorded process; nothing of a trace, which would have to be read again for them."""
    if shown.live or not is_bundle(Path(shown.source)):
        return {}
    with opened(shown.source) as bundle:
        return bundle.facts(shown.rank)
