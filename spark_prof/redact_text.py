"""Finds secrets in a text: a line of a log, a command of a shell, a URL, JSON in JSON.

A text is read from name to name; what follows the name of a secret is hidden, in whatever quotes
and brackets it stands. Time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

from spark_prof.redact_lines import HIDDEN, hidden_apart, looks_random, without_marks
from spark_prof.secret_rules import (
    OPTION_USES,
    ORDINARY_WORDS,
    PHRASES,
    PROGRAM_NAMES,
    PROGRAMS,
    REFERENCE,
    SEVERAL,
    SHAPES,
    is_shown,
    name_of_short_form,
    name_strength,
    plain_name,
)

__all__ = ["HIDDEN", "header_value", "redacted_text"]

# Groups that are not given back are written (?>...): Python before 3.11.5 fails at (...)*+.
_SHAPE = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(rule.pattern for rule in SHAPES)})")
_PHRASES = tuple(
    re.compile(rule.pattern + ("" if "(?P<after>" in rule.pattern else "(?P<after>)"))
    for rule in PHRASES
)
_OF_PHRASES = re.compile(
    r"bear|basic|login|pass|echo|printf|tee|key|secret|token|cred|smb|rpc|rdp|vault|7z|mc a"
    r"|literal",
    re.I,
)  # each phrase has one of these
_NAME = re.compile(r"(?<!\w)(?:(?<!-)-{0,2})?[A-Za-z_]\w*+(?>(?:[.-]\w++)*)")
_ASSIGN = re.compile(
    r"(?>(?P<close>\\*+[\"'`]\]?+)?)\s{0,40}+(?P<sign>=>|:=|[?+]=|={1,3}"
    r"|:\s{0,4}(?:str|string|(?:Optional\[str\]|str \| None))\s{0,4}=(?!=)|:(?![:\\]|//))"
    r"(?:\s{0,200}+(?=\\*[\"'`\[{])|[ \t]*+)"
)
_OPEN = re.compile(
    r"[bru$]{0,2}(?P<quote>\"\"\"|'''(?!\\)|'\\''|'\"'\"'|\\*+[\"'`]|&quot;|&#0?39;)"
)
_BRACKET = re.compile(r"\\*+[\"'`]|[\[\](){}]")
_CALL = re.compile(r"[A-Za-z_][\w.]{0,63}+(?=\()")
_BARE = re.compile(
    r"(?>(?:[^\s\"'`,;&\\)\]}<|]"
    r"|\\(?!\\*[\"'`]|[nrt])[\s\S]"
    r"|,(?![\s\"'`]|$|[\w.-]{1,64}+[=:])"
    r"|&(?![&\s\"'`]|$|amp;|[\w.%-]{1,64}+=)"
    r"|[)\]}](?![\s,;:.)\]}\"'`&|<>\\]|$)"
    r"|\|(?![\s|]|$))+)"
)
_JOINED = re.compile(r"[\w$%+/@!~^*-]|[\"'](?=[^\s\"'`,;:)&|}\]])[^\s\"'`]{0,400}+[\"']")
_SPACE = re.compile(r"(?>(?:[ \t]|\\\r?\n)+)")
_IN_LIST = re.compile(r"\\*+[\"'`]\s{0,40}+,?+\s{0,40}+(?=\\*+[\"'`])")
_SCRIPT_FOLLOWS = re.compile(r"(?:-[a-z]*c|\beval|\bssh\b[^\n]{0,80})[\s\"'\\,=]*$")
_ENVIRONMENT_BEFORE = re.compile(r"([\"'])(?:-e|--(?:env|set|build-arg)=)$")
_HEADERS = re.compile(r"(?:proxy_)?authori[sz]ation|(?:set_)?cookie")
_SCHEME = re.compile(
    r"(?:Bearer|Basic|Token|Digest|ApiKey|Negotiate|Key|OAuth|AWS4-HMAC-SHA256)(?=[ +])", re.I
)
_PROSE = re.compile(
    r"(?:not|no|is|was|are|were|has|must|to|or|and|if|for|with|without|from|in|on|the|of|that|"
    r"which|set|unset|missing|required|invalid|expired|found|given|provided|can|cannot|could|should|"
    r"will|would|expected|got|option|options|flag|argument|value|may|via|only|as|by|when|but|does|did)[.,:;!?]?",
    re.I,
)
_RANDOM = re.compile(r"(?=[^\s]{0,200}?[0-9])(?=[^\s]{0,200}?[A-Za-z])[^\s]{6,}|\S{16,}")
_LOGIN = re.compile(
    r"(?<![\w/:@.+%-])(?P<user>[\w.+%-]{1,64}+):(?P<password>[^\s:@/\"'`,;<>(){}\[\]]{1,256}+)"
    r"@(?!sha\d{3}:)(?=[A-Za-z0-9])"
)
_NO_USER = re.compile(
    r"mailto|contact|author|maintainers?|from|to|cc|e?mail|by|sha\d+|acct|sip", re.I
)
_URL_START = re.compile(r":(?:\\?/){2}")
_URL_REST = re.compile(r"[^\s\"'`<>]*+")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]*+\]|[^@/?#:]*+)(?::\d{1,5})?(?:[/?#\\]|$)")
_AUTHORITY = re.compile(r"[^/?#\\]*+")
_RUN = re.compile(r"[^\s\"'`<>]++")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_ITEM = re.compile(r"[^\s,\[\](){}\"'`\\:=]+")
_WORD_BEFORE = re.compile(r"([A-Za-z]+)[ ]$")
_AFTER_NAME = frozenset([*"=+?:\"'`\\ \t\r\n]", ""])
_OPTION_GAP = re.compile(r"[\"']?,?[ \t=]+")
_SHORT_OPTION = re.compile(r"-[A-Za-z]{1,3}\d?(?!\w)")
_DRAWN = re.compile(r"\\*[\"']?([A-Za-z0-9+/_~.-]{14,512}+={0,2})(?=\\*[\"'\s,;&|)\]}]|$)")
_OF_A_MODEL = re.compile(r"-*(?:model|tokenizer|name|revision|served_model_name|id|hash)", re.I)
_LINE = re.compile(r"[^\n\r]*+")
_HEADER_END = re.compile(r"(?>(?:[^\"'`\n\r\\]|\\(?![nr\"'`]))*)")


def redacted_text(text: str, depth: int = 3) -> str:
    """A text, such as a line of a log, a command, a URL or JSON, with what is secret hidden.

    Of percent-encodings of one another as many as `depth` are looked into.
    """
    if not text.isascii() or "\x1b" in text:
        plain = without_marks(text)
        if plain != text:
            hidden = redacted_text(plain, depth)
            if hidden != plain:
                return hidden
    text = _SHAPE.sub(HIDDEN, text)
    text = hidden_apart(text)
    if "/" in text and "@" in text:
        text = "".join(_without_logins(text))
    text = "".join(_SecretNames(text).pieces())
    for phrase in _PHRASES if _OF_PHRASES.search(text) else ():
        text = phrase.sub(rf"\g<before>{HIDDEN}\g<after>", text)
    if "@" in text:
        text = _LOGIN.sub(_hidden_login, text)
    if "%" in text:
        text = _RUN.sub(lambda match: _decoded(match[0], depth), text)
    return text


def _hidden_login(match: re.Match[str]) -> str:
    user, password = match["user"], match["password"]
    ordinary = _NO_USER.fullmatch(user) or password == HIDDEN or password.isdigit()
    return match[0] if ordinary else f"{user}:{HIDDEN}@"


def _decoded(text: str, depth: int) -> str:
    """A percent-encoded text, encoded again where something in it was hidden."""
    if depth <= 0 or not _ENCODED.search(text):
        return text
    plain = unquote(text)
    hidden = redacted_text(plain, depth - 1)
    return text if hidden == plain else quote(hidden, safe="*:/?&=@,;+$")


def _without_logins(text: str) -> Iterator[str]:
    """The text with the passwords of its URLs hidden."""
    position = 0
    for match in _URL_START.finditer(text):
        at = match.end()
        if at < position:
            continue
        rest = _URL_REST.match(text, at)[0]  # type: ignore[index]
        if "@" not in rest:
            continue
        again = _URL_START.search(rest)
        rest = rest[: again.start()] if again else rest
        login = _AUTHORITY.match(rest)[0].rpartition("@")[0]  # type: ignore[index]
        if not login and not _HOST.match(rest):
            login = rest.partition("@")[0]  # a slash in the password
        if not login:
            continue
        scheme = text[max(0, match.start() - 8) : match.start()]
        yield text[position:at] + _hidden_userinfo(login, scheme)
        position = at + len(login)
    yield text[position:]


def _hidden_userinfo(login: str, scheme: str) -> str:
    user, colon, password = login.partition(":")
    keyed = bool(re.search(r"(?:^|[^a-z])(?:s3[an]?|gs|minio)$", scheme))
    marked = colon and password in ("", "x-oauth-basic")
    if (keyed and colon) or marked or (len(user) >= 16 and _RANDOM.fullmatch(user)):
        user = user and HIDDEN
    if password == "x-oauth-basic":
        return f"{user}:{password}"
    return f"{user}:{HIDDEN}" if colon and password else f"{user}{colon}"


class _SecretNames:
    """Goes through a text from name to name, and hides what follows those of secrets."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._program = ""
        self._named = (0, -1)

    def pieces(self) -> Iterator[str]:
        """The text in pieces, with what is secret hidden."""
        text, position = self._text, 0
        match = _NAME.search(text)
        while match:
            start, end = match.span()
            hidden = list(self._after(match[0], start, end))
            for first, last, replacement in hidden:
                yield text[position:first] + replacement
                position = last
            match = _NAME.search(text, max(position, end))
        yield text[position:]

    def _after(self, name: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        """What is hidden after a name: from where to where, and what is shown instead."""
        text = self._text
        before = text[max(0, start - 1) : start]
        argument = (self._program, name, "argument") in OPTION_USES
        if name in PROGRAM_NAMES and not argument:
            self._program = name
        if (name[0] == "-" or argument) and (span := self._of_program(name, start, end)):
            yield span
            return
        if text[end : end + 1] not in _AFTER_NAME:
            return
        query = before in "?&" or text[max(0, start - 5) : start] == "&amp;"
        strength = name_strength(name, bool(before) and query)
        assign = _ASSIGN.match(text, end)
        word = strength == 1 and _WORD_BEFORE.search(text, max(0, start - 24), start)
        if word and word[1].lower() in ORDINARY_WORDS["token"]:
            return  # one of the model's tokens: "time per output token: 12 ms"
        if assign:
            plain = name.lower()
            if strength == 0 and plain in ("name", "key"):
                self._name_object(assign.end())
            elif strength == 0 and plain == "value" and 0 <= start - self._named[1] < 200:
                strength = self._named[0]
        if not strength and name[:2] == "--":
            strength = name_of_short_form(name)
        if not strength:
            if (assign and assign["sign"] == "=") or name[0] == "-":
                yield from self._drawn(name, assign.end() if assign else end)
            return
        if assign:
            if span := self._assigned(name, start, assign, strength):
                yield span
        elif name[0] == "-":
            yield from self._option_values(name, end)
        elif before in ("'", '"') and text[start - 2 : start - 1] in ("(", "["):
            yield from self._pair(end, strength)

    def _drawn(self, name: str, at: int) -> Iterator[tuple[int, int, str]]:
        """A value of any option or variable that looks like a key."""
        if gap := _OPTION_GAP.match(self._text, at):
            at = gap.end()
        match = _DRAWN.match(self._text, at)
        if match and looks_random(match[1]) and not _OF_A_MODEL.search(plain_name(name)):
            yield match.start(1), match.end(1), HIDDEN

    def _name_object(self, at: int) -> None:
        """Remembers what a {"name": ..., "value": ...} is about."""
        opened = _OPEN.match(self._text, at)
        if opened:
            close = _closing(self._text, opened["quote"], opened.end())
            content = self._text[opened.end() : close] if 0 <= close - opened.end() < 120 else ""
            self._named = (name_strength(content), close)
        elif bare := _NAME.match(self._text, at):
            self._named = (name_strength(bare[0]), bare.end())

    def _assigned(
        self, name: str, start: int, assign: re.Match[str], strength: int
    ) -> tuple[int, int, str] | None:
        text, at, sign = self._text, assign.end(), assign["sign"]
        if at >= len(text):
            return None
        quoted = bool(assign["close"]) or _OPEN.match(text, at) or text[at] in "[{("
        before = text[max(0, start - 1) : start]
        enclosing = before if before in ("'", '"') and not assign["close"] else ""
        if sign == ":" and not quoted:
            return self._header(name, start, at, strength, enclosing)
        option = _ENVIRONMENT_BEFORE.search(text, max(0, start - 24), start)
        if option:
            start, enclosing = option.start() + 1, option[1]
        in_script = _SCRIPT_FOLLOWS.search(text[max(0, start - 100) : start - 1])
        if enclosing and not quoted and (option or name[0] == "-" or not in_script):
            close = self._end_of_quote(start, at)
            return None if is_shown(text[at:close], strength) else (at, close, HIDDEN)
        if text[at] == "\n":
            return None
        replacement, end = _hidden_value(text, at, strength, name)
        return None if replacement is None else (at, end, replacement)

    def _end_of_quote(self, start: int, at: int) -> int:
        """Where the quote ends that stands, with its backslashes, before the name."""
        first = start - 1
        while first and self._text[first - 1] == "\\":
            first -= 1
        return _end(self._text, self._text[first:start], at)

    def _header(
        self, name: str, start: int, at: int, strength: int, enclosing: str
    ) -> tuple[int, int, str] | None:
        """After a colon, and in no quotes of its own: a header, YAML or prose."""
        text = self._text
        if enclosing or _HEADERS.fullmatch(plain_name(name)):
            if enclosing:
                end = self._end_of_quote(start, at)
            else:
                pattern = _LINE if text.startswith("Digest ", at) else _HEADER_END
                end = pattern.match(text, at).end()  # type: ignore[union-attr]
            value = text[at:end]
            prose = enclosing and _PROSE.fullmatch("".join(value.split(None, 1)[:1]))
            return None if prose or is_shown(value, strength) else (at, end, header_value(value))
        first = _BARE.match(text, at)
        if first is None or is_shown(first[0], strength) or _PROSE.fullmatch(first[0]):
            return None
        line = text.rfind("\n", 0, start) + 1
        if text[at - 1] == ":":
            weak = strength == 1 and not _RANDOM.fullmatch(first[0])
            if weak or text[start - 1 : start] == "/":
                return None  # an image's tag, or a place
        elif not text[line:start].strip(" \t-"):
            stop = text.find("\n", at)
            rest = text[at : stop if stop >= 0 else None]
            if not re.search(r",\s*[\w.-]{1,64}\s*[:=]", rest):
                return at, at + len(rest.rstrip()), HIDDEN
        replacement, end = _hidden_value(text, at, strength, name)
        return None if replacement is None else (at, end, replacement)

    def _option_values(self, name: str, end: int) -> Iterator[tuple[int, int, str]]:
        """The values of an option, after white space or as the next items of a list."""
        text = self._text
        several = SEVERAL.fullmatch(plain_name(name))
        gap = _IN_LIST if text[end : end + 1] in "\\\"'`" else _SPACE
        first = True
        while (space := gap.match(text, end)) and space.end() < len(text):
            at = space.end()
            opened = _OPEN.match(text, at)
            content = opened.end() if opened else at
            if text.startswith("--" if first else "-", content):
                return
            if first and _SHORT_OPTION.match(text, content):
                return
            replacement, last = _hidden_value(text, at, 2, name, alone=bool(opened))
            one_hyphen = name[1:2] != "-" and name_strength(name) == 1
            if one_hyphen and not _RANDOM.fullmatch(text[at:last]):
                return  # of a text that was broken into lines
            if last == at or (not opened and _PROSE.fullmatch(text[at:last])):
                return
            if replacement is not None:
                yield at, last, replacement
            if not several:
                return
            first = False
            # The closing quote of an item belongs to the gap before the next one.
            end = last - len(opened["quote"]) if opened and gap is _IN_LIST else last

    def _pair(self, end: int, strength: int) -> Iterator[tuple[int, int, str]]:
        """("NAME", "value") in a list of pairs."""
        text = self._text
        space = _IN_LIST.match(text, end)
        if not space:
            return
        replacement, last = _hidden_value(text, space.end(), strength, "", alone=True)
        names_only = re.fullmatch(r"[\"'\\]*[A-Z_]+[\"'\\]*", text[space.end() : last])
        if replacement is not None and text[last : last + 1] in ")]" and not names_only:
            yield space.end(), last, replacement

    def _of_program(self, name: str, start: int, end: int) -> tuple[int, int, str] | None:
        """What follows an option of a program that takes a secret without a name."""
        text = self._text
        for rule in PROGRAMS:
            if rule.program != self._program:
                continue
            at = start + len(rule.option)
            beside = {
                "joined": bool(text[at : at + 1].strip(" \t\n\"'\\")),
                "login": name != rule.option and not rule.option.startswith("--"),
            }
            glued = name.startswith(rule.option) and beside.get(rule.kind, False)
            if not glued:
                gap = _OPTION_GAP.match(text, end) if name == rule.option else None
                if not gap:
                    continue
                at = gap.end()
            opened = _OPEN.match(text, at)
            at = opened.end() if opened else at
            bare = _BARE.match(text, at)
            stop = bare.end() if bare else at
            if opened:
                stop = _end(text, opened["quote"], at)
            elif start and text[start - 1] in "\"'" and text[end : end + 1] not in "\"'":
                stop = self._end_of_quote(start, at)
            if rule.kind == "login":
                colon = text.find(":", at, stop)
                if colon < 0:
                    continue
                at = colon + 1
            if stop > at and (glued or not text.startswith("-", at)):
                return at, stop, HIDDEN
        return None


def header_value(value: str) -> str:
    """What is shown of a header's value: its scheme, such as Bearer, and that it is hidden."""
    scheme = _SCHEME.match(value)
    return f"{scheme[0]} {HIDDEN}" if scheme else HIDDEN


def _hidden_value(
    text: str, at: int, strength: int, name: str, *, alone: bool = False
) -> tuple[str | None, int]:
    """What is shown for the value at that place, None for the value itself; and where it ends."""
    call = _CALL.match(text, at)
    opening = call.end() if call else at
    if text[opening] in "[({" or text.startswith(("$(", "<("), at):
        opening += text[opening] in "$<"
        return _hidden_brackets(text, at, opening, strength)
    reference = REFERENCE.match(text, at)
    if reference:
        return None, reference.end()
    position, parts, frame = at, [], ("", "")
    while position < len(text):
        opened = _OPEN.match(text, position)
        if opened and (position == at or _JOINED.match(text, position)):
            end = _end(text, opened["quote"], opened.end())
            parts.append(text[opened.end() : end])
            closing = opened["quote"] if text.startswith(opened["quote"], end) else ""
            if position == at:
                frame = (opened[0], closing)
            position = end + len(closing)
            if alone or not _JOINED.match(text, position):
                break
        else:
            bare = _BARE.match(text, position)
            if not bare:
                break
            parts.append(bare[0])
            position = bare.end()
            if not _JOINED.match(text, position):
                break
    value = "".join(parts)
    if is_shown(value, strength) or _is_own_name(value, name):
        return None, position
    return f"{frame[0]}{HIDDEN}{frame[1]}", position


def _is_own_name(value: str, name: str) -> bool:
    """Whether a value only says its name again, as in code and in help: token=self.token."""
    if len(value) > 120 or not name:
        return False
    return plain_name(value.rpartition(".")[2]) == plain_name(name)


def _hidden_brackets(text: str, at: int, opening: int, strength: int) -> tuple[str | None, int]:
    end = _balanced(text, opening)
    inner = text[opening + 1 : end - 1] if end - opening > 1 else ""
    if len(inner) < 400 and all(is_shown(item, strength) for item in _ITEM.findall(inner)):
        return None, end
    opened = _OPEN.search(inner)
    mark = opened["quote"] if opened else ""
    replacement = f"{mark}{HIDDEN}{mark}"
    if text[opening] == "{":
        return replacement, end
    closing = {"[": "]", "(": ")"}[text[opening]]
    return f"{text[at : opening + 1]}{replacement}{closing}", end


def _closing(text: str, mark: str, start: int) -> int:
    """Where the quote ends that this mark began; -1 for nowhere.

    A quote inside of one has more backslashes than the one that ends it.
    """
    if mark[0] not in "\\\"'`" or (len(mark) > 1 and mark[0] != "\\"):
        return text.find(mark, start)
    slashes, at = len(mark) - 1, text.find(mark[-1], start)
    while at >= 0:
        first = at
        while first > start and text[first - 1] == "\\":
            first -= 1
        if (at - first) % (2 * (slashes + 1)) == slashes:
            return at - slashes
        if at - first < slashes:
            return first
        at = text.find(mark[-1], at + 1)
    return -1


def _end(text: str, mark: str, start: int) -> int:
    """Where that quote ends; the end of the text where it does not."""
    close = _closing(text, mark, start)
    return len(text) if close < 0 else close


def _balanced(text: str, opening: int) -> int:
    """Where the bracket ends that opens there; the end of the text where it does not."""
    depth, at = 0, opening
    while bracket := _BRACKET.search(text, at):
        mark, at = bracket[0], bracket.end()
        if mark in "[({":
            depth += 1
        elif mark in "])}":
            depth -= 1
            if depth == 0:
                return at
        else:
            at = _end(text, mark, at) + len(mark)
    return len(text)
