"""Which stage of a step a Python function of vLLM works on. The leaf's side of a stack comes first.

Names were read from the sources of 0.32; py-spy writes a method with its class from Python 3.11 on,
and without it before that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

STAGES: dict[str, str] = {
    "schedule": "choosing the batch",
    "prepare": "preparing the batch's inputs",
    "launch": "launching the model's kernels",
    "sample": "choosing tokens",
    "output": "taking in and handing out tokens",
    "messages": "sending between processes",
    "gpu": "waiting for the GPU",
    "worker": "waiting for the workers",
    "scheduler": "waiting for the scheduler",
    "requests": "waiting for requests",
    "profiler": "recording itself",
    "other": "code that no rule knows",
}
"""Stages in the order of a step, and what the host does in each."""

WAITS = frozenset({"worker", "scheduler"})
"""Where a process waits for another: what that one does is what holds the GPU back."""


@dataclass(frozen=True)
class StageRule:
    """Functions of some files that work on one stage."""

    stage: str
    file: str  # pattern that is found in the file's path from its package on
    function: str  # pattern that the whole name matches, its class left out
    examples: tuple[str, ...]  # frames, as `stacks.stack` has them; each is a test


_RUNNER = r"vllm/v1/worker/(?:gpu/)?\w*(?:model_runner|worker)\w*\.py|vllm/v1/worker/gpu/\w+\.py"
_SHM = r"vllm/distributed/device_communicators/shm_broadcast\.py$"
_AROUND = r"_around\w*|around\w*|wrapper|call|run|__call__|\w*forward|marked\w*"
"""Functions of this package that vLLM's own run beneath."""

RULES: tuple[StageRule, ...] = (
    StageRule("profiler", r"^spark_prof/", rf"(?!(?:{_AROUND})$).*",
        ("spark_prof/profiler/worker.py:WorkerRecording._flush",
         "spark_prof/profiler/worker.py:WorkerRecording._begin_step",
         "spark_prof/traces/chunks.py:write_array")),
    StageRule("requests", r"vllm/v1/engine/core\.py$", r"_process_input_queue",
        ("vllm/v1/engine/core.py:EngineCoreProc._process_input_queue",)),
    StageRule("scheduler", _SHM, r"(?:dequeue|acquire_read)",
        ("vllm/distributed/device_communicators/shm_broadcast.py:MessageQueue.dequeue",)),
    StageRule("worker", r"vllm/v1/executor/", r"(?:result|get_response|_?wait\w*)",
        ("vllm/v1/executor/multiproc_executor.py:FutureWrapper.result",
         "vllm/v1/executor/multiproc_executor.py:FutureWrapper._wait_for_response")),
    StageRule("messages", rf"vllm/v1/executor/|vllm/v1/serial_utils\.py|{_SHM}",
        r"(?:enqueue\w*|acquire_write|encode\w*|decode\w*|handle_output|serialize\w*)",
        ("vllm/distributed/device_communicators/shm_broadcast.py:MessageQueue.enqueue",
         "vllm/v1/serial_utils.py:MsgpackEncoder.encode")),
    StageRule("gpu", r"torch/(?:cuda|accelerator)/|vllm/v1/worker/|vllm/v1/outputs\.py",
        r"(?:synchronize|_to_list|_sync_device|synchronize_input_prep|get_output)",
        ("torch/cuda/streams.py:Event.synchronize", "torch/cuda/__init__.py:synchronize",
         "vllm/v1/worker/gpu_model_runner.py:GPUModelRunner._to_list",
         "vllm/v1/worker/gpu/async_utils.py:AsyncOutput.get_output")),
    StageRule("output", r"vllm/v1/core/sched/",
        r"(?:update_from_output|_update_request_with_output|make_stats|make_spec_decoding_stats"
        r"|_free_request|_handle_stopped_request|update_draft_token_ids\w*)",
        ("vllm/v1/core/sched/scheduler.py:Scheduler.update_from_output",
         "vllm/v1/core/sched/async_scheduler.py:AsyncScheduler._update_request_with_output")),
    StageRule("output", r"vllm/v1/engine/(?:output_processor|detokenizer|logprobs|core)\.py$",
        r"(?:process_outputs|update|detokenize|process_output_sockets|post_step|_attach_\w+)",
        ("vllm/v1/engine/output_processor.py:OutputProcessor.process_outputs",
         "vllm/v1/engine/core.py:EngineCoreProc.process_output_sockets")),
    StageRule("schedule", r"vllm/v1/(?:core|structured_output)/", r".*",
        ("vllm/v1/core/sched/scheduler.py:Scheduler.schedule",
         "vllm/v1/core/kv_cache_manager.py:KVCacheManager.allocate_slots",
         "vllm/v1/core/block_pool.py:get_new_blocks",
         "vllm/v1/structured_output/__init__.py:StructuredOutputManager.grammar_bitmask")),
    StageRule("sample", r"vllm/v1/(?:worker/gpu/)?(?:sample|spec_decode)/", r".*",
        ("vllm/v1/sample/sampler.py:Sampler.forward",
         "vllm/v1/worker/gpu/sample/sampler.py:Sampler.__call__",
         "vllm/v1/spec_decode/eagle.py:EagleProposer.propose")),
    StageRule("sample", _RUNNER,
        r"(?:_?sample\w*|_bookkeeping_sync|propose_draft_token_ids|postprocess\w*"
        r"|_update_states_after_model_execute|_get_prompt_logprobs_dict)",
        ("vllm/v1/worker/gpu_model_runner.py:GPUModelRunner._sample",
         "vllm/v1/worker/gpu/model_runner.py:GPUModelRunner.postprocess_sampled",
         "vllm/v1/worker/gpu_model_runner.py:_bookkeeping_sync")),
    StageRule("prepare", r"vllm/v1/attention/|vllm/v1/worker/\w*block_table\.py|"
        r"vllm/v1/worker/gpu/(?:block_table|input_batch|buffer_utils|attn_utils|states)\.py|"
        r"vllm/v1/worker/gpu_input_batch\.py", r"(?!forward$).*",
        ("vllm/v1/attention/backends/flash_attn.py:FlashAttentionMetadataBuilder.build",
         "vllm/v1/worker/gpu_input_batch.py:InputBatch.add_request",
         "vllm/v1/worker/block_table.py:BlockTable.commit_block_table")),
    StageRule("prepare", _RUNNER,
        r"(?:_?prepare\w*|_update_states|_preprocess|_build_att\w+|_may_reorder_batch"
        r"|_get_slot_mappings?|_calc_\w+|_determine_batch_execution_and_padding|add_requests"
        r"|update_requests|finish_requests|free_states|gather_batch_req_state|_zero_block_ids)",
        ("vllm/v1/worker/gpu_model_runner.py:GPUModelRunner._prepare_inputs",
         "vllm/v1/worker/gpu/model_runner.py:GPUModelRunner.prepare_inputs",
         "vllm/v1/worker/gpu_model_runner.py:_update_states")),
    StageRule("launch", r"vllm/(?:compilation|model_executor|forward_context|_custom_ops|lora)|"
        r"vllm/v1/attention/|vllm/distributed/(?:parallel_state|communication_op)\.py|"
        r"^torch/(?:cuda/graphs|nn/modules/module|_inductor|_dynamo)", r".*",
        ("vllm/model_executor/models/qwen3_moe.py:Qwen3MoeModel.forward",
         "vllm/compilation/cuda_graph.py:CUDAGraphWrapper.__call__",
         "vllm/v1/attention/backends/flash_attn.py:FlashAttentionImpl.forward",
         "torch/cuda/graphs.py:CUDAGraph.replay",
         "torch/nn/modules/module.py:Module._call_impl")),
    StageRule("launch", r"vllm/v1/worker/", r"(?:_model_forward|run_fullgraph|run_pw_graph)",
        ("vllm/v1/worker/gpu_model_runner.py:GPUModelRunner._model_forward",
         "vllm/v1/worker/gpu/cudagraph_utils.py:ModelCudaGraphManager.run_fullgraph")),
    StageRule("prepare", _RUNNER, r"execute_model",
        ("vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.execute_model",)),
    StageRule("output", r"vllm/v1/engine/core\.py$",
        r"(?:step|step_with_batch_queue|_process_engine_step)",
        ("vllm/v1/engine/core.py:EngineCore.step",)),
)  # fmt: skip
"""The first that matches a frame counts; the first frame from the leaf on that any matches."""

_COMPILED = tuple((rule.stage, re.compile(rule.file), re.compile(rule.function)) for rule in RULES)


def stage_of_frame(file: str, function: str) -> str | None:
    """The stage of one frame; None where no rule knows it.

    >>> stage_of_frame("vllm/v1/core/sched/scheduler.py", "Scheduler.schedule")
    'schedule'
    """
    name = function.rpartition(".")[2]
    for stage, in_file, of_function in _COMPILED:
        if in_file.search(file) and of_function.fullmatch(name):
            return stage
    return None


def stage_of(frames: Sequence[tuple[str, str]]) -> str:
    """The stage of a stack, whose root's frame comes first; `other` where no frame tells it."""
    return next(filter(None, (stage_of_frame(*frame) for frame in reversed(frames))), "other")


ADVICE: dict[str, str] = {
    "schedule": "Let the scheduler work while the GPU does (--async-scheduling) where it does not; "
    "structured output, long queues and prefix caching make its work longer.",
    "prepare": "It grows with the requests of a batch: allow fewer (--max-num-seqs), or try model "
    "runner V2 (VLLM_USE_V2_MODEL_RUNNER=1), which prepares on the GPU.",
    "launch": "Let CUDA graphs launch the step at once: no --enforce-eager, capture sizes that "
    "hold the batch (--cudagraph-capture-sizes).",
    "sample": "Ask for no logprobs, penalties, logits processors or structured output that nobody "
    "needs.",
    "output": "Stream less often (--stream-interval), and give the engine's process cores of its "
    "own.",
    "messages": "Use one process instead of several where the model fits one GPU; give the engine "
    "cores of its own.",
}
"""What helps where a stage holds the GPU back; another one has none."""
