"""Names for what CUPTI's records only number: API calls, kinds of copies, memory and overhead.

Sources: cupti_runtime_cbid.h, cupti_driver_cbid.h and the enumerations of cupti_activity.h of CUDA
12.4 to 13.5, where a number never changes its meaning. Copies are named as Kineto does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from spark_prof.traces.readers.cupti_records import (
    DRIVER_CALL,
    INTERNAL_LAUNCH,
    PEER_COPY,
    RUNTIME_CALL,
)

_RUNTIME: Mapping[int, str] = MappingProxyType(
    {
        31: "cudaMemcpy", 41: "cudaMemcpyAsync", 44: "cudaMemcpy2DAsync", 49: "cudaMemset",
        51: "cudaMemsetAsync", 160: "cudaMemcpyPeer", 161: "cudaMemcpyPeerAsync",
        211: "cudaLaunchKernel", 214: "cudaLaunchKernel_ptsz", 215: "cudaMemcpy_ptds",
        225: "cudaMemcpyAsync_ptsz", 228: "cudaMemcpy2DAsync_ptsz", 233: "cudaMemset_ptds",
        235: "cudaMemsetAsync_ptsz", 269: "cudaLaunchCooperativeKernel",
        270: "cudaLaunchCooperativeKernel_ptsz", 311: "cudaGraphLaunch",
        312: "cudaGraphLaunch_ptsz", 430: "cudaLaunchKernelExC", 431: "cudaLaunchKernelExC_ptsz",
        482: "cudaMemcpyBatchAsync", 483: "cudaMemcpyBatchAsync_ptsz", 505: "__cudaLaunchKernel",
        506: "__cudaLaunchKernel_ptsz", 509: "cudaMemcpyBatchAsync",
        510: "cudaMemcpyBatchAsync_ptsz", 554: "cudaMemcpyWithAttributesAsync",
        555: "cudaMemcpyWithAttributesAsync_ptsz",
    }
)  # fmt: skip
_DRIVER: Mapping[int, str] = MappingProxyType(
    {
        216: "cuMemsetD8Async", 218: "cuMemsetD16Async", 220: "cuMemsetD32Async", 249: "cuMemsetD8",
        250: "cuMemsetD16", 251: "cuMemsetD32", 276: "cuMemcpyHtoD", 277: "cuMemcpyHtoDAsync",
        278: "cuMemcpyDtoH", 279: "cuMemcpyDtoHAsync", 280: "cuMemcpyDtoD",
        281: "cuMemcpyDtoDAsync", 289: "cuMemcpy2DAsync", 305: "cuMemcpy", 306: "cuMemcpyAsync",
        307: "cuLaunchKernel", 318: "cuMemcpyPeer", 319: "cuMemcpyPeerAsync",
        397: "cuMemcpyHtoD_ptds", 398: "cuMemcpyDtoH_ptds", 399: "cuMemcpyDtoD_ptds",
        408: "cuMemcpy_ptds", 409: "cuMemcpyPeer_ptds", 411: "cuMemsetD8_ptds",
        412: "cuMemsetD16_ptds", 413: "cuMemsetD32_ptds", 418: "cuMemcpyAsync_ptsz",
        421: "cuMemcpyHtoDAsync_ptsz", 422: "cuMemcpyDtoHAsync_ptsz", 423: "cuMemcpyDtoDAsync_ptsz",
        424: "cuMemcpy2DAsync_ptsz", 426: "cuMemcpyPeerAsync_ptsz", 428: "cuMemsetD8Async_ptsz",
        429: "cuMemsetD16Async_ptsz", 430: "cuMemsetD32Async_ptsz", 442: "cuLaunchKernel_ptsz",
        477: "cuLaunchCooperativeKernel", 478: "cuLaunchCooperativeKernel_ptsz",
        514: "cuGraphLaunch", 515: "cuGraphLaunch_ptsz", 652: "cuLaunchKernelEx",
        653: "cuLaunchKernelEx_ptsz", 776: "cuMemcpyBatchAsync", 777: "cuMemcpyBatchAsync_ptsz",
        796: "cuMemcpyBatchAsync", 797: "cuMemcpyBatchAsync_ptsz",
        819: "cuGraphLaunchWithArguments", 837: "cuMemcpyWithAttributesAsync",
        838: "cuMemcpyWithAttributesAsync_ptsz",
    }
)  # fmt: skip

CALLS: Mapping[int, Mapping[int, str]] = MappingProxyType(
    {RUNTIME_CALL: _RUNTIME, DRIVER_CALL: _DRIVER}
)
"""For each kind of record the calls that start work on the GPU, by their number."""

_OTHER_CALL = {RUNTIME_CALL: "cuda_runtime", DRIVER_CALL: "cuda_driver"}
_DIRECTIONS = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
)  # fmt: skip
_MEMORIES = (
    "Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static",
    "Managed Static",
)  # fmt: skip
_OVERHEADS = (
    "buffer flush", "instrumentation", "CUPTI resource", "runtime module loading",
    "lazy function loading", "command buffer full", "activity buffer request",
    "unified memory start",
)  # fmt: skip


def call_name(kind: int, number: int) -> str:
    """The function of an API record, such as ``cudaGraphLaunch``."""
    if kind == INTERNAL_LAUNCH:
        return "driver's own launch"
    return CALLS[kind].get(number, f"{_OTHER_CALL[kind]}_{number}")


def copy_name(kind: int, direction: int, source: int, target: int) -> str:
    """What Kineto calls that copy, such as ``Memcpy HtoD (Pinned -> Device)``."""
    way = "PtoP" if kind == PEER_COPY else _of(_DIRECTIONS, direction)
    return f"Memcpy {way} ({_of(_MEMORIES, source)} -> {_of(_MEMORIES, target)})"


def fill_name(memory: int) -> str:
    """What Kineto calls that memset, such as ``Memset (Device)``."""
    return f"Memset ({_of(_MEMORIES, memory)})"


def overhead_name(number: int) -> str:
    """What kind of overhead that is."""
    if number == 1:
        return "driver compiler"
    index = (number >> 16) - 1
    known = number & 0xFFFF == 0 and 0 <= index < len(_OVERHEADS)
    return _OVERHEADS[index] if known else f"overhead {number}"


def _of(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else names[0]
