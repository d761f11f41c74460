"""Take a kernel's name apart: its base name, and the template arguments behind it.

Names come out of other people's traces, so every function here reads at most NAME_LIMIT
characters, walks them once and accepts anything.
"""

from __future__ import annotations

import re

NAME_LIMIT = 4096
"""Characters of a name that are looked at; the rest is dropped."""

_COPY = re.compile(r"\[?((?:CUDA )?[Mm]em(?:cpy|set)(?: [\w-]+)*)")
# ncu drops the first bracket of <unnamed>: "void unnamed>::f<...>", and so "f<unnamed>::T, ...>"
# opens the arguments of f.
_ANONYMOUS = re.compile(
    r"\(anonymous namespace\)::|\{anonymous\}::|(?<!\w)<unnamed>::|\bunnamed>::"
)
_OPENING = {")": "(", "]": "[", "}": "{"}
# Numbers that are no length stand in literals (Li128E) and in references back (S1F_).
_MANGLED_STEP = re.compile(
    r"L[a-z]n?(?P<number>\d{1,20})E|(?P<skipped>[ST][0-9A-Z]{0,4}_|E\d{1,20}E)"
    r"|(?P<length>\d{1,4})|(?P<other>.)",
    re.DOTALL,
)


def base_name(name: str) -> str:
    """The kernel's name with its namespaces, without return type, template and call arguments."""
    return split_name(name)[0]


def split_name(name: str) -> tuple[str, str]:
    """The base name, and the text of the template arguments ("" where there are none).

    Of a mangled name the second part is the identifiers and numbers after the name, one blank
    between two.
    """
    name = name[:NAME_LIMIT].strip()
    copy = _COPY.match(name)
    if copy and name[copy.end() :].lstrip()[:1] in ("", "(", "]"):
        return copy[1], ""
    if name.startswith("_Z"):
        base, arguments = _split_mangled(name)
    else:
        name = _ANONYMOUS.sub("", name)
        base, arguments = _split_demangled(name)
    return base or name, arguments


def _split_demangled(name: str) -> tuple[str, str]:
    base: list[str] = []
    start, end = -1, len(name)
    open_brackets: list[str] = []
    count = dict.fromkeys("<([{", 0)
    for position, character in enumerate(name):
        if character == "<":
            if not open_brackets and start < 0:
                start = position + 1
            open_brackets.append(character)
            count[character] += 1
        elif character == ">":
            # Inside parentheses it compares, after a minus it is an arrow: neither closes.
            if open_brackets[-1:] == ["<"] and name[position - 1] != "-":
                count[open_brackets.pop()] -= 1
                if not open_brackets:
                    end = position
        elif character in "([{":
            if base and not open_brackets:
                break
            open_brackets.append(character)
            count[character] += 1
        elif character in _OPENING:
            # A closing bracket whose opening one was lost is ignored.
            while count[_OPENING[character]]:
                closed = open_brackets.pop()
                count[closed] -= 1
                if closed == _OPENING[character]:
                    break
        elif not open_brackets:
            if character == " ":  # what came before was the return type
                base.clear()
                start, end = -1, len(name)
            else:
                base.append(character)
    return "".join(base), name[start:end] if start >= 0 else ""


def _split_mangled(name: str) -> tuple[str, str]:
    parts: list[str] = []
    arguments: list[str] = []
    in_base = True
    position = 3 if name.startswith(("_ZN", "_ZL")) else 2
    while position < len(name):
        step = _MANGLED_STEP.match(name, position)
        if step is None:
            break
        position = step.end()
        if step["number"] and not in_base:
            arguments.append(step["number"])
        elif step["length"]:
            identifier = name[position : position + int(step["length"])]
            position += len(identifier)
            if not in_base:
                arguments.append(identifier)
            elif not identifier.startswith("_GLOBAL__N_"):
                parts.append(identifier)
        elif step["other"] and (parts or step["other"] in "IE"):
            in_base = False
            if step["other"] == "f":
                arguments.append("float")
    return "::".join(parts), " ".join(arguments)
