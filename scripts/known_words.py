"""Writes the words that may stay in a shared recording: those of vLLM, CUDA and this package.

Run with the folders of unpacked wheels of vLLM: `python scripts/known_words.py VLLM...`.
Only parts of identifiers, of short constants and of the tables' examples are taken, never text.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "spark_prof" / "rules" / "known_words.txt"
OF_VLLM = (
    "config",
    "engine/arg_utils.py",
    "envs.py",
    "model_executor",
    "v1/attention",
    "v1/worker",
    "entrypoints/openai/cli_args.py",
    "platforms",
    "compilation",
    "distributed/parallel_state.py",
)
OPTIONS = ("engine/arg_utils.py", "entrypoints", "benchmarks")
PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]+")
CONSTANT = re.compile(r"[bruf]?[\"'][\w.:/+-]{1,60}[\"']")
PEOPLE_WORDS = """
alice bob carol dave eve mallory mary john jane smith acme corp intern customer customers
clients secret secrets password passwd hunter bank hospital projects private company team
phoenix titan apollo horizon jack
"""
PEOPLE = frozenset(PEOPLE_WORDS.split())
"""Words that somebody's host, project or folder is likely to have."""


def words_of(path: Path) -> Iterator[str]:
    """The words of the identifiers and constants of a file of Python."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
            if token.type == tokenize.NAME or CONSTANT.fullmatch(token.string):
                yield from parts(token.string)
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        return


def parts(text: str) -> Iterator[str]:
    """The words in a name, in small letters."""
    return (part.lower() for part in PARTS.findall(text) if len(part) > 2)


def main(folders: list[str]) -> None:
    """Writes the file of words and options."""
    counted: dict[str, int] = {}
    options: set[str] = set()
    for folder in map(Path, folders):
        for name in OF_VLLM:
            place = folder / name
            for path in [place] if place.is_file() else place.rglob("*.py"):
                for word in set(words_of(path)):
                    counted[word] = counted.get(word, 0) + 1
        for name in OPTIONS:
            place = folder / name
            for path in [place] if place.is_file() else place.rglob("*.py"):
                text = path.read_text("utf-8", errors="replace")
                options.update(re.findall(r"[\"'](--[a-z][a-z0-9_-]{1,60})[\"']", text))
        for path in (folder / "entrypoints").rglob("cli_args.py"):
            fields = re.findall(r"(?m)^    ([a-z][a-z0-9_]{1,60}): ", path.read_text("utf-8"))
            options.update(f"--{name}" for name in fields)
    words = {word for word, count in counted.items() if count > 1}
    for path in (ROOT / "spark_prof").rglob("*.py"):
        if not re.search("secret|redact|pseudonym|known_words|shared", path.name):
            words.update(parts(path.read_text("utf-8")))
    for name in ("kernel-names.csv", "module-paths.csv"):
        with (ROOT / "tests" / "data" / name).open(encoding="utf-8") as file:
            for row in csv.reader(file):
                words.update(word for cell in row[:3] for word in parts(cell) if "/" not in cell)
    words -= PEOPLE
    option_names = {option.replace("_", "-") for option in options}
    OUT.write_text("\n".join([*sorted(words), *sorted(option_names)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
