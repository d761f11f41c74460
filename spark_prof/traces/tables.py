"""The tables of a bundle: every column with its type, unit and meaning.

Times are int64 nanoseconds since the Unix epoch on the clock of the recorded host.
A table is one Parquet file per rank, ``<table>-rank<rank>.parquet``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd
import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """One column: its name, Arrow type and meaning with unit.

    A column that came later has a `default`, which bundles written before it are read with.
    """

    name: str
    type: pa.DataType
    meaning: str
    default: str | bool | None = None

    def repeated(self, rows: int) -> pa.Array:
        """So many rows of the default."""
        if pa.types.is_dictionary(self.type):
            codes = pa.array(np.zeros(rows, np.int32))
            return pa.DictionaryArray.from_arrays(codes, pa.array([self.default]))
        return pa.repeat(pa.scalar(self.default, self.type), rows)


@dataclass(frozen=True)
class Table:
    """One table of the bundle, its columns in file order."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema that every file of this table has."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def columns_with_default(self) -> tuple[Column, ...]:
        """The columns that came later."""
        return tuple(column for column in self.columns if column.default is not None)

    def later_columns(self, found: pa.Schema) -> list[Column] | None:
        """The columns that a file with that schema was written before; None if it is no such."""
        missing = [c for c in self.columns if c.name not in found.names]
        fits = found.equals(pa.schema([f for f in self.schema if f.name in found.names]))
        return missing if fits and all(c.default is not None for c in missing) else None


NAMES = pa.dictionary(pa.int32(), pa.string())

KERNELS = Table(
    "kernels",
    "one row per GPU kernel, copy or memset; on a CPU engine one row per operator",
    (
        Column("name", NAMES, "kernel name as the driver gives it, or operator name"),
        Column("kind", NAMES, "kernel, memcpy, memset or op"),
        Column("start_ns", pa.int64(), "start on the device"),
        Column("end_ns", pa.int64(), "end on the device"),
        Column(
            "part",
            pa.int32(),
            "0 for a kernel and for an operator's first stretch; an "
            "operator that calls others has one row per stretch of its own work",
        ),
        Column("device", pa.int32(), "GPU number, -1 for the CPU"),
        Column("stream", pa.int64(), "CUDA stream, or the thread that ran an operator"),
        Column("correlation", pa.int64(), "joins `host.correlation` of the same rank; -1 for none"),
        Column("graph_node", pa.int64(), "CUDA graph node id; 0 outside graphs or where unknown"),
        Column("step", pa.int32(), "`steps.step` that launched it, -1 for none"),
        Column(
            "module",
            pa.int32(),
            "`modules.module` open at its launch, or in a graph when its node was created; "
            "-1 for none",
        ),
        Column("layer", pa.int32(), "decoder layer open then, -1 for none"),
        Column("grid", NAMES, "launch grid as `x,y,z`; empty for operators and copies"),
        Column("block", NAMES, "threads per block as `x,y,z`; empty for operators and copies"),
        Column("registers", pa.int32(), "registers per thread, 0 where unknown"),
        Column("shared_bytes", pa.int32(), "shared memory per block in bytes, 0 where unknown"),
        Column("bytes", pa.int64(), "bytes of a copy or memset, 0 where unknown"),
        Column(
            "cubin",
            NAMES,
            "`cubins.hash` of its machine code, several where it ran one of them, or empty",
            "",
        ),
        Column(
            "placed_by",
            NAMES,
            "on what module and layer stand: empty where a range or graph node gave them, "
            "`aligned` where another trace did, `guess` where they repeat like layers",
            "",
        ),
    ),
)

STEPS = Table(
    "steps",
    "one row per recorded engine iteration, as the rank's worker ran it",
    (
        Column("step", pa.int32(), "running number since the recording began to watch"),
        Column("key", pa.int64(), "fingerprint of the scheduled batch, joins `engine.key`"),
        Column("phase", NAMES, "prefill, decode or mixed"),
        Column("start_ns", pa.int64(), "the worker begins to execute the batch"),
        Column("end_ns", pa.int64(), "the worker has handed back the sampled tokens"),
        Column("prefill_requests", pa.int32(), "requests still reading their prompt"),
        Column("prefill_tokens", pa.int32(), "prompt tokens of the batch"),
        Column("decode_requests", pa.int32(), "requests that generate"),
        Column("decode_tokens", pa.int32(), "their scheduled tokens, drafts included"),
        Column("context_tokens", pa.int64(), "tokens already in the KV cache, all requests"),
        Column("piece", pa.int32(), "flushed piece that holds the step's kernels"),
        Column(
            "watched",
            pa.bool_(),
            "whether its kernels were recorded; the others were timed to learn what that costs",
            True,
        ),
    ),
)

ENGINE = Table(
    "engine",
    "one row per iteration as the scheduler's process saw it",
    (
        Column("key", pa.int64(), "fingerprint of the scheduled batch"),
        Column("schedule_ns", pa.int64(), "the scheduler begins to choose the batch"),
        Column(
            "update_ns",
            pa.int64(),
            "the scheduler has taken in the batch's tokens; 0 if it never did",
        ),
        Column("scheduled_tokens", pa.int32(), "tokens in the batch"),
        Column("output_tokens", pa.int32(), "tokens accepted by all requests"),
        Column("output_requests", pa.int32(), "requests that got at least one token"),
        Column("unfinished", pa.int32(), "requests left after the update, running or waiting"),
    ),
)

RANGES = Table(
    "ranges",
    "one row per call of an instrumented module",
    (
        Column("module", pa.int32(), "joins `modules.module`"),
        Column("start_ns", pa.int64(), "entered"),
        Column("end_ns", pa.int64(), "left"),
        Column("thread", pa.int64(), "operating-system thread id"),
        Column("step", pa.int32(), "`steps.step`, -1 outside the recorded steps"),
    ),
)

MODULES = Table(
    "modules",
    "one row per instrumented module or function",
    (
        Column("module", pa.int32(), "number used by `ranges` and `kernels`"),
        Column("path", pa.string(), "path in the model, such as model.layers.0.self_attn.o_proj"),
        Column("type", pa.string(), "class name"),
        Column("layer", pa.int32(), "decoder layer, -1 for none or where calls share the module"),
        Column("component", NAMES, "component that its kernels count to, empty for containers"),
    ),
)

LAYERS = Table(
    "layers",
    "one row per module with weights or a kernel choice, read from the live model",
    (
        Column("path", pa.string(), "path in the model"),
        Column("type", pa.string(), "class name"),
        Column("layer", pa.int32(), "decoder layer, -1 for none"),
        Column("component", NAMES, "component, empty for containers"),
        Column("quant_method", pa.string(), "class of the quantization method"),
        Column(
            "kernel",
            pa.string(),
            "class of the kernel, expert or attention implementation that was really chosen",
        ),
        Column("weight_dtype", pa.string(), "storage type of the largest weight"),
        Column("shape", pa.string(), "shape of the largest weight as stored, such as 128x256"),
        Column("bytes", pa.int64(), "bytes of all its own parameters, scales included"),
        Column("parameters", pa.string(), "name:dtype:shape of each own tensor"),
    ),
)

HOST = Table(
    "host",
    "one row per CUDA API call that launched work",
    (
        Column("name", NAMES, "API function"),
        Column("start_ns", pa.int64(), "call begins"),
        Column("end_ns", pa.int64(), "call returns"),
        Column("thread", pa.int64(), "operating-system thread id"),
        Column("correlation", pa.int64(), "joins `kernels.correlation` of the same rank"),
    ),
)

GRAPH_NODES = Table(
    "graph_nodes",
    "one row per node of a captured CUDA graph, clones included",
    (
        Column("node", pa.int64(), "joins `kernels.graph_node`"),
        Column("original", pa.int64(), "the node it is a clone of, itself where it is none"),
        Column("graph", pa.int64(), "id of the graph that holds it"),
        Column("created_ns", pa.int64(), "when the original was created"),
        Column("module", pa.int32(), "`modules.module` open when the original was created"),
        Column("layer", pa.int32(), "decoder layer open then, -1 for none"),
        Column("capture", pa.int32(), "`captures.capture` that created it, -1 for none"),
    ),
)

CAPTURES = Table(
    "captures",
    "one row per capture of a CUDA graph while vLLM started",
    (
        Column("capture", pa.int32(), "running number"),
        Column("start_ns", pa.int64(), "capture begins"),
        Column("end_ns", pa.int64(), "capture ends"),
        Column("tokens", pa.int32(), "tokens of the batch that it was captured for, 0 if unknown"),
        Column("mode", NAMES, "FULL or PIECEWISE, empty where unknown"),
    ),
)

TENSORS = Table(
    "tensors",
    "one row per tensor of the live model, of its KV caches and states, and per segment of GPU "
    "memory, as they were when the model was loaded and its graphs were captured",
    (
        Column("address", pa.int64(), "where it begins on the device"),
        Column("bytes", pa.int64(), "how many bytes from there on are its own"),
        Column(
            "kind",
            NAMES,
            "weight, buffer, kv (KV cache), state (of Mamba and linear attention), memory (a "
            "segment of PyTorch's allocator) or pool (one that belongs to CUDA graphs)",
        ),
        Column("name", pa.string(), "its name in the module, such as w13_weight"),
        Column("module", pa.string(), "path of the module that holds it, empty for memory"),
        Column("type", pa.string(), "class name of the module"),
        Column("layer", pa.int32(), "decoder layer, -1 for none or for several"),
        Column("component", NAMES, "component of the module, empty for none"),
        Column("shape", pa.string(), "shape as stored, such as 128x256"),
        Column("dtype", pa.string(), "storage type, such as uint8"),
        Column(
            "format",
            NAMES,
            "what the stored bits mean: nvfp4, mxfp4, fp8, int4, bf16...; scale for the scales of "
            "such a format; empty where nothing tells",
        ),
    ),
)

ARGUMENTS = Table(
    "arguments",
    "one row per device address among the arguments of a kernel",
    (
        Column("node", pa.int64(), "`graph_nodes.original` that has it, 0 outside of graphs"),
        Column("correlation", pa.int64(), "joins `kernels.correlation` outside of graphs, else -1"),
        Column("argument", pa.int32(), "number of the argument, -1 in a packed buffer"),
        Column("offset", pa.int32(), "where it stands in the argument or buffer, in bytes"),
        Column("size", pa.int32(), "bytes of the argument or buffer; 8 for a plain pointer"),
        Column("address", pa.int64(), "the address"),
    ),
)

CUBINS = Table(
    "cubins",
    "one row per piece of GPU machine code that was loaded, kept in the bundle's folder `cubins`",
    (
        Column("hash", pa.string(), "first 16 hexadecimal digits of its SHA-256, the file's name"),
        Column("bytes", pa.int64(), "its size"),
        Column("source", NAMES, "driver, or the cache it was found in: triton, flashinfer..."),
        Column("functions", pa.string(), "names of its kernels that ran, one a line"),
    ),
)

FUNCTIONS = Table(
    "functions",
    "one row per function of machine code that ran, with the instructions that it is made of",
    (
        Column("hash", pa.string(), "`cubins.hash` of the file that holds it"),
        Column("function", pa.string(), "its symbol"),
        Column("name", pa.string(), "its name as `kernels.name` has it"),
        Column("architecture", NAMES, "what it was compiled for, such as sm_120"),
        Column(
            "suffix",
            NAMES,
            "a where for this architecture only, f for its family, plain for neither; empty where "
            "nothing tells",
        ),
        Column("registers", pa.int32(), "registers per thread, 0 where unknown"),
        Column("instructions", pa.int64(), "how many there are"),
        Column(
            "opcodes",
            pa.string(),
            "its opcodes, one a line, each with how often it stands there; LDL and STL are loads "
            "and stores of local memory",
        ),
    ),
)

COUNTERS = Table(
    "counters",
    "one row per interval in which the GPU's hardware counters were sampled",
    (
        Column("start_ns", pa.int64(), "interval begins"),
        Column("end_ns", pa.int64(), "interval ends"),
        Column("dram_read_bytes", pa.float64(), "bytes read from DRAM; NaN where not sampled"),
        Column("dram_write_bytes", pa.float64(), "bytes written to DRAM"),
        Column("tensor_active", pa.float64(), "share of cycles the tensor pipe was busy, 0 to 1"),
        Column("sm_active", pa.float64(), "share of cycles an SM had work, 0 to 1"),
        Column("warps_active", pa.float64(), "achieved occupancy, 0 to 1"),
    ),
)

OVERHEAD = Table(
    "overhead",
    "one row per stretch of time that the profiler itself took",
    (
        Column("name", NAMES, "what it did, such as buffer flush or instrumentation"),
        Column("start_ns", pa.int64(), "begins"),
        Column("end_ns", pa.int64(), "ends"),
    ),
)

MARKERS = Table(
    "markers",
    "one row per NVTX range or mark of the recorded program",
    (
        Column("name", NAMES, "its message"),
        Column("domain", NAMES, "the library or part that set it, empty for the default domain"),
        Column("start_ns", pa.int64(), "begins"),
        Column("end_ns", pa.int64(), "ends; a mark ends where it begins"),
        Column("thread", pa.int64(), "operating-system thread id where it began, -1 if unknown"),
        Column("step", pa.int32(), "`steps.step` in which it began, -1 for none"),
        Column(
            "nested",
            pa.bool_(),
            "whether it is known to be a push/pop range, which lies inside the ones around it",
            False,
        ),
    ),
)

METRICS = Table(
    "metrics",
    "one row per metric of a kernel that Nsight Compute measured alone",
    (
        Column("name", NAMES, "kernel name as Nsight Compute gives it"),
        Column("launch", pa.int32(), "running number of the measured kernel"),
        Column("metric", NAMES, "name of the metric, such as sm__inst_executed_pipe_tensor.sum"),
        Column("value", pa.float64(), "its value, NaN where it could not be measured"),
        Column("unit", NAMES, "unit of the value, empty for a count or a ratio"),
    ),
)

CLIENTS = Table(
    "clients",
    "one row per run of a load generator, whose result was imported with the trace",
    (
        Column("run", pa.int32(), "running number"),
        Column("source", pa.string(), "file of the result"),
        Column("tool", NAMES, "what measured, such as vllm bench serve"),
        Column("model", pa.string(), "model as the tool names it, empty where unknown"),
        Column("label", pa.string(), "what tells the run from the others of its file"),
        Column("clock", NAMES, "what start times count from: epoch, monotonic or none"),
        Column("start_ns", pa.int64(), "begins, by `clock`; 0 where unknown"),
        Column(
            "local_end_ns",
            pa.int64(),
            "ends by the client's wall clock, as if its time zone were UTC; 0 where unknown",
        ),
        Column("concurrency", pa.int64(), "most requests at a time as asked for; -1 if unknown"),
        Column("completed", pa.int64(), "requests that were answered; -1 where unknown"),
        Column("failed", pa.int64(), "requests that were not; -1 where unknown"),
        Column("input_tokens", pa.int64(), "prompt tokens of all requests; -1 where unknown"),
        Column("output_tokens", pa.int64(), "generated tokens; -1 where unknown"),
        Column("mean_concurrency", pa.float64(), "mean requests at a time; NaN where unknown"),
        Column("request_rate", pa.float64(), "requests per second as asked for; NaN for no limit"),
        Column("duration_s", pa.float64(), "how long it took, in seconds; NaN where unknown"),
        Column("request_throughput", pa.float64(), "answered requests per second"),
        Column("output_throughput", pa.float64(), "generated tokens per second"),
        Column("total_throughput", pa.float64(), "prompt and generated tokens per second"),
        Column("tokens_per_chunk", pa.float64(), "generated tokens per chunk of the stream"),
        Column("acceptance_length", pa.float64(), "tokens that a speculative step yields"),
        Column("itl_per_token", pa.bool_(), "whether itl shares a chunk's time among its tokens"),
        *(
            Column(f"{latency}_{statistic}_us", pa.float64(), f"{statistic} of {meaning}")
            for latency, meaning in (
                ("ttft", "the time to the first token"),
                ("tpot", "the time per output token after the first, of each request"),
                ("itl", "the time between two chunks of the stream"),
                ("e2e", "the time to the last token"),
            )
            for statistic in ("mean", "median", "p90", "p99", "std")
        ),
        *(
            Column(f"{latency}_derived", NAMES, f"how {latency} was calculated; empty if given")
            for latency in ("ttft", "tpot", "itl", "e2e")
        ),
        Column("notes", pa.string(), "what to know before comparing its figures, one a line"),
    ),
)

REQUESTS = Table(
    "requests",
    "one row per request that a load generator sent",
    (
        Column("run", pa.int32(), "`clients.run` that sent it"),
        Column("start_ns", pa.int64(), "sent, by the run's clock; 0 where unknown"),
        Column("ttft_us", pa.float64(), "until its first token; NaN where unknown"),
        Column("e2e_us", pa.float64(), "until its last token; NaN where unknown"),
        Column("input_tokens", pa.int64(), "tokens of its prompt; -1 where unknown"),
        Column("output_tokens", pa.int64(), "generated tokens; -1 where unknown"),
        Column("chunks", pa.int64(), "pieces of the stream with tokens; -1 where unknown"),
        Column("failed", pa.bool_(), "whether it ended in an error"),
    ),
)

LOG = Table(
    "log",
    "what the recording itself had to say",
    (
        Column("time_ns", pa.int64(), "when"),
        Column("process", pa.string(), "which process"),
        Column("message", pa.string(), "one line"),
    ),
)

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        t.name: t
        for t in (
            KERNELS, STEPS, ENGINE, RANGES, MODULES, LAYERS, HOST, GRAPH_NODES, CAPTURES, TENSORS,
            ARGUMENTS, CUBINS, FUNCTIONS, COUNTERS, OVERHEAD, MARKERS, METRICS, CLIENTS, REQUESTS,
            LOG,
        )
    }
)  # fmt: skip


def empty_table(name: str) -> pa.Table:
    """A table of that name with no rows."""
    return TABLES[name].schema.empty_table()


def empty_frame(name: str) -> pd.DataFrame:
    """The columns of that table as a frame with no rows."""
    return pd.DataFrame(columns=TABLES[name].schema.names)
