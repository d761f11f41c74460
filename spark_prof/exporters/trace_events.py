"""Tracks of one rank as events of Chrome's Trace Event Format, as libkineto writes it.

Steps, layers, components, streams, the host's threads and counters are a track each. Columns become
text in Arrow, not row by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from spark_prof.arrays import Int64s
from spark_prof.exporters.table_folder import Selection
from spark_prof.traces.bundle import ROWS, Bundle

_FIRST_FREE = 2_000_000_000
"""Above the thread ids that Linux gives; viewers take no number above 32 bits."""


@dataclass
class Tracks:
    """Gives out the thread ids of one process."""

    process: int
    name: str
    _names: dict[int, str] = field(default_factory=dict)

    def add(self, name: str, preferred: int | None = None) -> int:
        """A new track below those that are there; it gets the id that is wanted if that is free.

        Readers take a stream's number and a thread's id from here. Perfetto takes a 0 for the
        kernel's idle thread.
        """
        number = preferred
        if number is None or not 0 < number < _FIRST_FREE or number in self._names:
            number = _FIRST_FREE + len(self._names)
        self._names[number] = name
        return number

    def events(self) -> list[str]:
        """The metadata events that name the process and its tracks, as JSON."""
        events = [self._event("process_name", None, {"name": self.name})]
        for order, (number, name) in enumerate(self._names.items()):
            events.append(self._event("thread_name", number, {"name": name}))
            events.append(self._event("thread_sort_index", number, {"sort_index": order}))
        return events

    def _event(self, kind: str, track: int | None, values: dict[str, str | int]) -> str:
        event = {"ph": "M", "name": kind, "pid": self.process, "ts": 0, "args": values}
        return json.dumps(event if track is None else event | {"tid": track})


_TEXT = pa.large_string()
_NOTHING = pa.scalar("", _TEXT)
_TRIPLE = re.compile(r"\d{1,10}(,\d{1,10}){0,2}")


def events(*parts: str | pa.Array) -> memoryview:
    """The parts of each row joined, one row after another; a text is the same in every row."""
    scalars = [pa.scalar(p, _TEXT) if isinstance(p, str) else p for p in (*parts, "")]
    joined = pc.binary_join_element_wise(*scalars)
    _, offsets, content = joined.buffers()
    if content is None:
        return memoryview(b"")
    return memoryview(content)[: int(np.frombuffer(offsets, np.int64)[len(joined)])]


def numbers(values: pd.Series | Int64s, none: int | None = None) -> pa.Array:
    """Integers; `none` is the one that is written as null."""
    whole = pa.array(np.asarray(values, np.int64))
    text = whole.cast(_TEXT)
    return text if none is None else pc.if_else(pc.equal(whole, none), "null", text)


_TIMES = ("start_ns", "end_ns")


def integers(rows: pd.DataFrame, *names: str) -> tuple[Int64s, ...]:
    """These columns as numbers."""
    return tuple(rows[name].to_numpy(np.int64) for name in names)


def microseconds(nanoseconds: Int64s) -> pa.Array:
    """Times in us with three decimals, so that no nanosecond is lost; none may be negative."""
    whole, rest = np.divmod(nanoseconds, 1000)
    digits = pa.array([f".{number:03d}" for number in range(1000)], _TEXT)
    return pc.binary_join_element_wise(numbers(whole), digits.take(pa.array(rest)), _NOTHING)


def choices(codes: npt.NDArray[np.integer[Any]], json_texts: Sequence[str]) -> pa.Array:
    """The text that each code stands for, which is JSON already."""
    return pa.array(list(json_texts), _TEXT).take(pa.array(codes))


def texts(values: pd.Series, none: str | None = None) -> pa.Array:
    """Categories as JSON strings; `none` is the one that is written as null."""
    json_texts = [
        "null" if name == none and none is not None else json.dumps(str(name))
        for name in values.cat.categories
    ]
    return choices(values.cat.codes.to_numpy(), json_texts)


def triples(values: pd.Series) -> pa.Array:
    """Categories such as `2,1,1` as lists of numbers; anything else is an empty list."""
    json_lists = [
        f"[{','.join(str(int(part)) for part in name.split(','))}]"
        if _TRIPLE.fullmatch(name)
        else "[]"
        for name in map(str, values.cat.categories)
    ]
    return choices(values.cat.codes.to_numpy(), json_lists)


_LOOKED_AT = 64
"""Lanes that are tried for an interval, the newest; a damaged trace may need a million of them."""


def lanes(start: Int64s, end: Int64s, *, nested: bool = False) -> Int64s:
    """The lane of each interval, 0 for the first; an interval takes a low one that is free.

    Perfetto drops a complete event that begins inside another one of its track and ends after it:
    with programmatic dependent launch kernels of one stream do. Within a lane no two intervals do.

    Args:
        start: starts in ns, sorted; where `nested`, those that are equal by falling end.
        nested: an interval may lie inside another one of its lane, as a call inside a call.
    """
    lane_of = np.zeros(len(start), np.int64)
    if (start[1:] >= end[:-1]).all():
        return lane_of
    open_ends: list[list[int]] = []
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for lane in range(max(len(open_ends) - _LOOKED_AT, 0), len(open_ends)):
            stack = open_ends[lane]
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or (nested and finish <= stack[-1]):
                stack.append(finish)
                lane_of[index] = lane
                break
        else:
            lane_of[index] = len(open_ends)
            open_ends.append([finish])
    return lane_of


@dataclass(frozen=True)
class RankTrace:
    """One rank and the trace that it is written to."""

    rank: int
    # Those that are exported, in order of start, as `analyzers.labels.label_kernels` returns them.
    kernels: pd.DataFrame
    origin: int  # what every time is relative to, in ns
    tracks: Tracks
    out: BinaryIO

    def write(self, *parts: str | pa.Array) -> None:
        """Writes one event a row: the parts of its JSON object, without what closes it."""
        self.out.write(events(*parts, f',"pid":{self.tracks.process}}},\n'))

    def write_slices(
        self,
        category: str | pa.Array,
        name: pa.Array,
        track: str | pa.Array,
        times: Sequence[Int64s],  # where each begins and ends, ns
        *arguments: str | pa.Array,
    ) -> None:
        """Writes complete events with the parts of their arguments; none lasts less than 0."""
        start, end = times
        self.write(
            '{"ph":"X","cat":', category, ',"name":', name, ',"tid":', track,
            ',"ts":', self.since_origin(start),
            ',"dur":', microseconds(np.maximum(end - start, 0)), ',"args":', *arguments,
        )  # fmt: skip

    def since_origin(self, times: Int64s) -> pa.Array:
        """Times in us after the origin, as text."""
        return microseconds(times - self.origin)


def slices(rows: int) -> Iterator[slice]:
    """Stretches of at most `ROWS` rows, whose text memory can hold."""
    return (slice(first, first + ROWS) for first in range(0, rows, ROWS))


_COUNTS = (
    "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens", "context_tokens",
)  # fmt: skip

_COUNTERS = (
    ("dram_read_bytes", "DRAM read (GB/s)", None),
    ("dram_write_bytes", "DRAM write (GB/s)", None),
    ("tensor_active", "tensor pipe busy (%)", 100.0),
    ("sm_active", "SMs busy (%)", 100.0),
    ("warps_active", "occupancy (%)", 100.0),
)
"""Column of `counters`, what its track is called, and its factor; bytes become a rate."""


def write_steps(trace: RankTrace, windows: pd.DataFrame, track: int) -> None:
    """Writes steps, as rows of `analyzers.windows.timed_windows`."""
    names = [
        json.dumps(f"{phase} step {step}")
        for phase, step in zip(windows["phase"].astype(str), windows["step"].tolist(), strict=True)
    ]
    counts = [json.dumps(row) for row in windows[list(_COUNTS)].astype(int).to_dict("records")]
    times = integers(windows, "begin_ns", "finish_ns")
    name, args = pa.array(names, _TEXT), pa.array(counts, _TEXT)
    trace.write_slices('"step"', name, str(track), times, args)


def write_spans(trace: RankTrace, layers: int, components: int) -> None:
    """Writes when each layer and each component ran, from the times of its kernels.

    A span is what follows one another of one step and one layer or component. It ends with its
    last kernel, or where the next span begins.
    """
    # A hostile bundle may name any layer: only those that occur get a text.
    layer_numbers, layer = np.unique(trace.kernels["layer"].to_numpy(np.int64), return_inverse=True)
    _spans(
        trace,
        "layer",
        layers,
        layer,
        ["" if n < 0 else f"layer {n}" for n in layer_numbers.tolist()],
    )
    names = trace.kernels["component"].cat
    words = names.codes.to_numpy().astype(np.int64)
    _spans(trace, "component", components, words, list(names.categories))


def write_counters(trace: RankTrace, bundle: Bundle) -> None:
    """Writes what was sampled; where sampling pauses, the track falls to 0."""
    samples = bundle.frame("counters", trace.rank).sort_values("start_ns")
    if samples.empty:
        return
    start, end = integers(samples, *_TIMES)
    pause = np.append(start[1:] > end[:-1], True)
    for column, name, factor in _COUNTERS:
        value = samples[column].to_numpy(np.float64)
        value = value * factor if factor else value / np.maximum(end - start, 1)
        sampled = np.isfinite(value)
        at = np.concatenate([start[sampled], end[sampled & pause]])
        readings = np.concatenate([value[sampled], np.zeros(int((sampled & pause).sum()))])
        for part in slices(len(at)):
            number_texts = [f"{number:.4g}" for number in readings[part].tolist()]
            trace.write(
                f'{{"ph":"C","name":{json.dumps(name)},"args":{{"value":',
                pa.array(number_texts, _TEXT),
                '},"ts":', trace.since_origin(at[part]),
            )  # fmt: skip


def _spans(trace: RankTrace, kind: str, track: int, word: Int64s, words: Sequence[str]) -> None:
    """Writes one track; a kernel whose word is empty ends a span and begins none."""
    if not len(word):
        return
    start, end, step = integers(trace.kernels, "start_ns", "end_ns", "step")
    first = np.flatnonzero(np.append(True, (np.diff(word) != 0) | (np.diff(step) != 0)))
    begin = start[first]
    finish = np.maximum.reduceat(end, first)
    finish[:-1] = np.minimum(finish[:-1], begin[1:])
    named = np.array([bool(name) for name in words])[word[first]]
    kernels = np.diff(np.append(first, len(word)))
    first, begin, finish, kernels = (part[named] for part in (first, begin, finish, kernels))
    json_words = [json.dumps(name) for name in words]
    for part in slices(len(first)):
        trace.write_slices(
            f'"{kind}"', choices(word[first[part]], json_words), str(track),
            (begin[part], finish[part]), '{"kernels":', numbers(kernels[part]),
            ',"step":', numbers(step[first[part]], none=-1), "}",
        )  # fmt: skip


def write_calls(trace: RankTrace, bundle: Bundle, selection: Selection) -> pd.DataFrame:
    """Writes the launches and module calls that are exported: a launch goes with its kernel's step.

    Returns:
        The launches, with the `track` of each.
    """
    launches = bundle.frame("host", trace.rank)
    ranges = bundle.frame("ranges", trace.rank)
    if not selection.all_steps:
        launches = launches[launches["correlation"].isin(trace.kernels["correlation"])]
        ranges = ranges[selection.rows(ranges["step"])]
    modules = bundle.frame("modules", trace.rank, ["module", "path", "layer"])
    modules = modules.drop_duplicates("module").set_index("module")
    module_rows = modules.index.get_indexer(pd.Index(ranges["module"]))
    paths = pd.Index([*modules["path"].astype(str), "unknown module"])
    layers = np.append(modules["layer"].to_numpy(np.int64), -1)
    ranges = ranges.assign(path=pd.Categorical(paths.take(module_rows)), layer=layers[module_rows])
    thread, start, end = (
        np.concatenate([frame[name].to_numpy(np.int64) for frame in (launches, ranges)])
        for name in ("thread", "start_ns", "end_ns")
    )
    track = _tracks(
        trace, (thread,), start, end,
        lambda row: (f"thread {thread[row]}", int(thread[row])), nested=True,
    )  # fmt: skip
    launches = launches.assign(track=track[: len(launches)])
    ranges = ranges.assign(track=track[len(launches) :])
    for part in slices(len(launches)):
        rows = launches.iloc[part]
        names = rows["name"].cat
        kinds = [f'"{_category(str(name))}"' for name in names.categories]
        trace.write_slices(
            choices(names.codes.to_numpy(), kinds), texts(rows["name"]), numbers(rows["track"]),
            integers(rows, *_TIMES), '{"correlation":', numbers(rows["correlation"]), "}",
        )  # fmt: skip
    for part in slices(len(ranges)):
        rows = ranges.iloc[part]
        trace.write_slices(
            '"user_annotation"', texts(rows["path"]), numbers(rows["track"]),
            integers(rows, *_TIMES), '{"step":', numbers(rows["step"], none=-1),
            ',"layer":', numbers(rows["layer"], none=-1), "}",
        )  # fmt: skip
    return launches


def _tracks(
    trace: RankTrace,
    keys: tuple[Int64s, ...],
    start: Int64s,
    end: Int64s,
    named: Callable[[int], tuple[str, int]],
    *,
    nested: bool = False,
) -> Int64s:
    """The track of each interval: one for equal keys, and one more for each that overlaps there."""
    track_of = np.empty(len(start), np.int64)
    order = np.lexsort((-end if nested else end, start, *keys))
    changes = np.any([np.diff(key[order]) != 0 for key in keys], axis=0)
    for group in np.split(order, np.flatnonzero(changes) + 1) if len(order) else ():
        name, number = named(int(group[0]))
        lane = lanes(start[group], end[group], nested=nested)
        tracks = [trace.tracks.add(name, number)] + [
            trace.tracks.add(f"{name} (overlap {index})") for index in range(1, int(lane.max()) + 1)
        ]
        track_of[group] = np.array(tracks, np.int64)[lane]
    return track_of


def _category(api: str) -> str:
    """The word of libkineto for an API call: driver calls begin with cu and no d."""
    return "cuda_driver" if api.startswith("cu") and not api.startswith("cuda") else "cuda_runtime"


_CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset", "op": "cpu_op"}
"""libkineto's words for a row's kind; every other kind is a kernel."""


def stream_tracks(trace: RankTrace) -> Int64s:
    """The track of each kernel.

    A stream has one track, and one more for each kernel that would overlap another one there.
    """
    start, end, device, stream = integers(trace.kernels, *_TIMES, "device", "stream")
    several = len(np.unique(device)) > 1

    def named(row: int) -> tuple[str, int]:
        number = int(stream[row])
        if device[row] < 0:
            return f"operators of thread {number}", number
        return f"GPU {device[row]} stream {number}" if several else f"stream {number}", number

    return _tracks(trace, (stream, device), start, end, named)


_ARGUMENTS: dict[str, tuple[str, Callable[[pd.Series], pa.Array]]] = {
    "device": ("device", numbers),
    "stream": ("stream", numbers),
    "correlation": ("correlation", numbers),
    "graph node id": ("graph_node", numbers),
    "grid": ("grid", triples),
    "block": ("block", triples),
    "registers per thread": ("registers", numbers),
    "shared memory": ("shared_bytes", numbers),
    "bytes": ("bytes", numbers),
    "step": ("step", partial(numbers, none=-1)),
    "layer": ("layer", partial(numbers, none=-1)),
    "component": ("component", texts),
    "engine": ("engine", partial(texts, none="")),
    "precision": ("precision", partial(texts, none="")),
    "evidence": ("evidence", partial(texts, none="")),
    "conversion": ("conversion", partial(texts, none="")),
    "placed by": ("placed_by", partial(texts, none="")),
    "all of this kernel": ("page", texts),
}
"""What an event says of its kernel: the column, and how it is written."""


def write_kernels(trace: RankTrace, tracks: Int64s) -> None:
    """Writes the kernels, copies and memsets, with those arguments whose columns are there."""
    arguments_of = [(word, *how) for word, how in _ARGUMENTS.items() if how[0] in trace.kernels]
    for part in slices(len(trace.kernels)):
        rows = trace.kernels.iloc[part]
        kinds = rows["kind"].cat
        words = [f'"{_CATEGORIES.get(str(kind), "kernel")}"' for kind in kinds.categories]
        arguments: list[str | pa.Array] = []
        for word, column, writer in arguments_of:
            arguments += [f'{"," if arguments else ""}"{word}":', writer(rows[column])]
        trace.write_slices(
            choices(kinds.codes.to_numpy(), words), texts(rows["name"]), numbers(tracks[part]),
            integers(rows, *_TIMES), "{", *arguments, "}",
        )  # fmt: skip
