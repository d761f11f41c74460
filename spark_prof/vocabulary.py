"""The words that every table and report uses; docs/bundle.md explains each of them.

This module imports nothing, because it also runs inside vLLM's worker processes.
"""

COMPONENTS = (
    "embedding",
    "norm",
    "qkv",
    "rope",
    "kv_write",
    "attention",
    "o_proj",
    "router",
    "experts",
    "shared_experts",
    "mlp",
    "ssm",
    "lm_head",
    "sampler",
    "collective",
    "memcpy",
    "other",
)
"""What a kernel works for, in the order in which a decoder runs them."""

COMPONENTS_WITHOUT_LAYER = frozenset({"embedding", "lm_head", "sampler", "memcpy"})
"""Components that belong to no decoder layer by their nature."""

ENGINES = ("tensor-core", "cuda-core", "copy", "unknown")
"""Which part of the GPU did the arithmetic."""

PRECISIONS = ("bf16", "fp16", "tf32", "fp32", "fp8", "fp4", "int8")  # what the arithmetic ran in

WEIGHTS = ("fp8", "fp6", "fp4", "int8", "int6", "int5", "int4", "int3", "int2")
"""How weights are stored, where that is narrower than what the arithmetic ran in."""

CONVERSIONS = (
    "quantize",
    "dequantize",
    "cast",
    "transpose",
    "pad",
    "swizzle",
    "permute",
    "repack",
)
"""Kinds of work that only change a format."""

EVIDENCE = ("counter", "sass", "name", "unknown")  # on what an engine label stands, best first

BASES = ("weight", "kv", "range", "stream", "flow", "order", "name", "none")
"""On what a kernel's owner stands: it reads that weight, or that KV cache or state; the module
was open when it was launched or its graph node was created; it is a collective, and the kernel
right before it on its stream has that proven owner; it shares data with a kernel whose owner is
proven; its place in a layer; its name alone; nothing."""

EXCHANGES, FUSES = " → ", " + "
"""What stands in the role of a collective between what it serves and what it does, and between what
it does and what is fused with that."""

BASIS_CLASSES = {
    "proven": ("weight", "kv", "range", "stream"),
    "derived": ("flow",),
    "guessed": ("order", "name"),
    "unknown": ("none",),
}
"""The classes in which coverage is told, best first."""

GRAPH_KINDS = ("", "model", "drafter", "metadata", "encoder", "ubatches", "memory", "other")
"""What a captured CUDA graph is for: unknown, a forward of the model, of its drafter, the build of
attention metadata, an encoder, a forward in two halves that overlap (DBO), thrown away once its
memory is known, anything else."""

LIMITS = ("", "none", "tokens", "sequences", "kv", "other")
"""What kept the scheduler from putting more into a batch: unknown, nothing, the token budget, the
number of sequences, the KV cache, anything else (a grammar, a transfer, a LoRA)."""

FINISHES = ("", "stop", "length", "abort", "error", "repetition", "other")
"""How a request ended; empty where the recording ended before it."""

HOST_FIGURES = ("cpus", "cpu_quota", "periods", "throttled_periods", "throttled_ns")
"""What is told of a recorded process's host (table `host_figures`)."""

PHASES = ("prefill", "decode", "mixed", "unknown")  # what one engine iteration works on

COPIES = ("memcpy", "memset")  # the kinds of rows that are no kernels
