"""One finding of a report, a log or a machine, and the commands that it names."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spark_prof.errors import one_line


class TypedCommand(str):
    """A line that a person may type as it stands, with its words; empty for none."""

    words: tuple[str, ...]

    def __new__(cls, text: str, words: Sequence[str] = ()) -> TypedCommand:
        """The line."""
        line = super().__new__(cls, text)
        line.words = tuple(words)
        return line

    @property
    def started(self) -> tuple[str, ...]:
        """What it starts: the words behind its first `--`."""
        return self.words[self.words.index("--") + 1 :] if "--" in self.words else ()


NONE = TypedCommand("")
_LONGEST_WORD = 1000  # characters of a command that somebody copies


def command(*words: str) -> TypedCommand:
    """A command of this program's own words, and of paths that were named at the command line.

        command("spark-prof", "report", "my run") == "spark-prof report 'my run'"

    Nothing where a word would not be shown as it is, or is a path that reads as an option.
    """
    text = shlex.join(words)
    return TypedCommand(text, words) if text.isprintable() and len(text) <= _LONGEST_WORD else NONE


def source_word(source: str) -> str:
    """A path as a word that is no option: `./-x` for `-x`."""
    return f"./{source}" if source.startswith("-") else source


def then(first: TypedCommand, second: TypedCommand) -> TypedCommand:
    """Both commands joined by `&&`; the second alone where that is too long."""
    both = f"{first} && {second}"
    if not (first and second and len(both) <= _LONGEST_WORD):
        return second
    return TypedCommand(both, (*first.words, "&&", *second.words))


def commented(line: TypedCommand, comment: str) -> TypedCommand:
    """The command with a remark of this program's own behind it."""
    return TypedCommand(f"{line}  # {comment}", line.words) if line else NONE


def exports(variables: Mapping[str, str]) -> tuple[TypedCommand, ...]:
    """Lines that set variables which a table lets through."""
    return tuple(
        TypedCommand(f"export {name}={shlex.quote(value)}")
        for name, value in variables.items()
        if value.isprintable()
    )


def typed_by_user(text: str) -> TypedCommand:
    """What the person at the command line typed in this very run, as one printable line."""
    return TypedCommand(one_line(text))


def recorded(words: Sequence[str] | str) -> str:
    """What a file says was typed, as one printable line: to be read, not to be typed."""
    return one_line(words if isinstance(words, str) else shlex.join(words))


_LONGEST = 60  # characters of a subject in a key


@dataclass(frozen=True)
class Action:
    """What a command of spark-prof does for a finding, apart from the engine that it starts."""

    verb: Literal["ab", "record", "doctor", "report", "export"]
    options: tuple[str, ...] = ()  # such as --b moe=spark_prof
    side: str = ""  # of ab: what is to be tried on the engine as it is


@dataclass(frozen=True)
class NamedKernel:
    """A kernel that a finding names; its component is empty where it is about all of them."""

    name: str  # as the trace has it
    component: str = ""
    weights: tuple[str, ...] = ()  # that it reads, such as w13


@dataclass(frozen=True)
class Finding:
    """Something worth changing."""

    def __repr__(self) -> str:
        gain = "" if self.ms_per_token is None else f", up to {self.ms_per_token:.3g} ms a token"
        return f"<Finding {self.key or self.id}{gain}: {self.text} {self.fix}>"

    id: str  # of the rule that found it
    ms_per_token: float | None
    """What the fix should bring in each token's time, at most; None where unknown."""
    text: str  # what was found, with its figures
    fix: str  # what to change
    evidence: tuple[str, ...] = ()  # what it stands on, one sentence each
    components: tuple[str, ...] = ()  # whose kernels it is about; empty where it is about none
    subject: str = ""  # what tells it from others of its rule; empty where there is but one
    key: str = ""  # its own in a document, and the same in another of the same run: id:subject
    command: TypedCommand = NONE  # what to type next; empty where nothing is
    measured: str = ""  # what the command's kernel was measured to bring, and where
    verify: TypedCommand = NONE  # what to type after the change: it shows whether that helped
    # Of a token, which its gain would come out of, as in `findings.ranking`; empty where untold.
    parts: tuple[str, ...] = ()
    within: str = ""  # the finding whose gain holds all of this one's; empty where it has its own
    # What would be typed next, where words of the file in it can be anything: to be read only.
    recorded_as: str = ""
    tries: tuple[str, ...] = ()  # options of vLLM's that the advice names, as they are typed
    action: Action | None = None  # what the command does, whatever starts the engine
    kernels: tuple[NamedKernel, ...] = ()  # that its text and evidence name, in their order


def first_sentence(text: str) -> str:
    """A text cut for a line of its own: its first sentence, without the full stop."""
    return text.partition(". ")[0].rstrip(".")


def keyed(findings: Iterable[Finding], verify: TypedCommand = NONE) -> tuple[Finding, ...]:
    """The findings with their keys, and with this way to verify them where they have no other."""
    rows, counts, keys = tuple(findings), Counter[str](), {}
    # Figures change from run to run, and the order with them; texts begin with names.
    for number, finding in sorted(enumerate(rows), key=lambda pair: pair[1].text):
        subject = re.sub(r"[^A-Za-z0-9_.]+", "-", finding.subject).strip("-")[:_LONGEST]
        key = f"{finding.id}:{subject}" if subject else finding.id
        counts[key] += 1
        keys[number] = f"{key}.{counts[key]}" if counts[key] > 1 else key
    return tuple(
        replace(finding, key=keys[number], verify=finding.verify or verify)
        for number, finding in enumerate(rows)
    )
