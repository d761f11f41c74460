"""A launch's arguments, read back as a kernel would: through the array of their addresses."""

from __future__ import annotations

import ctypes
import math
import random

import pytest

torch = pytest.importorskip("torch")

from spark_prof.kernels.kernel_error import KernelError  # noqa: E402
from spark_prof.kernels.runtime.launch import ArgumentSlots, Signature  # noqa: E402
from tests.rows import each_row  # noqa: E402

SIZES = {"p": 8, "i": 4, "f": 4}
TENSOR = torch.arange(100, dtype=torch.float32)


def read_back(kinds: str, slots: ArgumentSlots) -> list[int | float]:
    types = {"p": ctypes.c_uint64, "i": ctypes.c_int, "f": ctypes.c_float}
    addresses = (ctypes.c_void_p * len(kinds)).from_address(slots.address)
    return [
        types[kind].from_address(address or 0).value
        for kind, address in zip(kinds, addresses, strict=True)
    ]


def an_argument(kind: str, choice: random.Random) -> tuple[object, int | float]:
    """One of that kind, and what a kernel gets to see."""
    if kind == "i":
        number = choice.choice([0, 1, -1, 2**31 - 1, -(2**31), choice.getrandbits(30)])
        return number, number
    if kind == "f":
        real = choice.choice([0.0, -0.0, 1e-45, 3.4e38, math.inf, -math.inf, choice.random()])
        return real, ctypes.c_float(real).value
    offset = choice.randrange(100)
    return choice.choice([(None, 0), (TENSOR[offset:], TENSOR.data_ptr() + 4 * offset)])


@each_row("seed", range(30))
def test_every_argument_is_where_its_address_says(seed: int) -> None:
    choice = random.Random(seed)
    slots = ArgumentSlots()
    kinds = "".join(choice.choices("pif", k=choice.randrange(1, 40)))
    signature = Signature("k", [SIZES[kind] for kind in kinds])
    for _ in range(3):
        arguments, expected = zip(*(an_argument(kind, choice) for kind in kinds), strict=True)
        signature.write(arguments, slots)
        found = read_back(kinds, slots)
        assert found == list(expected)
        assert [math.copysign(1, value) for value in found] == [
            math.copysign(1, value) for value in expected
        ]


def test_a_parameter_of_a_module_counts_as_a_tensor_and_a_bool_as_an_int() -> None:
    slots = ArgumentSlots()
    parameter = torch.nn.Parameter(torch.zeros(3))
    Signature("k", [8, 4]).write([parameter, True], slots)
    assert read_back("pi", slots) == [parameter.data_ptr(), 1]


@each_row(
    ("sizes", "arguments", "says"),
    [
        ([8, 4], [TENSOR], r"parameters of \[8, 4\] bytes; the arguments have \[8\]"),
        ([8], [TENSOR, 1], r"the arguments have \[8, 4\]"),
        ([4, 8], [TENSOR, 1], r"the arguments have \[8, 4\]"),
        ([8], [3], r"the arguments have \[4\]"),
        ([4], [2**31], "out of range"),
        ([4], [-(2**31) - 1], "out of range"),
        ([4], [1e39], "out of range"),
        ([8], ["text"], "argument 0 is a str"),
        ([8, 8], [TENSOR, [1]], "argument 1 is a list"),
        ([4] * 65, [1] * 65, "out of range"),
    ],
)
def test_what_does_not_fit_is_refused(sizes: list[int], arguments: list[object], says: str) -> None:
    with pytest.raises(KernelError, match=f"^the kernel.*{says}"):
        Signature("the kernel", sizes).write(arguments, ArgumentSlots())
