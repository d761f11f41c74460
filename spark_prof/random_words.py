"""Tells a word that a generator drew, such as a key, from one that somebody thought of."""

from __future__ import annotations

import re

_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_SEGMENT = re.compile(r"[A-Za-z0-9]{14,256}")
_WORD = re.compile(r"[A-Za-z0-9+/_~.=-]{14,512}")
_SYMBOL = re.compile(r"_Z|0x|sha\d|GPU-|MIG-")
_CHARACTERS_A_PIECE = 2.8
"""Of names in capitals and small letters each piece has more: 99 % of vLLM's; 7 % of drawn ones."""
_IN_WORDS = 0.45  # share of letters in pieces of five and more, from which it is a name


def looks_random(word: str) -> bool:
    """Whether a word has a long part of mixed letters and digits that make no words.

    Numbers, hashes, UUIDs, names of classes and of models are none: `Qwen3MoeForCausalLM`.
    """
    if not _WORD.fullmatch(word) or _SYMBOL.match(word):
        return False
    return any(map(_drawn, _SEGMENT.findall(word)))


def _drawn(segment: str) -> bool:
    if segment.islower() or segment.isupper() or not any(map(str.isdigit, segment)):
        return False
    pieces = _PIECES.findall(segment)
    if not any(map(str.islower, pieces)) or len(segment) > _CHARACTERS_A_PIECE * len(pieces):
        return False
    in_words = sum(len(piece) for piece in pieces if len(piece) >= 5 and piece.isalpha())
    return in_words < _IN_WORDS * len(segment)
