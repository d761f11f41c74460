"""The file of measured ceilings: kept, found again, refused where it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.measured import (
    DeviceState,
    MeasuredMachine,
    Measurement,
    find_measured,
    keep_measured,
    measured_for,
    read_measured,
    state_folder,
)
from tests.rows import each_row

H100 = MeasuredMachine(
    device="NVIDIA H100 80GB HBM3",
    taken="2026-11-21T10:00:00+00:00",
    measurements=(
        Measurement("read", 3.03e12, "B/s", 3.0e12, 3.05e12, 20, "torch.sum"),
        Measurement("bf16", 7.9e14, "op/s", 7.8e14, 8.0e14, 20, "torch.mm"),
    ),
    before=DeviceState(sm_mhz=345, temperature_c=35, power_w=70.5),
    after=DeviceState(sm_mhz=1755, throttled=("power cap",)),
    uuid="GPU-01234567-89ab-cdef-0123-456789abcdef",
    compute_capability="9.0",
    driver="580.159.04",
    torch="2.11.0",
    notes=("fp4 products were not measured: no",),
)


def test_what_is_kept_is_what_was_measured(tmp_path: Path) -> None:
    path = keep_measured(H100, tmp_path / "state" / "new")
    assert path.name == f"{H100.uuid}.json"
    assert read_measured(path) == H100
    assert H100.value("read") == 3.03e12
    assert H100.value("fp4") is None


def test_the_latest_measurement_of_a_device_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert find_measured(H100.device) is None
    keep_measured(replace(H100, uuid="GPU-a"))
    later = replace(H100, uuid="GPU-b", taken="2026-11-22T10:00:00+00:00")
    path = keep_measured(later)
    keep_measured(replace(later, uuid="GPU-c", device="another"))
    (state_folder() / "damaged.json").write_bytes(b'{"device": ')
    assert find_measured(H100.device) == (path, later)
    assert find_measured("NVIDIA GB10") is None


@each_row("name", ["../../etc/passwd", "/", "a/b", "..", "\x00\x1b[2J", "é" * 300])
def test_no_name_of_a_device_leaves_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "state"
    path = keep_measured(replace(H100, uuid="", device=name), folder)
    assert path.parent == folder
    assert read_measured(path).device == name


def test_the_state_folder_is_that_of_the_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "spark-prof" / "ceilings"
    keep_measured(H100)
    assert measured_for(H100.device) == H100
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_folder() == Path.home() / ".local/state/spark-prof/ceilings"


def test_a_named_file_must_be_of_the_recorded_device(tmp_path: Path) -> None:
    path = keep_measured(H100, tmp_path)
    assert measured_for(H100.device, path) == H100
    with pytest.raises(CommandError, match=r"measured on NVIDIA H100.*recording is of NVIDIA GB10"):
        measured_for("NVIDIA GB10", path)


READ = {
    "quantity": "read", "value": 1.0, "unit": "B/s", "lowest": 1, "highest": 1, "repeats": 1,
    "how": "",
}  # fmt: skip


@each_row(
    ("field", "value"),
    [
        ("device", 3), ("taken", None), ("measurements", "read"), ("schema", 2),
        ("measurements", [{"quantity": "read"}]), ("measurements", [READ | {"value": 0}]),
        ("measurements", [READ | {"value": -1}]), ("before", {"sm_mhz": "fast"}),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused_in_one_line(
    tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "x.json"
    whole = {"device": "x", "taken": "2026", "measurements": [READ]}
    path.write_text(json.dumps(whole))
    assert read_measured(path).value("read") == 1.0
    path.write_text(json.dumps(whole | {field: value}))
    with pytest.raises(CommandError, match="measure"):
        read_measured(path)


@each_row(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000, b'{"device": NaN}', b"x" * (2 << 20)],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=r"x\.json"):
        read_measured(path)
