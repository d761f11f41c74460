"""The torch backend: PyTorch's own profiler (Kineto) inside the worker.

On a GPU it watches CUDA activity only, because layers come from spark-prof's own ranges; on a CPU
engine it watches operators.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from spark_prof.files import publish
from spark_prof.traces.chunks import kineto_name


class TorchBackend:
    """Runs torch.profiler.profile and saves each piece as a Kineto trace."""

    def __init__(self, folder: Path, process: str) -> None:
        import torch
        from torch.profiler import ProfilerActivity

        # Torch warns that a new cycle clears the events: each piece is meant to be one.
        warnings.filterwarnings("ignore", message=".*Profiler clears events.*")
        gpu = torch.cuda.is_available()
        self._activities = [ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]
        self._folder, self._process, self._piece = folder, process, 0
        self._profile: Any = None
        if gpu:
            # The first start loads CUPTI, which takes seconds: not inside the window.
            from torch.profiler import profile

            with profile(activities=self._activities):
                pass

    def start(self, piece: int) -> None:
        """Begins to watch; Kineto keeps everything in memory until `stop`."""
        from torch.profiler import profile

        self.discard()  # one whose stop failed would go on, and two at once end in a crash
        self._piece = piece
        self._profile = profile(activities=self._activities)
        self._profile.start()

    def discard(self) -> None:
        """Stops to watch if it still does, and forgets what was seen."""
        profiled, self._profile = self._profile, None
        if profiled is not None:
            profiled.stop()

    def stop(self) -> None:
        """Stops to watch and writes the Kineto trace of the piece."""
        profiled, self._profile = self._profile, None
        if profiled is None:
            return
        profiled.stop()
        name = kineto_name(self._process, self._piece)
        temporary = self._folder / f".{os.getpid()}.{name}"
        profiled.export_chrome_trace(str(temporary))
        try:
            publish(temporary, self._folder / name, b"}")
        except OSError:
            # Where the disk is full, Kineto leaves what it wrote first under a name of its own.
            temporary.with_name(f"{temporary.name}.tmp").unlink(missing_ok=True)
            raise
