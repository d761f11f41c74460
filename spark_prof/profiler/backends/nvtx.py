"""Lets CUPTI see NVTX, and reads the texts that its marker records point to.

A library that uses NVTX loads what NVTX_INJECTION64_PATH names at its first call, and never looks
again (nvtxDetail/nvtxInit.h). So the variable is set in the worker itself, where it is known which
libcupti is loaded, before the model, NCCL or spark-prof make such a call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice

INJECTION = "NVTX_INJECTION64_PATH"

_MOST_BYTES = 1024
"""Of a text; the rest is cut off."""

_MOST_TEXTS = 1 << 17
"""Of one piece: a program may make up a new one for each range."""


def send_to_cupti(libcupti: str) -> str:
    """Has NVTX report to that libcupti; what already listens in its place, empty if nothing."""
    listener = os.environ.setdefault(INJECTION, libcupti)
    same = listener == libcupti or os.path.realpath(listener) == os.path.realpath(libcupti)
    return "" if same else listener


def read_texts(pointers: Iterable[int]) -> dict[int, str]:
    """The text at each address of this process; an address that is not mapped has none.

    Who set a marker may have freed its text: read through the kernel, that is no crash.
    """
    texts: dict[int, str] = {}
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # in a process that nobody may look into
        return texts
    try:
        for pointer in islice(pointers, _MOST_TEXTS):
            try:
                data = os.pread(memory, _MOST_BYTES, pointer)
            except (OSError, OverflowError):
                continue
            texts[pointer] = data.partition(b"\0")[0].decode(errors="replace")
    finally:
        os.close(memory)
    return texts
