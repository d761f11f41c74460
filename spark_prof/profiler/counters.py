"""Samples the GPU's hardware counters while a piece is recorded, through cupti-python.

Sampling costs the GPU nothing measurable, taking the samples out costs the host tens of
microseconds each. So a piece is sampled for its first stretch only, and its samples are read after
it has ended. The calls are those of CUPTI's documented PM Sampling and Profiler Host APIs
(docs.nvidia.com/cupti, "CUPTI PM Sampling API"), in cupti-python's public bindings. Its own
`pm_sampling.Collector` builds objects for each sample and loses all samples when the hardware
buffer overflows, so the same calls are made here with structures that are reused.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.arrays import Floats, Int64s
from spark_prof.extras import install_command
from spark_prof.traces.chunks import COUNTER_DTYPE, array_name, write_array

_OLDEST_LIBRARY = 130400
_INVALID_OPERATION, _NOT_SUPPORTED, _NO_PRIVILEGES = 7, 27, (35, 40)
_VIRTUAL = 33

_INSTALL = f"cupti-python is not installed beside vLLM: {install_command('counters')}"
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

_PM_SAMPLING = 1  # CUPTI_PROFILER_TYPE_PM_SAMPLING
_EVERY_SO_MANY_NS, _KEEP_OLDEST = 1, 0


@dataclass(frozen=True)
class Samples:
    """What one read gave."""

    start_ns: Int64s  # when each interval began, in CUPTI's clock
    end_ns: Int64s  # when it ended
    values: Floats  # one row an interval, one column a metric
    overflowed: bool  # the hardware's buffer was full, which loses what was in it


class PmSampling:
    """The counters of one GPU; a CounterError says what is missing to read them."""

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

        It raises CounterError where the chip has no such metric, or needs more than one pass.
        """
        self._close_host()
        host = self._do("ProfilerHostInitialize", profiler_type=_PM_SAMPLING, p_chip_name=self.chip)
        self._host = {"p_host_object": int(host.p_host_object)}
        self._names = (ctypes.c_char_p * len(metrics))(*(name.encode() for name in metrics))
        names, count = ctypes.addressof(self._names), len(metrics)
        self._metrics = {"pp_metric_names": names, "num_metrics": count}
        self._do("ProfilerHostConfigAddMetrics", **self._host, **self._metrics)
        size = int(self._do("ProfilerHostGetConfigImageSize", **self._host).config_image_size)
        # Kept: nothing says that libcupti copies it.
        self._config = np.zeros(size, np.uint8)
        config = self._config.ctypes.data
        where = {"p_config_image": config, "config_image_size": size}
        self._do("ProfilerHostGetConfigImage", **self._host, **where)
        self._do(
            "PmSamplingSetConfig", **self._object, config_size=size, p_config=config,
            hardware_buffer_size=buffer_bytes, sampling_interval=interval_ns,
            trigger_mode=_EVERY_SO_MANY_NS, hw_buffer_append_mode=_KEEP_OLDEST,
        )  # fmt: skip

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
        # Its field is called otherwise than those of the other calls.
        metric_names = {
            "p_metric_names": ctypes.addressof(self._names),
            "num_metrics": len(self._names),
        }
        size = self._do(
            "PmSamplingGetCounterDataSize", **self._object, **metric_names, max_samples=most
        )
        image = np.zeros(int(size.counter_data_size), np.uint8)
        count, overflowed = self._decode(image)
        times, values = self._times(image, count), self._values(image, count)
        # What was counted before `start` is in the first sample, which begins at 0 or at the last
        # stop; a sample that libcupti counts but did not fill has no times.
        valid = (times[:, 0] > 0) & (times[:, 1] > times[:, 0])
        valid[:1] = False
        return Samples(times[valid, 0], times[valid, 1], values[valid], overflowed)

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
        with self._explained(name):
            getattr(self._calls, _constant(name).lower())(params.ptr)
        return params

    def _params(self, name: str, **values: Any) -> Any:
        params = getattr(self._calls, f"{name}Params")()
        params.struct_size = getattr(self._calls, f"{_constant(name)}_PARAMS_STRUCT_SIZE")
        for field, value in values.items():
            setattr(params, field, value)
        return params

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turns libcupti's refusals inside it into CounterErrors."""
        try:
            yield
        except self._calls.cuptiError as error:
            raise _explanation(_constant(name).lower(), error, self._version) from error

    def _decode(self, image: Image) -> tuple[int, bool]:
        """Fills the image with the next samples; how many, and whether the buffer was full."""
        where = {"p_counter_data": image.ctypes.data, "counter_data_size": len(image)}
        self._do("PmSamplingCounterDataImageInitialize", **self._object, **where)
        decode = self._params("PmSamplingDecodeData", **self._object, **_in(image))
        with self._explained("PmSamplingDecodeData"):
            try:
                self._calls.pm_sampling_decode_data(decode.ptr)
            except self._calls.cuptiError as error:
                if error.status == self._calls.Result.ERROR_OUT_OF_MEMORY:
                    return 0, True
                raise
        info = self._do("PmSamplingGetCounterDataInfo", **_in(image))
        return int(info.num_completed_samples), bool(decode.overflow)

    def _times(self, image: Image, count: int) -> Int64s:
        info = self._params("PmSamplingCounterDataGetSampleInfo", **self._object, **_in(image))
        call, pointer = self._calls.pm_sampling_counter_data_get_sample_info, info.ptr
        times = np.empty((count, 2), np.int64)
        with self._explained("PmSamplingCounterDataGetSampleInfo"):
            for index in range(count):
                info.sample_index = index
                call(pointer)
                times[index] = info.start_timestamp, info.end_timestamp
        return times

    def _values(self, image: Image, count: int) -> Floats:
        values = np.full((count, len(self._names)), np.nan)
        fields = {**self._host, **_in(image), **self._metrics}
        params = self._params("ProfilerHostEvaluateToGpuValues", **fields)
        # CUPTI has no call for many samples: the loop touches nothing but the two changing fields.
        call, pointer = self._calls.profiler_host_evaluate_to_gpu_values, params.ptr
        address, row_bytes = values.ctypes.data, values.strides[0]
        with self._explained("ProfilerHostEvaluateToGpuValues"):
            for index in range(count):
                params.range_index = index
                params.p_metric_values = address + index * row_bytes
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


METRICS = {
    "dram_read_bytes": ("dram__bytes_read.sum", 1.0),
    "dram_write_bytes": ("dram__bytes_write.sum", 1.0),
    "tensor_active": (
        "sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed", 0.01,
    ),
    "warps_active": ("sm__warps_active.avg.pct_of_peak_sustained_elapsed", 0.01),
    "sm_active": ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed", 0.01),
}  # fmt: skip
"""For each column of the `counters` table its metric and what one unit of the metric counts."""

SETS = (
    ("dram_read_bytes", "dram_write_bytes", "tensor_active", "warps_active"),
    ("dram_read_bytes", "dram_write_bytes", "tensor_active"),
    ("dram_read_bytes", "dram_write_bytes"),
    ("tensor_active", "warps_active", "sm_active"),
    ("warps_active",),
)
"""The columns to sample together: the first that the chip takes in one pass."""


def counter_rows(samples: Samples, columns: Sequence[str], offset_ns: int) -> npt.NDArray[np.void]:
    """The samples as rows of pieces.COUNTER_DTYPE; NaN in columns that were not sampled.

    The offset is what must be added to CUPTI's clock to get the system's.
    """
    rows = np.zeros(len(samples.start_ns), COUNTER_DTYPE)
    rows["start_ns"], rows["end_ns"] = samples.start_ns + offset_ns, samples.end_ns + offset_ns
    sampled = dict(zip(columns, samples.values.T, strict=True))
    for name, (_, unit) in METRICS.items():
        rows[name] = sampled.get(name, np.nan) * unit
    return rows


_INTERVALS_NS = (2_000, 5_000, 10_000, 20_000, 50_000)
_MOST_SAMPLES, _FEWEST_SAMPLES = 2_304, 576
_BUFFER_BYTES = 36 << 20
"""Holds 9 000 samples of an H100, measured with libcupti 13.4.92: the timer may come late."""

_MISSING = 0.01  # a larger share of the sampled time missing makes the next piece sample less often

_STARTING_NS, _SPARE_SAMPLES = 1_000_000, 512


class CounterSampler:
    """A backend beside the one of kernels; what fails is logged once and then left out."""

    def __init__(
        self,
        folder: Path,
        process: str,
        log: Callable[[str], None],
        device: int,
        sampling: Callable[[int], PmSampling] = PmSampling,
    ) -> None:
        self._folder, self._process, self._piece, self._log = folder, process, 0, log
        self._counters: PmSampling | None = None
        self._columns: tuple[str, ...] = ()
        self._interval, self._most = 0, _MOST_SAMPLES
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._begun = self._ended = self._offset = 0
        self._failed: CounterError | None = None
        self._open, self._device = sampling, device
        try:
            self._counters = sampling(device)
            self._choose_columns()
        except CounterError as error:
            self._give_up(error)

    @property
    def works(self) -> bool:
        """Whether there are counters to sample."""
        return self._counters is not None

    def start(self, piece: int) -> None:
        """Begins to sample, and ends by itself when enough was seen."""
        counters = self._counters
        if counters is None:
            return
        self._piece, self._ended = piece, 0
        try:
            self._offset = _clock_offset(counters)
            counters.start()
        except CounterError as error:
            self._give_up(error)
            return
        self._begun = time.time_ns()
        seconds = self._most * _INTERVALS_NS[self._interval] / 1e9
        self._timer = threading.Timer(seconds, self._halt)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Ends sampling and writes the samples, rows of pieces.COUNTER_DTYPE."""
        if self._counters is None or not self._begun:
            return
        try:
            self._halt()
            if self._failed is not None:
                raise self._failed
            interval = _INTERVALS_NS[self._interval]
            count = (self._ended - self._begun) // interval + _SPARE_SAMPLES
            samples = self._counters.read(min(count, 2 * self._most))
            offset = (self._offset + _clock_offset(self._counters)) // 2
            rows = counter_rows(samples, self._columns, offset)
            write_array(self._folder, array_name(self._process, "counters", self._piece), rows)
            self._judge(samples)
        except CounterError as error:
            self._give_up(error)
        self._begun = 0

    def discard(self) -> None:
        """Ends sampling and gives the counters back; there is no start after it."""
        if self._counters is None:
            return
        self._halt()
        if self._failed is not None:
            self._log(f"counters: {self._failed}")
        self._close()

    def _choose_columns(self) -> None:
        refusal: CounterError | None = None
        for columns in SETS:
            self._columns = columns
            try:
                self._configure()
            except CounterError as error:
                refusal = refusal or error
                continue
            if missing := [name for name in SETS[0] if name not in columns]:
                self._log(f"counters: this GPU does not sample {', '.join(missing)}")
            return
        raise refusal or CounterError("nothing to sample")

    def _configure(self) -> None:
        assert self._counters is not None
        metrics = [METRICS[name][0] for name in self._columns]
        self._counters.configure(metrics, _INTERVALS_NS[self._interval], _BUFFER_BYTES)

    def _halt(self) -> None:
        """Ends sampling once; the timer and the thread of the steps may both come here.

        What fails is kept: in the timer's thread nobody would see it.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._counters is not None and self._begun and not self._ended:
                self._ended = time.time_ns()
                try:
                    self._counters.stop()
                except CounterError as error:
                    self._failed = error

    def _judge(self, samples: Samples) -> None:
        """Says what is missing and samples less often from then on."""
        assert self._counters is not None
        duration_ns = self._ended - self._begun
        sampled_ns = int((samples.end_ns - samples.start_ns).sum())
        missing = 1 - sampled_ns / duration_ns if duration_ns > 0 else 0.0
        # The first sample does not begin with the call that starts sampling.
        if missing <= _MISSING or duration_ns - sampled_ns < _STARTING_NS:
            return
        text = f"counters: {100 * missing:.0f} % of piece {self._piece}'s samples are missing"
        if samples.overflowed and self._most > _FEWEST_SAMPLES:
            self._most = max(self._most // 4, _FEWEST_SAMPLES)
            text += f" (libcupti's buffer was full); later pieces have {self._most} at most"
        elif self._interval + 1 < len(_INTERVALS_NS):
            self._interval += 1
            text += f"; later pieces are sampled every {_INTERVALS_NS[self._interval] // 1000} us"
        self._log(text)
        # After an overflow libcupti starts only counters that were opened anew.
        self._counters.close()
        self._counters = self._open(self._device)
        self._configure()

    def _give_up(self, error: CounterError) -> None:
        self._log(f"counters: none, {error}")
        self._close()

    def _close(self) -> None:
        counters, self._counters = self._counters, None
        self._begun = 0
        if self._timer is not None:
            self._timer.cancel()
        if counters is not None:
            # Whatever it has to say, the reason was given before.
            with suppress(CounterError):
                counters.close()


def _clock_offset(counters: PmSampling) -> int:
    """What must be added to CUPTI's clock to get the system's, from the closest of some pairs."""
    pairs = []
    for _ in range(16):
        before = time.time_ns()
        theirs = counters.timestamp_ns()
        after = time.time_ns()
        pairs.append((after - before, (before + after) // 2 - theirs))
    return int(min(pairs)[1])
