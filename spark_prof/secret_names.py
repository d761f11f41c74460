"""Whether a name is one of a secret, and which values may be seen in spite of it."""

from __future__ import annotations

import re
from functools import lru_cache

from spark_prof.secret_rules import NAMES, ORDINARY_WORDS

_LONGEST_NAME = 120
_NAME_RULES = tuple((re.compile(rf"(?:{rule.pattern})$"), rule) for rule in NAMES)
_NAME_WORDS = re.compile(
    "pass|pw|secret|key|token|auth|cred|cookie|sess|sid|netrc|jwt|bearer|psk|otp|webhook|sig|code|"
    "hmac|sas|policy|ticket|access|assertion"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]{0,40}(?:_[A-Z0-9]{1,40}){1,6}")
_IN_NAME = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
REFERENCE = re.compile(r"(?:\$\w+|\$\{\w+\}|\$\{\{[^{}\n]{0,80}\}\}|%\w+%)(?![^\s\"'`,;&|)\]}:@/])")
SEVERAL = re.compile(r"api_?keys?|tokens|keys|secrets|passwords|credentials")
"""Options that take more than one value."""
_SHOWN = re.compile(
    r"(?:|none|null|nil|true|false|undefined|unset|\*+|<?redacted>?|\[redacted\]"
    r"|<[A-Za-z_ |-]{1,40}>|str|string|int|float|bool|bytes|dict|list|tuple|any"
    r"|optional(?:\[\w{1,20}\]?)?|secretstr|type|\.{3}"
    r"|(?:~|\.{0,2})/[\w./~+-]*\.(?:json|pem|key|crt|cer|p12|pfx|txt|ya?ml|cfg|ini|conf|toml)"
    r"|/(?:var/)?run/secrets/[\w./-]+)",
    re.I,
)
"""Values that tell nothing, also of a secret."""
_SHOWN_WEAK = re.compile(
    r"-?[0-9][0-9.,]{0,6}(?: ?(?:n|u|m|µ)?s|%|/s|x|[KMGT]i?B|tok/s)?"
    r"|(?:torch\.)?(?:b?float|u?int|bf|fp)[0-9][\w:]*"
    r"|<[^<>\s]{0,40}>|\[[A-Z_]{1,12}\]"
    r"|/(?:home|root|workspace|vllm-workspace|mnt|data|usr|opt|tmp|var|app|srv|etc|scratch)"
    r"(?:/[\w.-]*)*"
    r"|basic|bearer|digest|auto|enabled|disabled|required|optional|default|yes|no|on|off|ok|failed"
    r"|hf|hub|file|env|cpu|cuda",
    re.I,
)
"""Values that are no secret where the name is also used for what is none."""


def name_strength(name: str, query: bool = False) -> int:
    """0 for no secret, 1 for a name that others use as well, 2 for one that is only a secret's."""
    found = _known_strength(name[-_LONGEST_NAME:], query)
    if not found and name[:1] == "-" and name[1:2] != "-" and len(name) > 3:
        return _known_strength(name[2:][-_LONGEST_NAME:], query)  # -eNAME=value, -Dname=value
    return found


@lru_cache(maxsize=8192)
def _known_strength(name: str, query: bool) -> int:
    if not _NAME_WORDS.search(name.lower()):
        return 0
    parent, _, last = name.rpartition(".")
    if parent and re.search(r"(?:^|[._-])(?:secrets|credentials)$", parent, re.I):
        return 2
    for each in {last or name, name}:
        plain = plain_name(each)
        variable = each.lstrip("-").isupper()
        for pattern, rule in _NAME_RULES:
            if (rule.where == "variable" and not variable) or (rule.where == "query" and not query):
                continue
            if pattern.search(plain) and not _is_ordinary(plain):
                return 1 if rule.weak else 2
    return 0


def plain_name(name: str) -> str:
    """In lower case, with underscores between its words."""
    name = name.strip("-_.")
    if not name.isupper():
        name = _IN_NAME.sub("_", name)
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _is_ordinary(plain: str) -> bool:
    """Whether a word before the ending says that it is no secret: eos_token, sort_key."""
    if re.search(r"password|passwd|passphrase|secret|api_?key|credential", plain):
        return False
    return any(
        ending in plain and not known.isdisjoint(plain.rpartition(ending)[0].split("_"))
        for ending, known in ORDINARY_WORDS.items()
    )


def is_shown(value: str, strength: int) -> bool:
    """Whether a value may be seen although its name is a secret's."""
    value = value.strip()
    if len(value) > 400:
        return False
    if _SHOWN.fullmatch(value) or REFERENCE.fullmatch(value):
        return True
    if _VARIABLE.fullmatch(value) and _known_strength(value, False):
        return True  # the name of a secret, such as HF_TOKEN
    return strength == 1 and bool(_SHOWN_WEAK.fullmatch(value))
