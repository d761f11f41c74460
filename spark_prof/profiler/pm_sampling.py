"""PM sampling through cupti-python: the GPU's hardware counters, read at a fixed interval.

The calls are those of CUPTI's documented PM Sampling and Profiler Host APIs
(docs.nvidia.com/cupti, "CUPTI PM Sampling API"), in cupti-python's public bindings. Its own
`pm_sampling.Collector` builds objects for each sample and loses all samples when the hardware
buffer overflows, so the same calls are made here with structures that are reused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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


def _explanation(doing: str, error: Any, version: int) -> CounterError:
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


Image = npt.NDArray[np.uint8]
Times = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

_PM_SAMPLING = 1  # CUPTI_PROFILER_TYPE_PM_SAMPLING
_EVERY_SO_MANY_NS, _KEEP_OLDEST = 1, 0


@dataclass(frozen=True)
class Samples:
    """What one read gave."""

    start_ns: Times  # when each interval began, in CUPTI's clock
    end_ns: Times  # when it ended
    values: Values  # one row an interval, one column a metric
    overflowed: bool  # the hardware's buffer was full, which loses what was in it


class PmSampling:
    """The counters of one GPU.

    Raises:
        CounterError: cupti-python, libcupti, the driver or a permission is missing.
    """

    def __init__(self, device: int) -> None:
        self._calls, self._version = _bindings(), _library_version()
        self._host: dict[str, int] = {}
        self._do("ProfilerInitialize")
        self.chip = str(self._do("DeviceGetChipName", device_index=device).p_chip_name)
        try:
            enabled = self._do("PmSamplingEnable", device_index=device)
        except CounterError:
            with suppress(CounterError):
                self._do("ProfilerDeInitialize")
            raise
        self._object = {"p_pm_sampling_object": int(enabled.p_pm_sampling_object)}

    def configure(self, metrics: Sequence[str], interval_ns: int, buffer_bytes: int) -> None:
        """Chooses what to sample and how often; not while it samples.

        Raises:
            CounterError: the chip has no such metric, or needs more than one pass for them.
        """
        self._close_host()
        host = self._do("ProfilerHostInitialize", profiler_type=_PM_SAMPLING, p_chip_name=self.chip)
        self._host = {"p_host_object": int(host.p_host_object)}
        self._names = (ctypes.c_char_p * len(metrics))(*(name.encode() for name in metrics))
        self._metrics = {
            "pp_metric_names": ctypes.addressof(self._names), "num_metrics": len(metrics),
        }  # fmt: skip
        self._do("ProfilerHostConfigAddMetrics", **self._host, **self._metrics)
        size = self._do("ProfilerHostGetConfigImageSize", **self._host).config_image_size
        # Kept: nothing says that libcupti copies it.
        self._config = np.zeros(int(size), np.uint8)
        where = {"p_config_image": self._config.ctypes.data, "config_image_size": int(size)}
        self._do("ProfilerHostGetConfigImage", **self._host, **where)
        self._do(
            "PmSamplingSetConfig",
            **self._object,
            config_size=int(size),
            p_config=self._config.ctypes.data,
            hardware_buffer_size=buffer_bytes,
            sampling_interval=interval_ns,
            trigger_mode=_EVERY_SO_MANY_NS,
            hw_buffer_append_mode=_KEEP_OLDEST,
        )

    def start(self) -> None:
        """Begins to sample."""
        self._do("PmSamplingStart", **self._object)

    def stop(self) -> None:
        """Ends sampling; callable from any thread."""
        self._do("PmSamplingStop", **self._object)

    def read(self, most: int) -> Samples:
        """Takes up to `most` samples out of the hardware's buffer, the oldest first, after `stop`.

        Needs about 15 kB of memory for each. After an overflow there are none, and libcupti
        refuses to start again: open the counters anew.
        """
        size = self._do(
            "PmSamplingGetCounterDataSize",
            **self._object,
            p_metric_names=self._metrics["pp_metric_names"],
            num_metrics=self._metrics["num_metrics"],
            max_samples=most,
        )
        image = np.zeros(int(size.counter_data_size), np.uint8)
        count, overflowed = self._decode(image)
        times, values = self._times(image, count), self._values(image, count)
        # What was counted before `start` is in the first sample, which begins at 0 or at the last
        # stop; a sample that libcupti counts but did not fill has no times.
        known = (times[:, 0] > 0) & (times[:, 1] > times[:, 0])
        known[:1] = False
        return Samples(times[known, 0], times[known, 1], values[known], overflowed)

    def timestamp_ns(self) -> int:
        """CUPTI's clock now."""
        return int(self._calls.get_timestamp())

    def close(self) -> None:
        """Gives the counters back."""
        self._close_host()
        opened, self._object = self._object, {}
        if opened:
            self._do("PmSamplingDisable", **opened)
            self._do("ProfilerDeInitialize")

    def _do(self, name: str, **values: Any) -> Any:
        """Calls the function, such as PmSamplingEnable, with those fields; what it has filled."""
        params = self._params(name, **values)
        function = _constant(name).lower()
        with self._explained(function):
            getattr(self._calls, function)(params.ptr)
        return params

    def _params(self, name: str, **values: Any) -> Any:
        params = getattr(self._calls, f"{name}Params")()
        params.struct_size = getattr(self._calls, f"{_constant(name)}_PARAMS_STRUCT_SIZE")
        for field, value in values.items():
            setattr(params, field, value)
        return params

    @contextmanager
    def _explained(self, function: str) -> Iterator[None]:
        """Turns libcupti's refusals inside it into CounterErrors."""
        try:
            yield
        except self._calls.cuptiError as error:
            raise _explanation(function, error, self._version) from error

    def _decode(self, image: Image) -> tuple[int, bool]:
        """Fills the image with the next samples; how many, and whether the buffer was full."""
        where = {"p_counter_data": image.ctypes.data, "counter_data_size": len(image)}
        self._do("PmSamplingCounterDataImageInitialize", **self._object, **where)
        decode = self._params("PmSamplingDecodeData", **self._object, **_in(image))
        calls = self._calls
        with self._explained("pm_sampling_decode_data"):
            try:
                calls.pm_sampling_decode_data(decode.ptr)
            except calls.cuptiError as error:
                if error.status == calls.Result.ERROR_OUT_OF_MEMORY:
                    return 0, True
                raise
        info = self._do("PmSamplingGetCounterDataInfo", **_in(image))
        return int(info.num_completed_samples), bool(decode.overflow)

    def _times(self, image: Image, count: int) -> Times:
        info = self._params("PmSamplingCounterDataGetSampleInfo", **self._object, **_in(image))
        call, pointer = self._calls.pm_sampling_counter_data_get_sample_info, info.ptr
        times = np.empty((count, 2), np.int64)
        with self._explained("pm_sampling_counter_data_get_sample_info"):
            for index in range(count):
                info.sample_index = index
                call(pointer)
                times[index] = info.start_timestamp, info.end_timestamp
        return times

    def _values(self, image: Image, count: int) -> Values:
        values = np.full((count, len(self._names)), np.nan)
        fields = {**self._host, **_in(image), **self._metrics}
        wanted = self._params("ProfilerHostEvaluateToGpuValues", **fields)
        # CUPTI has no call for many samples: the loop touches nothing but the two changing fields.
        call, pointer = self._calls.profiler_host_evaluate_to_gpu_values, wanted.ptr
        address, row_bytes = values.ctypes.data, values.strides[0]
        with self._explained("profiler_host_evaluate_to_gpu_values"):
            for index in range(count):
                wanted.range_index = index
                wanted.p_metric_values = address + index * row_bytes
                call(pointer)
        return values

    def _close_host(self) -> None:
        host, self._host = self._host, {}
        if host:
            self._do("ProfilerHostDeinitialize", **host)


def _constant(name: str) -> str:
    """PmSamplingEnable as the bindings write it in a constant: PM_SAMPLING_ENABLE."""
    parts = "".join(f"_{letter}" if letter.isupper() else letter for letter in name)
    return parts.upper().lstrip("_").replace("DE_INITIALIZE", "DEINITIALIZE")


def _in(image: Image) -> dict[str, int]:
    return {"p_counter_data_image": image.ctypes.data, "counter_data_image_size": len(image)}
