"""Values, functions and classes of the package and its tools are named by nouns of the field.

A frame is a `frame` in every line of a good profiler: a name says what a value is, not that it was
found, kept or wanted. What a key of the JSON is called stays, field by field, in `KEYS`.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import spark_prof

PACKAGE = Path(spark_prof.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("benchmarks", "demo", "scripts")
PRONOUNS = frozenset(
    [
        "alike",
        "asked",
        "done",
        "each",
        "found",
        "given",
        "gone",
        "held",
        "its",
        "kept",
        "known",
        "made",
        "many",
        "meant",
        "more",
        "others",
        "own",
        "ran",
        "said",
        "says",
        "seen",
        "shown",
        "taken",
        "tells",
        "there",
        "told",
        "wanted",
        "what",
        "written",
    ]
)
KEYS = frozenset(
    [
        ("ab/result.py", "others"),
        ("ab/result.py", "taken"),
        ("analyzers/ceilings/ceiling_rows.py", "seen"),
        ("analyzers/classify/code_rows.py", "found"),
        ("analyzers/comparing/comparison.py", "alike"),
        ("analyzers/comparing/comparison.py", "what"),
        ("analyzers/comparing/swap_attribution.py", "ran"),
        ("analyzers/fallbacks/audit_rows.py", "asked"),
        ("analyzers/fallbacks/audit_rows.py", "what"),
        ("analyzers/fallbacks/verdict.py", "what"),
        ("analyzers/model.py", "others"),
        ("analyzers/one_layer.py", "others"),
        ("analyzers/prefill_costs.py", "what"),
        ("analyzers/roofline/roofline_rows.py", "what"),
        ("analyzers/startup/start_rows.py", "what"),
        ("analyzers/views/waterfall.py", "known"),
        ("kernels/bench/results.py", "what"),
        ("rules/known_issue.py", "what"),
        ("rules/start_advice.py", "what"),
        ("speculate/speculate_result.py", "taken"),
        ("traces/measured.py", "taken"),
        ("tune/tune_result.py", "others"),
        ("tune/tune_result.py", "taken"),
        ("tune/tune_trial.py", "known"),
    ]
)
"""Fields that are keys of a result's or a report's JSON, which stay as they are."""

TOOL_EXCEPTIONS = frozenset([("benchmarks/node_price.py", "what")])
"""A key of a result's JSON."""

RIDDLES = ("witness", "contestant", "alone_us", "charged")
"""Words of this program alone: evidence or a source, a competitor, exclusive, attributed."""
RIDDLE_KEYS = frozenset(
    [
        ("analyzers/fallbacks/audit_rows.py", "witnesses"),
        ("kernels/bench/field.py", "contestant"),
        ("kernels/bench/results.py", "contestant"),
    ]
)
"""Fields that are keys of a report's JSON, and the keywords that fill them."""


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that one node of a syntax tree gives a value, a function or a class."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


@cache
def package_trees() -> Mapping[str, ast.Module]:
    """The syntax tree of every file, by its path in the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def pronouns_of(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and name of each that is a pronoun or a participle.

    pronouns_of(ast.parse("found = 1")) is [(1, "found")]
    """
    return [
        (getattr(node, "lineno", 0), name)
        for node in ast.walk(tree)
        for name in bound_names(node)
        if name.strip("_").lower() in PRONOUNS
    ]


def test_no_value_is_named_by_a_pronoun() -> None:
    named: list[str] = []
    keys: set[tuple[str, str]] = set()
    for place, tree in package_trees().items():
        for line, name in pronouns_of(tree):
            if (place, name) in KEYS:
                keys.add((place, name))
            else:
                named.append(f"spark_prof/{place}:{line}: {name}")
    assert not named
    assert keys == KEYS, "a key that is no more"


def test_no_value_of_a_tool_is_named_by_a_pronoun() -> None:
    named = [
        f"{place}:{line}: {name}"
        for folder in TOOLS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for place in [path.relative_to(ROOT).as_posix()]
        for line, name in pronouns_of(ast.parse(path.read_text(encoding="utf-8")))
        if (place, name) not in TOOL_EXCEPTIONS
    ]
    assert not named


def test_no_name_is_a_riddle() -> None:
    riddles: set[tuple[str, str]] = set()
    for place, tree in package_trees().items():
        for node in ast.walk(tree):
            names = [node.arg or ""] if isinstance(node, ast.keyword) else bound_names(node)
            riddles |= {(place, name) for name in names if any(word in name for word in RIDDLES)}
    assert riddles == RIDDLE_KEYS


def test_the_lint_sees_every_kind_of_binding() -> None:
    source = """
def told(each, *, own=1):
    for found in []:
        pass
    with open("") as kept:
        pass
    try:
        [known for known in []]
    except OSError as said:
        pass
    if wanted := 1:
        pass
    match 1:
        case shown:
            pass
class Asked:
    taken: int
    def __init__(self):
        self._held = 1
"""
    seen = {name for _, name in pronouns_of(ast.parse(source))}
    assert seen == {
        *("told", "each", "own", "found", "kept", "known", "said", "wanted", "shown", "Asked"),
        *("taken", "_held"),
    }


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict[str, list[str]](list)
    for place, tree in package_trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name.strip("_")].append(place)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
