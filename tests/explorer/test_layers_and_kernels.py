"""The pages of layers and kernels: what they say of real recordings, and with hostile names."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from spark_prof.analyzers.views.layer_cells import CellTimes
from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.explorer import listing
from spark_prof.explorer.pages import layers_page
from spark_prof.rules.opcodes import MARKS, mark_of
from spark_prof.traces.cuda_tools import FOLDER_VARIABLE
from spark_prof.traces.machine_code import CUBINS_FOLDER, list_function
from tests.dashboards.page import Page
from tests.explorer.framed import DATA, of_recording, texts
from tests.rows import each_row

GRAPHS = "h100-gpt-oss-20b-mxfp4-graphs"
CODE = "code-h100/qwen3-30b-a3b-nvfp4"
BUNDLES = (GRAPHS, CODE, "code-h100/dense-awq", "kineto/qwen3-eager.json.gz",
           "benchmarks/vllm-serve-bundle")  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>**bold** [link](http://example.com) $x$ :smile:"


def drawn(page: str, shown: Prepared, address: Mapping[str, str] | None = None) -> AppTest:
    return of_recording(page, shown, **(address or {}))


def test_what_is_in_no_layer_has_no_number() -> None:
    us = np.array([1.0, 2.0, 3.0004])
    times = CellTimes(3, (-1, 0, 4), ("lm_head", "norm", "mlp"), us, us + 1, us + 2, us + 3)
    frame = layers_page._frame(times)
    assert frame["Layer"].isna().tolist() == [True, False, False]
    assert frame["Layer"].tolist()[1:] == [0, 4]
    for added, title in enumerate(("Mean, us", "Median, us", "p99, us", "p10 to p90, us")):
        assert frame[title].tolist() == [1.0 + added, 2.0 + added, 3.0 + added]


def place(shown: Prepared, part: str) -> str:
    return str(next(n for n, name in enumerate(shown.kernels.names) if part in name))


def test_roles_stand_beside_the_components() -> None:
    shown = prepare(str(DATA / "architectures" / "deepseek-v2" / "default"))
    experts = ("fused_moe_kernel", "mlp.experts.w13, mlp.experts.w2")
    frames = [element.value for element in drawn("kernels", shown).dataframe]
    assert experts in set(zip(frames[0]["Kernel"], frames[0]["Module"], strict=True))
    row = frames[0][frames[0]["Kernel"] == "fused_moe_kernel"].iloc[0]
    assert row["Role"] == "w13, w2"
    by_role = next(frame for frame in frames[1:] if "Evidence" in frame)
    assert {"mlp.experts.w13", "mlp.experts.w2"} <= set(by_role["Role"])
    address = {"layer": "2", "component": "experts"}
    cell = next(f.value for f in drawn("layers", shown, address).dataframe if "Role" in f.value)
    assert experts in set(zip(cell["Kernel"], cell["Role"], strict=True))


@pytest.mark.slow
@each_row("name", BUNDLES)
def test_every_kernel_has_its_detail(name: str) -> None:
    shown = prepare(str(DATA / name))
    for kernel in range(0, len(shown.kernels.names), 40):
        assert texts(drawn("kernels", shown, {"kernel": str(kernel)}))


@pytest.mark.slow
@each_row(
    ("show", "of"), [("median", "all"), ("p99", "decode"), ("spread", "prefill"), ("like", "all")]
)
def test_each_measure_of_each_phase_is_drawn(show: str, of: str) -> None:
    app = drawn("layers", prepare(str(DATA / CODE)), {"show": show, "of": of})
    assert app.selectbox(key="choice-of").value is not None


def test_a_cell_in_the_address_shows_its_kernels() -> None:
    shown = prepare(str(DATA / GRAPHS))
    app = drawn("layers", shown, {"layer": "17", "component": "experts"})
    assert "experts in layer 17: " in texts(app)
    frame = next(f.value for f in app.dataframe if "Calls a step" in f.value)
    steps = shown.steps["step"].to_numpy()
    mine = (shown.kernels.layer == 17) & np.isin(shown.kernels.step, steps)
    own = mine & (shown.kernels.component == 8)
    ns = (shown.kernels.end_ns - shown.kernels.start_ns)[own].sum()
    assert frame["us a step"].sum() == pytest.approx(ns / 1e3 / len(steps), abs=0.05)


def test_a_layer_that_differs_is_drawn_among_layers_like_it() -> None:
    app = drawn("layers", prepare(str(DATA / GRAPHS)), {"layer": "0", "component": "norm"})
    charts = [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]
    [chart] = [chart for chart in charts if "run the same" in str(chart["layout"].get("title"))]
    usual, outliers = chart["data"][:2]
    assert usual["marker"]["symbol"] == "circle"
    assert len(usual["x"]) == 23
    assert outliers["text"] == ["layer 0"]


def test_a_layer_that_differs_is_told_with_its_kernel() -> None:
    said = texts(drawn("layers", prepare(str(DATA / GRAPHS))))
    assert "Layer 0 norm: 5.63 us against 3.95 us in 23 layers like it, +42.5 %" in said
    assert "triton_red_fused__to_copy_embedding_rms_norm_0, which those like it do not run" in said


def test_the_table_is_that_of_the_report() -> None:
    shown = prepare(str(DATA / CODE))
    decode = drawn("kernels", shown).dataframe[0].value
    rows = sorted(
        (row for row in shown.report.kernels if row.decode_us),
        key=lambda row: -row.decode_us_per_step,
    )
    assert decode["Component"].tolist() == [row.component for row in rows]
    a_step = [row.decode_us_per_step for row in rows]
    assert decode["us a step"].tolist() == pytest.approx(a_step, abs=0.001)
    assert set(decode["Calls"]) <= {1.0, 2.0, 47.0, 48.0, 49.0, 96.0}, "of a model of 48 layers"
    every = drawn("kernels", shown, {"phase": "all"}).dataframe[0].value
    assert every["All steps, ms"].sum() == pytest.approx(
        sum(row.us for row in shown.report.kernels) / 1e3, abs=0.05
    )
    assert len(every) == len(shown.report.kernels) > len(rows)


def test_equal_names_are_told_apart_by_their_roles() -> None:
    frame = drawn("kernels", prepare(str(DATA / CODE))).dataframe[0].value
    marlin = frame[frame["Kernel"] == "marlin_moe_wna16::Marlin"]
    assert marlin["Role"].tolist() == ["w13", "w2"]


def test_a_phase_lives_in_the_address_and_a_kernel_of_another_one_is_shown() -> None:
    shown = prepare(str(DATA / CODE))
    app = drawn("kernels", shown)
    app.selectbox(key="choice-phase").select_index(1).run()
    assert app.query_params["phase"] in ("prefill", ["prefill"])
    only = next(row.name for row in shown.report.kernels if not row.decode_us)
    named = {"kernel": str(shown.kernels.names.index(only))}
    assert "of a mean step" in _cells(drawn("kernels", shown, named))


def _cells(app: AppTest) -> str:
    tables = [element.value.astype(str).to_numpy().ravel() for element in app.dataframe]
    return "\n".join(value for table in tables for value in table)


def with_code(folder: Path, function: str) -> Prepared:
    """A recording that keeps a cubin of this project's under the hash of a kernel's code."""
    path = shutil.copytree(DATA / "code-h100" / "dense-nvfp4", folder / "recording")
    table = path / "functions-rank0.parquet"
    rows = pq.read_table(table)
    place = next(n for n, name in enumerate(rows["name"].to_pylist()) if "Marlin" in name)
    functions = rows["function"].to_pylist()
    functions[place] = function
    at = rows.schema.get_field_index("function")
    column = pa.array(functions, rows.schema.field(at).type)
    pq.write_table(rows.set_column(at, rows.schema.field(at), column), table)
    (path / CUBINS_FOLDER).mkdir()
    code = lzma.decompress((DATA / "cubins" / "probes-sm_90a.cubin.xz").read_bytes())
    (path / CUBINS_FOLDER / f"{rows['hash'][place].as_py()}.cubin").write_bytes(code)
    return prepare(str(path))


def test_the_machine_code_is_listed_and_marked(tmp_path: Path) -> None:
    shown = with_code(tmp_path, "mma_e4m3")
    row = next(row for row in shown.report.machine_code if row.function == "mma_e4m3")
    address = {"kernel": str(shown.kernels.names.index(row.name)), "code": row.cubin}
    app = drawn("kernels", shown, address | {"lines": "all"})
    pages = [Page(element.proto.body) for element in app.get("html")]
    (page,) = [page for page in pages if "Machine code" in str(page.tags)]
    lines = list_function(Path(shown.source), row.cubin, "mma_e4m3")
    told = "\n".join(page.texts)
    assert all(line.text in told for line in lines)
    marked = [dict(attributes).get("title") for tag, attributes in page.tags if tag == "span"]
    for mark in MARKS:
        expected = sum(mark_of(line.opcode) == mark for line in lines)
        assert marked.count(mark.name) == expected
        assert f"{expected} {mark.name if expected == 1 else mark.plural}" in told
    assert any(mark_of(line.opcode) for line in lines)


def test_where_no_listing_can_be_had_one_line_tells_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = with_code(tmp_path, "mma_e4m3")
    row = next(row for row in shown.report.machine_code if row.function == "mma_e4m3")
    address = {"kernel": str(shown.kernels.names.index(row.name))}
    listing._listed.clear()  # type: ignore[attr-defined]
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert "No listing: nvdisasm is not installed" in texts(drawn("kernels", shown, address))
    shutil.rmtree(Path(shown.source) / CUBINS_FOLDER)
    app = drawn("kernels", shown, address)
    assert f"No listing: the recording does not keep cubins/{row.cubin}.cubin" in texts(app)
    assert "Instructions" in _cells(app)


def test_a_search_lives_in_the_address() -> None:
    shown = prepare(str(DATA / CODE))
    app = drawn("kernels", shown, {"text": "moe marlin", "engine": "tensor-core"})
    found = app.dataframe[0].value
    assert set(found["Kernel"]) == {"marlin_moe_wna16::Marlin"}
    app.text_input(key="kernels-text").set_value("topk").run()
    assert not app.exception
    assert app.query_params["text"] in ("topk", ["topk"])


def test_the_detail_says_what_is_known() -> None:
    shown = prepare(str(DATA / CODE))
    name = place(shown, "nvjet_sm90_tst_384x8_64x4_2x1_v_bz_TNT")
    app = drawn("kernels", shown, {"kernel": name})
    values = [value for f in app.dataframe for value in f.value.astype(str).to_numpy().ravel()]
    for known in ("lm_head", "tensor-core bf16", "sass", "sm_90", "48 x HGMMA.64x8x16.F32.BF16"):
        assert known in values
    assert "No finding names it." in texts(app)
    w2 = place(shown, "marlin_moe_wna16")
    assert "Findings that name it" in texts(drawn("kernels", shown, {"kernel": w2}))


def test_hostile_names_are_drawn_as_text() -> None:
    known = prepare(str(DATA / GRAPHS))
    kernels = known.kernels
    names = tuple(f"{HOSTILE} {n}" for n in range(len(kernels.names)))
    of = dict(zip(kernels.names, names, strict=True))
    rows = tuple(replace(row, name=of[row.name]) for row in known.report.kernels)
    report = replace(known.report, kernels=rows)
    shown = replace(known, report=report, columns=lambda: replace(kernels, names=names))
    for app in (
        drawn("layers", shown, {"layer": "0", "component": "norm"}),
        drawn("kernels", shown),
        drawn("kernels", shown, {"kernel": "3"}),
    ):
        assert not app.markdown
        for title in app.subheader:
            assert "<img" not in title.value
            assert "**" not in title.value
