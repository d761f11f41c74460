"""Known issues of attention, its KV cache, gated delta nets, and kernels of linear layers."""

from __future__ import annotations

from spark_prof.rules.known_issue import (
    DELTA_NET,
    GB10,
    SM12X,
    AnyOf,
    AtLeast,
    Capability,
    CheckpointScheme,
    EngineSetting,
    Issue,
    IssueReference,
    LogSays,
    Model,
    Runs,
    Traced,
)
from spark_prof.rules.vllm_versions import VersionWindow

_NATIVE_FP4 = r"nvfp4 .*(FlashInfer|Cutlass)|(FlashInfer\w*|Cutlass)NvFp4Linear"
_A16_FIRST = "FlashInferCuteDslNvFp4W4A16LinearKernel"

LINEAR_LAYERS: tuple[Issue, ...] = (
    Issue("nvfp4-scales-not-zeroed", "speed",
        what="activations that are quantized to NVFP4 have scales in memory that nobody set to "
        "zero, in the rows that pad them",
        effect="17.6 tokens/s where 126.5 were reached (-88 %, Llama-3.3-70B) and 9.6 where 151.3 "
        "were (-93 %, Kimi-K2.5), one request, B300 and GB300",
        vllm=VersionWindow("0.22.0", "0.24.0", "0.25.0"), gpus="B200, B300, GB300",
        when=(Capability(((100, 109),)), Runs("linear", _NATIVE_FP4)),
        reported=(IssueReference("vllm-project/vllm#45741", "2026-06"),
                  IssueReference("vllm-project/vllm#42988", "2026-05", "pull"),
                  IssueReference("vllm-project/vllm#45739", "2026-06", "pull")),
        remedy="update vLLM to 0.25"),
    Issue("weight-only-before-fp4", "speed",
        what="linear layers with FP4 weights and activations run weight-only on FlashInfer's "
        "CuTe DSL kernel, which daily builds from 31 August on tried before those with FP4 "
        "activations",
        effect="prompts were 31 % slower and loaded decoding 17 to 24 % on a GB10; 74.8 tokens/s "
        "where 92.6 are reached and 1,455 ms to the first token where 926 are, on an RTX PRO 6000",
        vllm=VersionWindow("0.28.0", "0.28.1rc1.dev388", "0.29.0"), gpus="RTX 50, RTX PRO, GB10",
        when=(SM12X, CheckpointScheme("linear", r"W4A4"), Runs("linear", _A16_FIRST)),
        reported=(IssueReference("vllm-project/vllm#55397", "2026-09-04"),
                  IssueReference("vllm-project/vllm#55170", "2026-09-03", "pull")),
        side=f"VLLM_DISABLED_KERNELS={_A16_FIRST}"),
    Issue("nvfp4-garbage-at-8-ranks", "answers",
        what="columns of an NVFP4 layer that 8 GPUs share are no multiple of 32, and what pads "
        "them is read",
        effect="GSM8K 0.0 where Marlin has 0.887 (Qwen2.5-VL-72B NVFP4, 8 RTX 6000D)",
        vllm=VersionWindow("0.25.1", "0.25.1"), gpus="RTX PRO, RTX 6000D",
        when=(Capability(((120, 120),)), Model(r"Qwen2[._]5_?-?VL"), Runs("linear", _NATIVE_FP4),
              AtLeast("tensor_parallel_size", 8)),
        reported=(IssueReference("vllm-project/vllm#48898", "2026-07-17"),
                  IssueReference("vllm-project/vllm#48965", "2026-07-17", "pull")),
        side="--linear-backend marlin"),
    Issue("no-native-fp4-message", "message",
        what="the log says that this GPU has no native FP4, which it has: vLLM writes the line "
        "whenever it takes Marlin",
        effect="nothing but the message: what makes vLLM take Marlin is most often that the "
        "checkpoint asks for 16-bit activations",
        vllm=VersionWindow("0.24.0", "0.33.0"), gpus="B200, RTX 50, RTX PRO, GB10",
        when=(Capability(((100, 129),)),
              LogSays(r"does not have native support for FP4|lacks native FP4 compute")),
        reported=(IssueReference("vllm-project/vllm#47749", "2026-07-06"),
                  IssueReference("vllm-project/vllm#44672", "2026-09-10", "pull")),
        remedy="look at what the checkpoint asks for, not at the GPU"),
    Issue("gb10-cutlass-fp8-blocks-fail", "start",
        what="CUTLASS' kernel for FP8 with a scale for each block was built for 12.0 and fails on "
        "12.1",
        effect="the engine does not start; without that kernel it starts on Triton's (Qwen3.6, "
        "GB10)",
        vllm=VersionWindow("0.20.0", "0.21.1rc1.dev169"), gpus="GB10",
        when=(GB10, LogSays(r"cutlass_gemm_caller\.cuh")),
        reported=(IssueReference("vllm-project/vllm#43367", "2026-05-22"),),
        side="VLLM_DISABLED_KERNELS=CutlassFp8BlockScaledMMKernel"),
    Issue("flashinfer-needs-cuda-12-9", "start",
        what="FlashInfer compiles for this GPU with a CUDA toolkit before 12.9, which does not "
        "know it",
        effect="the engine ends while it starts, in the sampler, the experts or an FP8 KV cache",
        vllm=VersionWindow("0.25.0", "0.29.0"), gpus="RTX 50, RTX PRO, GB10",
        when=(SM12X, LogSays(r"No supported CUDA architectures found for major versions \[12\]")),
        reported=(IssueReference("vllm-project/vllm#48965", "2026-07-17", "pull"),
                  IssueReference("flashinfer-ai/flashinfer#3633", "2026-09-07", "pull")),
        remedy="install CUDA 12.9 or newer and set CUDA_HOME"),
    Issue("fp8-products-not-tuned", "speed",
        what="FlashInfer 0.6.12 finds none of its tuned tactics for FP8 products and takes a "
        "default one",
        effect="57 warnings in each run, none with FlashInfer 0.6.13; what they cost was not "
        "told (RTX 5090)",
        vllm=VersionWindow("0.23.0", "0.24.0", "0.25.0"), gpus="",
        when=(LogSays(r"No tuned config covers \S*(bmm_fp8|fp8_gemm)"),),
        reported=(IssueReference("flashinfer-ai/flashinfer#3437", "2026-06-20", "pull"),),
        remedy="update vLLM to 0.25"),
    Issue("lm-head-not-tuned", "speed",
        what="FlashInfer is not tuned for a product in BF16, such as the last of a step, onto the "
        "vocabulary, which no warm-up of vLLM runs",
        effect="each step runs it with a default tactic; what that costs was not told",
        vllm=VersionWindow("0.25.0", "0.33.0"), gpus="",
        when=(LogSays(r"No tuned config covers \S*bf16_gemm"),),
        reported=(IssueReference("vllm-project/vllm#47720", "2026-07-06", "pull"),),
        remedy="none known"),
    Issue("gb10-fp8-blocks-default-tiles", "speed",
        what="no tuned configuration is there for FP8 blocks on a GB10, and the default computes "
        "64 rows where one token needs one",
        effect="6.73 tokens/s with tiles of 16 rows where 5.45 were reached (+23 %; "
        "DeepSeek-V4-Flash, 2 DGX Spark)",
        vllm=VersionWindow("0.24.0", "0.33.0"), gpus="GB10",
        when=(GB10, LogSays(r"default W8A8 Block FP8 kernel config.*device_name=NVIDIA_GB10")),
        reported=(IssueReference("vllm-project/vllm#40925", "2026-04-26", "pull"),),
        remedy="write a configuration for these shapes with vLLM's benchmark_w8a8_block_fp8.py"),
)  # fmt: skip


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
