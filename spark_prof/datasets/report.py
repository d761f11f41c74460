"""Puts a dataset together: one recording at a time, wherever the engine reads it."""

from __future__ import annotations

import math
import os
from pathlib import Path

from spark_prof.analyzers.dataset import Dataset, Failure, Recording, recording_of
from spark_prof.datasets.engines import Engine, run_each
from spark_prof.datasets.opened import opened
from spark_prof.traces.members import Member, NoMembersError, find_members, is_bundle
from spark_prof.traces.remote import is_url


def is_dataset(source: str) -> bool:
    """Whether the source is a folder of recordings and not one itself, or nothing that can be read.

    Raises:
        CommandError: it is a URL that cannot be read.
    """
    if not is_url(source) and not os.path.isdir(source):
        return False
    try:
        members = find_members(source)
    except NoMembersError:
        return False
    # A trace alone in a folder may have a load generator's result beside it: they belong together.
    return len(members) > 1 or (members[0].source != source and is_bundle(Path(members[0].source)))


def summarize_dataset(source: str, engine: Engine = Engine.LOCAL) -> Dataset:
    """All recordings of a folder; one that cannot be read is a failure with its reason.

    Args:
        source: a folder or its URL; with Ray every worker must be able to read it.
        engine: where the recordings are read.

    Raises:
        CommandError: it holds none, or the engine cannot be used.
    """
    members = find_members(source)
    outcomes = run_each(summarize_member, members, engine)
    found = [outcome.value for outcome in outcomes if outcome.value is not None]
    failures = [
        Failure(member.name, outcome.reason)
        for member, outcome in zip(members, outcomes, strict=True)
        if outcome.value is None
    ]
    return Dataset(source, tuple(sorted(found, key=_fastest)), tuple(failures))


def summarize_member(member: Member) -> Recording:
    """Reads one recording; what runs in the workers."""
    with opened(member.source) as bundle:
        return recording_of(bundle, member.name)


def _fastest(recording: Recording) -> tuple[float, str]:
    median = recording.first.decode_median_us
    return (math.inf if median is None else median, recording.name)
