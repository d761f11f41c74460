"""Turns the columns of a Kineto trace into frames and facts, joins them, and says what they lack.

Work on the GPU and the API call that launched it share a correlation number. Modules show as Python
frames called `nn.Module: ...` where the profiler ran with stacks, and as annotations
(`record_function`) where somebody set them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s
from spark_prof.rules.gpus import amd_gpu
from spark_prof.rules.operator_ranges import ranges_among
from spark_prof.traces.rank_files import rank_named
from spark_prof.traces.readers.kineto_collect import DRIVER, GPU_KINDS, Collected
from spark_prof.traces.readers.kineto_events import GPU_NUMBERS, EventColumns, plain_text
from spark_prof.traces.scopes import NO_SCOPE, ModuleRanges, Scopes


def module_ranges(kineto: Collected, is_module: Callable[[str], bool]) -> ModuleRanges:
    """The calls of modules among frames, annotations and operators, times after the trace's base.

    vLLM's attention and its mixture of experts are operators, which compiled models have too.
    """
    chosen = [(kineto.frames, np.ones(len(kineto.frames), bool))]
    for events in (kineto.annotations, kineto.operators):
        distinct, places = np.unique(events.column("name"), return_inverse=True)
        named = [is_module(kineto.texts[number]) for number in distinct.tolist()]
        chosen.append((events, np.array([*named, False])[places]))
    columns = [
        np.concatenate([events.column(column)[rows] for events, rows in chosen])
        for column in ("start_ns", "end_ns", "thread", "name")
    ]
    order = np.lexsort((-columns[1], columns[0], columns[2]))
    return ModuleRanges(*(column[order] for column in columns))


def marked_nodes(
    kineto: Collected, scopes: Scopes, is_module: Callable[[str], bool]
) -> pd.DataFrame:
    """The nodes of CUDA graphs that a program marked with the name of a module, as Process.nodes.

    PyTorch since 2.15 writes what `torch.cuda.graph_annotations.mark_kernels` said of a node
    beside each kernel of it.
    """
    rows = pd.DataFrame(
        {"node": kineto.gpu.column("graph_node"), "note": kineto.gpu.column("note")}
    )
    rows = rows[(rows["node"] != 0) & (rows["note"] >= 0)].drop_duplicates("node", keep="last")
    named = {
        n: kineto.texts[n] for n in rows["note"].unique().tolist() if is_module(kineto.texts[n])
    }
    rows = rows[rows["note"].isin(named)]
    scope = [scopes.child(NO_SCOPE, named[note]) for note in rows["note"].tolist()]
    node = rows["node"].to_numpy(np.int64)
    return pd.DataFrame(
        {"node": node, "original": node, "graph": node >> 32, "created_ns": 0, "scope": scope},
        dtype=np.int64,
    )


_WORDS = ("launch", "memcpy", "memset")
"""Calls with these words in their names start work on the GPU."""


@dataclass(frozen=True)
class LaunchCalls:
    """The launches among the API calls of a trace."""

    rows: Int64s
    of_gpu: Int64s  # the API call that launched each row of the GPU, -1 for none
    idle: int  # how many launches of kernels have none
    shared: int  # how many correlation numbers belong to several launches


def find_launches(kineto: Collected) -> LaunchCalls:
    """Joins the rows of the GPU with their API calls.

    A driver call inside a runtime call with the same number is no launch of its own. Where a
    number was used again, work belongs to the latest call before it.
    """
    numbers = kineto.api.column("correlation")
    started = np.isin(numbers, kineto.gpu.column("correlation")) & (numbers >= 0)
    words = [any(word in name.lower() for word in _WORDS) for name in kineto.texts]
    kernels = np.array(["launch" in name.lower() for name in kineto.texts], bool)
    api_name = kineto.api.column("name")
    chosen = started | np.array(words, bool)[api_name]
    driver = kineto.api.column("category") == kineto.names.get(DRIVER, -1)
    inner = driver & np.isin(numbers, numbers[~driver & chosen]) & (numbers >= 0)
    rows = np.flatnonzero(chosen & ~inner)
    numbered = rows[numbers[rows] >= 0]
    position = _latest_before(
        numbers[numbered],
        kineto.api.column("start_ns")[numbered],
        kineto.gpu.column("correlation"),
        kineto.gpu.column("start_ns"),
    )
    of_gpu = np.where(position >= 0, np.append(numbered, -1)[position], -1)
    counts = np.unique(numbers[numbered], return_counts=True)[1]
    idle = int((kernels[api_name] & ~started)[rows].sum())
    return LaunchCalls(rows, of_gpu.astype(np.int64), idle, int((counts > 1).sum()))


def operators_of(kineto: Collected) -> Int64s:
    """The operator with the same External id as each row of the GPU, -1 for none."""
    ids, external = kineto.operators.column("external"), kineto.gpu.column("external")
    rows = pd.Series(np.arange(len(ids)), ids)
    first = rows[~rows.index.duplicated()].reindex(external, fill_value=-1)
    return np.where(external >= 0, first, -1).astype(np.int64)


def _latest_before(numbers: Int64s, times: Int64s, targets: Int64s, moments: Int64s) -> Int64s:
    """For each wanted number its last row up to that moment, else its first; -1 for none."""
    rows = pd.DataFrame({"number": numbers, "time": times, "row": np.arange(len(times))})
    rows = rows.sort_values("time", kind="stable")
    queries = pd.DataFrame({"number": targets, "time": moments}).sort_values("time", kind="stable")
    latest = pd.merge_asof(queries, rows, on="time", by="number")["row"].set_axis(queries.index)
    first = rows.drop_duplicates("number").set_index("number")["row"]
    positions = latest.fillna(queries["number"].map(first)).fillna(-1).sort_index()
    return positions.to_numpy().astype(np.int64)


def stretches(thread: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Splits nested operators into stretches; one that is shorter than a tick still has one.

    Returns:
        Operator, number of the stretch within it, start and end of each stretch, a row each.
    """
    order = np.lexsort((-end, start, thread))
    borders = np.flatnonzero(np.diff(thread[order])) + 1
    rows = [
        row
        for mine in np.split(order, borders)
        for row in _of_one_thread(mine.tolist(), start[mine].tolist(), end[mine].tolist())
    ]
    return np.array(rows, np.int64).reshape(-1, 4).T


def _of_one_thread(
    operators: list[int], starts: list[int], ends: list[int]
) -> Iterator[tuple[int, int, int, int]]:
    """The stretches of one thread's operators; one that ends after its caller goes on alone."""
    stack: list[list[int]] = []  # operator, end, stretches so far
    now = starts[0] if starts else 0
    at_last = (-1, max(ends, default=0), 0)
    for operator, start, end in (*zip(operators, starts, ends, strict=True), at_last):
        while stack and stack[-1][1] <= start:
            ended, its_end, parts = stack.pop()
            if its_end > now or not parts:
                yield ended, parts, now, max(now, its_end)
                now = max(now, its_end)
        if stack and start > now:
            caller = stack[-1]
            yield caller[0], caller[2], now, start
            caller[2] += 1
        now = max(now, start)
        stack.append([operator, end, 0])


def gpu_frame(kineto: Collected) -> pd.DataFrame:
    """What ran on the GPU, in the order of the file."""
    rows = kineto.gpu
    shapes = [",".join(map(str, shape[:3])) for shape in rows.shapes]
    kinds = [GPU_KINDS.get(name, "") for name in kineto.texts]
    return pd.DataFrame(
        {
            "name": _texts(rows.column("name"), kineto.texts),
            "kind": _texts(rows.column("category"), kinds),
            **_times(rows, kineto.base_ns),
            "grid": _texts(rows.column("grid"), shapes),
            "block": _texts(rows.column("block"), shapes),
            **{name: rows.column(name) for name in GPU_NUMBERS},
            "cubin": _texts(np.zeros(len(rows), np.int64), [""]),
        }
    )


def launch_frame(kineto: Collected, rows: Int64s) -> pd.DataFrame:
    """The API calls with these indexes."""
    times = _times(kineto.api, kineto.base_ns)
    return pd.DataFrame(
        {
            "name": _texts(kineto.api.column("name")[rows], kineto.texts),
            "start_ns": times["start_ns"][rows],
            "end_ns": times["end_ns"][rows],
            "thread": thread_numbers(kineto)[kineto.api.column("thread")[rows]],
            "correlation": kineto.api.column("correlation")[rows],
        }
    )


_STEP_MARKS = re.compile(r"ProfilerStep|Optimizer\.step#|(?i:step|iteration|iter)[\s_:#=]*\d+$")


def marker_frame(kineto: Collected) -> pd.DataFrame:
    """The annotations; traces of before PyTorch 2.0 have those that tell steps among operators."""
    marks = np.array([_STEP_MARKS.match(name) is not None for name in kineto.texts] + [False])
    named = marks[kineto.operators.column("name")]
    chosen = ((kineto.annotations, slice(None)), (kineto.operators, named))
    name, thread = (
        np.concatenate([rows.column(column)[which] for rows, which in chosen])
        for column in ("name", "thread")
    )
    times = [(_times(rows, kineto.base_ns), which) for rows, which in chosen]
    return pd.DataFrame(
        {
            "name": _texts(name, kineto.texts),
            "domain": _texts(np.zeros(len(name), np.int64), [""]),
            **{
                column: np.concatenate([columns[column][which] for columns, which in times])
                for column in ("start_ns", "end_ns")
            },
            "thread": thread_numbers(kineto)[thread],
        }
    )


def overhead_frame(kineto: Collected) -> pd.DataFrame:
    """What the profiler itself cost."""
    names = _texts(kineto.overhead.column("name"), kineto.texts)
    return pd.DataFrame({"name": names, **_times(kineto.overhead, kineto.base_ns)})


def operator_frame(kineto: Collected, all_of_them: bool) -> pd.DataFrame:
    """One row per stretch in which an operator itself ran; none unless `all_of_them` is set."""
    rows = kineto.operators
    times = _times(rows, kineto.base_ns)
    threads = thread_numbers(kineto)[rows.column("thread")]
    ranges = ranges_among(kineto.texts)
    real = np.array([text not in ranges for text in kineto.texts], bool)
    chosen = np.flatnonzero(real[rows.column("name")] & all_of_them)
    operator, part, start, end = stretches(
        threads[chosen], times["start_ns"][chosen], times["end_ns"][chosen]
    )
    return pd.DataFrame(
        {
            "name": _texts(rows.column("name")[chosen[operator]], kineto.texts),
            "start_ns": start,
            "end_ns": end,
            "part": part,
            "thread": threads[chosen[operator]],
        }
    )


def thread_numbers(kineto: Collected) -> Int64s:
    """The operating system's number of each thread, -1 where the trace has none."""
    return np.array([_whole(thread) for _, thread in kineto.threads], np.int64)


def _whole(thread: int | str) -> int:
    if isinstance(thread, str):
        thread = int(thread) if thread.isascii() and thread.isdigit() and len(thread) < 20 else -1
    return thread if -(1 << 63) <= thread < 1 << 63 else -1


def _times(rows: EventColumns, base_ns: int) -> dict[str, Int64s]:
    return {name: rows.column(name) + base_ns for name in ("start_ns", "end_ns")}


def _texts(numbers: Int64s, texts: list[str]) -> pd.Categorical[str]:
    """The texts that the numbers stand for, as categories; equal texts are one."""
    used, places = np.unique(numbers, return_inverse=True)
    distinct = dict.fromkeys(texts[number] for number in used.tolist())
    order = {text: place for place, text in enumerate(distinct)}
    codes = np.array([order[texts[number]] for number in used.tolist()], np.int32)
    return pd.Categorical.from_codes(codes[places], pd.Index(list(distinct), dtype="str"))


ACCELERATORS = (
    ("mtia_", "mtia_ccp_events", "an MTIA"),
    ("hpu_", "hpu_op", "an HPU (Intel Gaudi)"),
    ("xpu_", "xpu_runtime", "an XPU (Intel GPU)"),
    ("async_npu", "async_npu", "an NPU (Huawei Ascend)"),
    ("privateuse1_", "privateuse1_runtime", "an accelerator with a PyTorch backend of its own"),
)
"""Categories of events that tell an accelerator whose work is not read, each with an example;
those of libkineto's ActivityType.cpp, and those of torch_npu."""

RANGE_PROFILER = "cuda_profiler_range"  # category of the ranges over which counters were read

_TRAINS = ("autograd::engine::evaluate_function", "Optimizer.step#")
_AMD = ("AMD", "gfx", "Radeon", "Instinct")
_AMD_FIGURES = ("computeMajor", "computeMinor", "numSms", "totalGlobalMem")
_NVIDIA = ("NVIDIA", "Tesla", "GeForce", "Quadro")


def rank_of(kineto: Collected, file_name: str) -> int | None:
    """The rank that the trace itself tells, else the one in the file's name, else None."""
    rank = _object(kineto.around.get("distributedInfo")).get("rank")
    if type(rank) is int and rank >= 0:
        return rank
    return rank_named(file_name)


def replica_of(file_name: str) -> dict[str, int]:
    """The fact `replica`: the data-parallel number in the file's name, if it is not the first."""
    match = re.search(r"(?i)(?<![a-z])dp[-_]?0*([1-9]\d{0,4})(?!\d)", file_name)
    return {"replica": int(match[1])} if match else {}


def accelerator_of(kineto: Collected) -> str:
    """The accelerator that the trace is of where it is no GPU of NVIDIA or AMD, else empty."""
    categories = sorted(kineto.categories)
    return next(
        (name for key, _, name in ACCELERATORS if any(c.startswith(key) for c in categories)), ""
    )


def is_amd(kineto: Collected) -> bool:
    """Whether it ran on an AMD GPU: its API is HIP's, or the device says so."""
    calls = np.unique(kineto.api.column("name")).tolist()
    return any(kineto.texts[number].startswith("hip") for number in calls) or _name(
        _device(kineto)
    ).startswith(_AMD)


def process_facts(kineto: Collected, launches: LaunchCalls) -> dict[str, Any]:
    """The facts of the process, with the keys of a recording's facts; what is unknown is left out.

    `training` is set where gradients are computed; `gpu.vendor` is AMD or NVIDIA; `cuda` is the
    version of the runtime, `cuda_driver` what the driver supports.
    """
    device = _device(kineto)
    amd = is_amd(kineto)
    gpu: dict[str, Any] = {}
    if name := _name(device):
        gpu["name"] = name
    major, minor = device.get("computeMajor"), device.get("computeMinor")
    if not amd and isinstance(major, int) and isinstance(minor, int):
        gpu["compute_capability"] = f"{major}.{minor}"
    for key, field in (("numSms", "multiprocessors"), ("totalGlobalMem", "memory_bytes")):
        if isinstance(device.get(key), int):
            gpu[field] = device[key]
    calls = [kineto.texts[number] for number in np.unique(kineto.api.column("name")).tolist()]
    if amd:
        gpu["vendor"] = "AMD"
        properties = [device.get(key) for key in _AMD_FIGURES]
        figures = [figure for figure in properties if isinstance(figure, int)]
        if "name" not in gpu and len(figures) == len(properties) and (name := amd_gpu(*figures)):
            gpu["name"] = name
    elif gpu.get("name", "").startswith(_NVIDIA) or any(c.startswith("cu") for c in calls):
        gpu["vendor"] = "NVIDIA"
    facts: dict[str, Any] = {"gpu": gpu} if gpu else {}
    for key, field in (("cuda_runtime_version", "cuda"), ("cuda_driver_version", "cuda_driver")):
        version = kineto.around.get(key)
        if isinstance(version, int) and version > 0:
            facts[field] = f"{version // 1000}.{version % 1000 // 10}"
    world = _object(kineto.around.get("distributedInfo")).get("world_size")
    if isinstance(world, int) and world > 0:
        facts["world_size"] = world
    if any(text.startswith(_TRAINS) for text in kineto.texts):
        facts["training"] = True
    pid = _process(kineto, launches)
    if pid is not None:
        facts["pid"] = pid
    return facts


def _device(kineto: Collected) -> dict[str, Any]:
    """The properties of the GPU that did most."""
    listed = kineto.around.get("deviceProperties")
    devices = (
        [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    )
    used, counts = np.unique(kineto.gpu.column("device"), return_counts=True)
    busiest = int(used[np.argmax(counts)]) if len(used) else 0
    return next((item for item in devices if item.get("id") == busiest), {})


def _name(device: dict[str, Any]) -> str:
    name = device.get("name")
    return plain_text(name) if isinstance(name, str) else ""


def _process(kineto: Collected, launches: LaunchCalls) -> int | None:
    """The process that launched most, or ran most operators."""
    threads = kineto.api.column("thread")[launches.rows]
    if not len(threads):
        threads = kineto.operators.column("thread")
    if not len(threads):
        return None
    used, counts = np.unique(threads, return_counts=True)
    pid = list(kineto.threads)[int(used[np.argmax(counts)])][0]
    return pid if isinstance(pid, int) and pid >= 0 else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def why_refused(kineto: Collected, launches: LaunchCalls, name: str) -> str:
    """Why a trace without work on a GPU is of no use, empty where it may be of a CPU."""
    accelerator = accelerator_of(kineto)
    ranged = kineto.categories[RANGE_PROFILER]
    if kineto.categories.keys() == {""} and len(kineto.categories):
        return (f"{name} is a Chrome trace whose events have no category: it was not written by "
                "PyTorch's profiler, and those of JAX or TensorFlow are not read")  # fmt: skip
    if len(kineto.gpu) or not (accelerator or launches.idle or ranged):
        return ""
    if ranged:
        return (f"{name} was recorded with CUPTI's range profiler ({ranged:,} {RANGE_PROFILER} "
                "events), which counts over ranges and times no kernel: record again without "
                "profiler_metrics in the profiler's experimental_config")  # fmt: skip
    if accelerator:
        return f"{name} is of {accelerator}; only NVIDIA and AMD GPUs, and CPUs, can be analyzed"
    return (f"{name} has no device activity, though it launched kernels: record again with "
            "ProfilerActivity.CUDA among the profiler's activities")  # fmt: skip


def what_is_lost(
    kineto: Collected, gpu: pd.DataFrame, launches: LaunchCalls, by_operator: int, marked: set[int]
) -> list[str]:
    """One line for each thing that the trace lacks; `marked` nodes of graphs tell their modules."""
    orphans = int((launches.of_gpu < 0).sum())
    names = [name.lower() for name in kineto.texts]
    graph = np.array(["graphlaunch" in name for name in names], bool)
    kinds = np.array([GPU_KINDS.get(name, "") for name in kineto.texts])
    api_name = np.append(kineto.api.column("name"), -1)[launches.of_gpu]
    in_graphs = np.append(graph, False)[api_name] & (launches.of_gpu >= 0)
    in_graphs &= ~np.isin(kineto.gpu.column("graph_node"), list(marked))
    category = kineto.gpu.column("category")
    # A graph holds copies and memsets, too.
    replayed = int((in_graphs & (kinds[category] == "kernel")).sum())
    unnumbered = int((kineto.gpu.column("correlation") < 0).sum())
    several = gpu["device"].nunique()
    unusable = kineto.dropped - kineto.gpu.dropped  # those of the GPU count among its records
    lines = (
        (unusable, "events have no usable name, time or duration and are left out"),
        (kineto.unmatched, "begin and end events have no counterpart and are left out"),
        (unnumbered, "kernels and copies have no correlation number"),
        (orphans, f"kernels and copies have no launch in the trace; {by_operator} of them have "
                  "their module from the operator with the same External id"),
        (launches.idle, "launches of kernels have no kernel in the trace"),
        (launches.shared, "correlation numbers belong to several launches: work is taken to be of "
                          "the latest before it"),
        (replayed, "kernels ran in CUDA graphs: the replay of a graph carries no layer"),
        (several if several > 1 else 0, "GPUs were used by this process"),
        (kineto.categories[RANGE_PROFILER],
         f"{RANGE_PROFILER} events: CUPTI's range profiler ran, which lets kernels run one by one"),
    )  # fmt: skip
    lost = [f"{count} {text}" for count, text in lines if count]
    if kineto.repaired:
        lost.append(
            "the file is no strict JSON (NaN, control characters or bytes that are no text)"
        )
    if is_amd(kineto):
        lost.append("AMD GPU: kernels are labelled by name only, no tensor-core evidence")
    if accelerator := accelerator_of(kineto):
        lost.append(f"recorded on {accelerator}: kernels are labelled by name only")
    if gpu.empty:
        stand = (
            "operators of the CPU stand for them" if len(kineto.operators) else "nor an operator"
        )
        lost.append(f"the trace has no device activity, {stand}")
    return lost
