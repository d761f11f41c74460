"""C++ symbols and what is none."""

import ctypes.util

import pytest

from spark_prof.traces.demangle import demangler

has_cpp = pytest.mark.skipif(not ctypes.util.find_library("stdc++"), reason="no libstdc++ here")


@has_cpp
def test_a_symbol():
    assert demangler()("_Z3addPKfPfi") == "add(float const*, float*, int)"


@pytest.mark.parametrize("name", ["", "_Z", "add", "_Zgarbage!", "_Z\u00e9", "_Z" + "N" * 100_000])
def test_what_is_no_symbol_stays(name):
    assert demangler()(name) == name


@pytest.mark.parametrize("seed", range(50))
def test_no_symbol_breaks_it(seed):
    import random

    letters = "ZNSt1239abcILPKRvEfidjmTS0_"
    noise = random.Random(seed)
    demangle = demangler()
    symbols = ["_Z" + "".join(noise.choices(letters, k=noise.randrange(400))) for _ in range(200)]
    assert all(demangle(symbol) for symbol in symbols)
