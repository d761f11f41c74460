"""Which loop is counted, and that a conversion of Blackwell's is worth it with NVRTC 13.2 alone."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

from benchmarks.loop_instructions import VARIANTS, codes, compiled, listing, loop_of
from spark_prof.traces.cuda_tools import find_tool, missing_tool

LISTING = """
.text.dense:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
.L_x_0:
        /*0010*/                   IADD R1, R1, R2 ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0030*/                   LDG.E R2, desc[UR4][R2.64] ;
.L_x_2:
        /*0040*/                   HMMA.16816.F32.BF16 R4, R4, R8, R12 ;
        /*0050*/                   NOP ;
        /*0060*/              @P1  BRA `(.L_x_3) ;
        /*0070*/                   HMMA.16816.F32.BF16 R4, R4, R8, R12 ;
        /*0080*/               @P0 BRA `(.L_x_2) ;
        /*0090*/                   BRA `(.L_x_1) ;
.L_x_3:
        /*00a0*/                   EXIT ;
"""


def test_the_innermost_loop_with_products_counts() -> None:
    assert loop_of(LISTING.splitlines()) == (4, 2)
    assert loop_of(LISTING.replace("HMMA", "FFMA").splitlines()) == (0, 0)


@pytest.mark.slow
def test_conversions_of_blackwell() -> None:
    if find_tool("nvdisasm") is None:
        pytest.skip(missing_tool("nvdisasm"))
    code = dict(codes(tokens=1))["mxfp4 dense"]
    cubins = {name: compiled(code, "sm_121a", expand) for name, expand in VARIANTS.items()}
    counted = {name: loop_of(listing(cubin)) for name, cubin in cubins.items() if cubin}
    products = {loop[1] for loop in counted.values()}
    assert products == {16}
    integers, shifted = counted["integers"][0], counted["cvt to f16x2"][0]
    assert shifted > 1.2 * integers
    # The compiler that refuses it is the one that comes with torch.
    assert counted.get("cvt to bf16x2", (0, 0))[0] < 0.85 * integers
