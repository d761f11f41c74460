"""The collective calls of one rank, from its kernels or operators."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.classify.classifier import classify
from spark_prof.traces.bundle import Bundle

KINDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("reduce_scatter", r"reduce_?scatter",
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",)),
    ("all_reduce", r"all_?reduce|cross_device_reduce|quickreduce",
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)",
        "_C::shm_allreduce", "c10d::allreduce_")),
    ("all_gather", r"all_?gather",
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "c10d::_allgather_base_")),
    ("all_to_all", r"all_?to_?all", ("c10d::alltoall_base_",)),
    ("broadcast", r"broadcast", ("ncclDevKernel_Broadcast_RING_LL",)),
    ("send_recv", r"send_?recv",
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",)),
    ("reduce", r"reduce", ("ncclDevKernel_Reduce_Sum_f32_RING_LL",)),
)  # fmt: skip
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


_COLUMNS = ("name", "start_ns", "end_ns", "part", "stream", "step")


def collective_calls(bundle: Bundle, rank: int, *, every: bool = False) -> pd.DataFrame:
    """What `calls_among` finds among the kernels of a rank."""
    return calls_among(bundle.frame("kernels", rank, _COLUMNS), every=every)


def calls_among(kernels: pd.DataFrame, *, every: bool = False) -> pd.DataFrame:
    """One row per collective, in order of start.

    Args:
        kernels: name (as category), start_ns, end_ns, part, stream and step.
        every: also those that no recorded step launched, such as an idle replica's.

    Returns:
        step (-1 for none), kind, start_ns and end_ns.
    """
    rows = kernels.sort_values(["stream", "start_ns"], kind="stable", ignore_index=True)
    kinds = [collective_kind(name) for name in rows["name"].cat.categories]
    code = rows["name"].cat.codes.to_numpy()
    known = np.array([kind is not None for kind in kinds] + [False])[code]
    first = np.flatnonzero(known & (rows["part"] == 0).to_numpy())
    early = np.array([returns_early(name) for name in rows["name"].cat.categories] + [False])[code]
    end = _ends(rows, known, first, early)
    calls = pd.DataFrame(
        {
            "step": rows["step"].to_numpy()[first],
            "kind": pd.Categorical([str(kinds[c]) for c in code[first]]),
            "start_ns": rows["start_ns"].to_numpy()[first],
            "end_ns": end,
        }
    )
    calls = calls[every | (calls["step"] >= 0)]
    return calls.sort_values("start_ns", kind="stable", ignore_index=True)


def _ends(
    rows: pd.DataFrame,
    known: npt.NDArray[np.bool_],
    first: npt.NDArray[np.intp],
    early: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """When each call ended, of which `first` is the first row.

    An operator that calls others has several rows. One that only starts the transfer ends where
    its thread's next operator begins.
    """
    start, end = (rows[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    finish = end[first]
    parted = rows["part"].to_numpy() > 0
    if not (parted & known).any() and not early[first].any():
        return finish
    names, streams, steps = (rows[n].to_numpy() for n in ("name", "stream", "step"))
    for index, row in enumerate(first.tolist()):
        limit = int(first[index + 1]) if index + 1 < len(first) else len(rows)
        last = row
        for later in range(row + 1, limit):
            if streams[later] != streams[row] or steps[later] != steps[row]:
                break
            if parted[later] and names[later] == names[row]:
                last = later
        finish[index] = end[last]
        after = last + 1
        if (
            early[row]
            and after < len(rows)
            and streams[after] == streams[row]
            and steps[after] == steps[row]
        ):
            finish[index] = max(start[after], end[last])
    return finish
