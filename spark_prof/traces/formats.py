"""The formats of files that can be read, each a row: how it is recognised, and what reads it.

A file's content decides; its first MiB is looked at, of a compressed one the first MiB of its
content. Names only decide which files of a folder are worth a look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import META_FILE
from spark_prof.traces.chunks import pieces_folder
from spark_prof.traces.compressed import open_stream
from spark_prof.traces.readers.cupti_blocks import MAGIC
from spark_prof.traces.readers.graph_stacks import FORMAT as GRAPH_STACKS
from spark_prof.traces.readers.graph_stacks import is_graph_stacks
from spark_prof.traces.readers.ncu_csv import is_details_page, is_raw_page
from spark_prof.traces.readers.ncu_report import REPORT_MAGIC
from spark_prof.traces.readers.nsys_stats import REPORT_NAMES, report_of
from spark_prof.traces.readers.printed_tables import head_of

if TYPE_CHECKING:
    from spark_prof.traces.readers.engine_log import EngineLog

BUNDLE, PIECES, FOLDER = "bundle", "pieces", "folder"
"""A bundle's folder; that of a recording that was not finished, which can be made a bundle; any
other, in which something readable may lie."""

BENCHMARK = "benchmark"  # what a load generator measured; spark_prof.traces.benchmarks knows which

_TAR_MAGIC = slice(257, 262)


class Head:
    """The beginning of a file."""

    def __init__(self, path: Path, raw: bytes) -> None:
        self.path = path
        self.raw = raw

    @cached_property
    def content(self) -> bytes:
        """The first MiB of the file, decompressed."""
        with open_stream(self.path) as blocks:
            return next(blocks, b"")

    @cached_property
    def text(self) -> bytes:
        """The content without a byte order mark and leading blanks."""
        return self.content.removeprefix(b"\xef\xbb\xbf").lstrip()

    def holds(self, first: bytes, *words: bytes) -> bool:
        """Whether the text begins like that and these words stand in it."""
        return self.text.startswith(first) and all(word in self.text for word in words)

    def has_table(self, is_head: Callable[[list[str]], bool]) -> bool:
        """Whether one of the lines is the head line of such a CSV table."""
        if b"\0" in self.content[:1024]:
            return False
        lines = self.content.decode("utf-8", "replace").split("\n")
        return any(is_head(head_of(line)) for line in lines if "," in line)


@dataclass(frozen=True)
class FileFormat:
    """A format of files."""

    name: str
    meaning: str
    shows: Callable[[Head], bool]
    example: bytes  # the shortest content that is recognised
    # Module and function below `spark_prof.traces.readers`; empty where another step, such as
    # unpacking, comes first.
    reader: str = ""
    # Whether the reader takes, after the path, a function that finds ranges that name modules.
    scoped: bool = False
    # Of names by which a file in a folder is taken for one without a look.
    endings: tuple[str, ...] = ()
    # Other usual ones, which are cut off too where a bundle is named after a file.
    loose_endings: tuple[str, ...] = ()


FORMATS = (
    FileFormat(
        "nsys-sqlite", "an SQLite export of nsys",
        lambda h: h.raw.startswith(b"SQLite format 3\0"),
        b"SQLite format 3\0",
        "nsys_import.nsys_export", scoped=True, endings=(".sqlite",),
    ),
    FileFormat(
        "nsys-rep", "a report of nsys",
        lambda h: h.raw.startswith(b"NVIDIA Tegra Profiler Report"),
        b"NVIDIA Tegra Profiler Report 2025@6@1@190-",
        endings=(".nsys-rep",),
    ),
    FileFormat(
        "cupti", "raw CUPTI buffers", lambda h: h.raw.startswith(MAGIC), MAGIC,
        "cupti_buffers.cupti_buffers", scoped=True,
    ),
    FileFormat("parquet", "a Parquet table", lambda h: h.raw.startswith(b"PAR1"), b"PAR1"),
    FileFormat(
        "archive", "a zip or tar of these",
        lambda h: h.raw.startswith((b"PK\3\4", b"PK\5\6")) or h.content[_TAR_MAGIC] == b"ustar",
        b"PK\3\4",
        loose_endings=(".zip", ".tar", ".tgz"),
    ),
    FileFormat(
        "proton-tree", "a call tree of Proton",
        lambda h: h.content[1:8] == b"\x83\xa5frame"
        or h.holds(b"[", b'"frame"', b'"metrics"', b'"children"'),
        b'[{"children": [], "frame": {"name": "ROOT"}, "metrics": {}}]',
        "proton.proton_tree", scoped=True, endings=(".hatchet",),
    ),
    FileFormat(
        "proton-trace", "a Chrome trace of Proton",
        lambda h: h.holds(b"{", b'"traceEvents"', b'"call_stack"')
        and b'"schemaVersion"' not in h.text,
        b'{"traceEvents": [{"ph": "X", "args": {"call_stack": ["ROOT"]}}]}',
        "proton.proton_trace", scoped=True, endings=(".chrome_trace",),
    ),
    FileFormat(
        "kineto", "a JSON trace of PyTorch's profiler",
        lambda h: h.holds(b"{", b'"traceEvents"')
        or h.holds(b"{", b'"schemaVersion"', b'"deviceProperties"')
        or h.holds(b"[", b'"ph"', b'"ts"'),
        b'{"traceEvents": []}',
        "kineto.kineto_trace", scoped=True, endings=(".json.gz", ".json.zst"),
        loose_endings=(".gz", ".zst", ".json", ".trace", ".pt"),
    ),
    FileFormat(
        "vllm-forward", "kernel sums of vllm bench forward",
        lambda h: h.holds(b"{", b'"replays"', b'"span_us"', b'"busy_us"', b'"kernels"'),
        b'{"replays": 3, "span_us": 1.0, "busy_us": 1.0, "kernels": []}',
        "vllm_forward.vllm_forward", endings=(".kernels.json",),
    ),
    FileFormat(
        GRAPH_STACKS, "Python stacks of graph nodes", lambda h: is_graph_stacks(h.text),
        b'{"25769803776": "/x/layernorm.py:60:forward"}',
    ),
    FileFormat(
        "nsys-stats", f"a CSV report of nsys stats ({REPORT_NAMES})",
        lambda h: h.has_table(lambda head: report_of(head) is not None),
        b"Total Time (ns),Instances,Name\n",
        "nsys_stats.nsys_stats_csv", loose_endings=(".csv",),
    ),
    FileFormat(
        "ncu-rep", "a report of Nsight Compute", lambda h: h.raw.startswith(REPORT_MAGIC),
        REPORT_MAGIC,
        "ncu_report.ncu_report", endings=(".ncu-rep",),
    ),
    FileFormat(
        "ncu", "what ncu --csv printed",
        lambda h: h.has_table(lambda head: is_details_page(head) or is_raw_page(head)),
        b'"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n',
        "ncu_csv.ncu_csv", loose_endings=(".csv",),
    ),
)  # fmt: skip
"""The first that shows counts. Results of load generators come after them."""

BY_NAME = {row.name: row for row in FORMATS}

_SURE = tuple(ending for row in FORMATS for ending in row.endings)
_ENDINGS = (*_SURE, *(ending for row in FORMATS for ending in row.loose_endings))


def named_as_trace(path: str) -> bool:
    """Whether a file is taken for a trace by its name alone; others may be, by what they hold."""
    path = path.lower()
    file = path.rsplit("/", 1)[-1]
    return path.endswith(_SURE) or (file.endswith(".json") and "trace" in file)


def without_endings(name: str) -> str:
    """A file's name without the endings that only say its format."""
    left = name
    while left.lower().endswith(_ENDINGS):
        left = left[: left.rindex(".")]
    return left or name


class FormatError(CommandError):
    """A file that is in no format; `what` is said of it without its path, and no way out.

    `log` is what was read of it as an engine's log; None where nobody tried.
    """

    log: EngineLog | None = None

    def __init__(self, path: Path, fault: str, way_out: str = "") -> None:
        super().__init__(f"{path} {fault}{': ' if way_out else ''}{way_out}")
        self.fault = fault

    def with_log(self, log: EngineLog | None) -> FormatError:
        """The error with the log that was read on the way."""
        self.log = log
        return self


class UnknownFormatError(FormatError):
    """A file that no reader knows."""


def format_of(path: Path) -> str:
    """The name of the format: one of `FORMATS`, BENCHMARK, BUNDLE, PIECES or FOLDER."""
    try:
        if path.is_dir():
            return _folder(path)
        if not path.exists():
            raise FormatError(path, "does not exist")
        if not path.is_file():
            raise FormatError(path, "is no file; give a trace, a bundle or a folder of them")
        with path.open("rb") as file:
            raw = file.read(512)
    except OSError as error:
        raise FormatError(path, f"cannot be read ({error.strerror or error})") from error
    if not raw:
        raise FormatError(path, "is empty; record it again")
    head = Head(path, raw)
    for trace_format in FORMATS:
        if trace_format.shows(head):
            return trace_format.name
    # Whoever reads traces needs no load generators.
    from spark_prof.traces.benchmarks.read import recognise

    if recognise(path) is not None:
        return BENCHMARK
    other, log = _of_doctor(path)
    if other:
        fault = f"is {other} and no recording; ask: spark-prof doctor {path}"
        raise FormatError(path, fault).with_log(log)
    raise UnknownFormatError(
        path,
        "is nothing that can be read",
        "give a bundle, a trace (nsys, PyTorch, CUPTI, Proton, ncu), a load generator's result, or "
        "an archive of these",
    ).with_log(log)


def _of_doctor(path: Path) -> tuple[str, EngineLog | None]:
    """What `spark-prof doctor` takes, if the file is such a thing, and what was read of a log."""
    from spark_prof.traces.checkpoint import is_model
    from spark_prof.traces.readers.engine_log import read_engine_log

    if is_model(str(path)):
        return "a model", None
    try:
        log = read_engine_log(path)
    except CommandError:
        return "", None
    return "an engine's log" if log.statements else "", log


def _folder(path: Path) -> str:
    if (path / META_FILE).is_file():
        return BUNDLE
    if pieces_folder(path).is_dir():
        return PIECES
    if any(path.glob("*.activity.bin")):
        return "cupti"
    return FOLDER
