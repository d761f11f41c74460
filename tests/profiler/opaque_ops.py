"""What the bodies of vLLM's opaque ops call on a layer, read in its sources without importing them.

Such a body runs as Python even in a compiled model, or when a breakable CUDA graph is replayed; it
gets its layer by name. `python -m tests.profiler.opaque_ops 0.33.0/vllm...` prints, of folders of
unzipped wheels by version, what no row of `CALLS` marks and which rows no body calls any more.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from spark_prof.profiler.vllm_names import CALLS, InternalCall

_BY_NAME = ("no_compile_layers", "get_attention_context", "layer_name", "get_layer_from_name")
_ELSEWHERE = re.compile(r"(?:^|/)(?:amd|xpu|cpu)(?:/|$)|rocm|_xpu_ops|_aiter|cpu_attention")
"""Files of other hardware than NVIDIA's."""

_LAYER = re.compile(r"(?:\w*layer|self|rope_norm|mixer)(?:\(\w+\))?$")

NO_RANGE = {
    "prepare_kv_cache_update": "copies between host and device, before the cache is written",
    "hisparse_cache.finish_kv_update": "waits for those copies",
    "indexer": "a module, which is marked by itself",
    "conv1d.weight.size": "no call of work",
    "conv1d.weight.view": "no call of work",
    "prefix": "no call of work",
    "kv_cache.numel": "no call of work",
    "assert_alignment": "no call of work",
    "_forward_core_rocm": "AMD's",
    "ple_embedding.compute_ngram_ids": "0.29's Qwen4Exp alone; its table of embeddings is a weight",
}
"""Calls on a layer that need no range, and why."""


Bodies = dict[str, set[str]]


def body_calls(vllm: Path) -> Bodies:
    """For each opaque op what its body calls on a layer, such as `impl.forward`."""
    found: dict[str, set[str]] = {}
    for path in sorted(vllm.rglob("*.py")):
        if _ELSEWHERE.search(path.relative_to(vllm).as_posix()):
            continue
        source = path.read_text(encoding="utf-8")
        if "direct_register_custom_op" not in source:
            continue
        tree = ast.parse(source)
        bodies = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for name, body in _registered(tree).items():
            text = ast.get_source_segment(source, bodies[body]) if body in bodies else None
            if text is not None and any(word in text for word in _BY_NAME):
                found.setdefault(name, set()).update(_on_a_layer(bodies[body]))
    return found


def unmarked(bodies: Bodies) -> dict[str, set[str]]:
    """The calls of those that neither a row of `CALLS` with that op nor `NO_RANGE` knows, by op."""
    rows = {(op, called(call)) for call in CALLS for op in call.ops.split()}
    found = {
        op: {name for name in calls if (op, name) not in rows and name not in NO_RANGE}
        for op, calls in bodies.items()
    }
    return {op: calls for op, calls in found.items() if calls}


def called(call: InternalCall) -> str:
    """How a body writes the call behind its layer: `impl.forward`, `_forward_core`."""
    return f"{call.holder}.{call.method}".lstrip(".")


def gone(bodies: Bodies, version: tuple[int, int]) -> list[str]:
    """The rows of `CALLS` for that version which none of its bodies calls."""
    return [
        f"{op}: {called(call)}"
        for call in CALLS
        if call.since <= version <= call.until
        for op in call.ops.split()
        if op in bodies and called(call) not in bodies[op]
    ]


def _registered(tree: ast.Module) -> dict[str, str]:
    """The name of each op that is registered, with the function that is its body."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            "direct_register_custom_op"
        ):
            given = {word.arg: word.value for word in node.keywords}
            given |= dict(zip(("op_name", "op_func"), node.args, strict=False))
            name, body = given.get("op_name"), given.get("op_func")
            if isinstance(name, ast.Constant) and isinstance(body, ast.Name):
                found[str(name.value)] = body.id
    return found


def _on_a_layer(body: ast.FunctionDef) -> set[str]:
    calls = set()
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder, *rest = ast.unparse(node.func).split(".")
            if _LAYER.match(holder):
                calls.add(".".join(rest))
    return calls


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        minor = int(folder.resolve().parent.name.split(".")[1])
        bodies = body_calls(folder)
        print(folder, "unmarked:", unmarked(bodies), "gone:", gone(bodies, (0, minor)))
