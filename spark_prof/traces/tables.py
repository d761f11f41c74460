"""The tables of a bundle: every column with its type, unit and meaning.

Times are int64 nanoseconds since the Unix epoch on the clock of the recorded host.
A table is one Parquet file per rank, ``<table>-rank<rank>.parquet``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa


@dataclass(frozen=True)
class TableColumn:
    """One column: its name, Arrow type and meaning with unit.

    A column that came later has a `default`, which bundles written before it are read with.
    """

    name: str
    type: pa.DataType
    meaning: str
    default: str | bool | int | None = None

    def repeated(self, rows: int) -> pa.Array:
        """An array of so many times the default."""
        if pa.types.is_dictionary(self.type):
            codes = pa.array(np.zeros(rows, np.int32))
            return pa.DictionaryArray.from_arrays(codes, pa.array([self.default]))
        return pa.repeat(pa.scalar(self.default, self.type), rows)


@dataclass(frozen=True)
class Table:
    """One table of the bundle, its columns in file order."""

    name: str
    meaning: str
    columns: tuple[TableColumn, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema that every file of this table has."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def later_columns(self, schema: pa.Schema) -> list[TableColumn] | None:
        """The columns that a file with that schema was written before; None if it is no such."""
        missing = [c for c in self.columns if c.name not in schema.names]
        fits = schema.equals(pa.schema([f for f in self.schema if f.name in schema.names]))
        return missing if fits and all(c.default is not None for c in missing) else None


NAMES = pa.dictionary(pa.int32(), pa.string())

_TYPES = {
    "names": NAMES, "text": pa.string(), "bool": pa.bool_(),
    "int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(),
}  # fmt: skip
_DEFAULTS: dict[str, str | bool | int | None] = {
    "": None, "''": "", "True": True, "False": False, "0": 0, "-1": -1,
}  # fmt: skip

OF_SCHEDULERS = ("engine", "engine_requests", "request_steps", "drafts")
"""Tables whose number is that of a scheduler, none of a worker's rank."""

DURATIONS = frozenset(
    {"paused_ns", "preempted_ns", "first_preempted_ns", "error_ns", "cpu_ns", "wall_ns"}
)
"""Columns of nanoseconds that no clock shows."""

STATISTICS = ("mean", "median", "p90", "p99", "std")
"""What is kept of each latency of a load generator."""

# A paragraph a table: its name and meaning; then a row a column: name, type with the default of one
# that came later, and meaning with unit; a * stands for each statistic. What is indented goes on
# from the row above.
_TABLES = """
kernels: one row per GPU kernel, copy or memset; on a CPU engine one row per operator
name         names    as the driver gives it, or the operator's
kind         names    kernel, memcpy, memset or op
start_ns     int64    start on the device
end_ns       int64    end on the device
part         int32    an operator that calls others has one row per stretch of its own work,
                      numbered from 0
device       int32    GPU number, -1 for the CPU
stream       int64    CUDA stream, or the thread that ran an operator
correlation  int64    joins `host.correlation` of the same rank
graph_node   int64    CUDA graph node id; 0 outside graphs or where unknown
step         int32    `steps.step` that launched it
module       int32    `modules.module` open at its launch, or in a graph when its node was created
layer        int32    decoder layer open then
grid         names    launch grid as `x,y,z`; empty for operators and copies
block        names    threads per block as `x,y,z`; empty for operators and copies
registers    int32    registers per thread, 0 where unknown
shared_bytes int32    shared memory per block in bytes, 0 where unknown
bytes        int64    bytes of a copy or memset, 0 where unknown
cubin        names='' `cubins.hash` of its machine code; several where it ran one of them
placed_by    names='' what gave module and layer: empty for a range or graph node, `aligned` for
                      another trace, `guess` where they repeat like layers

steps: one row per recorded engine iteration, as the rank's worker ran it
step              int32     running number since the recording began to watch
key               int64     fingerprint of the scheduled batch, joins `engine.key`
phase             names     prefill, decode or mixed
start_ns          int64     the worker begins to execute the batch
end_ns            int64     the worker has handed back the sampled tokens
prefill_requests  int32     requests still reading their prompt, or again after a preemption
prefill_tokens    int32     tokens that these read in the batch
decode_requests   int32     requests that generate
decode_tokens     int32     their scheduled tokens, drafts included
context_tokens    int64     tokens already in the KV cache, all requests
piece             int32     flushed piece that holds the step's kernels
watched           bool=True whether its kernels were recorded; others were only timed
recomputed_tokens int32=0   of prefill_tokens, those of requests that had generated before
preempted         int32=0   requests that were preempted when the batch was chosen: they left the
                            full KV cache, and will be computed again
paused_ns         int64=0   how long the engine stood still for the recording right before the step

engine: one row per iteration as the scheduler's process saw it
key              int64 fingerprint of the scheduled batch
schedule_ns      int64 the scheduler begins to choose the batch
update_ns        int64 the scheduler has taken in the batch's tokens; 0 if it never did
scheduled_tokens int32 tokens in the batch
output_tokens    int32 tokens accepted by all requests
output_requests  int32 requests that got at least one token
unfinished       int32 requests left after the update, running or waiting
iteration        int64=-1 running number of the iteration in this process
running          int32=-1 requests that have a place in the batch and KV cache, this batch chosen
waiting          int32=-1 requests that wait for one then
free_blocks      int64=-1 blocks of the KV cache that are free then, reusable prefixes included
limit            names='' what kept more out of the batch: none, tokens (the budget of a batch),
                          sequences (max_num_seqs), kv (the KV cache is full), other; empty: unknown

engine_requests: one row per request as the scheduler's process saw it, without its id
request            int32 running number in this process, joins `request_steps.request`
arrival_ns         int64 the front end received it, by its own clock; 0 where unknown
queued_ns          int64 the scheduler received it; 0 if before the recording
scheduled_ns       int64 the scheduler begins the first batch with it; 0 if never, or before
first_token_ns     int64 the scheduler has its first token; 0 if never, or before the recording
last_token_ns      int64 the same of the last one
end_ns             int64 it was finished or aborted; 0 where the recording ended first
prompt_tokens      int32 tokens of its prompt
cached_tokens      int32 of these, found in the prefix cache at its first batch; -1 if unknown
output_tokens      int32 generated tokens
preemptions        int32 how often it lost its place in the KV cache
preempted_ns       int64 how long it had none after that, all together
first_preempted_ns int64 of that, before its first token
finish             names how it ended: stop, length, abort, error, repetition, other; empty where
                         the recording ended first

request_steps: one row per unbroken run of iterations in which a request got tokens, or one in which
  it read
request       int32 `engine_requests.request` of the same process
first         int64 `engine.iteration` of the first
last          int64 of the last; the same where it read
read_tokens   int32 tokens that it read: of its prompt, or again after a preemption; else 0
output_tokens int64 tokens that it got

drafts: one row per request of an iteration in which drafted tokens of it were verified
key      int64 fingerprint of the scheduled batch, joins `engine.key` and `steps.key`
request  int32 `engine_requests.request`, -1 where it had ended; without that table its number
               among those with drafts
context  int32 its tokens already in the KV cache; with asynchronous scheduling as if all drafts
               of the iteration before were accepted; -1 where unknown
proposed int32 its drafted tokens in the batch, without those that a grammar ruled out
accepted int32 how many of them were accepted, from the first on; -1 where the request had ended
               meanwhile, so that nothing was taken

ranges: one row per call of an instrumented module
module   int32 joins `modules.module`
start_ns int64 entered
end_ns   int64 left
thread   int64 operating-system thread id
step     int32 `steps.step`

modules: one row per instrumented module or function
module    int32 number used by `ranges` and `kernels`
path      text  path in the model, such as model.layers.0.self_attn.o_proj
type      text  class name
layer     int32 decoder layer, -1 for none or where calls share the module
component names component that its kernels count to

layers: one row per module with weights or a kernel choice, read from the live model
path         text  path in the model
type         text  class name
layer        int32 decoder layer
component    names component
quant_method text  class of the quantization method
kernel       text  class of the kernel, experts or attention really chosen
weight_dtype text  storage type of the largest weight
shape        text  shape of the largest weight as stored, such as 128x256
bytes        int64 bytes of all its own parameters, scales included
parameters   text  name:dtype:shape of each own tensor

host: one row per CUDA API call that launched work
name        names API function
start_ns    int64 call begins
end_ns      int64 call returns
thread      int64 operating-system thread id
correlation int64 joins `kernels.correlation` of the same rank

graph_nodes: one row per node of a captured CUDA graph, clones included
node       int64 joins `kernels.graph_node`
original   int64 the node it is a clone of, itself where it is none
graph      int64 id of the graph that holds it
created_ns int64 when the original was created
module     int32 `modules.module` open when the original was created
layer      int32 decoder layer open then
capture    int32 `captures.capture` that created it

captures: one row per capture of a CUDA graph while vLLM started
capture  int32 running number
start_ns int64 capture begins
end_ns   int64 capture ends
tokens   int32 tokens of the batch that it was captured for, 0 if unknown
mode     names FULL, PIECEWISE or BREAKABLE
kind     names='' what it is for: model, drafter, metadata, encoder, ubatches, memory or other
group    int32=-1 the same for pieces captured in one call, -1 if unknown

tensors: one row per tensor of the live model, of its KV caches and states, and per segment of GPU
  memory, as they were when the model was loaded and its graphs were captured
address   int64 where it begins on the device
bytes     int64 its size
kind      names weight, buffer, kv (KV cache), state (of Mamba and linear attention), memory (a
                segment of PyTorch's allocator) or pool (one that belongs to CUDA graphs)
name      text  its name in the module, such as w13_weight
module    text  path of the module that holds it, empty for memory
type      text  class name of the module
layer     int32 decoder layer, -1 for none or for several
component names component of the module
shape     text  shape as stored, such as 128x256
dtype     text  storage type, such as uint8
format    names what the bits mean: nvfp4, mxfp4, fp8, int4, bf16..., or scale

arguments: one row per device address among the arguments of a kernel
node        int64 `graph_nodes.original` that has it, 0 outside of graphs
correlation int64 joins `kernels.correlation` outside of graphs, else -1
argument    int32 number of the argument, -1 in a packed buffer
offset      int32 where it stands in the argument or buffer, in bytes
size        int32 bytes of the argument or buffer; 8 for a plain pointer
address     int64 the address

cubins: one row per piece of GPU machine code that was loaded, kept in the bundle's folder `cubins`
hash      text  the file's name: 16 hexadecimal digits of its SHA-256
bytes     int64 its size
source    names driver, or the cache it was found in: triton, flashinfer...
functions text  names of its kernels that ran, one a line

functions: one row per function of machine code that ran
hash         text  `cubins.hash` of the file that holds it
function     text  its symbol
name         text  its name as `kernels.name` has it
architecture names what it was compiled for, such as sm_120
suffix       names a for this architecture only, f for its family, plain for neither
registers    int32 registers per thread, 0 where unknown
instructions int64 how many there are
opcodes      text  its opcodes, one a line, with their counts; LDL and STL are loads and stores of
                   local memory

counters: one row per interval in which the GPU's hardware counters were sampled
start_ns         int64   interval begins
end_ns           int64   interval ends
dram_read_bytes  float64 bytes read from DRAM
dram_write_bytes float64 bytes written to DRAM
tensor_active    float64 share of cycles the tensor pipe was busy, 0 to 1
sm_active        float64 share of cycles an SM had work, 0 to 1
warps_active     float64 achieved occupancy, 0 to 1

overhead: one row per stretch of time that the profiler itself took
name     names what it did, such as buffer flush or instrumentation
start_ns int64 begins
end_ns   int64 ends

markers: one row per NVTX range or mark of the recorded program
name     names      its message
domain   names      the library or part that set it, empty for the default
start_ns int64      begins
end_ns   int64      ends; a mark ends where it begins
thread   int64      operating-system thread id where it began
step     int32      `steps.step` in which it began
nested   bool=False whether it is known to be a push/pop range, which lies inside those around it

metrics: one row per metric of a kernel that Nsight Compute measured alone
name   names   kernel name as Nsight Compute gives it
launch int32   running number of the measured kernel
metric names   name of the metric, such as sm__inst_executed_pipe_tensor.sum
value  float64 its value
unit   names   unit of the value, empty for a count or a ratio

clients: one row per run of a load generator, whose result was imported with the trace
run                int32   running number
source             text    file of the result
tool               names   what measured, such as vllm bench serve
model              text    model as the tool names it
label              text    what tells the run from the others of its file
clock              names   what start times count from: epoch, monotonic or none
start_ns           int64   begins, by `clock`; 0 where unknown
local_end_ns       int64   ends by the client's wall clock, taken as UTC; 0 where unknown
concurrency        int64   most requests at a time as asked for
completed          int64   requests that were answered
failed             int64   requests that were not
input_tokens       int64   prompt tokens of all requests
output_tokens      int64   generated tokens
mean_concurrency   float64 mean requests at a time
request_rate       float64 requests per second as asked for; NaN for no limit
duration_s         float64 how long it took, in seconds
request_throughput float64 answered requests per second
output_throughput  float64 generated tokens per second
total_throughput   float64 prompt and generated tokens per second
tokens_per_chunk   float64 generated tokens per chunk of the stream
acceptance_length  float64 tokens that a speculative step yields
itl_per_token      bool    whether itl shares a chunk's time among its tokens
ttft_*_us          float64 * of the time to the first token
tpot_*_us          float64 * of the time per output token after the first, of each request
itl_*_us           float64 * of the time between two chunks of the stream
e2e_*_us           float64 * of the time to the last token
ttft_derived       names   how ttft was calculated, if it was not given
tpot_derived       names   the same of tpot
itl_derived        names   the same of itl
e2e_derived        names   the same of e2e
notes              text    what to know before comparing its figures, one a line

requests: one row per request that a load generator sent
run           int32   `clients.run` that sent it
start_ns      int64   sent, by the run's clock; 0 where unknown
ttft_us       float64 until its first token
e2e_us        float64 until its last token
input_tokens  int64   tokens of its prompt
output_tokens int64   generated tokens
chunks        int64   pieces of the stream with tokens
failed        bool    whether it ended in an error

stacks: one row per look of py-spy at a Python thread of the recorded host (record --host), in the
  file of the host's lowest rank
time_ns  int64 when it looked
error_ns int64 of 20 such times 19 are off by this at most
process  names rank0, engine0...; frontend, the process that started the engine's
thread   int64 its number as Python gives it
main     bool  whether it is the thread that the program began in
stack    names its frames from the root to the leaf, one a line, as file:function

threads: one row per operating-system thread of a recorded process (record --host), in the same file
process names  rank0, engine0...
thread  int64  its number
name    names  as the system has it
python  bool   whether it has a Python interpreter's frames
cpu_ns  int64  processor time that it used while stacks were sampled
wall_ns int64  how long that was

host_figures: one row per figure of what the host lets a process have (record --host), in the same
  file
process names   rank0, engine0...
name    names   cpus (it may run on), cpu_quota (in processors); of its control group while stacks
                were sampled: periods, throttled_periods, throttled_ns
value   float64 its value

log: what the recording itself had to say
time_ns int64 when
process text  which process
message text  one line
"""


def _table(paragraph: str) -> Table:
    head, *rows = re.sub(r"\n +", " ", paragraph).split("\n")
    columns = []
    for row in rows:
        name, kind, meaning = row.split(None, 2)
        kind, _, default = kind.partition("=")
        columns += [
            TableColumn(
                name.replace("*", s), _TYPES[kind], meaning.replace("*", s), _DEFAULTS[default]
            )
            for s in (STATISTICS if "*" in name else ("",))
        ]
    name, _, meaning = head.partition(": ")
    return Table(name, meaning, tuple(columns))


TABLES: Mapping[str, Table] = {
    table.name: table for table in map(_table, _TABLES.strip().split("\n\n"))
}


def empty_table(name: str) -> pa.Table:
    """A table of that name with no rows."""
    return TABLES[name].schema.empty_table()


def empty_frame(name: str) -> pd.DataFrame:
    """The columns of that table as a frame with no rows."""
    return pd.DataFrame(columns=TABLES[name].schema.names)
