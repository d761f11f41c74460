"""Which ranges are engine iterations, and what their names say about the batch.

One rule table in order of preference; of the rules whose ranges occur in a trace the first one
decides for all of it. Each row carries examples that are its test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Batch:
    """What a step worked on, as far as its name says so."""

    phase: str = "unknown"
    prefill_requests: int = 0
    prefill_tokens: int = 0
    decode_requests: int = 0
    decode_tokens: int = 0
    context_tokens: int = 0


@dataclass(frozen=True)
class StepRule:
    """Ranges whose whole name matches are steps.

    Attributes:
        source: who writes such ranges.
        pattern: for the whole name. Its groups `prefill_requests`, `prefill_tokens`,
            `decode_requests`, `decode_tokens`, `prefill_context` and `decode_context` are numbers,
            `mode` is a word of `modes`.
        examples: names with the batch that they stand for; None for one that is no step.
        runs_on: whether what is launched after the range belongs to it as well, up to the next
            step: vLLM's and SGLang's ranges end before the tokens are sampled.
        modes: the phase that a mode stands for.
    """

    source: str
    pattern: str
    examples: tuple[tuple[str, Batch | None], ...]
    runs_on: bool = False
    modes: Mapping[str, str] = field(default_factory=dict)


RULES: tuple[StepRule, ...] = (
    # Releases before 0.26 put the sum of the squared lengths behind the tokens.
    StepRule("vLLM",
        r"execute_context_(?P<prefill_requests>\d+)\((?P<prefill_tokens>\d+)(?:_\d+)?\)"
        r"_generation_(?P<decode_requests>\d+)\((?P<decode_tokens>\d+)(?:_\d+)?\)",
        (("execute_context_1(888_788544)_generation_0(0)", Batch("prefill", 1, 888)),
        ("execute_context_0(0)_generation_3(3)", Batch("decode", 0, 0, 3, 3)),
        ("execute_context_1(64)_generation_2(2)", Batch("mixed", 1, 64, 2, 2)),
        ("execute_context_0(0)_generation_0(0)", None)), runs_on=True),
    StepRule("vLLM", r"execute_\d+_context_(?P<prefill_requests>\d+)"
        r"\(sq(?P<prefill_tokens>\d+)sk(?P<prefill_context>\d+)sqsq\d+sqsk\d+\)"
        r"_generation_(?P<decode_requests>\d+)"
        r"\(sq(?P<decode_tokens>\d+)sk(?P<decode_context>\d+)sqsq\d+sqsk\d+\)",
        (("execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk129sqsq1sqsk129)",
        Batch("decode", 0, 0, 1, 1, 128)),
        ("execute_64_context_1(sq64sk64sqsq4096sqsk4096)_generation_0(sq0sk0sqsq0sqsk0)",
        Batch("prefill", 1, 64, 0, 0, 0))), runs_on=True),
    StepRule("SGLang",
        r"step\[(?P<mode>[A-Z_]+)(?: bs=(?P<decode_requests>\d+))?(?: toks=(?P<tokens>\d+))?.*\]",
        (("step[DECODE bs=64]", Batch("decode", 0, 0, 64, 64)),
        ("step[EXTEND bs=2 toks=512]", Batch("prefill", 2, 512)),
        ("step[MIXED bs=2]", Batch("mixed")), ("step[IDLE]", None)), runs_on=True,
        modes={"DECODE": "decode", "TARGET_VERIFY": "decode", "EXTEND": "prefill",
        "PREFILL": "prefill", "MIXED": "mixed", "DRAFT_EXTEND": "unknown",
        "SPLIT_PREFILL": "prefill", "IDLE": ""}),
    StepRule("TensorRT-LLM",
        r"\[Executor\] _forward_step(?: \d+)?: (?P<prefill_requests>\d+) ctx reqs, "
        r"(?:(?P<prefill_tokens>\d+) ctx tokens, )?(?P<decode_requests>\d+) gen reqs",
        (("[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs",
        Batch("decode", 0, 0, 32, 32)),
        ("[Executor] _forward_step 7: 1 ctx reqs, 2 gen reqs", Batch("mixed", 1, 0, 2, 2)),
        ("[Executor] _forward_step: 1 ctx reqs, 0 gen reqs", Batch("prefill", 1))), runs_on=True),
    StepRule("PyTorch", r"ProfilerStep\s?[#*]\s?\d+",
        (("ProfilerStep#6", Batch()), ("ProfilerStep* 6", Batch()))),
    StepRule("NVTX", r"(?i:step|iteration|iter|forward step)[\s_:#=]*\d+",
        (("step 12", Batch()), ("iteration_3", Batch()), ("Iter: 7", Batch()))),
    # Without a number such a range may well hold all steps of its phase.
    StepRule("NVTX", r"(?i:(?P<mode>prefill|decode|generation))(?:[\s_:#-]*step)?[\s_:#]*\d+",
        (("prefill 0", Batch("prefill")), ("decode_step 4", Batch("decode")),
        ("Generation step 2", Batch("decode"))), modes={"prefill": "prefill", "decode": "decode",
        "generation": "decode"}),
)  # fmt: skip

_COMPILED = tuple(re.compile(rule.pattern) for rule in RULES)
_LARGEST = (1 << 31) - 1
_LONGEST = 512
"""No step's name is longer."""


def rule_of(name: str) -> int:
    """The number of the first rule that knows the name, -1 for none."""
    if len(name) > _LONGEST:
        return -1
    return next((i for i, p in enumerate(_COMPILED) if p.fullmatch(name)), -1)


def batch_of(name: str, rule: int) -> Batch | None:
    """What a step of that name worked on; None where it worked on nothing."""
    match = _COMPILED[rule].fullmatch(name)
    if match is None:
        return None
    found = match.groupdict()
    number = {key: min(int(v), _LARGEST) for key, v in found.items() if v and key != "mode"}
    if "mode" in found:
        return _of_mode(str(found["mode"]), number, RULES[rule].modes)
    if "prefill_requests" not in found:
        return Batch()
    prefill, decode = number["prefill_requests"], number["decode_requests"]
    if not prefill and not decode:
        return None
    tokens = number.get("prefill_tokens", 0), number.get("decode_tokens", decode)
    # The name counts a request's whole context, this step's tokens included.
    context = number.get("prefill_context", 0) + number.get("decode_context", 0)
    phase = "mixed" if prefill and decode else "prefill" if prefill else "decode"
    known = max(context - sum(tokens), 0)
    return Batch(phase, prefill, tokens[0], decode, tokens[1], known)


def _of_mode(mode: str, number: Mapping[str, int], modes: Mapping[str, str]) -> Batch | None:
    phase = modes.get(mode, modes.get(mode.lower(), "unknown"))
    requests = number.get("decode_requests", 0)
    if not phase:
        return None
    if phase == "prefill":
        return Batch(phase, requests, number.get("tokens", 0))
    if phase == "decode":
        return Batch(phase, 0, 0, requests, number.get("tokens", requests))
    return Batch(phase)
