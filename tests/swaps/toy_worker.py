"""A vLLM worker and its scheduler as far as the clock and the tap look into them.

The toy model's logits depend on the prompt and the position alone, so that the same token has the
same logits however the requests are scheduled.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from tests.profiler.fakes import Cached

VOCABULARY = 50


class ToyModel(torch.nn.Module):
    """Logits for hidden states [R, 2] of prompt and position."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.weight = torch.randn(
            4096, VOCABULARY, generator=torch.Generator().manual_seed(seed)
        ).to(dtype)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight[(hidden[:, 0] * 131 + hidden[:, 1] * 7) % 4096]


@dataclass
class Request:
    """A request of the toy scheduler."""

    name: str
    prompt: list[int]
    wanted: int
    computed: int = 0
    answer: list[int] = field(default_factory=list)
    known: bool = False

    @property
    def tokens(self) -> int:
        return len(self.prompt) + len(self.answer)


class ToyRunner:
    """A model runner of the first kind: logits in `execute_model`, rows in the batch's order."""

    def __init__(self, model: ToyModel) -> None:
        self.model = model
        self.input_batch = SimpleNamespace(req_ids=[])
        self.execute_model_state: Any = None
        self.prompts: dict[str, int] = {}

    def get_model(self) -> ToyModel:
        return self.model

    def hidden(self, output: Any, order: list[str]) -> torch.Tensor:
        for new in output.scheduled_new_reqs:
            self.prompts[new.req_id] = sum(new.prompt_token_ids)
        cached = output.scheduled_cached_reqs
        ends = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        ends |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        rows = [
            [self.prompts[name], ends[name] + output.num_scheduled_tokens[name]] for name in order
        ]
        return torch.tensor(rows)

    def execute_model(self, output: Any, order: list[str]) -> None:
        self.input_batch.req_ids = order
        logits = self.model.compute_logits(self.hidden(output, order))
        self.execute_model_state = (output, logits)

    def sample_tokens(self) -> torch.Tensor:
        (_, logits), self.execute_model_state = self.execute_model_state, None
        self.model.compute_logits(torch.ones(3, 2, dtype=torch.int64))  # of prompts
        return logits.argmax(dim=1)


class SecondToyRunner(ToyRunner):
    """A model runner of the second kind: logits when sampling, the order in the step's state."""

    def __init__(self, model: ToyModel) -> None:
        super().__init__(model)
        del self.input_batch

    def execute_model(self, output: Any, order: list[str]) -> None:
        batch = SimpleNamespace(req_ids=order)
        self.execute_model_state = SimpleNamespace(
            input_batch=batch, hidden=self.hidden(output, order)
        )

    def sample_tokens(self) -> torch.Tensor:
        state, self.execute_model_state = self.execute_model_state, None
        return self.model.compute_logits(state.hidden).argmax(dim=1)


class ToyWorker:
    """A worker; the rows are in an order of its own."""

    def __init__(self, runner: ToyRunner, seed: int = 0, **config: Any) -> None:
        self.model_runner = runner
        self.device = torch.device("cpu")
        self.vllm_config = SimpleNamespace(**config)
        self._random = random.Random(seed)
        self.order: list[str] = []

    def execute_model(self, output: Any) -> None:
        self.order = list(output.num_scheduled_tokens)
        self._random.shuffle(self.order)
        self.model_runner.execute_model(output, self.order)

    def sample_tokens(self, grammar_output: Any) -> dict[str, int]:
        tokens = self.model_runner.sample_tokens().tolist()
        return dict(zip(self.order, tokens, strict=True))


def generate(
    worker: ToyWorker, prompts: list[list[int]], tokens: int, seed: int, name: str = ""
) -> list[list[int]]:
    """Answers the prompts, in batches and parts of prompts that the seed chooses.

    Now and then a request is preempted, and comes again as a new one.
    """
    chance = random.Random(seed)
    requests = [Request(f"{name}{i}", prompt, tokens) for i, prompt in enumerate(prompts)]
    while waiting := [r for r in requests if len(r.answer) < r.wanted]:
        first = next((r for r in waiting if not r.known), None)
        chosen = [r for r in waiting if (r.known or r is first) and chance.random() < 0.8]
        for request in chosen:
            if request.known and chance.random() < 0.05:
                request.known, request.computed = False, 0
        if chosen:
            _step(worker, chosen, chance)
    return [request.answer for request in requests]


def _step(worker: ToyWorker, chosen: list[Request], chance: random.Random) -> None:
    counts = {r.name: chance.randint(1, r.tokens - r.computed) for r in chosen}
    new = [
        SimpleNamespace(
            req_id=r.name, num_computed_tokens=r.computed, prompt_token_ids=list(r.prompt)
        )
        for r in chosen
        if not r.known
    ]
    output = SimpleNamespace(
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_new_reqs=new,
        scheduled_cached_reqs=Cached({r.name: r.computed for r in chosen if r.known}),
    )
    worker.execute_model(output)
    sampled = worker.sample_tokens(None)
    for request in chosen:
        request.known = True
        request.computed += counts[request.name]
        if request.computed == request.tokens:
            request.answer.append(sampled[request.name])
