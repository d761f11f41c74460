"""Keeps those words among kernels' arguments that are addresses in this process's GPU memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]


def on_device(words: Rows) -> Rows:
    """The rows whose address lies in memory of PyTorch's allocator.

    Args:
        words: rows of pieces.ARGUMENT_DTYPE; most of them are sizes, strides and other numbers.

    Example:
        >>> on_device(native.take_arguments()[0])
    """
    if not len(words):
        return words
    import torch

    segments = torch.cuda.memory_snapshot()
    spans = sorted((int(s["address"]), int(s["total_size"])) for s in segments)
    if not spans:
        return words[:0]
    begin, size = np.array(spans, np.int64).T
    place = np.searchsorted(begin, words["address"], side="right") - 1
    inside = (place >= 0) & (words["address"] < (begin + size)[place])
    found: Rows = words[inside]
    return found
