"""What spark-prof reaches into of vLLM beyond what it imports, and what may be missing.

A name is written as `vllm.module:Class.attribute`; with `*` any class or module below will do. What
the sources import by name is found in them. Which versions have each name stands in
vllm_names.json; the tests hold the two together, and `python -m scripts.vllm_sources --check`
a new wheel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reached:
    """A name of vLLM's."""

    name: str
    use: str  # what for
    either: str = ""  # the group of names one of which each version must have
    optional: bool = False  # what is done without it stands in `use`


def _rows(prefix: str, names: str, use: str, **flags: str | bool) -> tuple[Reached, ...]:
    """A row for each name behind the same prefix."""
    return tuple(
        Reached(prefix + name, use, str(flags.get("either", "")), bool(flags.get("optional")))
        for name in names.split()
    )


_WORKER = "vllm.v1.worker.worker_base:WorkerBase."
_GPU_WORKER = "vllm.v1.worker.gpu_worker:Worker."
_V1 = "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
_V2 = "vllm.v1.worker.gpu.model_runner:GPUModelRunner."
_OUTPUT = "vllm.v1.core.sched.output:SchedulerOutput."
_CACHED = "vllm.v1.core.sched.output:CachedRequestData."
_NEW = "vllm.v1.core.sched.output:NewRequestData."
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler."
_REQUEST = "vllm.v1.request:Request."
_CONFIG = "vllm.config.vllm:VllmConfig."
_PARALLEL = "vllm.config.parallel:ParallelConfig."
_COMPILATION = "vllm.config.compilation:CompilationConfig."
_LAYERS = "vllm.model_executor.layers.*:*."
_MOE = "vllm.model_executor.layers.fused_moe.*:*."
_LINEAR = "vllm.model_executor.layers.linear:LinearBase."
_ATTENTION = "vllm.model_executor.layers.attention.*:*."

REACHED: tuple[Reached, ...] = (
    # The worker and its steps.
    *_rows(_WORKER, "execute_model sample_tokens compile_or_warm_up_model shutdown load_model",
        "wrapped: a step, its sampling, the capture of graphs, the end, the weights"),
    *_rows(_WORKER, "vllm_config model_runner device rank", "read"),
    *_rows(_GPU_WORKER, "execute_model sample_tokens compile_or_warm_up_model load_model",
        "wrapped on the worker of GPUs"),
    *_rows(_GPU_WORKER, "use_v2_model_runner", "which runner drives the steps"),
    *_rows(_GPU_WORKER, "reload_weights start_weight_update update_weights",
        "wrapped: the weights of a swapped layer change"),
    *_rows(_GPU_WORKER, "reset_weights", "the same, from 0.32 on", optional=True),
    *_rows(_V1, "get_model model sampler kv_caches input_batch capture_model device", "runner V1"),
    *_rows(_V2, "get_model model sampler kv_caches capture_model device speculator", "runner V2"),
    *_rows("vllm.v1.worker.workspace:",
        "is_workspace_manager_initialized current_workspace_manager unlock_workspace",
        "called before the graphs of a further side are captured, whose kernels keep their own"),
    *_rows("vllm.v1.worker.workspace:WorkspaceManager.", "is_locked _current_workspaces",
        "read before that"),
    *_rows(_V1, "drafter", "the draft model of runner V1"),
    *_rows(_V1, "rejection_sampler", "which drafts are accepted, of runner V1"),
    *_rows(_V2, "rejection_sampler", "the same, of runner V2"),
    *_rows("vllm.v1.worker.gpu.spec_decode.*:*.", "_run_model", "the call of a draft model"),
    # The start of an engine, as it is marked while it is recorded.
    *_rows(_GPU_WORKER, "init_device determine_available_memory initialize_from_config",
        "wrapped: phases of the start"),
    *_rows(_V1, "profile_cudagraph_memory", "wrapped: a part of the start"),
    *_rows(_V2, "profile_cudagraph_memory", "wrapped: a part of the start"),
    *_rows("vllm.compilation.counter:CompilationCounter.", "num_compiled_artifacts_loaded "
        "num_aot_artifacts_loaded num_aot_compiles "
        "num_inductor_compiles", "what came from the cache of torch.compile"),
    # What is scheduled.
    *_rows(_SCHEDULER, "schedule update_from_output get_num_unfinished_requests", "wrapped"),
    *_rows(_SCHEDULER, "add_request", "wrapped: a request comes"),
    *_rows(_SCHEDULER, "requests running waiting kv_cache_manager scheduler_config block_size "
        "max_num_scheduled_tokens max_num_running_reqs kv_cache_config "
        "num_sampled_tokens_per_step", "the way of requests, and how full the scheduler is"),
    *_rows(_SCHEDULER, "dynamic_sd_lookup", "how many tokens to draft at each batch size"),
    *_rows(_SCHEDULER, "skipped_waiting kv_holding_waiting", "more queues, of some versions",
        optional=True),
    *_rows("vllm.v1.core.kv_cache_manager:KVCacheManager.",
        "block_pool enable_caching watermark_blocks", "free blocks of the KV cache"),
    *_rows("vllm.v1.core.block_pool:BlockPool.", "get_num_free_blocks num_gpu_blocks",
        "free blocks of the KV cache"),
    *_rows(_REQUEST, "request_id status arrival_time num_prompt_tokens num_output_tokens "
        "num_tokens num_computed_tokens num_preemptions is_finished is_prefill_chunk "
        "num_output_placeholders", "the way of a request"),
    *_rows(_REQUEST, "num_stale_output_tokens drop_stale_output",
        "output that is thrown away, from 0.27 on", optional=True),
    *_rows("vllm.v1.engine:EngineCoreOutput.", "request_id new_token_ids finish_reason",
        "what a batch brought a request"),
    *_rows("vllm.v1.outputs:ModelRunnerOutput.", "sampled_token_ids req_id_to_index",
        "accepted drafts"),
    *_rows("vllm.v1.engine.core:EngineCore.", "shutdown model_executor", "the engine's end"),
    *_rows(_OUTPUT, "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens "
        "total_num_scheduled_tokens scheduled_spec_decode_tokens preempted_req_ids",
        "the batch of a step"),
    *_rows(_OUTPUT, "finished_req_ids num_invalid_spec_tokens",
        "requests that ended; drafts that a grammar ruled out"),
    *_rows(_CACHED, "req_ids num_computed_tokens is_context_phase", "the batch of a step"),
    *_rows(_CACHED, "resumed_req_ids", "requests that go on after a preemption"),
    *_rows(_NEW, "req_id num_computed_tokens prompt_token_ids prefill_token_ids",
        "the batch of a step"),
    # Configuration.
    *_rows(_CONFIG, "model_config cache_config parallel_config scheduler_config compilation_config "
        "load_config speculative_config additional_config quant_config", "read"),
    *_rows("vllm.config.model:ModelConfig.", "hf_config hf_text_config quantization dtype", "read"),
    *_rows(_PARALLEL, "data_parallel_size pipeline_parallel_size tensor_parallel_size nnodes "
        "distributed_executor_backend", "read"),
    *_rows(_COMPILATION, "mode cudagraph_mode cudagraph_capture_sizes static_forward_context "
        "pass_config", "read"),
    *_rows("vllm.config.scheduler:SchedulerConfig.",
        "async_scheduling max_num_batched_tokens max_num_seqs", "read"),
    *_rows("vllm.config.speculative:SpeculativeConfig.", "num_speculative_tokens method", "read"),
    *_rows("vllm.config.profiler:ProfilerConfig.", "profiler", "who else holds the GPU's tracer"),
    # Layers: what runs as Python inside a compiled model.
    *_rows("vllm.compilation.wrapper:", "TorchCompileWithNoGuardsWrapper",
        "the base class of compiled modules"),
    *_rows("vllm.compilation.decorators:", "support_torch_compile",
        "gives modules do_not_compile"),
    *_rows(_MOE, "_forward_impl", "what the opaque op moe_forward calls"),
    *_rows(_MOE, "select_experts forward_modular forward_monolithic routed_experts router gate",
        "ranges of experts"),
    *_rows("vllm.v1.attention.*:*.", "forward forward_mha forward_mqa do_kv_cache_update",
        "ranges of attention"),
    *_rows("vllm.model_executor.layers.mamba.*:*.",
        "forward_impl conv_ssm_forward _forward_core _full_forward conv1d",
        "ranges of state space layers"),
    # Layers: what is read of their weights.
    *_rows(_LINEAR, "quant_method input_size params_dtype skip_bias_add", "dense layers"),
    *_rows(_LAYERS, "logical_widths weight_block_size input_size_per_partition scheme",
        "quantized layers"),
    *_rows(_MOE, "moe_config activation _expert_map _ensure_moe_quant_config_init "
        "moe_quant_config topk_indices_dtype use_grouped_topk", "experts"),
    *_rows("vllm.model_executor.layers.fused_moe.config:FusedMoEConfig.",
        "num_experts experts_per_token hidden_dim hidden_dim_unpadded tp_size dp_size pcp_size "
        "in_dtype router_logits_dtype intermediate_size_per_partition_unpadded", "experts"),
    *_rows("vllm.model_executor.layers.fused_moe.config:FusedMoEConfig.", "skip_final_all_reduce",
        "whether a model adds its experts up itself, of some versions", optional=True),
    *_rows(_MOE, "routed_scaling_factor", "what the sum of chosen experts is multiplied with"),
    *_rows("vllm.model_executor.layers.fused_moe.router.gate_linear:GateLinear.", "out_dtype",
        "whether the choice goes by logits in float32"),
    *_rows("vllm.model_executor.models.*:*.", "shared_experts shared_expert expert_gate",
        "experts that every token takes"),
    *_rows("vllm.model_executor.layers.linear:RowParallelLinear.", "tp_size reduce_results",
        "whether a matrix adds up what its ranks have"),
    *_rows("vllm.distributed.parallel_state:GroupCoordinator.",
        "world_size cpu_group all_reduce", "the ranks that share matrices"),
    *_rows("vllm.config.compilation:PassConfig.", "enable_sp",
        "whether the compiler spreads tokens over ranks, to 0.31", optional=True),
    *_rows("vllm.model_executor.layers.layernorm:RMSNorm.",
        "variance_epsilon variance_size_override forward_cuda forward_native _forward_method",
        "norms"),
    *_rows(_ATTENTION, "kv_cache kv_cache_dtype impl", "caches"),
    *_rows(_ATTENTION, "calculate_kv_scales", "scales of the cache, to 0.27", optional=True),
)  # fmt: skip

OPTIONAL: Mapping[str, str] = {
    "vllm._custom_ops:dsv3_router_gemm": "a peer to 0.28",
    "vllm.model_executor.kernels.linear.cute_dsl.ll_bf16:is_available": "a peer from 0.26 on",
    "vllm.model_executor.kernels.linear.cute_dsl.ll_bf16:ll_bf16_gemm": "a peer from 0.26 on",
}
"""Imported names that a version may lack, and why that harms nothing."""

EITHER: Mapping[str, str] = {
    "vllm.entrypoints.openai.cli_args:": "the parser of vllm serve",
    "vllm.entrypoints.launchers.cli_args:": "the parser of vllm serve",
    "vllm.entrypoints.common.cli_args:": "the parser of vllm serve",
}
"""Imported names one of which each version must have, and what they are together."""


_ANYWHERE = "vllm.*:*."
"""Before the methods in `profiler.vllm_names.CALLS`: each is used where a layer has it."""


def may_be_missing(name: str) -> bool:
    """Whether a version may lack a name."""
    row = next((row for row in REACHED if row.name == name), None)
    return name in OPTIONAL or name.startswith(_ANYWHERE) or (row is not None and row.optional)


def missing(presence: Mapping[str, bool]) -> tuple[str, ...]:
    """The names that a version must have and has not; of a group all, where it has none of them.

    `presence` says of each name whether the version has it.
    """
    either = dict(EITHER) | {row.name: row.either for row in REACHED if row.either}
    having = {either[name] for name, has in presence.items() if has and name in either}
    return tuple(
        name
        for name, has in presence.items()
        if not has and not may_be_missing(name) and either.get(name) not in having
    )
