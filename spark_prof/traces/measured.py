"""Measured ceilings of a machine: the file in which they are kept, and where it is found.

One JSON file a device, in `$XDG_STATE_HOME/spark-prof/ceilings`. It is read with the types below,
so that a file of another kind is refused and nothing in it is executed.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spark_prof.errors import CommandError, os_errors
from spark_prof.files import write_whole

_SCHEMA = 1
_LARGEST_FILE = 1 << 20
_MOST_FILES = 256
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True)
class Measurement:
    """One measured ceiling."""

    # Read, write or copy (bytes/s), a precision of spark_prof.vocabulary (dense operations/s of a
    # matrix product), launch_graph, launch_eager or a name of rules/node_prices.py (s).
    quantity: str
    value: float  # the median of the repeats, in `unit`
    unit: str  # B/s, op/s or s
    lowest: float
    highest: float
    repeats: int
    how: str  # what ran


@dataclass(frozen=True)
class DeviceState:
    """Clocks and temperature at one moment; None where the driver does not tell."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()  # reasons for which the clocks are held down

    @property
    def words(self) -> str:
        """The state in words; empty where nothing is known."""
        parts = [
            f"SM clock {self.sm_mhz} MHz" if self.sm_mhz else "",
            f"memory clock {self.memory_mhz} MHz" if self.memory_mhz else "",
            f"{self.temperature_c} degrees Celsius" if self.temperature_c else "",
            f"{self.power_w:.0f} W" if self.power_w else "",
            f"clocks held down by {' and '.join(self.throttled)}" if self.throttled else "",
        ]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class MeasuredMachine:
    """What a machine reached when it was measured."""

    device: str  # name of the GPU as its driver tells it, or of the processor
    taken: str  # when, ISO 8601 in UTC
    measurements: tuple[Measurement, ...]  # one a quantity
    before: DeviceState = DeviceState()
    after: DeviceState = DeviceState()
    uuid: str = ""  # of the GPU, empty for a processor
    compute_capability: str | None = None  # None for a processor
    driver: str = ""
    torch: str = ""
    notes: tuple[str, ...] = ()  # what was not measured, and why
    schema: int = _SCHEMA

    def value(self, quantity: str) -> float | None:
        """The measured ceiling of that quantity, None where it was not measured."""
        return next((m.value for m in self.measurements if m.quantity == quantity), None)


def state_folder() -> Path:
    """Where measured ceilings are kept, by the XDG base directory specification."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    base = Path(state_home) if os.path.isabs(state_home) else Path.home() / ".local" / "state"
    return base / "spark-prof" / "ceilings"


def keep_measured(measured: MeasuredMachine, folder: Path | None = None) -> Path:
    """Writes the file of that device, in place of an earlier one; returns its path."""
    folder = folder or state_folder()
    name = _UNSAFE.sub("-", measured.uuid or measured.device).strip("-.")[:100] or "device"
    path = folder / f"{name}.json"
    text = msgspec.json.format(msgspec.json.encode(measured), indent=2) + b"\n"
    with os_errors(f"cannot write {path}", "set XDG_STATE_HOME to another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return path


def read_measured(path: Path) -> MeasuredMachine:
    """Reads what `spark-prof doctor --measure` kept."""
    with os_errors(f"cannot read {path}"):
        if not path.is_file():
            raise CommandError(f"{path} is no file; `spark-prof doctor --measure` writes one")
        with open(path, "rb") as file:
            text = file.read(_LARGEST_FILE + 1)
    if len(text) > _LARGEST_FILE:
        raise CommandError(f"{path} is too long for a file of measured ceilings; measure again")
    try:
        measured = msgspec.json.decode(text, type=MeasuredMachine)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(
            f"{path} holds no measured ceilings ({error}); run `spark-prof doctor --measure` again"
        ) from error
    if measured.schema != _SCHEMA:
        raise CommandError(f"{path} is of another version of spark-prof; measure again")
    for entry in measured.measurements:
        # Every one of them is divided by.
        if not (math.isfinite(entry.value) and entry.value > 0):
            raise CommandError(f"{path} says {entry.value} for {entry.quantity}; measure again")
    return measured


def find_measured(device: str) -> tuple[Path, MeasuredMachine] | None:
    """The latest measurement of a device of that name, and its file; None where there is none.

    Files that are damaged are passed over: nobody named them.
    """
    measurements = []
    with suppress(OSError):
        for path in sorted(state_folder().glob("*.json"))[:_MOST_FILES]:
            with suppress(CommandError):
                measurements.append((path, read_measured(path)))
    of_device = [pair for pair in measurements if pair[1].device == device]
    return max(of_device, key=lambda pair: pair[1].taken, default=None)


def measured_for(device: str, file: Path | None = None) -> MeasuredMachine | None:
    """The measured ceilings to hold a recording of that device against, None without any."""
    if file is None:
        latest = find_measured(device)
        return latest[1] if latest else None
    measured = read_measured(file)
    if measured.device != device:
        raise CommandError(
            f"{file} was measured on {measured.device}, the recording is of {device or 'no GPU'}; "
            "give a file of the same device"
        )
    return measured
