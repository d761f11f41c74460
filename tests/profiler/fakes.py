"""What spark-prof reads of vLLM's objects, and nothing else of them.

It needs only the standard library, because the fake vLLM of test_record.py runs it too.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def torch() -> Any:
    """What is read of torch where there is no GPU: the real one takes a second to import."""

    class CUDAGraph:
        def capture_begin(self) -> None: ...

        def capture_end(self) -> None: ...

    return SimpleNamespace(
        __version__="2.11.0+cpu",
        version=SimpleNamespace(cuda=None),
        cuda=SimpleNamespace(is_available=lambda: False, CUDAGraph=CUDAGraph),
        nn=SimpleNamespace(Module=type("Module", (), {})),
        Tensor=type("Tensor", (), {}),
        Size=type("Size", (tuple,), {}),
    )


class Cached:
    """Requests that ran before; those named in `context` have produced no token yet."""

    def __init__(self, computed: dict[str, int], context: tuple[str, ...] = ()) -> None:
        self.req_ids = list(computed)
        self.num_computed_tokens = list(computed.values())
        self._context = context

    def is_context_phase(self, request: str) -> bool:
        return request in self._context


def batch(
    scheduled: dict[str, int],
    new: dict[str, int] | None = None,
    cached: dict[str, int] | None = None,
    context: tuple[str, ...] = (),
    drafts: dict[str, int] | None = None,
    preempted: tuple[str, ...] = (),
    known: dict[str, tuple[int, int]] | None = None,
) -> Any:
    """A SchedulerOutput: tokens by request; the computed ones of new and of cached requests.

    `known` are the tokens of the prompt and all tokens of requests that model runner V2 is handed.
    """
    prompts = {
        name: ([7] * lengths[0], [7] * lengths[1]) for name, lengths in (known or {}).items()
    }
    return SimpleNamespace(
        scheduled_spec_decode_tokens={name: [-1] * n for name, n in (drafts or {}).items()},
        preempted_req_ids=set(preempted),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_new_reqs=[
            SimpleNamespace(
                req_id=name,
                num_computed_tokens=count,
                prompt_token_ids=prompts.get(name, (None, None))[0],
                prefill_token_ids=prompts.get(name, (None, None))[1],
            )
            for name, count in (new or {}).items()
        ],
        scheduled_cached_reqs=Cached(cached or {}, context),
    )


def prefill(number: int = 0) -> Any:
    """A new request with a prompt of five tokens."""
    return batch({f"r{number}": 5}, new={f"r{number}": 0})


def decode(position: int) -> Any:
    """One request that generates its next token."""
    return batch({"r0": 1}, cached={"r0": position})


class Module:
    """A torch.nn.Module as far as spark-prof looks into one."""

    def __init__(self, **children: Module) -> None:
        self.children = children
        for name, child in children.items():
            object.__setattr__(self, name, child)

    def forward(self, value: Any) -> Any:
        for child in self.children.values():
            value = child.forward(value)
        return value

    def named_modules(self, prefix: str = "", remove_duplicate: bool = True) -> Any:
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self, recurse: bool = True) -> Any:
        return iter(())

    named_buffers = named_parameters


class AddOne(Module):
    """A module whose answer shows how often it ran."""

    def forward(self, value: Any) -> Any:
        return value + 1


def model() -> Module:
    """Two layers, each with qkv_proj and mlp; it adds 4."""
    layers = {
        str(number): Module(self_attn=Module(qkv_proj=AddOne()), mlp=AddOne())
        for number in range(2)
    }
    return Module(model=Module(layers=Module(**layers)))


def config() -> Any:
    """A VllmConfig."""
    return SimpleNamespace(
        model_config=SimpleNamespace(model="tiny", hf_config=None),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, world_size=1,
            data_parallel_rank=0,
        ),
        compilation_config=SimpleNamespace(mode=None, cudagraph_mode=None),
        scheduler_config=SimpleNamespace(async_scheduling=False),
    )  # fmt: skip


class Worker:
    """A vLLM worker that answers with a number; in two parts, as with asynchronous sampling."""

    def __init__(self, *, two_parts: bool = True) -> None:
        self.rank = 0
        self.vllm_config = config()
        self.model_runner = SimpleNamespace(model=model(), sampler=None)
        self.two_parts = two_parts
        self.answer = 0
        self.ended = False

    def compile_or_warm_up_model(self) -> str:
        self.execute_model(prefill())
        return "warm"

    def execute_model(self, scheduler_output: Any) -> int | None:
        self.answer = self.model_runner.model.forward(scheduler_output.total_num_scheduled_tokens)
        return None if self.two_parts else self.answer

    def sample_tokens(self, grammar: Any) -> int:
        return self.answer

    def shutdown(self) -> None:
        self.ended = True


def run(worker: Any, output: Any) -> int:
    """One step, as vLLM's engine core runs it."""
    answer = worker.execute_model(output)
    return int(worker.sample_tokens(None) if answer is None else answer)
