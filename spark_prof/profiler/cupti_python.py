"""Calls into libcupti through cupti-python's public bindings; refusals are explained in a line."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OLDEST_LIBRARY = 130400
_INVALID_OPERATION, _NOT_SUPPORTED, _NO_PRIVILEGES = 7, 27, (35, 40)
_VIRTUAL = 33

_INSTALL = "cupti-python is not installed beside vLLM: pip install 'spark-prof[counters]'"
_PRIVILEGE = (
    "this user may not read the GPU's counters: load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0, or give the process CAP_PERFMON or CAP_SYS_ADMIN"
)


class CounterError(Exception):
    """The counters cannot be read; one line that says why and what would help."""


class Cupti:
    """cupti-python's bindings on the libcupti of this process.

    Attributes:
        calls: the module of the bindings.
        version: cuptiGetVersion of the libcupti, such as 130401; 0 where it cannot be asked.

    Raises:
        CounterError: cupti-python is missing, too old or does not work here.
    """

    def __init__(self) -> None:
        self.calls = _bindings()
        self.version = _library_version()

    def params(self, name: str, **values: Any) -> Any:
        """A parameter structure of CUPTI, such as PmSamplingEnable, with those fields set."""
        params = getattr(self.calls, f"{name}Params")()
        params.struct_size = getattr(self.calls, f"{_constant(name)}_PARAMS_STRUCT_SIZE")
        for field, value in values.items():
            setattr(params, field, value)
        return params

    def call(self, function: str, params: Any) -> None:
        """Calls the function; a refusal is a CounterError."""
        with self.explained(function):
            getattr(self.calls, function)(params.ptr)

    @contextmanager
    def explained(self, function: str) -> Iterator[None]:
        """Turns libcupti's refusals inside it into CounterErrors."""
        try:
            yield
        except self.calls.cuptiError as error:
            raise _explained(function, error, self.version) from error


def _constant(name: str) -> str:
    """PmSamplingEnable as the bindings write it in a constant: PM_SAMPLING_ENABLE."""
    parts = "".join(f"_{letter}" if letter.isupper() else letter for letter in name)
    return parts.upper().lstrip("_").replace("DE_INITIALIZE", "DEINITIALIZE")


def _bindings() -> Any:
    """cupti-python's bindings, new enough for PM sampling."""
    try:
        import cupti.cupti as bindings
    except ImportError as error:
        raise CounterError(_INSTALL) from error
    except Exception as error:  # cupti-python's own kinds: no driver, no libcupti
        raise CounterError(f"cupti-python cannot be used ({error})") from error
    if not hasattr(bindings, "pm_sampling_enable"):
        raise CounterError("cupti-python is older than 13.4: pip install -U cupti-python")
    return bindings


def _library_version() -> int:
    """CuptiGetVersion of the loaded libcupti, such as 130401; 0 where it cannot be asked."""
    version = ctypes.c_uint32()
    try:
        ctypes.CDLL("libcupti.so.13").cuptiGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


def _explained(doing: str, error: Any, version: int) -> CounterError:
    status = int(error.status)
    if status in _NO_PRIVILEGES:
        return CounterError(_PRIVILEGE)
    if status == _VIRTUAL:
        return CounterError("a virtual GPU does not hand out its counters")
    if 0 < version < _OLDEST_LIBRARY:
        return CounterError(
            f"the loaded libcupti ({version}) is too old to sample counters: start with "
            "LD_LIBRARY_PATH naming the folder of libcupti 13.4 or newer"
        )
    if status == _INVALID_OPERATION and doing == "pm_sampling_enable":
        return CounterError("another profiler is using this GPU's counters")
    if status == _NOT_SUPPORTED:
        return CounterError("this GPU cannot sample those counters in one pass")
    return CounterError(f"libcupti refused {doing.replace('_', ' ')} ({error})")
