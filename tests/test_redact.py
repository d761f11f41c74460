"""Nothing secret is left in a text; nothing that explains a run is lost."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from detect_secrets.core.scan import scan_line
from detect_secrets.settings import transient_settings

from spark_prof.redact import HIDDEN, is_secret, redacted, redacted_text, redacted_value
from spark_prof.secret_rules import (
    KEYS_OF,
    NAMES,
    ORDINARY_WORDS,
    PASSES_OF,
    PHRASES,
    PROGRAMS,
    SHAPES,
)
from tests.rows import each_row
from tests.secret_corpus import ORDINARY, ORDINARY_COMMANDS, planted
from tests.secret_places import (
    FOREIGN_FORMS,
    MORE_ORDINARY,
    PLACES,
    UNNAMED_PLACES,
    placed,
    secrets,
)

QUITE_ORDINARY = [
    *ORDINARY,
    *(text.replace("\\n", "\n").replace("\\x1b", "\x1b") for text in MORE_ORDINARY),
]


def _shown(value: Any) -> str:
    """What is written of a value, in every way that it reaches a file."""
    if isinstance(value, str):
        return "\n".join([redacted_text(value), str(redacted_value({"text": value}))])
    if isinstance(value, list):
        texts = [shlex.join(value), json.dumps(value), repr(value)]
        return "\n".join([*redacted(value), *map(redacted_text, texts), str(redacted_value(value))])
    return "\n".join([json.dumps(redacted_value(value)), redacted_text(json.dumps(value))])


def test_no_planted_secret_is_left() -> None:
    left, count = [], 0
    for seed in range(20):
        for value, secret in planted(seed):
            count += 1
            shown = _shown(value)
            left += [f"{part!r} of {value!r} is in {shown}" for part in secret if part in shown]
    assert count > 20 * 200
    assert not left, f"{len(left)} of {count}:\n" + "\n".join(left[:20])


def test_no_secret_of_texts_in_a_list_is_left() -> None:
    texts = [(value, secret) for value, secret in planted(5) if isinstance(value, str)]
    for (first, secret), (second, other) in pairwise(texts):
        shown = "\n".join(redacted([first, second]))
        assert not [part for part in (*secret, *other) if part in shown], (first, second)
    assert redacted(["run", "{token:", "x9y8z7w6}"]) == [HIDDEN] * 3


def test_another_tool_finds_no_secret_either() -> None:
    """detect-secrets is the judge; what it takes hidden values for does not count."""
    plugins = (
        "ArtifactoryDetector AWSKeyDetector AzureStorageKeyDetector BasicAuthDetector "
        "CloudantDetector DiscordBotTokenDetector GitHubTokenDetector GitLabTokenDetector "
        "IbmCloudIamDetector IbmCosHmacDetector JwtTokenDetector MailchimpDetector NpmDetector "
        "OpenAIDetector PrivateKeyDetector PypiTokenDetector SendGridDetector SlackDetector "
        "SoftlayerDetector SquareOAuthDetector StripeDetector TelegramBotTokenDetector "
        "TwilioKeyDetector KeywordDetector"
    )
    known = 0
    with transient_settings({"plugins_used": [{"name": name} for name in plugins.split()]}):
        for value, _ in planted(7):
            text = value if isinstance(value, str) else json.dumps(value)
            known += bool(list(scan_line(text)))
            for found in scan_line(redacted_text(text)):
                assert HIDDEN in (found.secret_value or ""), (text, redacted_text(text), found.type)
    assert known > 50


@pytest.mark.slow
def test_400_secrets_in_30_places() -> None:
    assert len({secret.text for secret in secrets()}) == 400
    assert len(PLACES) + len(UNNAMED_PLACES) == 30
    left = [(place, value) for place, secret, value in placed() if secret.text in _shown(value)]
    assert left == []


@each_row("form", FOREIGN_FORMS)
def test_a_secret_apart_from_its_name(form: str) -> None:
    for secret in ("Zq7pW2kLm9Rt4Xy8", "9f86d081884c7d659a2feaa0c55ad015"):
        shown = redacted_text(form.replace("\\n", "\n").replace("§", secret))
        assert secret not in shown
        assert redacted_text(shown) == shown


def test_what_explains_a_run_stays() -> None:
    texts = QUITE_ORDINARY + ORDINARY_COMMANDS
    changed = [text for text in texts if redacted_text(text) != text]
    words = [shlex.split(line) for line in ORDINARY_COMMANDS] + [[text] for text in QUITE_ORDINARY]
    changed += [str(argv) for argv in words if redacted(argv) != argv]
    values = [{"text": text, "list": [text]} for text in texts]
    changed += [str(value) for value in values if redacted_value(value) != value]
    assert len(set(texts)) >= 300
    assert not changed


def test_what_is_hidden_stays_hidden_and_nothing_else_goes() -> None:
    for value, _ in planted(3):
        text = value if isinstance(value, str) else json.dumps(value)
        once = redacted_text(text)
        assert redacted_text(once) == once
        again = redacted_value(value)
        assert redacted_value(again) == again


@each_row(
    ("line", "wanted"),
    [
        ("vllm serve m --api-key hunter2 b --port 1", "vllm serve m --api-key *** *** --port 1"),
        ("vllm serve m --api-key=hunter2 -tp 2", "vllm serve m --api-key=*** -tp 2"),
        ("vllm serve --hf-token hunter2 m", "vllm serve --hf-token *** m"),
        ("docker run -e HF_TOKEN=abc IMAGE", "docker run -e HF_TOKEN=*** IMAGE"),
        ("docker run --env=HF_TOKEN=abc IMAGE", "docker run --env=HF_TOKEN=*** IMAGE"),
        ("docker run -e A=b IMAGE", "docker run -e A=b IMAGE"),
        ("env HF_TOKEN=abc vllm serve m", "env HF_TOKEN=*** vllm serve m"),
        (
            "bash -c 'HF_TOKEN=a; vllm serve m --port 1'",
            "bash -c 'HF_TOKEN=***; vllm serve m --port 1'",
        ),
        ("curl -u me:pw1 http://h", "curl -u 'me:***' http://h"),
        ("curl -H 'Authorization: Bearer abc' h", "curl -H 'Authorization: Bearer ***' h"),
        ("vllm serve m --api-key --port 1", "vllm serve m --api-key --port 1"),
        (
            """v --c '{"token": "a", "n": 1}' --port 1""",
            """v --c '{"token": "***", "n": 1}' --port 1""",
        ),
    ],
)
def test_a_command_line(line: str, wanted: str) -> None:
    assert redacted(shlex.split(line)) == shlex.split(wanted)
    assert shlex.split(redacted_text(line)) == shlex.split(wanted)


@each_row(
    ("text", "wanted"),
    [
        ("args: {'api_key': ['a1', 'b2'], 'n': 1}", "args: {'api_key': ['***'], 'n': 1}"),
        ('{"auth": {"a": "x y"}, "n": [1]}', '{"auth": "***", "n": [1]}'),
        ("postgres://me:pw@h:1/db?x=1", "postgres://me:***@h:1/db?x=1"),
        ("https://h/o?a=1&X-Amz-Signature=0f&b=2", "https://h/o?a=1&X-Amz-Signature=***&b=2"),
        ("Pwd=a;Database=b", "Pwd=***;Database=b"),
        ("user: a\npassword: b c\nport: 1", "user: a\npassword: ***\nport: 1"),
    ],
)
def test_the_rest_of_a_text_stays_readable(text: str, wanted: str) -> None:
    assert redacted_text(text) == wanted


@each_row("scheme", ["Bearer", "Basic", "Token", "Digest", "ApiKey", "Negotiate"])
@each_row("name", ["Authorization", "authorization", "Proxy-Authorization", "authorisation"])
def test_an_authorization_header_shows_its_scheme_alone(name: str, scheme: str) -> None:
    header = f"{name}: {scheme} x9 y8,z7"
    hidden = f"{name}: {scheme} {HIDDEN}"
    assert redacted_text(f"> {header}\n> Accept: */*") == f"> {hidden}\n> Accept: */*"
    assert redacted(["curl", "-H", header, "https://h"]) == ["curl", "-H", hidden, "https://h"]
    assert redacted(["curl", "--header", header]) == ["curl", "--header", hidden]
    assert redacted_text(f"curl -H '{header}' h") == f"curl -H '{hidden}' h"
    assert redacted_value({"headers": {name: f"{scheme} x9"}}) == {"headers": {name: HIDDEN}}
    assert redacted_text(f"{name}: x9y8") == f"{name}: {HIDDEN}"


@dataclass(frozen=True)
class _Kept:
    api_key: str
    notes: tuple[str, ...]
    tokens: int


def test_values_of_every_kind() -> None:
    assert redacted_value({"password": 12345678, "token": 17, "api_key": None, "auth": True}) == {
        "password": HIDDEN, "token": 17, "api_key": None, "auth": True,
    }  # fmt: skip
    assert redacted_value("x1", "HF_TOKEN") == HIDDEN
    kept = _Kept("x1", ("HF_TOKEN=y2",), 5)
    assert redacted_value(kept) == _Kept(HIDDEN, ("HF_TOKEN=***",), 5)
    plain = _Kept("", ("a",), 5)
    assert redacted_value(plain) == plain
    deep: Any = "x"
    for _ in range(5000):
        deep = {"a": [deep]}
    assert HIDDEN in str(redacted_value(deep))


_VARIANTS = """
hf_abcdefghi1 hf_abcdefghijklmnopqrstuvwxyz sk-ant-abcdefgh sk-proj-abcdefgh sk-svcacct-abcdefgh
sk-admin-abcdefgh sk-or-v1-abcdefgh sk-lf-abcdefgh sess-proj-abcdefgh sess-abcdefgh12
ghp_abcdefghijklmnop gho_abcdefghijklmnop ghu_abcdefghijklmnop ghs_abcdefghijklmnop
ghr_abcdefghijklmnop glpat-abcdefghij gldt-abcdefghij glrt-abcdefghij glcbt-abcdefghij
glptt-abcdefghij glft-abcdefghij glimt-abcdefghij glagent-abcdefghij gloas-abcdefghij
glsoat-abcdefghij glffct-abcdefghij GR1348941abcdefghij xoxa-abcdefghij xoxb-abcdefghij
xoxe.xoxp-abcdefghij xoxo-abcdefghij xoxp-abcdefghij xoxr-abcdefghij xoxs-abcdefghij
discordapp.com/api/webhooks/123/abcdefgh A3TXABCDEFGHIJKLMNOP AKIAABCDEFGHIJKLMNOP
ASIAABCDEFGHIJKLMNOP AROAABCDEFGHIJKLMNOP AIDAABCDEFGHIJKLMNOP ABIAABCDEFGHIJKLMNOP
ACCAABCDEFGHIJKLMNOP ABSKabcdefghijklmnopqrst bedrock-api-key-abcdefghijklmnopqrst
abc7Q~abcdefghijklmnopqrstuvwxyz0123456789 sk_test_abcdefghij rk_live_abcdefghij
whsec_abcdefghij SK0123456789abcdef0123456789abcdef sq0atp-abcdefghijklmnopqrst
sq0idp-abcdefghijklmnopqrst
EAAAabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz0123
dckr_oat_abcdefghijklmnop SWMTKN-1-abcdefghijklmnopqrst r8_abcdefghijklmnopqrst1
fw_abcdefghijklmnopqrst1 jina_abcdefghijklmnopqrst1 lsv2_pt_abcdefghijklmnopqrst1
lsv2_sk_abcdefghijklmnopqrst1 wandb_v1_abcdefghijklmnopqrst1 tgp_v1_abcdefghijklmnopqrst1
rpa_abcdefghijklmnopqrst1 pplx-abcdefghijklmnopqrst1 xai-abcdefghijklmnopqrst1
csk-abcdefghijklmnopqrst1 tvly-dev-abcdefghijklmnopqrst1 hvb.abcdefghijklmnop
hvr.abcdefghijklmnop doo_v1_0123456789abcdef0123456789abcdef
dor_v1_0123456789abcdef0123456789abcdef glc_abcdefghijklmnop sntrys_abcdefghijklmnop
sntryu_abcdefghijklmnop lin_api_abcdefghijklmnop figd_abcdefghijklmnop ntn_abcdefghijklmnop
PMAK-abcdefghijklmnop shpat_abcdefghijklmnop shpca_abcdefghijklmnop shppa_abcdefghijklmnop
shpss_abcdefghijklmnop nfp_abcdefghijklmnop eyJhbGciOi.eyJzdWIiOi
"""

_ENDINGS = """
value values string text b64 base64 hash old new prod production dev staging test read write primary
secondary backup default 2 17
"""


def test_each_word_by_itself() -> None:
    names = [f"{word}_key" for word in KEYS_OF.split("|")]
    names += [f"{word}_pass" for word in PASSES_OF.split("|")]
    for end in _ENDINGS.split():
        of = ("hf_token", "api_key", "a_password", "smtp_pass", "a_pwd", "a_pw", "creds", "secret")
        names += [f"{name}_{end}" for name in of]
        names += [f"X_PASS_{end}".upper(), f"X_KEY_{end}".upper()]
    assert [name for name in names if redacted_text(f"{name}=x9y8z7w6") != f"{name}=***"] == []
    pairs = [(end, f"{word}_{end}") for end, words in ORDINARY_WORDS.items() for word in words]
    ordinary = [
        f"{name.upper() if end in ('key', 'pass') else name}=x9y8z7w6" for end, name in pairs
    ]
    assert [text for text in ordinary if redacted_text(text) != text] == []
    strong = """password client_secret api_key authorization cookie smtp_pass a_pwd JSESSIONID NETRC
        VLLM_JWT X-Amz-Signature accessKeyId X_PASS"""
    weak = "hf_token api_tokens basic_auth credentials pw MY_KEY pass X_KEY"
    assert [name for name in strong.split() if redacted_text(f"{name}=12") != f"{name}=***"] == []
    assert [name for name in weak.split() if redacted_text(f"{name}=12") != f"{name}=12"] == []


_PHRASES = """
got Bearer abcdefghijklmnopqrstuvw! now
got Bearer abcdef12! now
sent Basic abcdefgh= now
sent Basic abcdEFGHijkl now
machine h login me password abcdefghijkl
machine h login me password Abc
openssl enc -passout pass:abc -in a
printf abc | docker login --password-stdin
echo abc | gh auth login --with-token
echo abc | sudo -S make
the access key: abcdefg1 was used
the secret key: abcdefg1 was used
the private key: abcdefg1 was used
the account key: abcdefg1 was used
the api key: abcdefghijklmnopqrstuvw was used
<passwd>abc</passwd>
<secret>abc</secret>
<token>abc</token>
<api_key>abc</api_key>
"""


def test_each_variant_of_a_phrase_by_itself() -> None:
    lines = _PHRASES.strip().split("\n")
    assert [line for line in lines if "abc" in redacted_text(line).lower()] == []
    assert redacted_text("https://h/?key=12") == "https://h/?key=***"


def test_each_variant_of_a_shape_by_itself() -> None:
    lines = [f"INFO read {text}, see" for text in _VARIANTS.split()]
    assert [line for line in lines if not redacted_text(line).startswith("INFO read ***, s")] == []


def test_each_shape_by_itself() -> None:
    for rule in SHAPES:
        for text in (rule.example, f"INFO read {rule.example} there", f'["{rule.example}"]'):
            shown = redacted_text(text)
            assert shown == text.replace(rule.example, HIDDEN), rule
        assert redacted_text(f"read {rule.ordinary} there") == f"read {rule.ordinary} there", rule


def test_each_name_by_itself() -> None:
    for rule in NAMES:
        for name in rule.examples:
            text = f"https://h/?{name}=x9y8z7w6" if rule.where == "query" else f"{name}=x9y8z7w6"
            assert redacted_text(text).endswith(f"{name}={HIDDEN}"), name
            assert is_secret(name) == (rule.where != "query" or is_secret(name)), name
        for name in rule.ordinary:
            text = f"https://h/?{name}=x9y8z7w6" if rule.where == "query" else f"{name}=x9y8z7w6"
            assert redacted_text(text) == text, name


def test_each_program_and_phrase_by_itself() -> None:
    for rule in PROGRAMS:
        wanted = rule.example.replace("s3cr3t-value", HIDDEN)
        assert redacted_text(rule.example) == wanted, rule
        assert redacted(rule.example.split()) == wanted.split(), rule
    for phrase in PHRASES:
        shown = redacted_text(phrase.example)
        assert HIDDEN in shown
        assert "s3cr3t" not in shown
        assert "dXNl" not in shown, phrase
        assert redacted_text(phrase.ordinary) == phrase.ordinary, phrase


def test_any_text_is_read_to_its_end() -> None:
    draw = random.Random(5)
    parts = (*"=: '\"\\{}[](),&?@/-;|\n", "--api-key ", "curl -u ", "a:b@", "https://", "Bearer ",
             "x9y8z7w6", "Authorization: ", "bash -c ", "HF_TOKEN", "name", "value")  # fmt: skip
    for _ in range(5_000):
        redacted_text("".join(draw.choices(parts, k=draw.randint(1, 12))))


def _hostile() -> Iterator[str]:
    size = 1 << 17
    for part in (
        "a", "-", "_", "\\", '"', "'", "\\'", "=", ":", "[", "(", "{", " ", "\n", "%25", "@", "://",
        "a=", "a.", "a-", "token", "token=", "token=[", 'token="', "token='\\''", "--token ",
        "--api-key a ", "token: ", "https://u:p", "u:p@", "hf_a", "hf_", "sk-", "sk-a-", "eyJa.",
        "eyJaaaaaaaa.aaaaaaa", "-----BEGIN PRIVATE KEY-----", "-----BEGIN A", "Bearer ", "Bearer a",
        "Basic a", "echo ", "echo a |", "login a password ", "<password>", "curl -u a", "x,",
        "token=a,", "token=a&", "token=a)", 'token=a"b', "$(", "${", "('token', ",
        '"name": "token", ',
        "AKIAAAAAAAAAAAAAAAAA", "Authorization: ", "a token_", "secret_a_", "pass:", "sshpass -p",
        "token=a(", "token:\n", "token: |\n a", "<token>", "<a name='token'>", "-c '$1' a ",
        "set -x TOKEN ", "T=a; --token $T", "value: a name: ", "--token\n", "a_token a1 ",
        "mc alias set a b c ", "htpasswd -b ", "\x1b[1m", "printf a > ", "https://a:b/c", "&quot;",
        "https:%2F%2F", "xoxb-", "'\"'\"'", "token='\"'\"'",
    ):  # fmt: skip
        yield part * (size // len(part))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hostile_texts_take_linear_time() -> None:
    """Each ends: what is quadratic takes many minutes for one of these."""
    for text in _hostile():
        redacted_text(text)
    redacted(["--api-key", *["a"] * 100_000])


def test_a_long_text_keeps_what_is_around_a_secret() -> None:
    text = "INFO ordinary line of a log\n" * 20_000
    shown = redacted_text(f"{text}HF_TOKEN=x9y8z7w6\n{text}")
    assert shown == f"{text}HF_TOKEN=***\n{text}"
