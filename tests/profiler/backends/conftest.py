"""capture.c and a fake libcupti and libcuda, compiled once; every test gets fresh copies."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_prof.profiler.backends import choose
from spark_prof.profiler.backends import native as native_module
from spark_prof.profiler.backends.native import Native, NativeError
from spark_prof.traces.readers.cupti_records import record_dtype

from .fake import FakeCuda, FakeCupti, compiled

MakeFake = Callable[..., FakeCupti]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """capture.c, and the fake in three shapes."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler, which the CUPTI backend needs too")
    folder = tmp_path_factory.mktemp("compiled")
    found = {name: compiled(folder, name) for name in ("WITHOUT_CHOICE", "WITHOUT_GRAPHS")}
    found |= {"cuda": compiled(folder, name="cuda"), "old": compiled(folder, "OLD", name="cuda")}
    return found | {"": compiled(folder), "capture": native_module._compiled(folder)}


@pytest.fixture
def make_fake(libraries: dict[str, Path], tmp_path: Path) -> MakeFake:
    """Makes a fake libcupti of that shape: nothing, WITHOUT_CHOICE or WITHOUT_GRAPHS."""
    numbers = itertools.count()

    def make(shape: str = "") -> FakeCupti:
        folder = tmp_path / f"cupti{next(numbers)}"
        folder.mkdir()
        return FakeCupti(Path(shutil.copy(libraries[shape], folder / "libcupti.so.13")))

    return make


@pytest.fixture
def cupti(make_fake: MakeFake) -> FakeCupti:
    return make_fake()


@pytest.fixture
def cuda(libraries: dict[str, Path], tmp_path: Path) -> FakeCuda:
    return FakeCuda(Path(shutil.copy(libraries["cuda"], tmp_path / "libcuda.so.1")))


@pytest.fixture
def capture(libraries: dict[str, Path], tmp_path: Path) -> Path:
    """capture.c, as no process has loaded it yet."""
    return Path(shutil.copy(libraries["capture"], tmp_path / "capture.so"))


@pytest.fixture
def native(capture: Path, cupti: FakeCupti) -> Native:
    return Native(capture, cupti.path)


On = Callable[[bool], None]


@pytest.fixture
def on_nvidia(monkeypatch: pytest.MonkeyPatch) -> On:
    def platform(cuda: bool) -> None:
        found = SimpleNamespace(current_platform=SimpleNamespace(is_cuda=lambda: cuda))
        monkeypatch.setitem(sys.modules, "vllm.platforms", found)

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    monkeypatch.setattr(choose, "mark_clock", lambda: None)
    platform(True)
    return platform


@pytest.fixture
def works(native: Native, monkeypatch: pytest.MonkeyPatch) -> Native:
    """The CUPTI of this process can be used."""
    native.subscribe()
    monkeypatch.setattr(choose, "load_native", lambda _: native)
    return native


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: Path) -> Native:
        raise NativeError("another profiler holds it")

    monkeypatch.setattr(choose, "load_native", load)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the pieces of a recording go."""
    made = tmp_path / "pieces"
    made.mkdir()
    return made


def records(kind: int, names: tuple[int, ...], **columns: Any) -> bytes:
    """Records of that kind with names at these addresses."""
    rows = np.zeros(len(names), record_dtype(kind, 130000))
    rows["name"] = names
    for column, value in columns.items():
        rows[column] = value
    raw = rows.view(np.uint8).reshape(len(names), -1)
    raw[:, :4] = np.array([kind], "<u4").view(np.uint8)
    return raw.tobytes()
