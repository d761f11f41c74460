"""Which words, options and models anybody may see: they are vLLM's, CUDA's or this package's.

The words are the parts of names in vLLM's sources and in this package's tables
(`scripts/known_words.py`).
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]+")
_FREE = 2  # letters of a part that tells nobody anything
_LONG = re.compile(r"[A-Za-z0-9]{10,}")
_DIGITS = 13  # more are no size and no time
_IDS = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]+")
_FOREIGN = re.compile(r"\w*[^\W\x00-\x7f]\w*")  # vLLM's words are of ASCII
_UNITS = frozenset({"µs", "μs"})
_SIZES = re.compile(r"[a-z]?(?:\d+[a-z]?)+")

_EXTRA_WORDS = """
docker podman run compose exec bash python vllm serve bench env sudo nohup torchrun srun mpirun
nvidia geforce rtx quadro tesla jetson orin thor blackwell gb200 dgx spark amd epyc intel xeon
arm cortex neoverse h100 demo workload generate gibibytes hbm pcie sxm nvl mig path host user
model name value text url mail address option secret
"""
_EXTRA = frozenset(_EXTRA_WORDS.split())
_OWNERS = (
    "openai meta-llama qwen mistralai google nvidia deepseek-ai redhatai neuralmagic unsloth "
    "microsoft ibm-granite tiiuae zai-org moonshotai minimaxai allenai cohereforai coherelabs "
    "eleutherai bigcode facebook stabilityai huggingfacetb lmsys thebloke nm-testing baai jinaai "
    "internlm opengvlab state-spaces ai21labs inclusionai tencent baidu bytedance-seed xiaomimimo "
    "stepfun-ai nousresearch casperhansen cyankiwi mradermacher bartowski amd intel"
)
_PUBLIC_OWNERS = frozenset(_OWNERS.split())
_OF_MODELS_WORDS = """
qwen qwq llama mistral mixtral ministral magistral devstral codestral pixtral gemma medgemma phi
deepseek glm kimi nemotron nemo granite falcon olmo molmo gpt oss coder instruct chat base
thinking reasoning think nano micro mini small medium large next super ultra pro lite flash omni
vision math code guard embed embedding embeddings reranker moe dense awq gptq gguf exl nvfp mxfp
bnb int bit bits dynamic static preview distill distilled hybrid it vl tts asr scout maverick
opt bloom pythia mamba jamba zamba minimax step yi exaone solar smol lm command hermes dolphin
wizard vicuna alpaca zephyr starcoder internvl ovis llava qvq eagle medusa mtp speculator draft
tiny air plus max turbo
"""
_OF_MODELS = frozenset(_OF_MODELS_WORDS.split())


@cache
def _read() -> tuple[frozenset[str], frozenset[str]]:
    text = files("spark_prof").joinpath("rules/known_words.txt").read_text("utf-8")
    lines = text.split()
    options = frozenset(line for line in lines if line.startswith("--"))
    return frozenset(lines) - options | _EXTRA, options


def unknown_parts(name: str) -> tuple[str, ...]:
    """The parts of a name that nothing known is called.

    >>> unknown_parts("acme_router_logits")
    ('acme',)
    """
    foreign = [] if name.isascii() else _FOREIGN.findall(name)
    if foreign := [word for word in foreign if word not in _UNITS]:
        return tuple(foreign)
    dictionary = _read()[0]
    unknown = [p for p in _PARTS.findall(name) if len(p) > _FREE and p.lower() not in dictionary]
    if not unknown:
        unknown = _IDS.findall(name) or [run for run in _LONG.findall(name) if _drawn(run)]
    return tuple(unknown)


def _drawn(run: str) -> bool:
    """Whether less than half of it is known words, as in a key: its parts are too short."""
    if run.isdigit() or _SIZES.fullmatch(run):
        return len(run) > _DIGITS and (run.isdigit() or bool(_HEX.fullmatch(run)))
    return 2 * sum(len(part) for part in _PARTS.findall(run) if len(part) > _FREE) < len(run)


def is_option(name: str) -> bool:
    """Whether vLLM's command line has that option."""
    plain = name.replace("_", "-").partition(".")[0]
    return plain in _read()[1] or plain.replace("--no-", "--", 1) in _read()[1]


def is_public_model(name: str) -> bool:
    """Whether a model's name is that of a well known owner's on the Hugging Face hub.

    >>> is_public_model("openai/gpt-oss-20b"), is_public_model("openai/acme-secret")
    (True, False)
    """
    owner, slash, model = name.partition("/")
    if not slash or "/" in model or owner.lower() not in _PUBLIC_OWNERS:
        return False
    dictionary = _read()[0] | _OF_MODELS
    parts = (part.lower() for part in _PARTS.findall(model))
    return all(len(part) <= _FREE or part in dictionary for part in parts)
