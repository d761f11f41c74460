"""Known issues of graphs, the host, collectives and what lies between several machines."""

from __future__ import annotations

from spark_prof.rules.known_issue import (
    GB10,
    HOPPER,
    AnyOf,
    AtLeast,
    Capability,
    EngineSetting,
    EnvironmentCondition,
    Issue,
    IssueReference,
    LogSays,
    Model,
    Traced,
)
from spark_prof.rules.versions import VersionWindow

_BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"
_DEEPSEEK_V4 = Model(r"Deepseek-?V4(?!_?1|\.1)")

EXECUTION: tuple[Issue, ...] = (
    Issue("structured-output-mask-on-host", "speed",
        what="each step lays the mask of structured output out anew in pinned memory of the host, "
        "with as many threads as the machine has cores",
        effect="half the tokens/s with a JSON schema, and 120 where 664 are reached without in a "
        "container with a limit of processor time, from 8 requests on (Gemma-4-31B, B300)",
        vllm=VersionWindow("0.24.0", "0.25.1"), gpus="",
        when=(AnyOf((Traced(r"apply_token_bitmask_inplace"),
                     LogSays(r"StructuredOutputsParams\((json|regex|choice|grammar)=(?!None)"))),
              EngineSetting("model_runner", "V1"), EnvironmentCondition("OMP_NUM_THREADS", "", "")),
        reported=(IssueReference("vllm-project/vllm#49013", "2026-07-25"),),
        remedy="set OMP_NUM_THREADS, such as to 1, and time your own requests"),
    Issue("breakable-graphs-on-b300", "speed",
        what="DeepSeek-V4 runs with breakable CUDA graphs, and so without torch.compile",
        effect="773 tokens/s where 1,216 were reached without them (DeepSeek-V4-Flash, B300, 200 "
        "short prompts)",
        vllm=VersionWindow("0.25.0", "0.25.0"), gpus="B300",
        when=(Capability(((100, 109),)), _DEEPSEEK_V4,
              AnyOf((LogSays(rf"Auto-enabling {_BREAKABLE}=1"), EnvironmentCondition(_BREAKABLE,
                  "1",
                  "0")))),
        reported=(IssueReference("vllm-project/vllm#49370", "2026-07-21"),),
        side=f"{_BREAKABLE}=0"),
    Issue("breakable-graphs-switched-off", "speed",
        what="breakable CUDA graphs are switched off for a model that has no others for prompts",
        effect="every step with a prompt in it launches its kernels one by one: 0 graph launches "
        "in a trace (DeepSeek-V4-Flash, 4 H800; taken for a regression of vLLM at first)",
        vllm=VersionWindow("0.26.0", "0.28.0"), gpus="",
        when=(_DEEPSEEK_V4, EnvironmentCondition(_BREAKABLE, "0", "1")),
        reported=(IssueReference("vllm-project/vllm#54677", "2026-09-02"),),
        side=f"{_BREAKABLE}=1"),
    Issue("batch-invariant-tiles-frozen", "speed",
        what="batch-invariant products choose their tiles while torch.compile traces, for the "
        "largest batch, and keep them in decode steps",
        effect="3 to 6 times as long in each product of a decode step as tiles for 8 tokens take "
        "(Qwen3, RTX PRO 6000)",
        vllm=VersionWindow("0.28.0", "0.30.0", "0.31.0"), gpus="RTX 40, H100, H200",
        when=(Capability(((89, 90),)), EnvironmentCondition("VLLM_BATCH_INVARIANT", "1", "0"),
              EnvironmentCondition(_BREAKABLE, "0|", ""), EngineSetting("enforce_eager", "false")),
        reported=(IssueReference("vllm-project/vllm#54243", "2026-09-18"),
                  IssueReference("vllm-project/vllm#57586", "2026-09-18", "pull")),
        side=f"{_BREAKABLE}=1"),
    Issue("confidential-computing-slow", "speed",
        what="the GPU is in the mode for confidential computing",
        effect="41.4 tokens/s where 0.26 reached 148.3 (Qwen3.6-35B-A3B-FP8, H100 NVL); 0.29 is 7 "
        "% faster than 0.26 without that mode (H200)",
        vllm=VersionWindow("0.29.0", "0.29.0"), gpus="H100",
        when=(HOPPER, Model(r"Qwen3_5|Qwen3[.-](5|6|8)"),
              LogSays(r"(?i)\bCC (status|state)\s*: *ON\b"
                      r"|confidential comput\w*\W+(mode\W+)?ON\b")),
        reported=(IssueReference("vllm-project/vllm#57680", "2026-09-22"),),
        remedy="stay with 0.26 there"),
    Issue("gb10-workers-spin", "load",
        what="workers wait for each other in a loop that never sleeps while requests run",
        effect="3 to 4 fast cores are busy with nothing: 333 % of processor time and 96 degrees, "
        "89 % and 11 degrees less where they sleep after 2 ms; tokens/s the same (2 DGX Spark)",
        vllm=VersionWindow("0.24.0", "0.33.0"), gpus="GB10",
        when=(GB10, AtLeast("tensor_parallel_size", 2),
              AnyOf((EngineSetting("distributed_executor_backend", "mp"), AtLeast("nnodes", 2)))),
        reported=(IssueReference("vllm-project/vllm#51950", "2026-08-12", "pull"),
                  IssueReference("vllm-project/vllm#52814", "2026-08-18", "pull"),
                  IssueReference("MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#74", "2026-08-17",
                            "pull")),
        remedy="no option in vLLM up to 0.33; busy_loop_s in its shm_broadcast.py"),
    Issue("pcie-all-reduce-by-nccl", "speed",
        what="more than two GPUs without NVLink sum by NCCL: vLLM's own all-reduce is off there",
        effect="SGLang went from 9.53 to 8.18 ms a token with FlashInfer's all-reduce over PCIe "
        "(one request, 8k tokens of prompt, RTX PRO 6000); vLLM has it from 0.30 on, off",
        vllm=VersionWindow("0.30.0", "0.33.0"), gpus="RTX 50, RTX PRO",
        when=(Capability(((120, 120),)), LogSays(r"not supported on more than two PCIe-only GPUs"),
              AtLeast("tensor_parallel_size", 3)),
        reported=(IssueReference("vllm-project/vllm#56128", "2026-09-09"),
                  IssueReference("sgl-project/sglang#34528", "2026-08-12", "pull")),
        side="VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1"),
    Issue("sparks-without-rdma", "speed",
        what="NCCL finds no RDMA device and sends all sums over TCP: most often the container was "
        "given none",
        effect="12 tokens/s where 34 are reached with it (DeepSeek-V4-Flash, 2 DGX Spark)",
        vllm=VersionWindow("0.11.0", "0.33.0"), gpus="GB10",
        when=(GB10, LogSays(r"NET/IB *: *No device found")),
        reported=(IssueReference("vllm-project/vllm#41063", "2026-05-29"),),
        remedy="docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1:-1"),
    Issue("sparks-nccl-hangs", "start",
        what="two DGX Spark wait for each other in NCCL for ever, with the NCCL that comes with "
        "torch",
        effect="after 20 to 26 minutes with 4 requests at a time, whatever the backends; not with "
        "the NCCL of DGX OS, which has the same version (Laguna-S-2.1-NVFP4)",
        vllm=VersionWindow("0.25.1", "0.25.1"), gpus="GB10",
        when=(GB10, AtLeast("tensor_parallel_size", 2),
              LogSays(r"Watchdog caught collective operation timeout")),
        reported=(IssueReference("vllm-project/vllm#42354", "2026-07-23"),),
        remedy="load the NCCL of DGX OS in place of torch's"),
)  # fmt: skip
