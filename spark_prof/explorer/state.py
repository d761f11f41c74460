"""What a page gets, and its state, which lives in the address: a link shows the same view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from spark_prof.datasets.prepared import Prepared

SHARED = ("source", "rank", "step", "layer", "component", "kernel", "other")
"""What stays in the address when another page is opened; the rest belongs to one page."""

OF_A_RANK = ("kernel",)  # what means something else in another rank

OF_A_SOURCE = ("rank", "step", *OF_A_RANK)  # what means something else in another source

_LONGEST = 500


@dataclass(frozen=True)
class Sources:
    """What was opened."""

    prepared: Prepared  # the recording that the pages show
    # A recording, by its place on the command line; CommandError where it cannot be read.
    read: Callable[[int], Prepared]
    labels: tuple[str, ...] = ()  # a short name of each recording; not to be drawn unescaped
    place: int = 0
    clients: tuple[Path, ...] = ()  # results of load generators that were named beside them


def chosen(name: str, default: str = "", among: tuple[str, ...] | None = None) -> str:
    """What the address says of a name; the default where that is nothing, or none of `among`."""
    value = st.query_params.get(name, default)[:_LONGEST]
    return value if among is None or value in among else default


def chosen_number(name: str, default: int, low: int, high: int) -> int:
    """The whole number that the address says, the default where it is none from low to high."""
    try:
        value = int(chosen(name))
    except ValueError:
        return default
    return value if low <= value <= high else default


def keep(**values: str | int | None) -> None:
    """Writes values to the address; None takes a name out of it. Other names stay."""
    for name, value in values.items():
        if value is None:
            st.query_params.pop(name, None)
        elif st.query_params.get(name) != str(value):
            st.query_params[name] = str(value)


def shared() -> dict[str, str]:
    """What the address says that other pages understand too."""
    return {name: value for name in SHARED if (value := chosen(name))}
