"""Known issues of the kernels of experts: backends that are slower, wrong or do not start."""

from __future__ import annotations

from spark_prof.rules.known_issue import (
    GB10,
    HOPPER,
    SM12X,
    AtLeast,
    Capability,
    CheckpointScheme,
    EngineSetting,
    Issue,
    IssueReference,
    LogSays,
    Model,
    Runs,
)
from spark_prof.rules.vllm_versions import VersionWindow

_B200 = Capability(((100, 109),))
_PER_TENSOR = EngineSetting("quantization", r"modelopt(_fp8)?")
_NEMOTRON = Model(r"Nemotron_?H|Nemotron-?3")

EXPERTS: tuple[Issue, ...] = (
    Issue("trtllm-experts-host-time", "speed",
        what="unquantized experts with ReLU2 run on FlashInfer's TensorRT-LLM kernels, which take "
        "176 us of the host in each call, and without CUDA graphs the GPU waits for it",
        effect="a decode step took 130.8 ms where 0.23 took 114.7, and 117.0 ms with FlashInfer's "
        "CUTLASS experts (Nemotron-3-Ultra BF16, 8 B200, eager)",
        vllm=VersionWindow("0.24.0", "0.26.0"), gpus="B200, GB200",
        when=(_B200, _NEMOTRON, Runs("moe", r"unquantized .*TRTLLM|TrtLlmBf16"),
              EngineSetting("enforce_eager", "true")),
        reported=(IssueReference("vllm-project/vllm#53472", "2026-08-23"),
                  IssueReference("aws-samples/aws-do-eks#101", "2026-08-23", "pull")),
        side="--moe-backend flashinfer_cutlass"),
    Issue("trtllm-nvfp4-relu2-corrupt", "answers",
        what="NVFP4 experts with ReLU2 run on FlashInfer's TensorRT-LLM kernels",
        effect="text is fluent and wrong in every run, and right with FlashInfer's CUTLASS experts "
        "on the same GPU (Nemotron-3-Nano-30B-A3B-NVFP4, B200)",
        vllm=VersionWindow("0.26.0", "0.27.0"), gpus="B200",
        when=(Capability(((100, 100),)), _NEMOTRON, Runs("moe", r"nvfp4 .*TRTLLM|TrtLlmNvFp4")),
        reported=(IssueReference("vllm-project/vllm#52308", "2026-08-14"),),
        side="--moe-backend flashinfer_cutlass"),
    Issue("latent-experts-reduced-twice", "speed",
        what="each layer of latent experts sums over the GPUs twice where once is enough",
        effect="4.64 ms between tokens where 0.26 had 4.07 (+13.8 %; Nemotron-3-Super-120B-A12B "
        "BF16, 4 GPUs, one request)",
        vllm=VersionWindow("0.27.0", "0.29.0", "0.30.0"), gpus="",
        when=(Model(r"Nemotron-?3-(Super|Ultra)"), AtLeast("tensor_parallel_size", 2)),
        reported=(IssueReference("vllm-project/vllm#52301", "2026-08-14", "pull"),),
        remedy="update vLLM to 0.30"),
    Issue("mxfp4-trtllm-tuned-to-graphs", "speed",
        what="FlashInfer tunes its TensorRT-LLM experts for MXFP4 only up to the largest CUDA "
        "graph, 512 tokens, and prompts run a tactic of that size",
        effect="prompts of 8k ran at 2,362 tokens/s a GPU where 2,604 are reached since (+10 %, 8 "
        "GPUs in tensor parallel; with expert parallel 2.9 % less)",
        vllm=VersionWindow("0.24.0", "0.27.1", "0.28.0"), gpus="B200, B300",
        when=(_B200, Runs("moe", r"mxfp4 .*TRTLLM|TrtLlmMxfp4")),
        reported=(IssueReference("vllm-project/vllm#50942", "2026-08-04", "pull"),),
        remedy="update vLLM to 0.28"),
    Issue("trtllm-experts-tuned-to-8192", "speed",
        what="FlashInfer tunes its TensorRT-LLM experts up to 8,192 tokens, and data parallel "
        "brings them more",
        effect="1,706.8 tokens/s where 1,751.5 are reached since (+2.6 %; Nemotron-3-Ultra NVFP4, "
        "4 GB200 in data parallel, 128 requests)",
        vllm=VersionWindow("0.24.0", "0.25.1", "0.26.0"), gpus="B200, GB200",
        when=(_B200, Runs("moe", r"(nvfp4|fp8|unquantized) .*TRTLLM|TrtLlm(NvFp4|Fp8|Bf16)"),
              AtLeast("data_parallel_size", 2), AtLeast("max_num_batched_tokens", 8192)),
        reported=(IssueReference("vllm-project/vllm#47427", "2026-07-02", "pull"),),
        remedy="update vLLM to 0.26"),
    Issue("hopper-flashinfer-bf16-experts", "speed",
        what="unquantized experts run on FlashInfer's CUTLASS kernels, which are slower than "
        "Triton's on Hopper",
        effect="3.22 ms a token where 0.19 took 2.66 (+21 %; Mixtral-8x7B, 8 H200, one request)",
        vllm=VersionWindow("0.20.0", "0.21.0", "0.24.0"), gpus="H100, H200",
        when=(HOPPER, Runs("moe", r"unquantized .*FlashInfer[ _]CUTLASS")),
        reported=(IssueReference("vllm-project/vllm#41306", "2026-04-30"),
                  IssueReference("vllm-project/vllm#44220", "2026-06-01", "pull")),
        side="--moe-backend triton"),
    Issue("hopper-flashinfer-fp8-experts", "speed",
        what="experts in FP8 with a scale for each tensor run on FlashInfer's CUTLASS kernels, "
        "which are tried before Triton's",
        effect="Triton's gave 10 % more tokens/s (Nemotron-3-Nano-30B-A3B-FP8, H200, one request)",
        vllm=VersionWindow("0.24.0", "0.33.0"), gpus="H100, H200",
        when=(HOPPER, _PER_TENSOR, Runs("moe", r"\bfp8 .*FlashInfer[ _]CUTLASS"),
              EngineSetting("moe_backend", "auto|", "auto")),
        reported=(IssueReference("vllm-project/vllm#50040", "2026-07-27", "pull"),),
        side="--moe-backend triton"),
    Issue("hopper-flashinfer-fp8-block-experts", "speed",
        what="experts in FP8 run on FlashInfer's CUTLASS kernels, which became the default there",
        effect="about 30 % slower than Triton's (DeepSeek-R1, 8 H200, 16 requests)",
        vllm=VersionWindow("0.15.0", "0.15.0", "0.24.0"), gpus="H100, H200",
        when=(HOPPER, Runs("moe", r"\bfp8 .*FlashInfer[ _]CUTLASS")),
        reported=(IssueReference("vllm-project/vllm#33490", "2026-01-31", "pull"),),
        remedy="update vLLM"),
    Issue("sm12x-no-cutlass-fp8-experts", "speed",
        what="experts in FP8 with a scale for each tensor run on Triton: vLLM's CUTLASS experts "
        "are shut out from this GPU by its number",
        effect="a kernel that was never merged gave 7.3 % more tokens/s on a GB10 with short "
        "texts, nothing with longer ones",
        vllm=VersionWindow("0.24.0", "0.33.0"), gpus="RTX 50, RTX PRO, GB10",
        when=(SM12X, _PER_TENSOR, Runs("moe", r"\bfp8 .*TRITON")),
        reported=(IssueReference("vllm-project/vllm#43507", "2026-08-07"),
                  IssueReference("vllm-project/vllm#43814", "2026-06-09", "pull")),
        remedy="none in vLLM up to 0.33"),
    Issue("triton-fp8-experts-before-ada", "start",
        what="vLLM takes Triton's kernels for experts in FP8 on a GPU without FP8, where they "
        "cannot be compiled",
        effect="the engine does not start; on Marlin it does, at 61 tokens/s for one request "
        "(Qwen3.8-Flash-Next-FP8, 4 GPUs of compute capability 8.0)",
        vllm=VersionWindow("0.24.0", "0.33.0"), gpus="A100, RTX 30",
        when=(Capability(((75, 88),)), LogSays(r"type fp8e4nv not supported in this architecture")),
        reported=(IssueReference("vllm-project/vllm#54318", "2026-09-01"),
                  IssueReference("vllm-project/vllm#54219", "2026-08-28")),
        side="--moe-backend marlin"),
    Issue("gemma4-cutlass-experts-with-drafts", "speed",
        what="NVFP4 experts of Gemma 4 run on vLLM's CUTLASS kernels with drafts",
        effect="throughput well below that of 0.21, which took Marlin; Marlin brings the room for "
        "the KV cache back and a part of the throughput (Gemma-4-26B-A4B-NVFP4, RTX PRO 6000)",
        vllm=VersionWindow("0.23.0", "0.23.0"), gpus="RTX PRO 6000",
        when=(Capability(((120, 120),)), Model(r"Gemma-?4"), Runs("moe", r"nvfp4 .*VLLM_CUTLASS"),
              AtLeast("num_speculative_tokens", 1)),
        reported=(IssueReference("vllm-project/vllm#47047", "2026-06-29"),),
        side="--moe-backend marlin"),
    Issue("gpt-oss-marlin-on-gb10", "answers",
        what="gpt-oss' experts run on Marlin, the only backend that starts there",
        effect="answers are empty, as the first token of each is wrong; only emulation was right, "
        "at 5 tokens/s (gpt-oss-120b, GB10)",
        vllm=VersionWindow("0.20.0", "0.20.1rc1.dev91"), gpus="GB10",
        when=(GB10, Model(r"Gpt_?-?Oss"), Runs("moe", r"mxfp4 .*MARLIN|MarlinExperts")),
        reported=(IssueReference("vllm-project/vllm#41477", "2026-05-01"),
                  IssueReference("vllm-project/vllm#37030", "2026-03")),
        remedy="update vLLM, and compare answers"),
    Issue("minimax-m3-marlin-on-hopper", "answers",
        what="NVFP4 experts of MiniMax-M3 run on Marlin",
        effect="every answer is garbage, and about 8 requests at a time end the engine (H100 and "
        "H200)",
        vllm=VersionWindow("0.25.1", "0.25.1"), gpus="H100, H200",
        when=(HOPPER, Model(r"MiniMax-?M3"), Runs("moe", r"nvfp4 .*MARLIN|MarlinExperts")),
        reported=(IssueReference("vllm-project/vllm#49070", "2026-07-19"),),
        remedy="none known"),
    Issue("hopper-humming-mxfp4-experts", "speed",
        what="MXFP4 experts run on Marlin; Humming's kernels, which are the default from 0.32 on, "
        "are installed with vLLM",
        effect="Humming's gave 19.9 % more throughput (DeepSeek-V4-Flash, 4 H20, 128 requests)",
        vllm=VersionWindow("0.27.0", "0.31.0", "0.32.0"), gpus="H100, H200, H20",
        when=(HOPPER, Model(r"Deepseek-?V4"), Runs("moe", r"mxfp4 .*MARLIN")),
        reported=(IssueReference("vllm-project/vllm#52318", "2026-08-14", "pull"),),
        side="--moe-backend humming"),
    Issue("sm120-marlin-experts-not-b12x", "speed",
        what="NVFP4 experts with 16-bit activations run on Marlin: vLLM leaves b12x out when it "
        "chooses by itself",
        effect="b12x gave 1,974 tokens/s where the choice of then gave 1,755, on 4 RTX 5090; on a "
        "GB10 it was no faster than Marlin",
        vllm=VersionWindow("0.24.0", "0.33.0"), gpus="RTX 50, RTX PRO",
        when=(Capability(((120, 120),)), CheckpointScheme("moe", r"W4A16"), Runs("moe",
              r"nvfp4 .*MARLIN"),
              EngineSetting("moe_backend", "auto|", "auto")),
        reported=(IssueReference("vllm-project/vllm#47577", "2026-07-03", "pull"),
                  IssueReference("vllm-project/vllm#40082", "2026-04", "pull"),
                  IssueReference("vllm-project/vllm#54666", "2026-09-01")),
        side="--moe-backend flashinfer_b12x"),
    Issue("gb10-no-tuned-experts", "message",
        what="the log says that experts of this shape run untuned on a GB10",
        effect="with a tuned file their kernel was 3.5 % faster and the server no faster: +0.09 %, "
        "between -2.56 and +2.75 (Nemotron-3-Super, 12 starts)",
        vllm=VersionWindow("0.24.0", "0.33.0"), gpus="GB10",
        when=(GB10, LogSays(r"E=512,N=2688,device_name=NVIDIA_GB10")),
        reported=(IssueReference("vllm-project/vllm#52192", "2026-08-13", "pull"),),
        remedy="do not tune them for the time of a token"),
)  # fmt: skip
