"""Assembles one PTX instruction per kernel for many architectures, as test data.

Writes tests/data/cubins/probes-<architecture>.cubin.xz, one per architecture with all kernels that
it can be assembled for, and library.so.xz, a shared library with three of these cubins and PTX.
Needs gcc, and ptxas and fatbinary of a CUDA toolkit, or pip install nvidia-cuda-nvcc.

usage: python scripts/make_cubins.py [FOLDER]
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from spark_prof.traces.cuda_tools import find_tool

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = (
    "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103f", "sm_120", "sm_120a", "sm_120f", "sm_121",
    "sm_121a", "sm_121f",
)  # fmt: skip
VERSION = "9.0"

A, B, D = "{r0,r1,r2,r3}", "{r4,r5}", "{f0,f1,f2,f3}"
D16 = "{r8,r9}"
MXF4 = "mma.sync.aligned.m16n8k64.row.col.kind::"
F8F6F4 = "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32."
WGMMA_FENCE = "wgmma.fence.sync.aligned;"
WGMMA_END = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
TCGEN = "tcgen05.mma.cta_group::1.kind::"

PROBES = {
    "mma_f16": f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {D},{A},{B},{D};",
    "mma_bf16": f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {D},{A},{B},{D};",
    "mma_f16_f16": f"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {D16},{A},{B},{D16};",
    "mma_tf32": f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {D},{A},{B},{D};",
    "mma_s8": f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {A},{A},{B},{A};",
    "mma_s4": f"mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {A},{A},{B},{A};",
    "mma_b1": f"mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {A},{A},{B},{A};",
    "mma_f64": "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {d0,d1},{d2},{d3},{d0,d1};",
    "mma_e4m3": f"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {D},{A},{B},{D};",
    "mma_e5m2": f"mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {D},{A},{B},{D};",
    "mma_e2m1": f"{F8F6F4}e2m1.e2m1.f32 {D},{A},{B},{D};",
    "mma_e4m3_e2m1": f"{F8F6F4}e4m3.e2m1.f32 {D},{A},{B},{D};",
    "mma_e3m2_e2m3": f"{F8F6F4}e3m2.e2m3.f32 {D},{A},{B},{D};",
    "mma_mxf4": f"{MXF4}mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "
                f"{D},{A},{B},{D},r6,{{0,0}},r7,{{0,0}};",
    "mma_nvf4": f"{MXF4}mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
                f"{D},{A},{B},{D},r6,{{0,0}},r7,{{0,0}};",
    "mma_sp_f16": "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
                  f"{D},{A},{{r4,r5,r6,r7}},{D},r8,0x0;",
    "wgmma_bf16": f"{WGMMA_FENCE} wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                  f"{D},rd2,rd3,1,1,1,0,0; {WGMMA_END}",
    "wgmma_f16": f"{WGMMA_FENCE} wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
                 f"{D},rd2,rd3,1,1,1,0,0; {WGMMA_END}",
    "wgmma_tf32": f"{WGMMA_FENCE} wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 "
                  f"{D},rd2,rd3,1,1,1; {WGMMA_END}",
    "wgmma_e4m3": f"{WGMMA_FENCE} wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
                  f"{D},rd2,rd3,1,1,1; {WGMMA_END}",
    "wgmma_s8": f"{WGMMA_FENCE} wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 "
                f"{A},rd2,rd3,1; {WGMMA_END}",
    "wgmma_b1": f"{WGMMA_FENCE} wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc "
                f"{A},rd2,rd3,1; {WGMMA_END}",
    "tcgen05_f16": f"{TCGEN}f16 [r0],rd2,rd3,r1,p0;",
    "tcgen05_tf32": f"{TCGEN}tf32 [r0],rd2,rd3,r1,p0;",
    "tcgen05_f8f6f4": f"{TCGEN}f8f6f4 [r0],rd2,rd3,r1,p0;",
    "tcgen05_i8": f"{TCGEN}i8 [r0],rd2,rd3,r1,p0;",
    "tcgen05_mxf4": f"{TCGEN}mxf4.block_scale.scale_vec::2X [r0],rd2,rd3,r1,[r2],[r3],p0;",
    "tcgen05_nvf4": f"{TCGEN}mxf4nvf4.block_scale.scale_vec::4X [r0],rd2,rd3,r1,[r2],[r3],p0;",
    "cvt_f32_e2m1": "{.reg .b8 c; cvt.rn.satfinite.e2m1x2.f32 c,f0,f1; cvt.u32.u8 r0,c;}",
    "cvt_e2m1_f16": "{.reg .b8 c; cvt.u8.u32 c,r0; cvt.rn.f16x2.e2m1x2 r0,c;}",
    "cvt_f32_e4m3": "cvt.rn.satfinite.e4m3x2.f32 h0,f0,f1; cvt.u32.u16 r0,h0;",
    "cvt_e4m3_f16": "cvt.u16.u32 h0,r0; cvt.rn.f16x2.e4m3x2 r0,h0;",
    "cvt_f16_e4m3": "cvt.rn.satfinite.e4m3x2.f16x2 h0,r0; cvt.u32.u16 r0,h0;",
    "cvt_f32_ue8m0": "cvt.rz.satfinite.ue8m0x2.f32 h0,f0,f1; cvt.u32.u16 r0,h0;",
    "cvt_ue8m0_bf16": "cvt.u16.u32 h0,r0; cvt.rn.bf16x2.ue8m0x2 r0,h0;",
    "cvt_f32_f64": "cvt.f64.f32 d0,f0;",
    "dp4a": "dp4a.s32.s32 r0,r1,r2,r3;",
    "hfma2": "fma.rn.f16x2 r0,r1,r2,r3;",
    "hfma2_bf16": "fma.rn.bf16x2 r0,r1,r2,r3;",
    "ffma": "fma.rn.f32 f0,f1,f2,f3;",
}  # fmt: skip

KERNEL = """
.visible .entry {name}(.param .u64 p)
{{
.reg .b32 r<10>; .reg .b64 rd<6>; .reg .f32 f<4>; .reg .f64 d<4>; .reg .b16 h<2>; .reg .pred p0;
ld.param.u64 rd0,[p]; cvta.to.global.u64 rd1,rd0;
ld.global.v4.u32 {{r0,r1,r2,r3}},[rd1]; ld.global.v4.u32 {{r4,r5,r6,r7}},[rd1+16];
ld.global.v2.u32 {{r8,r9}},[rd1+32]; ld.global.v4.f32 {{f0,f1,f2,f3}},[rd1+48];
ld.global.v2.u64 {{rd2,rd3}},[rd1+64]; ld.global.v2.f64 {{d0,d1}},[rd1+80];
ld.global.v2.f64 {{d2,d3}},[rd1+96]; setp.ne.u32 p0,r9,0;
{code}
st.global.v4.u32 [rd1+112],{{r0,r1,r2,r3}}; st.global.v2.u32 [rd1+128],{{r8,r9}};
st.global.v4.f32 [rd1+144],{{f0,f1,f2,f3}}; st.global.v2.f64 [rd1+160],{{d0,d1}};
ret;
}}
"""


LIBRARY = """
.section .nv_fatbin,"a"
.align 8
.incbin "all.fatbin"
.section .nvFatBinSegment,"aw"
.align 8
.long 0x466243b1
.long 1
.quad 0
.quad 0
"""


def main() -> int:
    """Writes the files; returns the exit code."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "data" / "cubins"
    ptxas, fatbinary = find_tool("ptxas"), find_tool("fatbinary")
    if ptxas is None or fatbinary is None:
        print("make_cubins: there is no ptxas; run: pip install nvidia-cuda-nvcc", file=sys.stderr)
        return 1
    for architecture in ARCHITECTURES:
        fitting = [name for name in PROBES if assembled(ptxas, architecture, [name])]
        cubin = assembled(ptxas, architecture, fitting)
        assert cubin is not None
        path = folder / f"probes-{architecture}.cubin.xz"
        path.write_bytes(lzma.compress(cubin))
        print(f"{path.name}: {len(fitting)} kernels, {path.stat().st_size} bytes")
    images = {"80": "sm_80", "90a": "sm_90a", "120": "sm_120f"}
    cubins = {number: lzma.decompress((folder / f"probes-{name}.cubin.xz").read_bytes())
              for number, name in images.items()}  # fmt: skip
    (folder / "library.so.xz").write_bytes(lzma.compress(library(fatbinary, cubins)))
    return 0


def ptx(architecture: str, codes: Mapping[str, str]) -> str:
    """A PTX file with these kernels."""
    kernels = "".join(KERNEL.format(name=name, code=code) for name, code in codes.items())
    return f".version {VERSION}\n.target {architecture}\n.address_size 64\n{kernels}"


def library(fatbinary: Path, cubins: Mapping[str, bytes]) -> bytes:
    """A shared library with these cubins, and with two kernels as PTX, one of them in no cubin."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        words = []
        for number, content in cubins.items():
            (folder / f"{number}.cubin").write_bytes(content)
            words.append(f"--image3=kind=elf,sm={number},file={number}.cubin")
        codes = {"mma_bf16": PROBES["mma_bf16"], "only_ptx": "add.u32 r0,r0,r1;"}
        (folder / "all.ptx").write_text(ptx("sm_80", codes), encoding="utf-8")
        words.append("--image3=kind=ptx,sm=80,file=all.ptx")
        (folder / "all.s").write_text(LIBRARY, encoding="utf-8")
        subprocess.run([fatbinary, "--create=all.fatbin", "-64", *words], cwd=place, check=True)
        link = ["gcc", "-shared", "-nostdlib", "-Wl,--build-id=none", "all.s", "-o", "all.so"]
        subprocess.run(link, cwd=place, check=True)
        return (folder / "all.so").read_bytes()


def assembled(ptxas: Path, architecture: str, names: list[str]) -> bytes | None:
    """The cubin of these kernels; None where they cannot be assembled for the architecture."""
    text = ptx(architecture, {name: PROBES[name] for name in names})
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "probe.ptx", Path(place) / "probe.cubin"
        source.write_text(text, encoding="utf-8")
        command = [str(ptxas), "-arch", architecture, str(source), "-o", str(target)]
        if subprocess.run(command, capture_output=True).returncode:
            return None
        return target.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
