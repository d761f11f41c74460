# ruff: noqa: E501
"""400 made secrets in formats that their issuers document, and 30 places of a recording."""

from __future__ import annotations

import base64
import json
import random
import string
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.secret_corpus import lines_of

_WORD = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_UPPER = string.ascii_uppercase + string.digits

# A format a row: what it is, its fixed beginning, letters and length of the rest.
_FORMATS: tuple[tuple[str, str, str, int], ...] = (
    ("huggingface", "hf_", _WORD, 34), ("openai", "sk-", _WORD, 48),
    ("openai project", "sk-proj-", _WORD + "-_", 74), ("openai service", "sk-svcacct-", _WORD, 60),
    ("anthropic", "sk-ant-api03-", _WORD + "-_", 93), ("openrouter", "sk-or-v1-", _HEX, 64),
    ("github", "ghp_", _WORD, 36), ("github app", "ghs_", _WORD, 36),
    ("github fine", "github_pat_11A", _WORD, 70), ("gitlab", "glpat-", _WORD, 20),
    ("slack", "xoxb-123456789012-", _WORD, 24), ("slack app", "xapp-1-A012-", _HEX, 40),
    ("aws id", "AKIA", _UPPER, 16), ("google", "AIza", _WORD + "-_", 35),
    ("google secret", "GOCSPX-", _WORD, 28), ("google oauth", "ya29.a0", _WORD, 60),
    ("nvidia", "nvapi-", _WORD + "-_", 64), ("npm", "npm_", _WORD, 36),
    ("pypi", "pypi-AgEIcHlwaS5vcmc", _WORD, 60), ("sendgrid", "SG.abcdefghij0123456789.", _WORD, 43),
    ("stripe", "sk_live_", _WORD, 24), ("stripe restricted", "rk_test_", _WORD, 24),
    ("vault", "hvs.", _WORD, 24), ("databricks", "dapi", _HEX, 32),
    ("digitalocean", "dop_v1_", _HEX, 64), ("groq", "gsk_", _WORD, 52),
    ("replicate", "r8_", _WORD, 37), ("fireworks", "fw_", _WORD, 24),
    ("perplexity", "pplx-", _WORD, 48), ("xai", "xai-", _WORD, 80),
    ("docker", "dckr_pat_", _WORD, 27), ("grafana", "glsa_", _WORD, 32),
    ("sentry", "sntrys_", _WORD, 60), ("linear", "lin_api_", _WORD, 40),
    ("tailscale", "tskey-auth-", _WORD, 24), ("atlassian", "ATATT3xFfGF0", _WORD, 60),
    ("artifactory", "AKCp8", _WORD, 60), ("mailgun", "key-", _HEX, 32),
    ("modal", "as-", _WORD, 22), ("shopify", "shpat_", _HEX, 32),
)  # fmt: skip


@dataclass(frozen=True)
class Secret:
    """One made secret; `known` where its look alone tells what it is."""

    kind: str
    text: str
    known: bool


def _drawn(draw: random.Random, letters: str, count: int) -> str:
    return "".join(draw.choices(letters, k=count - 2)) + draw.choice("23456789") + "q"


def secrets(seed: int = 1) -> list[Secret]:
    """400 of them, each other than the rest."""
    draw = random.Random(seed)
    found = [
        Secret(kind, start + _drawn(draw, letters if letters != _HEX else _HEX[:10], count), True)
        if letters == _WORD
        else Secret(kind, start + "".join(draw.choices(letters, k=count - 1)) + "7", True)
        for kind, start, letters, count in _FORMATS
        for _ in range(4)
    ]
    for _ in range(10):
        parts = [b'{"alg":"HS256"}', b'{"sub":"me"}', draw.randbytes(32)]
        token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
        found.append(Secret("json web token", token, True))
    unnamed: tuple[tuple[str, Callable[[], str]], ...] = (
        ("mixed 16", lambda: _drawn(draw, _WORD, 16)), ("mixed 20", lambda: _drawn(draw, _WORD, 20)),
        ("mixed 24", lambda: _drawn(draw, _WORD, 24)), ("mixed 32", lambda: _drawn(draw, _WORD, 32)),
        ("mixed 40", lambda: _drawn(draw, _WORD, 40)), ("mixed 64", lambda: _drawn(draw, _WORD, 64)),
        ("hex 32", lambda: "".join(draw.choices(_HEX, k=31)) + "a"),
        ("hex 40", lambda: "".join(draw.choices(_HEX, k=39)) + "a"),
        ("hex 64", lambda: "".join(draw.choices(_HEX, k=63)) + "a"),
        ("uuid", lambda: str(uuid.UUID(int=draw.getrandbits(128)))),
        ("base64", lambda: base64.b64encode(draw.randbytes(33)).decode().replace("+", "x")),
        ("letters", lambda: "".join(draw.choices(string.ascii_lowercase, k=18))),
        ("capitals", lambda: "".join(draw.choices(string.ascii_uppercase, k=18))),
        ("words", lambda: "-".join("".join(draw.choices(string.ascii_lowercase, k=6)) for _ in range(4))),
        ("password", lambda: "p9" + "".join(draw.choices(_WORD + "._~+!", k=14)) + "Q"),
        ("digits", lambda: "9" + "".join(draw.choices(string.digits, k=15))),
    )  # fmt: skip
    while len(found) < 400:
        for kind, make in unnamed:
            found.append(Secret(kind, make(), False))
    return found[:400]


# 30 places: a command's words, texts, and values of JSON. In the last five no name tells.
PLACES: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("option", lambda s: ["vllm", "serve", "m", "--api-key", s, "--port", "8000"]),
    ("option=", lambda s: ["vllm", "serve", "m", f"--hf-token={s}", "-tp", "2"]),
    ("short form", lambda s: ["vllm", "serve", "m", "--hf-tok", s]),
    ("docker -e", lambda s: ["docker", "run", "-e", f"HF_TOKEN={s}", "vllm/vllm-openai", "--model", "m"]),
    ("docker --env=", lambda s: ["docker", "run", f"--env=VLLM_API_KEY={s}", "image"]),
    ("bash -c", lambda s: ["bash", "-c", f"export HF_TOKEN='{s}'; vllm serve m --port 1"]),
    ("bash -c twice", lambda s: ["ssh", "h", f"bash -lc \"DB_PASSWORD='{s}' vllm serve m\""]),
    ("argument of a script", lambda s: ["bash", "-c", 'vllm serve m --api-key "$1"', "_", s]),
    ("variable of a script", lambda s: ["sh", "-c", f"T={s}; vllm serve m --api-key $T"]),
    ("fish", lambda s: ["fish", "-c", f"set -x HF_TOKEN {s}; vllm serve m"]),
    ("csh", lambda s: f"setenv HF_TOKEN {s}\nvllm serve m"),
    ("pipe", lambda s: f"echo {s} | xargs vllm serve m --api-key"),
    ("curl -H", lambda s: f'curl -H "Authorization: Bearer {s}" http://h/v1/models'),
    ("URL's login", lambda s: f"downloading from https://me:{s}@host/models/x"),
    ("URL's query", lambda s: f"GET https://h/v1/models?api_key={s}&page=2"),
    ("json argument", lambda s: ["vllm", "serve", "m", "--hf-overrides", json.dumps({"auth_token": s})]),
    ("json in json", lambda s: json.dumps({"a": json.dumps({"password": s, "n": 1})})),
    ("YAML", lambda s: f"model: m\nhf_token: {s}\nport: 8000"),
    ("YAML of Kubernetes", lambda s: f"env:\n  - name: HF_TOKEN\n    value: {s}\n  - name: A\n    value: b"),
    ("YAML's list", lambda s: f"args:\n  - --api-key\n  - {s}\n  - --port"),
    ("YAML's block", lambda s: f"password: |\n  {s}\nport: 1"),
    ("environment", lambda s: {"environment": {"HF_TOKEN": s, "VLLM_PORT": "1"}}),
    ("pairs", lambda s: {"env": [{"name": "DB_PASSWORD", "value": s}]}),
    ("log of arguments", lambda s: f"INFO 11-22 [utils.py:253] non-default args: {{'api_key': ['{s}'], 'model': 'm'}}"),
    ("log of a config", lambda s: f"Initializing a V1 LLM engine with config: model='m', hf_token='{s}', seed=0"),
    ("coloured log", lambda s: f"\x1b[32mINFO\x1b[0m \x1b[1mHF_TOKEN\x1b[0m={s}"),
)  # fmt: skip
UNNAMED_PLACES: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("log line", lambda s: f"INFO downloading with {s} from the hub"),
    ("path", lambda s: f"https://host/models/{s}/config.json"),
    ("unknown option", lambda s: ["vllm", "serve", "m", "-k", s]),
    ("note", lambda s: {"notes": [f"uses {s}"], "lost": f"could not use {s}"}),
)
"""Where a secret is only known by its look."""


def placed() -> Iterator[tuple[str, Secret, Any]]:
    """Each secret in each place in which anything tells that it is one."""
    for secret in secrets():
        for place, make in (*PLACES, *(UNNAMED_PLACES if secret.known else ())):
            yield place, secret, make(secret.text)


MORE_ORDINARY = lines_of("ordinary-more")
"""With those of `secret_corpus` 300 values that stay as they are."""


FOREIGN_FORMS = lines_of("secret-forms")
"""Ways to give a secret of shells, YAML, tools and other languages."""
