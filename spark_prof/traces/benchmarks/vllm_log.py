"""The periodic lines in vLLM's log, which say what the engine did in the seconds before.

`Engine 000: Avg prompt throughput: ... Avg generation throughput: ...` from v1/metrics/loggers.py,
`SpecDecoding metrics: Mean acceptance length: ...` from v1/spec_decode/metrics.py (0.8 to 0.33).
The numbers of running and waiting requests are those of the moment; the line has no year and no
time zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import fmean, median

from spark_prof.traces.benchmarks.document import figure
from spark_prof.traces.benchmarks.result import BenchmarkRun, Latency

_LINE = re.compile(
    r"(?:Engine (?P<engine>\d+): )?Avg prompt throughput: (?P<prompt>\d+(?:\.\d+)?) tokens/s, "
    r"Avg generation throughput: (?P<generated>\d+(?:\.\d+)?) tokens/s, "
    r"Running: (?P<running>\d+) reqs,.*?Waiting: (?P<waiting>\d+) reqs"
)
_ACCEPTED = re.compile(r"Mean acceptance length: (\d+(?:\.\d+)?)")
_NOTE = (
    "From vLLM's own log, averages over some seconds each: the engine's view, not a client's. "
    "Running is the count at the end of each."
)
_DERIVED = "running requests over tokens per second, of lines without prompt tokens"


@dataclass(frozen=True)
class _Interval:
    engine: str
    prompt: float
    generated: float
    running: int


def read_vllm_log(text: str) -> list[BenchmarkRun]:
    """One run for each engine that a text has lines of; idle lines are left out."""
    engines: dict[str, list[_Interval]] = {}
    accepted = []
    for line in text.splitlines():
        if found := _LINE.search(line):
            interval = _Interval(
                found["engine"] or "",
                float(found["prompt"]),
                float(found["generated"]),
                int(found["running"][:9]),
            )
            if interval.prompt or interval.generated:
                engines.setdefault(interval.engine, []).append(interval)
        elif found := _ACCEPTED.search(line):
            accepted.append(float(found[1]))
    length = figure(fmean(accepted)) if accepted else None
    return [_run(engine, intervals, length) for engine, intervals in engines.items()]


def _run(engine: str, intervals: list[_Interval], accepted: float | None) -> BenchmarkRun:
    steady = [i for i in intervals if not i.prompt and i.generated and i.running]
    each = [1e6 * i.running / i.generated for i in steady]
    lines = f"{len(intervals)} {'line' if len(intervals) == 1 else 'lines'} of the log"
    return BenchmarkRun(
        tool="vLLM's log",
        label=f"engine {engine[-9:]}, {lines}" if engine else lines,
        mean_concurrency=fmean(i.running for i in intervals) or None,
        output_throughput=figure(fmean(i.generated for i in intervals)),
        tpot=Latency(median=figure(median(each)), derived=_DERIVED) if each else Latency(),
        acceptance_length=accepted,
        notes=(_NOTE,),
    )
