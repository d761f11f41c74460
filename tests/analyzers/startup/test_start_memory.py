"""The memory of a start: the parts that the log names, and what is left of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.startup.start_memory import start_memory_of
from spark_prof.analyzers.startup.start_rows import StartMemory
from spark_prof.traces.readers.engine_log import read_engine_log
from tests.analyzers.startup import started
from tests.rows import each_row

LOGS = Path(__file__).parents[2] / "data" / "logs"
POOL = "CUDA graph pool memory: 1.2 GiB (actual), 1.0 GiB (estimated), difference: 0.2 GiB (16%)."
USAGE = (
    "Free memory on device (138.0/140.0 GiB) on startup. Desired GPU memory utilization is (0.5, "
    "70.0 GiB). Actual usage is 18.0 GiB for consumed memory (weights + non-torch), 4.0 GiB for "
    "peak activation, and 1.2 GiB for CUDAGraph memory. Replace gpu_memory_utilization config."
)


def memory(folder: Path, *messages: str, process: str = "EngineCore") -> StartMemory | None:
    lines = [started.stamped(at, message, process) for at, message in enumerate(messages)]
    return start_memory_of(started.read(folder, lines))


def parts(account: StartMemory | None) -> dict[str, float]:
    assert account is not None
    return {row.id: pytest.approx(row.gib) for row in account.parts}


@each_row("name", ["dense-fp8-block", "gpt-oss-20b-mxfp4", "qwen3-30b-a3b-nvfp4"])
def test_parts_of_real_logs_are_what_vllm_may_take(name: str) -> None:
    account = start_memory_of(read_engine_log(LOGS / f"{name}.log"))
    assert account is not None
    assert account.budget == 63.34
    assert account.named_share == pytest.approx(1, abs=0.001)
    assert sum(row.gib for row in account.parts) == pytest.approx(account.budget)


def test_what_one_figure_has_of_another_counts_once(tmp_path: Path) -> None:
    graphs = "Graph capturing finished in 9 secs, took 1.20 GiB"
    available = "Available KV cache memory: 48.0 GiB"
    account = memory(tmp_path, started.LOADED, available, graphs, POOL, USAGE)
    assert account is not None
    assert [row.line for row in account.parts] == [1, 5, 5, 3, 2, 0]
    assert [row.share for row in account.parts] == [
        pytest.approx(row.gib / 70) for row in account.parts
    ]
    assert parts(account) == {
        "weights": 16, "non_torch": 2, "activation": 3, "graphs": 1.2, "kv_cache": 48, "": -0.2,
    }  # fmt: skip
    without_weights = parts(memory(tmp_path, "Available KV cache memory: 48.0 GiB", USAGE))
    assert without_weights == {"consumed": 18, "activation": 4, "kv_cache": 48, "": 0}


def test_without_a_whole_there_is_no_rest(tmp_path: Path) -> None:
    account = memory(tmp_path, started.LOADED, started.CAPTURED)
    assert account is not None
    assert (account.budget, account.named_share, account.named_gib) == (None, None, 17)
    assert parts(account) == {"weights": 16, "graphs": 1}
    assert memory(tmp_path, started.CONFIG) is None


def test_the_rank_with_the_most_weights_counts(tmp_path: Path) -> None:
    small = started.lines_of(((1, started.LOADED), (2, started.CACHE)), "Worker_TP0")
    large = [line.replace("16.00", "17.00").replace("40.00", "39.00") for line in small]
    large = [line.replace("TP0", "TP1") for line in large]
    account = start_memory_of(started.read(tmp_path, [*small, *large, *small[2:]]))
    assert account is not None
    assert account.ranks == 2
    assert parts(account) == {"weights": 17, "kv_cache": 39}


def test_a_drafter_is_told(tmp_path: Path) -> None:
    for method, with_drafter in (("eagle3", True), ("mtp", True), ("ngram", False)):
        drafter = f"speculative_config=SpeculativeConfig(method='{method}', model='d')"
        config = started.CONFIG.replace("model='m', speculative_config=None", drafter)
        account = memory(tmp_path, config, started.LOADED)
        assert account is not None
        assert account.with_drafter is with_drafter
        later = memory(tmp_path, config, started.LOADED, started.CONFIG)
        assert later is not None
        assert not later.with_drafter
