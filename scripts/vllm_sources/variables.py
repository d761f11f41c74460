"""Which environment variables a vLLM reads."""

from __future__ import annotations

import ast
import re

from scripts.vllm_sources import values
from scripts.vllm_sources.scan import scan
from scripts.vllm_sources.scope import Scope, strings
from scripts.vllm_sources.sources import SourceError, Sources
from scripts.vllm_sources.tables import Key

_MODULE = "vllm.envs"
_TABLE = "environment_variables"
_READS = re.compile(rb"environ|getenv")

LISTED = "listed"
READ = "read"


def environment_variables(sources: Sources) -> frozenset[Key]:
    """The variables with `listed`, or `read` where vLLM/envs.py does not list one that is read.

    vLLM warns of a variable that begins with VLLM_ and is not listed, also where some module reads
    it. What stands as a constant in a module that reads the environment counts as read: rather one
    too many than a variable of which is said that it does nothing.

    Raises:
        SourceError: the list is not where it was in any version.
    """
    listed = {text for text in map(values.string, _table(sources).keys) if text}
    keys = {(name, LISTED) for name in listed}
    for path, text in sources.texts.items():
        if b"VLLM_" not in text or not _READS.search(text):
            continue
        keys |= {(name, READ) for name in scan(sources, path).variables - listed}
    return frozenset(keys)


def choices_of_variables(sources: Sources) -> frozenset[Key]:
    """Each value that a listed variable takes, where only some are taken: (variable, value)."""
    table, keys = _table(sources), set()
    scope = Scope(sources, _MODULE)
    for key, value in zip(table.keys, table.values, strict=True):
        name = values.string(key)
        if name and isinstance(value, ast.Call) and "with_choices" in ast.unparse(value.func):
            choice_nodes = [
                *value.args[2:3],
                *(k.value for k in value.keywords if k.arg == "choices"),
            ]
            for choices in choice_nodes:
                keys |= {(name, text) for text in strings(choices, scope, choices=True)}
    return frozenset(keys)


def _table(sources: Sources) -> ast.Dict:
    tree = sources.tree(_MODULE)
    table = None if tree is None else values.assigned(tree).get(_TABLE)
    if not isinstance(table, ast.Dict):
        raise SourceError(f"vLLM {sources.version}: no {_TABLE} in {_MODULE}")
    return table
