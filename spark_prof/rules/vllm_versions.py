"""What vLLM's releases have, by version: read from their sources, never remembered.

The tables, vllm_*.json, are written by `python -m scripts.vllm_sources` from vLLM's wheels. They
are loaded when first asked. A version that nobody has read has no answer: None, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")
_WHOLE = re.compile(r"v?\d+\.\d+(?:\.\d+)?(?:\.post\d+)?(?:\+\S*)?")
_EARLY = re.compile(r"\d\.?(?:a|b|rc|alpha|beta)\d|^v?[\d.]+dev")

Number = tuple[int, int, int]


@dataclass(frozen=True)
class GeneratedTable:
    """A generated table."""

    versions: tuple[str, ...]  # that were read, oldest first
    rows: Mapping[tuple[str, ...], str]  # the versions that have it, as `Spans.text` has them


@dataclass(frozen=True)
class Spans:
    """The versions that have something, such as 0.24.0-0.26.0 0.28.0-."""

    text: str

    def has(self, release: str) -> bool:
        """Whether a release is one of them."""
        number = _number(release)
        for span in self.text.split():
            first, _, last = span.partition("-")
            if _number(first) <= number and (number <= _number(last or first) or span[-1] == "-"):
                return True
        return False


def number_of(version: str) -> Number | None:
    """Major, minor and patch of a version such as v0.26.1.dev3+cu130; None where there is none."""
    match = _VERSION.match(version.strip())
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _number(release: str) -> Number:
    return number_of(release) or (0, 0, 0)


@cache
def table(name: str) -> GeneratedTable:
    """A generated table by its file's name, such as variables."""
    content = json.loads((_FOLDER / f"vllm_{name}.json").read_bytes())
    rows = {tuple(row[:-1]): row[-1] for row in content["rows"]}
    return GeneratedTable(tuple(content["versions"]), rows)


def releases() -> Sequence[str]:
    """The releases of vLLM that were read, oldest first."""
    return table("architectures").versions


@cache
def release_of(version: str) -> str | None:
    """The release that was read for a version: itself, or the last one before it of its minor.

        release_of("0.26.1.dev3+cu130") == "0.26.0" and release_of("0.5.0") is None

    Of a minor version alone, such as 0.27, the last release is taken.
    """
    version_number = number_of(version)
    if version_number is None:
        return None
    whole = re.match(r"v?\d+\.\d+\.\d", version.strip()) is not None
    fitting = [
        release
        for release in releases()
        if (number := number_of(release)) is not None
        and number[:2] == version_number[:2]
        and (number <= version_number or not whole)
    ]
    return fitting[-1] if fitting else None


def around(version: str) -> tuple[str, ...]:
    """The releases that a version has what it has from: itself, or those before and behind it.

        around("0.26.0+cu130") == ("0.26.0",) and around("0.26.1.dev3") == ("0.26.0", "0.27.0")

    Behind the newest release that was read stands "", as nobody knows what comes; of a version
    before the oldest one there are none.
    """
    read = releases()
    number, nearest = number_of(version), release_of(version)
    if nearest is not None and _WHOLE.fullmatch(version.strip()):
        return (nearest,)
    if number is None:
        return ()
    early = bool(_EARLY.search(version))
    before = [it for it in read if _number(it) < number or (_number(it) == number and not early)]
    behind = [it for it in read if it not in before]
    return (before[-1], behind[0] if behind else "") if before else ()


def _agreed(spans: Spans, version: str) -> bool | None:
    """Whether a version has something; None where that is not known."""
    near = around(version)
    if "" in near:  # what is gone stays gone; what is there may go, and what never was may come
        return False if spans.text and not spans.has(near[0]) else None
    answers = {spans.has(release) for release in near}
    return answers.pop() if len(answers) == 1 else None


def reads(variable: str, version: str) -> bool | None:
    """Whether a vLLM reads an environment variable; None where that is not known.

        reads("VLLM_TRITON_ATTN_USE_TD", "0.28.0") is True
        reads("VLLM_TRITON_ATTN_USE_TD", "0.29.0") is False

    Of a build between releases, which may be a fork, nothing is said of a variable that no release
    reads.
    """
    spans = span_of_variable(variable)
    if not spans.text and len(around(version)) != 1:
        return None
    return _agreed(spans, version)


def span_of_variable(variable: str) -> Spans:
    """The releases that read an environment variable; empty where none does."""
    rows = table("variables").rows
    return Spans(
        " ".join(filter(None, (rows.get((variable, kind)) for kind in ("listed", "read"))))
    )


def is_listed(variable: str, version: str) -> bool | None:
    """Whether vLLM's own list has a variable, so that it does not warn of it as unknown."""
    return _agreed(Spans(table("variables").rows.get((variable, "listed"), "")), version)


def has_option(option: str, version: str) -> bool | None:
    """Whether an engine takes an option, also a field such as --compilation-config.mode.

        has_option("--linear-backend", "0.33.0") is True

    None where that is not known. Before the name of a switch may stand --no-.
    """
    rows = table("options").rows
    name = option if (option, "") in rows else option.replace("--no-", "--", 1)
    return _agreed(Spans(rows.get((name, ""), "")), version)


def values_of(option: str, version: str) -> tuple[str, ...]:
    """The values that an option, or an environment variable, takes; none where they are not fixed.

    Of a version that was not read there are none either.

        "b12x" in values_of("--moe-backend", "0.33.0")
    """
    release = release_of(version)
    if release is None:
        return ()
    return tuple(
        row[1]
        for row, text in table("options").rows.items()
        if row[0] == option and row[1] and Spans(text).has(release)
    )


def takes(option: str, value: str, version: str) -> bool | None:
    """Whether an option of a version takes a value; None where that is not known.

        takes("--moe-backend", "humming", "0.24.0") is True
        takes("--moe-backend", "b12x", "0.26.0") is False

    vLLM takes a backend's name with hyphens too, and in capital letters. Nothing is said of a
    number, which may stand for a name.
    """
    rows = table("options").rows
    if not any(name == option and value_name for name, value_name in rows):
        return None
    spelt = {value, value.lower().replace("-", "_"), value.upper()}
    spans = [Spans(rows[option, it]) for it in spelt if (option, it) in rows]
    if not spans and value.isdecimal():
        return None
    return _agreed(spans[0] if spans else Spans(""), version)


def log_formats(version: str) -> tuple[tuple[str, str, str], ...]:
    """Level, format and file of each line that a version may log about how it runs a model.

    Of INFO those that speak of kernels, graphs, caches, speculation, quantization and the like; no
    lines of AMD's GPUs or of the server's requests. None where the version was not read.
    """
    release = release_of(version)
    rows = table("log_formats").rows.items() if release else ()
    return tuple(
        (level, form, path) for (level, form, path), text in rows if Spans(text).has(release or "")
    )


def breakable_by_default(architecture: str, version: str) -> bool | None:
    """Whether a vLLM gives an architecture breakable CUDA graphs without being asked.

    It does so on NVIDIA GPUs where VLLM_USE_BREAKABLE_CUDAGRAPH is not set; the model is then not
    compiled. None where that version was not read.

        breakable_by_default("KimiLinearForCausalLM", "0.33.0") is True
    """
    release = release_of(version)
    if release is None:
        return None
    return Spans(table("architectures").rows.get((architecture,), "")).has(release)


_VERSION_TEXT = re.compile(
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
    match = _VERSION_TEXT.fullmatch(text.strip())
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
