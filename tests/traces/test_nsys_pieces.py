"""Pieces whose kernels come from an nsys export, up to the bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import CAPTURE_DTYPE, EVENT_DTYPE, capture_name, write_array
from spark_prof.traces.nsys_chunks import link_exports, read_nsys_piece
from spark_prof.traces.nsys_tool import export_report
from tests.nsys_files import BEGUN, GRAPH, PID, Export, global_pid
from tests.rows import each_row
from tests.support import (
    ATTENTION,
    EXPERTS,
    MODULES,
    ORIGIN,
    PREPARE,
    QKV,
    Piece,
    Recorded,
    call,
    program,
    refusal,
    rows,
    step,
)

MARK = f"spark_prof clock {BEGUN}"


def recorded(bundle: Path, pieces: int = 1, pid: int = PID, ranks: int = 1) -> Path:
    """Pieces of two steps of 1000 ns each, without a backend's file."""
    written = []
    for piece in range(pieces):
        at = 2000 * piece
        steps = [step(2 * piece + n, at + 1000 * n, at + 1000 * n + 900) for n in range(2)]
        calls = [
            event for n in range(2) for event in call(PREPARE, at + 1000 * n, at + 1000 * n + 50)
        ]
        calls += [
            event for n in range(2) for event in call(QKV, at + 1000 * n + 100, at + 1000 * n + 200)
        ]
        written.append(Piece(steps, calls))
    return Recorded(dict.fromkeys(range(ranks), written), facts={"pid": pid}).write(bundle)


def finished(bundle: Path, *exports: Export) -> Bundle:
    pieces = bundle / "pieces"
    paths = [e.write(pieces / f"nsys{n}.export.sqlite") for n, e in enumerate(exports)]
    link_exports(pieces, paths)
    return assemble(bundle, state="complete")


def test_kernels_get_step_module_and_layer(tmp_path: Path) -> None:
    recorded(tmp_path / "b", pieces=2)
    export = Export().mark(0, MARK)
    for number in range(4):
        at = 1000 * number
        export.launch(at + 110, number + 1).kernel("gemm_qkv", at + 150, at + 350, number + 1)
    # The work of the last step of the first piece runs in the time of the second.
    export.launch(1120, 9).kernel("late", 2500, 2600, 9)
    bundle = finished(tmp_path / "b", export)
    kernels = bundle.frame("kernels", 0)
    assert kernels[["name", "step"]].to_numpy().tolist() == [
        ["gemm_qkv", 0], ["gemm_qkv", 1], ["late", 1], ["gemm_qkv", 2], ["gemm_qkv", 3],
    ]  # fmt: skip
    assert set(kernels["module"]) == {QKV}
    assert set(kernels["layer"]) == {0}
    assert kernels["start_ns"].iloc[0] == ORIGIN + 150
    assert len(bundle.frame("host", 0)) == 5
    assert bundle.meta.lost == ()


def test_kernels_in_graphs_get_what_was_open_at_their_capture(tmp_path: Path) -> None:
    pieces = recorded(tmp_path / "b")
    captured = call(ATTENTION, -900, -800) + call(EXPERTS, -700, -600)
    write_array(pieces, capture_name("rank0", "capture-events"), np.array(captured, EVENT_DTYPE))
    capture = {"start_ns": ORIGIN - 950, "end_ns": ORIGIN - 500, "tokens": 1, "mode": 2}
    write_array(pieces, capture_name("rank0", "captures"), rows(CAPTURE_DTYPE, capture))
    export = Export().mark(0, MARK)
    export.node(-850, 70).node(-650, 71).node(-550, 170, 70).node(-549, 171, 71)
    for number in range(2):
        at = 1000 * number
        export.launch(at + 300, number + 1, "cudaGraphLaunch_v10000")
        export.kernel("flash_fwd", at + 400, at + 500, number + 1, node=170)
        export.kernel("moe_gemm", at + 500, at + 600, number + 1, node=171)
        export.kernel("unseen", at + 600, at + 650, number + 1, node=999)
    kernels = finished(tmp_path / "b", export).frame("kernels", 0)
    assert kernels[["name", "step", "module", "layer"]].to_numpy().tolist() == [
        ["flash_fwd", 0, ATTENTION, 0], ["moe_gemm", 0, EXPERTS, 0], ["unseen", 0, -1, -1],
        ["flash_fwd", 1, ATTENTION, 0], ["moe_gemm", 1, EXPERTS, 0], ["unseen", 1, -1, -1],
    ]  # fmt: skip
    assert MODULES[EXPERTS]["component"] == "experts"


def test_every_rank_has_its_own_process(tmp_path: Path) -> None:
    pieces = recorded(tmp_path / "b", ranks=2)
    facts = pieces / "rank1.facts.json"
    facts.write_text(facts.read_text().replace(str(PID), str(PID + 1)))
    one = Export().mark(0, MARK).launch(110, 1).kernel("first", 150, 350, 1)
    other = Export().mark(0, MARK).launch(110, 1, pid=PID + 1)
    other.kernel("second", 150, 350, 1, pid=PID + 1)
    bundle = finished(tmp_path / "b", one, other)
    assert bundle.frame("kernels", 0)["name"].tolist() == ["first"]
    assert bundle.frame("kernels", 1)["name"].tolist() == ["second"]


@each_row(
    ("exports", "says"),
    [
        ([], "nsys saw no CUDA work of process 1234"),
        ([Export().launch(1, 1, pid=PID + 1)], "nsys saw no CUDA work of process 1234"),
        ([Export().launch(1, 1), Export().launch(1, 1)], "several nsys reports hold process 1234"),
    ],
)
def test_a_rank_that_no_report_holds(tmp_path: Path, exports: list[Export], says: str) -> None:
    recorded(tmp_path / "b")
    bundle = finished(tmp_path / "b", *exports)
    assert bundle.frame("kernels", 0).empty
    assert len(bundle.frame("steps", 0)) == 2
    assert any(says in line for line in bundle.meta.lost)


def test_a_damaged_export_costs_only_the_kernels(tmp_path: Path) -> None:
    pieces = recorded(tmp_path / "b")
    damaged = pieces / "nsys0.export.sqlite"
    damaged.write_bytes(b"no database at all")
    link_exports(pieces, [damaged])
    bundle = assemble(tmp_path / "b", state="complete")
    assert len(bundle.frame("steps", 0)) == 2
    assert any("no whole Nsight Systems export" in line for line in bundle.meta.lost)


def test_work_belongs_to_where_it_was_launched(tmp_path: Path) -> None:
    pieces = recorded(tmp_path / "b", pieces=2)
    export = Export().mark(0, MARK).launch(-50, 1).kernel("launched before", 110, 120, 1)
    export.launch(150, 2).kernel("inside", 160, 170, 2).launch(190, 3)
    export.kernel("queued", 4500, 4600, 3).kernel("no launch", 2300, 2310, None)
    export.launch(200, 5, "cudaStreamSynchronize_v3020")
    export.launch(2100, 6, pid=PID + 1).kernel("theirs", 2110, 2120, 6, pid=PID + 1)
    link_exports(pieces, [export.write(tmp_path / "export.sqlite")])
    first, second = (read_nsys_piece(pieces, "rank0", number) for number in (0, 1))
    assert first is not None
    assert second is not None
    assert first.gpu["name"].tolist() == ["inside", "queued"]
    assert first.launches["correlation"].tolist() == [2, 3]
    assert second.gpu[["name", "correlation"]].to_numpy().tolist() == [["no launch", -1]]
    assert [first.lost, second.lost] == [
        (), ("1 kernels and copies have no launch in the nsys report, so no step",),
    ]  # fmt: skip


def test_what_the_work_of_a_piece_lacks(tmp_path: Path) -> None:
    recorded(tmp_path / "b")
    export = Export().mark(0, MARK)
    for number in range(1, 11):
        export.launch(number, number, "cudaGraphLaunch_v10000")
    export.add(GRAPH, start=10, end=500, deviceId=0, streamId=7, correlationId=1,
               globalPid=global_pid(PID), graphId=3)  # fmt: skip
    lost = finished(tmp_path / "b", export).meta.lost
    assert any("1 CUDA graph launches were traced as a whole" in line for line in lost)
    assert any("9 of 10 launches have no kernel" in line for line in lost)


def test_a_damaged_file_of_a_piece_costs_only_its_kernels(tmp_path: Path) -> None:
    pieces = recorded(tmp_path / "b")
    path = Export().mark(0, MARK).launch(110, 1).kernel("k", 150, 350, 1).write(tmp_path / "x")
    link_exports(pieces, [path])
    (file,) = pieces.glob("*nsys-gpu-00001*")
    file.write_bytes(file.read_bytes()[:100])
    bundle = assemble(tmp_path / "b", state="complete")
    assert bundle.frame("kernels", 0).empty
    assert any("cannot be read" in line for line in bundle.meta.lost)


HEAD = b"NVIDIA Tegra Profiler Report 2025@6@1@190-256136788515v0\n\0\1\2"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report, on a machine whose programs are in the folder `bin`."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr("spark_prof.traces.nsys_tool._PLACES", ())
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(HEAD)
    return path


def install(folder: Path, body: str) -> None:
    version = "echo NVIDIA Nsight Systems version 2026.2.1.210-1v0"
    said = f'if [ "$1" = --version ]; then {version}; exit; fi'
    program(folder / "bin" / "nsys", f"{said}\n{body}")


def test_a_report_is_exported_by_the_installed_nsys(report: Path, tmp_path: Path) -> None:
    install(
        tmp_path, 'for word; do case "$word" in --output=*) echo "$*" > "${word#*=}";; esac; done'
    )
    into = tmp_path / "into"
    into.mkdir()
    export = export_report(report, into)
    assert export == into / "my run.sqlite"
    assert export.read_text().split()[:2] == ["export", "--type=sqlite"]
    assert str(report) in export.read_text()
    assert report.read_bytes() == HEAD


@pytest.mark.parametrize("body", [None, "echo Report was created in a newer version >&2; exit 1"])
def test_without_an_nsys_one_line_says_what_to_do(
    report: Path, tmp_path: Path, body: str | None
) -> None:
    if body:
        install(tmp_path, body)
    with refusal("written by nsys 2025.6.1.190") as caught:
        export_report(report, tmp_path)
    line = str(caught.value)
    assert line.endswith("nsys export --type sqlite -o 'my run.sqlite' 'my run.nsys-rep'")
    assert ("newer version" in line) == bool(body)
    assert "--backend" not in line


def test_an_older_report_that_names_no_version_is_one(report: Path, tmp_path: Path) -> None:
    report.write_bytes(b"NVIDIA Tegra Profiler Report 1.\0\1\2")
    with refusal("written by an older nsys and must be exported first"):
        export_report(report, tmp_path)
    assert not (tmp_path / "my run.sqlite").exists()
