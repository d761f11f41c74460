"""What was measured of each kernel: the file of configurations, and how it is read and written.

The package has one such file, tuned.json. `spark-prof kernels tune` writes another one into the
user's cache folder, whose rows count before the package's. Both are read with the types below,
so that a file of another kind is refused and nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from spark_prof import files
from spark_prof.files import cache_folder
from spark_prof.kernels.kernel_error import KernelError


def write_whole(path: Path, content: bytes) -> None:
    """Puts a file in place of what is there, if anything; readers see the one or the other."""
    try:
        files.write_whole(path, content)
    except OSError as error:
        raise KernelError(f"cannot write {path}: {error.strerror or error}") from error


_NOISE = 0.02
"""How far two runs of the same kernel on the same GPU may be apart."""

ELSEWHERE, ELSEWHERE_BF16 = 1.05, 1.3
"""How many times as fast a kernel must have been on another GPU of the architecture. From an H100
to an H200, which has 1.4 times the bandwidth, the worst ratio to cuBLAS fell from 1.05 to 0.83."""

ALONE = "spark-prof, as fastest alone"
"""What stands as the other kernel where configurations were searched in a chain of layers: this
kernel as it was before, in the same chain and by turns."""

Duration: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
"""A median time in us: of a ratio it is the divisor."""

SHIPPED = Path(__file__).resolve().parent / "tuned.json"


@dataclass(frozen=True)
class TunedShape:
    """What one call computes: the key of a measurement."""

    kernel: str
    format: str  # of the weights, such as nvfp4
    rows: int  # of the weight, N; of experts those of gate and up together
    columns: int
    tokens: int
    experts: int = 1  # how many there are; 1 for a dense layer
    top_k: int = 1  # experts a token; 1 for a dense layer


@dataclass(frozen=True)
class Tuned:
    """The best configuration found for one piece of work, and what it has to beat."""

    work: TunedShape
    # Of the kernel, by name, such as the fields of `dense.LinearConfig`; empty for its default.
    config: dict[str, int]
    us: Duration  # of a call, inside a CUDA graph with a cold L2
    fallback: str = ""  # the fastest other kernel of the same run, empty if none ran
    fallback_us: Duration | None = None  # None if none ran

    @property
    def ratio(self) -> float | None:
        """How many times as long the fallback takes."""
        return None if self.fallback_us is None else self.fallback_us / self.us

    @property
    def wins(self) -> bool:
        """Whether the kernel was measured to be no slower than its fallback.

        One for BF16 weights has to be faster by more than measurements differ: all that it may
        bring is time, where others save memory too. Not so beside itself in a chain of layers.
        """
        beside_others = self.work.format == "bf16" and self.fallback != ALONE
        least = 1 + _NOISE if beside_others else 1.0
        return self.ratio is not None and self.ratio >= least


@dataclass(frozen=True)
class TuningRun:
    """Everything that one run of the benchmark measured, on one machine."""

    architecture: str  # what the kernels were compiled for, such as sm_90a
    machine: str  # the GPU's name: two of one architecture, such as H100 and H200, differ
    date: str  # when, ISO 8601 in UTC
    driver: str  # its version, empty where unknown
    versions: dict[str, str]
    rows: tuple[Tuned, ...]

    def speaks_for(self, row: Tuned, gpu: str) -> bool:
        """Whether one of its rows lets the kernel be chosen on a GPU of a name, empty for any."""
        if not row.wins or row.ratio is None:
            return False
        here = not gpu or gpu == self.machine
        return here or row.ratio >= (ELSEWHERE_BF16 if row.work.format == "bf16" else ELSEWHERE)


@dataclass(frozen=True)
class _File:
    schema: Literal[1]
    runs: tuple[TuningRun, ...]


def user_file() -> Path | None:
    """The file of this user's own measurements, None where no cache folder is known."""
    folder = cache_folder()
    return None if folder is None else folder / "tuned.json"


@cache
def known_runs() -> tuple[TuningRun, ...]:
    """Everything measured that counts here: the package's file under the user's.

    Read once a process; `known_runs.cache_clear()` reads again.
    """
    file = user_file()
    return merged(read(SHIPPED), read(file) if file is not None and file.exists() else ())


_MOST_BYTES = 64 << 20
"""Of a file; a search of all that is known takes less than one."""


def read(path: Path) -> tuple[TuningRun, ...]:
    """The runs of a file; of work that several of them measured the last one counts."""
    try:
        waits = path.exists() and not (path.is_file() or path.is_dir())  # as a named pipe
        if waits or path.stat().st_size > _MOST_BYTES:
            raise KernelError(f"{path} is no file of at most {_MOST_BYTES >> 20} MiB")
        return merged((), msgspec.json.decode(path.read_bytes(), type=_File).runs)
    except OSError as error:
        raise KernelError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KernelError(
            f"{path} is no file of tuned kernels of this version ({error}); delete it, then"
            " measure again with `spark-prof kernels tune`"
        ) from error


def merged(older: Iterable[TuningRun], newer: Iterable[TuningRun]) -> tuple[TuningRun, ...]:
    """All runs, without what a newer one measured again on a GPU of the same name."""
    runs = tuple(older)
    for run in newer:
        again = {row.work for row in run.rows}
        remaining = [
            replace(r, rows=tuple(row for row in r.rows if row.work not in again))
            if (r.architecture, r.machine) == (run.architecture, run.machine)
            else r
            for r in runs
        ]
        runs = (*(r for r in remaining if r.rows), run)
    return runs


def save(run: TuningRun, path: Path | None = None) -> Path:
    """Adds a run to a file of measurements, by default the user's own; returns its path."""
    path = user_file() if path is None else path
    if path is None:
        raise KernelError("no home folder is known to keep measurements in; set XDG_CACHE_HOME")
    runs = merged(read(path) if path.exists() else (), (run,))
    # Where that fails, writing says why.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _text(runs))
    known_runs.cache_clear()
    return path


def _text(runs: tuple[TuningRun, ...]) -> bytes:
    """The file's text, one measurement a line so that differences can be read."""
    parts = []
    for run in runs:
        head = msgspec.json.encode(replace(run, rows=())).removesuffix(b"[]}")
        rows = b",\n".join(msgspec.json.encode(row) for row in run.rows)
        parts.append(head + b"[\n" + rows + b"\n]}")
    return b'{"schema":1,"runs":[\n' + b",\n".join(parts) + b"\n]}\n"
