"""The torch backend: PyTorch's own profiler (Kineto) inside the worker.

On a GPU it watches CUDA activity only, because layers come from spark-prof's own ranges; on a CPU
engine it watches operators.

Ending a piece holds the interpreter's lock and takes about 3 us an operator, in whatever thread it
is called: only short pieces make short pauses. `torch.profiler.profile` is not used: it refers to
itself, so that its results, 1.5 kB an operator, stay until Python collects garbage of the oldest
generation, which an engine hardly ever does.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from spark_prof.files import publish
from spark_prof.traces.chunks import kineto_name


class TorchBackend:
    """Runs torch.autograd.profiler.profile and saves each piece as a Kineto trace."""

    fixed_seconds: float | None = None
    """What a piece costs that holds nothing, where more cost more; see `profiler.piece_length`."""

    def __init__(self, folder: Path, process: str) -> None:
        import torch

        self._gpu = torch.cuda.is_available()
        self._folder, self._process, self._piece = folder, process, 0
        self._profile: Any = None
        # The first start loads libraries, CUPTI for seconds: not inside the window.
        with _profile(gpu=self._gpu):
            pass
        if not self._gpu:
            began = time.perf_counter()
            with _profile(gpu=False) as empty:
                pass
            with suppress(OSError):
                self._save(empty, f"{process}.empty")
            self.fixed_seconds = time.perf_counter() - began
            (self._folder / f"{process}.empty").unlink(missing_ok=True)

    def start(self, piece: int) -> None:
        """Begins to watch; Kineto keeps everything in memory until `stop`."""
        self.discard()  # one whose stop failed would go on, and two at once end in a crash
        self._piece = piece
        profile = _profile(gpu=self._gpu)
        profile.__enter__()
        self._profile = profile

    def discard(self) -> None:
        """Stops to watch if it still does, and forgets what was seen."""
        profiled, self._profile = self._profile, None
        if profiled is not None:
            profiled.__exit__(None, None, None)

    def stop(self) -> None:
        """Stops to watch and writes the Kineto trace of the piece."""
        profiled, self._profile = self._profile, None
        if profiled is None:
            return
        profiled.__exit__(None, None, None)
        self._save(profiled, kineto_name(self._process, self._piece))

    def _save(self, profiled: Any, name: str) -> None:
        temporary = self._folder / f".{os.getpid()}.{name}"
        profiled.export_chrome_trace(str(temporary))
        try:
            publish(temporary, self._folder / name, b"}")
        except OSError:
            # Where the disk is full, Kineto leaves what it wrote first under a name of its own.
            temporary.with_name(f"{temporary.name}.tmp").unlink(missing_ok=True)
            raise


def _profile(*, gpu: bool) -> Any:
    """A profiler that was not started; by reference counting alone all of it goes with it."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.autograd.profiler import profile

    config = None
    if not gpu:
        # Operators are only saved, not looked at: torch then makes no second copy of them.
        with suppress(TypeError):  # an earlier torch
            config = _ExperimentalConfig(trace_only=True)
    device = "cuda" if gpu else None
    return profile(use_kineto=True, use_cpu=not gpu, use_device=device, experimental_config=config)
