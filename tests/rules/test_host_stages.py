"""The stage of each example, and of whole stacks."""

from __future__ import annotations

from spark_prof.rules.host_stages import ADVICE, RULES, STAGES, WAITS, stage_of, stage_of_frame
from spark_prof.traces.readers.py_spy import frames_of


def test_every_example_is_of_its_stage_by_its_own_rule() -> None:
    wrong = []
    for rule in RULES:
        for example in rule.examples:
            ((file, function),) = frames_of(example)
            others = [r for r in RULES if r is not rule and example in r.examples]
            if stage_of_frame(file, function) != rule.stage or others:
                wrong.append((example, rule.stage, stage_of_frame(file, function)))
    assert wrong == []


def test_stages_are_those_of_the_table() -> None:
    assert {rule.stage for rule in RULES} | {"other"} == set(STAGES)
    assert ADVICE.keys() | WAITS <= STAGES.keys()


def test_the_innermost_known_frame_tells_the_stage() -> None:
    rows = {
        "a.py:<module>\nvllm/v1/engine/core.py:EngineCore.step\n"
        "vllm/v1/core/sched/scheduler.py:Scheduler.schedule\nmine.py:slow": "schedule",
        "vllm/v1/engine/core.py:EngineCore.step\n"
        "vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.execute_model\n"
        "spark_prof/profiler/ranges.py:Marker._marked.<locals>.marked\n"
        "vllm/model_executor/models/llama.py:LlamaModel.forward\ntorch/_ops.py:call": "launch",
        "vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.sample_tokens\n"
        "torch/cuda/streams.py:Event.synchronize": "gpu",
        "vllm/v1/worker/gpu_worker.py:Worker.execute_model\n"
        "spark_prof/profiler/worker.py:WorkerRecording._around_execute\n"
        "spark_prof/profiler/fence.py:Fence.call\n"
        "spark_prof/profiler/worker.py:WorkerRecording._flush": "profiler",
        "a.py:<module>\nb.py:main": "other",
    }
    assert {stack: stage_of(frames_of(stack)) for stack in rows} == rows
