"""Reads the JSON that PyTorch's profiler (Kineto) writes, of NVIDIA and AMD GPUs and of CPUs.

Format: libkineto's output_json.cpp. `ts` and `dur` are microseconds with three decimals, relative
to `baseTimeNanoseconds`; a kernel and the API call that launched it share `args.correlation`; an
operator and what it launched share `External id`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.foreign import Foreign, ForeignProcess, NamesModule, Trace, Window
from spark_prof.traces.readers.kineto_collect import Collected, collect, collect_all
from spark_prof.traces.readers.kineto_frames import (
    LaunchCalls,
    find_launches,
    gpu_frame,
    launch_frame,
    marked_nodes,
    marker_frame,
    module_ranges,
    operator_frame,
    operators_of,
    overhead_frame,
    process_facts,
    rank_of,
    replica_of,
    thread_numbers,
    what_is_lost,
    why_refused,
)
from spark_prof.traces.scopes import NO_SCOPE, ModuleRanges, ScopeWalk


def read_kineto(*paths: Path) -> Trace:
    """Reads what a recording's torch backend wrote: kernels, launches and operators.

    Pieces of one process that follow each other are read as one.
    """
    kineto = collect_all(paths, lambda _: False)
    if kineto.repaired or kineto.bare:
        raise CommandError(f"{paths[0]} is not a whole Kineto trace (it is no strict JSON object)")
    launches = find_launches(kineto)
    return Trace(
        gpu=gpu_frame(kineto),
        launches=launch_frame(kineto, launches.rows),
        operators=operator_frame(kineto, True),
    )


def kineto_trace(path: Path, names_module: NamesModule) -> Foreign:
    """Reads a trace of vLLM, SGLang or any PyTorch program: each process as one window."""
    whole = collect(path, names_module)
    ranks = by_rank(whole)
    processes, windows, lost = [], [], [MERGED] if len(ranks) > 1 else []
    refusal = why_refused(whole, find_launches(whole), path.name)
    for number, (rank, kineto) in enumerate(ranks or [(rank_of(whole, path.name), whole)]):
        launches = find_launches(kineto)
        process = ForeignProcess(rank, process_facts(kineto, launches) | replica_of(path.name))
        calls = module_ranges(kineto, names_module)
        window, by_operator = _window(kineto, launches, calls, process)
        nodes = marked_nodes(kineto, process.scopes, names_module)
        processes.append(replace(process, nodes=nodes))
        windows.append(replace(window, process=number))
        lost += what_is_lost(kineto, window.trace.gpu, launches, by_operator, set(nodes["node"]))
    return Foreign("kineto", processes, iter(windows), lost, refusal)


def _window(
    kineto: Collected, launches: LaunchCalls, calls: ModuleRanges, process: ForeignProcess
) -> tuple[Window, int]:
    """The whole trace as one window, and how many rows have their scope from an operator."""
    threads = thread_numbers(kineto)
    launched = launches.of_gpu >= 0
    start = np.where(launched, _values_at(kineto.api.column("start_ns"), launches.of_gpu), -1)
    thread = np.where(launched, _values_at(kineto.api.column("thread"), launches.of_gpu), -1)
    operator = np.where(launched, -1, operators_of(kineto))
    has_operator = operator >= 0
    moment = np.where(
        has_operator, _values_at(kineto.operators.column("start_ns"), operator), start
    )
    caller = np.where(has_operator, _values_at(kineto.operators.column("thread"), operator), thread)
    walk = ScopeWalk(process.scopes, kineto.texts)
    called = walk.advance(calls, 0)
    scope = np.where(launched | has_operator, walk.at(caller, moment), NO_SCOPE)
    order = np.argsort(kineto.gpu.column("start_ns"), kind="stable")
    base = kineto.base_ns
    trace = Trace(
        gpu=gpu_frame(kineto).iloc[order].reset_index(drop=True),
        launches=launch_frame(kineto, launches.rows),
        operators=operator_frame(kineto, not len(kineto.gpu)),
        overhead=overhead_frame(kineto),
        markers=marker_frame(kineto),
        unreadable=kineto.gpu.dropped,
    )
    window = Window(
        process=0,
        trace=trace,
        launch_ns=np.where(launched, start + base, -1)[order],
        thread=np.where(caller >= 0, _values_at(threads, caller), -1)[order],
        scope=scope[order].astype(np.int64),
        calls=ModuleRanges(
            calls.start + base, calls.end + base, _values_at(threads, calls.thread), calls.name
        ).calls(called),
    )
    return window, int((scope[~launched] != NO_SCOPE).sum())


def _values_at(values: Int64s, index: Int64s) -> Int64s:
    """The values at these places, anything where the place is -1."""
    return np.append(values, -1)[index]


MERGED = "several ranks were merged into it and one base time kept: their clocks may disagree"
"""What such a trace lacks."""

_LABEL = re.compile(
    r"\[((?:TP|DP|PP|EP)\d{1,5}(?:-(?:TP|DP|PP|EP)\d{1,5})*)\] |(?i:\[?rank)[ _:-]?(\d{1,5})(?!\d)"
)


def by_rank(kineto: Collected) -> list[tuple[int | None, Collected]]:
    """Each rank with its events, in order; nothing for a trace of one process.

    The rank is the number behind TP where that tells the ranks apart, else they are counted. It
    stands in the process's number, as in merged traces of SGLang, else in its name, as in what
    spark-prof exports.
    """
    labels = [_label(pid) for pid, _ in kineto.threads]
    if not any(labels):
        labels = [_label(kineto.processes.get(pid, "")) for pid, _ in kineto.threads]
        labels_on_gpu = {
            labels[thread] for thread in np.unique(kineto.gpu.column("thread")).tolist()
        }
        labels = [] if "" in labels_on_gpu else labels
    distinct = sorted(set(filter(None, labels)), key=_numbers)
    if not distinct:
        return []
    tensor = [dict(_numbers(label)).get("TP", -1) for label in distinct]
    by_tensor_rank = min(tensor) >= 0 and len(set(tensor)) == len(tensor)
    of_thread = np.array([distinct.index(label) if label else -1 for label in labels], np.int64)
    return [
        (tensor[number] if by_tensor_rank else number, kineto.of_threads(of_thread == number))
        for number in range(len(distinct))
    ]


def _label(pid: object) -> str:
    match = _LABEL.match(pid) if isinstance(pid, str) else None
    return match[1] or f"TP{match[2]}" if match else ""


def _numbers(label: str) -> list[tuple[str, int]]:
    """The parts of a label in the order that sorts ranks."""
    parts = [(part[:2], int(part[2:])) for part in label.split("-")]
    return sorted(parts, key=lambda part: ("DP", "EP", "PP", "TP").index(part[0]))
