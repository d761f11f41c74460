"""Reads what is compared: each recording as one side of a comparison."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.comparing.model import Side
from spark_prof.analyzers.lookup import NameColumn
from spark_prof.analyzers.placement import COPIES
from spark_prof.analyzers.summary import summary_of
from spark_prof.analyzers.views.kernel_columns import KernelColumns
from spark_prof.datasets.ceilings import ceilings_for
from spark_prof.datasets.opened import local_path, opened
from spark_prof.errors import CommandError
from spark_prof.traces.assemble import open_bundle
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.members import NoMembersError, find_members, is_bundle
from spark_prof.traces.remote import is_url

_HIGHEST_LAYER = (1 << 15) - 1


def read_side(source: str, rank: int | None = None) -> Side:
    """One side of a comparison.

    Args:
        source: a bundle, a trace, or the URL of one.
        rank: the rank, the lowest one if None.

    Raises:
        CommandError: the source is none of these, or damaged.
    """
    with opened(source) as bundle:
        return _side(source, bundle, rank)


def recordings_of(named: str) -> tuple[str, ...]:
    """The recordings that a person named as one side: one, several with commas, or a folder.

    A path that exists is one name, whatever commas it has, and so is a URL up to a comma with
    another URL or an existing path behind it. A folder of bundles is all of them.

    Raises:
        CommandError: a name is missing, or one stands there twice.
    """
    names = _names(named)
    if not all(names):
        raise CommandError(
            f"{named!r} has no recording before or after a comma; write several as A1,A2,A3"
        )
    found = [member for name in names for member in _members(name)]
    places = [each if is_url(each) else os.path.realpath(each) for each in found]
    for place, each in zip(places, found, strict=True):
        if places.count(place) > 1:
            raise CommandError(
                f"{each} stands twice on one side; give recordings of different engine starts"
            )
    return tuple(found)


def _names(named: str) -> list[str]:
    """Splits at commas, except within the name of what exists and within a URL."""
    parts = named.split(",")
    names = []
    while parts:
        whole = 1
        if is_url(parts[0]):
            while whole < len(parts) and not (is_url(parts[whole]) or _longest(parts[whole:])):
                whole += 1
        else:
            whole = _longest(parts) or 1
        names.append(",".join(parts[:whole]))
        parts = parts[whole:]
    return names


def _longest(parts: Sequence[str]) -> int:
    """Of how many of the parts, from the first on, the longest existing path is made; 0 of none."""
    lengths = range(len(parts), 0, -1)
    return next((end for end in lengths if os.path.lexists(",".join(parts[:end]))), 0)


def _members(name: str) -> list[str]:
    """The bundles of a folder of several; anything else is itself."""
    if is_url(name) or not Path(name).is_dir() or is_bundle(Path(name)):
        return [name]
    try:
        members = find_members(name)
    except NoMembersError:
        return [name]
    bundles = all(is_bundle(Path(each.source)) for each in members)
    return [each.source for each in members] if bundles else [name]


def facts_of(source: str, rank: int) -> Mapping[str, Any]:
    """What the recorder of a bundle noted; empty for a trace, which would be imported for it."""
    with local_path(source) as path:
        if not is_bundle(path):
            return {}
        return open_bundle(path).facts(rank)


def _side(source: str, bundle: Bundle, rank: int | None) -> Side:
    rank = rank if rank is not None or not bundle.ranks else bundle.ranks[0]
    summary = summary_of(bundle, rank, measured=ceilings_for(bundle, rank))
    kernels = summary.kernels
    if summary.report.steps.left_out:
        # Those of steps whose clock was wrong may lie within other steps.
        counted = kernels["step"].isin(summary.steps["step"]) | (kernels["step"] < 0)
        kernels = kernels[counted]
    return Side(
        source=source,
        report=summary.report,
        kernels=_columns(kernels),
        steps=summary.steps.reset_index(drop=True),
        facts=bundle.facts(rank or 0),
    )


def _columns(placed: pd.DataFrame) -> KernelColumns:
    """The columns that are compared; shapes of launches and streams are not."""
    names = placed["name"].cat
    copies = np.zeros(len(names.categories), bool)
    flags = NameColumn(placed["kind"]).flags(lambda kind: kind in COPIES)
    copies[names.codes.to_numpy()[flags]] = True
    layer = placed["layer"].to_numpy()
    return KernelColumns(
        start_ns=placed["start_ns"].to_numpy(np.int64),
        end_ns=placed["end_ns"].to_numpy(np.int64),
        step=placed["step"].to_numpy(np.int32),
        layer=np.where((layer < 0) | (layer > _HIGHEST_LAYER), -1, layer).astype(np.int16),
        component=placed["component"].cat.codes.to_numpy().astype(np.uint8),
        name=names.codes.to_numpy().astype(np.int32),
        launch=np.zeros(len(placed), np.int32),
        stream=np.zeros(len(placed), np.uint16),
        names=tuple(map(str, names.categories)),
        copies=tuple(copies.tolist()),
        launches=(),
        streams=(),
    )
