"""How libcupti lays out its activity records, and names for what they only number.

Source: cupti_activity.h and cupti_activity_deprecated.h of CUDA 12.4 to 13.5, compiled by
scripts/cupti_layouts.py. A record begins with its kind, a uint32, and is a multiple of 8 bytes
long. New versions only append: a field keeps its offset, the record grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

COPY, FILL, PEER_COPY = 1, 2, 22
KERNELS = (3, 10)  # serialized and concurrent kernels: CUPTI writes the one that was enabled
DRIVER_CALL, RUNTIME_CALL, INTERNAL_LAUNCH = 4, 5, 48
MARKER, OVERHEAD, GRAPH = 12, 17, 51

OLDEST, NEWEST = 22, 130500
"""The library versions (cuptiGetVersion) whose headers were read: CUDA 12.4 and 13.5."""

_SIZES: Mapping[int, tuple[tuple[int, int], ...]] = {
    1: ((22, 88), (26, 96), (130400, 112)),  # MEMCPY: versions 5, 6, 7
    2: ((22, 88), (130400, 104)),  # MEMSET: 4, 5
    # KERNEL and CONCURRENT_KERNEL: 9, 10, 11, 12, 13
    3: ((22, 208), (130000, 216), (130100, 224), (130300, 232), (130400, 248)),
    10: ((22, 208), (130000, 216), (130100, 224), (130300, 232), (130400, 248)),
    4: ((22, 40),),  # DRIVER
    5: ((22, 40),),  # RUNTIME
    6: ((22, 24),),  # EVENT
    7: ((22, 24),),  # METRIC
    8: ((22, 184), (130200, 192)),  # DEVICE: 5, 6
    9: ((22, 24), (23, 32), (130100, 40)),  # CONTEXT: 2, 3, 4
    11: ((22, 32),),  # NAME
    12: ((22, 56),),  # MARKER
    13: ((22, 32), (130000, 40)),  # MARKER_DATA: 1, 2
    14: ((22, 24),),  # SOURCE_LOCATOR
    15: ((22, 56),),  # GLOBAL_ACCESS
    16: ((22, 40),),  # BRANCH
    17: ((22, 56),),  # OVERHEAD
    18: ((22, 144),),  # CDP_KERNEL
    19: ((22, 40),),  # PREEMPTION
    20: ((22, 40),),  # ENVIRONMENT
    21: ((22, 32),),  # EVENT_INSTANCE
    22: ((22, 96),),  # MEMCPY2, from one GPU to another
    23: ((22, 32),),  # METRIC_INSTANCE
    24: ((22, 48),),  # INSTRUCTION_EXECUTION
    25: ((22, 64), (26, 104)),  # UNIFIED_MEMORY_COUNTER: 2, 3
    26: ((22, 32),),  # FUNCTION
    27: ((22, 24),),  # MODULE
    28: ((22, 24),),  # DEVICE_ATTRIBUTE
    29: ((22, 56),),  # SHARED_ACCESS
    30: ((22, 40),),  # PC_SAMPLING
    31: ((22, 32),),  # PC_SAMPLING_RECORD_INFO
    32: ((22, 24),),  # INSTRUCTION_CORRELATION
    33: ((22, 152),),  # OPENACC_DATA
    34: ((22, 152),),  # OPENACC_LAUNCH
    35: ((22, 120),),  # OPENACC_OTHER
    36: ((22, 24), (26, 56), (130500, 80)),  # CUDA_EVENT: 1, 2, 3
    37: ((22, 24),),  # STREAM
    38: ((22, 40), (26, 56)),  # SYNCHRONIZATION: 1, 2
    39: ((22, 24),),  # EXTERNAL_CORRELATION
    40: ((22, 136), (130200, 88)),  # NVLINK: 4, 5
    41: ((22, 32),),  # INSTANTANEOUS_EVENT
    42: ((22, 32),),  # INSTANTANEOUS_EVENT_INSTANCE
    43: ((22, 32),),  # INSTANTANEOUS_METRIC
    44: ((22, 32),),  # INSTANTANEOUS_METRIC_INSTANCE
    45: ((22, 80),),  # MEMORY
    46: ((22, 168),),  # PCIE
    47: ((22, 40),),  # OPENMP
    48: ((22, 40),),  # INTERNAL_LAUNCH_API
    49: ((22, 120), (24, 128)),  # MEMORY2: 3, 4
    50: ((22, 72), (130000, 80)),  # MEMORY_POOL: 2, 3
    51: ((22, 56),),  # GRAPH_TRACE
    52: ((22, 72),),  # JIT; up to 13.0 the header names the wrong version
    53: ((26, 56),),  # DEVICE_GRAPH_TRACE
    54: ((26, 64),),  # MEM_DECOMPRESS
    55: ((27, 32),),  # CONFIDENTIAL_COMPUTE_ROTATION
    56: ((130100, 56),),  # GRAPH_HOST_NODE
    57: ((130100, 24),),  # COMPUTE_ENGINE_CTX_SWITCH
    58: ((130100, 48),),  # HOST_LAUNCH
    59: ((130200, 152), (130202, 168), (130400, 304)),  # GREEN_CONTEXT: 1, 2, 3
}
"""For each kind (CUpti_ActivityKind), from which library version on a record has how many bytes."""

Fields = dict[str, tuple[str, int]]

_WHEN: Fields = {"start": ("<u8", 16), "end": ("<u8", 24)}
_KERNEL: Fields = _WHEN | {
    "registersPerThread": ("<u2", 6), "deviceId": ("<u4", 40), "streamId": ("<u4", 48),
    "gridX": ("<i4", 52), "gridY": ("<i4", 56), "gridZ": ("<i4", 60), "blockX": ("<i4", 64),
    "blockY": ("<i4", 68), "blockZ": ("<i4", 72), "staticSharedMemory": ("<i4", 76),
    "dynamicSharedMemory": ("<i4", 80), "correlationId": ("<u4", 92), "name": ("<u8", 104),
    "graphNodeId": ("<u8", 144),
}  # fmt: skip
_MOVE: Fields = _WHEN | {
    "bytes": ("<u8", 8), "deviceId": ("<u4", 32), "streamId": ("<u4", 40),
    "correlationId": ("<u4", 44), "graphNodeId": ("<u8", 64),
}  # fmt: skip
_FROM_TO: Fields = {"copyKind": ("u1", 4), "srcKind": ("u1", 5), "dstKind": ("u1", 6)}
_CALL: Fields = {
    "kind": ("<u4", 0), "cbid": ("<u4", 4), "start": ("<u8", 8), "end": ("<u8", 16),
    "threadId": ("<u4", 28), "correlationId": ("<u4", 32),
}  # fmt: skip

_FIELDS: Mapping[int, Fields] = {
    **dict.fromkeys(KERNELS, _KERNEL),
    COPY: _MOVE | _FROM_TO,
    PEER_COPY: _MOVE | _FROM_TO | {"correlationId": ("<u4", 60), "graphNodeId": ("<u8", 72)},
    FILL: _MOVE | {"memoryKind": ("<u2", 50)},
    **dict.fromkeys((DRIVER_CALL, RUNTIME_CALL, INTERNAL_LAUNCH), _CALL),
    # Of objectId the second word is the thread, where objectKind says that it is one.
    MARKER: {
        "flags": ("<u4", 4), "timestamp": ("<u8", 8), "id": ("<u4", 16),
        "objectKind": ("<u4", 20), "objectId": ("(3,)<u4", 24), "name": ("<u8", 40),
        "domain": ("<u8", 48),
    },
    OVERHEAD: {"overheadKind": ("<u4", 4), "start": ("<u8", 24), "end": ("<u8", 32)},
}  # fmt: skip


@cache
def record_sizes(version: int) -> tuple[int, ...]:
    """The bytes of a record by its kind, 0 for a kind that the library does not write.

    Of a version between two known ones the records are those of the older, and of one that came
    after NEWEST those of NEWEST.
    """
    sizes = [0] * (max(_SIZES) + 1)
    for kind, changes in _SIZES.items():
        sizes[kind] = next((size for since, size in reversed(changes) if since <= version), 0)
    return tuple(sizes)


@cache
def record_dtype(kind: int, version: int) -> np.dtype[Any]:
    """The fields of that kind that are read, under the names of cupti_activity.h."""
    fields = _FIELDS[kind]
    formats, offsets = zip(*fields.values(), strict=True)
    return np.dtype(
        {
            "names": list(fields),
            "formats": list(formats),
            "offsets": list(offsets),
            "itemsize": record_sizes(version)[kind],
        }
    )


_RUNTIME: Mapping[int, str] = {
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
}  # fmt: skip
_DRIVER: Mapping[int, str] = {
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
}  # fmt: skip

CALLS: Mapping[int, Mapping[int, str]] = {RUNTIME_CALL: _RUNTIME, DRIVER_CALL: _DRIVER}
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
    is_listed = number & 0xFFFF == 0 and 0 <= index < len(_OVERHEADS)
    return _OVERHEADS[index] if is_listed else f"overhead {number}"


def _of(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else names[0]
