"""Comparisons of real recordings: parts add up, differences are found where they were made."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.comparing.compare_sides import compare, setup_differences, unlike
from spark_prof.analyzers.comparing.comparison import (
    ComparedRecording,
    Comparison,
    PhaseComparison,
    side_names,
)
from spark_prof.analyzers.comparing.obstacles import other_model
from spark_prof.analyzers.comparing.swapped_steps import kernel_time
from spark_prof.analyzers.instants import RunWork, attribute
from spark_prof.analyzers.views.layer_cells import KernelColumns
from spark_prof.datasets.opened import read_side
from spark_prof.errors import CommandError
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row
from tests.slowed import slowed, window

DATA = Path(__file__).parents[2] / "data"
QWEN = DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"
EARLIER = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
GPT = DATA / "compare-h100" / "gpt-graph"
SOURCES = (
    EARLIER,
    DATA / "kineto" / "gpt-oss-eager.json.gz",
    DATA / "benchmarks" / "vllm-serve-bundle",
    DATA / "proton" / "trace.chrome_trace",
)


@pytest.fixture(scope="module")
def qwen() -> ComparedRecording:
    return read_side(str(QWEN))


@pytest.fixture(scope="module")
def gpt() -> ComparedRecording:
    return read_side(str(GPT))


@pytest.fixture(scope="module")
def one_and_eight(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ComparedRecording, ComparedRecording]:
    """The steps of one recording with one request, and those with eight."""
    folder = tmp_path_factory.mktemp("sizes")
    one, eight = (read_side(str(window(GPT, folder / str(size), 0, 1, size))) for size in (1, 8))
    return one, eight


def decode(found: Comparison) -> PhaseComparison:
    phase = found.phase("decode")
    assert phase is not None
    return phase


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_parts_add_up_to_the_whole(qwen: ComparedRecording, source: Path) -> None:
    other = read_side(str(source))
    if not {"decode", "prefill"} & set(other.steps["phase"].astype(str)):
        with pytest.raises(CommandError, match="no steps of one phase"):
            compare(qwen, other)
        return
    found = compare(qwen, other)
    for phase in found.phases:
        for side in ("a", "b", "us"):
            parts = sum(getattr(part.change, side) for part in phase.parts)
            assert parts == pytest.approx(getattr(phase.typical, side), rel=1e-9, abs=1e-6)
            kernels = sum(getattr(row.change, side) for row in phase.kernels)
            components = sum(
                getattr(part.change, side) for part in phase.parts if part.calls_a or part.calls_b
            )
            assert kernels == pytest.approx(components, rel=1e-9, abs=1e-6)
        assert phase.typical.us + phase.residual_us == pytest.approx(phase.like.us)
        assert phase.like.us + phase.mix_us == pytest.approx(phase.whole.us)


def test_parts_are_those_that_a_report_has_of_the_step() -> None:
    """Of four steps both take the mean of the two in the middle."""
    few = read_side(str(DATA / "h100-gpt-oss-20b-mxfp4-graphs"))
    step = few.report.decode_step
    assert step is not None
    found = {part.name: part.change.a for part in decode(compare(few, few)).parts}
    assert found == pytest.approx({part.name: part.us for part in step.parts})


@each_row("seed", range(20))
def test_some_steps_have_what_they_have_among_all(seed: int) -> None:
    """Kernels that overlap or reach into a step, and copies, in steps with pauses between."""
    chance = np.random.default_rng(seed)
    edges = np.sort(chance.choice(10_000, 24, replace=False)).reshape(-1, 2)
    steps = pd.DataFrame({"begin_ns": edges[:, 0], "finish_ns": edges[:, 1]})
    start = np.sort(chance.integers(0, 10_000, 300))
    end = start + chance.choice((0, 5, 40, 700), 300, p=(0.1, 0.5, 0.39, 0.01))
    name = chance.integers(0, 3, 300).astype(np.int32)
    component = chance.integers(0, 4, 300).astype(np.uint8)
    layer = chance.integers(-1, 3, 300).astype(np.int16)
    ran = KernelColumns(start, end, name, layer, component, name, name, ("a", "b", "copy"),
                        (False, False, True), pd.DataFrame())  # fmt: skip
    kinds = np.where(name == 2, CODES["memcpy"], component)
    every, _ = attribute(RunWork(start, end, kinds, name < 2), *edges.T, len(COMPONENTS))
    chosen = np.sort(chance.choice(12, 5, replace=False))
    time = kernel_time(ran, steps, np.arange(3), chosen)
    found = time.table(time.component, len(COMPONENTS))
    assert found == pytest.approx(every.attributed[chosen].T / 1e3, abs=1e-9)
    gaps = np.stack([every.between, every.outside])[:, chosen]
    assert time.gaps_us * 1e3 == pytest.approx(gaps, abs=1e-6)
    began = [int(((start >= begin) & (start < finish)).sum()) for begin, finish in edges[chosen]]
    assert time.call_counts.sum(axis=0).tolist() == began


def test_a_recording_against_itself_differs_in_nothing(qwen: ComparedRecording) -> None:
    found = compare(qwen, qwen)
    assert not found.setup
    for phase in found.phases:
        assert phase.like.us == phase.typical.us == phase.mix_us == 0
        assert not any(row.change.us for row in (*phase.parts, *phase.kernels, *phase.layers))
        assert all(row.where == "both" for row in phase.kernels)


@pytest.mark.parametrize("what", ["experts", "o_proj", "layer 7", "gaps"])
def test_a_slow_down_is_found_where_it_was_made(
    qwen: ComparedRecording, tmp_path: Path, what: str
) -> None:
    phase = decode(compare(qwen, read_side(str(slowed(QWEN, tmp_path / "slow", 0.05, what)))))
    assert phase.like.us == pytest.approx(0.05 * phase.like.a, rel=0.05)
    if what == "gaps":
        assert phase.parts[0].name in ("launch_gaps", "host")
    elif what.startswith("layer "):
        assert phase.layers[0].layer == 7
        assert [row.layer for row in phase.layers if row.change.sure] == [7]
    else:
        assert phase.parts[0].name == what
        assert phase.parts[0].change.sure
        assert phase.parts[0].change.us == pytest.approx(0.05 * phase.like.a, rel=0.1)


def test_another_mix_of_batch_sizes_is_no_speed_up(gpt: ComparedRecording) -> None:
    """The same steps, of which side b has fewer with eight requests."""
    sizes = gpt.steps["decode_requests"]
    fewer = gpt.steps[(sizes != 8) | (gpt.steps.index % 4 == 0)].reset_index(drop=True)
    phase = decode(compare(gpt, replace(gpt, steps=fewer)))
    assert {row.size for row in phase.sizes if row.weight} == {1, 8}
    assert not phase.like.sure
    assert phase.whole.us < -100
    assert phase.mix_us == pytest.approx(phase.whole.us, abs=0.01 * phase.whole.a)


def test_without_a_batch_size_on_both_sides_nothing_is_told(
    one_and_eight: tuple[ComparedRecording, ComparedRecording],
) -> None:
    one, eight = one_and_eight
    obstacle = decode(compare(one, eight)).obstacle
    assert obstacle is not None
    assert (obstacle.reason, obstacle.a, obstacle.b) == ("batch", "1", "8")
    found = compare(one, [one, eight])
    assert any("not of the same thing" in note for note in found.notes)
    assert any("batch size of decode steps (mostly 1 against 8)" in n for n in found.notes)
    assert decode(found).obstacle is not None


@pytest.mark.parametrize("count", [0, 1, 4, 5, 7])
def test_settings_that_differ_are_named_up_to_four(qwen: ComparedRecording, count: int) -> None:
    chosen = {"gpu_clock_mhz": "1"}  # by the engine at its start
    other = replace(qwen, facts={**qwen.facts, **chosen, **{f"x{n}": n for n in range(count)}})
    parts = [f"x{n} (nothing against {n})" for n in range(min(count, 4))]
    more = f" and {count - 4} more settings" if count > 4 else ""
    assert unlike(qwen, other) == ", ".join(parts) + more


def test_a_size_of_few_steps_takes_no_part_where_another_has_enough(gpt: ComparedRecording) -> None:
    sizes = gpt.steps["decode_requests"].to_numpy()
    few = gpt.steps[(sizes == 8) | (np.cumsum(sizes == 1) <= 3)].reset_index(drop=True)
    phase = decode(compare(gpt, replace(gpt, steps=few)))
    assert [row.size for row in phase.sizes if row.weight] == [8]
    assert phase.obstacle is None
    only = few[few["decode_requests"] == 1].reset_index(drop=True)
    obstacle = decode(compare(gpt, replace(gpt, steps=only))).obstacle
    assert obstacle is not None
    assert (obstacle.reason, obstacle.what, obstacle.a, obstacle.b) == ("steps", "1", "100", "3")


def test_models_are_known_by_their_content(qwen: ComparedRecording) -> None:
    """Never by a name: neither that of a folder nor that of a trace."""
    config = dict(qwen.facts["model_config"])

    def reason(*facts: Mapping[str, Any]) -> str:
        sides = (replace(qwen, facts={**qwen.facts, **more}) for more in facts)
        obstacle = other_model(*sides)
        return f"{obstacle.what}: {obstacle.a}, {obstacle.b}" if obstacle else ""

    assert reason({"model": "/x/a"}, {"model": "/y/b"}) == ""
    for key, value, said in (
        ("num_hidden_layers", 4, "hidden layers"), ("moe_intermediate_size", 4, "experts' inter"),
        ("vocab_size", 7, "vocabulary size"), ("architectures", ["X", "Y"], "architectures"),
    ):  # fmt: skip
        assert reason({}, {"model_config": {**config, key: value}}).startswith(said)
    inside = {"architectures": config["architectures"], "text_config": config}
    assert reason({}, {"model_config": inside}) == ""
    # Quantized weights do the same work, and what only one side tells is no difference.
    assert reason({}, {"quantization": "fp8", "model_config": {"quantization_config": {}}}) == ""
    trace = replace(qwen, source="runs/a.json.gz", facts={"model": "a.json.gz"})
    trace = replace(trace, report=replace(trace.report, run=replace(
        trace.report.run, model="a.json.gz")))  # fmt: skip
    assert trace.model == ""
    other = replace(trace, source="runs/b.json.gz", facts={"model": "b.json.gz"})
    other = replace(other, report=replace(other.report, run=replace(
        other.report.run, model="b.json.gz")))  # fmt: skip
    found = compare(trace, other)
    assert [row.name for row in found.setup if "model" in row.name] == []
    assert any("whether both sides ran the same model" in note for note in found.notes)


def test_sums_without_steps_are_refused(qwen: ComparedRecording) -> None:
    with pytest.raises(CommandError, match="sums without steps"):
        compare(qwen, read_side(str(DATA / "proton" / "tree.hatchet")))


@pytest.mark.slow
def test_several_recordings_add_up_and_are_their_mean(tmp_path: Path) -> None:
    a = [read_side(str(window(GPT, tmp_path / f"a{part}", part, 4, 1))) for part in (0, 1)]
    b = [read_side(str(window(GPT, tmp_path / f"b{part}", part, 4, 1))) for part in (2, 3)]
    phase = decode(compare(a, b))
    pairs = [[decode(compare(one, two)) for one in a] for two in b]
    mean = sum(pair.like.us for row in pairs for pair in row) / 4
    assert phase.like.us == pytest.approx(mean)
    assert sum(part.change.us for part in phase.parts) == pytest.approx(phase.typical.us)
    kernels = sum(row.change.us for row in phase.kernels)
    parts = sum(part.change.us for part in phase.parts if part.calls_a or part.calls_b)
    assert kernels == pytest.approx(parts)
    assert not phase.like.sure


def test_a_copy_counts_once_and_one_engine_start_is_told(
    qwen: ComparedRecording, tmp_path: Path
) -> None:
    found = compare([qwen, replace(qwen, source="copy")], qwen)
    assert found.sides == ((qwen,), (qwen,))
    assert found.assumed == 0.015
    assert any("copy" in note and "counts once" in note for note in found.notes)
    again = read_side(str(slowed(QWEN, tmp_path / "again", 0.01, "gaps")))
    found = compare([qwen, again], qwen)
    assert any("same engine start" in note for note in found.notes)


@each_row(
    ("sources", "wanted"),
    [
        ([["runs/before"], ["runs/after"]], ("before", "after")),
        ([["before/run/"], ["after/run"]], ("before", "after")),
        ([["x-1", "x-2"], ["y-1", "y-2"]], ("x", "y")),
        ([["a/run1", "a/run2"], ["b/run1", "b/run2"]], ("a", "b")),
        ([["one", "two"], ["three"]], ("one +1", "three")),
        ([["t/eager.json.gz"], ["https://host/graphs.nsys-rep"]], ("eager", "graphs")),
        (
            [["h100-gpt-oss-20b-mxfp4-eager"], ["h100-gpt-oss-20b-mxfp4-graphs"]],
            ("eager", "graphs"),
        ),
        ([["same"], ["same"], ["same"]], ("same", "same (2)", "same (3)")),
        ([["a/x"], ["a/y"], ["b/x"]], ("x", "y", "x (2)")),
        ([[""], ["/"]], ("", "/")),
    ],
)
def test_sides_are_named_by_what_tells_them_apart(
    sources: list[list[str]], wanted: tuple[str, ...]
) -> None:
    assert side_names(sources) == wanted


def test_names_are_short_and_apart() -> None:
    words = ("llama", "x" * 60, "run", "fp8", "a", "-")
    picked = random.Random(3)
    for _ in range(300):
        sides = [
            ["/".join(picked.choices(words, k=picked.randint(1, 3))) for _ in range(count)]
            for count in picked.choices((1, 1, 2), k=picked.randint(1, 4))
        ]
        names = side_names(sides)
        assert len({*names}) == len(sides)
        assert max(map(len, names)) <= 28


def differ(side: ComparedRecording, **facts: Any) -> Mapping[str, tuple[str, str, str]]:
    """Group and values of each difference, by name, once side b has other facts."""
    other = replace(side, facts={**side.facts, **facts})
    return {each.name: (each.group, each.a, each.b) for each in setup_differences(side, other)}


@pytest.mark.parametrize(
    ("name", "value", "told", "group"),
    [
        ("vllm", "0.27.0", "vllm", "versions"),
        ("gpu", {"name": "NVIDIA GB10", "driver": "1"}, "gpu.name", "GPU"),
        ("environment", {"VLLM_ATTENTION_BACKEND": "FLASHINFER"},
         "environment.VLLM_ATTENTION_BACKEND", "environment"),
        ("engine_config", {"cache_config": {"cache_dtype": "fp8"}},
         "engine_config.cache_config.cache_dtype", "engine"),
        ("model_config", {"num_hidden_layers": 4}, "model_config.num_hidden_layers", "model"),
        ("device_after_steps", {"sm_mhz": 1200, "throttled": ["power"]},
         "device_after_steps.sm_mhz", "GPU"),
    ],
)  # fmt: skip
def test_what_matters_is_told(
    qwen: ComparedRecording, name: str, value: Any, told: str, group: str
) -> None:
    assert differ(qwen, **{name: value})[told][0] == group


def test_a_word_of_the_command_is_told_with_its_option(qwen: ComparedRecording) -> None:
    run = qwen.report.run
    command = run.command.replace("--batch 1", "--batch 8")
    other = replace(qwen, report=replace(qwen.report, run=replace(run, command=command)))
    [found] = setup_differences(qwen, other)
    assert (found.group, found.name, found.a, found.b) == ("command", "--batch", "1", "8")


def test_hostile_facts_are_bounded(qwen: ComparedRecording) -> None:
    nested: Any = "end"
    for _ in range(900):
        nested = {"x" * 1000: nested}
    facts = {"many": {str(n): n for n in range(5000)}, "long": "y" * 10**6, "deep": nested}
    other = replace(qwen, facts={**qwen.facts, **facts})
    found = setup_differences(qwen, other)
    assert len(found) <= 200
    assert all(len(each.name) <= 400 and len(each.b) <= 400 for each in found)
