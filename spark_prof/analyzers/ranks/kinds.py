"""Which collective a kernel or operator belongs to, by its name."""

from __future__ import annotations

import re
from functools import lru_cache

from spark_prof.analyzers.classify.classifier import classify

KINDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "reduce_scatter",
        r"reduce_?scatter",
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",),
    ),
    (
        "all_reduce",
        r"all_?reduce|cross_device_reduce|quickreduce",
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)",
            "_C::shm_allreduce",
            "c10d::allreduce_",
        ),
    ),
    (
        "all_gather",
        r"all_?gather",
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "c10d::_allgather_base_",
        ),
    ),
    ("all_to_all", r"all_?to_?all", ("c10d::alltoall_base_",)),
    ("broadcast", r"broadcast", ("ncclDevKernel_Broadcast_RING_LL",)),
    (
        "send_recv",
        r"send_?recv",
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",),
    ),
    ("reduce", r"reduce", ("ncclDevKernel_Reduce_Sum_f32_RING_LL",)),
)
"""Kind, pattern and names that are its tests; the first that fits."""

_JOINT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"})

_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern, _ in KINDS)


@lru_cache(maxsize=16384)
def collective_kind(name: str) -> str | None:
    """The kind of a collective; "unknown" where the name tells no more, None for anything else."""
    if classify(name).component != "collective":
        return None
    head = name.partition("(")[0]
    return next((kind for kind, pattern in _COMPILED if pattern.search(head)), "unknown")


def is_joint(kind: str) -> bool:
    """Whether no participant can end before the last one has started.

    A broadcast's root may be done before the others come; a send may end in its buffer, so that
    `send_recv` is joint only where it is NCCL's way to exchange with everybody.
    """
    return kind in _JOINT


def returns_early(name: str) -> bool:
    """Whether the operator only starts the transfer, and its caller then waits for the end.

    torch.distributed's CPU operators do: the wait that follows is no operator of its own.
    """
    return name.startswith("c10d::")
