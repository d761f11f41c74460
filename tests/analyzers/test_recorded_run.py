"""What a recording says about its GPU, and what is no clock."""

from __future__ import annotations

from spark_prof.analyzers.recorded_run import Clocks, RecordedGpu, gpu_of
from tests.rows import each_row

GPU = {"name": "NVIDIA GB10", "compute_capability": "12.1", "clocks_mhz": {"sm_max": 3003}}


def test_its_clocks_after_the_last_step() -> None:
    after = {"sm_mhz": 2400, "throttled": ["power cap"], "power_w": 40.0}
    found = gpu_of({"gpu": GPU, "device_after_steps": after})
    assert found == RecordedGpu("NVIDIA GB10", "12.1", "NVIDIA", Clocks(2400, 3003, ("power cap",)))


@each_row(
    "after", [None, {}, [], {"sm_mhz": None}, {"sm_mhz": "2400"}, {"sm_mhz": -1}, {"sm_mhz": True},
              {"sm_mhz": 10**9}],
)  # fmt: skip
def test_no_clock(after: object) -> None:
    assert gpu_of({"gpu": GPU, "device_after_steps": after}).clocks is None


def test_what_is_not_known() -> None:
    for highest in (None, "3003", 0, {"x": 1}):
        gpu = GPU | {"clocks_mhz": {"sm_max": highest}}
        after = {"sm_mhz": 2400, "throttled": "power cap"}
        assert gpu_of({"gpu": gpu, "device_after_steps": after}).clocks == Clocks(2400, None, ())
    assert gpu_of({}) == gpu_of({"gpu": "x"}) == RecordedGpu("unknown", None)
