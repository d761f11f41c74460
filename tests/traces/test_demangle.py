"""C++ symbols and what is none."""

import ctypes.util
import json
import subprocess
import sys
from random import Random

import psutil
import pytest

from spark_prof.traces import demangle as module
from spark_prof.traces.demangle import demangled
from tests.rows import each_row

has_cpp = pytest.mark.skipif(not ctypes.util.find_library("stdc++"), reason="no libstdc++ here")


@has_cpp
def test_a_symbol():
    assert demangled(["_Z3addPKfPfi", "mix"]) == ["add(float const*, float*, int)", "mix"]


@each_row("name", ["", "_Z", "add", "_Zgarbage!", "_Z\u00e9", "_Z" + "N" * 100_000])
def test_what_is_no_symbol_stays(name):
    assert demangled([name]) == [name]


def doubling(letters: int) -> str:
    """A symbol of about so many letters whose types each hold the one before twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    symbol, number = "_Z1fI1AIiiE", 0
    while len(symbol) < letters:
        high, low = divmod(number, 36)
        reference = f"S{digits[high] if high else ''}{digits[low]}_"
        symbol, number = f"{symbol}S_I{reference * 2}E", number + 1
    return f"{symbol}Evv"


@has_cpp
def test_what_doubles_with_each_reference_stays_and_takes_nothing_with_it():
    sane = [f"_Z1fILi{number}EEvv" for number in range(1000)]
    wanted = {symbol: f"void f<{number}>()" for number, symbol in enumerate(sane)}
    hostile = [doubling(letters) for letters in range(240, 1000, 38)]
    mixed = sane + hostile
    Random(1).shuffle(mixed)
    asked = (
        "import json, resource, sys; from spark_prof.traces.demangle import demangled\n"
        "print(json.dumps(demangled(json.load(sys.stdin))))\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], input=json.dumps(mixed), capture_output=True, text=True
    )
    names, kilobytes = done.stdout.splitlines()
    assert json.loads(names) == [wanted.get(symbol, symbol) for symbol in mixed]
    assert int(kilobytes) < 100 << 10
    assert demangled([doubling(40)]) != [doubling(40)]


@has_cpp
def test_time_is_bounded_and_what_was_named_until_then_counts(monkeypatch):
    before = set(psutil.Process().children(recursive=True))
    monkeypatch.setattr(module, "_MOST_SECONDS", 0.0)
    assert demangled(["_Z1gv"]) == ["_Z1gv"]
    assert set(psutil.Process().children(recursive=True)) <= before
