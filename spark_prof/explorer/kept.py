"""What results of a page are kept by: the recording that they were made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_prof.datasets.prepared import Prepared

__all__ = ["BY_RECORDING"]


def _identity(prepared: Prepared) -> tuple[object, ...]:
    run, steps = prepared.report.run, prepared.report.steps
    return prepared.source, prepared.rank, run.recorded_at, steps.count, len(prepared.kernels)


BY_RECORDING: dict[str | type[Any], Callable[[Any], Any]] = {Prepared: _identity}
"""For `hash_funcs` of Streamlit's caches: a recording is another one when it has grown."""
