"""The dispatcher: what was slower is never chosen; what nobody measured abstains."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from spark_prof.kernels.dispatch import choose
from spark_prof.kernels.tuning import (
    ELSEWHERE,
    ELSEWHERE_BF16,
    Tuned,
    TunedShape,
    TuningRun,
    known_runs,
)
from tests.rows import each_row

pytest.importorskip("torch")

import torch

from spark_prof.kernels import dense, moe
from spark_prof.kernels.candidate import Activation
from spark_prof.kernels.dense import LinearConfig, choose_linear
from spark_prof.kernels.formats import quantize_mxfp4, quantize_nvfp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import choose_moe, pack_experts
from spark_prof.kernels.pack import pack_linear
from spark_prof.kernels.tuning import save

WEIGHT = pack_linear(quantize_nvfp4(torch.randn(32, 256)))
WORK = TunedShape("dense", "nvfp4", 32, 256, 1)
CONFIG = LinearConfig(4, 2, 3, 1, 2)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("spark_prof.kernels.dispatch._this_gpu", lambda: "")
    known_runs.cache_clear()
    yield
    known_runs.cache_clear()


def measured(work: TunedShape, config: dict[str, int], us: float = 5.0) -> None:
    save(TuningRun("cpu", "this", "2026-01-01", "", {}, (Tuned(work, config, us, "other", 6.0),)))


DEFAULT = dense.default_config(32, 256, 1)
MISFITS = [
    {},
    asdict(replace(CONFIG, split=4)),  # 256 columns are two units
    *(asdict(replace(CONFIG, warps=warps)) for warps in (3, 0, 64)),
    asdict(replace(CONFIG, split=0)),
]


@each_row(
    ("config", "us", "insist", "wanted", "why"),
    [
        (None, 5.0, False, None, "nothing was measured on cpu"),
        (None, 5.0, True, DEFAULT, "nothing was measured on cpu"),
        (asdict(CONFIG), 5.0, False, CONFIG, "5.00 us against 6.00 of other"),
        (asdict(CONFIG), 7.0, True, None, "other is faster"),
        *((config, 5.0, False, DEFAULT, "5.00 us") for config in MISFITS),
    ],
)
def test_what_was_measured_of_a_weight_decides(
    config: dict[str, int] | None, us: float, insist: bool, wanted: LinearConfig | None, why: str
) -> None:
    if config is not None:
        measured(WORK, config, us)
    chosen = choose_linear(WEIGHT, 1, insist=insist)
    assert chosen.config == wanted
    assert why in chosen.why


@pytest.mark.parametrize("config", [{"warps": 4}, {**asdict(CONFIG), "extra": 1}])
def test_a_configuration_of_another_version_is_told(config: dict[str, int]) -> None:
    measured(WORK, config)
    with pytest.raises(KernelError, match=r"another version .*(split|extra)"):
        choose_linear(WEIGHT, 1)


def test_experts() -> None:
    gate_up, down = (quantize_mxfp4(torch.randn(4, *shape)) for shape in ((128, 128), (128, 64)))
    experts = pack_experts(gate_up, down, None, None, Activation("silu"))
    assert choose_moe(experts, 2, 1).config is None
    config = moe.default_config(128, 1)
    measured(TunedShape("moe", "mxfp4", 128, 128, 1, 4, 2), asdict(config))
    assert choose_moe(experts, 2, 1).config == config
    assert choose_moe(experts, 3, 1).config is None


@each_row(
    ("alone_us", "layer_us", "alone", "layer"),
    [
        (5.0, 5.0, 4, 8),
        (5.0, 7.0, 4, 4),  # slower in a layer than what is fastest alone
        (7.0, 5.0, None, None),  # in a layer, too, vLLM's experts are faster
    ],
)
def test_experts_of_a_layer_go_by_what_was_measured_in_one(
    alone_us: float, layer_us: float, alone: int | None, layer: int | None
) -> None:
    gate_up, down = (quantize_mxfp4(torch.randn(4, *shape)) for shape in ((128, 128), (128, 64)))
    experts = pack_experts(gate_up, down, None, None, Activation("silu"))
    base = moe.default_config(128, 1)
    for name, us, warps in (("moe", alone_us, 4), (moe.LAYER_EXPERTS, layer_us, 8)):
        config = asdict(replace(base, down_warps=warps))
        measured(TunedShape(name, "mxfp4", 128, 128, 1, 4, 2), config, us)
    warps = [
        chosen.config and chosen.config.down_warps
        for chosen in (choose_moe(experts, 2, 1), choose_moe(experts, 2, 1, chained=True))
    ]
    assert warps == [alone, layer]


@each_row(
    ("alone_us", "layer_us", "insist", "alone", "layer"),
    [
        (None, 5.0, False, None, None),  # a search in a chain decides how it runs, not whether
        (None, 5.0, True, DEFAULT.warps, 8),
        (5.0, 5.0, False, 4, 8),
        (5.0, 7.0, False, 4, 4),  # slower in a layer than what is fastest alone
        (7.0, 5.0, False, None, None),  # in a layer, too, vLLM's kernel is faster
    ],
)
def test_a_matrix_of_a_layer_goes_by_what_was_measured_in_one(
    alone_us: float | None, layer_us: float, insist: bool, alone: int | None, layer: int | None
) -> None:
    for name, us, wide in (("dense", alone_us, 4), (dense.LAYER_DENSE, layer_us, 8)):
        if us is not None:
            measured(replace(WORK, kernel=name), asdict(replace(CONFIG, warps=wide)), us)
    warps = [
        choice.config and choice.config.warps
        for choice in (choose_linear(WEIGHT, 1, insist=insist, chained=c) for c in (False, True))
    ]
    assert warps == [alone, layer]


ARCH = "sm_90a"


def row(rows: int, columns: int, tokens: int, us: float, fallback_us: float | None = 10.0) -> Tuned:
    work = TunedShape("dense", "nvfp4", rows, columns, tokens)
    return Tuned(work, {"SPLIT": tokens}, us, "marlin", fallback_us)


def run(*rows: Tuned, architecture: str = ARCH) -> TuningRun:
    return TuningRun(architecture, "H100", "2026-11-21T15:00:00+00:00", "", {}, rows)


RUNS = (
    run(
        row(4096, 2880, 1, 6.0),
        row(4096, 2880, 4, 8.0),
        row(4096, 2880, 8, 11.0),
        row(4096, 2880, 16, 9.0),
        row(8192, 2880, 1, 12.0),
        row(512, 512, 1, 1.0, None),
    ),
)


@each_row(
    ("rows", "columns", "tokens", "split", "why"),
    [
        (4096, 2880, 1, 1, "6.00 us against 10.00 of marlin"),
        (4096, 2880, 4, 4, "8.00 us against 10.00 of marlin"),
        (4096, 2880, 8, None, "marlin is faster: 4096 x 2880, 8 tokens: 11.00 us"),
        (4096, 2880, 16, 16, "9.00 us against"),
        (8192, 2880, 1, None, "marlin is faster"),
        # Between two counts both count, and the configuration is the larger one's.
        (4096, 2880, 2, 4, "4 tokens"),
        (4096, 2880, 6, None, "marlin is faster: 4096 x 2880, 8 tokens"),
        (4096, 2880, 12, None, "marlin is faster: 4096 x 2880, 8 tokens"),
        (4096, 2880, 17, None, "17 tokens are outside of 1 to 16"),
        (4096, 2880, 0, None, "0 tokens are outside"),
        # The nearest shape counts, as far as a factor of two.
        (4000, 3000, 1, 1, "4096 x 2880"),
        (2048, 2880, 1, 1, "4096 x 2880"),
        (7000, 2880, 1, None, "marlin is faster: 8192 x 2880"),
        (2047, 2880, 1, None, "near 2047 x 2880"),
        (2880, 2880 * 4, 1, None, "near 2880 x 11520"),
        (512, 512, 1, None, "no fallback was measured"),
    ],
)
def test_the_rule(rows: int, columns: int, tokens: int, split: int | None, why: str) -> None:
    choice = choose("dense", "nvfp4", rows, columns, tokens, ARCH, runs=RUNS)
    assert choice.config == (None if split is None else {"SPLIT": split})
    assert why in choice.why


@each_row(
    ("kernel", "weights", "architecture", "experts", "why"),
    [
        ("dense", "nvfp4", "sm_121a", 1, "nothing was measured on sm_121a"),
        ("dense", "mxfp4", ARCH, 1, "no dense of mxfp4"),
        ("moe", "nvfp4", ARCH, 1, "no moe of nvfp4"),
        ("dense", "nvfp4", ARCH, 8, "no dense of nvfp4"),
    ],
)
def test_what_nobody_measured_abstains_unless_insisted_on(
    kernel: str, weights: str, architecture: str, experts: int, why: str
) -> None:
    def chosen(insist: bool) -> tuple[object, str]:
        choice = choose(
            kernel, weights, 4096, 2880, 1, architecture, experts=experts, insist=insist, runs=RUNS
        )
        return choice.config, choice.why

    assert chosen(False)[0] is None
    assert chosen(True)[0] == {}
    assert all(why in chosen(insist)[1] for insist in (False, True))


def test_to_insist_does_not_choose_what_is_slower() -> None:
    choice = choose("dense", "nvfp4", 4096, 2880, 8, ARCH, insist=True, runs=RUNS)
    assert choice.config is None
    unsure = choose("dense", "nvfp4", 512, 512, 1, ARCH, insist=True, runs=RUNS)
    assert unsure.config == {"SPLIT": 1}


def test_never_what_is_slower_whatever_was_measured() -> None:
    source = random.Random(6)
    for _ in range(200):
        rows = tuple(
            row(64 * n, 64 * k, m, source.uniform(5, 15), source.choice([None, 8.0, 12.0]))
            for n in range(1, 4)
            for k in range(1, 4)
            for m in (1, 2, 4, 8)
            if source.random() < 0.7
        )
        for entry in rows:
            work = entry.work
            choice = choose(
                "dense", "nvfp4", work.rows, work.columns, work.tokens, ARCH, runs=(run(*rows),)
            )
            assert (choice.config is not None) == entry.wins
        n, k, m = source.randint(1, 600), source.randint(1, 600), source.randint(1, 20)
        choice = choose("dense", "nvfp4", n, k, m, ARCH, runs=(run(*rows),))
        if choice.config is not None:
            assert any(entry.wins and entry.config == choice.config for entry in rows)
        else:
            assert "\n" not in choice.why


def test_the_same_answer_whatever_the_order_of_the_measurements() -> None:
    shuffled = list(RUNS[0].rows)
    for seed in range(20):
        random.Random(seed).shuffle(shuffled)
        for rows, tokens in ((5793, 1), (4096, 3), (4096, 16), (2048, 1)):
            one = choose("dense", "nvfp4", rows, 2880, tokens, ARCH, runs=RUNS)
            other = choose("dense", "nvfp4", rows, 2880, tokens, ARCH, runs=(run(*shuffled),))
            assert one == other


@each_row(("ours", "insist"), [((6.0, 8.0), False), ((6.0, None), True), ((None, 8.0), True)])
def test_between_two_measured_numbers_the_larger_ones_configuration_runs(
    ours: tuple[float | None, ...], insist: bool
) -> None:
    """Also where one of the two was measured without anything to compare it with."""
    rows = [
        row(4096, 2880, tokens, us or 5.0, None if us is None else 10.0)
        for tokens, us in zip((2, 8), ours, strict=True)
    ]
    for shuffled in (rows, rows[::-1]):
        choice = choose(
            "dense", "nvfp4", 4096, 2880, 5, ARCH, insist=insist, runs=(run(*shuffled),)
        )
        assert choice.config == {"SPLIT": 8}
        at_one = choose("dense", "nvfp4", 4096, 2880, 2, ARCH, insist=True, runs=(run(*rows),))
        assert at_one.config == {"SPLIT": 2}, "at a measured number it alone counts"


def test_of_two_equally_near_shapes_the_smaller_counts() -> None:
    equal = (row(1000, 2880, 1, 6.0), row(4000, 2880, 1, 16.0))
    choice = choose("dense", "nvfp4", 2000, 2880, 1, ARCH, runs=(run(*equal),))
    assert choice.config == {"SPLIT": 1}
    assert "1000 x 2880" in choice.why


def on(machine: str, *rows: Tuned) -> TuningRun:
    return replace(run(*rows), machine=machine)


OF_BOTH = (
    on("H100", row(4096, 2880, 1, 6.0), row(4096, 2880, 2, 5.0), row(4096, 2880, 8, 6.0)),
    on("H200", row(4096, 2880, 1, 12.0), row(4096, 2880, 8, 4.0), row(8192, 2880, 1, 2.0)),
)


@each_row(
    ("gpu", "rows", "tokens", "split", "why"),
    [
        # Its own measurements count, whatever the others say and in whichever order they are.
        ("H100", 4096, 1, 1, "6.00 us against 10.00 of marlin, H100"),
        ("H200", 4096, 1, None, "marlin is faster: 4096 x 2880, 1 token: 12.00 us"),
        ("H200", 4096, 8, 8, "4.00 us against 10.00 of marlin, H200"),
        # Between two of its own numbers, although another GPU was measured at this one.
        ("H200", 4096, 2, None, "12.00 us"),
        ("H100", 4096, 2, 2, "5.00 us"),
        # Another GPU's where its own do not know the shape.
        ("H100", 8192, 1, 1, "8192 x 2880, 1 token: 2.00 us against 10.00 of marlin, H200"),
        ("H20", 4096, 8, 8, "H200"),
        ("", 4096, 8, 8, "H200"),
    ],
)
def test_its_own_gpu_is_asked_first(
    gpu: str, rows: int, tokens: int, split: int | None, why: str
) -> None:
    for runs in (OF_BOTH, OF_BOTH[::-1]) if gpu in ("H100", "H200") else (OF_BOTH,):
        choice = choose("dense", "nvfp4", rows, 2880, tokens, ARCH, runs=runs, gpu=gpu)
        assert choice.config == (None if split is None else {"SPLIT": split})
        assert why in choice.why


@each_row(
    ("form", "ratio", "here", "elsewhere"),
    [
        ("nvfp4", 1.01, True, False),
        ("nvfp4", ELSEWHERE + 0.01, True, True),
        ("bf16", 1.01, False, False),
        ("bf16", 1.1, True, False),
        ("bf16", ELSEWHERE_BF16 + 0.01, True, True),
    ],
)
def test_on_another_gpu_it_has_to_have_been_clearly_faster(
    form: str, ratio: float, here: bool, elsewhere: bool
) -> None:
    work = TunedShape("dense", form, 4096, 2880, 1)
    runs = (on("H100", Tuned(work, {"SPLIT": 1}, 10.0, "cuBLAS", 10.0 * ratio)),)

    def chosen(gpu: str, insist: bool = False) -> bool:
        choice = choose("dense", form, 4096, 2880, 1, ARCH, runs=runs, gpu=gpu, insist=insist)
        return choice.config is not None

    assert (chosen("H100"), chosen("H200")) == (here, elsewhere)
    assert chosen("") == here
    # Nobody measured it there.
    assert chosen("H200", insist=True) == here


def test_the_package_leaves_bfloat16_to_cublas_on_a_gpu_where_nobody_measured_it() -> None:
    """Of measurements on others only those that no bandwidth turns round speak for it."""
    works = {each.work for run in known_runs() for each in run.rows if each.work.format == "bf16"}
    kept = {
        work
        for work in works
        if choose("dense", "bf16", work.rows, work.columns, work.tokens, ARCH, gpu="GH200").config
    }
    assert {(work.rows, work.columns) for work in kept} == {
        (2048, 2816),
        (2048, 4096),
        (2880, 4096),
    }
    assert len(kept) < len(works)
