"""Every row of the line table reads its own examples, and none reads another's."""

from __future__ import annotations

from spark_prof.rules.engine_log_lines import LINE_RULES, TOPICS, LineRule
from spark_prof.traces.readers.engine_log import statements_of
from tests.rows import each_row

EXAMPLES = [(rule, example) for rule in LINE_RULES for example in rule.examples]
PREFIXES = {
    "plain": "",
    "vllm": "INFO 01-06 07:29:03 [nvfp4.py:231] ",
    "worker": "(Worker_TP1_EP1 pid=2079) WARNING 09-24 20:53:33 [fp8_utils.py:581] ",
    "compose": "vllm-nvfp4-opt  | (EngineCore pid=161) INFO 01-06 07:29:03 [x.py:63] ",
    "desktop": "2026-04-19 13:23:27.648 | (EngineCore pid=196) INFO 04-19 11:23:27 [c.py:9] ",
    "journal": "Nov 21 10:58:01 spark-1 vllm[812]: INFO 11-21 10:58:01 [cuda.py:318] ",
    "progress": "Loading shards:  33% 1/3 [01:15<02:31]\rINFO 06-01 21:36:09 [cuda.py:318] ",
}


@each_row(("rule", "example"), EXAMPLES)
def test_a_row_reads_its_own_examples(rule: LineRule, example: str) -> None:
    (said,) = statements_of([example])
    assert said.rule is rule
    assert rule.word in example.encode()


@each_row("prefix", PREFIXES.values())
def test_what_stands_before_a_line_changes_nothing(prefix: str) -> None:
    for rule, example in EXAMPLES:
        (plain,) = statements_of([example])
        (said,) = statements_of([prefix + example])
        assert (said.rule, said.value, said.format, said.layer, said.detail) == (
            rule, plain.value, plain.format, plain.layer, plain.detail
        ), example  # fmt: skip


def test_the_rows_are_whole() -> None:
    assert len({rule.id for rule in LINE_RULES}) == len(LINE_RULES)
    for rule in LINE_RULES:
        assert rule.examples, rule.id
        assert rule.topic in TOPICS, rule.id
        assert set(rule.pattern.groupindex) <= {"value", "format", "layer", "detail"}, rule.id


@each_row(
    ("line", "rule", "value", "weights", "detail"),
    [
        ("Using cutlass for NVFP4 GEMM", "linear-kernel", "cutlass", "nvfp4", ""),
        ("Using NvFp4LinearBackend.FLASHINFER_CUTLASS for NVFP4 GEMM", "linear-kernel",
         "NvFp4LinearBackend.FLASHINFER_CUTLASS", "nvfp4", ""),
        ("Using default MoE config. Performance might be sub-optimal! Config file not found at "
         "['/a b/configs/E=16,N=1536,device_name=NVIDIA_L40S,dtype=fp8_w8a8,"
         "block_shape=[128,128].json']",
         "default-moe-config", "MoE", "",
         "E=16,N=1536,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json"),
        ("Using 'FLASHINFER_TRTLLM_MXFP4_BF16' Mxfp4 MoE backend.", "moe-backend",
         "FLASHINFER_TRTLLM_MXFP4_BF16", "mxfp4", ""),
    ],
)  # fmt: skip
def test_what_a_line_names(line: str, rule: str, value: str, weights: str, detail: str) -> None:
    (said,) = statements_of([line])
    assert (said.rule.id, said.value, said.format, said.detail) == (rule, value, weights, detail)


@each_row(
    "line",
    [
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 220.0 "
        "tokens/s, Running: 55 reqs, Waiting: 35 reqs, GPU KV cache usage: 99.5%, Prefix cache hit "
        "rate: 0.1%",
        '127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "Loading safetensors checkpoint shards: 100% Completed | 3/3 [02:47<00:00, 48.04s/it]",
        "Using max model len 32768",
        "Using cache directory: /root/.cache/vllm/torch_compile_cache/512/rank_0_0/backbone for "
        "vLLM's torch.compile",
        "Using AttentionBackendEnum",
        "",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert statements_of([line]) == ()
