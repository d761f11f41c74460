"""Adds the flushed files of a recording to the tables of its bundle.

Every whole file is kept, also where the files that belong to it were not flushed any more: a
piece's kernels without its steps, its steps without its kernels. A kernel belongs to what was open
when it was *launched*, on the thread that ran the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.arrays import Int64s, Rows
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import TableFiles
from spark_prof.traces.chunk_files import (
    json_object,
    load_array,
    load_tensors,
    log_lines,
    piece_numbers,
)
from spark_prof.traces.chunks import (
    ARGUMENT_DTYPE,
    CAPTURE_DTYPE,
    COUNTER_DTYPE,
    DRAFT_DTYPE,
    ENGINE_DTYPE,
    EVENT_DTYPE,
    HOST,
    NODE_DTYPE,
    REQUEST_DTYPE,
    REQUEST_STEP_DTYPE,
    STEP_DTYPE,
    activity_name,
    array_name,
    capture_name,
    cubins_folder,
    kineto_name,
    names_name,
    tensors_name,
)
from spark_prof.traces.cuda_tools import find_tool
from spark_prof.traces.foreign import Trace, operator_rows
from spark_prof.traces.host_stacks import host_tables
from spark_prof.traces.host_timeline import (
    FINISH,
    MODEL_PATH,
    PREPARE,
    GraphNodes,
    ModuleCall,
    Timeline,
    capture_rows,
    place_nodes,
    replay,
    stretch_at,
)
from spark_prof.traces.machine_code import CUBINS_FOLDER, Cubins, read_machine_code
from spark_prof.traces.nsys_chunks import read_nsys_piece
from spark_prof.traces.readers.cupti_trace import symbols_of
from spark_prof.traces.readers.kineto import read_kineto
from spark_prof.traces.tables import TABLES, empty_frame
from spark_prof.vocabulary import FINISHES, LIMITS, PHASES


def join_piece(
    steps: Rows,
    events: Rows,
    modules: Sequence[dict[str, Any]],
    read: Callable[[], Trace | None],
    piece: int | Int64s,
    nodes: GraphNodes | None = None,
    thread: int = -1,
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The rows that one piece adds to the tables of its rank, by table, and what it lacks.

    Args:
        steps: rows of STEP_DTYPE; `events` of EVENT_DTYPE, `modules` of that table.
        piece: its number, or of several that are joined as one the number of each step.
        read: reads the trace of the piece; None where there is none. Where it is missing or
            damaged (CommandError) the piece has no kernels.
        thread: the thread that runs the steps, where no step says so; -1 if unknown.
    """
    paths = [module["path"] for module in modules]
    model = paths.index(MODEL_PATH) if MODEL_PATH in paths else None
    timeline, calls = replay(events, [module["layer"] for module in modules], model)
    if len(steps):
        thread = int(steps["thread"][0])
    lost: list[str] = []
    frames = {name: empty_frame(name) for name in ("kernels", "host", "overhead", "markers")}
    try:
        trace = read()
    except CommandError as error:
        lost.append(str(error))
    else:
        watched = int(steps["watched"].sum())
        if trace is None and watched:
            lost.append(f"{watched} steps have no kernels, the backend wrote none")
        if trace is not None:
            lost += trace.lost
            began = trace.markers["start_ns"].to_numpy(np.int64)
            frames = {
                "kernels": _from_nodes(_kernels(trace, steps, timeline, thread), nodes),
                "host": trace.launches,
                "overhead": trace.overhead,
                "markers": trace.markers.assign(step=_step_of(began, steps)),
            }
    phases = [PHASES[index] for index in steps["phase"]]
    frames["steps"] = pd.DataFrame(steps).drop(columns="thread").assign(phase=phases, piece=piece)
    frames["ranges"] = _range_rows(calls, steps, thread)
    return frames, lost


def _step_of(times: Int64s, steps: Rows) -> Int64s:
    # Where the clock was set back, the steps have to be sorted: they are looked up by time.
    steps = steps[np.argsort(steps["start_ns"], kind="stable")]
    index = stretch_at(times, steps["start_ns"], steps["end_ns"])
    return np.append(steps["step"], -1)[index].astype(np.int64)


def _range_rows(calls: Sequence[ModuleCall], steps: Rows, thread: int) -> pd.DataFrame:
    frame = pd.DataFrame(
        [(c.module, c.start_ns, c.end_ns) for c in calls],
        columns=["module", "start_ns", "end_ns"],
        dtype=np.int64,
    ).sort_values("start_ns", kind="stable")
    return frame.assign(thread=thread, step=_step_of(frame["start_ns"].to_numpy(np.int64), steps))


def _kernels(trace: Trace, steps: Rows, timeline: Timeline, thread: int) -> pd.DataFrame:
    operators = operator_rows(trace.operators)
    if thread >= 0:
        operators = operators[operators["stream"] == thread]
    launched = operators["start_ns"].to_numpy(np.int64)
    gpu = trace.gpu.assign(part=0)
    launches = trace.launches.drop_duplicates("correlation").set_index("correlation")
    if len(launches) and not (launches["thread"] == thread).any():
        # Without CPU activity Kineto knows threads by another number than the system's.
        launches = launches.assign(thread=thread)
    launches = launches[(launches["thread"] == thread) & (launches.index >= 0)]
    # A fill value keeps integers: as floats, nanoseconds since 1970 would lose their last digits.
    gpu_launched = launches["start_ns"].reindex(gpu["correlation"], fill_value=-1)
    rows = pd.concat([operators, gpu], ignore_index=True) if len(operators) else gpu
    times = np.concatenate([launched, gpu_launched.to_numpy(np.int64)])
    # What replays a CUDA graph says nothing about what the graph's kernels work for.
    graphs = launches.index[launches["name"].astype(str).str.contains("GraphLaunch")]
    replayed = np.append(np.zeros(len(launched), bool), gpu["correlation"].isin(graphs))
    module, layer = (np.where(replayed, -1, numbers) for numbers in timeline.at(times))
    began = launches.loc[graphs, "start_ns"].sort_values().to_numpy(np.int64)
    module = _after_the_model(module, times, began[timeline.at(began)[0] == PREPARE], steps)
    rows = rows.assign(step=_step_of(times, steps), module=module, layer=layer)
    return rows.sort_values("start_ns", kind="stable")


def _after_the_model(module: Int64s, times: Int64s, graphs: Int64s, steps: Rows) -> Int64s:
    """The modules, with FINISH for what a step launched after the graph of the whole model.

    The model itself was not called then: its graph was launched in its place, at `graphs`.
    """
    if not len(graphs) or not len(steps):
        return module
    latest = graphs[np.maximum(np.searchsorted(graphs, times) - 1, 0)]
    step = np.maximum(np.searchsorted(steps["start_ns"], times, side="right") - 1, 0)
    after = (latest < times) & (latest >= steps["start_ns"][step])
    return np.where((module == PREPARE) & after, FINISH, module).astype(np.int64)


def _from_nodes(kernels: pd.DataFrame, nodes: GraphNodes | None) -> pd.DataFrame:
    """The kernels, with module and layer of those inside a graph from when it was captured."""
    if nodes is None or nodes.frame.empty:
        return kernels
    position = nodes.find(kernels["graph_node"].to_numpy(np.int64))
    has_node = position >= 0
    columns = {
        name: np.where(has_node, nodes.frame[name].to_numpy(np.int64)[position], kernels[name])
        for name in ("module", "layer")
    }
    return kernels.assign(**columns)


def read_trace(pieces: Path, process: str, piece: int) -> Trace | None:
    """The kernels of that piece; None where no backend wrote any."""
    raw = pieces / activity_name(process, piece)
    if raw.exists():
        from spark_prof.traces.readers.cupti_buffers import names_file
        from spark_prof.traces.readers.cupti_trace import read_cupti

        names = names_file(raw)
        trace = read_cupti(raw, names)
        if names.name == names_name(process, piece):
            return trace
        used = int(names.name.split(".")[1])
        lost = f"its names were not flushed: those of piece {used} are used"
        return replace(trace, lost=(*trace.lost, lost))
    kineto = pieces / kineto_name(process, piece)
    if kineto.exists():
        return read_kineto(kineto)
    return read_nsys_piece(pieces, process, piece)


_GROUP_BYTES = 48 << 20  # of traces that are joined as one; more takes more memory
_ALSO = ("activity.bin", "names.json", "arguments.npy", "counters.npy")


def groups(pieces: Path, process: str, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Pieces that can be joined together: whole ones of torch's profiler, short as those are.

    Within one the steps follow each other in time: where a clock was set, a new one begins.
    """
    group: list[int] = []
    size, latest = 0, 0
    for number in numbers:
        trace = pieces / kineto_name(process, number)
        beside = any((pieces / f"{process}.{number:05d}.{kind}").exists() for kind in _ALSO)
        try:
            steps = load_array(pieces / array_name(process, "steps", number), STEP_DTYPE)
            trace_bytes = trace.stat().st_size
        except (CommandError, OSError):
            steps, trace_bytes = np.zeros(0, STEP_DTYPE), 0
        times = np.concatenate([[latest], steps["start_ns"]])
        fits = (
            trace_bytes > 0 and not beside and len(steps) > 0 and bool((np.diff(times) > 0).all())
        )
        if group and (not fits or size + trace_bytes > _GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(number)
        size += trace_bytes
        latest = int(steps["end_ns"].max(initial=0))
        if not trace_bytes or beside or not len(steps):
            yield group
            group, size = [], 0
    if group:
        yield group


_MOST_MODULES = 1 << 20  # models have thousands; a larger number in a file is damage


class PieceTables:
    """Reads one process after another, and a rank piece by piece."""

    def __init__(self, pieces: Path, tables: TableFiles) -> None:
        self._pieces, self._tables = pieces, tables
        self._cubins = Cubins(cubins_folder(pieces))
        self._name, self._rank = "", 0
        self._modules: list[dict[str, Any]] = []
        self._nodes: GraphNodes | None = None
        self._arguments = np.empty(0, ARGUMENT_DTYPE)
        self._nodes_with_arguments: set[int] = set()
        self.lost: list[str] = []
        self.unreadable: list[Path] = []
        self.steps: dict[str, list[Rows]] = {}

    def add_process(self, fact: dict[str, Any]) -> None:
        """Adds what there is once per process; its pieces follow."""
        self._name, self._rank = str(fact["process"]), int(fact["rank"])
        if self._name.startswith("engine"):
            self._add_engine()
            return
        self._modules = fact.get("modules") or _nameless_modules(self._pieces, self._name)
        if "modules" not in fact:
            self._lose("what it said about itself is lost: modules have no names")
        modules = pd.DataFrame(self._modules, columns=["path", "type", "layer", "component"])
        self._tables.add("modules", self._rank, modules.rename_axis("module").reset_index())
        layers = pd.DataFrame(fact.get("layers", []), columns=TABLES["layers"].schema.names)
        self._tables.add("layers", self._rank, layers)
        self._add_tensors()
        self._add_graphs()

    def add_group(self, name: str, pieces: Sequence[int]) -> None:
        """Joins and adds pieces of the process that was added last, as `groups` found them."""
        if len(pieces) == 1 or not self._add_as_one(name, pieces):
            for piece in pieces:
                self.add_piece(name, piece)

    def _add_as_one(self, name: str, pieces: Sequence[int]) -> bool:
        """Adds pieces as if they were one, which costs the same however many; False if damaged."""
        try:
            steps, events = (
                [_whole(load_array(path, dtype), path.name) for path in paths]
                for dtype, paths in (
                    (STEP_DTYPE, [self._pieces / array_name(name, "steps", n) for n in pieces]),
                    (EVENT_DTYPE, [self._pieces / array_name(name, "events", n) for n in pieces]),
                )
            )
            trace = read_kineto(*(self._pieces / kineto_name(name, n) for n in pieces))
        except CommandError:
            return False
        numbers = np.repeat(np.array(pieces, np.int64), list(map(len, steps)))
        together = np.concatenate(steps)
        frames, lost = join_piece(
            together, np.concatenate(events), self._modules, lambda: trace, numbers, self._nodes
        )
        if lost or not len(together):
            return False
        for table, frame in frames.items():
            if table != "markers" or len(frame):
                self._tables.add(table, self._rank, frame)
        self._add_arguments(frames["kernels"]["graph_node"].to_numpy(np.int64))
        self.steps.setdefault(name, []).append(together["step"])
        return True

    def add_piece(self, name: str, piece: int) -> None:
        """Joins and adds one piece of the process that was added last."""
        before = len(self.lost)
        steps = self._load(array_name(name, "steps", piece), STEP_DTYPE)
        events = self._load(array_name(name, "events", piece), EVENT_DTYPE)
        thread = int(steps["thread"][0]) if len(steps) else _thread(self._pieces, name)
        frames, lost = join_piece(
            steps, events, self._modules, lambda: self._read(piece), piece, self._nodes, thread
        )
        kernels = frames["kernels"]
        names = self._pieces / names_name(name, piece)
        if names.exists() and (symbols := symbols_of(json_object(names))):
            kernels = kernels.assign(cubin=self._cubins.of_kernels(kernels, symbols))
        for table, frame in (frames | {"kernels": kernels}).items():
            if table != "markers" or len(frame):
                self._tables.add(table, self._rank, frame)
        self._add_arguments(kernels["graph_node"].to_numpy(np.int64), piece)
        if (self._pieces / (counters := array_name(name, "counters", piece))).exists():
            samples = pd.DataFrame(self._load(counters, COUNTER_DTYPE))
            self._tables.add("counters", self._rank, samples)
        self.steps.setdefault(name, []).append(steps["step"])
        self.lost += lost
        if len(steps) and not (self._pieces / array_name(name, "events", piece)).exists():
            self.lost.append("its ranges are missing")
        if not len(steps):
            work, calls = len(kernels), len(frames["ranges"])
            if work or calls or len(self.lost) > before:
                remainder = f"{work} kernels and {calls} ranges are kept without a step"
                self.lost.append(f"its steps are missing; {remainder}")
        mark = f"{name}, piece {piece}: "
        self.lost[before:] = [mark + text for text in self.lost[before:]]

    def add_log(self) -> None:
        """Adds what all processes logged: whatever is logged is something that is missing."""
        log = pd.DataFrame(log_lines(self._pieces), columns=TABLES["log"].schema.names)
        self._tables.add("log", 0, log)
        self.lost += [f"{row.process}: {row.message}" for row in log.itertuples()]

    def add_host(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds what the recorder saw of the processes from outside; `facts` tell their ids."""
        added = host_tables(self._pieces, facts)
        ranks = [int(fact["rank"]) for name, fact in facts.items() if name.startswith("rank")]
        for table, frame in added.tables:
            self._tables.add(table, min(ranks, default=0), frame)
        self.lost += [f"{HOST}: {text}" for text in added.lost]
        self.unreadable += added.unreadable

    def add_cubins(self, bundle: Path) -> None:
        """Adds the machine code and its opcodes, and keeps what ran of it in the bundle."""
        rows = self._cubins.keep(bundle)
        self._tables.add("cubins", 0, rows)
        self.lost += self._cubins.lost
        # Without the tool nothing is lost: the cubins are kept, and read when it is there.
        if find_tool("nvdisasm"):
            symbols_of = {
                bundle / CUBINS_FOLDER / f"{key}.cubin": functions.split("\n")
                for key, functions in zip(rows["hash"], rows["functions"], strict=True)
                if functions
            }
            code = read_machine_code(symbols_of)
            self.lost += code.lost
            if len(code.rows):
                self._tables.add("functions", 0, code.rows)

    def _lose(self, text: str) -> None:
        self.lost.append(f"{self._name}: {text}")

    def _load(self, name: str, kind: np.dtype[Any]) -> Rows:
        """One array of a piece, empty where there is none."""
        path = self._pieces / name
        if path.exists():
            try:
                return _whole(load_array(path, kind), path.name)
            except CommandError as error:
                self.unreadable.append(path)
                self.lost.append(str(error))
        return np.zeros(0, kind)

    def _read(self, piece: int) -> Trace | None:
        try:
            return read_trace(self._pieces, self._name, piece)
        except CommandError:
            names = (make(self._name, piece) for make in (activity_name, names_name, kineto_name))
            self.unreadable += filter(Path.exists, map(self._pieces.joinpath, names))
            raise

    def _add_engine(self) -> None:
        before = len(self.lost)
        for path in sorted(self._pieces.glob(f"{self._name}.*.engine.npy")):
            rows = self._load(path.name, ENGINE_DTYPE)
            self._tables.add("engine", self._rank, engine_frame(rows))
            iterations = self.steps.setdefault(self._name, [])
            iterations.append(np.arange(len(rows)) + sum(map(len, iterations)))
        for path in sorted(self._pieces.glob(f"{self._name}.*.drafts.npy")):
            drafts = self._load(path.name, DRAFT_DTYPE)
            self._tables.add("drafts", self._rank, pd.DataFrame(drafts))
        for table, kind in (
            ("engine_requests", REQUEST_DTYPE), ("request_steps", REQUEST_STEP_DTYPE),
        ):  # fmt: skip
            for path in sorted(self._pieces.glob(f"{self._name}.*.{table}.npy")):
                rows = self._load(path.name, kind)
                self._tables.add(table, self._rank, request_frame(rows))
        self.lost[before:] = [f"{self._name}: {text}" for text in self.lost[before:]]

    def _add_tensors(self) -> None:
        """Adds where the rank's tensors lie, if it says so: an earlier spark-prof did not."""
        path = self._pieces / tensors_name(self._name)
        if not path.exists():
            return
        try:
            rows = load_tensors(path)
        except CommandError as error:
            self.unreadable.append(path)
            self._lose(f"{error}; kernels have no owner by what they read")
            return
        tensors = pd.DataFrame(rows, columns=TABLES["tensors"].schema.names)
        self._tables.add("tensors", self._rank, tensors)

    def _add_graphs(self) -> None:
        """Adds the nodes of the rank's CUDA graphs, if it captured any."""
        self._nodes, self._arguments = None, np.empty(0, ARGUMENT_DTYPE)
        paths = [
            self._pieces / capture_name(self._name, kind)
            for kind in ("nodes", "capture-events", "captures")
        ]
        if not all(path.exists() for path in paths):
            return
        try:
            nodes, events, captures = (
                load_array(path, kind)
                for path, kind in zip(paths, (NODE_DTYPE, EVENT_DTYPE, CAPTURE_DTYPE), strict=True)
            )
        except CommandError as error:
            self.unreadable += paths
            self._lose(f"{error}; kernels in graphs have no layer")
            return
        self._nodes = place_nodes(nodes, events, captures, [m["layer"] for m in self._modules])
        self._tables.add("graph_nodes", self._rank, self._nodes.frame)
        self._tables.add("captures", self._rank, capture_rows(captures))
        self._arguments = self._load(capture_name(self._name, "arguments"), ARGUMENT_DTYPE)
        self._arguments.sort(order=("node", "argument", "offset"))
        self._nodes_with_arguments = set()

    def _add_arguments(self, nodes: Int64s, piece: int | None = None) -> None:
        """Adds the arguments of a piece's kernels: of a captured one once, in its first piece.

        vLLM captures a graph for each of some fifty batch sizes, of which few ever run.
        """
        rows = [np.zeros(0, ARGUMENT_DTYPE)]
        if piece is not None:
            rows = [self._load(array_name(self._name, "arguments", piece), ARGUMENT_DTYPE)]
        if self._nodes is not None and len(self._arguments):
            positions = self._nodes.find(np.unique(nodes))
            originals = self._nodes.frame["original"].to_numpy(np.int64)[positions[positions >= 0]]
            new = sorted(set(originals.tolist()) - self._nodes_with_arguments)
            self._nodes_with_arguments.update(new)
            rows.append(self._arguments[np.isin(self._arguments["node"], new)])
        if len(added := np.concatenate(rows)):
            self._tables.add("arguments", self._rank, pd.DataFrame(added))


_OF_LIMITS = ("iteration", "running", "waiting", "free_blocks")  # of the `engine` table


def engine_frame(rows: Rows) -> pd.DataFrame:
    """Rows of ENGINE_DTYPE as the `engine` table has them."""
    frame = pd.DataFrame(rows).assign(limit=[LIMITS[code] for code in rows["limit"]])
    # An earlier spark-prof wrote none of these: they came as zeros.
    unknown = rows["limit"] == 0
    return frame.assign(**{name: np.where(unknown, -1, rows[name]) for name in _OF_LIMITS})


def request_frame(rows: Rows) -> pd.DataFrame:
    """Rows of REQUEST_DTYPE or REQUEST_STEP_DTYPE as their tables have them."""
    frame = pd.DataFrame(rows)
    if "finish" not in frame:
        return frame
    return frame.assign(finish=[FINISHES[code] for code in rows["finish"]])


def _whole(rows: Rows, name: str) -> Rows:
    """Refuses rows without a time: some file systems fill with zeros what a power cut took."""
    for column in {"start_ns", "time_ns", "schedule_ns"}.intersection(rows.dtype.names or ()):
        if (rows[column] <= 0).any():
            raise CommandError(f"{name} is damaged: it holds rows without a time")
    names = rows.dtype.names or ()
    if "phase" in names and not np.isin(rows["phase"], range(len(PHASES))).all():
        raise CommandError(f"{name} is damaged: it holds steps of no phase")
    for column, words in (("limit", LIMITS), ("finish", FINISHES)):
        if column in names and not np.isin(rows[column], range(len(words))).all():
            raise CommandError(f"{name} is damaged: it holds a {column} of no name")
    if "code" in names and (np.abs(rows["code"] // 2) > _MOST_MODULES).any():
        raise CommandError(f"{name} is damaged: it holds calls of no module")
    if (
        "accepted" in names
        and not (
            (rows["accepted"] >= -1) & (rows["accepted"] <= np.maximum(rows["proposed"], 0))
        ).all()
    ):
        raise CommandError(f"{name} is damaged: it holds more accepted tokens than drafts")
    return rows


def _thread(pieces: Path, name: str) -> int:
    """The thread that ran the rank's steps, by the first piece that says so; -1 if none does."""
    for piece in piece_numbers(pieces, name):
        try:
            steps = load_array(pieces / array_name(name, "steps", piece), STEP_DTYPE)
        except CommandError:
            continue
        if len(steps):
            return int(steps["thread"][0])
    return -1


def _nameless_modules(pieces: Path, name: str) -> list[dict[str, Any]]:
    """Rows for the modules that the ranges of that rank mention."""
    highest = 0
    for path in pieces.glob(f"{name}.*.events.npy"):
        try:
            codes = load_array(path, EVENT_DTYPE)["code"]
        except CommandError:
            continue
        numbers = np.abs(codes[np.abs(codes // 2) <= _MOST_MODULES])
        highest = max(highest, int(numbers.max(initial=0)))
    row = {"type": "", "layer": -1, "component": ""}
    return [{"path": f"unknown.{number}"} | row for number in range(highest)]
