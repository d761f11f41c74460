"""The comparison of several ranks with an eager run of the same: what is wrong, and exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.architecture_compare import Owned, compare, decode_step
from benchmarks.two_ranks import collectives_apart, main
from spark_prof.traces.bundle import Bundle
from tests.support import MODULES, Piece, Recorded, call, kernel, kineto, step

REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)"
O_PROJ, EXPERTS = len(MODULES), 7


def reduced(layer: int, role: str, basis: str = "stream", **truth: Any) -> Owned:
    one = Owned(REDUCE, REDUCE, layer, "collective", role, basis, layer, role, "o_proj", 1000.0)
    return replace(one, **truth)


def test_a_collective_is_held_against_the_open_module_strictly() -> None:
    """Its component proves nothing: every collective has it."""
    eager = [reduced(0, "self_attn.o_proj", "range"), reduced(0, "mlp.experts", "range")]
    assert compare(eager, eager, 1).wrong == ()
    swapped = [reduced(0, "mlp.experts"), reduced(0, "self_attn.o_proj")]
    assert len(compare(eager, swapped, 1).wrong) == 2
    assert collectives_apart(eager, swapped)[1] != []
    other_layer = [eager[0], reduced(1, "mlp.experts")]
    assert "layer 1 mlp.experts" in collectives_apart(eager, other_layer)[1][0]
    # What is reduced behind a mixture of experts is the sum of the shared and the routed ones.
    shared = [eager[0], reduced(0, "mlp.shared_experts.down_proj")]
    assert collectives_apart(eager, shared) == (2, [], "")
    # One that abstains is not wrong.
    assert collectives_apart(eager, [eager[0], reduced(-1, "", "name")])[1] == []
    assert collectives_apart(eager, eager[:1]) == (0, [], "1 collectives a step, eager 2")


def recorded(folder: Path, ranks: int = 2, *, moved: bool = False, batch: int = 1) -> Bundle:
    """Two decode steps a rank: o_proj, its all-reduce, experts and theirs."""
    path = "model.layers.0.self_attn.o_proj"
    modules = [*MODULES, {"path": path, "type": "Linear", "layer": 0, "component": "o_proj"}]
    steps, calls, rows = [], [], []
    for number in range(2):
        at = 1000 * number
        steps.append(step(number, at, at + 900, decode_requests=batch, decode_tokens=batch))
        calls += call(O_PROJ, at + 100, at + (130 if moved else 200))
        calls += call(EXPERTS, at + (131 if moved else 300), at + 400)
        for n, (name, launched) in enumerate(
            (("gemm", 110), (REDUCE, 150), ("moe", 310), (REDUCE, 350))
        ):
            begin = at + 100 + 200 * n
            rows += kernel(name, begin, begin + 50, 10 * number + n + 1, at + launched)
    piece = Piece(steps, calls, kineto(*rows))
    kept = Recorded({rank: [piece] for rank in range(ranks)}, modules=modules)
    return kept.assemble(folder)


def test_what_a_collective_serves_is_its_role(tmp_path: Path) -> None:
    found = decode_step(recorded(tmp_path / "b"), rank=1)
    assert [(k.component, k.role) for k in found] == [
        ("o_proj", "self_attn.o_proj"), ("collective", "self_attn.o_proj"),
        ("experts", "mlp.experts"), ("collective", "mlp.experts"),
    ]  # fmt: skip


def test_two_ranks_against_the_same_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    default, eager = (str(recorded(tmp_path / name).path) for name in ("default", "eager"))
    assert main([default, eager, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(r["rank"], r["batch"], r["kernels"], r["collectives"]) for r in found] == [
        (0, 1, 4, 2), (1, 1, 4, 2),
    ]  # fmt: skip
    assert [r["shares"]["proven"] for r in found] == [1.0, 1.0]
    assert [r["compared_collectives"] for r in found] == [2, 2]
    assert main([default]) == 0
    capsys.readouterr()
    wrong = str(recorded(tmp_path / "moved", moved=True).path)
    assert main([wrong, eager]) == 1
    assert "layer 0 mlp.experts by range, eager in the range of layer 0" in capsys.readouterr().out


def test_what_cannot_be_compared_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    default = str(recorded(tmp_path / "default").path)
    alone = str(recorded(tmp_path / "alone", 1).path)
    assert main([default, alone]) == 1
    assert "nothing of rank 1 could be compared" in capsys.readouterr().out
    other = str(recorded(tmp_path / "other", batch=2).path)
    assert main([default, other]) == 1
    assert "no decode step of 1 request(s)" in capsys.readouterr().out
    assert main([default, "--batch", "9"]) == 2
    assert main([str(tmp_path / "nothing")]) == 2
    assert "two_ranks: " in capsys.readouterr().err
