"""C++ symbols and what is none."""

import ctypes.util
import os
from pathlib import Path
from random import Random

import psutil
import pytest

from spark_prof.traces import demangle as module
from spark_prof.traces.demangle import demangler
from tests.rows import each_row

has_cpp = pytest.mark.skipif(not ctypes.util.find_library("stdc++"), reason="no libstdc++ here")


@has_cpp
def test_a_symbol():
    assert demangler()("_Z3addPKfPfi") == "add(float const*, float*, int)"


@each_row("name", ["", "_Z", "add", "_Zgarbage!", "_Z\u00e9", "_Z" + "N" * 100_000])
def test_what_is_no_symbol_stays(name):
    assert demangler()(name) == name


def doubling(letters: int) -> str:
    """A symbol of about so many letters whose types each hold the one before twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    symbol, number = "_Z1fI1AIiiE", 0
    while len(symbol) < letters:
        high, low = divmod(number, 36)
        reference = f"S{digits[high] if high else ''}{digits[low]}_"
        symbol, number = f"{symbol}S_I{reference * 2}E", number + 1
    return f"{symbol}Evv"


def resident(process: psutil.Process) -> int:
    """The most memory that a process and those below it have had, in bytes."""
    found = 0
    for each in [process, *process.children(recursive=True)]:
        status = Path(f"/proc/{each.pid}/status").read_text()
        found += int(status.split("VmHWM:")[1].split()[0]) << 10
    return found


def is_demangler(process: psutil.Process) -> bool:
    try:
        return module.__file__ in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


@has_cpp
def test_what_doubles_with_each_reference_stays_and_takes_nothing_with_it():
    sane = [f"_Z1fILi{number}EEvv" for number in range(1000)]
    wanted = {symbol: f"void f<{number}>()" for number, symbol in enumerate(sane)}
    hostile = [doubling(letters) for letters in range(240, 1000, 38)]
    mixed = sane + hostile
    Random(1).shuffle(mixed)
    demangle = demangler()
    assert {symbol: demangle(symbol) for symbol in mixed} == wanted | {s: s for s in hostile}
    assert demangle(doubling(40)) != doubling(40)
    children = [c for c in psutil.Process().children() if is_demangler(c)]
    assert len(children) == 1
    assert resident(children[0]) < 100 << 20
    del demangle
    assert not children[0].is_running()


@has_cpp
def test_names_are_asked_for_once_and_time_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MOST_SECONDS", 0.0)
    assert demangler()("_Z1fv") == "_Z1fv"


def test_where_no_process_starts_symbols_stay(monkeypatch):
    monkeypatch.setattr(module.sys, "executable", os.devnull)
    demangle = demangler()
    assert [demangle("_Z1fv"), demangle("_Z1gv")] == ["_Z1fv", "_Z1gv"]
