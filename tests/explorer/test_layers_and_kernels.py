"""The pages of layers and kernels: what they say of real recordings, and with hostile names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from spark_prof.datasets.prepared import Prepared, prepare
from tests.explorer.framed import DATA, of_recording, texts
from tests.rows import each_row

GRAPHS = "h100-gpt-oss-20b-mxfp4-graphs"
CODE = "code-h100/qwen3-30b-a3b-nvfp4"
BUNDLES = (GRAPHS, CODE, "code-h100/dense-awq", "kineto/qwen3-eager.json.gz",
           "benchmarks/vllm-serve-bundle")  # fmt: skip
HOSTILE = "<img src=x onerror=alert(1)>**bold** [link](http://example.com) $x$ :smile:"


def drawn(page: str, shown: Prepared, address: Mapping[str, str] | None = None) -> AppTest:
    return of_recording(page, shown, **(address or {}))


def place(shown: Prepared, part: str) -> str:
    return str(next(n for n, name in enumerate(shown.kernels.names) if part in name))


def test_roles_stand_beside_the_components() -> None:
    shown = prepare(str(DATA / "architectures" / "deepseek-v2" / "default"))
    experts = ("fused_moe_kernel", "mlp.experts.w13, mlp.experts.w2")
    frames = [element.value for element in drawn("kernels", shown).dataframe]
    assert experts in set(zip(frames[0]["Kernel"], frames[0]["Role"], strict=True))
    by_role = next(frame for frame in frames if "Evidence" in frame)
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


def test_a_layer_that_differs_is_told_with_its_kernel() -> None:
    said = texts(drawn("layers", prepare(str(DATA / GRAPHS))))
    assert "Layer 0 norm: 5.63 us against 3.95 us in 23 layers like it, +42.5 %" in said
    assert "triton_red_fused__to_copy_embedding_rms_norm_0, which those like it do not run" in said


@each_row(
    "address",
    [
        {"layer": "x", "component": "norm"},
        {"layer": "999", "component": "norm", "of": "decode-7"},
        {"kernel": "999999", "show": "<script>"},
        {"kernel": "-3", "text": "\x00" * 900, "engine": "none"},
    ],
)
@each_row("page", ["layers", "kernels"])
def test_an_address_that_names_nothing_is_as_none(page: str, address: dict[str, str]) -> None:
    drawn(page, prepare(str(DATA / GRAPHS)), address)


def test_the_table_is_that_of_the_report() -> None:
    shown = prepare(str(DATA / CODE))
    frame = drawn("kernels", shown).dataframe[0].value
    rows = sorted(shown.report.kernels, key=lambda row: -row.us)
    assert frame["Component"].tolist() == [row.component for row in rows]
    assert frame["Time, ms"].tolist() == [round(row.us / 1e3, 3) for row in rows]


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
    assert "Findings that name it" in texts(app)


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
