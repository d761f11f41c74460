"""The process that holds the engine: builds it as vLLM's own commands do, and does what it is told.

It runs in the Python that has vLLM, and talks over a Unix socket, because vLLM logs to stdout.

usage: python -m spark_prof.ab.driver SOCKET
"""

from __future__ import annotations

import random
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

import msgspec

from spark_prof.ab.channel import Channel
from spark_prof.ab.messages import (
    Answer,
    Batch,
    Check,
    Compare,
    Compared,
    DescribeSwaps,
    Done,
    Facts,
    Failed,
    Generate,
    Request,
    Shutdown,
    Start,
    Swaps,
    Switch,
    Times,
)
from spark_prof.ab.vllm_arguments import engine_arguments
from spark_prof.ab.vllm_facts import engine_facts
from spark_prof.errors import CommandError

_SEED = 20240607


def main(path: str) -> int:
    """Answers the requests that come over the socket until one says to end."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    channel = Channel(connection)
    session = _Session()
    try:
        while True:
            line = channel.line(None)
            request = msgspec.json.decode(line or b"", type=Request)
            channel.send(_answered(session, request))
            if isinstance(request, Shutdown):
                return 0
    except (EOFError, OSError):
        return 1  # whoever asked is gone


def _answered(session: _Session, request: Request) -> Answer:
    try:
        return session.answer(request)
    except SystemExit as error:  # vLLM's parser has said on stderr what it does not take
        return Failed(f"vLLM does not take these arguments (exit code {error.code})")
    except CommandError as error:
        return Failed(str(error))
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())
        return Failed(f"{type(error).__name__}: {text}" if text else type(error).__name__)


class _Session:
    """The engine of this process, once it has been asked for."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._vocabulary = 0

    def answer(self, request: Request) -> Answer:
        match request:
            case Start():
                return self._start(request)
            case Check():
                engine_arguments(request.form, request.arguments)
            case DescribeSwaps():
                return Swaps(self._rpc("spark_prof_swaps"))
            case Switch():
                self._rpc("spark_prof_side", request.side)
            case Generate():
                return self._generate(request)
            case Compare():
                return self._compare(request)
            case Shutdown():
                with suppress(Exception):
                    self._llm.llm_engine.engine_core.shutdown()
        return Done()

    def _start(self, request: Start) -> Facts:
        begin = time.monotonic()
        arguments = engine_arguments(request.form, request.arguments)
        from vllm import LLM

        self._llm = LLM(**arguments)
        config = self._llm.llm_engine.vllm_config
        self._vocabulary = int(config.model_config.get_vocab_size())
        return engine_facts(config, self._vocabulary, time.monotonic() - begin)

    def _generate(self, request: Generate) -> Times:
        begin = time.monotonic()
        if request.plan:
            requests = 1 if request.batch.alone else request.batch.requests
            self._rpc("spark_prof_plan", list(request.plan), requests, request.prefill)
        self._run(request.batch)
        rows = self._rpc("spark_prof_times")[0] if request.plan else []
        return Times(rows, time.monotonic() - begin)

    def _compare(self, request: Compare) -> Answer:
        self._rpc("spark_prof_side", request.side)
        mode = "record" if request.keep else "compare"
        self._rpc("spark_prof_tap", mode, request.path, request.batch.requests)
        try:
            if request.disturbed:
                self._rpc("spark_prof_disturb")
            try:
                self._run(request.batch)
            finally:
                if request.disturbed:
                    self._rpc("spark_prof_disturb")  # once more undoes it
            rows = [] if request.keep else self._rpc("spark_prof_compared")[0]
        finally:
            self._rpc("spark_prof_tap", "off", "", 0)
        return Done() if request.keep else Compared(rows)

    def _run(self, batch: Batch) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=batch.tokens, ignore_eos=True, detokenize=False, temperature=0.0
        )
        prompts = [{"prompt_token_ids": ids} for ids in prompts_of(batch, self._vocabulary)]
        groups = [[prompt] for prompt in prompts] if batch.alone else [prompts]
        for group in groups:
            outputs = self._llm.generate(group, sampling, use_tqdm=False)
            short = [o for o in outputs if len(o.outputs[0].token_ids) != batch.tokens]
            if short or len(outputs) != len(group):
                raise RuntimeError(
                    f"{len(short)} of {len(group)} requests did not get {batch.tokens} tokens"
                )

    def _rpc(self, method: str, *arguments: Any) -> list[Any]:
        if self._llm is None:
            raise RuntimeError("the engine has not been started")
        answers: list[Any] = self._llm.collective_rpc(method, args=arguments)
        for answer in answers:
            if isinstance(answer, dict) and "refused" in answer:
                raise CommandError(answer["refused"])
        return answers


def prompts_of(batch: Batch, vocabulary: int) -> list[list[int]]:
    """The token ids of the prompts: drawn evenly, the same ones for the same numbers.

    The ends of the vocabulary are left out, where tokens with a meaning of their own are.
    """
    low, high = vocabulary // 50, max(vocabulary // 50 + 1, vocabulary * 9 // 10)
    kinds = min(batch.requests, batch.repeat or batch.requests)
    rows = []
    for row in range(kinds):
        chosen = random.Random(f"{_SEED}-{row}-{batch.prompt_tokens}")
        rows.append([chosen.randrange(low, high) for _ in range(batch.prompt_tokens)])
    return [rows[number % kinds] for number in range(batch.requests)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
