"""Captures of CUDA graphs beside the trace of their replays."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.importers.imported_layers import Capture, components_by_capture, reference_of
from spark_prof.importers.sources import import_files
from spark_prof.traces.bundle import Bundle
from tests.importers.traces import DATA
from tests.support import LAYER, Piece, Recorded, call, event, kineto, step

RUN = DATA / "gpt-oss-graphs"
DECODE = RUN / "rank0.pt.trace.json.gz"
CAPTURE = RUN / "capture_traces" / "graph_capture_rank_0.json.gz"


def changed(
    path: Path, out: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> Path:
    """A trace with each of its events changed, or left out."""
    whole = json.loads(gzip.decompress(path.read_bytes()))
    events = [new for event in whole["traceEvents"] if (new := change(event)) is not None]
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(gzip.compress(json.dumps(whole | {"traceEvents": events}).encode(), 1))
    return out


def places(bundle: Bundle) -> list[tuple[str, int, str]]:
    kernels = place_kernels(bundle, 0)
    columns = (kernels["component"].astype(str), kernels["layer"], kernels["placed_by"].astype(str))
    return list(zip(*columns, strict=True))


def test_a_capture_is_used_wherever_it_lies(tmp_path: Path) -> None:
    wanted = places(import_files([RUN], tmp_path / "folder"))
    assert [by for _, _, by in wanted].count("aligned") == 220
    shutil.copy(CAPTURE, tmp_path / "TP-0-a.json.gz")
    together = import_files([DECODE, tmp_path / "TP-0-a.json.gz"], tmp_path / "together")
    assert places(together) == wanted
    (tmp_path / "capture_traces").mkdir()
    for path in (DECODE, CAPTURE):
        shutil.copy(path, tmp_path / "capture_traces")
    assert places(import_files([tmp_path / "capture_traces"], tmp_path / "all")) == wanted


def test_captures_are_used_where_no_layer_can_be_guessed(tmp_path: Path) -> None:
    """SGLang's decode, taken for training, lost them: what is known of a launch stays known."""

    def trains(event: dict[str, Any]) -> dict[str, Any]:
        name = event.get("name", "")
        return event | ({"name": "adam_kernel"} if name == "_topk_forward" else {})

    decode = changed(DECODE, tmp_path / "run" / "rank0.json.gz", trains)
    shutil.copy(CAPTURE, tmp_path / "run" / "rank0-bs1.json.gz")
    found = places(import_files([decode.parent], tmp_path / "bundle"))
    assert {layer for _, layer, _ in found} == {-1}
    assert [by for _, _, by in found].count("aligned") == 220
    assert {"attention", "experts"} <= {name for name, _, by in found if by == "aligned"}


def test_a_kernel_that_the_reference_lacks_has_no_place(tmp_path: Path) -> None:
    begun = event("cuda_runtime", "cudaLaunchKernel", 150, 151, correlation=1)
    norm = event("kernel", "rms_norm_kernel", 300, 350, 7, correlation=1)
    piece = Piece([step(0, 0, 10_000)], call(LAYER, 100, 200), kineto(begun, norm))
    reference = reference_of(Recorded({0: [piece]}).assemble(tmp_path / "b"), 0)
    found = reference.place(("rms_norm_kernel", "_topk_forward"), "decode")
    assert found is not None
    assert found.tolist() == [0, -1]


@pytest.mark.parametrize(("tokens", "wanted"), [(8, 3), (2, 1), (0, 1)])
def test_of_two_graphs_of_one_length_that_of_the_batch_is_taken(tokens: int, wanted: int) -> None:
    graphs = [Capture("a", 1, np.array([1, 2])), Capture("b", 8, np.array([3, 4]))]
    found, _ = components_by_capture(np.array([-1, 5, 5]), np.array([0, tokens, tokens]), graphs)
    assert found.tolist() == [-1, wanted, wanted + 1]
