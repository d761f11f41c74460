"""A real vLLM engine on the CPU, recorded through the command line, against its own account."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof import load
from spark_prof.analyzers.summary import summary_of
from spark_prof.vocabulary import COMPONENTS
from tests.engine.conftest import (
    ONE_PROCESS,
    Recorder,
    Run,
    computing_without_component,
    report_of,
)

BATCH, PROMPT, TOKENS, ROUNDS, LAYERS = 2, 40, 24, 3, 3


def workload(model: Path, *more: str) -> list[str]:
    sizes = f"--batch {BATCH} --prompt {PROMPT} --tokens {TOKENS} --rounds {ROUNDS}"
    return [sys.executable, "-m", "demo.workload", str(model), *sizes.split(), *more]


@pytest.fixture(scope="session")
def eager(record: Recorder, models: dict[str, Path]) -> Run:
    """vLLM's default engine, in its own process, without torch.compile."""
    return record("eager", workload(models["tiny-moe"], "--show-tokens"))


@pytest.fixture(scope="session")
def compiled(record: Recorder, models: dict[str, Path]) -> Run:
    """A dense model with torch.compile on, the engine inside the user's process."""
    command = workload(models["tiny-dense"], "--compile")
    return record("compiled", command, **ONE_PROCESS)


@pytest.fixture(scope="session")
def parallel(record: Recorder, models: dict[str, Path]) -> Run:
    """Two tensor-parallel ranks, a core each."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two ranks need two cores")
    command = workload(models["tiny-moe"], "--tensor-parallel", "2")
    return record("parallel", command, VLLM_CPU_OMP_THREADS_BIND="0|1")


@pytest.fixture(
    params=[
        pytest.param("eager", marks=pytest.mark.smoke),
        "compiled",
        "parallel",
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    return found


def test_tokens_are_exact(run: Run) -> None:
    steps = run.report["steps"]
    assert steps["tokens"] == ROUNDS * BATCH * TOKENS
    assert steps["tokens"] == sum(one["tokens"] for one in run.workload["rounds"])
    assert steps["prompt_tokens"] == ROUNDS * BATCH * PROMPT
    assert steps["scheduled_tokens"] == ROUNDS * BATCH * (PROMPT + TOKENS - 1)


def test_steps_are_exact(run: Run) -> None:
    """Each prompt takes one step and its other tokens the next ones, whenever it came."""
    steps = load(run.bundle).frame("steps", 0).sort_values("step")
    begun = steps["prefill_requests"].to_numpy()
    going_on = np.convolve(begun, [0, *[1] * (TOKENS - 1)])[: len(begun)]
    assert begun.sum() == ROUNDS * BATCH
    assert steps["decode_requests"].tolist() == going_on.tolist()
    assert (begun + going_on).all()
    counts = run.report["steps"]
    assert counts["count"] == len(steps)
    assert counts["prefill"] == ((begun > 0) & (going_on == 0)).sum()
    assert counts["mixed"] == ((begun > 0) & (going_on > 0)).sum()
    assert counts["decode"] == (begun == 0).sum()


def test_step_times_agree_with_the_engine(run: Run) -> None:
    """In the round that the machine disturbed least: after its last step it may wait for a core."""
    steps = summary_of(load(run.bundle)).steps
    took = steps["step_us"] + steps["paused_ns"] / 1e3  # the engine's clock runs on in a pause
    recorded = took.groupby((steps["phase"].astype(str) == "prefill").cumsum()).sum()
    rounds = [1e6 * one["engine_s"] for one in run.workload["rounds"]]
    # Beginning and ending many short pieces costs a little beyond what their pauses measure.
    assert min(abs(recorded.to_numpy() / rounds - 1)) < 0.06


def test_the_books_balance(run: Run) -> None:
    for books in run.report["books"]:
        total = books["kernels_us"] - books["overlap_us"] + books["gap_us"] + books["residual_us"]
        assert total == pytest.approx(books["step_us"], rel=1e-6)
        assert abs(books["residual_us"]) <= 0.01 * books["step_us"]


def test_every_decoder_layer_appears(run: Run) -> None:
    layers = {row["layer"] for row in run.report["layers"]}
    assert layers >= set(range(LAYERS))


def test_time_is_placed(run: Run) -> None:
    assert not computing_without_component(run.bundle)


def test_the_components_of_each_layer(run: Run) -> None:
    names = {row["name"] for row in run.report["components"]}
    assert names <= set(COMPONENTS)
    moe = {"router", "experts"} if "Moe" in run.report["run"]["model"] else {"mlp"}
    wanted = {"norm", "qkv", "rope", "kv_write", "attention", "o_proj"} | moe
    for layer in range(LAYERS):
        found = {row["component"] for row in run.report["layers"] if row["layer"] == layer}
        assert found >= wanted


def test_the_start_and_the_memory_have_names(run: Run) -> None:
    """From the first process's start until the engine is up, and of what each worker holds."""
    startup = run.report["startup"]
    assert startup["named_share"] >= 0.95
    stages = {row["id"]: row["seconds"] for row in startup["stages"]}
    assert sum(stages.values()) == pytest.approx(startup["seconds"])
    assert {"imports", "build", "weights", "repack", "kv-cache", "rest"} <= set(stages)
    held = [account for account in run.report["memory"] if account["of"] == "process"]
    assert [account["rank"] for account in held] == [row["rank"] for row in run.report["ranks"]]
    assert all(account["named_share"] >= 0.9 for account in held)


def test_nothing_was_lost(run: Run) -> None:
    assert [note for note in run.report["notes"] if note.startswith("lost")] == []


@pytest.mark.smoke
def test_the_live_model_was_read(eager: Run) -> None:
    kinds = {row["component"]: row for row in reversed(eager.report["modules"])}
    kernel = kinds["experts"]["kernel"].removeprefix("X86")  # where AMX is
    assert kernel.startswith("CPUUnquantizedExperts")
    assert kinds["experts"]["count"] == LAYERS
    # 8 experts of 3 matrices of 512 x 512 in two bytes each
    assert kinds["experts"]["bytes"] == LAYERS * 8 * 3 * 512 * 512 * 2
    assert kinds["lm_head"]["shape"] == "8192x512"
    assert kinds["lm_head"]["weight_dtype"] == "bfloat16"


@pytest.mark.smoke
def test_every_tensor_of_the_model_is_listed(eager: Run) -> None:
    """Against the modules as introspection saw them, the configuration and the space for KV."""
    bundle = load(eager.bundle)
    tensors = bundle.frame("tensors", 0).astype({"kind": str, "format": str, "component": str})
    names = ["module", "name", "shape", "bytes", "format"]
    rows = tensors.loc[tensors["kind"] == "weight", names].to_numpy().tolist()
    found = {(module, name): rest for module, name, *rest in rows}
    layers = bundle.frame("layers", 0, ["path", "parameters"]).to_numpy().tolist()
    listed = {
        (path, name): shape
        for path, parameters in layers
        for name, dtype, shape in (each.split(":") for each in parameters.split())
        if dtype == "bfloat16" and shape != "0"  # what the CPU's kernels have packed is gone
    }
    # An embedding, a head and a norm; of each layer the experts' two and four norms, and where
    # this CPU packs no weights qkv, o and the router.
    assert len(listed) in (3 + 6 * LAYERS, 3 + 9 * LAYERS)
    for place, shape in listed.items():
        assert found[place] == [shape, 2 * math.prod(map(int, shape.split("x"))), "bf16"]
    experts = tensors[tensors["component"] == "experts"].sort_values(["layer", "name"])
    assert experts["bytes"].tolist() == LAYERS * [8 * 1024 * 512 * 2, 8 * 512 * 512 * 2]
    caches = tensors[tensors["kind"] == "kv"]
    assert caches["module"].tolist() == [f"model.layers.{n}.self_attn.attn" for n in range(LAYERS)]
    # A GiB, but for what is no whole block of 128 tokens, 4 heads and 64 numbers in each layer.
    assert 0 <= (1 << 30) - int(caches["bytes"].sum()) < LAYERS * 128 * 4 * 64 * 2
    own = tensors[tensors["kind"] != "buffer"].sort_values("address")
    ends = (own["address"] + own["bytes"]).to_numpy()
    assert (ends[:-1] <= own["address"].to_numpy()[1:]).all()


@pytest.mark.smoke
def test_an_engine_in_its_own_process_is_not_the_command(eager: Run) -> None:
    facts: dict[str, Any] = load(eager.bundle).meta.facts
    assert {"rank0", "engine0"} <= set(facts)
    assert facts["rank0"]["vllm"].startswith("0.")
    assert facts["rank0"]["pid"] != facts["engine0"]["pid"]


def test_each_rank_has_its_own_tables(parallel: Run) -> None:
    assert [row["rank"] for row in parallel.report["ranks"]] == [0, 1]
    second = report_of(parallel.bundle, "--rank", "1")
    assert second["steps"]["count"] == parallel.report["steps"]["count"]
    assert not computing_without_component(parallel.bundle, 1)
    assert "collective" in {row["name"] for row in second["components"]}


def test_ranks_meet_in_every_collective(parallel: Run) -> None:
    """One after the embedding, two in each layer, and one that gathers the logits."""
    found = parallel.report["collectives"]
    steps = parallel.report["steps"]["count"]
    assert (found["steps"], found["steps_left_out"], found["notes"]) == (steps, 0, [])
    assert (found["matched"], found["unmatched"]) == (steps * (2 * LAYERS + 2), 0)
    [clock] = found["clocks"]
    assert clock["same_host"]
    assert abs(clock["offset_us"]) <= clock["uncertainty_us"]
    places = {(row["kind"], row["after"], row["layer"]) for row in found["items"]}
    inside = {("all_reduce", name, n) for name in ("o_proj", "experts") for n in range(LAYERS)}
    assert places == inside | {("all_reduce", "embedding", None), ("all_gather", "lm_head", None)}
    named = [step["slowest"] for step in found["slow_steps"]]
    assert len(named) == steps
    for row in parallel.report["ranks"]:
        assert row["slowest_steps"] == named.count(row["rank"])


def test_both_inside_one_process(compiled: Run) -> None:
    facts: dict[str, Any] = load(compiled.bundle).meta.facts
    assert facts["engine0"]["process"] == "engine0"
