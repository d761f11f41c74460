"""The accounts of memory, of planted figures: parts that add up, of two ranks and of one memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_prof.analyzers.startup.held_memory import memory_of
from spark_prof.analyzers.startup.start_rows import MemoryAccount
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import STARTS
from tests.support import Recorded, eager_decode

GIB = 1 << 30


def gib(**sizes: float) -> dict[str, int]:
    return {name: int(size * GIB) for name, size in sizes.items()}


def held(used: float, reserved: float, allocated: float, source: str = "process") -> dict[str, Any]:
    return gib(rss=4, used=used, reserved=reserved, allocated=allocated) | {"source": source}


def mark(stage: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"stage": stage, "begin_ns": 1, "end_ns": 2, "before": before, "after": after}


MARKS = [
    mark("imports", after=gib(rss=1)),
    mark("processes", gib(rss=1), held(0.5, 0, 0) | gib(rss=1.5)),
    mark("load", held(0.5, 0, 0) | gib(rss=1.5), held(17, 16.5, 16) | gib(rss=2)),
    mark("capture", held(50, 49, 47), held(51.5, 50, 47.25)),
]
START = {"process": "rank0", "pid": 7, "started_ns": 1, "boot": "b", "marks": MARKS}
MEMORY = held(52, 50, 47.25) | gib(
    kv_cache=30, drafter=1, weights=15, peak_reserved=51
) | {
    "device": gib(total=80, used=60, free=20),
    "host": gib(rss=4, anonymous=3, file=1, shared=0, peak_rss=5),
    "machine": gib(total=100, free=40, cached=20, buffers=1, kernel_cache=1, available=60),
}  # fmt: skip


@pytest.fixture
def bundle(tmp_path: Path) -> Any:
    def made(memory: dict[str, Any], *starts: dict[str, Any], ranks: int = 1) -> Bundle:
        facts = {"memory": memory, STARTS: list(starts)}
        pieces = {rank: [eager_decode()] for rank in range(ranks)}
        return Recorded(pieces, facts=facts).assemble(tmp_path / "b")

    return made


def parts(account: MemoryAccount) -> dict[str, float]:
    assert sum(part.bytes for part in account.parts) == account.total
    assert all(part.bytes for part in account.parts)
    assert [part.share for part in account.parts] == [
        part.bytes / account.total for part in account.parts
    ]
    return {part.id: round(part.bytes / GIB, 3) for part in account.parts}


def test_parts_of_the_gpu_add_up_to_what_nvml_tells(bundle: Any) -> None:
    gpu, process, host = memory_of(bundle(MEMORY, START))
    assert list(parts(gpu).items()) == [
        ("weights", 15), ("drafter", 1), ("kv_cache", 30), ("graphs", 1.5), ("workspaces", 1),
        ("activation", 2), ("context", 0.5), ("later", 1),
    ]  # fmt: skip
    assert (gpu.of, gpu.rank, gpu.source, gpu.named_share) == ("gpu", 0, "process", 1)
    assert (gpu.capacity, gpu.free, gpu.peak) == (80 * GIB, 20 * GIB, 51 * GIB)
    assert parts(process) == {"imports": 1, "processes": 0.5, "load": 0.5, "": 2}
    assert process.named_share == pytest.approx(0.5)
    assert parts(host) == {"page_cache": 22, "": 38}


def test_without_a_total_torch_tells_it_and_the_context_is_unknown(bundle: Any) -> None:
    less = {name: value for name, value in MEMORY.items() if name not in ("used", "source")}
    gpu = memory_of(bundle(less, START))[0]
    assert (gpu.source, gpu.total) == ("torch", 50 * GIB)
    assert not {"context", "later"} & parts(gpu).keys()


def test_an_engine_that_ran_already_tells_its_weights_by_its_tensors(bundle: Any) -> None:
    told = parts(memory_of(bundle(MEMORY))[0])
    assert (told["weights"], told["drafter"], told["workspaces"]) == (15, 1, 1.25)
    assert told["context"] == 2


def test_sources_that_differ_are_not_subtracted(bundle: Any) -> None:
    other = MEMORY | {"source": "growth"}
    told = parts(memory_of(bundle(other, START))[0])
    assert (told["context"], "later" in told) == (1.5, False)


def test_two_ranks_have_an_account_each_and_one_host(bundle: Any) -> None:
    two = START | {"process": "rank1", "pid": 8}
    pss = {"memory": gib(share=3, share_file=0.5)}
    accounts = memory_of(bundle(MEMORY, START | pss, two | pss, ranks=2))
    assert [(account.of, account.rank) for account in accounts] == [
        ("gpu", 0), ("process", 0), ("gpu", 1), ("process", 1), ("host", None),
    ]  # fmt: skip
    host = parts(accounts[-1])
    assert host == {"rank0:7": 3, "rank1:8": 3, "page_cache": 21, "": 33}
    assert accounts[-1].parts[0].what == "Process rank0 (7)"


def test_one_memory_is_one_account(bundle: Any) -> None:
    memory = MEMORY | {"shared": True, "source": "host", "device": {}}
    memory |= {"machine": gib(total=100, free=40)}  # no page cache
    marks = [mark("processes", None, held(0.5, 0, 0, "host"))]
    host = memory_of(bundle(memory, START | {"marks": marks, "memory": gib(share=3)}))[-1]
    told = parts(host)
    assert list(told)[:2] == ["rank0:7", "weights:0"]
    assert host.shared
    assert told["weights:0"] == 15
    assert told["kv_cache:0"] == 30
    assert host.total == 60 * GIB


def test_what_was_not_measured_or_is_damaged_has_no_account(bundle: Any, tmp_path: Path) -> None:
    assert memory_of(bundle({})) == ()
    damaged = Recorded({0: [eager_decode()]}, facts={"memory": {"rss": "x"}, STARTS: [3, {}]})
    assert memory_of(damaged.assemble(tmp_path / "damaged")) == ()
