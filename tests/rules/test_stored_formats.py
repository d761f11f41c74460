"""What stored bits mean: the table against its examples, and tensors as vLLM's layers hold them."""

from __future__ import annotations

from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.rules.stored_formats import FORMATS, FormatRow, stored_format
from tests.rows import each_row

EXAMPLES = [(row, *example) for row in FORMATS for example in row.examples]


@each_row(("row", "dtype", "classes"), EXAMPLES)
def test_an_example_of_a_row(row: FormatRow, dtype: str, classes: str) -> None:
    found = stored_format("weight", dtype, classes, frozenset(row.scales), bits=4)
    assert found == row.format.format(bits=4)


@each_row("row", FORMATS)
def test_every_row_has_an_example_and_known_bytes(row: FormatRow) -> None:
    assert row.examples
    assert row.format.format(bits=8) in BYTES


E4M3, E8M0 = frozenset({"float8_e4m3fn"}), frozenset({"float8_e8m0fnu"})


@each_row(
    ("name", "dtype", "classes", "scales", "bits", "expected"),
    [
        # ModelOpt's NVFP4: two weights a byte, FP8 scales of 16 weights and one of them all.
        ("weight", "uint8", "ModelOptNvFp4LinearMethod", E4M3, 0, "nvfp4"),
        ("weight_scale", "float8_e4m3fn", "ModelOptNvFp4LinearMethod", E4M3, 0, "scale"),
        ("weight_scale_2", "float32", "ModelOptNvFp4LinearMethod", E4M3, 0, "scale"),
        ("w13_input_scale", "float32", "ModelOptNvFp4FusedMoE", E4M3, 0, "scale"),
        ("alpha", "float32", "ModelOptNvFp4LinearMethod", E4M3, 0, "scale"),
        ("g1_alphas", "float32", "ModelOptNvFp4FusedMoE", E4M3, 0, "scale"),
        # The same after Marlin has repacked it.
        ("weight", "int32", "ModelOptLinearMethod MarlinNvFp4LinearKernel", E4M3, 0, "nvfp4"),
        ("w2_weight", "int32", "ModelOptNvFp4FusedMoE", E4M3, 0, "nvfp4"),
        ("workspace", "int32", "ModelOptNvFp4LinearMethod", E4M3, 0, ""),
        # compressed-tensors.
        ("weight_packed", "uint8", "CompressedTensorsW4A4Fp4", E4M3, 0, "nvfp4"),
        ("weight_shape", "int64", "CompressedTensorsWNA16", frozenset(), 4, ""),
        ("weight_packed", "int32", "CompressedTensorsWNA16", frozenset(), 4, "int4"),
        ("weight_packed", "int32", "CompressedTensorsWNA16", frozenset(), 8, "int8"),
        ("weight_packed", "int32", "CompressedTensorsWNA16", frozenset(), 0, ""),
        ("weight_packed", "int32", "CompressedTensorsW4A8Fp8", E4M3, 0, "int4"),
        # gpt-oss: MXFP4 as Triton's experts hold it, and as Marlin does.
        ("w13_weight.storage.data", "uint8", "Mxfp4MoEMethod", frozenset(), 0, "mxfp4"),
        ("w13_weight_scale.storage.data", "uint8", "Mxfp4MoEMethod", frozenset(), 0, "scale"),
        ("w13_weight", "int32", "GptOssMxfp4MoEMethod", E8M0, 0, "mxfp4"),
        ("w13_bias", "bfloat16", "GptOssMxfp4MoEMethod", E8M0, 0, "bf16"),
        # FP8 by tensor, channel or block, and as Marlin's words.
        ("weight", "float8_e4m3fn", "Fp8LinearMethod", frozenset({"float32"}), 0, "fp8"),
        ("weight_scale_inv", "float32", "Fp8LinearMethod", frozenset(), 0, "scale"),
        ("weight", "int32", "Fp8LinearMethod", frozenset({"bfloat16"}), 0, "fp8"),
        ("weight", "int32", "ModelOptFp8LinearMethod", frozenset({"float32"}), 0, "fp8"),
        # AWQ and GPTQ.
        ("qweight", "int32", "AWQMarlinLinearMethod AWQMarlinConfig", frozenset(), 4, "int4"),
        ("qzeros", "int32", "AWQLinearMethod", frozenset(), 4, "scale"),
        ("scales", "float16", "AWQLinearMethod", frozenset(), 4, "scale"),
        ("qweight", "int32", "GPTQLinearMethod", frozenset(), 3, "int3"),
        ("g_idx", "int32", "GPTQLinearMethod", frozenset(), 4, ""),
        ("w13_qweight", "int32", "GPTQMarlinMoEMethod", frozenset(), 4, "int4"),
        # bitsandbytes and INT8.
        ("weight", "uint8", "BitsAndBytesLinearMethod", frozenset(), 0, "nf4"),
        ("weight", "int8", "CompressedTensorsW8A8Int8", frozenset(), 0, "int8"),
        # Where no class tells, the scales do.
        ("weight", "uint8", "ModelOptLinearMethod", E4M3, 0, "nvfp4"),
        ("weight", "int32", "SomeMethod", E8M0, 0, "mxfp4"),
        # What nothing tells of.
        ("weight", "uint8", "QuarkOCP_MX", E8M0, 0, ""),  # of four bits or of six
        ("weight", "int32", "SomeMethod", frozenset(), 0, ""),
        ("weight", "uint8", "", frozenset(), 0, ""),
        ("expert_map", "int32", "ModelOptNvFp4FusedMoE", E4M3, 0, ""),
        ("e_score_correction_bias", "float32", "", frozenset(), 0, "fp32"),
        ("scale", "bfloat16", "", frozenset(), 0, "bf16"),  # a norm's
        ("weight", "bfloat16", "", frozenset(), 0, "bf16"),
        ("_k_scale", "float32", "Fp8KVCacheMethod", frozenset(), 0, "scale"),
        # KV caches, by their configured type.
        ("kv_cache", "bfloat16", "auto", frozenset(), 0, "bf16"),
        ("kv_cache", "uint8", "fp8_ds_mla", frozenset(), 0, "fp8"),
        ("kv_cache", "uint8", "auto", frozenset(), 0, ""),
    ],
)
def test_a_tensor_of_a_layer(
    name: str, dtype: str, classes: str, scales: frozenset[str], bits: int, expected: str
) -> None:
    assert stored_format(name, dtype, classes, scales, bits) == expected
    assert "int32" not in expected
