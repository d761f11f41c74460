"""Names that stand for private ones: the same text has the same one everywhere in a recording."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable

from spark_prof.redact import redacted_text
from spark_prof.rules.known_words import is_public_model, unknown_parts

_ARN = re.compile(r"\barn:[a-z-]{1,20}:[^\s'\"<>,()\[\]]+")
_PHONE = re.compile(r"(?<![\w+-])\+[1-9]\d{0,2}(?:[ ./()-]{1,2}\d{2,8}){2,5}(?!\d)")
_ACCOUNT = re.compile(r"(?<![\w-])S-1-\d{1,3}(?:-\d{1,10}){2,15}(?!-?\d)")
_URL = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]{0,20}:(?:\\?/){2}[^\s'\"<>]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}")
_IPV4 = re.compile(r"(?<!\d)(?<!\d\.)(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)")
_COLONS = re.compile(
    r"(?<![A-Za-z0-9:])[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{1,44}(?:%\w{1,16})?(?![A-Za-z0-9:])"
)
_ZEROS = re.compile(r"(?<![\w:])0+(?=\d)|(?<=\.)0+(?=\d)")  # 10.31.7.019
_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")
_UUID = re.compile(
    r"(?i)(?<![A-Za-z0-9])(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![A-Za-z0-9])"
)
_PART = r"[^\s/\\'\"=,:;()\[\]{}<>|&*?`]"
_PATH = re.compile(
    rf"(?<![\w.:/\\~-])(?:(?:~{_PART}{{0,64}}|\.{{1,2}}|[A-Za-z]:)?[/\\]{{1,2}}(?={_PART})"
    rf"|{_PART}{{1,128}}/)(?:{_PART}{{1,255}}[/\\]{{1,2}})*{_PART}{{0,255}}"
)
_DOMAIN = re.compile(
    r"(?i)(?<![\w.-])(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,8}"
    r"(?:com|net|org|edu|gov|mil|int|io|dev|app|cloud|tech|xyz|info|biz|co|us|eu|de|fr|uk|ch|at|nl|it"
    r"|es|se|no|fi|pl|cz|ru|cn|jp|kr|tw|in|sg|au|ca|br|ai|local|localdomain|internal|intranet|corp"
    r"|lan|home|arpa|test|example|invalid|cluster|svc|private|priv|site|online|host)(?![\w-]|\.\w)"
)
_OF_PODS = "bcdfghjklmnpqrstvwxz2456789"
_MACHINE = re.compile(
    r"(?i)(?<![A-Za-z0-9:-])(?:gpu|node|host|dgx|server|srv|rack|spark|vm|box|pod|ws|worker|login|desktop"
    r"|laptop|ip|ec2|i|n|c)(?:-[a-z0-9]{1,16}){0,6}-(?=[a-z-]{0,32}\d)[a-z0-9-]{1,32}(?![A-Za-z0-9-])"
    r"|(?<![A-Za-z0-9:-])(?:gpu|node|host|dgx|server|srv|rack|spark|box|pod|ws)\d{1,6}(?![A-Za-z0-9-])"
    # A pod of Kubernetes, with the letters of its hashes; a private address in hexadecimal.
    rf"|(?<![A-Za-z0-9-])[a-z0-9]{{1,32}}(?:-[a-z0-9]{{1,32}}){{0,8}}-(?=[a-z]*\d)[{_OF_PODS}]{{8,10}}"
    rf"-[{_OF_PODS}]{{5}}(?![A-Za-z0-9-])"
    r"|(?<![A-Za-z0-9])0x(?:0a[0-9a-f]{2}|ac1[0-9a-f]|c0a8)[0-9a-f]{4}(?![A-Za-z0-9])"
)
_CONFIG = re.compile(
    r"(?P<folder>[^\s'\"=,]{0,400}[/\\])?(?P<file>(?:[ENKM]|headdim)=\d{1,6},[\w=,.\[\]-]{1,200}\.json)"
)
"""A file of tuned sizes, which tells what vLLM looked for."""
_BOTH_KNOWN = re.compile(r"[A-Za-z][\w-]{0,24}/[A-Za-z][\w-]{0,24}")  # MXFP4/MXFP6
_LOCAL = {"0.0.0.0", "127.0.0.1", "255.255.255.255", "::", "::1", "localhost", "127.0.1.1"}
_NOT_A_PATH = re.compile(r"(?:[A-Za-z]{1,8}|\d[\d.,]{0,12})/(?:s|step|token|op|\d[\d.,]{0,12})")
_WORD = re.compile(r"[^\W_]+")
_WHOLE = re.compile(r"(?<![\w.])\d{1,6}\.$")
_HARDWARE = re.compile(r"(?i)(?:h|a|b|l|v|t|p|gb|gh|rtx|sm|mi|gfx|fp|int|bf)\d+\w{0,4}")
_TOKEN = re.compile(r"[A-Za-z0-9]+(?:[._-]{1,3}[A-Za-z0-9]+)*")
_BETWEEN = re.compile(r"([._-]+)")
_MOST_PARTS = 6
_GPU = re.compile(r"GPU\d{1,2}")  # its number
_LEARNED_SHORTEST = 3
_COMMON_WORDS = """
root home usr opt var tmp etc data mnt srv lib bin local share cache workspace models model vllm
com net org www localhost none null true false default user admin ubuntu path host name value
text url mail address option python secret
"""
_COMMON = frozenset(_COMMON_WORDS.split())


class Pseudonyms:
    """Gives private texts other names, and counts how many of which kind there were."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()
        self._secrets: set[str] = set()
        self._learned: dict[str, tuple[str, str]] = {}  # a word: the kind and text it tells of

    @property
    def counts(self) -> dict[str, int]:
        """How many texts of each kind got another name."""
        kinds = Counter(name.rpartition("-")[0].lstrip("/") for name in set(self._names.values()))
        return {**kinds, **({"secret": len(self._secrets)} if self._secrets else {})}

    def settled(self) -> Pseudonyms:
        """Pseudonyms that know from the start which names these have learned."""
        settled = Pseudonyms()
        settled._learned = dict(self._learned)
        return settled

    def name(self, kind: str, text: str) -> str:
        """The other name of a text, such as path-1; the same for the same text."""
        key = text.strip().rstrip("/") if kind in ("path", "model") else text.strip()
        key = key.lower() if kind in ("host", "user") else key
        if key in self._names:
            return self._names[key]
        self._numbers[kind] += 1
        name = f"{kind}-{self._numbers[kind]}"
        if kind == "model" and ("/" in text or "\\" in text):
            name = f"/{name}"  # the report tells that it is a path of another machine
        self._names[key] = name
        return name

    def learn(self, kind: str, text: str) -> str:
        """Names a text as `name` does; it is replaced from now on wherever it stands as a word."""
        name = self.name(kind, text)
        for word in _learnable(kind, text):
            self._learned.setdefault(word.lower(), (kind, text))
        return name

    def without_known(self, text: str) -> str:
        """A text without the words that were learned, in capitals or small letters."""
        return _TOKEN.sub(lambda match: self._token(match[0]), text) if self._learned else text

    def _token(self, token: str) -> str:
        """A word of several parts, of which some may be known together: acme-secret_v2."""
        if token.lower() in self._learned:
            return self.name(*self._learned[token.lower()])
        parts = _BETWEEN.split(token)  # words, and what is between them
        replaced, at = [], 0
        while at < len(parts):
            longest = min(at + 2 * _MOST_PARTS, len(parts) + 1)
            for end in range(longest - 1, at, -2):
                if kind_and_text := self._learned.get("".join(parts[at:end]).lower()):
                    replaced.append(self.name(*kind_and_text))
                    break
            else:
                end = at + 1
                replaced.append(parts[at])
            replaced += parts[end : end + 1]
            at = end + 1
        return "".join(replaced)

    def without_places(self, text: str) -> str:
        """A text without secrets, addresses, URLs, mail, paths and hosts."""
        pieces, end = [], 0
        for match in _CONFIG.finditer(text) if ".json" in text else ():
            folder = f"{self.name('path', match['folder'])}/" if match["folder"] else ""
            pieces += [self._without_places(text[end : match.start()]), folder, match["file"]]
            end = match.end()
        return "".join(pieces) + self._without_places(text[end:])

    def _without_places(self, text: str) -> str:
        cleaned = redacted_text(text)
        if cleaned != text:
            self._secrets.add(text)
        if "://" in cleaned or ":\\/" in cleaned:
            cleaned = _URL.sub(lambda match: self.name("url", match[0]), cleaned)
        if "arn:" in cleaned:
            cleaned = _ARN.sub(lambda match: self.name("id", match[0]), cleaned)
        if "+" in cleaned:
            cleaned = _PHONE.sub(lambda match: self.name("id", match[0]), cleaned)
        if "S-1-" in cleaned:
            cleaned = _ACCOUNT.sub(lambda match: self.name("id", match[0]), cleaned)
        if "@" in cleaned:
            cleaned = _MAIL.sub(lambda match: self.name("mail", match[0]), cleaned)
        if "/" in cleaned or "\\" in cleaned:
            cleaned = _PATH.sub(self._path, cleaned)
        cleaned = self.without_known(cleaned)
        if ":" in cleaned:
            cleaned = _MAC.sub(lambda match: self.name("address", match[0]), cleaned)
            cleaned = _COLONS.sub(self._address, cleaned)
        cleaned = _IPV4.sub(self._address, cleaned)
        cleaned = _UUID.sub(lambda match: self.name("id", match[0]), cleaned)
        if "." in cleaned:
            cleaned = _DOMAIN.sub(lambda match: self.learn("host", match[0]), cleaned)
        return cleaned

    def without_machines(self, text: str) -> str:
        """A text without what looks like the name of a machine: node-17, gpu7."""
        return _MACHINE.sub(
            lambda f: (
                f[0] if _is_pseudonym(f[0]) or _GPU.fullmatch(f[0]) else self.learn("host", f[0])
            ),
            text,
        )

    def without_unknown(self, text: str) -> str:
        """A text without words that neither vLLM nor CUDA nor this package has."""

        def replacement(match: re.Match[str]) -> str:
            fraction = match[0].isdigit() and _WHOLE.search(
                text, max(0, match.start() - 8), match.start()
            )
            if fraction or not unknown_parts(match[0]):
                return match[0]
            return self.name("name", match[0])

        return _WORD.sub(replacement, text)

    def model(self, text: str) -> str:
        """A model: one of the hub's known owners stays, all others get a name."""
        return text if is_public_model(text) or not text else self.learn("model", text)

    def _address(self, match: re.Match[str]) -> str:
        text = match[0]
        plain = text.partition("%")[0].rstrip(".:") if not text.endswith("::") else text
        if not _is_address(plain):
            return text
        return text.replace(plain, self.name("address", plain), 1)

    def _path(self, match: re.Match[str]) -> str:
        text = match[0]
        if text.strip("/\\.~") == "" or _NOT_A_PATH.fullmatch(text) or is_public_model(text):
            return text
        if _BOTH_KNOWN.fullmatch(text) and not unknown_parts(text):
            return text
        return self.learn("path", text)


def is_machine(text: str) -> bool:
    """Whether something in a text looks like a machine or its address: node-17, 10.0.0.7."""
    if any(shape.search(text) for shape in (_MACHINE, _MAC, _UUID, _ACCOUNT, _PHONE)):
        return True
    return any(map(_is_address, [*_IPV4.findall(text), *_COLONS.findall(text)]))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(_ZEROS.sub("", text))
    except ValueError:
        return False
    return text not in _LOCAL


def _is_pseudonym(text: str) -> bool:
    return bool(
        re.fullmatch(
            r"(?:path|host|user|model|name|value|text|url|mail|address|id|option)-\d+", text
        )
    )


def _learnable(kind: str, text: str) -> Iterable[str]:
    """What of a private text would tell it in another place."""
    plain = text.strip().strip("'\"").rstrip("/\\")
    words = [plain]
    if kind == "path":
        # A user's folder tells the user.
        users = re.findall(r"(?:^|[/\\])(?:home|Users|users|u|nfs/home)[/\\]([^/\\]+)", plain)
        users += re.findall(r"^~([^/\\]+)", plain)
        parts = [p for p in re.split(r"[/\\]", plain) if unknown_parts(p) and len(p) > 3]
        words += [*users, *parts]
    if kind == "host":
        labels = plain.split(".")
        words += [labels[0]] if len(labels) > 1 else []
        words += [label for label in labels[1:-1] if unknown_parts(label)]
    if kind in ("user", "value", "model"):
        words += [p for p in re.split(r"[/\\@:=,\s]", plain) if unknown_parts(p) and len(p) > 3]
    for word in words:
        short = len(word) < _LEARNED_SHORTEST or len(word) > 512
        if not short and word.lower() not in _COMMON and not word.replace(".", "").isdigit():
            machine = (
                kind == "host" and re.search(r"[.\d-]", word) and not _HARDWARE.fullmatch(word)
            )
            if _TOKEN.fullmatch(word) and (machine or unknown_parts(word)):
                yield word
