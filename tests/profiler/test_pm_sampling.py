"""PM sampling on bindings that a test plays: which calls, in which order, with what in them."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from spark_prof.profiler import counters
from spark_prof.profiler.counters import CounterError, PmSampling
from tests.rows import each_row
from tests.support import refusal


class RefusedError(Exception):
    """What cupti-python raises."""

    def __init__(self, status: int) -> None:
        super().__init__(f"ERROR ({status})")
        self.status = status


class Params:
    """A parameter structure: any field, and a pointer that finds it again."""

    alive: ClassVar[dict[int, Params]] = {}

    def __init__(self) -> None:
        self.ptr = id(self)
        self.overflow = 0
        Params.alive[self.ptr] = self


class Bindings(ModuleType):
    """cupti.cupti for a GPU whose buffer holds `samples` samples; the calls are kept."""

    cuptiError = RefusedError  # noqa: N815 - the name in cupti-python

    class Result:
        """Its status codes."""

        ERROR_OUT_OF_MEMORY = 8

    def __init__(self, samples: int = 0, refuse: dict[str, int] | None = None) -> None:
        super().__init__("cupti.cupti")
        self.calls: list[str] = []
        self.left, self.samples, self.refuse = samples, samples, refuse or {}
        self.image_first = self.image_count = 0

    def get_timestamp(self) -> int:
        return 123

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_PARAMS_STRUCT_SIZE"):
            return 8
        if name.endswith("Params"):
            return Params
        if name.startswith("__"):
            raise AttributeError(name)

        def call(pointer: int) -> None:
            self.calls.append(name)
            if name in self.refuse:
                raise RefusedError(self.refuse[name])
            answer = getattr(Bindings, f"_{name}", None)
            if answer is not None:
                answer(self, Params.alive[pointer])

        return call

    def _device_get_chip_name(self, params: Any) -> None:
        params.p_chip_name = "GH100"

    def _pm_sampling_enable(self, params: Any) -> None:
        params.p_pm_sampling_object = 11

    def _profiler_host_initialize(self, params: Any) -> None:
        assert params.p_chip_name == "GH100"
        params.p_host_object = 22

    def _profiler_host_get_config_image_size(self, params: Any) -> None:
        params.config_image_size = 64

    def _pm_sampling_get_counter_data_size(self, params: Any) -> None:
        params.counter_data_size = 16 * params.max_samples

    def _pm_sampling_decode_data(self, params: Any) -> None:
        room = params.counter_data_image_size // 16
        self.image_first = self.samples - self.left
        self.image_count = min(room, self.left)
        self.left -= self.image_count

    def _pm_sampling_get_counter_data_info(self, params: Any) -> None:
        params.num_completed_samples = self.image_count

    def _pm_sampling_counter_data_get_sample_info(self, params: Any) -> None:
        number = self.image_first + params.sample_index
        params.start_timestamp = 1_000_000 + 2_000 * number
        params.end_timestamp = params.start_timestamp + 2_000

    def _profiler_host_evaluate_to_gpu_values(self, params: Any) -> None:
        names = (ctypes.c_char_p * params.num_metrics).from_address(params.pp_metric_names)
        values = (ctypes.c_double * params.num_metrics).from_address(params.p_metric_values)
        for index, name in enumerate(names):
            values[index] = len(name or b"") + self.image_first + params.range_index


def opened(monkeypatch: pytest.MonkeyPatch, bindings: ModuleType) -> PmSampling:
    package = ModuleType("cupti")
    package.cupti = bindings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", bindings)
    return PmSampling(0)


def test_samples_have_their_times_and_values_but_the_first_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = opened(monkeypatch, Bindings(samples=5000))
    found.configure(["four", "sixsix"], 2_000, 1 << 20)
    found.start()
    found.stop()
    samples = found.read(10_000)
    assert samples.start_ns[0] == 1_002_000
    assert len(samples.start_ns) == 4999
    assert (np.diff(samples.start_ns) == 2_000).all()
    assert (samples.values[:, 0] == np.arange(1, 5000) + 4).all()
    assert (samples.values[:, 1] == np.arange(1, 5000) + 6).all()
    assert not samples.overflowed


def test_an_overflow_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(monkeypatch, Bindings(50, {"pm_sampling_decode_data": 8}))
    found.configure(["a"], 2_000, 1 << 20)
    samples = found.read(100)
    assert samples.overflowed
    assert samples.values.shape == (0, 1)


def test_counters_are_given_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    found = opened(monkeypatch, bindings)
    found.configure(["a"], 2_000, 1 << 20)
    found.close()
    found.close()
    ends = ["profiler_host_deinitialize", "pm_sampling_disable", "profiler_deinitialize"]
    assert bindings.calls[-3:] == ends
    assert [bindings.calls.count(name) for name in ends] == [1, 1, 1]


@each_row(
    ("refused", "status", "version", "said"),
    [
        ("pm_sampling_enable", 35, 130401, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("pm_sampling_enable", 40, 0, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("pm_sampling_enable", 7, 130400, "another profiler is using this GPU's counters"),
        ("pm_sampling_start", 7, 0, "refused pm sampling start (ERROR (7))"),
        ("pm_sampling_enable", 33, 130401, "a virtual GPU"),
        ("profiler_host_config_add_metrics", 1, 130001, "libcupti (130001) is too old"),
        ("profiler_host_config_add_metrics", 1, 130399, "libcupti (130399) is too old"),
        ("profiler_host_config_add_metrics", 1, 130400, "refused profiler host config add metrics"),
        ("pm_sampling_set_config", 27, 130401, "in one pass"),
        ("pm_sampling_start", 999, 130401, "refused pm sampling start (ERROR (999))"),
        ("pm_sampling_decode_data", 999, 130401, "refused pm sampling decode data"),
        ("profiler_host_evaluate_to_gpu_values", 1, 130401, "refused profiler host evaluate"),
    ],
)
def test_a_refusal_says_why_and_what_would_help(
    monkeypatch: pytest.MonkeyPatch, refused: str, status: int, version: int, said: str
) -> None:
    monkeypatch.setattr(counters, "_library_version", lambda: version)

    def use() -> None:
        found = opened(monkeypatch, Bindings(20, {refused: status}))
        found.configure(["a"], 2_000, 1 << 20)
        found.start()
        found.read(10)

    with refusal(said, kind=CounterError):
        use()


def test_without_cupti_python_or_with_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(CounterError, match="pip install 'cupti-python"):
        PmSampling(0)
    with pytest.raises(CounterError, match=r"older than 13\.4"):
        opened(monkeypatch, ModuleType("cupti.cupti"))
