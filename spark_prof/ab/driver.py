"""The process that holds the engine: builds it as vLLM's own commands do, and does what it is told.

It runs in the Python that has vLLM, and talks over a Unix socket, because vLLM logs to stdout.

usage: python -m spark_prof.ab.driver SOCKET
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.ab.driver_drafts import (
    drafting_of,
    generate_drafts,
    prompts_of_request,
    utility_of,
    with_drafts,
)
from spark_prof.ab.messages import (
    Answer,
    Check,
    Compare,
    DescribeSwaps,
    Draft,
    Drafted,
    Facts,
    Failed,
    Generate,
    PromptBatch,
    RankAnswers,
    Request,
    Shutdown,
    Start,
    Switch,
    Times,
    receive,
    send,
)
from spark_prof.ab.orphan import end_when_orphaned
from spark_prof.errors import CommandError
from spark_prof.profiler.facts import execution_of, nvml_gpu, processor


def engine_facts(config: Any, vocabulary: int, seconds: float) -> Facts:
    """The `Facts` of a loaded engine."""
    from vllm.platforms import current_platform as platform

    gpu = bool(platform.is_cuda())
    text = getattr(config.model_config, "hf_text_config", None)
    layers = getattr(text, "num_hidden_layers", None)
    cache = config.cache_config
    blocks, size = getattr(cache, "num_gpu_blocks", None), getattr(cache, "block_size", None)
    parallel = config.parallel_config
    return Facts(
        versions=_versions(),
        gpu=str(platform.get_device_name()) if gpu else "",
        uuids=_uuids(int(parallel.world_size)) if gpu else (),
        gpus=int(parallel.world_size),
        processor=processor(),
        model=str(config.model_config.model),
        longest=int(config.model_config.max_model_len),
        most_requests=int(config.scheduler_config.max_num_seqs),
        most_tokens=int(config.scheduler_config.max_num_batched_tokens),
        vocabulary=vocabulary,
        cache_tokens=blocks * size if blocks and size else None,
        load_seconds=seconds,
        execution=execution_of(config.compilation_config),
        dummy=str(config.load_config.load_format).rpartition(".")[2].lower() == "dummy",
        layers=layers if isinstance(layers, int) and layers > 0 else None,
        routed=bool(config.model_config.get_num_experts()),
        **drafting_of(config),
    )


def _versions() -> dict[str, str]:
    import torch
    import vllm

    versions = {
        "vllm": str(vllm.__version__),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "python": sys.version.split()[0],
    }
    with suppress(PackageNotFoundError):
        versions["spark_prof"] = version("spark-prof")
    with suppress(Exception):
        nvml, _ = nvml_gpu("0")
        versions["driver"] = str(nvml.nvmlSystemGetDriverVersion())
    return versions


def _uuids(count: int) -> tuple[str, ...]:
    """UUIDs of the first GPUs that this process may use; torch would have to start CUDA to tell."""
    named = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    uuids: list[str] = []
    with suppress(Exception):
        for word in ([*filter(None, named)] or [str(number) for number in range(count)])[:count]:
            if not word.startswith("GPU-"):
                nvml, handle = nvml_gpu(word)
                word = str(nvml.nvmlDeviceGetUUID(handle))
            uuids.append(word)
    return tuple(uuids)


EXTENSION = "spark_prof.swaps.extension.Extension"

_SERVE_PARSERS = (
    "vllm.entrypoints.openai.cli_args",  # to 0.28
    "vllm.entrypoints.launchers.cli_args",  # to 0.32
    "vllm.entrypoints.common.cli_args",  # 0.33
)
_TOKENIZERS = ("tokenizer*", "tekken*", "vocab*", "*.tiktoken")


def engine_arguments(
    form: str,
    arguments: Sequence[str],
    drafts: Sequence[int] | None = None,
    *,
    as_served: bool = False,
) -> dict[str, Any]:
    """The arguments of vllm.LLM, by the parser of the command that they are from.

    With numbers of drafts they have those, see `with_drafts`. The parser exits where vLLM does not
    take them; a ValueError says what cannot be measured so.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    if form == "serve":
        parser = _serve_parser()(parser)
    elif form in ("latency", "throughput"):
        importlib.import_module(f"vllm.benchmarks.{form}").add_cli_args(parser)
    else:
        parser.add_argument("model_tag")
        parser = EngineArgs.add_cli_args(parser)
    options = parser.parse_args(list(arguments))
    if getattr(options, "model_tag", None):
        options.model = options.model_tag
    values = dict(vars(EngineArgs.from_cli_args(options)))
    if values.get("worker_extension_cls"):
        raise ValueError("--worker-extension-cls is what spark-prof ab needs itself; leave it out")
    if values.get("data_parallel_size", 1) > 1:
        raise ValueError("--data-parallel-size is more than one engine; leave it out")
    if drafts is not None:
        values = with_drafts(values, drafts, as_served=as_served)
    elif values.get("speculative_config") or values.get("spec_method") or values.get("spec_model"):
        raise ValueError(
            "a step with drafts gives no fixed number of tokens; spark-prof speculate measures it"
        )
    values["worker_extension_cls"] = EXTENSION
    # A prompt that is in the cache already would prefill nothing, on the second side only.
    values["enable_prefix_caching"] = False
    model = Path(str(values["model"]))
    if model.is_dir() and not any(file for name in _TOKENIZERS for file in model.glob(name)):
        values["skip_tokenizer_init"] = True
    return values


def _serve_parser() -> Any:
    for name in _SERVE_PARSERS:
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name).make_arg_parser
    raise ValueError("this vLLM has no parser of 'vllm serve' that is known; give the model alone")


_SEED = 20240607


def main(path: str) -> int:
    """Answers the requests that come over the socket until one says to end."""
    connection = Client(path, "AF_UNIX")
    end_when_orphaned(connection.fileno())
    with suppress(Exception):  # which the first request meets again
        importlib.import_module("vllm.entrypoints.llm")  # takes long, and may before it is asked
    session = _Session()
    try:
        while True:
            request = msgspec.json.decode(receive(connection, None) or b"", type=Request)
            send(connection, _answered(session, request))
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
            case Draft():
                return self._draft(request)
            case DescribeSwaps():
                return RankAnswers(self._rpc("spark_prof_swaps"))
            case Switch():
                self._rpc("spark_prof_side", request.side)
            case Generate():
                return self._generate(request)
            case Compare():
                return self._compare(request)
            case Shutdown():
                with suppress(Exception):
                    self._llm.llm_engine.engine_core.shutdown()
        return RankAnswers()

    def _start(self, request: Start) -> Facts:
        begin = time.monotonic()
        os.environ |= request.environment
        arguments = engine_arguments(
            request.form, request.arguments, request.drafts, as_served=request.as_served
        )
        from vllm import LLM

        self._llm = LLM(**arguments)
        config = self._llm.llm_engine.vllm_config
        self._vocabulary = int(config.model_config.get_vocab_size())
        return engine_facts(config, self._vocabulary, time.monotonic() - begin)

    def _generate(self, request: Generate) -> Times:
        begin = time.monotonic()
        if request.plan:
            requests = 1 if request.batch.alone else request.batch.requests
            how = requests, request.prefill, request.held_us
            self._rpc("spark_prof_plan", list(request.plan), *how)
        self._run(request.batch)
        rows = self._rpc("spark_prof_times")[0] if request.plan else []
        return Times(rows, time.monotonic() - begin)

    def _draft(self, request: Draft) -> Drafted:
        drafter = self._accept(request.acceptance)
        made_up = prompts_of(request.batch, self._vocabulary)
        most = int(drafter.num_speculative_tokens) if drafter is not None else 0
        return generate_drafts(self._llm, request, made_up, self._longest, most)

    def _accept(self, rates: tuple[float, ...] | None) -> Any:
        """Fixes what is accepted, or nothing; the drafter's configuration, None without one."""
        drafter = self._llm.llm_engine.vllm_config.speculative_config
        if drafter is not None and getattr(drafter, "rejection_sample_method", "") == "synthetic":
            self._rpc("spark_prof_acceptance", None if rates is None else list(rates))
        return drafter

    @property
    def _longest(self) -> int:
        return int(self._llm.llm_engine.vllm_config.model_config.max_model_len)

    def _compare(self, request: Compare) -> RankAnswers:
        if request.side:
            self._rpc("spark_prof_side", request.side)
        batch, prompts, following = request.batch, None, []
        if self._accept(None) is not None:
            utility_of(self._llm)("start")  # the drafts that it is served with
        if request.prompts:
            whole = prompts_of_request(self._llm, request.prompts, self._longest)
            prompts = [ids[-(self._longest - batch.tokens) :] for ids in whole]
        if request.text:
            # Not before the engine has been built: it imports torch.
            from spark_prof.swaps.tap import checksum_of

            pieces = pieces_of(self._tokens(request.text), batch)
            prompts = [piece[: batch.prompt_tokens] for piece in pieces]
            following = [
                [checksum_of(prompt), piece[len(prompt) :]]
                for prompt, piece in zip(prompts, pieces, strict=True)
            ]
        mode = "record" if request.keep else "compare"
        self._rpc("spark_prof_tap", mode, request.path, batch.requests, following)
        try:
            if request.disturbed:
                self._rpc("spark_prof_disturb")
            try:
                self._run(batch, prompts)
            finally:
                if request.disturbed:
                    self._rpc("spark_prof_disturb")  # once more undoes it
            rows = [] if request.keep else self._rpc("spark_prof_compared")[0]
        finally:
            self._rpc("spark_prof_tap", "off", "", 0)
        return RankAnswers(rows)

    def _tokens(self, path: str) -> list[int]:
        """The tokens of a text file, by the model's tokenizer."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read {path} as text: {error}") from error
        try:
            tokenizer = self._llm.get_tokenizer()
        except Exception as error:
            raise CommandError(f"--text: the model has no tokenizer ({error})") from error
        return list(tokenizer.encode(text, add_special_tokens=False))

    def _run(self, batch: PromptBatch, prompts: list[list[int]] | None = None) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=batch.tokens, ignore_eos=True, detokenize=False, temperature=0.0
        )
        rows = prompts_of(batch, self._vocabulary) if prompts is None else prompts
        requests = [{"prompt_token_ids": ids} for ids in rows]
        groups = [[request] for request in requests] if batch.alone else [requests]
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


def prompts_of(batch: PromptBatch, vocabulary: int) -> list[list[int]]:
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


def pieces_of(tokens: list[int], batch: PromptBatch) -> list[list[int]]:
    """One piece of a text a request: its prompt and what follows it."""
    size = batch.prompt_tokens + batch.tokens
    if len(tokens) < batch.requests * size:
        raise CommandError(
            f"--text: it has {len(tokens)} tokens; {batch.requests} requests of {size} need "
            f"{batch.requests * size}: give a longer text, or less --context or --gate-tokens"
        )
    return [tokens[number * size : (number + 1) * size] for number in range(batch.requests)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
