"""Reads the tile of a matrix product or an attention kernel out of its name.

A tile has two sides: along one lie tokens, along the other features of the weights. Which is which
depends on the library, and some libraries swap the two for few tokens. A family says so only where
its names or its launches prove it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from spark_prof.analyzers.classify.classifier import spelling
from spark_prof.analyzers.shapes.shape_rows import Tile
from spark_prof.rules.kernel_names import NAME_LIMIT

_LARGEST = 1 << 14  # no side of a tile is longer


@dataclass(frozen=True)
class Family:
    """Kernels whose names hold their tile in the same way."""

    name: str  # who makes them
    # Searched in the name as `spelling` writes it; its groups `a` and `b` are the sides as they are
    # named, `k` the depth.
    pattern: str
    # The side that holds tokens. "same" where that is known of a square tile only, "none" where its
    # rows are no tokens.
    tokens: Literal["first", "second", "same", "none"]
    evidence: str  # why that is the side
    example: str  # a real name, of the longest ones what counts
    # What the example says: first side, second side, depth, rows for tokens.
    tile: tuple[int, int, int | None, int | None]
    # What a number of the name counts, for first side, second side and depth.
    unit: tuple[int, int, int] = (1, 1, 1)


_SIDES = r"(?P<a>\d{1,5})x(?P<b>\d{1,5})"
_SIZES = r"tuple<C<(?P<a>\d{1,5})>,C<(?P<b>\d{1,5})>,C<(?P<k>\d{1,5})>>"
_STRIDE = r"tuple<(?:long,C<1>|C<1>,long),(?:long|C<0>)>\*?"
_EPILOGUE = (
    rf"\bCollectiveEpilogue<Sm\d+\w{{0,60}}<[^<>]{{0,40}}>,{_SIZES},.{{1,120}}?,{_STRIDE},"
    r"\w{1,40},"
)
_MARLIN = r"\bMarlin<(?:\w{1,20},){2,4}?(?:64|128|256|512),"
_NVJET = (
    "grids of H100 and B200 recordings: the first side times the tiles is the number of features"
)

FAMILIES: tuple[Family, ...] = (
    Family("cuBLAS nvjet, sm_120",
        rf"\bnvjet_sm12\d_[a-z]{{2,8}}_(?:tf32_)?mma_{_SIDES}x(?P<k>\d{{1,5}})_", "same",
        "no recording of it has told yet",
        "nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", (64, 64, 128, 64)),
    Family("cuBLAS nvjet",
        rf"\bnvjet_(?:sm\d{{2,3}}_)?[a-z]{{2,8}}_(?:tf32_)?{_SIDES}_(?P<k>\d{{1,5}})x\d{{1,3}}_",
        "second", _NVJET, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_bias_TNT", (64, 8, 64, 8)),
    Family("Marlin, at most 8 tokens", _MARLIN + r"(?P<a>1),(?P<b>\d{1,2}),(?P<k>\d{1,2}),1,",
        "first", "vLLM's marlin_template.h: m_block_size_8 halves the 16 rows of a block",
        "void marlin::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l, "
        "2814749767172868l, 256, 1, 8, 8, true, 4, 1, false>(int4 const*, int4 const*)",
        (8, 128, 128, 8), (8, 16, 16)),
    Family("Marlin", _MARLIN + r"(?P<a>[1-4]),(?P<b>\d{1,2}),(?P<k>\d{1,2}),", "first",
        "vLLM's marlin_template.h: thread_m_blocks of 16 rows",
        "void marlin::Marlin<1125899906909960l, 562949953487106l, 1125899906909960l, "
        "2814749767172868l, 256, 4, 16, 4, false, 4, 1, false>(int4 const*, int4 const*)",
        (64, 256, 64, 64), (16, 16, 16)),
    Family("Triton matmul_ogs",
        rf"\b_p?_?matmul(?:_ogs)?_[NT]{{3}}_\w{{1,40}}?_{_SIDES}x(?P<k>\d{{1,5}})(?!\d)", "first",
        "triton_kernels: block_m of the tokens, block_n, block_k",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", (16, 256, 128, 16)),
    Family("TensorRT-LLM, batch along the second side",
        rf"\b(?:bmm|gemm)_\w{{1,60}}?_t{_SIDES}x(?P<k>\d{{1,5}})\w{{1,99}}_transOut_", "second",
        "trtllm-gen: transOut computes the transposed product, weights first",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_"
        "rM_TN_transOut_schedP2x1x2x3_biasM_bN_tmaOpt_clmp_dynBatch_sm100f",
        (128, 16, 256, 16)),
    Family("TensorRT-LLM", rf"\b(?:bmm|gemm)_\w{{1,60}}?_t{_SIDES}x(?P<k>\d{{1,5}})", "same",
        "without transOut no recording has told yet",
        "bmm_E4m3_E4m3E4m3_Fp32_t128x64x128u2_s6_et64x64", (128, 64, 128, None)),
    Family("DeepGEMM",
        r"\bsm\d{2,3}_\w{0,12}gemm_1d[12]d_impl<(?:\(Major\))?\d,(?:\d{1,7},){4}"
        r"(?P<a>\d{1,4}),(?P<b>\d{1,4}),(?P<k>\d{1,4}),",
        "first",
        "DeepGEMM's sources: SHAPE_M, N and K, groups, then BLOCK_M of the tokens, N and K",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 1024u, 1u, 256u, "
        "128u, 128u, 128u, 128u, 128u, 3u, 128u, 256u, 2u, true, 132u, (deep_gemm::GemmType)0, "
        "deep_gemm::epilogue::transform::EpilogueIdentity>(float*, int*)",
        (256, 128, 128, 256)),
    Family("vLLM CUTLASS, swapped",
        rf"\bcutlass_3x_(?:group_)?gemm\w{{0,20}}<[^<>]{{1,80}},{_SIZES},tuple<[^()]{{1,200}},1>",
        "second", "vLLM's scaled_mm and grouped_mm_c3x: the last argument is swap_ab",
        "void cutlass::device_kernel<vllm::cutlass_3x_gemm_sm90_fp8<cutlass::float_e4m3_t, "
        "cutlass::bfloat16_t, vllm::c3x::ScaledEpilogueColumnBias, cute::tuple<cute::C<64>, "
        "cute::C<16>, cute::C<256> >, cute::tuple<cute::C<1>, cute::C<4>, cute::C<1> >, "
        "cutlass::gemm::KernelTmaWarpSpecializedFP8FastAccum, cutlass::epilogue::"
        "TmaWarpSpecialized, true>::GemmKernel>()",
        (64, 16, 256, 16)),
    Family("vLLM CUTLASS",
        rf"\bcutlass_3x_(?:group_)?gemm\w{{0,20}}<[^<>]{{1,80}},{_SIZES},tuple<[^()]{{1,200}}"
        r"(?:TmaWarpSpecialized|,0)>",
        "first", "vLLM's scaled_mm: without swap_ab the first operand is the activations",
        "void cutlass::device_kernel<vllm::cutlass_3x_gemm<signed char, cutlass::bfloat16_t, "
        "vllm::c3x::ScaledEpilogue, cute::tuple<cute::C<64>, cute::C<128>, cute::C<256> >, "
        "cute::tuple<cute::C<1>, cute::C<4>, cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecialized,"
        " cutlass::epilogue::TmaWarpSpecialized>::GemmKernel>()",
        (64, 128, 256, 64)),
    Family("CUTLASS 3, result by columns", rf"{_EPILOGUE}tuple<C<1>,long,(?:long|C<0>)>", "second",
        "a result that lies in memory by columns is the transpose of PyTorch's",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, "
        "int, int>, machete::MacheteCollectiveMma<cutlass::bfloat16_t>, cutlass::epilogue::"
        "collective::CollectiveEpilogue<cutlass::epilogue::Sm90TmaWarpSpecialized<1, 1, 8>, "
        "cute::tuple<cute::C<128>, cute::C<16>, cute::C<64> >, cute::tuple<cute::C<128>, "
        "cute::C<16> >, void, cute::tuple<cute::C<1>, long, long>, cutlass::bfloat16_t, "
        "cute::tuple<cute::C<1>, long, long>, cutlass::epilogue::fusion::Sm90TreeVisitor<> > > >()",
        (128, 16, 64, 16)),
    Family("CUTLASS 3, result by rows", rf"{_EPILOGUE}tuple<long,C<1>,(?:long|C<0>)>", "first",
        "a result that lies in memory by rows is PyTorch's",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, "
        "int, int>, cutlass::epilogue::collective::CollectiveEpilogue<cutlass::epilogue::"
        "Sm90TmaWarpSpecialized<3, 2, 4, true, false>, cute::tuple<cute::C<256>, cute::C<128>, "
        "cute::C<128> >, cute::tuple<cute::C<64>, cute::C<32> >, cutlass::bfloat16_t, "
        "cute::tuple<long, cute::C<1>, long>, cutlass::bfloat16_t, cute::tuple<long, cute::C<1>, "
        "long>, cutlass::epilogue::fusion::FusionCallbacks<cutlass::epilogue::"
        "Sm120TmaWarpSpecialized<3, 2, 4, true, false> > > > >()",
        (256, 128, 128, 256)),
    Family("FlashAttention 3",
        rf"\bCollectiveMainloopFwdSm90<\d{{1,2}},tuple<[^()]{{0,40}}>,{_SIZES},", "none",
        "the first side holds queries, several heads of one token among them",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
        "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
        "cute::tuple<cute::C<64>, cute::C<128>, cute::C<128> >, 128, cutlass::bfloat16_t, float, "
        "cutlass::arch::Sm90, true, false, false, true>>>>()",
        (64, 128, 128, None)),
    Family("FlashAttention 2",
        r"\bFlash_fwd_kernel_traits<(?P<k>\d{2,3}),(?P<a>\d{2,3}),(?P<b>\d{2,3}),", "none",
        "the first side holds queries, several heads of one token among them",
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128, "
        "(int)4, (bool)0, (bool)0, cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)64, "
        "(int)128, (int)4, cutlass::bfloat16_t>>, (bool)0>(flash::Flash_fwd_params)",
        (64, 128, 128, None)),
    Family("TensorRT-LLM attention", r"\b[fF]mhaSm\d{2,3}\w{1,150}?Q(?P<a>\d{1,4})Kv(?P<b>\d{1,4})",
        "none", "the first side holds queries, several heads of one token among them",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        (128, 128, None, None)),
    Family("cuDNN attention",
        rf"\bcudnn_generated_\w{{1,60}}_flash_fprop_\w{{1,40}}?_{_SIDES}x(?P<k>\d{{1,4}})_", "none",
        "the first side holds queries",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_"
        "kernel0_0",
        (64, 128, 128, None)),
    Family("xFormers attention", rf"\bfmha_cutlassF_\w{{1,30}}_{_SIDES}_", "none",
        "the first side holds queries",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<"
        "cutlass::bfloat16_t, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)",
        (64, 64, None, None)),
    Family("CUTLASS 2",
        rf"cutlass_\d{{2}}_(?:wmma_)?(?:tensorop|simt)_\w{{1,60}}?_{_SIDES}"
        r"_(?:(?P<k>\d{1,4})x\d{1,2}_)?",
        "same", "cuBLAS calls it with the operands in either order",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>"
        "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8::Params)",
        (64, 64, 64, 64)),
    Family("CUTLASS 3 of cuBLAS",
        rf"\bcutlass3x_sm\d{{2,3}}_\w{{1,60}}?_{_SIDES}x(?P<k>\d{{1,4}})_", "same",
        "cuBLAS calls it with the operands in either order",
        "cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32_relu",
        (128, 64, 16, None)),
    Family("cuBLAS xmma", rf"\bsm\d{{2,3}}_xmma_\w{{1,80}}_tilesize{_SIDES}x(?P<k>\d{{1,4}})_",
        "same", "cuBLAS calls it with the operands in either order",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_"
        "execute_segment_k_off_kernel__5x_cublas",
        (64, 64, 64, 64)),
    Family("cuBLAS", rf"\b(?:maxwell|volta|turing|ampere)_\w{{1,40}}?gemm\w{{0,10}}?_{_SIDES}_",
        "same", "cuBLAS calls it with the operands in either order", "ampere_sgemm_32x128_tn",
        (32, 128, None, None)),
)  # fmt: skip
"""Every family whose names are read; the first that matches counts."""

_COMPILED = tuple((family, re.compile(family.pattern)) for family in FAMILIES)


@lru_cache(maxsize=16384)
def tile_of(name: str) -> Tile | None:
    """The tile that a kernel's name tells; None for a name of no known family."""
    if name.startswith("_Z"):
        return _cutlass_tile(name)
    spelt = spelling(name[:NAME_LIMIT])
    for family, pattern in _COMPILED:
        if match := pattern.search(spelt):
            groups = match.groupdict()
            first, second, depth = (
                int(groups[side]) * unit if groups.get(side) else None
                for side, unit in zip("abk", family.unit, strict=True)
            )
            return _tile(family.name, first, second, depth, family.tokens)
    return None


def _tile(
    family: str, first: int | None, second: int | None, depth: int | None, tokens: str
) -> Tile | None:
    if not all(side and 0 < side <= _LARGEST for side in (first, second)):
        return None
    rows = {"first": first, "second": second, "none": None}.get(
        tokens, first if first == second else None
    )
    return Tile(family, first or 0, second or 0, depth, rows)


class _SymbolNode(NamedTuple):
    """A type, a template or a value of a symbol."""

    name: str  # without its namespaces; a value's digits; empty for a pack
    arguments: tuple[_SymbolNode, ...] = ()  # of the template; of a pack its parts


class _Symbol:
    """Walks once over the name in a symbol that nothing demangled.

    libstdc++ gives no name for a symbol of more than 1,024 characters, so that the longest kernels
    keep theirs. What stands in it is written once and then referred to (S1_), by the Itanium C++
    ABI, 5.1.10 (itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling); nothing is expanded here, as
    that could grow without bound.
    """

    def __init__(self, symbol: str) -> None:
        self._text, self._at = symbol, len("_Z")
        self.substitutions: list[_SymbolNode] = []  # what may be referred to, in order

    def name(self) -> _SymbolNode:
        """A name with its template arguments; each of its beginnings can be referred to."""
        nested = self._next("N")
        node: _SymbolNode | None = None
        while True:
            if node and nested and self._next("E"):
                return node
            if node and self._next("I"):
                node = self._keep(_SymbolNode(node.name, self._arguments()))
            elif (nested or not node) and (length := self._next("[0-9]{1,4}")):
                node = self._keep(self._source_name(length))
            elif node and not nested:
                return node
            elif not node and self._next("St"):
                node = self._keep(self._source_name(self._next("[0-9]{1,4}")))
            elif not node and (reference := self._next("S[0-9A-Z]{0,4}_")):
                node = self.substitutions[int(reference[1:-1], 36) + 1 if reference[1:-1] else 0]
            elif not node and (reference := self._next("T[0-9]{0,3}_")):
                node = self._keep(_SymbolNode(reference))
            else:
                # Cut short, or with what no kernel's name needs.
                raise ValueError

    def _argument(self) -> _SymbolNode:
        """A type, a value or a pack of them."""
        if self._next("J"):
            return _SymbolNode("", self._arguments())
        if self._next("L"):
            self._argument()
            value = self._next("n?[0-9]{1,18}")
            if not value or not self._next("E"):
                raise ValueError
            return _SymbolNode(value)
        if letter := self._next("[vwbcahstijlmxynofdegz]"):
            return _SymbolNode(letter)
        if letter := self._next("[PROKV]"):
            return self._keep(_SymbolNode(letter, (self._argument(),)))
        return self.name()

    def _arguments(self) -> tuple[_SymbolNode, ...]:
        arguments = []
        while not self._next("E"):
            arguments.append(self._argument())
        return tuple(arguments)

    def _source_name(self, length: str) -> _SymbolNode:
        begin, self._at = self._at, self._at + int(length)
        return _SymbolNode(self._text[begin : self._at])

    def _next(self, pattern: str) -> str:
        match = re.compile(pattern).match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match[0] if match else ""

    def _keep(self, node: _SymbolNode) -> _SymbolNode:
        self.substitutions.append(node)
        return node


_LONGEST = 1 << 14
_TILE, _RESULT_STRIDE = 1, 6
"""Arguments of CollectiveEpilogue: policy, tile, epilogue tile, C, its stride, D, its stride.

From cutlass/epilogue/collective/sm90_epilogue_tma_warpspecialized.hpp and its siblings.
"""


def _cutlass_tile(symbol: str) -> Tile | None:
    """The tile of a CUTLASS 3 kernel, from its epilogue's arguments; None for other symbols.

    A result that lies in memory by columns is the transpose of PyTorch's: tokens are second then.
    """
    read = _Symbol(symbol[: _LONGEST + 1])
    try:
        read.name()
    except (ValueError, IndexError, RecursionError):
        return None
    epilogues = (node for node in read.substitutions if node.name == "CollectiveEpilogue")
    arguments = _flat(next((node for node in epilogues if node.arguments), _SymbolNode("")))
    if len(symbol) > _LONGEST or len(arguments) <= _RESULT_STRIDE:
        return None
    sides = _constants(arguments[_TILE])
    if len(sides) != 3 or not all(side and side <= _LARGEST for side in sides):
        return None
    first, second, depth = sides
    contiguous = [side == 1 for side in _constants(arguments[_RESULT_STRIDE])[:2]]
    tokens = (
        "second" if contiguous == [True, False] else "first" if contiguous == [False, True] else ""
    )
    return _tile("CUTLASS 3", first, second, depth, tokens)


def _flat(node: _SymbolNode) -> list[_SymbolNode]:
    """The arguments of a template, those inside a parameter pack included."""
    return [
        part
        for argument in node.arguments
        for part in ((argument,) if argument.name else argument.arguments)
    ]


def _constants(node: _SymbolNode) -> list[int | None]:
    """The numbers of a cute::tuple, or of a pointer to one; None for one only the launch knows."""
    if node.name == "P":
        node = node.arguments[0]
    return [
        int(part.arguments[0].name)
        if part.name == "C" and part.arguments and part.arguments[0].name.isdecimal()
        else None
        for part in (_flat(node) if node.name == "tuple" else ())
    ]
