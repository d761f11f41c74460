"""Files of requests, servers' metrics and recordings, from which acceptance comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.speculate.requests import (
    MOST_REQUESTS,
    acceptance_of_metrics,
    read_requests,
    served_acceptance,
)

METRICS = """
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 60.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 40.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 180.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 120.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 99.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 9.0
vllm:request_success_total{engine="0"} 3.0
"""


def test_prompts_are_texts_or_tokens(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    lines = ["Why is the sky blue?", "", '{"prompt": "a b"}', '"c"', "[1, 2, 3]",
             '{"prompt": [7], "max_tokens": 3}', "[Note] a text"]  # fmt: skip
    file.write_text("\n".join(lines), encoding="utf-8")
    assert read_requests(file) == (
        "Why is the sky blue?", "a b", "c", (1, 2, 3), (7,), "[Note] a text",
    )  # fmt: skip


@pytest.mark.parametrize(
    "line", ["{", '{"a": 1}', '{"prompt": 3}', '{"prompt": ""}', "[]", "[-1]", "[true]", "[1.5]"]
)
def test_what_is_no_prompt_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(f"good\n{line}\n", encoding="utf-8")
    with pytest.raises(CommandError, match="line 2"):
        read_requests(file)


def test_files_that_hold_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("empty", "bytes", "absent"):
        with pytest.raises(CommandError, match=name):
            read_requests(tmp_path / name)


def test_only_the_first_requests_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "many"
    file.write_text("\n".join(json.dumps([at]) for at in range(MOST_REQUESTS + 9)))
    assert len(read_requests(file)) == MOST_REQUESTS


def test_metrics_of_all_engines_are_summed() -> None:
    acceptance = acceptance_of_metrics(METRICS)
    assert acceptance.source == "server"
    assert acceptance.steps == 100
    assert acceptance.drafted == (1.0, 1.0, 1.0)
    assert acceptance.accepted == (0.8, 0.4, 0.09)
    assert acceptance.tokens(3) == pytest.approx(2.29)


def test_a_server_that_drafts_nothing_is_refused() -> None:
    with pytest.raises(CommandError, match="no drafts"):
        acceptance_of_metrics("vllm:request_success_total 3.0\n")
    with pytest.raises(CommandError, match="--server"):
        served_acceptance("file:///etc/passwd")
    with pytest.raises(CommandError, match="does the server run"):
        served_acceptance("http://127.0.0.1:9")
