"""docs/schema: a JSON Schema of each document of `--format json`, written from the code's types.

What a key means is said by the comment or docstring of its field, or where a schema says it
already by that: the words in the files stay, all else is written by

    python -m tests.docs.pages
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from spark_prof.ab.result import AbOutcome
from spark_prof.analyzers.breakdown import Coverage
from spark_prof.analyzers.ceilings.ceiling_rows import CheckpointCeilings
from spark_prof.analyzers.clients.client_comparison import ClientRow, ClientToken
from spark_prof.analyzers.comparing.comparison import PhaseComparison, SetupDifference
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.comparing.obstacles import Outcome
from spark_prof.analyzers.fallbacks.audit_rows import Audit, KnownIssue
from spark_prof.analyzers.fallbacks.machine_checks import Machine
from spark_prof.analyzers.fallbacks.verdict import DoctorVerdict as EngineVerdict
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.one_layer import OneLayer
from spark_prof.analyzers.recorded_run import RecordedGpu, RecordingSetup
from spark_prof.analyzers.roofline.roofline_rows import Ceilings as Bounds
from spark_prof.analyzers.startup.start_rows import StartMemory, Startup
from spark_prof.analyzers.step_accounting import Spread
from spark_prof.analyzers.step_time import StepSpread, StepSums
from spark_prof.analyzers.token_time import TokenTime
from spark_prof.analyzers.why import Why
from spark_prof.cli.written import WriteRecord
from spark_prof.dashboards.render.json_report import _DERIVED, _KERNELS, _KEYS
from spark_prof.datasets.every_recording import DatasetRecording, ReadFailure
from spark_prof.kernels.bench import results
from spark_prof.kernels.bench.shapes import Recorded
from spark_prof.kernels.check.verdict import CheckVerdict
from spark_prof.kernels.tuning import TunedShape
from spark_prof.speculate.speculate_result import SpeculateResult
from spark_prof.traces.measured import MeasuredMachine
from spark_prof.tune.tune_result import TuneResult
from spark_prof.tune.tune_trial import CandidateTable

FOLDER = Path(__file__).parents[2] / "docs" / "schema"
_HEAD = (
    "Times are microseconds unless a key says otherwise, shares are fractions of 1, what does not "
    "exist is null. Keys may be added."
)
Schema = dict[str, Any]


def _hints(kind: Any) -> dict[str, Any]:
    """The types of what a class or function has, those that it imports for them alone too."""
    try:
        return typing.get_type_hints(kind)
    except NameError:
        return typing.get_type_hints(kind, localns=globals())


class Rows(list[Any]):
    """A document that is a list, and with --limit or --section an object with `rows`."""


class Optional(list[Any]):
    """One type of a key that is not always there."""


_SIDE = {
    "source": str, "recordings": list[str], "run": RecordingSetup, "gpu": RecordedGpu, "steps": int,
    "coverage": Coverage, "conversions_share": float, "findings": list[str],
    "finding_keys": list[str],
}  # fmt: skip
_CLASSIFIED = {
    "name": str, "component": str | None, "engine": str, "precision": str | None, "evidence": str,
    "conversion": str | None, "weights": str | None, "fused_conversion": str | None,
    "load_time": bool, "kernel_id": str, "us": Optional([float]),
    "compiled_by_driver_from": Optional([str]),
    "conflict": Optional([{"by_name": str, "found": str, "evidence": str, "basis": str}]),
    "code": Optional([{
        "function": str, "file": str, "architecture": str | None, "suffix": str | None,
        "registers": int, "instructions": int, "local_loads": int, "local_stores": int,
        "tensor_core": dict[str, int], "reads": list[str], "writes": list[str],
    }]),
}  # fmt: skip
_NOT_RACED = [{"component": str, "kernels": float, "why": str}]
_CHANGE = {
    "a": float, "b": float, "us": float, "low": float, "high": float, "share": float,
    "sure": bool, "share_low": float, "share_high": float,
    "values_a": Optional([list[float]]), "values_b": Optional([list[float]]),
}  # fmt: skip
_SPREAD = {"median": float, "p99": float, "mean": float}

_WORDS = {
    "a": "on side a", "answer_line": "what it found, in one line", "b": "on side b",
    "batch_sizes": "requests at a time", "calls": "how often it was called",
    "bytes_us": "what its bytes take at the read bandwidth",
    "component": "what it works for; docs/bundle.md has the words", "file": "the file",
    "finished": "whether it came to its end", "fix": "what to change",
    "highest": "the largest", "kernel_id": "its id in every document",
    "layer": "the decoder layer", "left_out": "what is not counted", "lower": "the first quartile",
    "lowest": "the smallest", "mean": "the mean", "median": "the median", "name": "its name",
    "nodes_of_distance": "the nodes' share of what it takes beyond its bytes",
    "p90": "the 90th percentile", "p99": "the 99th percentile", "phase": "of the steps",
    "rank": "the rank", "reason": "why", "recorded_as": "what a file says in place of a command",
    "repeats": "how often it was measured", "requests": "how many decode at a time",
    "schema": "raised when a key changes its meaning or goes; new keys do not raise it",
    "side": "which side", "std": "the standard deviation", "steps": "how many steps",
    "upper": "the third quartile", "us": "its time", "verdict": "what is told of it", "why": "why",
}  # fmt: skip
"""Of keys that mean the same wherever they stand, where nothing else says more."""

DOCUMENTS: Mapping[str, tuple[str, Any]] = {
    "report": ("report --format json", {
        "schema": int, "verdict": str, **{key: _hints(Report).get(key) for key in _KEYS},
        "books": [
            {"phase": str, **_hints(StepSums), **dict.fromkeys(_DERIVED[StepSums], float)}
        ],
        "tokens": [{
            "phase": str, "batch_size": int | None, "steps": int, "step": StepSpread,
            "ms_per_token": float | None, "overlap_us": float,
            "rows": [{
                "name": str, "summed_us": float, "charged_us": float, "alone_us": float,
                "share": float, "ms_per_token": float | None, "layers": int,
                "per_layer_us": float | None, "spread": StepSpread}],
            "token": TokenTime | None}],
        "time": dict.fromkeys(
            ("sum_us", "union_us", "wall_us", "busy_us", "copies_us", "gap_us", "overlap_us",
             "step_us", "residual_us", "residual_percent", "engine_us", "kernel_time_us",
             "exclusive_us"), float),
        "client_tokens": [ClientToken], "known_issues": [KnownIssue],
    }),
    "report-layer": ("report --layer N --format json", OneLayer),
    "clients": ("report --format json of a load generator's result", {
        "schema": int, "sources": list[str], "clients": [ClientRow], "lost": list[str]}),
    "dataset": ("report FOLDER --format json", {
        "schema": int, "dataset": str, "recordings": [DatasetRecording],
            "failures": [ReadFailure]}),
    "compare": ("compare --format json", {
        "schema": int, "kind": str, "reference": _SIDE,
        "comparisons": [{
            "side": str, "answer": Optional([str]), "outcome": Outcome, "other": _SIDE,
            "assumed_start_share": float, "phases": [PhaseComparison],
            "setup": [SetupDifference], "notes": list[str]}],
        "gate": [{
            "limit": str, "side": str, "outcome": str, "kind": str, "change": Change | None,
            "reason": str}],
    }),
    "ab": ("ab --format json, report RESULT --format json, and result.json", {
        **_hints(AbOutcome),
        "answer": Optional([str]), "outcome": Optional([str]), "exit_code": Optional([int]),
    }),
    "tune": ("tune --format json, report RESULT --format json, and result.json",
             (TuneResult, {
                 "answer_line": Optional([str]), "recorded_as": Optional([list[str]]),
                 "per_batch": Optional([[{"requests": int, "verdict": str}]])})),
    "speculate": ("speculate --format json, report RESULT --format json, and result.json",
                  (SpeculateResult, {"answer_line": Optional([str])})),
    "tune-list": ("tune --list --format json", CandidateTable),
    "ab-apply": ("ab --apply --format json", {
        "environment": dict[str, str], "options": list[str], "serve": str}),
    "why": ("why --format json", Why),
    "doctor": ("doctor --format json", {
        "schema": int, "subject": str, "findings": [Finding], "audit": Audit | None,
        "known_issues": [KnownIssue],
        "verdict": Optional([{**_hints(EngineVerdict), "text": str, "also": [EngineVerdict]}]),
        "machine": Machine | None, "ceilings": CheckpointCeilings | None,
            "measured": MeasuredMachine | None,
        "startup": Startup | None, "memory": StartMemory | None}),
    "classify": ("classify --format json", Rows([_CLASSIFIED])),
    "query": ("query --format json", Rows([dict[str, Any]])),
    "kernels": ("kernels list --format json", Rows([{
        "name": str, "slot": str, "formats": list[str],
        "shapes": {"fewest_tokens": int, "most_tokens": int, "sizes": str},
        "architectures": list[str], "computes": str, "operation": str, "reference": str,
        "bytes": str, "tolerance": str, "check": str,
        "measured": [{"architecture": str, "machine": str, "date": str}]}])),
    "kernels-check": ("kernels check --format json", {
        "schema": int, "device": str, "where": str, "passed": int, "failed": int, "skipped": int,
        "cases": [CheckVerdict]}),
    "kernels-work": ("kernels bench --list --format json", {
        "work": [(TunedShape, {"label": str, "recorded": Recorded | None})],
            "not_raced": _NOT_RACED}),
    "kernels-bench": ("kernels bench and kernels tune --format json", (results.BenchReport, {
        "cells": [(results.BenchCell, {
            "floor_us": float, "bytes_us": float, "nodes_of_distance": float | None,
            "share_of_read": float, "gain": float})],
        "not_raced": Optional([_NOT_RACED])})),
    "written": ("record, import, merge, salvage, export --json, report --share and kernels replay "
                "with --format json", WriteRecord),
    "explore": ("explore and demo with --format json", {"schema": int, "address": str}),
}  # fmt: skip
"""By the file's name: the commands, and what they print, as a type, or as keys with theirs."""


def schema_of(kind: Any) -> Schema:
    """The schema of what JSON has of a value of that type.

    A list is of what its element says, a mapping has those keys, and a pair is a dataclass with
    more keys.
    """
    if isinstance(kind, Optional):
        return {**schema_of(kind[0]), "optional": True}
    if isinstance(kind, list):
        return {"type": "array", "items": schema_of(kind[0])}
    if isinstance(kind, dict):
        return _object({key: (schema_of(value), "") for key, value in kind.items()})
    if isinstance(kind, tuple):
        whole = schema_of(kind[0])
        more = schema_of(kind[1])
        whole["properties"] |= more["properties"]
        whole["required"] = sorted({*whole["required"], *more["required"]}, key=str)
        return whole
    if kind is Change:
        return schema_of(_CHANGE)
    if inspect.isclass(kind) and is_dataclass(kind):
        return _of_dataclass(kind)
    return _of_type(kind)


def _of_type(kind: Any) -> Schema:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or isinstance(kind, typing.TypeVar):
        return {}
    if isinstance(kind, typing.NewType):
        return schema_of(kind.__supertype__)
    if kind is type(None):
        return {"type": "null"}
    if origin in (types.UnionType, typing.Union):
        return _either([schema_of(each) for each in inner])
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is typing.Annotated:
        return schema_of(inner[0])
    if inspect.isclass(kind) and issubclass(kind, enum.StrEnum):
        return {"enum": [each.value for each in kind]}
    if inspect.isclass(kind) and issubclass(kind, bool):
        return {"type": "boolean"}
    if kind is int:
        return {"type": "integer"}
    if kind is float:  # one that is not finite is null
        return {"type": ["number", "null"]}
    if isinstance(kind, typing.NewType):
        return schema_of(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, str):
        return {"type": "string"}
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if inspect.isclass(kind) and hasattr(kind, "_fields"):  # a NamedTuple
        hints = _hints(kind)
        return {"type": "array", "items": _either([schema_of(each) for each in hints.values()])}
    if inspect.isclass(origin) and issubclass(origin, Collection):
        items = [schema_of(each) for each in inner if each is not Ellipsis]
        return {"type": "array", "items": _either(items)}
    raise TypeError(f"no schema of {kind!r}")


def _either(kinds: list[Schema]) -> Schema:
    """One of these; types alone are written together."""
    found = [each for place, each in enumerate(kinds) if each not in kinds[:place]]
    nullable = {"type": "null"} in found
    found = [each for each in found if each != {"type": "null"}]
    if len(found) == 1 and nullable and isinstance(found[0].get("type"), str):
        return {**found[0], "type": [found[0]["type"], "null"]}
    if nullable and {"type": ["number", "null"]} not in found:
        found.append({"type": "null"})
    return found[0] if len(found) == 1 else {"anyOf": found}


def _object(keys: Mapping[str, tuple[Schema, str]]) -> Schema:
    """An object with these keys, each with its schema and what it says."""
    properties, required = {}, []
    for key, (schema, said) in keys.items():
        if not schema.pop("optional", False):
            required.append(key)
        said = said or _WORDS.get(key, "")
        properties[key] = {**schema, **({"description": said} if said else {})}
    return {"type": "object", "properties": properties, "required": required}


def _of_dataclass(kind: type[Any]) -> Schema:
    if kind is Spread:
        return _object({key: (schema_of(float), "") for key in _SPREAD})
    hints, said = _hints(kind), comments(kind)
    keys = {
        each.metadata.get("json", each.name): (schema_of(hints[each.name]), said.get(each.name, ""))
        for each in fields(kind)
    }
    for name in _DERIVED.get(kind, ()):
        getter = getattr(kind, name)
        made = _hints(getter.fget)["return"]
        keys[name] = schema_of(made), (inspect.getdoc(getter) or "").split("\n")[0].rstrip(".")
    if kind in _KERNELS:
        keys["kernel_id"] = schema_of(str), "its id, the same in every document"
    if kind is Bounds:
        keys["peaks"] = schema_of(dict[str, float]), keys["peaks"][1]
    return _object(keys)


@cache
def comments(kind: type[Any]) -> dict[str, str]:
    """What the source says of each field: the docstring below it, or the comment at its line."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        if is_dataclass(each):
            found |= dict(_comments(inspect.getsource(each)))
    return found


def _comments(source: str) -> Iterator[tuple[str, str]]:
    text = inspect.cleandoc(source)
    lines = text.split("\n")
    [body] = ast.parse(text).body
    assert isinstance(body, ast.ClassDef)
    for place, node in enumerate(body.body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        after = body.body[place + 1] if body.body[place + 1 :] else None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            said = str(after.value.value)
        else:
            said = lines[node.lineno - 1][node.end_col_offset or 0 :].partition("#")[2]
            above = node.lineno - 2
            while not said.strip() and above >= 0 and lines[above].strip().startswith("#"):
                said = ""
                first = above
                while lines[first - 1].strip().startswith("#"):
                    first -= 1
                said = " ".join(line.strip().lstrip("# ") for line in lines[first : above + 1])
        yield node.target.id, " ".join(said.split()).rstrip(".")


def written(name: str) -> str:
    """The schema of today, with the words of the file."""
    commands, kind = DOCUMENTS[name]
    path = FOLDER / f"{name}.schema.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if isinstance(kind, Rows):
        row = schema_of(kind[0])
        rows = {"type": "array", "items": {"$ref": "#/$defs/row"}}
        bounded = {"rows": {**rows, "description": "as many as were asked for"}, "left_out": _LEFT}
        made = {
            "anyOf": [
                rows,
                {"type": "object", "properties": bounded, "required": list(bounded)},
            ],
            "$defs": {"row": row},
        }
        _keep_words(row, before.get("$defs", {}).get("row", before))
    else:
        made = schema_of(kind)
        _keep_words(made, before)
        if name not in ("written", "explore", "ab-apply"):
            told = "rows_left_out" if "left_out" in made["properties"] else "left_out"
            made["properties"][told] = _LEFT_OUT
            # With --section keys are missing.
            made["anyOf"] = [{"required": made.pop("required")}, {"required": [told]}]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"spark-prof {commands}",
        "description": _HEAD,
    }
    return _compact(head | made) + "\n"


def _compact(value: Any, indent: str = "") -> str:
    """JSON with what fits into a line in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) < _WIDTH or not isinstance(value, dict):
        return line
    inner = indent + " "
    rows = (f"{inner}{json.dumps(key)}: {_compact(each, inner)}" for key, each in value.items())
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


_WIDTH = 100
_LEFT = {"type": "integer", "description": "how many more rows there are"}
_LEFT_OUT = {
    "type": "object",
    "additionalProperties": {"type": "integer"},
    "description": "with --limit or --section: how many rows each list lacks, by its path",
}


def _keep_words(made: Schema, before: Any) -> None:
    """Takes over what a schema says of its keys."""
    if not isinstance(before, dict):
        return
    for word in ("description", "x-unit"):
        if word in before:
            made[word] = before[word]
    for inner in (made, *made.get("anyOf", ())):
        old = before
        for each in before.get("anyOf", ()):
            if "properties" in each or "items" in each:
                old = each
        for key, value in inner.get("properties", {}).items():
            _keep_words(value, old.get("properties", {}).get(key))
        for word in ("items", "additionalProperties"):
            if isinstance(inner.get(word), dict):
                # A list's items may have been described as the list, or a mapping's as the mapping.
                _keep_words(inner[word], old.get(word, old if word == "items" else None))


def undescribed(schema: Any, path: str = "", *, known: bool = False) -> Iterator[str]:
    """The keys that nothing is said of, neither by themselves nor by what they are part of."""
    if not isinstance(schema, dict):
        return
    known = known or ("description" in schema and bool(path))
    for key, value in schema.get("properties", {}).items():
        if not (known or "description" in value or _has_keys(value)):
            yield f"{path}.{key}"
        yield from undescribed(value, f"{path}.{key}", known=known)
    inner = [schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ())]
    for each in (*inner, *schema.get("$defs", {}).values()):
        yield from undescribed(each, path, known=known)


def _has_keys(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    inner = (schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ()))
    return "properties" in schema or any(map(_has_keys, inner))


def write_all() -> None:
    """Writes every schema anew."""
    for name in DOCUMENTS:
        (FOLDER / f"{name}.schema.json").write_text(written(name), encoding="utf-8")
