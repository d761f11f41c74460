"""What a shared recording tells of its command, environment and processes: only what is known.

An option stays by its name; its value where it is a number, a switch or a word of vLLM's. All else
gets another name, the same one wherever it stands.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from spark_prof.exporters.pseudonyms import Pseudonyms, is_machine
from spark_prof.redact import HIDDEN, redacted
from spark_prof.rules.known_words import is_option, is_public_model, unknown_parts

_NUMBER = re.compile(r"[-+]?\d{1,13}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?[kKmMgGtT]?(?:i?[bB])?")
_WORD = re.compile(r"[A-Za-z0-9_][\w.+-]{0,63}(?:[,;:|]{1}[\w.+-]{1,64}){0,32}")
_VERSION = re.compile(r"v?\d{1,5}(?:\.\d{1,5}){1,3}(?:[a-z+.-][\w.+-]{0,40})?")
_PRIVATE_NAME = re.compile(
    r"(?:^|_)(?:host(?:name)?|hosts|addr(?:ess)?|ip|ips|user(?:name)?|users|owner|author|e?mail|url|uri"
    r"|endpoint|login|account|organi[sz]ation|org|project|team|entity|domain|origins?|mount|volume"
    r"|label|labels|comment|description|note|notes|message|prompt|instruction|text|template|alias"
    r"|ifname|socket|cert|certs|file|path|dir|folder|root|home|cache_root|namespace|tag|title)"
    r"(?:_|$)"
)
_HOSTS = re.compile(r"(?:^|_)(?:host(?:name)?|hosts|addr(?:ess)?|ip|ips|master)(?:_|$)")
_USERS = re.compile(r"(?:^|_)(?:user(?:name)?|users|owner|author|login|account)(?:_|$)")
_PATHS = re.compile(r"(?:^|_)(?:path|dir|folder|root|home|file|mount|volume|cert|certs)(?:_|$)")
_MODELS = re.compile(r"(?:^|_)(?:model|tokenizer|served_model_name|name_or_path|draft_model)$")
_ASSIGNED = re.compile(r"([A-Za-z_]\w{0,80})=(.*)", re.S)
_LONGEST = 300  # characters of a value; what is longer is a text
_LOCAL = frozenset({"127.0.0.1", "0.0.0.0", "localhost", "::", "::1"})
_VARIABLES = (
    "VLLM_", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "NVIDIA_", "OMP_",
    "MKL_", "HF_HUB_OFFLINE", "MAX_JOBS", "SPARK_PROF",
)  # fmt: skip
_LEFT_OUT = frozenset(
    {"pid", "run", "pid_namespace", "ppid", "uid", "cwd", "argv", "chat_template"}
)
_MACHINES = ("host", "boot")
_PLAIN = frozenset({"gpu", "vllm", "torch", "cuda", "flashinfer", "python", "machine"})
"""Facts that tell of hardware and versions; their texts stay but for places and hosts."""
_PROGRAMS = re.compile(
    r"vllm|python[\d.]*|docker|podman|nerdctl|bash|sh|zsh|fish|env|sudo|nohup|exec|torchrun|uvx?"
    r"|srun|mpirun|run|serve|bench|latency|throughput|startup|spark-prof|-|--|&&|\|\||;|\||record"
    r"|time|timeout|numactl|nice|taskset|compose|up|kubectl|ssh|cd|source|export|conda|uv|latest"
)
_OF_CONTAINERS = frozenset(
    ["gpus", "ipc", "network", "net", "runtime", "shm_size", "restart", "pid", "p", "publish",
     "ulimit", "rm", "it", "d", "privileged", "platform", "device"]
)  # fmt: skip
_SETTINGS = re.compile(
    r"all|host|bridge|none|nvidia|always|unless-stopped|no|device=\d{1,2}|\d{1,5}(?::\d{1,5})?"
    r"|nvidia\.com/gpu=(?:all|\d)|\d{1,4}[kmgKMG]b?|(?:memlock|stack)=-?\d{1,12}|linux/(?:arm64|amd64)"
)
_IMAGES = re.compile(
    r"(?:docker\.io/)?(?:vllm/vllm-openai|nvcr\.io/nvidia/(?:vllm|pytorch|tritonserver)"
    r"|rocm/vllm|lmsysorg/sglang):[\w.-]{1,60}"
)


def shared_command(command: Sequence[str], names: Pseudonyms) -> list[str]:
    """The words of a command, those that are not known replaced."""
    words, option, before = [], "", ""
    for index, word in enumerate(redacted(list(command))):
        if before == "serve" and not word.startswith("-"):
            public, option = names.model(word) if word != HIDDEN else word, ""
        else:
            public, option = _word(word, option, names, first=index == 0)
        words.append(public)
        before = word
    return words


def _word(word: str, option: str, names: Pseudonyms, *, first: bool) -> tuple[str, str]:
    """What is shown of a word, and the option whose value comes next."""
    if option in ("-c", "-lc", "-ic", "-ec") and (" " in word or ";" in word):
        return _script(word, names), ""
    if word == "--":
        return word, ""
    if word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word):
        name, equals, value = word.partition("=")
        public_name = _option_name(name, names)
        if not equals:
            return public_name, name
        return f"{public_name}={_option_value(name, value, names)}", ""
    if option:
        return _option_value(option, word, names), ""
    assigned = _ASSIGNED.fullmatch(word)
    if assigned:
        return _assignment(assigned[1], assigned[2], names), ""
    if _PROGRAMS.fullmatch(word) or _IMAGES.fullmatch(word) or _NUMBER.fullmatch(word):
        return word, ""
    last = word.rsplit("/", 1)[-1]
    if word == HIDDEN:
        return word, ""
    if first and _PROGRAMS.fullmatch(last):
        return last, ""
    return names.model(word) if is_public_model(word) else names.learn("value", word), ""


def _script(text: str, names: Pseudonyms) -> str:
    """A shell's script, word by word."""
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return names.name("text", text)
    return " ".join(
        word if re.fullmatch(r"[;&|]+", word) else shlex.quote(word)
        for word in shared_command(words, names)
    )


def _option_name(name: str, names: Pseudonyms) -> str:
    is_public = is_option(name) or (
        len(name) <= 40 and not unknown_parts(name) and re.fullmatch(r"-{1,2}[A-Za-z][\w.-]*", name)
    )
    short = re.fullmatch(r"-[A-Za-z]{1,4}", name)
    return name if is_public or short else f"--{names.name('option', name)}"


def _option_value(option: str, value: str, names: Pseudonyms) -> str:
    plain = option.lstrip("-").replace("-", "_").replace(".", "_").lower()
    if value == HIDDEN or value in _LOCAL or value == "" or _IMAGES.fullmatch(value):
        return value
    if plain in _OF_CONTAINERS and _SETTINGS.fullmatch(value):
        return value
    if option in ("-e", "--env", "-m", "-x") and (assignment := _ASSIGNED.fullmatch(value)):
        return _assignment(assignment[1], assignment[2], names)
    if option == "-m" and re.fullmatch(r"[\w.]+", value):
        return value if not unknown_parts(value) else names.learn("name", value)
    if _MODELS.search(plain):
        return names.model(value)
    if private := _private(plain, value, names):
        return private
    if value.startswith(("{", "[")):
        return _json(value, names)
    is_public = is_option(option) or option in (
        "-tp",
        "-pp",
        "-dp",
        "-O",
        "-q",
        "-cc",
        "-dcp",
        "-ep",
    )
    counted = plain in ("batch", "batch_size", "steps", "prompt", "n", "p", "port", "np", "gpus")
    if _NUMBER.fullmatch(value) and (is_public or counted or len(value) <= 5):
        return value
    if is_public and _harmless(value):
        return value
    return names.learn("value", value)


def _private(plain: str, value: str, names: Pseudonyms) -> str:
    """Another name for what belongs to a host, a user or a place; empty for anything else."""
    if _HOSTS.search(plain) and re.fullmatch(r"\d{8,10}", value):  # an address as one number
        return names.learn("host", value)
    if not _PRIVATE_NAME.search(f"_{plain}_") or _NUMBER.fullmatch(value):
        return ""
    if re.fullmatch(r"(?i)none|null|true|false|auto|\{\}|\[\]|set\(\)|\(\)", value):
        return ""
    if value in _LOCAL:
        return value
    if _HOSTS.search(plain):
        return names.learn("host", value)
    if _USERS.search(plain):
        return names.learn("user", value)
    return names.learn("path" if _PATHS.search(plain) else "value", value)


def _harmless(value: str) -> bool:
    """Whether a value is a switch, a number or words of vLLM's."""
    if is_machine(value):
        return False
    if _NUMBER.fullmatch(value) or _VERSION.fullmatch(value) or is_public_model(value):
        return True
    plain = _WORD.fullmatch(value) and len(value) <= 160
    return bool(plain) and not unknown_parts(value)


def _json(text: str, names: Pseudonyms) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return names.name("value", text)
    return json.dumps(shared_value(value, names))


def _assignment(name: str, value: str, names: Pseudonyms) -> str:
    public_name = (
        name if not unknown_parts(name) else names.name("name", name).upper().replace("-", "_")
    )
    return f"{public_name}={_variable(name, value, names)}"


def _variable(name: str, value: str, names: Pseudonyms) -> str:
    plain = name.lower()
    if value in (HIDDEN, "") or value in _LOCAL:
        return value
    if not name.startswith(_VARIABLES):
        return names.learn("value", value) if not _NUMBER.fullmatch(value) else value
    if private := _private(plain, value, names):
        return private
    return value if _harmless(value) else names.learn("value", value)


def shared_environment(variables: Mapping[str, Any], names: Pseudonyms) -> dict[str, str]:
    """The variables of vLLM, CUDA and their libraries."""
    return {
        name: _variable(name, str(value), names)
        for name, value in variables.items()
        if name.startswith(_VARIABLES) and not unknown_parts(name)
    }


def shared_facts(facts: Mapping[str, Any], names: Pseudonyms) -> dict[str, Any]:
    """What a process told of itself, without host, user and process numbers."""
    shared: dict[str, Any] = {}
    for key, value in facts.items():
        if key in _LEFT_OUT or unknown_parts(key):
            continue
        if key == "environment" and isinstance(value, Mapping):
            shared[key] = shared_environment(value, names)
        elif key in _MACHINES:
            shared[key] = names.learn("host", str(value)) if value else value
        elif key == "model":
            shared[key] = names.model(str(value))
        elif key in _PLAIN or key == "execution":
            shared[key] = _plain(value, names)
        else:
            shared[key] = shared_value(value, names, key)
    return shared


def _plain(value: Any, names: Pseudonyms) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, names) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, names) for entry in value]
    return shared_text(value, names) if isinstance(value, str) else value


def shared_value(value: Any, names: Pseudonyms, key: str = "", depth: int = 24) -> Any:
    """A value of JSON: numbers and switches stay, texts where they are words of vLLM's."""
    if depth <= 0:
        return None
    if isinstance(value, Mapping):
        return {
            _key(str(name), names): shared_value(entry, names, str(name), depth - 1)
            for name, entry in value.items()
            if str(name) not in _LEFT_OUT
        }
    if isinstance(value, list | tuple):
        return [shared_value(entry, names, key, depth - 1) for entry in value]
    return _text(value, key, names) if isinstance(value, str) else value


def _key(name: str, names: Pseudonyms) -> str:
    is_public = (
        not unknown_parts(name) and not is_machine(name) and re.fullmatch(r"[\w.*+-]{1,80}", name)
    )
    return name if is_public else names.name("name", name)


def _text(value: str, key: str, names: Pseudonyms) -> str:
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()
    if not value or value == HIDDEN or value in _LOCAL:
        return value
    if value in ("True", "False", "None"):
        return value
    if "\n" in value or len(value) > _LONGEST:
        return shared_text(value, names)
    if _MODELS.search(plain):
        return names.model(value)
    if private := _private(plain, value, names):
        return private
    if _harmless(value):
        return value
    return shared_text(value, names)


def shared_text(text: str, names: Pseudonyms, *, read: bool = False) -> str:
    """A text, word by word; one that is mostly unknown, or is prose or a template, is replaced.

    What stays are the words of vLLM's, CUDA's and this package's messages; of what a rule has read
    also those of long ones.
    """
    prose = not read and re.fullmatch(r"[^=(){}\[\]<>]*", text) and len(text.split()) > 24
    if "{%" in text or "{{" in text or prose:
        return names.name("text", text)
    return names.without_unknown(names.without_machines(names.without_places(text)))
