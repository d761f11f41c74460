"""Finds secrets that stand apart from their names, or that look drawn at random.

A name in YAML may have its value in a block, a list or beside it under `value`; a shell may put a
secret into a variable first; some programs take name and value as two words. Time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from spark_prof.secret_rules import is_shown, name_strength

_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_SEGMENT = re.compile(r"[A-Za-z0-9]{14,256}")
_WORD = re.compile(r"[A-Za-z0-9+/_~.=-]{14,512}")
_SYMBOL = re.compile(r"_Z|0x|sha\d|GPU-|MIG-")
_CHARACTERS_A_PIECE = 2.8
"""Of names in capitals and small letters each piece has more: 99 % of vLLM's; 7 % of drawn ones."""
_IN_WORDS = 0.45  # share of letters in pieces of five and more, from which it is a name


def looks_random(word: str) -> bool:
    """Whether a word has a long part of mixed letters and digits that make no words.

    Numbers, hashes, UUIDs, names of classes and of models are none: `Qwen3MoeForCausalLM`.
    """
    if not _WORD.fullmatch(word) or _SYMBOL.match(word):
        return False
    return any(map(_looks_drawn, _SEGMENT.findall(word)))


def _looks_drawn(segment: str) -> bool:
    if segment.islower() or segment.isupper() or not any(map(str.isdigit, segment)):
        return False
    pieces = _PIECES.findall(segment)
    if not any(map(str.islower, pieces)) or len(segment) > _CHARACTERS_A_PIECE * len(pieces):
        return False
    in_words = sum(len(piece) for piece in pieces if len(piece) >= 5 and piece.isalpha())
    return in_words < _IN_WORDS * len(segment)


HIDDEN = "***"  # what stands for a secret

_MARKS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]|[\u200b-\u200f\u2060\ufeff\u00ad]")
_KEY_LINE = re.compile(
    r"(?P<indent>[ \t]*)(?P<dash>(?:- {1,4}){0,2})[\"']?(?P<name>[A-Za-z_][\w.-]{0,80})"
    r"[\"']?[ \t]*:[ \t]*(?P<block>[|>][-+0-9]{0,2})?[ \t]*(?:#.*)?\r?"
)
_OPTION_LINE = re.compile(
    r"(?P<rest>[ \t]*(?:- {1,4})?)(?P<quote>[\"']?)(?P<name>--[\w-]{1,80})(?P=quote),?\r?"
)
_OPTION_END = re.compile(r"(?:^|[ \t])(?P<name>--[\w-]{1,80})[ \t]*\r?$")
_KEY_LIKE = re.compile(r"(?=\S{0,200}[0-9])(?=\S{0,200}[A-Za-z])\S{8,}")
_DRAWN = re.compile(r"(?<![^\s\"'])[A-Za-z0-9+/_~.-]{16,512}={0,2}(?=[\"'\s]|$)")
_MODEL_BEFORE = re.compile(
    r"(?:\bserve|--?(?:model|tokenizer|served-model-name|revision|name|m))[\s\"',]+$"
)
_ENTRY = re.compile(
    r"(?P<indent>[ \t]*)(?P<lead>(?:- {1,4})?(?:[\"']?[\w.-]{1,80}[\"']?[ \t]*:[ \t]+)?)"
    r"(?P<value>\S.*)"
)
_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|)\"'`<>]+)"
_VALUE_FIRST = re.compile(
    rf"(?P<before>\bvalue[\"']?[ \t]{{0,4}}[:=][ \t]{{0,4}})(?P<value>{_VALUE})"
    r"(?P<after>,?\s{0,40}[\"']?(?:name|key)[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?"
    r"(?P<name>[A-Za-z_][\w.-]{0,80}))",
    re.I,
)
_SETTERS = re.compile(
    r"(?P<before>(?:\bset(?:[ \t]{1,4}-{1,2}[A-Za-z]{1,10}){1,4}|\bsetenv|\bsetx|\bSet-Item|\bENV"
    r"|\bconfig(?:ure)?(?:[ \t]{1,4}(?:set|add|--?[a-z-]{1,20})){0,4}"
    r"|\bcon(?:nection)?[ \t]{1,4}mod(?:ify)?[ \t]{1,4}\S{1,80}|\bapply)"
    r"[ \t]{1,4}(?:Env:)?)(?P<name>[\w./:-]{1,120})(?P<gap>[ \t]{1,4})"
    rf"(?P<value>{_VALUE})"
)
_OF_SETTERS = re.compile(r"\b(?:set|ENV|config|con|apply|Set-Item)")
_OF_TWO_WORDS = re.compile(
    r"(?:token|key|secret|passw|pat|pwd|credentials?|auth|cookie|jwt)[ \t]", re.I
)
_TWO_WORDS = re.compile(
    r"(?<![\w-])(?P<name>[A-Za-z]\w{0,40}[_-]\w{1,40}|authtoken)(?P<gap>[ \t]{1,4})"
    r"(?P<value>(?=[^\s\"']{0,80}[0-9])(?=[^\s\"']{0,80}[A-Za-z])[^\s\"';&|,:)]{10,200})"
)
_TAG = re.compile(
    r"(?P<before><(?P<tag>[A-Za-z][\w.:-]{0,60})(?P<rest>[^<>]{0,200})>)(?P<value>[^<]{1,2000})"
    r"(?P<after></)"
)
_OF_TAG = re.compile(r"\b(?:key|name)[ \t]*=[ \t]*[\"']([\w.-]{1,80})[\"']", re.I)
_REFERENCE = re.compile(
    r"(?<![\w-])(?P<name>-{0,2}[A-Za-z][\w-]{0,80})(?:=|[ \t]{1,4}|:[ \t]?)[\\\"']{0,4}"
    r"\$\{?(?P<variable>[A-Za-z_]\w{0,60}|[0-9@*])"
)
_ASSIGNED = re.compile(
    r"(?<![\w$-])(?P<name>[A-Za-z_]\w{0,60})(?P<sign>=|[ \t]{0,4}<<<[ \t]{0,4})(?P<value>"
    r"\\\"[^\"\\\n]*\\\"|\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|)\"'`\\<>]+)"
)
_READ = re.compile(
    r"(?P<before>\bread\b[^\n;|]{0,40}[ \t](?P<name>\w{1,60})[ \t]*<<<[ \t]*)"
    rf"(?P<value>{_VALUE})"
)
_SCRIPT = re.compile(
    r"-[a-z]{0,4}c[\"']?,?[ \t]{1,4}(?P<script>\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+')"
    rf"(?P<arguments>(?:,?[ \t]{{1,4}}{_VALUE}){{1,16}})"
)

_ARGUMENT = re.compile(rf"(,?[ \t]{{1,4}})({_VALUE})")


def without_marks(text: str) -> str:
    """A text without colours of a terminal and letters that nobody sees."""
    return _MARKS.sub("", text)


def hidden_apart(text: str) -> str:
    """A text with the secrets hidden that do not stand right behind their names."""
    if "\n" in text:
        text = "\n".join(_without_blocks(text.split("\n")))
    if "alue" in text or "ALUE" in text:
        text = _VALUE_FIRST.sub(_named, text)
    if _OF_SETTERS.search(text):
        text = _SETTERS.sub(_named, text)
    if _OF_TWO_WORDS.search(text):
        text = _TWO_WORDS.sub(_two_words, text)
    if " -" in text:
        text = _DRAWN.sub(_drawn, text)
    if "</" in text:
        text = _TAG.sub(_tag, text)
    if "$" in text:
        text = _without_referenced(text)
    return text


def secret_arguments(script: str) -> set[int] | None:
    """Which of its arguments a shell's script takes as secrets; None for every one.

    >>> secret_arguments('vllm serve m --api-key "$1"')
    {1}
    """
    names = _referenced(script)
    return None if names & {"@", "*"} else {int(name) for name in names if name.isdigit()}


def _named(match: re.Match[str]) -> str:
    name = match["name"]
    strength = max(name_strength(name), name_strength(re.split(r"[./:]", name)[-1]))
    groups = match.groupdict()
    rest = name + groups["gap"] if "gap" in groups else ""
    value = _unquoted(match["value"])
    if not strength or is_shown(value, strength) or value.startswith("-"):
        return match[0]
    return f"{match['before']}{rest}{_quoted(match['value'])}{groups.get('after') or ''}"


def _drawn(match: re.Match[str]) -> str:
    if not looks_random(match[0]):
        return match[0]
    before = match.string[max(0, match.start() - 40) : match.start()]
    return match[0] if _MODEL_BEFORE.search(before) or not before.strip() else HIDDEN


def _two_words(match: re.Match[str]) -> str:
    strength = name_strength(match["name"])
    value = match["value"]
    plain = "=" in value or value.startswith(("-", "/", "$")) or is_shown(value, strength)
    return match[0] if not strength or plain else f"{match['name']}{match['gap']}{HIDDEN}"


def _tag(match: re.Match[str]) -> str:
    names = [match["tag"], *_OF_TAG.findall(match["rest"])]
    strength = max(map(name_strength, names))
    if not strength or is_shown(match["value"], strength):
        return match[0]
    return f"{match['before']}{HIDDEN}{match['after']}"


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0] else value


def _quoted(value: str) -> str:
    mark = value[0] if value[0] in "\"'" else ""
    return f"{mark}{HIDDEN}{mark}"


def _without_blocks(lines: list[str]) -> Iterator[str]:
    """Lines with the values hidden that stand below the names of secrets."""
    indent, strength, dashed, block, option, alone = 0, 0, False, False, False, False
    for line in lines:
        if strength and line.strip():
            entry = _ENTRY.match(line)
            deeper = bool(entry) and _width(entry["indent"]) > indent if entry else False
            item = entry is not None and entry["lead"].startswith("-")
            below = entry and (
                deeper or (item and not dashed and _width(entry["indent"]) == indent)
            )
            if entry and option:
                value = entry["value"].strip().strip("\"',\\")
                word, _, after = value.partition(" ")
                one = not after or after.lstrip().startswith("-")
                likely = (alone or (one and _KEY_LIKE.match(word))) and not value.startswith("-")
                if word and likely and not is_shown(word, strength):
                    redacted_value = entry["value"].replace(word, HIDDEN, 1)
                    line = f"{entry['indent']}{entry['lead']}{redacted_value}"
                strength = 0
            elif entry and below:
                value = _unquoted(entry["value"].strip().rstrip(","))
                one = block or strength == 2 or looks_random(value) or " " not in value
                if one and not is_shown(value, strength):
                    line = f"{entry['indent']}{entry['lead']}{HIDDEN}"
                yield line
                continue
            else:
                strength = 0
        if match := _OPTION_END.search(line) or _OPTION_LINE.fullmatch(line):
            strength, option = name_strength(match["name"]), True
            alone = bool(_OPTION_LINE.fullmatch(line))
        elif match := _KEY_LINE.fullmatch(line):
            indent = _width(match["indent"]) + len(match["dash"])
            dashed = bool(match["dash"])
            strength, option = name_strength(match["name"]), False
            block = bool(match["block"])
        yield line


def _width(indent: str) -> int:
    return len(indent.expandtabs())


def _referenced(text: str) -> set[str]:
    """The variables that a secret's option or variable takes its value from."""
    return {
        match["variable"] for match in _REFERENCE.finditer(text) if name_strength(match["name"])
    }


def _without_referenced(text: str) -> str:
    names = {name for name in _referenced(text) if not name_strength(name)}
    if not names:
        return text

    def assigned(match: re.Match[str]) -> str:
        value = match["value"]
        if match["name"] not in names or value.strip("\\\"'").startswith("$"):
            return match[0]
        mark = re.match(r"\\?[\"']|", value)
        quote = mark[0] if mark else ""
        return f"{match['name']}{match['sign']}{quote}{HIDDEN}{quote}"

    text = _ASSIGNED.sub(assigned, text)
    text = _READ.sub(
        lambda m: m["before"] + _quoted(m["value"]) if m["name"] in names else m[0], text
    )
    return _SCRIPT.sub(_without_arguments, text)


def _without_arguments(match: re.Match[str]) -> str:
    secret_numbers = secret_arguments(match["script"])
    if secret_numbers is not None and not secret_numbers:
        return match[0]
    number = -1

    def hidden(value: re.Match[str]) -> str:
        nonlocal number
        number += 1
        word = _quoted(value[2]) if secret_numbers is None or number in secret_numbers else value[2]
        return value[1] + word

    arguments = _ARGUMENT.sub(hidden, match["arguments"])
    return match[0][: -len(match["arguments"])] + arguments
