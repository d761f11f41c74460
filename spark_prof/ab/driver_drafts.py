"""What the process that holds an engine does with drafts: its arguments, and a generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

from spark_prof.ab.messages import Draft, Drafted, DraftStep, RequestDrafts
from spark_prof.errors import CommandError
from spark_prof.profiler.draft_steps import UTILITY

_CONFIG = "vllm.config"
_TABLE = "num_speculative_tokens_per_batch_size"
_NO_DRAFTER = (
    "the engine has no drafter; give it one, such as --speculative-config "
    """'{"method": "ngram", "num_speculative_tokens": 4}'"""
)
_SPARE = 8  # tokens beyond a plan: the first requests decode before the last is prefilled


def with_drafts(
    values: dict[str, Any], drafts: Sequence[int], *, as_served: bool = False
) -> dict[str, Any]:
    """An engine's arguments, with so many drafts: of several numbers, each at any batch size.

    Drafts are rejected, all of them, until something else is asked for, where vLLM can fix that.
    """
    config = values.get("speculative_config")
    if not drafts:
        return {**values, "speculative_config": None}
    if not isinstance(config, Mapping):
        raise ValueError(_NO_DRAFTER)
    # Its fields are in `rules.vllm_reached`; which of them a version has it says itself.
    names = {field.name for field in fields(import_module(_CONFIG).SpeculativeConfig)}
    config = dict(config)
    if not as_served:
        config.pop(_TABLE, None)
        config["num_speculative_tokens"] = max(drafts)
    if len(drafts) > 1 and not as_served:
        if _TABLE not in names:
            raise ValueError("this vLLM has one number of drafts for the whole engine")
        # Each number is at one batch size: then graphs are captured for all of them.
        config[_TABLE] = [[at, at, count] for at, count in enumerate(sorted(drafts), start=1)]
        if most := values.get("max_num_seqs"):
            values = {**values, "max_num_seqs": max(int(most), len(drafts))}
    if "synthetic_acceptance_length" in names and _on_gpu():
        for name in ("synthetic_acceptance_rates", "rejection_sample_method"):
            config.pop(name, None)
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 1.0}
    return {**values, "speculative_config": config}


def drafting_of(config: Any) -> dict[str, Any]:
    """The part of `Facts` about an engine's drafter."""
    drafter = getattr(config, "speculative_config", None)
    if drafter is None:
        return {}
    table = getattr(drafter, _TABLE, None)
    v2 = bool(getattr(config, "use_v2_model_runner", False))
    how = "fixed" if not table else "chosen" if v2 or not _on_gpu() else "pieces"
    return {
        "drafting": how,
        "drafts": int(drafter.num_speculative_tokens),
        "acceptance_fixed": getattr(drafter, "rejection_sample_method", "") == "synthetic",
    }


def generate_drafts(
    llm: Any,
    request: Draft,
    made_up: list[list[int]],  # prompts, for where the request has none
    longest: int,  # tokens that a request of the engine may have
    most: int,  # drafts of a step
) -> Drafted:
    """Generates what was asked for."""
    from vllm import SamplingParams

    prompts = prompts_of_request(llm, request.prompts, longest) or made_up
    planned = sum(steps for _, steps in request.plan)
    tokens = request.batch.tokens
    if planned:
        tokens = planned * (1 + most) + request.batch.requests + _SPARE
    sampling = [
        SamplingParams(
            max_tokens=max(1, min(tokens, longest - len(ids))),
            ignore_eos=bool(planned) or request.to_the_end or not request.prompts,
            detokenize=False,
            temperature=0.0,
        )
        for ids in prompts
    ]
    core = utility_of(llm)
    core("start", [list(block) for block in request.plan], request.batch.requests, request.drafts)
    begin = time.monotonic()
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
    seconds = time.monotonic() - begin
    steps, requests = core("rows")
    return Drafted(
        [DraftStep(*row) for row in steps],
        [RequestDrafts(int(row[0]), tuple(row[1]), tuple(row[2])) for row in requests],
        [list(output.outputs[0].token_ids) for output in outputs],
        seconds,
    )


def utility_of(llm: Any) -> Callable[..., Any]:
    """Calls the log of the engine's steps, in whatever process it is."""
    client = llm.llm_engine.engine_core

    def call(*arguments: Any) -> Any:
        if hasattr(client, "call_utility"):
            return client.call_utility(UTILITY, *arguments)
        return getattr(client.engine_core, UTILITY)(*arguments)

    return call


def prompts_of_request(
    llm: Any, prompts: Sequence[str | tuple[int, ...]], longest: int
) -> list[list[int]]:
    """The token ids of prompts; CommandError names one that an engine does not take."""
    rows: list[list[int]] = []
    for number, prompt in enumerate(prompts, start=1):
        if isinstance(prompt, str):
            try:
                ids = list(llm.get_tokenizer().encode(prompt))
            except Exception as error:
                raise CommandError(f"the model has no tokenizer for texts ({error})") from error
        else:
            ids = list(prompt)
        if not 0 < len(ids) < longest:
            raise CommandError(
                f"request {number} has {len(ids)} tokens; give 1 to {longest - 1}, or a longer "
                "--max-model-len"
            )
        rows.append(ids)
    return rows


def _on_gpu() -> bool:
    from vllm.platforms import current_platform as platform

    return bool(platform.is_cuda())
