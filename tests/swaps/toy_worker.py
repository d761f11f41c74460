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

    def sample_tokens(self, grammar_output: Any) -> list[int]:
        """A token for each row."""
        return self.model_runner.sample_tokens().tolist()


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
    sampled = dict(zip(worker.order, worker.sample_tokens(None), strict=True))
    for request in chosen:
        request.known = True
        request.computed += counts[request.name]
        if request.computed == request.tokens:
            request.answer.append(sampled[request.name])


class DraftingRunner(ToyRunner):
    """The first kind, with drafts: a row for a request's last token and for each draft of it."""

    def rows(self, output: Any, order: list[str]) -> torch.Tensor:
        """Of a step that decodes, whose requests are `ahead` as far as the scheduler has them."""
        for new in output.scheduled_new_reqs:
            self.prompts[new.req_id] = sum(new.prompt_token_ids)
        drafts = output.scheduled_spec_decode_tokens
        inputs, rows = [], []
        for name in order:
            tokens = output.tokens[name]
            width = 1 + len(drafts.get(name, ()))
            inputs += tokens[-output.num_scheduled_tokens[name] :]
            rows += [[self.prompts[name], len(tokens) - at] for at in reversed(range(width))]
        self.input_ids = SimpleNamespace(gpu=torch.tensor(inputs))
        ends = torch.tensor([output.num_scheduled_tokens[name] for name in order]).cumsum(0)
        widths = [1 + len(drafts.get(name, ())) for name in order]
        self.ends = [0, *torch.tensor(widths).cumsum(0).tolist()]
        self.indices = [
            at
            for end, width in zip(ends.tolist(), widths, strict=True)
            for at in range(end - width, end)
        ]
        return torch.tensor(rows)

    def execute_model(self, output: Any, order: list[str]) -> None:
        self.input_batch.req_ids = order
        logits = self.model.compute_logits(self.rows(output, order))
        self.execute_model_state = (output, logits)

    def sample_tokens(self) -> torch.Tensor:
        (_, logits), self.execute_model_state = self.execute_model_state, None
        return logits.argmax(dim=1)


class SecondDraftingRunner(DraftingRunner):
    """The second kind, with drafts."""

    def __init__(self, model: ToyModel) -> None:
        super().__init__(model)
        del self.input_batch

    def execute_model(self, output: Any, order: list[str]) -> None:
        hidden = self.rows(output, order)
        batch = SimpleNamespace(
            req_ids=order, input_ids=self.input_ids.gpu, logits_indices=torch.tensor(self.indices),
            cu_num_logits=torch.tensor(self.ends),
        )  # fmt: skip
        del self.input_ids
        self.execute_model_state = SimpleNamespace(input_batch=batch, hidden=hidden)

    def sample_tokens(self) -> torch.Tensor:
        state, self.execute_model_state = self.execute_model_state, None
        return self.model.compute_logits(state.hidden).argmax(dim=1)


def generate_drafted(
    worker: ToyWorker,
    prompts: list[list[int]],
    guesses: list[list[int]],  # what the drafter drafts, a token each of an answer
    seed: int,
    *,
    ahead: bool,  # the scheduler counts drafts before it knows which were accepted
) -> list[list[int]]:
    """Answers of the length of the guesses: drafts are accepted as greedy sampling does."""
    chance = random.Random(seed)
    runner = worker.model_runner
    runner.vllm_config = SimpleNamespace(speculative_config=object())  # type: ignore[attr-defined]
    answers: list[list[int]] = [[] for _ in prompts]
    known: set[int] = set()
    late = 2 if ahead else 0  # steps behind the end, whose tokens are dropped
    while any(len(a) < len(g) for a, g in zip(answers, guesses, strict=True)) or late:
        late -= all(len(a) >= len(g) for a, g in zip(answers, guesses, strict=True))
        chosen = [at for at in range(len(prompts)) if at <= len(known) and chance.random() < 0.8]
        if not ahead:
            chosen = [at for at in chosen if len(answers[at]) < len(guesses[at])]
        if not chosen:
            continue
        output = SimpleNamespace(
            tokens={}, num_scheduled_tokens={}, scheduled_spec_decode_tokens={},
            scheduled_new_reqs=[], scheduled_cached_reqs=None,
        )  # fmt: skip
        computed = {}
        for at in chosen:
            name, answer = f"d{at}", answers[at]
            drafts = guesses[at][len(answer) :][: chance.randint(0, 3)] if answer else []
            output.tokens[name] = [*prompts[at], *answer, *drafts]
            first = len(prompts[at]) + len(answer) - 1 if at in known else 0
            output.num_scheduled_tokens[name] = len(output.tokens[name]) - first
            if drafts:
                output.scheduled_spec_decode_tokens[name] = [-1] * len(drafts)
            if at in known:
                computed[name] = first + (chance.randint(0, 3) if ahead else 0)
            else:
                output.scheduled_new_reqs.append(
                    SimpleNamespace(
                        req_id=name, num_computed_tokens=0, prompt_token_ids=list(prompts[at])
                    )
                )
            known.add(at)
        output.scheduled_cached_reqs = Cached(computed)
        worker.execute_model(output)
        sampled = worker.sample_tokens(None)
        for name in worker.order:
            at = int(name[1:])
            width = 1 + len(output.scheduled_spec_decode_tokens.get(name, ()))
            mine, sampled = sampled[:width], sampled[width:]
            drafts = output.tokens[name][-(width - 1) :] if width > 1 else []
            for place, token in enumerate(mine):
                answers[at].append(token)
                if place == len(drafts) or drafts[place] != token:
                    break
    return [a[: len(g)] for a, g in zip(answers, guesses, strict=True)]
