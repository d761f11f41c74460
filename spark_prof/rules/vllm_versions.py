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
