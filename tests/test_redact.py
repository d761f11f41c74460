"""Nothing secret reaches a bundle; nothing that explains the run is lost."""

from __future__ import annotations

import pytest

from spark_prof.redact import is_secret, redacted


@pytest.mark.parametrize(
    "name", ["api-key", "HF_TOKEN", "VLLM_API_KEY", "HUGGING_FACE_HUB_TOKEN",
             "AWS_SECRET_ACCESS_KEY", "password", "hf-token", "OPENAI_API_KEY"],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["max-num-batched-tokens", "tokenizer", "num_tokens", "skip-tokenizer-init",
             "monkey", "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD", "tokens",
             "max-tokens", "long_prefill_token_threshold"],
)  # fmt: skip
def test_names_that_explain_the_run(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("vllm serve m --api-key hunter2 --port 1", "vllm serve m --api-key *** --port 1"),
        ("vllm serve m --api-key=hunter2", "vllm serve m --api-key=***"),
        ("docker run -e HF_TOKEN=abc IMAGE", "docker run -e HF_TOKEN=*** IMAGE"),
        ("docker run --env=HF_TOKEN=abc IMAGE", "docker run --env=HF_TOKEN=*** IMAGE"),
        ("docker run -e A=b IMAGE", "docker run -e A=b IMAGE"),
        ("env HF_TOKEN=abc vllm serve m", "env HF_TOKEN=*** vllm serve m"),
        ("vllm serve m --max-model-len=9", "vllm serve m --max-model-len=9"),
    ],
)
def test_a_command_line(line: str, wanted: str) -> None:
    assert redacted(line.split()) == wanted.split()
