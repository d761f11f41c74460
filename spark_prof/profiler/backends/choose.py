"""What a backend does for a recording, and which one records the kernels of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from spark_prof.profiler.backends.handover import torch_profiler_runs
from spark_prof.profiler.backends.native import Native, NativeError, load_native
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings, registry_folder
from spark_prof.traces.chunks import CLOCK_MARK, cubins_folder, write_refusal

_MARKS = 5


class CaptureBackend(Protocol):
    """Watches what runs, a piece at a time; all calls come from the thread of the steps."""

    def start(self, piece: int) -> None:
        """Begins to watch, for the piece of that number."""

    def stop(self) -> None:
        """Stops to watch and writes what was seen since `start`."""

    def discard(self) -> None:
        """Ends for good: forgets what no `stop` wrote, and gives way to other profilers."""


def early_native(settings: Settings | None) -> Native | None:
    """Subscribes to CUPTI, before anything is loaded or captured; None where that is impossible.

    It raises NativeError only where that backend was asked for by name. Without settings a
    recording may come later.
    """
    backend = settings.backend if settings else "auto"
    if backend == "nsys":
        mark_clock()  # so that the captures lie between two marks
    if backend not in ("auto", "cupti") or not _on_nvidia():
        return None
    try:
        native = load_native(registry_folder())
        native.subscribe()
    except NativeError:
        if backend == "cupti":
            raise
        return None
    if settings is not None:
        _keep_cubins(native, settings)
        if settings.nvtx:
            from spark_prof.profiler.backends.cupti import send_to_cupti

            send_to_cupti(native.libcupti)
    return native


def _keep_cubins(native: Native, settings: Settings) -> None:
    folder = cubins_folder(settings.pieces)
    folder.mkdir(parents=True, exist_ok=True)
    native.keep_cubins(folder)


def choose_backend(settings: Settings, process: Process) -> tuple[str, CaptureBackend | None]:
    """The backend that the settings ask for, with its name.

    By itself it takes CUPTI on an NVIDIA GPU and torch's profiler elsewhere, or where CUPTI cannot
    be had; the bundle's log then says why.
    """
    backend = settings.backend
    if backend == "cupti" and not _on_nvidia():
        write_refusal(process.folder, "--backend cupti needs an NVIDIA GPU; leave it out")
        return "none", None
    if backend in ("auto", "cupti", "torch") and torch_profiler_runs():
        write_refusal(process.folder, "torch's profiler is running in this engine; stop it first")
        return "none", None
    if backend in ("auto", "cupti") and _on_nvidia():
        from spark_prof.profiler.backends.cupti import CuptiBackend, send_to_cupti

        try:
            native = load_native(registry_folder())
            native.subscribe()
            _keep_cubins(native, settings)
            if settings.nvtx and (other := send_to_cupti(native.libcupti)):
                process.log(
                    f"NVTX markers go to {other}, which was set before; there are none here"
                )
            return "cupti", CuptiBackend(native, process.folder, process.name, nvtx=settings.nvtx)
        except NativeError as error:
            if backend == "cupti":
                write_refusal(process.folder, f"the CUPTI backend cannot work: {error}")
                return "none", None
            process.log(f"torch's profiler is used because CUPTI cannot be: {error}")
    if backend in ("auto", "cupti", "torch"):
        from spark_prof.profiler.backends.torch import TorchBackend

        if settings.nvtx:
            process.log("NVTX markers need the CUPTI backend; the recording goes on without")
        return "torch", TorchBackend(process.folder, process.name)
    if backend == "nsys":
        return "nsys", NsysBackend()
    return backend, None


def _on_nvidia() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


class NsysBackend:
    """Marks the clock where a piece begins and ends; nsys writes the kernels.

    Its clock and the one of the recorded steps drift apart: see traces/readers/nsys_clock.py.
    """

    def __init__(self) -> None:
        mark_clock()

    def start(self, piece: int = 0) -> None:  # noqa: ARG002
        """Marks the clock."""
        mark_clock()

    stop = discard = start


def mark_clock(mark: Callable[[str], object] | None = None) -> None:
    """Leaves a burst of NVTX marks with the time in ns since the epoch, if anything can."""
    if mark := mark or _find_mark():
        for _ in range(_MARKS):
            mark(f"{CLOCK_MARK}{time.time_ns()}")


def _find_mark() -> Callable[[str], object] | None:
    """Torch's own NVTX, which every CUDA build has, else the nvtx package's."""
    try:
        import torch

        if torch.version.cuda:
            return torch.cuda.nvtx.mark  # type: ignore[no-any-return]
        import nvtx
    except ImportError:
        return None
    return lambda text: nvtx.mark(message=text)
