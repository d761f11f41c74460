"""Planted secrets and ordinary values: seeded tables from which whole corpora are made."""

from __future__ import annotations

import base64
import json
import random
import shlex
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WORD = string.ascii_letters + string.digits
_TEXTS = Path(__file__).parent / "data" / "texts"


def lines_of(name: str) -> list[str]:
    """The texts of a file of tests/data/texts, one a line."""
    return (_TEXTS / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _letters(draw: random.Random) -> str:
    return "".join(draw.choices(string.ascii_lowercase, k=14))


def _mixed(draw: random.Random) -> str:
    return "Z" + "".join(draw.choices(_WORD, k=draw.randint(11, 40))) + "7"


def _base64(draw: random.Random) -> str:
    return base64.b64encode(draw.randbytes(33)).decode().replace("+", "x")


def _punctuated(draw: random.Random) -> str:
    return "k9" + "".join(draw.choices(_WORD + "._~+-!", k=18)) + "Q"


def _spaced(draw: random.Random) -> str:
    return " ".join("".join(draw.choices(_WORD + ",;&:@!#|", k=8)) + "w" for _ in range(3))


BARE = (_letters, _mixed, _base64, _punctuated)
QUOTED = (*BARE, _spaced)
URL = (_letters, _mixed, _punctuated)

# Texts: commands, log lines, headers, URLs, JSON. S is the secret.
_BARE_TEXTS = lines_of("secret-bare")

_QUOTED_TEXTS = lines_of("secret-quoted")

_URL_TEXTS = lines_of("secret-urls")

_ARGV: tuple[list[str], ...] = (
    ["vllm", "serve", "m", "--api-key", "§"],
    ["vllm", "serve", "m", "--api-key", "a", "§", "c", "--port", "1"],
    ["vllm", "serve", "m", "--api-key=§"],
    ["vllm", "serve", "m", "--ssl-keyfile-password", "§"],
    ["docker", "run", "-e", "DB_PASSWORD=§", "image"],
    ["docker", "run", "-eDB_PASSWORD=§", "image"],
    ["docker", "run", "--env=DB_PASSWORD=§", "image"],
    ["env", "DB_PASSWORD=§", "vllm", "serve", "m"],
    ["curl", "-u", "user:§", "https://h"],
    ["curl", "-uuser:§", "https://h"],
    ["curl", "--user=user:§", "https://h"],
    ["curl", "-H", "Authorization: Bearer §", "https://h"],
    ["curl", "-H", "X-Api-Key: §", "https://h"],
    ["curl", "--header", "Cookie: a=§", "https://h"],
    ["sshpass", "-p", "§", "ssh", "host"],
    ["mysql", "-p§", "db"],
    ["wandb", "login", "§"],
    ["bash", "-c", "export DB_PASSWORD='§'; vllm serve m --port 1"],
    ["bash", "-lc", "vllm serve m --api-key '§' --port 1"],
    ["ssh", "host", "DB_PASSWORD='§' vllm serve m"],
    ["vllm", "serve", "m", "--hf-overrides", '{"token": "§"}'],
)

_VALUES: tuple[Callable[[str], Any], ...] = (
    lambda s: {"environment": {"HF_TOKEN": s, "VLLM_PORT": "1"}},
    lambda s: {"environment": {"VLLM_API_KEY": s}},
    lambda s: {"args": {"api_key": [s, s], "model": "m"}},
    lambda s: {"a": [{"b": {"credentials": {"user": "x", "pin": s}}}]},
    lambda s: {"env": [{"name": "DB_PASSWORD", "value": s}]},
    lambda s: {"environ": [["DB_PASSWORD", s], ["PATH", "/bin"]]},
    lambda s: {"kv": {"extra": json.dumps({"password": s})}},
    lambda s: {"kv": json.dumps({"extra": json.dumps({"password": s})})},
    lambda s: {"command": ["bash", "-c", f"PGPASSWORD={shlex.quote(s)} vllm serve m"]},
    lambda s: {"config": {"auth_token": s}},
    lambda s: ("--token", s),
)


def _shaped(draw: random.Random) -> Iterator[tuple[str, str]]:
    """Secrets that are known by their look, where no name says so."""

    def some(letters: str, count: int) -> str:
        return "".join(draw.choices(letters, k=count - 1)) + draw.choice(string.digits)

    hexadecimal = "0123456789abcdef"
    upper = string.ascii_uppercase + string.digits
    coded = base64.urlsafe_b64encode
    token = ".".join(
        coded(part).decode().rstrip("=")
        for part in (b'{"alg":"HS256"}', b'{"sub":"me"}', draw.randbytes(32))
    )
    for secret in (
        "hf_" + some(_WORD, 34), "sk-" + some(_WORD, 48), "sk-proj-" + some(_WORD + "-_", 60),
        "sk-ant-api03-" + some(_WORD + "-_", 60), "ghp_" + some(_WORD, 36),
        "gho_" + some(_WORD, 36), "github_pat_" + some(_WORD, 22) + "_" + some(_WORD, 59),
        "glpat-" + some(_WORD, 20), "xoxb-" + some(string.digits, 12) + "-" + some(_WORD, 24),
        "AKIA" + some(upper, 16), "nvapi-" + some(_WORD + "-_", 64),
        "AIza" + some(_WORD + "-_", 35), "npm_" + some(_WORD, 36), token,
        "sk_live_" + some(_WORD, 24), "SG." + some(_WORD, 22) + "." + some(_WORD, 43),
        "hvs." + some(_WORD, 24), "dapi" + some(hexadecimal, 32), "gsk_" + some(_WORD, 52),
        "pypi-AgEIcHlwaS5vcmc" + some(_WORD, 50), "dckr_pat_" + some(_WORD, 27),
    ):  # fmt: skip
        for text in (
            "vllm serve m --served-model-name {}", "INFO downloading with {} from the hub",
            "https://host/models/{}/config.json", '{{"notes": ["uses {}"]}}', "X={} vllm serve m",
        ):  # fmt: skip
            yield text.format(secret), secret
    body = "\n".join(some(_WORD + "+/", 64) for _ in range(3))
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"
    yield f"echo '{key}' > a.pem; vllm serve m", body
    yield json.dumps({"text": key}), body.split("\n")[1]
    login = coded(f"user:{_mixed(draw)}".encode()).decode()
    yield f'curl -H "Authorization: Basic {login}" https://h', login


def planted(seed: int) -> Iterator[tuple[Any, list[str]]]:
    """Texts, command lines and JSON values, each with the parts of its secret."""
    draw = random.Random(seed)
    for texts, kinds in ((_BARE_TEXTS, BARE), (_QUOTED_TEXTS, QUOTED), (_URL_TEXTS, URL)):
        for text in texts:
            secret = draw.choice(kinds)(draw)
            yield text.replace("\\n", "\n").replace("§", secret), secret.split()
    for words in _ARGV:
        secret = draw.choice(QUOTED)(draw)
        yield [word.replace("§", secret) for word in words], secret.split()
    for make in _VALUES:
        secret = draw.choice(QUOTED)(draw)
        yield make(secret), secret.split()
    for text, secret in _shaped(draw):
        yield text, [secret]


ORDINARY_COMMANDS = lines_of("ordinary-commands")

ORDINARY = lines_of("ordinary")
