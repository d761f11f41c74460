"""Every kernel that the project compiles is known by its name."""

from __future__ import annotations

import re
from pathlib import Path

from spark_prof.analyzers.classify.classifier import find_rule
from tests.rows import each_row

CUDA = Path(__file__).resolve().parents[3] / "spark_prof/kernels/cuda"
SOURCES = sorted(CUDA.glob("*.cu"))
ENTRY = re.compile(r"^KERNEL .*\n(\w+)\(", re.MULTILINE)


def test_there_are_sources() -> None:
    assert len(SOURCES) >= 8


@each_row("source", SOURCES)
def test_its_kernel_has_a_rule(source: Path) -> None:
    """Those that multiply, in weights.cuh, do it on tensor cores."""
    text = source.read_text()
    [name] = ENTRY.findall(text)
    rule = find_rule(name)
    assert rule is not None
    assert rule.family.startswith("own-")
    multiplies = " multiply(" in text
    assert rule.engine == ("tensor-core" if multiplies else "cuda-core")
    assert rule.gemm is multiplies
