"""Which words of a recorded command line may be typed again, and as what."""

from __future__ import annotations

import shlex

from spark_prof.analyzers.recorded_command import (
    attached_to,
    engine_words,
    recorded_engine,
    split,
    starting_words,
)
from spark_prof.rules.harmless_programs import PREFIXES, Prefix
from tests.rows import each_row

DRAFT = '{"method": "eagle3", "model": "org/eagle", "num_speculative_tokens": 3}'
ENGINE = '{"max_num_seqs": 8, "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}'
DOCKER = "docker run --gpus all"
KEPT = [
    "vllm serve openai/gpt-oss-20b",
    "vllm serve openai/gpt-oss-20b --max-num-seqs 8 --port 8000 --served-model-name x y/z",
    f"vllm serve m/x --kv-cache-dtype fp8 --speculative-config {shlex.quote(DRAFT)}",
    "vllm serve --enforce-eager m/x --no-enable-prefix-caching -tp 2 -O3 --max-model-len -1",
    "vllm serve m/x -cc.cudagraph_mode=FULL --compilation_config.pass_config.fuse_norm_quant=true",
    "vllm serve m/x --compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4]}' -q modelopt",
    "vllm serve m/x --compilation-config '{\"custom_ops\": [\"+rms_norm\", \"none\"]}'",
    "vllm serve m/x --kv-transfer-config '{\"kv_connector\": \"NixlConnector\"}'",
    "vllm serve m/x --limit-mm-per-prompt '{\"image\": 2}' --max-model-len 32k --swap-space 4",
    "vllm serve m/x --hf-overrides '{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}}'",
    "vllm serve unsloth/Qwen3-0.6B-GGUF:Q4_K_M --tokenizer Qwen/Qwen3-0.6B",
    "vllm serve /home/me/models/my-model.v2+x --download-dir /r/.cache/huggingface",
    "vllm serve m/x --tool-call-parser hermes --enable-auto-tool-choice --reasoning-parser qwen3",
    "vllm serve m/x --cudagraph-capture-sizes 1 2 4 --enforce-eager --host 0.0.0.0",
    "vllm serve m/x --lora-modules a=org/lora b=/models/lora --enable-lora --max-lora-rank 64",
    "vllm bench latency --model m/x --input-len 32 --output-len 128 --batch-size 8",
    "vllm bench throughput --model m/x --num-prompts 100",
    "python3 -m vllm.entrypoints.openai.api_server --model m/x --max-model-len=2048",
    "python3.12 -m vllm.entrypoints.cli.main serve m/x",
    f"python3 -m demo.workload /tmp/m/x --batch 1,8 --compile --engine {shlex.quote(ENGINE)}",
    "numactl -N 0 --membind=0 vllm serve m/x",
    "env VLLM_USE_V2_MODEL_RUNNER=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve m/x",
    f"{DOCKER} -v /home/u/.cache/huggingface:/root/.cache/huggingface -p 8000:8000 --ipc=host "
    "vllm/vllm-openai:v0.33.0 --model m/x",
    f"{DOCKER} --rm -it --ulimit memlock=-1 --shm-size 16g -v /models:/models:ro "
    "nvcr.io/nvidia/vllm:25.11-py3 vllm serve /models/x",
    "podman run --device nvidia.com/gpu=all vllm/vllm-openai-cu130:latest serve m/x",
    f"{DOCKER} --network host --runtime nvidia -e HF_TOKEN vllm-node vllm serve m/x",
    "docker compose run --rm --service-ports vllm-mxfp4",
    "docker compose -f compose.spark.yaml --profile gpu run -e HF_TOKEN vllm vllm serve m/x",
    "podman-compose -f docker-compose.yml run -T vllm --model m/x",
]  # fmt: skip


@each_row("line", KEPT)
def test_what_people_start_stays_a_command(line: str) -> None:
    assert shlex.join(starting_words(split(line))) == shlex.join(shlex.split(line))


@each_row(
    ("line", "kept"),
    [
        ("/venv/bin/vllm serve m/x", "vllm serve m/x"),
        ("/venv/bin/python3 -m demo.workload m/x", "python3 -m demo.workload m/x"),
        ("vllm serve m/x --api-key '***' --port 1", "vllm serve m/x --port 1"),
        ("vllm serve m/x --hf-token=*** --port 1", "vllm serve m/x --port 1"),
        (f"{DOCKER} -e 'HF_TOKEN=***' vllm/vllm-openai --model m",
         f"{DOCKER} -e HF_TOKEN vllm/vllm-openai --model m"),
        ("/m/qwen --max-model-len 64", "vllm serve /m/qwen --max-model-len 64"),
        ("m/qwen", "vllm serve m/qwen"),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_left_out(line: str, kept: str) -> None:
    assert shlex.join(starting_words(split(line), "qwen")) == kept


@each_row("prefix", PREFIXES)
def test_each_prefix_is_let_through(prefix: Prefix) -> None:
    line = f"{prefix.example} vllm serve m/x"
    assert shlex.join(starting_words(split(line))) == line


@each_row(
    ("line", "words"),
    [
        ("vllm serve m/x --port 1", "vllm serve m/x --port 1"),
        ("numactl -N 0 /venv/bin/vllm serve m/x", "vllm serve m/x"),
        (
            "docker run --gpus all vllm-node vllm serve m/x",
            "docker run --gpus all vllm-node vllm serve m/x",
        ),
        ("docker run --privileged vllm-node vllm serve m/x", ""),
        (
            "docker run --gpus all vllm/vllm-openai --model m/x",
            "docker run --gpus all vllm/vllm-openai --model m/x",
        ),
        ("docker compose run --rm vllm", "docker compose run --rm vllm"),
        ("docker compose -f /tmp/evil.yaml run vllm", ""),
        ("docker compose -f ../compose.yaml run vllm", ""),
        ("docker-compose --project-directory /tmp run vllm", ""),
        ("docker compose run --entrypoint sh vllm", ""),
        ("docker compose run vllm sh -c x", ""),
        ("docker --context default compose run vllm", ""),
        ("docker compose up", "qwen"),
        ("python3 run.py /models/qwen --batch 1", "/models/qwen"),
        ("python3 run.py", "qwen"),
        ("", "qwen"),
        ("/m/qwen --max-model-len 64", "/m/qwen --max-model-len 64"),
        ("vllm serve 'a;b' $(c)", ""),
        ("vllm serve m/x --trust-remote-code", ""),
        ("an 'open quote", "qwen"),
    ],
)
def test_engine_of_a_recorded_command(line: str, words: str) -> None:
    found = engine_words(split(line), "qwen")
    assert shlex.join(found) == words
    shown = recorded_engine(split(line), "qwen")
    assert not found or found == shown


@each_row(
    ("line", "server"),
    [
        ("--attach http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("--attach localhost:8000", "localhost:8000"),
        ("--attach 8000", "8000"),
        ("--attach http://evil.example:8000", ""),
        ("--attach 'http://localhost:8000/$(x)'", ""),
        ("vllm serve m/x", ""),
    ],
)
def test_a_server_of_this_machine(line: str, server: str) -> None:
    assert attached_to(split(line)) == server
    assert not starting_words(split(line)) or not line.startswith("--attach")
