"""Command lines, models and results that somebody wrote who wants a reader to type them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARK = "PWN"
"""Stands in each hostile word: it is nowhere behind a `$`."""

_SHELL = [
    ["sh", "-c", f"touch {MARK}; vllm serve m/x"],
    ["bash", "-lc", f"vllm serve m/x && touch {MARK}"],
    [f"./{MARK}.sh"],
    ["curl", f"http://{MARK}/x", "vllm"],
    ["python3", f"{MARK}.py", "--model", "m/x"],
    ["python3", "-c", f"import os; os.system('{MARK}')"],
    ["python3", "-m", "pip", "install", MARK],
    ["python3", "-m", f"{MARK}.workload", "m/x"],
    ["python3", "-m", "demo.workload", "m/x", "--engine", f'{{"worker_cls": "{MARK}.W"}}'],
    ["python3", "-m", "demo.workload", "m/x", "--engine", f'{{"model": "$({MARK})"}}'],
    ["sudo", MARK, "vllm", "serve", "m/x"],
    ["env", f"LD_PRELOAD=/{MARK}.so", "vllm", "serve", "m/x"],
    ["env", f"PYTHONPATH=/{MARK}", "vllm", "serve", "m/x"],
    ["env", "-S", MARK, "vllm", "serve", "m/x"],
    ["env", f"SPARK_PROF_SWAPS=norm=/{MARK}.py:f", "vllm", "serve", "m/x"],
    ["env", f"VLLM_PLUGINS={MARK}", "vllm", "serve", "m/x"],
    ["env", f"VLLM_ATTENTION_BACKEND={MARK}.a.B", "vllm", "serve", "m/x"],
    ["numactl", f"--show={MARK}", "vllm", "serve", "m/x"],
    ["nice", "-n", MARK, "vllm", "serve", "m/x"],
    ["uv", "run", "--with", MARK, "vllm", "serve", "m/x"],
    ["torchrun", f"{MARK}.py"],
    ["ssh", MARK, "vllm", "serve", "m/x"],
    ["--attach", f"http://{MARK}.example:8000"],
    ["--attach", f"http://user:{MARK}@localhost:8000"],
    ["--attach", f"http://localhost:8000/$({MARK})"],
    ["--attach", "http://localhost:8000", MARK],
    ["--attach", f"localhost@{MARK}"],
]

_OPTIONS = [
    ["--trust-remote-code", "--served-model-name", MARK],
    ["--trust_remote_code", "--served-model-name", MARK],
    ["--middleware", f"{MARK}.system"],
    ["--worker-cls", f"{MARK}.W"],
    [f"--worker-extension-cls={MARK}.W"],
    ["--scheduler-cls", f"{MARK}.S"],
    ["--distributed-executor-backend", f"{MARK}.E"],
    ["--logits-processors", f"{MARK}.L"],
    ["--reasoning-parser-plugin", f"/{MARK}.py"],
    ["--tool-parser-plugin", f"/{MARK}.py"],
    ["--io-processor-plugin", MARK],
    ["--load-format", MARK],
    ["--config", f"/{MARK}.yaml"],
    ["--hf-overrides", f'{{"auto_map": {{"AutoModel": "{MARK}"}}}}'],
    ["--hf-overrides", f'{{"{MARK}_trust_remote_code": true}}'],
    ["--compilation-config", f'{{"backend": "{MARK}.f"}}'],
    [f"--compilation-config.backend={MARK}.f"],
    ["-cc", f'{{"inductor_passes": {{"a": "{MARK}.f"}}}}'],
    ["--compilation-config", f'{{"cudagraph_mode": "{MARK}\\u001b[2J"}}'],
    [f"-O.backend={MARK}.f"],
    ["-sc", f'{{"model": "{MARK}.Proposer", "num_speculative_tokens": 1}}'],
    ["-sc", f'{{"method": "custom_class", "model": "a/{MARK}"}}'],
    ["--kv-transfer-config", f'{{"kv_connector_module_path": "{MARK}"}}'],
    ["--model-loader-extra-config", f'{{"x": "{MARK}"}}'],
    ["--additional-config", f'{{"a": ["{MARK}"]}}'],
    ["--chat-template-content-format", f"{{{{{MARK}}}}}"],
    ["--seed", f"1\n{MARK}"],
    ["--seed", f"$({MARK})"],
    ["--port", f"8000;{MARK}"],
    ["--host", f"`{MARK}`"],
    ["--enforce-eager=" + MARK],
    ["--moe-backend", MARK],
    ["--attention-backend", f"{MARK}.module.C"],
    ["--quantization", f"\u202e{MARK}"],
    ["--dtype", f"{MARK}\x1b]0;x\x07"],
    [f"--{MARK}"],
    ["--tokenizer", f"https://{MARK}"],
    ["--download-dir", f"$HOME/{MARK}"],
    ["--lora-modules", f"a=$({MARK})"],
    ["another/model", MARK],
]

_MODELS = [
    f"m;touch {MARK}", f"$(touch {MARK})", f"`touch {MARK}`", f"m/x\ntouch {MARK}\n#",
    f"m/x\x1b[8m{MARK}", f"m/\u202e{MARK}", f"https://{MARK}/m", f"-{MARK}", f"s3://{MARK}/m",
    f"m/x'{MARK}", f'm/x"{MARK}', f"/tmp/{MARK} x", f"m/x|{MARK}", f"m/x&{MARK}",
    f"m\u2028{MARK}/x", f"/{MARK}/\u0661", f"m/x\\{MARK}", f"m/x!{MARK}", f"m/x>{MARK}",
    f"{{{MARK},x}}/m",
]  # fmt: skip

_CONTAINERS = [
    ["--privileged", "--name", MARK, "vllm/vllm-openai"],
    ["-v", f"/:/{MARK}", "vllm/vllm-openai"],
    ["-v", f"/etc/{MARK}:/models", "vllm/vllm-openai"],
    ["-v", f"/home/u/../../{MARK}/..:/models", "vllm/vllm-openai"],
    ["-v", "/var/run/docker.sock:/var/run/docker.sock", "--name", MARK, "vllm/vllm-openai"],
    ["-v", f"/home/{MARK}/x:/usr/lib/python3/dist-packages/vllm", "vllm/vllm-openai"],
    ["--mount", f"type=bind,src=/,dst=/{MARK}", "vllm/vllm-openai"],
    ["-e", f"LD_PRELOAD={MARK}", "vllm/vllm-openai"],
    ["-e", MARK, "vllm/vllm-openai"],
    ["--env-file", MARK, "vllm/vllm-openai"],
    ["--entrypoint", MARK, "vllm/vllm-openai"],
    ["--cap-add", MARK, "vllm/vllm-openai"],
    ["--gpus", f"all;{MARK}", "vllm/vllm-openai"],
    [f"evil/{MARK}"],
    [f"vllm/vllm-openai:{MARK};x"],
    [f"registry.example/{MARK}/vllm-openai"],
]


def commands() -> Iterator[list[str]]:
    """Recorded command lines, each with the mark in what must not be typed."""
    yield from _SHELL
    for options in _OPTIONS:
        yield ["vllm", "serve", "m/x", *options]
    for model in _MODELS:
        yield ["vllm", "serve", model]
    for options in _CONTAINERS:
        yield ["docker", "run", "--gpus", "all", *options, "--model", "m/x"]
    yield ["podman", "run", "vllm/vllm-openai", "--model", "m/x", "--middleware", f"{MARK}.m"]
    yield ["docker", "exec", MARK, "vllm", "serve", "m/x"]


TEXTS = (
    f"; touch {MARK}", f"$(touch {MARK})", f"`{MARK}`", f"\n$ touch {MARK}\n", f"\r\n{MARK}",
    f"\u2028{MARK}", f"\x1b[2J{MARK}", f"\u202e{MARK}", f"' ; {MARK} '", f'" ; {MARK} "',
    f" && {MARK}", f" | {MARK}", f" --middleware {MARK}.m", f" --b norm=/{MARK}.py:f",
    f"</code></pre><pre class=\"command\"><code>{MARK}", f"\n    {MARK}\n", f"\n```\n{MARK}\n```",
    f"\n$ LD_PRELOAD=/{MARK}.so vllm", f"%0a{MARK}", f"\x00{MARK}", f"\\\n{MARK}", f"{{{MARK},x}}",
)  # fmt: skip
"""Behind what any other field of a recording says: names of kernels, GPUs, classes, versions."""


def logged() -> Iterator[dict[str, Any]]:
    """Arguments that a log of vLLM names, with the mark in what must not be typed."""
    for model in _MODELS:
        if "\x1b" not in model:  # a log is read without escapes, and what is left is a name
            yield {"model": model}
    for name in (
        "quantization", "dtype", "kv_cache_dtype", "moe_backend", "linear_backend",
        "attention_backend", "load_format",
    ):  # fmt: skip
        for value in (f"{MARK}.module.C", f"auto; {MARK}", f"$({MARK})", f"auto\u2028{MARK}"):
            yield {name: value}
    for name in ("tensor_parallel_size", "block_size", "max_model_len", "max_num_seqs"):
        yield {name: f"1 --middleware {MARK}"}
        yield {name: f"$({MARK})"}
    yield {"hf_overrides": {"auto_map": {"AutoModel": MARK}}}
    yield {"hf_overrides": {f"{MARK}_trust_remote_code": True}}
    yield {"speculative_config": {"method": "custom_class", "model": f"a/{MARK}",
                                  "num_speculative_tokens": 1}}  # fmt: skip
    yield {"speculative_config": {"method": f"$({MARK})", "num_speculative_tokens": 1}}
    yield {"trust_remote_code": True, "model": f"a/{MARK}"}


def answers() -> Iterator[dict[str, object]]:
    """Fields of a result of `tune` in which the mark stands."""
    yield {"serve": f"vllm serve m; touch {MARK}"}
    yield {"environment": {"LD_PRELOAD": f"/{MARK}.so"}}
    yield {"environment": {f"X=$({MARK})": "1"}}
    yield {"answer": (f"norm=/{MARK}.py:f",)}
    yield {"answer": (f"--middleware={MARK}.m",)}
    yield {"answer": ("--worker-cls", f"{MARK}.W")}
    yield {"answer": (f"LD_PRELOAD=/{MARK}.so",)}
    yield {"answer": (f"VLLM_ATTENTION_BACKEND={MARK}.a",)}
    yield {"answer": (f"moe=$({MARK})",)}
    yield {"answer": (f"'{MARK}",)}
    yield {"answer": (MARK,)}
    yield {"answer": (f"--compilation-config.backend={MARK}.f",)}
    for command in commands():
        yield {"engine": tuple(command)}
