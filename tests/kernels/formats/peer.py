"""What tests take of compressed-tensors, whose import takes seconds, under short names."""

from __future__ import annotations

import torch
from compressed_tensors.compressors.mx_utils import compress_mx_scale, decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
from compressed_tensors.entrypoints.convert.converters.modelopt_nvfp4 import ModelOptNvfp4Converter
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

__all__ = [
    "E4M3",
    "FP8_ROWS",
    "MXFP4",
    "NVFP4",
    "ModelOptNvfp4Converter",
    "QuantizationArgs",
    "calculate_qparams",
    "compress_mx_scale",
    "decompress_mx_scale",
    "dequantize",
    "generate_gparam",
    "pack_fp4_to_uint8",
    "quantize",
    "unpack_fp4_from_uint8",
]

E4M3 = torch.float8_e4m3fn
NVFP4 = QuantizationArgs(
    num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=E4M3
)
MXFP4 = QuantizationArgs(
    num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8
)
FP8_ROWS = QuantizationArgs(num_bits=8, type="float", strategy="channel")
