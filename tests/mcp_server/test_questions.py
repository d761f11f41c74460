"""What a user with a slow model asks, answered by a script that has nothing but the server's tools.

What is expected stands in what the commands print, in the line that is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest

pytest.importorskip("mcp")

from tests.golden.corpus import output
from tests.mcp_server.client import DATA, Asked, DeskClient
from tests.rows import each_row

pytestmark = pytest.mark.slow

QWEN = "code-h100/qwen3-30b-a3b-nvfp4"
_QWEN = ("report", QWEN)
DUTY = "compare-h100/gpt-duty"
EAGER, GRAPHS = "h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs"
_NEXT = tuple(f"models/qwen3-next-80b-a3b-{weights}" for weights in ("nvfp4", "fp8"))
MOST_CALLS, MOST_BYTES = 5, 20_000


Data = dict[str, Any]


class Question(NamedTuple):
    """A question, what is asked for it, what of the answer, and what is right.

    Attributes:
        asks: a tool and its arguments, by default of one recording; then NEXT, the call that the
            answer names, or parts of `details`, each found where the one before says that it is.
        line: which says the same in what the command prints, as text or as JSON; empty where none
            does.
    """

    text: str
    asks: tuple[Any, ...]
    shows: Callable[[Data], Any]
    expected: Any
    line: str
    command: tuple[str, ...] = _QWEN


NEXT = "what the answer names"
SUMMARY = ("summary", {})
DETAILS = ("details", {})


def part(name: str) -> Callable[[Data], float]:
    """The time of a part of a token."""
    return lambda data: round(_by(data["decode_token"]["parts"], name=name)["charged_us"], 1)


def text(name: str, end: str) -> Callable[[Data], str]:
    """The beginning of what the summary answers to one of its five questions."""
    return lambda data: str(_by(data["answers"], id=name)["text"].partition(end)[0])


def _by(rows: list[Data], **wanted: str) -> Data:
    [(key, value)] = wanted.items()
    return next(row for row in rows if row[key] == value)


def _not_known(data: Data, words: str) -> str:
    return str(next(line for line in data["not_known"] if words in line))


def _formats(data: Data) -> list[str]:
    """In which formats the state-space layers of both sides are."""
    return [r["format"] for r in data["rows"] if r["component"] == "ssm"]


W4A16 = ("W4A16 nvfp4", "architecture")
PHASES = ("prefill", "decode")
CODE = ("engine", "precision", "weights", "evidence")
QUESTIONS = (
    Question("Which component takes most of a token?", SUMMARY,
             lambda data: data["decode_token"]["parts"][0]["name"], "experts",
             '"experts" | 1313.181317 | 1313.181317 |'),
    Question("What is the median time per output token?", SUMMARY,
             lambda data: round(data["steps"]["tpot_us"]["median"]), 4545,
             "steps.tpot_us.median: 4544.6485"),
    Question("How many kernels does a decode step run?", SUMMARY,
             lambda data: data["decode_token"]["kernels_per_step"], 881, ""),
    Question("What do gaps between launches cost?", SUMMARY, part("launch_gaps"), 434.6,
             "launch gaps       434.6 us"),
    Question("How long does the GPU wait for the host?", SUMMARY, part("host"), 6.2,
             '"host" | 6.150035'),
    Question("How far is it from the memory limit?", SUMMARY,
             lambda data: round(data["memory_bound"]["of_floor"], 4), 0.1595, "16.0 %"),
    Question("Does qkv run on tensor cores, in which precision, who says so?",
             ("kernels", {"component": "qkv", "limit": 1}),
             lambda data: [data["rows"][0][key] for key in CODE],
             ["tensor-core", "bf16", "fp4", "sass"],
             '| "qkv" | "tensor-core" | "bf16" | "sass" | null | "fp4" |'),
    Question("Which conversions are there?", ("kernels", {"conversions": True}),
             lambda data: (round(data["us_per_token"], 3), {r["conversion"] for r in data["rows"]}),
             (8.871, {"cast"}), "conversions.us_per_token: 8.871309"),
    Question("Did anything fall back silently?", (*DETAILS, "audit", "rows"),
             lambda data: [(r["layer"], r["executed"], r["cause"]) for r in data["rows"]
                           if r["checkpoint"] != r["executed"]],
             [("qkv", *W4A16), ("o_proj", *W4A16), ("experts", *W4A16)],
             '"experts" | 48 | "W4A4 nvfp4" | "W4A16 nvfp4" | below | "architecture"'),
    Question("Is layer 17 slower than others?", ("layers", {"layer": 17}),
             lambda data: data["us"] > 1.05 * data["others_us"], False,
             "layer 0 is furthest from layers like it"),
    Question("Which layer is the slowest?", ("layers", {"limit": 1}, NEXT),
             lambda data: (data["layer"], round(data["us"], 1), round(data["others_us"], 1)),
             (0, 84.4, 78.7), "layer 0 is furthest from layers like it, 84.4 us against 78.8 us"),
    Question("What shall I run next?", (*SUMMARY, NEXT), lambda data: data["rows"][0]["command"],
             "spark-prof ab --b layer=spark_prof,o=spark_prof,lm_head=spark_prof -- /tmp/m/qwen",
             "$ spark-prof ab --b layer=spark_prof,o=spark_prof,lm_head=spark_prof -- /tmp/m/qwen"),
    Question("What saves most, at most?", (*SUMMARY, NEXT),
             lambda data: (data["rows"][0]["id"], data["rows"][0]["ms_per_token"]),
             ("small-kernels", 1.25267), '"small-kernels" | 1.252673 |'),
    Question("What is not known?", SUMMARY,
             lambda data: (_not_known(data, "placed by a guess").partition(" %")[0],
                           round(data["coverage"]["guessed"], 4)),
             ("29.2", 0.2923), "29.2 % of the kernel time was placed by a guess"),
    Question("Which kernel is the largest, on what evidence?",
             ("kernels", {"details": True, "limit": 1}),
             lambda data: [(round(r["decode_us_per_step"], 1),
                            r["machine_code"]["products"][0]["opcode"],
                            round(r["roofline"]["of_reached"], 4)) for r in data["rows"]],
             [(569.6, "HMMA.16816.F32.BF16", 0.3953)],
             "569.6 us     225.2 us    39.5 %"),
    Question("How long are prefill and decode steps?", SUMMARY,
             lambda data: [round(data["steps"][f"{of}_us"]["median"]) for of in PHASES],
             [72027, 4545], "steps.prefill_us.median: 72027.344"),
    Question("What takes most of a prefill step?", (*DETAILS, "tokens", "phase=prefill", "rows"),
             lambda data: max(data["rows"], key=lambda row: row["charged_us"])["name"],
             "launch_gaps", '"launch_gaps" | 58617.0355'),
    Question("Which of two is faster, and why?",
             ("compare", {"a": "code-h100/dense-bf16", "b": "code-h100/dense-awq"}),
             lambda data: (data["answer"].partition(":")[0],
                           *next((r["part"], round(r["us"], 1)) for r in data["rows"]
                                 if r["faster"] == "b")),
             ("the kernels of dense-awq are 19.3 % faster than those of dense-bf16", "mlp", -204.8),
             "mlp             457.1 us   252.3 us  -204.8 us",
             ("compare", "code-h100/dense-bf16", "code-h100/dense-awq")),
    Question("Is a difference more than noise?",
             ("compare", {"a": "compare-h100/gpt-graph", "b": DUTY}),
             lambda data: (data["step"]["faster"], round(data["step"]["us"], 1)),
             ("not certain", 72.3), "+72.3 us, +2.2 %",
             ("compare", "compare-h100/gpt-graph", DUTY)),
    Question("Why is it slow without graphs?", ("compare", {"a": EAGER, "b": GRAPHS}),
             lambda data: (data["rows"][0]["part"], round(data["rows"][0]["us"] / 1e3, 2)),
             ("launch_gaps", -66.93), "-66.93 ms launch", ("compare", EAGER, GRAPHS)),
    Question("Why is NVFP4 slower than FP8?",
             ("why", {"sources": list(_NEXT), "gpu": "gb10"}),
             lambda data: ("6 % more bytes" in data["answer"][0], *_formats(data)),
             (True, "bf16 + nvfp4", "fp8 + bf16"),
             "(bf16 + nvfp4 against fp8 + bf16) reads 0.77 GB more",
             ("why", *_NEXT)),
    Question("How much does a token read?", SUMMARY, text("memory", " from memory"),
             "A decode step needs 2.190 GB", "2190116096.0"),
    Question("Do the kernels fill the GPU?", SUMMARY, text("shapes", " of the decode"),
             "34.9 %", '"34.9 % of the decode kernel ti'),
    Question("What is not quantized?", ("findings", {}),
             lambda data: _by(data["rows"], id="lm-head-not-quantized")["text"][:28],
             "lm_head is bfloat16 (0.62 GB", "lm_head is bfloat16 (0.62 GB)"),
    Question("Which backend runs the experts?", (*DETAILS, "modules"),
             lambda data: _by(data["rows"], component="experts")["kernel"],
             "MarlinExperts NvFp4MoeBackend.MARLIN",
             '"experts" | "RoutedExperts" | "ModelOptNvFp4FusedMoE" | "MarlinExperts'),
    Question("Which kernel is launched most often?",
             ("query", {"limit": 1, "sql": "SELECT name, count(*) n FROM kernels "
                        "WHERE kind = 'kernel' GROUP BY 1 ORDER BY 2 DESC, 1"}),
             lambda data: data["rows"][0]["n"], 1664, ""),
    Question("Was anything lost?", ("summary", {"recording": DUTY}),
             lambda data: _not_known(data, "lost: "),
             "lost: rank0, piece 1: 256 steps have no kernels, the backend wrote none",
             "lost: rank0, piece 1: 256 steps have no kernels", ("report", DUTY)),
    Question("What did the A/B find?", ("summary", {"recording": "ab-h100/result.json"}),
             lambda data: data["answer"].partition(" (95")[0],
             "b is 1.38 x faster per token than stock",
             "b is 1.38 x faster per token than stock (95 % 1.30 to 1.54) at batch 1",
             ("report", "ab-h100/result.json")),
    Question("Which recordings are there?", ("recordings", {"name": "code-h100", "limit": 50}),
             lambda data: (len(data["rows"]), QWEN in {row["recording"] for row in data["rows"]}),
             (7, True), ""),
)  # fmt: skip


async def answered(ask: Asked, question: Question) -> Any:
    """What the server says to a question, whose parts are found where answers say that they are."""
    tool, arguments, *more = question.asks
    arguments = dict(arguments)
    if tool not in ("compare", "why", "recordings"):
        arguments.setdefault("recording", QWEN)
    answer = await ask(tool, **arguments)
    found: Any = answer["data"]
    for word in more:
        if word == NEXT:
            found = (await ask.next(answer))["data"]
            continue
        key, _, value = word.partition("=")
        found = _by(found["rows"], **{key: value}) if value else found[word]
        if path := isinstance(found, str) and found.partition("entries: part ")[2]:
            found = (await ask("details", recording=QWEN, part=path))["data"]
    return question.shows(found)


async def _answers() -> dict[str, tuple[Any, int, int]]:
    found: dict[str, tuple[Any, int, int]] = {}
    client = DeskClient()
    for question in QUESTIONS:
        ask = Asked(client)
        try:
            answer = await answered(ask, question)
        except Exception as error:
            answer = error
        found[question.text] = (answer, ask.calls, ask.bytes)
    return found


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[Any, int, int]]:
    return asyncio.run(_answers())


@each_row("question", QUESTIONS)
def test_a_question_is_answered(
    question: Question, answers: dict[str, tuple[Any, int, int]]
) -> None:
    answer, calls, size = answers[question.text]
    assert answer == question.expected
    assert calls <= MOST_CALLS
    assert size <= MOST_BYTES


@each_row("question", QUESTIONS)
def test_what_is_expected_is_what_the_commands_say(question: Question) -> None:
    assert question.line in printed(question.command)


@cache
def printed(command: tuple[str, ...]) -> str:
    words = command[:1] + tuple(w if w.startswith("-") else str(DATA / w) for w in command[1:])
    options: tuple[tuple[str, ...], ...] = ((), ("--all",), ("--format", "json"))
    return "".join(output((*words, *more), 10) for more in options)


def test_numbers_of_kernels_are_those_of_the_trace() -> None:
    import pyarrow.parquet as pq

    steps = pq.read_table(DATA / QWEN / "steps-rank0.parquet").to_pandas()
    kernels = pq.read_table(DATA / QWEN / "kernels-rank0.parquet").to_pandas()
    decode = steps.loc[steps["phase"] == "decode", "step"]
    ran = kernels[(kernels["kind"] == "kernel") & kernels["step"].isin(decode)]
    assert round(len(ran) / len(decode)) == 881
    every = kernels[kernels["kind"] == "kernel"]
    assert every["name"].value_counts().max() == 1664


def test_there_are_enough_questions() -> None:
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS) >= 25
