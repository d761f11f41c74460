"""Versions of vLLM in the order in which they were made, and spans of them with what is not known.

A build of a day, such as 0.28.1rc1.dev388+g8a728663c, was made after 0.28.0 and before 0.28.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(
    r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:(a|b|rc)(\d{1,4}))?(?:\.post(\d{1,4}))?"
    r"(?:\.dev(\d{1,7}))?(?:\+([\w.]{1,80}))?"
)
_PLAIN_LOCAL = re.compile(r"(?:cu\d+|cpu|cuda|precompiled|g[0-9a-f]{6,40}|d\d{8})")
"""Parts of a local version that say nothing of changed code; of a release a commit does."""
_STAGES = {"a": 1, "b": 2, "rc": 3}
_FINAL = 4

Place = tuple[int, int, int, int, int, int, int]
"""Release, stage, its number, post release, and number of the daily build, which come first."""

_RELEASED = 10**9


@dataclass(frozen=True)
class Build:
    """One version."""

    place: Place  # compares as the versions were made
    daily: bool  # not released: which changes it holds only its number tells
    changed: bool  # somebody's own build, which may hold changes of others


def build_of(text: str) -> Build | None:
    """The version that a text is; None where it is none.

    build_of("0.28.1rc1.dev388+g8a728663c").place < build_of("0.28.1").place
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    major, minor, patch, stage, number, post, dev, local = match.groups()
    of = _STAGES.get(stage or "", 0 if dev and not post else _FINAL)
    place = (
        int(major), int(minor), int(patch or 0), of, int(number or 0), int(post or 0),
        int(dev) if dev else _RELEASED,
    )  # fmt: skip
    daily = bool(dev or stage)
    parts = (local or "").split(".") if local else []
    commit = [part for part in parts if re.fullmatch(r"g[0-9a-f]{6,40}|d\d{8}", part)]
    changed = any(not _PLAIN_LOCAL.fullmatch(part) for part in parts) or bool(commit and not daily)
    return Build(place, daily, changed)


@dataclass(frozen=True)
class VersionWindow:
    """The versions that have something, as far as that is known.

    What lies between `last` and `fixed`, and beyond `last` where nothing is known to be without
    it, may have it or not.
    """

    since: str  # the first version known to have it
    last: str  # the last version known to have it
    fixed: str = ""  # the first version known not to have it; empty where none is

    def holds(self, vllm: str) -> bool | None:
        """Whether that version has it; None where it cannot be told."""
        build = build_of(vllm)
        if build is None:
            return None
        since, last = _place(self.since), _place(self.last)
        fixed = _place(self.fixed) if self.fixed else None
        if build.changed:  # may hold what others have changed, or lack it
            return None
        if build.place < since:
            # A build of the days before may hold what made it so.
            return None if build.daily else False
        if build.place <= last:
            return True
        return False if fixed is not None and build.place >= fixed else None


def _place(text: str) -> Place:
    build = build_of(text)
    if build is None:
        raise ValueError(f"{text} is no version")
    return build.place
