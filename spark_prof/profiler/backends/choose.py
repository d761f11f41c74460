"""What a backend does for a recording, and which one records the kernels of this process."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from spark_prof.profiler.backends.native import Native, NativeError, load_native
from spark_prof.profiler.backends.nsys_marks import NsysBackend, mark_clock
from spark_prof.profiler.backends.nvtx import send_to_cupti
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings, registry_folder
from spark_prof.traces.chunks import cubins_folder, write_refusal


class Backend(Protocol):
    """Watches what runs, a piece at a time; all calls come from the thread of the steps."""

    def start(self, piece: int) -> None:
        """Begins to watch, for the piece of that number."""

    def stop(self) -> None:
        """Stops to watch and writes what was seen since `start`."""

    def discard(self) -> None:
        """Stops to watch if it still does, and forgets what was seen."""


@runtime_checkable
class ArgumentReader(Protocol):
    """A backend that can read the arguments of kernels launched outside of graphs."""

    def read_launches(self, *, on: bool) -> None:
        """Reads them from now on, or not; each start and stop of the backend ends it.

        It costs some 10 us a launch, so it is for few steps.
        """


def early_native(settings: Settings | None) -> Native | None:
    """Subscribes to CUPTI, before anything is loaded or captured; None where that is impossible.

    Args:
        settings: the recording; None for one that may come later.

    Raises:
        NativeError: the CUPTI backend was asked for by name and cannot work here.
    """
    wanted = settings.backend if settings else "auto"
    if wanted == "nsys":
        mark_clock()  # so that the captures lie between two marks
    if wanted not in ("auto", "cupti") or not _on_nvidia():
        return None
    try:
        native = load_native(registry_folder())
    except NativeError:
        if wanted == "cupti":
            raise
        return None
    if settings is not None:
        _keep_cubins(native, settings)
        if settings.nvtx:
            send_to_cupti(native.libcupti)
    return native


def _keep_cubins(native: Native, settings: Settings) -> None:
    folder = cubins_folder(settings.pieces)
    folder.mkdir(parents=True, exist_ok=True)
    native.keep_cubins(folder)


def choose_backend(settings: Settings, process: Process) -> tuple[str, Backend | None]:
    """The backend that the settings ask for, with its name.

    By itself it takes CUPTI on an NVIDIA GPU and torch's profiler elsewhere, or where CUPTI cannot
    be had; the bundle's log then says why.
    """
    wanted = settings.backend
    if wanted == "cupti" and not _on_nvidia():
        write_refusal(process.folder, "--backend cupti needs an NVIDIA GPU; leave it out")
        return "none", None
    if wanted in ("auto", "cupti") and _on_nvidia():
        from spark_prof.profiler.backends.cupti import CuptiBackend

        try:
            native = load_native(registry_folder())
            _keep_cubins(native, settings)
            if settings.nvtx and (other := send_to_cupti(native.libcupti)):
                process.log(
                    f"NVTX markers go to {other}, which was set before; there are none here"
                )
            backend = CuptiBackend(native, process.folder, process.name, nvtx=settings.nvtx)
            return "cupti", backend
        except NativeError as error:
            if wanted == "cupti":
                write_refusal(process.folder, f"the CUPTI backend cannot work: {error}")
                return "none", None
            process.log(f"torch's profiler is used because CUPTI cannot be: {error}")
    if wanted in ("auto", "cupti", "torch"):
        from spark_prof.profiler.backends.torch import TorchBackend

        if settings.nvtx:
            process.log("NVTX markers need the CUPTI backend; the recording goes on without")

        return "torch", TorchBackend(process.folder, process.name)
    if wanted == "nsys":
        return "nsys", NsysBackend()
    return wanted, None


def _on_nvidia() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())
