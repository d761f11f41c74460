"""What a user with a slow model asks, answered by a script that has nothing but the server.

What is expected stands in the golden outputs of the commands, in the line that is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("mcp")

from tests.mcp_server.client import DATA, ROOT, Asked, connected
from tests.rows import each_row

GOLDEN = ROOT / "tests" / "golden" / "expected"
QWEN = "code-h100/qwen3-30b-a3b-nvfp4"
_QWEN = f"{QWEN}.txt"
DUTY = "compare-h100/gpt-duty"
EAGER, GRAPHS = "h100-gpt-oss-20b-mxfp4-eager", "h100-gpt-oss-20b-mxfp4-graphs"
MOST_CALLS, MOST_BYTES = 5, 20_000


async def summary(ask: Asked, recording: str = QWEN) -> dict[str, Any]:
    return (await ask("summary", recording=recording))["data"]


async def part(ask: Asked, name: str) -> float:
    parts = (await summary(ask))["decode_token"]["parts"]
    return next(round(row["charged_us"], 1) for row in parts if row["name"] == name)


async def what_takes_most(ask: Asked) -> Any:
    return (await summary(ask))["decode_token"]["parts"][0]["name"]


async def tpot(ask: Asked) -> Any:
    return round((await summary(ask))["steps"]["tpot_us"]["median"])


async def how_many_kernels(ask: Asked) -> Any:
    return (await summary(ask))["decode_token"]["kernels_per_step"]


async def launch_gaps(ask: Asked) -> Any:
    return await part(ask, "launch_gaps")


async def host_wait(ask: Asked) -> Any:
    return await part(ask, "host")


async def memory_limit(ask: Asked) -> Any:
    return round((await summary(ask))["memory_bound"]["of_floor"], 4)


async def qkv_precision(ask: Asked) -> Any:
    answer = await ask("kernels", recording=QWEN, component="qkv", limit=1)
    return [answer["data"]["rows"][0][k] for k in ("engine", "precision", "weights", "evidence")]


async def conversions(ask: Asked) -> Any:
    data = (await ask("kernels", recording=QWEN, conversions=True))["data"]
    return round(data["us_per_token"], 3), {row["conversion"] for row in data["rows"]}


async def rows_of(ask: Asked, *names: str) -> list[dict[str, Any]]:
    """Rows of a part, found where the list of all parts says that it is."""
    found: Any = (await ask("details", recording=QWEN))["data"]
    for name in names:
        found = found[name]
    path = found.partition("entries: part ")[2]
    return (await ask("details", recording=QWEN, part=path))["data"]["rows"]


async def silent_fallback(ask: Asked) -> Any:
    rows = await rows_of(ask, "audit", "rows")
    return [
        (r["layer"], r["executed"], r["cause"]) for r in rows if r["checkpoint"] != r["executed"]
    ]


async def is_layer_17_slower(ask: Asked) -> Any:
    data = (await ask("layers", recording=QWEN, layer=17))["data"]
    return data["us"] > 1.05 * data["others_us"]


async def slowest_layer(ask: Asked) -> Any:
    answer = await ask("layers", recording=QWEN, limit=1)
    data = (await ask.next(answer))["data"]
    return data["layer"], round(data["us"], 1), round(data["others_us"], 1)


async def next_command(ask: Asked) -> Any:
    answer = await ask.next(await ask("summary", recording=QWEN))
    return answer["data"]["rows"][0]["command"]


async def most_to_gain(ask: Asked) -> Any:
    answer = await ask.next(await ask("summary", recording=QWEN))
    return answer["data"]["rows"][0]["id"], answer["data"]["rows"][0]["ms_per_token"]


async def not_known(ask: Asked) -> Any:
    found = await summary(ask)
    guess = next(line for line in found["not_known"] if "placed by a guess" in line)
    return guess.partition(" %")[0], round(found["coverage"]["guessed"], 4)


async def largest_kernel(ask: Asked) -> Any:
    answer = await ask("kernels", recording=QWEN, details=True, limit=1)
    [row] = answer["data"]["rows"]
    code = row["machine_code"]["products"][0]["opcode"]
    return round(row["decode_us_per_step"], 1), code, round(row["roofline"]["of_reached"], 4)


async def prefill_and_decode(ask: Asked) -> Any:
    steps = (await summary(ask))["steps"]
    return round(steps["prefill_us"]["median"]), round(steps["decode_us"]["median"])


async def who_waits_in_prefill(ask: Asked) -> Any:
    prefill = next(row for row in await rows_of(ask, "tokens") if row["phase"] == "prefill")
    path = prefill["rows"].partition("entries: part ")[2]
    rows = (await ask("details", recording=QWEN, part=path))["data"]["rows"]
    return max(rows, key=lambda row: row["charged_us"])["name"]


async def faster_of_two(ask: Asked) -> Any:
    data = (await ask("compare", a="code-h100/dense-bf16", b="code-h100/dense-awq"))["data"]
    gained = next(r for r in data["rows"] if r["faster"] == "b")
    return data["answer"].partition(":")[0], gained["part"], round(gained["us"], 1)


async def is_it_noise(ask: Asked) -> Any:
    data = (await ask("compare", a="compare-h100/gpt-graph", b=DUTY))["data"]
    return data["step"]["faster"], round(data["step"]["us"], 1)


async def why_is_eager_slow(ask: Asked) -> Any:
    data = (await ask("compare", a=EAGER, b=GRAPHS))["data"]
    return data["rows"][0]["part"], round(data["rows"][0]["us"] / 1e3, 2)


async def why_is_nvfp4_slower(ask: Asked) -> Any:
    models = [f"models/qwen3-next-80b-a3b-{kind}" for kind in ("nvfp4", "fp8")]
    data = (await ask("why", sources=models, gpu="gb10"))["data"]
    rows = [
        {r["component"]: r["format"] for r in data["rows"] if r["side"].endswith(x)} for x in "48"
    ]
    return "6 % more bytes" in data["answer"][0], rows[0]["ssm"], rows[1]["ssm"]


async def bytes_a_token(ask: Asked) -> Any:
    answers = {row["id"]: row["text"] for row in (await summary(ask))["answers"]}
    return answers["memory"].partition(" from memory")[0]


async def fills_the_gpu(ask: Asked) -> Any:
    answers = {row["id"]: row["text"] for row in (await summary(ask))["answers"]}
    return answers["shapes"].partition(" of the decode")[0]


async def not_quantized(ask: Asked) -> Any:
    rows = (await ask("findings", recording=QWEN))["data"]["rows"]
    return next(row["text"] for row in rows if row["id"] == "lm-head-not-quantized")[:28]


async def experts_backend(ask: Asked) -> Any:
    rows = await rows_of(ask, "modules")
    return next(row["kernel"] for row in rows if row["component"] == "experts")


async def launched_most(ask: Asked) -> Any:
    sql = "SELECT name, count(*) n FROM kernels WHERE kind = 'kernel' GROUP BY 1 ORDER BY 2 DESC, 1"
    [row] = (await ask("query", recording=QWEN, sql=sql, limit=1))["data"]["rows"]
    return row["n"]


async def was_anything_lost(ask: Asked) -> Any:
    return next(x for x in (await summary(ask, DUTY))["not_known"] if x.startswith("lost"))


async def what_did_ab_find(ask: Asked) -> Any:
    return (await summary(ask, "ab-h100/result.json"))["answer"].partition(" (95")[0]


async def which_is_there(ask: Asked) -> Any:
    answer = await ask("recordings", name="code-h100", limit=50)
    names = {row["recording"] for row in answer["data"]["rows"]}
    return len(names), QWEN in names


class Question(NamedTuple):
    """A question, what answers it, what is right, and the golden line that says so."""

    text: str
    by: Callable[[Asked], Awaitable[Any]]
    expected: Any
    page: str
    line: str


W4A16 = ("W4A16 nvfp4", "architecture")
QUESTIONS = (
    Question("Which component takes most of a token?", what_takes_most, "experts", _QWEN,
             '"experts" | 1313.181317 | 1313.181317 |'),
    Question("What is the median time per output token?", tpot, 4545, _QWEN,
             "steps.tpot_us.median: 4544.6485"),
    Question("How many kernels does a decode step run?", how_many_kernels, 881, _QWEN, ""),
    Question("What do gaps between launches cost?", launch_gaps, 434.6, _QWEN,
             "launch gaps       434.6 us"),
    Question("How long does the GPU wait for the host?", host_wait, 6.2, _QWEN,
             '"host" | 6.150035'),
    Question("How far is it from the memory limit?", memory_limit, 0.1595, _QWEN, "16.0 %"),
    Question("Does qkv run on tensor cores, in which precision, who says so?", qkv_precision,
             ["tensor-core", "bf16", "fp4", "sass"], _QWEN,
             '| "qkv" | "tensor-core" | "bf16" | "sass" | null | "fp4" |'),
    Question("Which conversions are there?", conversions, (8.871, {"cast"}), _QWEN,
             "conversions.us_per_token: 8.871309"),
    Question("Did anything fall back silently?", silent_fallback,
             [("qkv", *W4A16), ("o_proj", *W4A16), ("experts", *W4A16)], _QWEN,
             '"experts" | 48 | "W4A4 nvfp4" | "W4A16 nvfp4" | below | "architecture"'),
    Question("Is layer 17 slower than others?", is_layer_17_slower, False, _QWEN,
             "layer 0 is furthest from layers like it"),
    Question("Which layer is the slowest?", slowest_layer, (0, 84.4, 78.7), _QWEN,
             "layer 0 is furthest from layers like it, 84.4 us against 78.8 us"),
    Question("What shall I run next?", next_command,
             "spark-prof ab --b layer=spark_prof,o=spark_prof,lm_head=spark_prof -- /tmp/m/qwen",
             _QWEN,
             "$ spark-prof ab --b layer=spark_prof,o=spark_prof,lm_head=spark_prof -- /tmp/m/qwen"),
    Question("What saves most, at most?", most_to_gain, ("small-kernels", 1.25267), _QWEN,
             '"small-kernels" | 1.252673 |'),
    Question("What is not known?", not_known, ("29.2", 0.2923), _QWEN,
             "29.2 % of the kernel time was placed by a guess"),
    Question("Which kernel is the largest, on what evidence?", largest_kernel,
             (569.6, "HMMA.16816.F32.BF16", 0.3953), _QWEN,
             "marlin_moe_wna16::Marlin (w13)          569.6 us     225.2 us  39.5 %"),
    Question("How long are prefill and decode steps?", prefill_and_decode, (72027, 4545), _QWEN,
             "steps.prefill_us.median: 72027.344"),
    Question("What takes most of a prefill step?", who_waits_in_prefill, "launch_gaps", _QWEN,
             '"launch_gaps" | 58617.0355'),
    Question("Which of two is faster, and why?", faster_of_two,
             ("dense-awq is 19.2 % faster than dense-bf16", "mlp", -204.9),
             "compare/code-h100/dense-bf16--dense-awq.txt",
             "mlp             457.2 us   252.3 us  -204.9 us"),
    Question("Is a difference more than noise?", is_it_noise, ("not certain", 71.6),
             "compare/compare-h100/gpt-graph--gpt-duty.txt", "+71.6 us, +2.2 %"),
    Question("Why is it slow without graphs?", why_is_eager_slow, ("launch_gaps", -67.46),
             f"compare/{EAGER}--{GRAPHS}.txt", "-67.46 ms launch"),
    Question("Why is NVFP4 slower than FP8?", why_is_nvfp4_slower,
             (True, "bf16 + nvfp4", "fp8 + bf16"), "why/qwen3-next-80b-a3b-nvfp4.txt",
             "most of it is ssm (bf16 + nvfp4 against fp8 + bf16)"),
    Question("How much does a token read?", bytes_a_token, "A decode step needs 2.190 GB", _QWEN,
             "2190116096.0"),
    Question("Do the kernels fill the GPU?", fills_the_gpu, "34.9 %", _QWEN,
             '"34.9 % of the decode kernel ti'),
    Question("What is not quantized?", not_quantized, "lm_head is bfloat16 (0.62 GB", _QWEN,
             "lm_head is bfloat16 (0.62 GB)"),
    Question("Which backend runs the experts?", experts_backend,
             "MarlinExperts NvFp4MoeBackend.MARLIN", _QWEN,
             '"experts" | "RoutedExperts" | "ModelOptNvFp4FusedMoE" | "MarlinExperts'),
    Question("Which kernel is launched most often?", launched_most, 1664, _QWEN, ""),
    Question("Was anything lost?", was_anything_lost,
             "lost: rank0, piece 1: 256 steps have no kernels, the backend wrote none",
             f"{DUTY}.txt", "lost: rank0, piece 1: 256 steps have no kernels"),
    Question("What did the A/B find?", what_did_ab_find,
             "b is 1.38 x faster per token than stock", "ab-h100/result.json.txt",
             "b is 1.38 x faster per token than stock (95 % 1.30 to 1.54) at batch 1"),
    Question("Which recordings are there?", which_is_there, (7, True), _QWEN, ""),
)  # fmt: skip


async def _answers() -> dict[str, tuple[Any, int, int]]:
    found: dict[str, tuple[Any, int, int]] = {}
    async with connected(DATA) as client:
        for question in QUESTIONS:
            ask = Asked(client)
            try:
                answer = await question.by(ask)
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
    assert question.line in (GOLDEN / question.page).read_text(encoding="utf-8")


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
    assert len({question.by for question in QUESTIONS}) == len(QUESTIONS) >= 25
