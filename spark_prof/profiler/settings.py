"""What a recording shall do, as it travels from the command line to vLLM's processes.

Beside it the private folder where processes that can be attached to are listed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spark_prof.traces.chunks import pieces_folder

ENVIRONMENT = "SPARK_PROF"
"""The environment variable: settings as JSON to record, ``off`` to keep out of the process."""

WATCH_GRAPHS = "graphs"
"""Its value for a server that shall be attached to: CUDA graphs are watched while captured."""

REGISTRY = "SPARK_PROF_REGISTRY"
"""Names the registry's folder, for processes in a container that share it with this host."""

DEFAULT_STEPS = 500  # steps recorded when nobody says how many


@dataclass(frozen=True)
class Settings:
    """One recording."""

    bundle: str  # the bundle's folder, as the recorded process sees it
    steps: int = DEFAULT_STEPS  # steps to record; 0 for all of them
    warmup_steps: int = 0  # steps to let pass first
    decode_only: bool = False  # record only steps in which every request generates
    # What watches the kernels: cupti, torch, nsys, none for steps and ranges only, or auto for
    # cupti on an NVIDIA GPU and torch elsewhere.
    backend: str = "auto"
    # Record the steady state only: decode steps of each batch size, once settled.
    steady: bool = False
    # The batch sizes to wait for in the steady state; none for any.
    batch_sizes: tuple[int, ...] = ()
    stretch: int = 0  # steps of a turn that are watched, the rest is only timed; 0 watches all
    period: int = 0  # steps of a turn
    sampled: bool = False  # watch some steps of each kind where watching slows them down
    steps_per_piece: int = 256  # recorded steps after which a piece is flushed
    # Hooks that shall fail when first called; how the tests prove the fences.
    faults: tuple[str, ...] = ()
    counters: bool = False  # also sample the GPU's hardware counters
    nvtx: bool = False  # also record the NVTX ranges of the recorded program
    host: bool = False  # also sample Python stacks from outside
    # The same for all processes of one recording, on every host; tells recordings apart.
    run: str = ""

    @property
    def folder(self) -> Path:
        """The bundle's folder."""
        return Path(self.bundle)

    @property
    def pieces(self) -> Path:
        """Where the recorded processes write."""
        return pieces_folder(self.folder)

    @property
    def watched_steps(self) -> int:
        """Steps after which the window closes; 0 where nobody knows."""
        return self.steps * (len(self.batch_sizes) if self.steady else 1)

    def to_json(self) -> str:
        """The settings as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Reads what `to_json` wrote, leaving out what it does not know; else a DecodeError."""
        return msgspec.json.decode(text, type=cls)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings | None:
        """The recording that the environment asks for, None when it asks for none."""
        text = (os.environ if environment is None else environment).get(ENVIRONMENT, "")
        return cls.from_json(text) if text.startswith("{") else None


def registry_folder() -> Path:
    """Where this user's vLLM processes say that they can be recorded; for this user alone.

    Processes in a container that spark-prof started say so in the folder that it named for them.

    Raises:
        PermissionError: the folder belongs to somebody else or is open to others.
    """
    if named := os.environ.get(REGISTRY, ""):
        return Path(named)
    folder = Path(tempfile.gettempdir()) / f"spark-prof-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not this user's private folder")
    return folder
