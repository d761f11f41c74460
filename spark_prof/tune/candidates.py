"""What may be tried on a recorded engine: rows of `rules.tune_candidates`, and its findings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import set_options
from spark_prof.ab.sides import Side, parse_side
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.model import Report
from spark_prof.errors import one_line
from spark_prof.rules.environment import (
    SUCCESSORS,
    UNKNOWN,
    VARIABLES,
    is_gone,
    version_of,
)
from spark_prof.rules.tune_candidates import TUNABLES, Tunable
from spark_prof.tune.beside_layer import slots_beside_layer
from spark_prof.tune.engine_traits import EngineTraits, MachineFacts, traits_of
from spark_prof.tune.slots_and_backends import (
    Row,
    backend_rows,
    most_promising,
    packages_of,
    swap_rows,
    why_no_swaps,
)
from spark_prof.tune.tune_trial import Candidate, CandidateTable, UntriedCandidate

_SIZES = "--cudagraph-capture-sizes"
_CACHE = "--kv-cache-dtype"
_CONFIGURATIONS = {
    "--moe-backend": "kernel_config.moe_backend",
    "--linear-backend": "kernel_config.linear_backend",
    "--attention-backend": "attention_config.backend",
    "--ir-op-priority": "kernel_config.ir_op_priority",
    _SIZES: "compilation_config.cudagraph_capture_sizes",
    _CACHE: "cache_config.cache_dtype",
    "--async-scheduling": "scheduler_config.async_scheduling",
    "--enforce-eager": "model_config.enforce_eager",
}
"""Where vLLM keeps the value of an option that is no field of a configuration."""
_REQUANTIZES = (
    "it quantizes BF16 weights at load, which changes the model; --allow-requantize tries it"
)
_NARROWS = "it narrows the KV cache, which changes the model; --allow-kv-dtype tries it"
_FORMAT_OF_OLD_NAME = {"MXFP4": "mxfp4", "NVFP4": "nvfp4", "FP4": "nvfp4", "FP8": "fp8"}
"""Parts of the names of old variables, which posts still advise, by the format they are for."""
_ONE_VALUE = re.compile(r"([\w.-]+=)(\w+)")
_LONGEST = 200
_WIDEST = 60


@dataclass(frozen=True)
class Allowed:
    """What a person allows that changes the model."""

    requantize: bool = False  # BF16 weights may be quantized at load
    kv_dtype: bool = False  # the KV cache may get a narrower format


def candidates_of(
    report: Report, command: EngineCommand, facts: MachineFacts, allowed: Allowed
) -> CandidateTable:
    """What may be tried, what the findings promise most first, and what is left out.

    Args:
        report: of the recording (`analyzers.summary.summarize`); its findings give milliseconds.
        command: the engine as the person starts it; what it sets is not proposed.
        facts: `recorded_facts` of the same recording, with the batch sizes that matter.
    """
    command_options = set_options(command.arguments)
    traits = traits_of(report, facts)
    rows = [*swap_rows(report, facts, traits), *backend_rows(report, facts)]
    rows += table_rows(report, facts, traits, TUNABLES)
    rows += _finding_rows(report.findings)
    candidates: dict[object, Candidate] = {}
    left: dict[str, UntriedCandidate] = {}
    for row in rows:
        if isinstance(row, UntriedCandidate):
            left.setdefault(row.words, row)
            continue
        side = parse_side(row.words)
        quantizes = _quantizes(side)
        why = why_no_swaps(traits) if side.swaps else _is_set(side, command, command_options, facts)
        if facts.flashinfer == "" and "flashinfer" in row.words.lower():
            why = why or "FlashInfer is not installed"
        why = why or _not_installed(side, command, facts)
        if why := why or why_not_allowed(side, allowed):
            left.setdefault(row.words, UntriedCandidate(row.words, row.source, why))
            continue
        options = frozenset(set_options(side.options).items())
        key = (frozenset(side.swaps), options, frozenset(side.environment))
        candidate = candidates.setdefault(
            key, replace(row, changes_model=row.changes_model or quantizes)
        )
        if (row.expected_ms or 0.0, row.finding) > (
            candidate.expected_ms or 0.0,
            candidate.finding,
        ):
            candidates[key] = replace(candidate, finding=row.finding, expected_ms=row.expected_ms)
    ordered = sorted(candidates.values(), key=lambda row: -(row.expected_ms or 0.0))
    words_of_reason: dict[tuple[str, str], list[str]] = {}
    candidate_words = {row.words for row in ordered}
    for one in left.values():
        if one.words not in candidate_words:
            words_of_reason.setdefault((one.source, one_line(one.why)[:_LONGEST]), []).append(
                one.words
            )
    lines = (
        UntriedCandidate(line, *about)
        for about, names in words_of_reason.items()
        for line in _together(names)
    )
    beside = tuple(sorted(slots_beside_layer(report, facts.architecture)))
    return CandidateTable(tuple(ordered), tuple(lines), beside_layer=beside)


def why_not_allowed(side: Side, allowed: Allowed) -> str:
    """Why a side that changes the model is not tried; empty where it changes nothing, or may.

    why_not_allowed(parse_side("lm_head=mxfp4"), Allowed(requantize=True)) == ""
    """
    if _quantizes(side):
        return "" if allowed.requantize else _REQUANTIZES
    narrows = _CACHE in set_options(side.options)
    return _NARROWS if narrows and not allowed.kv_dtype else ""


def _quantizes(side: Side) -> bool:
    load = "--quantization" in set_options(side.options)
    return load or any(swap.kernel in ("mxfp4", "fp8") for swap in side.swaps)


def _together(words: Sequence[str]) -> Iterator[str]:
    """Words in lines that a table has room for; values of one option with bars between them."""
    line, before = "", ""
    for word in words:
        match = _ONE_VALUE.fullmatch(word)
        name, value = (match[1], match[2]) if match else ("", word)
        longer = (
            f"{line}|{value}" if name and name == before else f"{line}, {word}" if line else word
        )
        if line and len(longer) > _WIDEST:
            yield line
            longer = word
        line, before = longer, name
    yield line


def table_rows(
    report: Report, facts: MachineFacts, traits: EngineTraits, table: Sequence[Tunable]
) -> Iterator[Row]:
    """The rows of a table as they apply to an engine."""
    version = version_of(facts.vllm)
    sizes = ",".join(map(str, traits.captured or traits.sizes))
    graphs = " ".join(map(str, sorted({*traits.sizes, *traits.graphs})))
    for row in table:
        words = row.words.replace("{sizes}", sizes).replace("{graphs}", graphs)
        missing = next((trait for trait in row.needs.split() if trait not in traits.present), "")
        if version == UNKNOWN:
            why = "which vLLM this is is not known, and so not whether it has this"
        elif not row.since <= version < row.until:
            why = f"vLLM {facts.vllm} does not have it"
        elif "{sizes}" in row.words and not traits.captured and not missing:
            why = "none of these batch sizes has a CUDA graph"
        else:
            why = traits.why_not(missing) if missing else row.never
        if why:
            yield UntriedCandidate(words, row.source, why)
            continue
        findings = [finding for finding in report.findings if finding.id in row.findings]
        promised = most_promising(report, findings, row.components)
        yield Candidate(words, row.source, row.condition, *promised, row.narrows_cache)
    yield UntriedCandidate("--speculative-config", "speculation",
        "no drafter is given; with one, spark-prof speculate finds how many tokens to draft",
    )  # fmt: skip
    dtypes = {row.dtype for row in report.roofline.weights} if report.roofline else set()
    why = f"vLLM {facts.vllm} does not read it; --moe-backend and the like took its place"
    for name in (*(row.name for row in VARIABLES), *(row.name for row in SUCCESSORS)):
        formats = [of for part, of in _FORMAT_OF_OLD_NAME.items() if part in name.split("_")]
        if set(formats) & dtypes and is_gone(name, facts.vllm):
            yield UntriedCandidate(name, "environment", why)


def _finding_rows(findings: Sequence[Finding]) -> Iterator[Candidate]:
    """The sides that findings' own commands compare."""
    for finding in findings:
        side = finding.action.side if finding.action and finding.action.verb == "ab" else ""
        if not side or side.startswith(_SIZES):  # sizes have a row
            continue
        why = one_line(finding.measured or finding.text)[:_LONGEST]
        yield Candidate(side, _source(parse_side(side)), why, finding.id, finding.ms_per_token)


def _source(side: Side) -> str:
    if side.swaps:
        return "kernels"
    names = " ".join(set_options(side.options))
    sources = {
        "-backend": "backends", "pass_config": "fusion passes", "scheduling": "scheduler",
        "quantization": "kernels",
    }  # fmt: skip
    return next((source for part, source in sources.items() if part in names), "compilation")


def _not_installed(side: Side, command: EngineCommand, facts: MachineFacts) -> str:
    """Which package a backend needs that the engine's Python lacks, as far as that can be seen."""
    if command.python != sys.executable:
        return ""
    for option, value in set_options(side.options).items():
        for package in packages_of(option, value, facts):
            if find_spec(package) is None:
                return f"it needs {package}, which is not installed here"
    return ""


def _is_set(
    side: Side, command: EngineCommand, command_options: dict[str, str], facts: MachineFacts
) -> str:
    """Why a side would change nothing, or what the person chose; empty where it is neither."""
    prefix = dict(word.split("=", 1) for word in command.prefix if "=" in word)
    for name, _ in side.environment:
        set_to = prefix.get(name, facts.environment.get(name))
        if set_to is not None:
            return f"{name}={set_to} is set already"
    paths = {option_path(name): name for name in command_options}
    same = bool(side.options)
    for name, value in set_options(side.options).items():
        path, off = option_path(name), name.startswith("--no-")
        if name == "--no-enforce-eager" and "--enforce-eager" in command_options:
            return ""
        for other, spelt in paths.items():
            if path == other or path.startswith(f"{other}.") or other.startswith(f"{path}."):
                return f"the command sets {spelt} {command_options[spelt]}".rstrip()
        now = facts.configuration.get(path, "")
        same = same and now.lower() == (value or str(not off)).lower()
    return "it is so in this run already" if same else ""


def option_path(option: str) -> str:
    """Where vLLM keeps an option's value.

    option_path("--no-async-scheduling") == "scheduler_config.async_scheduling"
    """
    root, dot, field = option.replace("--no-", "--", 1).partition(".")
    return _CONFIGURATIONS.get(root, root.removeprefix("--").replace("-", "_")) + dot + field
