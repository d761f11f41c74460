"""Recordings that were read: each once for all who look, and again when its source has changed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.errors import CommandError
from spark_prof.explorer import widgets
from spark_prof.traces.resolve import source_state

_MOST = 6  # recordings that are kept; the one that was looked at longest ago goes first


class RankReading:
    """One rank of a source.

    Args:
        rank: the rank, the lowest one if None.

    Attributes:
        began: when what it has was read, seconds since the epoch; 0 before.
    """

    def __init__(self, source: str, rank: int | None) -> None:
        self.began = 0.0
        self._source, self._rank = source, rank
        self._lock = threading.Lock()
        self._state: str | None = None
        self._prepared: Prepared | None = None
        self._fault = ""

    @property
    def rank(self) -> int | None:
        """The rank that was read; None before."""
        return self._prepared.rank if self._prepared else None

    def get(self) -> Prepared:
        """What the source says by now; it is read if it has changed since the last time."""
        state = source_state(self._source) or ""
        with self._lock:
            if state != self._state:
                self._read()
                self._state = state
            if self._prepared is None:
                raise CommandError(self._fault)
            return self._prepared

    def _read(self) -> None:
        began = time.time()
        try:
            self._prepared = prepare(self._source, self._rank)
        except CommandError as error:
            # A recording that goes on may be met between two pieces: what was read stays.
            if self._prepared and self._prepared.live:
                return
            self._prepared, self._fault = None, str(error)
        # A reading is a million objects: they need not be looked through for garbage each time.
        if self.began:  # before, nothing was let go, and somebody waits
            gc.unfreeze()
            gc.collect()
        gc.freeze()
        self.began = began


@st.cache_resource(show_spinner=False, max_entries=_MOST)
def _reading(source: str, rank: int | None) -> RankReading:
    return RankReading(source, rank)


def reading(source: str, rank: int | None = None) -> RankReading:
    """The reading of a source, the same one for whoever asks."""
    lowest = _reading(source, None)
    return lowest if rank in (None, lowest.rank) else _reading(source, rank)


def read(source: str, rank: int | None, label: str) -> Prepared:
    """Reads a source, or finds it read; while that takes a moment, a spinner says so."""
    reader = reading(source, rank)
    waiting = st.empty()
    if not reader.began:
        # The browser loads what draws figures while it waits.
        blank = go.Figure(layout={"xaxis": {"visible": False}, "yaxis": {"visible": False}})
        config, key = {"displayModeBar": False}, f"reading-{source}-{rank}"
        waiting.plotly_chart(blank, height=10, theme=None, config=config, key=key)
    try:
        with st.spinner(f"Reading {widgets.plain(label)}", show_time=True):
            return reader.get()
    finally:
        waiting.empty()


def _identity(prepared: Prepared) -> tuple[object, ...]:
    run, steps = prepared.report.run, prepared.report.steps
    kernels = sum(row.calls for row in prepared.report.kernels)
    return prepared.source, prepared.rank, run.recorded_at, steps.count, kernels


BY_RECORDING: dict[str | type[Any], Callable[[Any], Any]] = {Prepared: _identity}
"""For `hash_funcs` of Streamlit's caches: a recording is another one when it has grown."""
