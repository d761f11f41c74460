"""Say from a name alone where a kernel ran, in which precision, and for what.

The rules are data, in rules/kernel_names.py. A name that no rule knows keeps engine and evidence
"unknown" and no component; a rule that cannot tell one of them leaves it open as well. Counters
and machine code are better evidence: where a bundle has them, they go before this.

Names come out of other people's traces: at most NAME_LIMIT characters are read, in one walk, and
anything is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from spark_prof.lazy_pattern import LazyPattern
from spark_prof.rules.collectives import KINDS
from spark_prof.rules.kernel_names import IN_ARGUMENTS, IN_NAME, NAME_LIMIT, RULES, KernelRule
from spark_prof.rules.number_formats import arithmetic_in, stored_in

_COPY = re.compile(r"\[?((?:CUDA )?[Mm]em(?:cpy|set)(?: [\w-]+)*)")
# Inductor's call of a graph that it compiled, with the beginning of its key.
_COMPILED_GRAPH = re.compile(r"## Call (CompiledFxGraph) (\w{0,8})\w* ##")
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


def split_name(name: str) -> tuple[str, str]:
    """The base name, and the text of the template arguments ("" where there are none).

    The base name has the namespaces, but no return type and no arguments. Of a mangled name the
    second part is the identifiers and numbers after the name, one blank between two.
    """
    name = name[:NAME_LIMIT].strip()
    copy = _COPY.match(name)
    if copy and name[copy.end() :].lstrip()[:1] in ("", "(", "]"):
        return copy[1], ""
    if graph := _COMPILED_GRAPH.match(name):
        return graph[1], graph[2]
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


_DROPPED = re.compile(
    r"\((?:(?:un)?signed )?(?:bool|char|short|int|long|long long)\)(?=-?\d)"  # a number's cast
    r"|(?<=\d)[uUlL]{1,3}\b"  # a number's type
    r"|<unnamed>::|\bunnamed>::|\(anonymous namespace\)::|\{anonymous\}::"
    r"|\b\w{1,256}::"  # namespaces
    r"|\bconst\b|\s"
)


@lru_cache(maxsize=16384)
def spelling(name: str) -> str:
    """The name without what profilers write differently: namespaces, casts, blanks, arguments.

    nsys writes ``void at::native::f<(int)128, (bool)1>(T1)``, Nsight Compute
    ``void f<128, 1>(T1)``, PyTorch ``void at::native::f<128, true>(int)``.

    Two kernels may share it; a name longer than NAME_LIMIT is cut.
    """
    base, arguments = split_name(name[:NAME_LIMIT])
    plain = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", arguments))
    return f"{_DROPPED.sub('', base)}<{_DROPPED.sub('', plain)}>"


@dataclass(frozen=True)
class Label:
    """What a kernel's name says about it, in the words of spark_prof.vocabulary.

    `component` is None where the name alone does not tell; `evidence` is that of the engine,
    "name" or "unknown"; `weights` is None where the weights are stored in what it computes in.
    """

    component: str | None
    engine: str
    precision: str | None
    evidence: str
    conversion: str | None
    weights: str | None = None


_BASE_LIMIT = 512
"""Characters of a base name that are searched; what tells a kernel's family stands before them."""

_PATTERNS = tuple((rule, LazyPattern(rule.pattern), LazyPattern(rule.arguments)) for rule in RULES)


def classify(name: str) -> Label:
    """Label a GPU kernel, a memory copy or a CPU operator by its name."""
    return _classify(name[:NAME_LIMIT])[1]


def is_gemm(name: str) -> bool:
    """Whether it is a matrix product; what only adds up the parts of a split one is none."""
    rule = find_rule(name)
    return rule is not None and rule.gemm


def finishes_gemm(name: str) -> bool:
    """Whether the kernel of that name adds up the parts of the product before it."""
    rule = find_rule(name)
    return rule is not None and rule.finishes_gemm


_FILLS = "FillFunctor"  # in the names of PyTorch's fills
_COMPILED_FILL = re.compile(
    r"triton_poi_fused_(?=[_\d]*[a-z])(?:_|\d|(?:new_)?(?:zeros?|ones|full|fill|empty|scalar_tensor)|like)+$"
)


@lru_cache(maxsize=16384)
def fills(name: str) -> bool:
    """Whether the kernel of that name writes one value everywhere, and reads nothing.

    fills("triton_poi_fused_zeros_3") is true, fills("triton_poi_fused_0") is not. Of a name longer
    than 256 the rest does not count.
    """
    return _FILLS in name or bool(_COMPILED_FILL.match(name[:256]))


def exchange_inside(name: str) -> str | None:
    """What a product exchanges between ranks in the same kernel, None where it does not.

    exchange_inside("kernel_cutlass_kernel_gemm_rs_arSm100GemmRsAr_object_at_") == "reduce_scatter"
    """
    rule = find_rule(name)
    return None if rule is None else rule.exchanges


def is_attention(name: str) -> bool:
    """Whether it is a layer's attention, not what goes with it such as a sparse one's indexer."""
    rule = find_rule(name)
    return rule is not None and rule.component == "attention" and not rule.helps


def find_rule(name: str) -> KernelRule | None:
    """The first rule that knows the name."""
    return _classify(name[:NAME_LIMIT])[0]


@lru_cache(maxsize=16384)
def _classify(name: str) -> tuple[KernelRule | None, Label]:
    base, arguments = split_name(name)
    base = base[:_BASE_LIMIT]
    for rule, pattern, arguments_pattern in _PATTERNS:
        if pattern.search(base) and (not rule.arguments or arguments_pattern.search(arguments)):
            return rule, _label(rule, base, arguments)
    return None, Label(None, "unknown", None, "unknown", None)


def _label(rule: KernelRule, base: str, arguments: str) -> Label:
    texts = {IN_NAME: base, IN_ARGUMENTS: arguments}
    precision, weights = rule.precision, rule.weights
    if precision in texts:
        precision = arithmetic_in(texts[precision], rule.engine)
    if weights in texts:
        weights = stored_in(texts[weights], precision)
    evidence = "unknown" if rule.engine == "unknown" else "name"
    return Label(rule.component, rule.engine, precision, evidence, rule.conversion, weights)


_LONGEST = 60
_WRAPPER = re.compile(
    r"(?:^|(?<!\bgemvx)::)(?:device_kernel|Kernel2?|kernel|run_kernel|\w*elementwise_kernel)$"
)
"""Base names that say nothing without the template arguments."""
_ARGUMENT = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
_SAYS_NOTHING = re.compile(
    r"(?:^|::)(?:enable_\w*|gpu_\w*kernel\w*|void|const|unsigned|signed|int|long|char|float|double"
    r"|bool|true|false|half|__half|\w*[Bb][Ff]loat16|(?:Nullary|Unary|Binary)Functor|array|tuple"
    r"|instance|gemm|conv|kernel|threadblock)$"
)
"""Template arguments that wrap another one, or are a type."""


def short_name(name: str) -> str:
    """The kernel's base name, or what a wrapper was made of; else beginning and end of the whole.

    `void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...` is
    `flash::FlashAttnFwdSm90`.
    """
    base, arguments = split_name(name)
    if _WRAPPER.search(base):
        words = (match[0] for match in _ARGUMENT.finditer(arguments))
        telling = next((word for word in words if not _SAYS_NOTHING.search(word)), "")
        base = telling.removeprefix("at::native::") or base
    if len(base) > _LONGEST and "::" in base:
        base = "::".join(base.split("::")[-2:])
    return base if len(base) <= _LONGEST else f"{base[:40]}...{base[-17:]}"


_MOST_ARGUMENTS = 4


def kernel_id(name: str) -> str:
    """The first ten digits of its full name's SHA-256: the same wherever the kernel is named."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short name of each kernel; those that share one have the template arguments that differ.

    `marlin::Marlin<256, 1, 8>` and `marlin::Marlin<128, 1, 4>` are `marlin::Marlin<256, 8>` and
    `marlin::Marlin<128, 4>`; of names with other numbers of arguments the whole name stays.
    """
    same: dict[str, dict[str, list[str]]] = {}
    for name in names:
        words = re.findall(r"[^<>(),\s]+", split_name(name)[1])
        same.setdefault(short_name(name), {})[name] = words
    short_by_name = {}
    for short, group in same.items():
        same_count = len({*map(len, group.values())}) == 1
        columns = list(zip(*group.values(), strict=True)) if same_count else []
        differ = [place for place, column in enumerate(columns) if len({*column}) > 1]
        for name, words in group.items():
            arguments = ", ".join(words[place] for place in differ[:_MOST_ARGUMENTS])
            short_by_name[name] = (
                name if not same_count else f"{short}<{arguments}>" if arguments else short
            )
    return short_by_name


_COLLECTIVES = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern, _ in KINDS)


@lru_cache(maxsize=16384)
def collective_kind(name: str) -> str | None:
    """The kind of a collective; "unknown" where the name tells no more, None for anything else.

    collective_kind("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)") == "all_reduce"
    """
    if classify(name).component != "collective":
        return None
    base = split_name(name)[0]
    return next((kind for kind, pattern in _COLLECTIVES if pattern.search(base)), "unknown")
