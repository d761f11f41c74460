"""What is compared: a side is a set of swaps, of vLLM's options and of environment variables."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.redact import redacted
from spark_prof.rules.harmless_options import BACKEND_VALUES
from spark_prof.swaps.swap_settings import SLOTS, Swap, format_swaps, parse_swaps

BACKENDS = BACKEND_VALUES
"""vLLM's own kernels by the option that chooses them."""

OPTION_OF_SLOT = {
    "moe": "--moe-backend",
    **dict.fromkeys(("qkv", "o", "mlp", "lm_head"), "--linear-backend"),
}


OWN_KERNELS = ("spark_prof", "spark_prof!", "mxfp4", "fp8")
"""Kernels of the package; the second is taken where it was not measured too."""

_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.S)
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:.*/-]+")
_NUMBER = re.compile(r"-?[\d.]+")
_RESERVED = ("SPARK_PROF", "PYTHONPATH")
_MODES = ("auto", "one", "two")


@dataclass(frozen=True)
class Side:
    """One of the two things that are compared."""

    swaps: tuple[Swap, ...] = ()  # the kernels that are swapped in
    options: tuple[str, ...] = ()  # vLLM's, as they follow the command's own
    environment: tuple[tuple[str, str], ...] = ()  # variables and their values
    notes: tuple[str, ...] = ()  # what a word means beyond what it says, a line each

    @property
    def name(self) -> str:
        """What it is in a report, as `parse_side` reads it; secret values are hidden."""
        variables = [f"{name}={value}" for name, value in self.environment]
        words = map(quoted, redacted([*variables, *self.options]))
        return " ".join(filter(None, [format_swaps(self.swaps), *words])) or "stock"


@dataclass(frozen=True)
class Mode:
    """How the two sides are run."""

    one: bool  # in one engine, switched between steps; else in engines of their own
    why: str  # one line


def parse_side(text: str) -> Side:
    """Reads one side: words with blanks or commas between them, quotes as in a shell.

    A word is ``stock``, a swap (``moe=spark_prof``), a backend of vLLM's (``moe=marlin``), an
    environment variable in capitals (``NAME=value``), or an option of vLLM's with its values
    (``--moe-backend marlin``).
    """
    words = side_words(text)
    swaps: list[str] = []
    options: list[str] = []
    variables: dict[str, str] = {}
    backends: dict[str, str] = {}
    notes: list[str] = []
    for word, values in grouped(words):
        if word.startswith("-"):
            options += [word, *values]
        elif variable := _VARIABLE.fullmatch(word):
            name, value = variable.groups()
            if is_reserved(name):
                raise CommandError(f"{name} is set by spark-prof ab itself; leave it out")
            variables[name] = value
        elif option := _backend(word):
            backend = word.partition("=")[2]
            if backends.setdefault(option, backend) != backend:
                raise CommandError(
                    f"{text}: vLLM has one {option}, not both {backends[option]} and {backend}"
                )
            if option == "--linear-backend":
                notes.append(f"{word} is vLLM's {option} {backend}, for all linear layers at once")
        elif word != "stock":
            swaps.append(_swap(word))
    for option, backend in backends.items():
        options += [option, backend]
    kernels = parse_swaps(",".join(swaps))
    return Side(kernels, tuple(options), tuple(variables.items()), tuple(notes))


def with_formats(side: Side, mxfp4_layers: str, fp8_layers: str) -> Side:
    """Adds swaps for what ``--mxfp4-layers qkv,o`` and ``--fp8-layers lm_head`` name."""
    added = [
        f"{slot}={kernel}"
        for kernel, layers in (("mxfp4", mxfp4_layers), ("fp8", fp8_layers))
        for slot in filter(None, (word.strip() for word in layers.split(",")))
    ]
    for word in added:
        slot, _, kernel = word.partition("=")
        if slot not in ("qkv", "o", "mlp", "lm_head"):
            raise CommandError(f"--{kernel}-layers: no slot {slot}; give qkv, o, mlp, lm_head")
    if not added:
        return side
    text = ",".join(filter(None, [format_swaps(side.swaps), *added]))
    return replace(side, swaps=parse_swaps(text))


def is_reserved(name: str) -> bool:
    """Whether a variable is one that `spark-prof ab` sets itself."""
    return name.startswith(_RESERVED[0]) or name == _RESERVED[1]


def is_own_or_installed(kernel: str) -> bool:
    """Whether a kernel's name is one of this package's, or an entry point's."""
    return kernel in OWN_KERNELS or _is_installed(kernel)


def choose_mode(name: str, a: Side, b: Side) -> Mode:
    """Whether both sides can live in one engine, and whether they shall."""
    if name not in _MODES:
        raise CommandError(f"--mode {name}: give one of {', '.join(_MODES)}")
    differ = ["vLLM's options"] if a.options != b.options else []
    if dict(a.environment) != dict(b.environment):
        differ.append("the environment")
    if not differ and set(a.swaps) == set(b.swaps):
        raise CommandError(
            f"both sides are {a.name}; give --b what shall be compared, such as --b moe=spark_prof"
        )
    if differ and name == "one":
        raise CommandError(
            f"--mode one: the sides differ in {' and '.join(differ)}, which a running engine "
            "cannot change; leave --mode out, or give sides that differ in swaps only"
        )
    if differ:
        return Mode(False, f"the sides differ in {' and '.join(differ)}")
    if name == "two":
        return Mode(False, "asked for with --mode two")
    if name != "one" and any(swap.slot == "layer" for side in (a, b) for swap in side.swaps):
        return Mode(False, "layer ends what torch.compile fuses, on both sides of one engine")
    return Mode(True, "the sides differ in swaps only")


def side_words(text: str) -> list[str]:
    """The words of a side, between blanks and commas; CommandError for a quote left open."""
    if text.encode("utf-8", "ignore").decode() != text:
        raise CommandError("the side has bytes that are no UTF-8; write it in UTF-8")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace = " ,\t\r\n"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError as error:
        raise CommandError(f"{text}: a quote is not closed; close it") from error


def quoted(word: str) -> str:
    """A word for a side's text, in which commas divide words as blanks do."""
    return word if _PLAIN.fullmatch(word) else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def grouped(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each word, with an option the values behind it."""
    at = 0
    while at < len(words):
        word, values = words[at], []
        at += 1
        while word.startswith("-") and "=" not in word and at < len(words):
            if not _is_value(words[at]):
                break
            values.append(words[at])
            at += 1
        yield word, values


def _is_value(word: str) -> bool:
    if _NUMBER.fullmatch(word):
        return True
    is_swap_or_variable = (
        word == "stock" or word.partition("=")[0] in SLOTS or _VARIABLE.fullmatch(word)
    )
    return not (word.startswith("-") or is_swap_or_variable)


def _backend(word: str) -> str:
    """The option of vLLM's that the word stands for; empty if it stands for none."""
    slot, _, kernel = word.partition("=")
    option = OPTION_OF_SLOT.get(slot, "")
    return option if option and kernel in BACKENDS[option] and not _is_installed(kernel) else ""


def _swap(word: str) -> str:
    """The word as a swap that exists, with the whole path of a file."""
    [swap] = parse_swaps(word)
    kernel = swap.kernel
    if is_own_or_installed(kernel):
        return word
    path, colon, function = kernel.rpartition(":")
    if colon and (path.endswith(".py") or "/" in path):
        return f"{swap.slot}={checked_file(Path(path), function)}"
    option = OPTION_OF_SLOT.get(swap.slot)
    backends = f", a backend of vLLM's {option} ({', '.join(BACKENDS[option])})" if option else ""
    raise CommandError(
        f"{word}: there is no kernel {kernel}; give {', '.join(OWN_KERNELS)}, FILE.py:FUNCTION, "
        f"the name of an entry point spark_prof.kernels{backends}"
    )


def _is_installed(kernel: str) -> bool:
    return any(entry.name == kernel for entry in entry_points(group="spark_prof.kernels"))


def checked_file(path: Path, function: str) -> str:
    """FILE:FUNCTION with the whole path. The file is read, not run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CommandError(f"{path} is no Python file: {error}") from error
    if "," in str(path.absolute()):
        raise CommandError(f"{path.absolute()}: a path with a comma cannot be given; move the file")
    names = {
        name.id if isinstance(name, ast.Name) else getattr(name, "name", "")
        for statement in tree.body
        for name in (statement, *getattr(statement, "targets", ()))
    }
    names |= {
        alias.asname or alias.name
        for statement in tree.body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for alias in statement.names
    }
    if function not in names:
        raise CommandError(f"{path} has no function {function or '(empty)'} at its top level")
    return f"{path.absolute()}:{function}"
