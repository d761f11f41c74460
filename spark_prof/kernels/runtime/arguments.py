"""Lays a launch's arguments out as the CUDA driver takes them: an array of their addresses."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from spark_prof.kernels.errors import KernelError

Argument: TypeAlias = torch.Tensor | int | float | None
"""A data pointer, a C int, a C float, or a null pointer."""

_MOST = 64
_SLOT = 8
"""Bytes between two arguments."""
_NUMBERS = frozenset((int, float, bool))


class ArgumentSlots:
    """Memory for the arguments of one launch at a time; the driver copies them.

    Attributes:
        address: of the array of the arguments' addresses.
    """

    def __init__(self) -> None:
        self._values = (ctypes.c_uint64 * _MOST)()
        start = ctypes.addressof(self._values)
        slots = range(start, start + _SLOT * _MOST, _SLOT)
        self._addresses = (ctypes.c_void_p * _MOST)(*slots)
        self.address = ctypes.addressof(self._addresses)

    def fill(self, packing: struct.Struct, values: Sequence[Any]) -> None:
        """Writes values from the first slot on."""
        packing.pack_into(self._values, 0, *values)


class Signature:
    """The parameters of a kernel; checks arguments against them.

    Args:
        parameter_bytes: the size of each parameter. Its type nobody tells.
    """

    def __init__(self, label: str, parameter_bytes: Sequence[int]) -> None:
        self._label = label
        self._bytes = list(parameter_bytes)
        self._packings: dict[tuple[type, ...], struct.Struct] = {}

    def write(self, arguments: Sequence[Any], slots: ArgumentSlots) -> None:
        """Writes arguments where the driver reads them.

        Raises:
            KernelError: their number, a type or a size is not the parameters', or a number does
                not fit an int or a float.
        """
        kinds = tuple(map(type, arguments))
        packing = self._packings.get(kinds)
        if packing is None:
            packing = self._packings[kinds] = self._packing(kinds)
        values = [
            given if kind in _NUMBERS else 0 if given is None else given.data_ptr()
            for given, kind in zip(arguments, kinds, strict=True)
        ]
        try:
            slots.fill(packing, values)
        except (struct.error, OverflowError) as error:
            raise KernelError(f"{self._label}: an argument is out of range: {error}") from error

    def _packing(self, kinds: Sequence[type]) -> struct.Struct:
        forms: list[tuple[int, str]] = []
        for kind in kinds:
            if kind is type(None) or issubclass(kind, torch.Tensor):
                forms.append((8, "Q"))
            elif kind in _NUMBERS:
                forms.append((4, "f4x" if kind is float else "i4x"))
            else:
                raise KernelError(f"{self._label}: argument {len(forms)} is a {kind.__name__}")
        given = [size for size, _ in forms]
        if given != self._bytes:
            raise KernelError(
                f"{self._label} has parameters of {self._bytes} bytes; the arguments have {given}"
            )
        return struct.Struct("<" + "".join(form for _, form in forms))
