"""What vLLM calls the things that spark-prof reaches into; the only place that knows.

The names were read in the sources of every version from `OLDEST` to `NEWEST` and are checked
against the installed one by tests/profiler/test_vllm_names.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OLDEST, NEWEST = (0, 24), (0, 33)

WORKER = ("vllm.v1.worker.worker_base", "WorkerBase")
"""Every worker's base class; its constructor runs after vLLM has loaded the plugins."""

SCHEDULER = ("vllm.v1.core.sched.scheduler", "Scheduler")
"""The scheduler's class, constructed in the engine core's process."""

ENGINE_CORE = ("vllm.v1.engine.core", "EngineCore")
"""Holds the scheduler and the executor; its `shutdown` ends the workers."""

BREAKABLE_CAPTURE = ("vllm.compilation.breakable_cudagraph", "BreakableCUDAGraphCapture")
"""Captures a CUDA graph in pieces between operators that run eagerly; has `segments`."""

CAPTURING_METHODS = (
    ("speculator", "capture", "drafter"),
    ("drafter", "dummy_run", "drafter"),
    ("model_state", "capture_inner_cudagraphs", "metadata"),
    ("model_state.encoder_runner", "capture", "encoder"),
    ("encoder_cudagraph_manager", "capture", "encoder"),
)
"""Attributes of a model runner whose methods capture graphs other than the model's: the attribute,
the method, what its graphs are for (vocabulary.GRAPH_KINDS)."""

DRAFTERS = ("drafter", "speculator")
"""Attributes of a model runner that hold what drafts, of runner V1 and V2."""

PROPOSE = "propose"
"""Its method that makes the drafts for the next step."""

RUN_MODEL = "_run_model"
"""Its method, of runner V2, that calls the draft model; other drafters call the model as such."""

PHASES = (
    ("init_device", "processes"),
    ("load_model", "load"),
    ("determine_available_memory", "profile"),
    ("initialize_from_config", "kv-cache"),
    ("compile_or_warm_up_model", "warm-up"),
)
"""Methods of a worker that its engine calls one after another while it starts, all ranks at a time,
and the stage of the start (rules.start_stages) that each is where nothing within tells more."""

PHASE_PARTS = (("profile_cudagraph_memory", "graph-memory"), ("capture_model", "capture"))
"""Methods of its model runner that are a stage within one of them."""

START_FUNCTIONS = (
    (("vllm.model_executor.model_loader.base_loader", "initialize_model"), "build"),
    (("vllm.model_executor.model_loader.base_loader", "process_weights_after_loading"), "repack"),
    (("vllm.model_executor.warmup.kernel_warmup", "flashinfer_autotune"), "autotune"),
    (("vllm.model_executor.warmup.kernel_warmup", "deep_gemm_warmup"), "deep-gemm"),
)
"""Functions, by the module in whose name they are called, that are a stage within a phase."""

COMPILE_MONITOR = ("vllm.compilation.decorators", "monitor_torch_compile")
"""A context manager around torch.compile: tracing, the backend, and saving or reading the cache."""

COMPILE_BACKEND = ("vllm.compilation.backends", "VllmBackend", "__call__")
"""What torch.compile calls with a traced graph."""

COMPILE_COUNTER = ("vllm.compilation.counter", "compilation_counter")
"""Counts what was compiled, saved and read from the cache."""

FRONT_ENDS = (
    ("vllm.v1.engine.async_llm", "AsyncLLM"),
    ("vllm.v1.engine.llm_engine", "LLMEngine"),
)
"""The engine as a server and an offline program see it: once constructed, the engine is up."""

COMPILED_CLASS = "TorchCompileWithNoGuardsWrapper"
"""Base class of a module that vLLM hands to torch.compile unless it has `do_not_compile`."""

MOE_RUNNER_ENTRY = "_forward_impl"
"""The method that the opaque op moe_forward calls, compiled or not."""


@dataclass(frozen=True)
class InternalCall:
    """A method below a module that runs as Python even inside a compiled model.

    Attributes:
        holder: the module's attribute that has the method; an empty one is the module itself.
        method: its name.
        ops: the opaque ops whose bodies call it, one after another; empty where something else
            that runs as Python does.
        whole: whether it counts to its module, whatever the method is called.
        needs: an attribute that only a module of the kind that is meant has.
        since: the first vLLM version that has it.
        until: the last one.
    """

    holder: str
    method: str
    ops: str = ""
    whole: bool = False
    needs: str = ""
    since: tuple[int, int] = OLDEST
    until: tuple[int, int] = NEWEST


_GDN = "qwen_gdn_attention_core_fused_norm_packed"

CALLS = (
    InternalCall("impl", "forward", "unified_attention_with_output"),
    InternalCall("impl", "forward_mha"),
    InternalCall("impl", "forward_mqa"),
    # Of MLA, whose absorbed products and concatenations are in it.
    InternalCall("", "forward_impl", "unified_mla_attention_with_output", whole=True,
        needs="kv_b_proj"),
    InternalCall("impl", "do_kv_cache_update", "unified_kv_cache_update"),
    InternalCall("impl", "do_kv_cache_update", "unified_mla_kv_cache_update", until=(0, 29)),
    InternalCall("", "update_kv_cache", "unified_mla_kv_cache_update", since=(0, 30)),
    InternalCall("impl", "do_rope_and_kv_cache_update", "fused_rope_and_unified_kv_cache_update"),
    InternalCall("impl", "do_qk_norm_rope_kvcache_update",
        "fused_qk_norm_rope_and_unified_kv_cache_update", since=(0, 26)),
    InternalCall("impl", "do_qk_norm_mrope_kvcache_update",
        "fused_qk_norm_mrope_and_unified_kv_cache_update", since=(0, 31)),
    InternalCall("", "calc_kv_scales", "maybe_calc_kv_scales", whole=True, until=(0, 27)),
    InternalCall("", "populate_sink_kv", "maybe_populate_sink"),
    InternalCall("", "_forward_impl", "hpc_rope_norm_forward", whole=True, needs="qk_norm_policy",
        since=(0, 25)),
    InternalCall("", MOE_RUNNER_ENTRY, "moe_forward moe_forward_shared", needs="routed_experts"),
    InternalCall("", "_forward_super", "transformers_moe_forward", whole=True),
    # The bodies of the opaque ops of Mamba 1 and 2 and of the gated delta rule.
    InternalCall("", "forward_impl", "mamba_mixer plamo2_mamba_mixer", whole=True, needs="conv1d"),
    InternalCall("", "conv_ssm_forward", "mamba_mixer2", whole=True, needs="conv1d"),
    InternalCall("", "_forward_core", "qwen_gdn_attention_core cpu_gdn_attention_core", whole=True,
        needs="conv1d"),
    # With speculation, where no step goes through the one above.
    InternalCall("", "_forward_core_fused_norm_packed", _GDN, whole=True, needs="conv1d",
        since=(0, 28)),
    InternalCall("", "_forward_core_decode_spec_fused_norm", whole=True, needs="conv1d",
        since=(0, 28)),
    InternalCall("", "_full_forward", "olmo_hybrid_gdn_full_forward", whole=True, needs="conv1d"),
    # Kimi's delta rule, lightning attention and the short convolution.
    InternalCall("", "_forward", "kda_attention bailing_v3_kda_attention", whole=True,
        needs="q_conv1d"),
    InternalCall("", "_forward", "linear_attention", whole=True, needs="slope_rate"),
    InternalCall("", "forward_cuda", "short_conv", whole=True, needs="L_cache"),
    InternalCall("", "forward_native", "short_conv", whole=True, needs="L_cache", since=(0, 25)),
    InternalCall("", "_run_qsa", "qwen4_exp_qsa_with_output", whole=True, since=(0, 29),
        until=(0, 29)),
    InternalCall("", "_short_conv", "qwen4_exp_ple_short_conv", whole=True, since=(0, 29),
        until=(0, 29)),
    # Cohere2's mlp beside its attention, on a stream of its own.
    InternalCall("", "_fork_mlp", "cohere2_mlp_fork", since=(0, 33)),
    InternalCall("", "_join_mlp", "cohere2_mlp_join", whole=True, since=(0, 33)),
    InternalCall("", "_apply_async_impl", "lora_linear_async", whole=True),
    InternalCall("router", "select_experts"),
    InternalCall("routed_experts", "forward_modular"),
    InternalCall("routed_experts", "forward_monolithic"),
    InternalCall("spark_prof_body", "run", whole=True),
    InternalCall("", "spark_prof_stock", whole=True),
)  # fmt: skip
"""A layer with a swapped kernel has a `spark_prof_body`, and one whose `forward` returns what a
swapped part has computed has vLLM's own as `spark_prof_stock`: both run in other modules' calls."""


def is_supported(version: str) -> bool:
    """Whether that vLLM version, such as "0.26.0" or "0.30.1rc1+cpu", is one of those."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and OLDEST <= (int(match[1]), int(match[2])) <= NEWEST
