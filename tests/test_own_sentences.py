"""The program reads no sentence that it wrote: what it needs to know of one is data beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "spark_prof"

SENTENCES = frozenset({
    "advice", "basis", "because", "cause", "checkpoint", "conflict", "conflicts", "effect",
    "evidence", "executed", "execution", "explanation", "failed", "failure", "fault", "fix",
    "intro", "lost", "measured", "message", "missing", "note", "notes", "peak_source", "reason",
    "reasons", "recorded_as", "remedy", "said", "says", "scheme", "sentence", "text", "title",
    "told", "verdict", "what", "why",
})  # fmt: skip
"""Names of fields that hold sentences and labels of this program."""
LISTS = frozenset({"conflicts", "evidence", "lost", "missing", "notes", "reasons"})
METHODS = frozenset({
    "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace", "rfind",
    "rpartition", "rsplit", "split", "splitlines", "startswith",
})  # fmt: skip
SEARCHES = frozenset({"findall", "finditer", "fullmatch", "match", "search", "split", "sub"})

FOREIGN = (
    "traces/readers", "traces/benchmarks", "traces/formats.py", "redact", "secret", "random_words",
    "importers", "exporters", "rules",
)  # fmt: skip
"""Where all texts are other programs', names, or a person's: logs, traces, libraries, options."""

READ = {
    # What an engine, a library or a file system said.
    "analyzers/fallbacks/causes.py": {"line.text"},
    "analyzers/fallbacks/engine_facts.py": {"line.text"},
    "analyzers/fallbacks/audit.py": {
        "failure.text",
        "failure.text.lower()",
        "failure.message",
    },
    "analyzers/fallbacks/issue_evidence.py": {"line.text"},
    "analyzers/fallbacks/missing_candidates.py": {"line.text"},
    "ab/engine_process.py": {"reason"},
    "explorer/server.py": {"getattr(error, 'strerror', None) or str(error)"},
    "swaps/build.py": {"str(error)"},  # somebody's own builder may name its layer
    "errors.py": {"str(error)"},  # of the loader, Python and Arrow
    # One of a few words, as its type has them.
    "dashboards/compare_answer.py": {"outcome.basis"},
    "dashboards/compare_report.py": {"outcome.basis"},
    # The path of a copy that is gone, in whatever a reader said.
    "traces/resolve.py": {"str(error)"},
    # A title is broken at its words.
    "dashboards/render/terminal.py": {"column.title"},
    # Names of hooks, of a kernel's scheme.
    "profiler/engine.py": {"self.fence.failed"},
    "profiler/fence.py": {"self.failed"},
    "kernels/check/cases.py": {"case.scheme"},
    # A template of a table is filled.
    "analyzers/findings/engine_setup.py": {"fix"},
    # The same line is not said twice.
    "ab/setting.py": {"self.result.missing"},
    "traces/merge_ranks.py": {"lost"},
    "profiler/launcher.py": {"bundle.meta.lost"},
}
"""What is read elsewhere, each for a reason that is no reading of this program's own words."""

CODECS = {
    "traces/execution.py": "a bundle's `execution`, written and read by one class",
    "traces/bundle.py": "the mark of an import in a bundle's `backend`",
    "traces/foreign.py": "the mark of impossible records in a bundle's `lost`",
    "traces/assemble.py": "the process in front of a line of a bundle's `lost`",
    "swaps/progress.py": "a record of JSON in a line of an engine's log",
}
"""The formats of files, each written and read in one place."""


def _named(node: ast.expr, sentences: set[str]) -> bool:
    """Whether a text is taken from a field or variable of a sentence."""
    if isinstance(node, ast.Attribute):
        return node.attr in SENTENCES
    if isinstance(node, ast.Name):
        return node.id in sentences
    if isinstance(node, ast.Subscript):
        return _named(node.value, sentences)
    if isinstance(node, ast.BoolOp):
        return any(_named(value, sentences) for value in node.values)
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id in ("str", "clean", "one_line"):
            error = isinstance(node.args[0], ast.Name) and node.args[0].id == "error"
            return error or _named(node.args[0], sentences)
        return isinstance(function, ast.Attribute) and _named(function.value, sentences)
    return False


def _variables(tree: ast.AST) -> set[str]:
    """Names of sentences, and of what goes through a list of sentences."""
    names = set(SENTENCES - {"text"})  # a text may be anybody's
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension | ast.For) and isinstance(node.target, ast.Name):
            listed = node.iter.attr if isinstance(node.iter, ast.Attribute) else ""
            names |= {node.target.id} if listed in LISTS else set()
    return names


def readings(source: str) -> Iterator[tuple[int, str]]:
    """Each place where a sentence is searched, cut or compared with words, and which."""
    tree = ast.parse(source)
    names = _variables(tree)
    for node in ast.walk(tree):
        read: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in METHODS and node.args:
                read.append(node.func.value)
            if node.func.attr in SEARCHES:
                read += node.args
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            read.append(node.comparators[0])
        yield from ((node.lineno, ast.unparse(text)) for text in read if _named(text, names))


def test_no_sentence_is_read_back() -> None:
    seen = set()
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith(FOREIGN) or name in CODECS:
            continue
        for line, text in readings(path.read_text()):
            seen.add((name, text))
            if text not in READ.get(name, ()):
                wrong.append(f"{name}:{line}: {text}")
    assert not wrong, "keep what it is about as data beside the sentence:\n" + "\n".join(wrong)
    assert {(name, text) for name, texts in READ.items() for text in texts} <= seen


def test_readings_are_found() -> None:
    for source in (
        "re.search('x', finding.fix)", "_X.findall(row.what)", "why.partition(':')",
        "str(error).split('; install ')", "'CUDA graphs' in run.execution",
        "any(line.startswith('lost') for line in meta.lost)", "gain.text.partition(' (')[0]",
        "finding.text[:9].endswith('.')",
    ):  # fmt: skip
        assert list(readings(source)), source
    for source in ("path.name.split('.')", "text.startswith('x')", "replace(row, what='')"):
        assert not list(readings(source)), source
