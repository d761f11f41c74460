"""The tools of the server, a row each: what an agent reads of it, and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def _texts(does: str, most: int) -> dict[str, Any]:
    items = {"type": "string", "maxLength": 4_000}
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most, "description": does}


def _text(does: str, longest: int = 1_000) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": longest, "description": does}


def _count(does: str, most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most, "description": does}


_SIDE = {"anyOf": [_text("a recording"), _texts("several engine starts of the same", 25)]}
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "recording": _text("as recordings lists it"),
    "rank": _count("by default the lowest", 1_000_000),
    "name": _text("part of its name"),
    "component": _text("only this one, such as qkv"),
    "conversions": {"type": "boolean", "description": "only kernels that convert formats"},
    "details": {"type": "boolean", "description": "with machine code, bytes and launches"},
    "layer": _count("one layer's kernels beside layers like it", 100_000),
    "part": _text("path, such as roofline.phases.0.rows; without it the parts are listed"),
    "sql": _text("SELECT ...", 4_000),
    "a": _SIDE,
    "b": _SIDE,
    "fail_on": _texts("limits, such as decode_us.median > 3%", 20),
    "sources": _texts("recordings, or folders with a config.json", 6),
    "gpu": _text("of checkpoints, such as h100"),
    "batch": _count("sequences at a time, of checkpoints", 1_000_000, 1),
    "cursor": _count("next_cursor of the answer before", 10_000_000),
    "limit": _count("rows at most", 200, 1),
    "command": _texts(
        "words that start vLLM; recorded, vllm serve runs until minutes are over", 200
    ),
    "out": _text("a new folder for the result"),
    "minutes": _count("after which it is ended; by default 30", 480, 1),
    "steps": _count("to record", 1_000_000, 1),
    "warmup_steps": _count("to let pass before", 1_000_000),
    "batch_sizes": _text("such as 1,8"),
    "context": _count("tokens of each prompt", 1_000_000, 1),
    "seconds": _count("of each measurement", 3_600, 1),
    "allow_requantize": {"type": "boolean", "description": "weights may be quantized at load"},
    "allow_kv_dtype": {"type": "boolean", "description": "the KV cache may get another format"},
}
"""An argument means the same in all tools, but that `ab` takes changes, not recordings."""
_CHANGES = {"a": _text("by default stock"), "b": _text("the change, such as moe=spark_prof")}


@dataclass(frozen=True)
class ToolRow:
    """A tool, as an agent reads of it."""

    name: str
    takes: str  # names of arguments, with ! where one is required
    does: str
    starts: bool = False  # whether it starts engines, and so needs --allow-run

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        arguments = {**_ARGUMENTS, **(_CHANGES if self.starts else {})}
        required = [word[:-1] for word in self.takes.split() if word.endswith("!")]
        found = {word: arguments[word] for word in self.takes.replace("!", "").split()}
        record = {"type": "object", "properties": found, "required": required}
        return record | {"additionalProperties": False}


TOOLS = (
    ToolRow("recordings", "name cursor limit", "List recordings and traces, newest first."),
    ToolRow("summary", "recording! rank",
            "Begin here: speed, parts of a decode token (launch gaps, host), memory bound, tensor "
            "cores and precision, findings' ids, what is not known. Also of results of ab, tune."),
    ToolRow("findings", "recording! rank cursor limit",
            "What to change, what that saves at most, its evidence, and a command to type."),
    ToolRow("kernels", "recording! rank component name conversions details cursor limit",
            "Kernels by time: component, engine (tensor-core or cuda-core), precision, weights, "
            "and the evidence of that."),
    ToolRow("layers", "recording! rank layer component cursor limit",
            "Time of each layer, or one layer's kernels beside layers like it."),
    ToolRow("details", "recording! rank part cursor limit",
            "Any part of a report: audit.rows (which kernels run which layers and why: silent "
            "fallbacks), modules, books (phases), shapes, copies, ranks, counters, ..."),
    ToolRow("query", "recording! sql! cursor limit",
            "One read-only SQL statement (DuckDB) over a recording's tables; SHOW TABLES lists "
            "them. Each page runs it anew: say ORDER BY."),
    ToolRow("compare", "a! b! part fail_on cursor limit",
            "Where b's difference from a comes from, each part with its 95 % interval."),
    ToolRow("why", "sources! gpu batch part cursor limit",
            "Why one checkpoint or recording decodes faster: bytes, bound, kernel, precision."),
    ToolRow("record", "command! out! minutes steps warmup_steps",
            "Run a vLLM command on this machine and record its steps.", starts=True),
    ToolRow("ab", "command! out! b! a minutes batch_sizes context seconds",
            "Measure a change in the live engine against the engine without it.", starts=True),
    ToolRow("tune",
            "command! out! minutes batch_sizes context recording allow_requantize allow_kv_dtype",
            "Search for the settings with which a vLLM command is fastest.", starts=True),
)  # fmt: skip
"""Those that start engines are neither listed nor run without --allow-run."""
