"""The file of a run's results: JSON, written anew after each piece of work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from spark_prof.kernels.bench.machine import Machine
from spark_prof.kernels.bench.results import Ceilings, Cell
from spark_prof.kernels.bench.run import LeftOut
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.tuning import write_whole

_SCHEMA = 1


@dataclass
class Report:
    """Everything that a run found until now."""

    machine: Machine
    ceilings: Ceilings
    cells: list[Cell] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    schema: int = _SCHEMA

    def add(self, found: Cell | LeftOut) -> None:
        """Takes the next result of a run."""
        if isinstance(found, Cell):
            self.cells.append(found)
        else:
            self.left_out.append(found)

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all.

        Raises:
            KernelError: it cannot be written.
        """
        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def read_report(path: Path) -> Report:
    """Reads a file of results.

    Raises:
        KernelError: it cannot be read or is no such file.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise KernelError(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KernelError(f"{path} is no result of benchmarks/kernels.py ({error})") from error
    if report.schema != _SCHEMA:
        raise KernelError(f"{path} is of another version of spark-prof; measure again")
    return report
