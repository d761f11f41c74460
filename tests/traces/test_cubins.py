"""Which machine code a kernel ran, and what of it a bundle keeps."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from spark_prof.traces.chunks import cached_cubin_name
from spark_prof.traces.cubins import CUBINS_FOLDER, Cubins, function_symbols
from tests.rows import each_row

from .cubins import ADD, SM_90, SM_121


def key(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


HOPPER, SPARK = key(SM_90), key(SM_121)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "loaded"
    made.mkdir()
    return made


def test_which_of_the_functions_of_a_name_ran(folder: Path) -> None:
    shutil.copy(SM_90, folder / "42-0.cubin")
    one = Cubins(folder)
    assert one.find("mix", 32) == (HOPPER,)
    # The driver may give a kernel more than it was compiled with.
    assert one.find("mix", 64) == (HOPPER,)
    assert one.find("nosuch", 32) == ()
    shutil.copy(SM_121, folder / "42-1.cubin")
    two = Cubins(folder)
    assert (two.find("mix", 32), two.find("mix", 40)) == ((HOPPER,), (SPARK,))
    # Both have 8 registers; and with others, neither is better than the other.
    for registers in (8, 0, 33):
        for name in ("scale", ADD):
            assert two.find(name, registers) == (HOPPER, SPARK)


def test_the_same_code_of_two_sources_is_one(folder: Path, tmp_path: Path) -> None:
    for name in ("42-0.cubin", "42-7.cubin", "43-0.cubin", cached_cubin_name("triton", 5)):
        shutil.copy(SM_90, folder / name)
    cubins = Cubins(folder)
    assert cubins.find("scale", 8) == (HOPPER,)
    rows = cubins.keep(tmp_path)
    assert rows[["hash", "source"]].to_numpy().tolist() == [[HOPPER, "driver"]]


def test_what_ran_is_kept_and_the_rest_is_listed(folder: Path, tmp_path: Path) -> None:
    shutil.copy(SM_90, folder / "42-0.cubin")
    shutil.copy(SM_121, folder / cached_cubin_name("flashinfer", 3))
    cubins = Cubins(folder)
    for registers in (40, 40):
        cubins.find("mix", registers)
    rows = cubins.keep(tmp_path)
    assert rows.to_numpy().tolist() == [
        [HOPPER, SM_90.stat().st_size, "driver", ""],
        [SPARK, SM_121.stat().st_size, "flashinfer", "mix"],
    ]
    kept = list((tmp_path / CUBINS_FOLDER).iterdir())
    assert [path.name for path in kept] == [f"{SPARK}.cubin"]
    assert kept[0].read_bytes() == SM_121.read_bytes()


def test_damaged_machine_code_is_told_and_the_rest_is_read(folder: Path) -> None:
    (folder / "42-0.cubin").write_bytes(SM_121.read_bytes()[:5000])
    (folder / "42-2.cubin.part").write_bytes(b"half")  # is not looked at
    shutil.copy(SM_90, folder / "42-1.cubin")
    cubins = Cubins(folder)
    assert cubins.find("scale", 8) == (HOPPER,)
    [lost] = cubins.lost
    assert lost.startswith("machine code: ")
    assert "42-0.cubin" in lost


def kernels(*rows: tuple[str, int]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["name", "registers"])
    return frame.astype({"name": "category"})


def test_the_column_of_the_kernels(folder: Path) -> None:
    shutil.copy(SM_90, folder / "42-0.cubin")
    shutil.copy(SM_121, folder / "42-1.cubin")
    symbols = {"void add<int>(int*, int)": ADD, "mix": "mix"}
    found = Cubins(folder).of_kernels(
        kernels(
            ("mix", 40), ("mix", 32), ("void add<int>(int*, int)", 8), ("mix", 40), ("scale", 8)
        ),
        symbols,
    )
    assert found == [SPARK, HOPPER, f"{HOPPER} {SPARK}", SPARK, ""]
    assert Cubins(folder).of_kernels(kernels(), symbols) == []


@each_row(
    ("text", "expected"),
    [
        ('{"functions": {"a": "b"}}', {"a": "b"}),
        ('{"names": {}}', {}),
        ("[]", {}),
        ("{", {}),
        ("[" * 100_000, {}),
        ("\udcff", {}),
        (None, {}),
    ],
)
def test_the_functions_of_names(tmp_path: Path, text: str | None, expected: Any) -> None:
    path = tmp_path / "rank0.00000.names.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert function_symbols(path) == expected
