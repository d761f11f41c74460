"""What a vLLM may write into its log: the format strings of its log calls."""

from __future__ import annotations

import re

from scripts.vllm_sources.scan import scan
from scripts.vllm_sources.sources import Sources
from scripts.vllm_sources.tables import Key

_TOPICS = re.compile(
    r"kernel|backend|cuda ?graph|cudagraph|compil|torch\.compile|inductor|cache|specul|draft|mtp\b|"
    r"eagle|accept|quant|fp8|fp4|mxfp|int[48]\b|bf16|bfloat16|dtype|fall(?:s|ing)? ?back|fallback|"
    r"flashinfer|flash.?attn|flashattention|flashmla|triton|marlin|humming|cutlass|cutedsl|cute|"
    r"deep_?gemm|b12x|trtllm|tensorrt|attention|\bmla\b|\bgdn\b|mamba|moe\b|expert|all.?reduce|"
    r"nccl|symm|nvlink|pcie|runner|autotun|warm.?up|\bjit\b|slow|degrad|performance|suboptimal|"
    r"perf\b|memory|preempt|swap|block.?size|prefill|batch|schedul|eager|gpu|device|capabilit|"
    r"lora|lm_head|offload|sampl|top-?[kp]|gemm|tensor.?parallel|deprecated|ignor|disabl|unsupport|"
    r"not support|VLLM_[A-Z]",
    re.I,
)
_FOREIGN = re.compile(
    r"/(?:entrypoints|tool_parsers|reasoning|multimodal|renderers|parser|tokenizers|usage|"
    r"tracing|benchmarks|assets|transformers_utils|kv_connector|ec_transfer|lora|inputs|"
    r"third_party|rust|grpc|snapshot|weight_transfer|kv_offload)/"
)
_AMD = re.compile(r"rocm|aiter|/xpu|/tpu|/cpu|zentorch|/amd/", re.I)


def log_formats(sources: Sources) -> frozenset[Key]:
    """Each format with its level and the module that has it: ("WARNING", "vllm.x", "No %s.").

    Of warnings and errors all that are not about requests, of the rest those that speak of kernels,
    graphs, caches, speculation or quantization. Fields of f-strings are written as %s; what is put
    together in another way is left out.
    """
    formats = set()
    for path, text in sources.texts.items():
        if b"log" not in text or _AMD.search(path) or _FOREIGN.search(path):
            continue
        for level, form in scan(sources, path).lines:
            if level != "INFO" or _TOPICS.search(form):
                formats.add((level, form, path.removeprefix("vllm/")))
    return frozenset(formats)
