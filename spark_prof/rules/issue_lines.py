"""Lines of an engine's log that known issues are told by, and that no other rule takes."""

from __future__ import annotations

from spark_prof.rules.log_line_rule import LineRule
from spark_prof.rules.log_line_rule import line_rule as _rule

ISSUE_LINES: tuple[LineRule, ...] = (
    _rule("architecture", "engine", "Resolved architecture",
        r"Resolved architecture: (?P<value>\w{1,120})",
        "The class of the model.",
        "Resolved architecture: Qwen3_5MoeForConditionalGeneration"),
    _rule("no-draft-accepted", "speculation", "Avg Draft acceptance rate: 0.0%",
        r"Drafted: \d{3,9} tokens,.{0,400}Avg Draft acceptance rate: (?P<value>0\.0%)",
        "No draft was accepted for a while.",
        "SpecDecoding metrics: Mean acceptance length: 1.00, Accepted throughput: 0.00 tokens/s, "
        "Drafted throughput: 90.1 tokens/s, Accepted: 0 tokens, Drafted: 901 tokens, Per-position "
        "acceptance rate: 0.000, Avg Draft acceptance rate: 0.0%"),
    _rule("no-rdma-device", "execution", "No device found",
        r"NET/IB ?: (?P<value>No device found)",
        "NCCL reaches other machines over TCP.",
        "spark-1:211:211 [0] NCCL INFO NET/IB : No device found."),
    _rule("collective-timeout", "execution", "Watchdog caught collective",
        r"(?P<value>Watchdog caught collective operation timeout)",
        "GPUs waited for each other until they gave up.",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12590)"),
    _rule("confidential-computing", "engine", "CC ",
        r"\bCC (?:status|State) *: *(?P<value>ON)\b",
        "The GPU is in the mode for confidential computing.",
        "CC status: ON"),
    _rule("structured-output", "execution", "StructuredOutputsParams",
        r"StructuredOutputsParams\((?P<value>json|regex|choice|grammar)=(?!None)",
        "A request asks for structured output.",
        "Received request chatcmpl-1: params: SamplingParams(n=1, structured_outputs="
        "StructuredOutputsParams(json='{}', regex=None))"),
    _rule("fp8-not-compiled", "fallback", "fp8e4nv not supported",
        r"type (?P<value>fp8e4nv) not supported in this architecture",
        "Triton cannot compile for FP8 on this GPU.",
        "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are "
        "('fp8e4b15', 'fp8e5')"),
    _rule("cutlass-failed", "fallback", "cutlass_gemm_caller",
        r"(?P<value>cutlass_gemm_caller\.cuh)",
        "A CUTLASS kernel was called and refused.",
        "RuntimeError: Error Internal at /workspace/csrc/cutlass_gemm_caller.cuh:61"),
    _rule("flashinfer-architecture", "install", "No supported CUDA architectures",
        r"No supported CUDA architectures found for major versions \[(?P<value>[\d, ]+)\]",
        "FlashInfer cannot compile for this GPU with the CUDA toolkit that is there.",
        "RuntimeError: No supported CUDA architectures found for major versions [12]."),
    _rule("sparse-attention-failed", "fallback", "masked_mha_available",
        r"'(?P<value>\w{1,80})' object has no attribute 'masked_mha_available'",
        "Sparse latent attention of this GPU lacks what its prompts ask for.",
        "AttributeError: 'FlashInferMLASparseSM120Impl' object has no attribute "
        "'masked_mha_available'"),
    _rule("illegal-access", "execution", "CUDA error",
        r"CUDA error: (?:an )?(?P<value>illegal memory access|unspecified launch failure)",
        "A kernel wrote or read where it should not, and the engine ended.",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: unspecified launch failure"),
    _rule("pipeline-drafts", "speculation", "PP+async expects",
        r"(?P<value>PP\+async) expects sampled_token_ids to have shape",
        "Drafts do not get from one stage of the pipeline to the next.",
        "RuntimeError: Worker failed with error 'PP+async expects sampled_token_ids to have shape "
        "[num_reqs, 1]'"),
)  # fmt: skip
"""Tried after the other rules: where one of those takes such a line, that one counts."""
