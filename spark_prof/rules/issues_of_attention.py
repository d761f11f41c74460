"""Known issues of attention, its KV cache and the gated delta nets beside it."""

from __future__ import annotations

from spark_prof.rules.known_issue import (
    DELTA_NET,
    SM12X,
    AnyOf,
    Capability,
    EngineSetting,
    Issue,
    IssueReference,
    LogSays,
    Model,
    Runs,
    Traced,
)
from spark_prof.rules.versions import VersionWindow

_SM120 = Capability(((120, 120),))
_FLASHINFER = Runs("attention", r"\bFLASHINFER\b|FlashInferImpl")
_SPARSE_SM120 = r"FLASHINFER_MLA_SPARSE_SM120|FlashInferMLASparseSM120"

ATTENTION: tuple[Issue, ...] = (
    Issue("sm12x-decodes-without-xqa", "speed",
        what="FlashInfer decodes an FP8 KV cache without its XQA kernel, which vLLM takes on this "
        "GPU from 0.28 on",
        effect="104 tokens/s where 151 are reached with it (RTX PRO 6000) and 154 where 164 are "
        "(RTX 5090), behind 32k tokens of context",
        vllm=VersionWindow("0.24.0", "0.27.1", "0.28.0"), gpus="RTX 50, RTX PRO, GB10",
        when=(SM12X, _FLASHINFER, EngineSetting("kv_cache_dtype", r"fp8\w*")),
        reported=(IssueReference("vllm-project/recipes#834", "2026-08-21", "pull"),
                  IssueReference("vllm-project/vllm#49718", "2026-07-24", "pull")),
        remedy="update vLLM to 0.28"),
    Issue("sm12x-delta-net-prompts-on-triton", "speed",
        what="prompts of gated delta nets, 3 of every 4 layers of Qwen3.5 and later, run on "
        "Triton's kernel, where FlashInfer has had one for this GPU since June",
        effect="vLLM takes FlashInfer's from 0.30 on with CUDA 13; what a whole prompt gains is "
        "for this machine to tell",
        vllm=VersionWindow("0.24.0", "0.29.0", "0.30.0"), gpus="RTX 50, RTX PRO, GB10",
        when=(SM12X, DELTA_NET, Runs("gdn", r"Triton")),
        reported=(IssueReference("vllm-project/vllm#55715", "2026-09-07", "pull"),),
        remedy="update vLLM to 0.30"),
    Issue("sm120-long-prompts-since-flashinfer-0-6-13", "speed",
        what="prompts of a model with gated delta nets run on FlashInfer 0.6.13, which came with "
        "vLLM 0.25",
        effect="prompts 8 % slower at 64k tokens and 11 % at 131k, as fast at 4k; decoding as fast "
        "(Qwen3.6-35B-A3B NVFP4, RTX 5090)",
        vllm=VersionWindow("0.25.0", "0.25.1"), gpus="RTX 50, RTX PRO",
        when=(_SM120, DELTA_NET, _FLASHINFER),
        reported=(IssueReference("vllm-project/vllm#48396", "2026-07-12"),
                  IssueReference("flashinfer-ai/flashinfer#3935", "2026-07-12")),
        remedy="FlashInfer 0.6.12 was faster there; newer ones were not compared"),
    Issue("sm120-nvfp4-cache-prompts", "speed",
        what="prompts read an NVFP4 KV cache that FlashInfer unpacks in software on this GPU",
        effect="1.74 times as long in attention as with an FP8 cache: 145.8 ms where that took "
        "84.0 (RTX PRO 5000)",
        vllm=VersionWindow("0.17.1", "0.26.0"), gpus="RTX 50, RTX PRO",
        when=(_SM120, _FLASHINFER,
              AnyOf((EngineSetting("kv_cache_dtype", "nvfp4"),
                  Traced(r"BatchPrefill.*fp4x2_e2m1")))),
        reported=(IssueReference("vllm-project/vllm#50416", "2026-07-30"),
                  IssueReference("flashinfer-ai/flashinfer#4269", "2026-07-30")),
        side="--kv-cache-dtype fp8"),
    Issue("sm12x-sparse-latent-attention-ends-engine", "start",
        what="sparse latent attention of this GPU lacks what its prompts ask it for",
        effect="the engine ends while it starts, or at the first longer prompt; short ones pass "
        "(GLM-5.2 and 5.3, 4 GB10 and 8 RTX PRO 6000)",
        vllm=VersionWindow("0.27.0", "0.29.0", "0.30.0"), gpus="RTX 50, RTX PRO, GB10",
        when=(SM12X,
              LogSays(rf"({_SPARSE_SM120})\w*' object has no attribute 'masked_mha_available'")),
        reported=(IssueReference("vllm-project/vllm#51920", "2026-08-12"),
                  IssueReference("vllm-project/vllm#55757", "2026-09-07")),
        remedy="update vLLM to 0.30"),
    Issue("sm12x-sparse-latent-attention-long-prompts", "start",
        what="sparse latent attention runs on a backend that fails with prompts of real length",
        effect="EngineDeadError at the first longer prompt, whatever short tests say "
        "(GLM-5.3-NVFP4, 8 RTX PRO 6000)",
        vllm=VersionWindow("0.28.0", "0.28.0"), gpus="RTX 50, RTX PRO",
        when=(_SM120, Runs("attention", _SPARSE_SM120)),
        reported=(IssueReference("vllm-project/vllm#55757", "2026-09-07"),),
        remedy="update vLLM to 0.30"),
    Issue("gb10-glm-sparse-latent-attention-garbled", "answers",
        what="GLM-5.2 in NVFP4 runs on the only sparse latent attention that this GPU has",
        effect="garbled answers from the first request on (6 DGX Spark; seen on RTX PRO 6000D too)",
        vllm=VersionWindow("0.26.0", "0.26.0"), gpus="RTX PRO, GB10",
        when=(SM12X, Model(r"GlmMoeDsa|GLM-?5\.2"), Runs("attention", _SPARSE_SM120)),
        reported=(IssueReference("vllm-project/vllm#49886", "2026-07-26"),),
        remedy="another version of vLLM, and compare answers"),
)  # fmt: skip
