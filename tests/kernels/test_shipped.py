"""What the package's measurements decide: for every layer of the models, each number of tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

pytest.importorskip("torch")

from spark_prof.kernels.bench.shapes import EXPERTS, FP4, LAYERS, ExpertsShape, dense_work
from spark_prof.kernels.dense import LinearConfig
from spark_prof.kernels.dispatch import DispatchChoice, choose
from spark_prof.kernels.moe import MoeConfig
from spark_prof.kernels.tuning import SHIPPED, TunedShape, read
from tests.rows import each_row

RUNS = read(SHIPPED)
ARCH = "sm_90a"
ROWS = {
    (run.machine, row.work): row for run in RUNS if run.architecture == ARCH for row in run.rows
}
COUNTS = range(1, 17)
MEASURED = {
    (gpu, (w.format, w.rows, w.columns)) for gpu, w in ROWS if w.kernel == "dense" and w.tokens == 1
}
IN_BF16 = ("gpt-oss-20b", "Qwen3-30B-A3B", "DeepSeek-V2-Lite")
"""Models whose layers were measured in BF16 too; of others the nearest shape speaks."""
IN_FP4 = sorted({layer.model for layer in LAYERS})


def no_slower(gpu: str, work: TunedShape) -> bool:
    """Whether the kernel was no slower at the next measured numbers of tokens on both sides."""
    its = {
        row.work.tokens: row.wins
        for (machine, _), row in ROWS.items()
        if machine == gpu and work == TunedShape(**{**vars(row.work), "tokens": work.tokens})
    }
    return (
        its[max(t for t in its if t <= work.tokens)]
        and its[min(t for t in its if t >= work.tokens)]
    )


def chosen(gpu: str, work: TunedShape) -> DispatchChoice:
    return choose(
        work.kernel, work.format, work.rows, work.columns, work.tokens, ARCH,
        experts=work.experts, top_k=work.top_k, runs=RUNS, gpu=gpu,
    )  # fmt: skip


def fits(config: LinearConfig | MoeConfig, columns: int) -> bool:
    """A split for these columns, and no more warps than a multiprocessor holds."""
    split = config.warps % config.split == 0 and config.split <= -(-columns // 128)
    return split and config.warps * config.min_blocks <= 64


@pytest.mark.slow
@each_row(("gpu", "layer"), sorted(MEASURED))
def test_a_dense_layer(gpu: str, layer: tuple[str, int, int]) -> None:
    _, rows, columns = layer
    for tokens in COUNTS:
        work = TunedShape("dense", *layer, tokens)
        choice = chosen(gpu, work)
        assert (choice.config is not None) == no_slower(gpu, work), choice.why
        assert f"{rows} x {columns}" in choice.why, "another shape's measurement was taken"
        if choice.config is not None:
            assert fits(LinearConfig(**choice.config), columns)


@each_row("shape", EXPERTS)
def test_experts(shape: ExpertsShape) -> None:
    rows, hidden = 2 * shape.intermediate, shape.hidden
    of = ("moe", shape.format, rows, hidden, 1, shape.experts, shape.top_k)
    gpus = {gpu for gpu, work in ROWS if work == TunedShape(*of)}
    assert gpus
    for gpu, tokens in product(gpus, COUNTS):
        work = replace(TunedShape(*of), tokens=tokens)
        choice = chosen(gpu, work)
        assert (choice.config is not None) == no_slower(gpu, work), choice.why
        if choice.config is not None:
            config = MoeConfig(**choice.config)
            assert fits(config, hidden)
            assert config.down_warps * config.down_min_blocks <= 64


def test_a_batch_of_one_is_measured_of_every_layer() -> None:
    """A layer that is added to the models and never measured would go to the fallback unseen."""
    layers = {
        (form, shape.rows, shape.columns)
        for shape, form in (*dense_work(IN_FP4, FP4), *dense_work(IN_BF16, ["bf16"]))
    }
    assert {layer for _, layer in MEASURED} == layers
