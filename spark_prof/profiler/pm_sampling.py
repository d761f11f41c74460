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

    Args:
        device: number of the GPU in this process.

    Raises:
        CounterError: cupti-python, libcupti, the driver or a permission is missing.
    """

    def __init__(self, device: int) -> None:
        self._cupti = Cupti()
        self._metrics: tuple[str, ...] = ()
        self._host = 0
        self._cupti.call("profiler_initialize", self._cupti.params("ProfilerInitialize"))
        chip = self._cupti.params("DeviceGetChipName", device_index=device)
        self._cupti.call("device_get_chip_name", chip)
        self.chip = str(chip.p_chip_name)
        enable = self._cupti.params("PmSamplingEnable", device_index=device)
        try:
            self._cupti.call("pm_sampling_enable", enable)
        except CounterError:
            with suppress(CounterError):
                self._end()
            raise
        self._object = int(enable.p_pm_sampling_object)

    def configure(self, metrics: Sequence[str], interval_ns: int, buffer_bytes: int) -> None:
        """Chooses what to sample and how often; not while it samples.

        Raises:
            CounterError: the chip has no such metric, or needs more than one pass for them.
        """
        self._close_host()
        host = self._cupti.params(
            "ProfilerHostInitialize", profiler_type=_PM_SAMPLING, p_chip_name=self.chip
        )
        self._cupti.call("profiler_host_initialize", host)
        self._host = int(host.p_host_object)
        self._metrics = tuple(metrics)
        self._names = (ctypes.c_char_p * len(metrics))(*(name.encode() for name in metrics))
        # Kept: nothing says that libcupti copies it.
        self._config = image = self._config_image()
        config = self._cupti.params(
            "PmSamplingSetConfig",
            p_pm_sampling_object=self._object,
            config_size=len(image),
            p_config=image.ctypes.data,
            hardware_buffer_size=buffer_bytes,
            sampling_interval=interval_ns,
            trigger_mode=_EVERY_SO_MANY_NS,
            hw_buffer_append_mode=_KEEP_OLDEST,
        )
        self._cupti.call("pm_sampling_set_config", config)

    def start(self) -> None:
        """Begins to sample."""
        self._cupti.call("pm_sampling_start", self._of_object("PmSamplingStart"))

    def stop(self) -> None:
        """Ends sampling; callable from any thread."""
        self._cupti.call("pm_sampling_stop", self._of_object("PmSamplingStop"))

    def read(self, most: int) -> Samples:
        """Takes up to `most` samples out of the hardware's buffer, the oldest first, after `stop`.

        Needs about 15 kB of memory for each. After an overflow there are none, and libcupti
        refuses to start again: open the counters anew.
        """
        image = self._new_image(most)
        count, overflowed = self._decode(image)
        with self._cupti.explained("pm_sampling_counter_data_get_sample_info"):
            times = self._times(image, count)
        with self._cupti.explained("profiler_host_evaluate_to_gpu_values"):
            values = self._values(image, count)
        # What was counted before `start` is in the first sample, which begins at 0 or at the last
        # stop; a sample that libcupti counts but did not fill has no times.
        known = (times[:, 0] > 0) & (times[:, 1] > times[:, 0])
        known[:1] = False
        return Samples(times[known, 0], times[known, 1], values[known], overflowed)

    def timestamp_ns(self) -> int:
        """CUPTI's clock now."""
        return int(self._cupti.calls.get_timestamp())

    def close(self) -> None:
        """Gives the counters back."""
        self._close_host()
        if self._object:
            disable = self._of_object("PmSamplingDisable")
            self._object = 0
            self._cupti.call("pm_sampling_disable", disable)
            self._end()

    def _end(self) -> None:
        self._cupti.call("profiler_deinitialize", self._cupti.params("ProfilerDeInitialize"))

    def _config_image(self) -> Image:
        added = self._of_host(
            "ProfilerHostConfigAddMetrics",
            pp_metric_names=ctypes.addressof(self._names),
            num_metrics=len(self._metrics),
        )
        self._cupti.call("profiler_host_config_add_metrics", added)
        size = self._of_host("ProfilerHostGetConfigImageSize")
        self._cupti.call("profiler_host_get_config_image_size", size)
        image = np.zeros(int(size.config_image_size), np.uint8)
        wanted = self._of_host(
            "ProfilerHostGetConfigImage",
            p_config_image=image.ctypes.data,
            config_image_size=len(image),
        )
        self._cupti.call("profiler_host_get_config_image", wanted)
        return image

    def _new_image(self, most: int) -> Image:
        size = self._of_object(
            "PmSamplingGetCounterDataSize",
            p_metric_names=ctypes.addressof(self._names),
            num_metrics=len(self._metrics),
            max_samples=most,
        )
        self._cupti.call("pm_sampling_get_counter_data_size", size)
        return np.zeros(int(size.counter_data_size), np.uint8)

    def _decode(self, image: Image) -> tuple[int, bool]:
        """Fills the image with the next samples; how many, and whether the buffer was full."""
        where = {"p_counter_data": image.ctypes.data, "counter_data_size": len(image)}
        emptied = self._of_object("PmSamplingCounterDataImageInitialize", **where)
        self._cupti.call("pm_sampling_counter_data_image_initialize", emptied)
        decode = self._of_object("PmSamplingDecodeData", **_in(image))
        calls = self._cupti.calls
        try:
            calls.pm_sampling_decode_data(decode.ptr)
        except calls.cuptiError as error:
            if error.status == calls.Result.ERROR_OUT_OF_MEMORY:
                return 0, True
            with self._cupti.explained("pm_sampling_decode_data"):
                raise
        info = self._cupti.params("PmSamplingGetCounterDataInfo", **_in(image))
        self._cupti.call("pm_sampling_get_counter_data_info", info)
        return int(info.num_completed_samples), bool(decode.overflow)

    def _times(self, image: Image, count: int) -> Times:
        info = self._of_object("PmSamplingCounterDataGetSampleInfo", **_in(image))
        call, pointer = self._cupti.calls.pm_sampling_counter_data_get_sample_info, info.ptr
        times = np.empty((count, 2), np.int64)
        for index in range(count):
            info.sample_index = index
            call(pointer)
            times[index] = info.start_timestamp, info.end_timestamp
        return times

    def _values(self, image: Image, count: int) -> Values:
        values = np.full((count, len(self._metrics)), np.nan)
        wanted = self._of_host(
            "ProfilerHostEvaluateToGpuValues",
            **_in(image),
            pp_metric_names=ctypes.addressof(self._names),
            num_metrics=len(self._metrics),
        )
        # CUPTI has no call for many samples: the loop touches nothing but the two changing fields.
        call, pointer = self._cupti.calls.profiler_host_evaluate_to_gpu_values, wanted.ptr
        address, row_bytes = values.ctypes.data, values.strides[0]
        for index in range(count):
            wanted.range_index = index
            wanted.p_metric_values = address + index * row_bytes
            call(pointer)
        return values

    def _close_host(self) -> None:
        if self._host:
            closed = self._of_host("ProfilerHostDeinitialize")
            self._host = 0
            self._cupti.call("profiler_host_deinitialize", closed)

    def _of_object(self, name: str, **values: Any) -> Any:
        return self._cupti.params(name, p_pm_sampling_object=self._object, **values)

    def _of_host(self, name: str, **values: Any) -> Any:
        return self._cupti.params(name, p_host_object=self._host, **values)


def _in(image: Image) -> dict[str, int]:
    return {"p_counter_data_image": image.ctypes.data, "counter_data_image_size": len(image)}
