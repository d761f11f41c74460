"""The accounts of memory: what each rank's GPU memory, and the host's, was taken by.

The parts of a rank's GPU memory are differences over the phases of its start, by torch's allocator
and by the total that NVML or the kernel tells; so they add up to that total. Where they exceed it,
because others changed it meanwhile, what has no name is negative, and is told so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from spark_prof.analyzers.startup.start_rows import MemoryAccount, MemoryPart
from spark_prof.rules.start_memory import HELD_PARTS
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.engine_starts import (
    HeldMemory,
    ProcessStart,
    RankMemory,
    memory_at_end,
    memory_in,
    of_first_host,
    starts_in,
)

_HOST_STAGES = ("imports", "processes", "load", "profile", "kv-cache", "warm-up")
_STAGE_PARTS = {"kv-cache": "kv_cache"}


def memory_of(bundle: Bundle) -> tuple[MemoryAccount, ...]:
    """The accounts of every rank, and of the host; none where nothing was measured."""
    starts = starts_in(bundle)
    by_name = {start.process: start for start in starts}
    accounts, machine = [], None
    for rank in bundle.ranks:
        memory = memory_in(bundle, rank)
        if memory is None:
            continue
        start, end = by_name.get(f"rank{rank}"), memory_at_end(bundle, rank)
        gpu = _gpu(rank, memory, start, end)
        accounts += [account for account in (gpu, _process(rank, memory, start, end)) if account]
        machine = machine or memory
    if machine is not None and (host := _host(machine, of_first_host(starts), accounts)):
        accounts.append(host)
    return tuple(accounts)


def _gpu(
    rank: int, memory: RankMemory, start: ProcessStart | None, end: HeldMemory | None
) -> MemoryAccount | None:
    allocated, reserved = memory.allocated, memory.reserved
    if allocated is None or reserved is None:
        return None
    parts = _allocator_parts(memory, allocated, reserved, start)
    total, source = memory.used, memory.source
    if total is None:
        total, source = reserved, "torch"
    else:
        ready = _after(start, "processes")
        outside = total - reserved - parts.pop("graphs_outside")
        context = _outside(ready) if ready is not None and ready.source == source else None
        parts["context"] = outside if context is None else context
        parts["later"] = 0 if context is None else outside - context
    parts.pop("graphs_outside", None)
    at_end = None if end is None or end.source != memory.source else end.used
    return _account(
        MemoryAccount(
            "gpu", rank, (), total, source, None, memory.device.get("total"),
            memory.device.get("free"), memory.peak_reserved, at_end, memory.shared,
        ),
        parts,
    )  # fmt: skip


def _allocator_parts(
    memory: RankMemory, allocated: int, reserved: int, start: ProcessStart | None
) -> dict[str, int]:
    """What torch's allocator holds by what it is for, and CUDA graphs also outside of it."""
    drafter, cache = memory.drafter or 0, memory.kv_cache or 0
    loaded = _growth(start, "load", "allocated")
    if loaded is None:
        loaded = min((memory.weights or 0) + drafter, allocated - cache)
    within = {name: _growth(start, "capture", name) or 0 for name in ("allocated", "reserved")}
    graphs = max(_growth(start, "capture", "used") or 0, within["reserved"])
    return {
        "weights": loaded - drafter,
        "drafter": drafter,
        "kv_cache": cache,
        "graphs": graphs,
        "workspaces": allocated - loaded - cache - within["allocated"],
        "activation": reserved - allocated - (within["reserved"] - within["allocated"]),
        "graphs_outside": graphs - within["reserved"],
    }


def _process(
    rank: int, memory: RankMemory, start: ProcessStart | None, end: HeldMemory | None
) -> MemoryAccount | None:
    """What a rank holds of the host's memory, by the stage of its start that added it."""
    total = memory.host.get("rss", memory.rss)
    if not total:
        return None
    parts = {}
    for stage in _HOST_STAGES:
        grown = _growth(start, stage, "rss")
        if stage == "imports" and (after := _after(start, stage)):
            grown = after.rss
        if grown is not None and grown > 0:
            parts[_STAGE_PARTS.get(stage, stage)] = grown
    account = MemoryAccount(
        "process", rank, (), total, "rss", None, None, None, memory.host.get("peak_rss"),
        None if end is None else end.rss,
    )  # fmt: skip
    return _account(account, parts)


def _host(
    memory: RankMemory, starts: Sequence[ProcessStart], accounts: Sequence[MemoryAccount]
) -> MemoryAccount | None:
    """The whole machine: the engine's processes, the page cache, and on one memory the GPU's."""
    machine = {name: value for name, value in memory.machine.items() if type(value) is int}
    if not {"total", "free"} <= machine.keys():
        return None
    parts = {
        f"{start.process}:{start.pid}": share
        for start in starts
        if (share := (start.memory or {}).get("share", 0))
    }
    cached = sum(machine.get(name, 0) for name in ("cached", "buffers", "kernel_cache"))
    mapped = sum((start.memory or {}).get(name, 0) for start in starts
                 for name in ("share_file", "share_shared"))  # fmt: skip
    parts["page_cache"] = max(cached - mapped, 0)
    if memory.shared:
        for account in accounts:
            if account.of == "gpu":
                parts |= {f"{part.id}:{account.rank}": part.bytes for part in account.parts}
    account = MemoryAccount(
        "host", None, (), machine["total"] - machine["free"], "meminfo", None, machine["total"],
        machine["free"], shared=memory.shared,
    )  # fmt: skip
    return _account(account, parts)


def _account(account: MemoryAccount, amounts: Mapping[str, int]) -> MemoryAccount:
    """The account with its parts, and what is left of the total as the last of them."""
    total = account.total
    order = [*HELD_PARTS]

    def place(name: str) -> int:
        kind = name.partition(":")[0]
        return order.index(kind) if kind in order else -1

    named = {name: amounts[name] for name in sorted(amounts, key=place) if amounts[name] > 0}
    left = total - sum(named.values())
    rows = [
        MemoryPart(name, _words(name), size, size / total if total else None)
        for name, size in named.items()
    ]
    if left:
        rows.append(MemoryPart("", "", left, left / total if total else None))
    share = 1 - abs(left) / total if total else None
    return replace(account, parts=tuple(rows), named_share=share)


def _words(name: str) -> str:
    """A part in words; one of a process or a rank names it.

    >>> _words("rank1:4711"), _words("kv_cache:0"), _words("kv_cache")
    ('Process rank1 (4711)', 'KV cache, rank 0', 'KV cache')
    """
    kind, _, number = name.partition(":")
    if kind not in HELD_PARTS:
        return f"Process {kind} ({number})"
    return f"{HELD_PARTS[kind]}, rank {number}" if number else HELD_PARTS[kind]


def _pairs(
    start: ProcessStart | None, stage: str
) -> Iterator[tuple[HeldMemory | None, HeldMemory | None]]:
    for mark in start.marks if start else ():
        if mark.stage == stage:
            yield mark.before, mark.after


def _after(start: ProcessStart | None, stage: str) -> HeldMemory | None:
    """What the process held after a stage; None where it did not tell."""
    return next((after for _, after in _pairs(start, stage) if after), None)


def _growth(start: ProcessStart | None, stage: str, name: str) -> int | None:
    """What a stage added; None where it is not told, or by another source than before."""
    sizes = []
    for before, after in _pairs(start, stage):
        if before is None or after is None or (name == "used" and before.source != after.source):
            continue
        then, now = getattr(before, name), getattr(after, name)
        if now is not None:
            # Before the first use of the GPU torch tells nothing: there is nothing.
            sizes.append(now - (then or 0))
    return sum(sizes) if sizes else None


def _outside(memory: HeldMemory) -> int | None:
    """What the GPU holds for a process besides torch's allocator."""
    if memory.used is None or memory.reserved is None:
        return None
    return memory.used - memory.reserved
