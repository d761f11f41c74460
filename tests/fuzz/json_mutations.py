"""Mutations of JSON that know what an object is: the result is still JSON, or nearly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.fuzz.hostile import hostile_text, hostile_value

Container = dict[str, Any] | list[Any]
_NEST = "@nest@"
_DEPTHS = (50, 2_000, 100_000)


def mutate_json(text: bytes, chance: Random) -> tuple[bytes, str]:
    """The text with some of its values changed, and what was done; ValueError if it is no JSON."""
    value = json.loads(text)
    places = list(_places(value))
    if not places:
        return b"[" * 100_000, "only brackets"
    done = []
    for _ in range(chance.choice((1, 1, 2, 5))):
        mutation = chance.choice(_MUTATIONS)
        container, key = chance.choice(places)
        # What was done before may have taken the place away.
        if key in container if isinstance(container, dict) else key < len(container):
            done.append(f"{mutation.__name__[1:]} {key!r:.40}")
            mutation(value, places, container, key, chance)
    written = json.dumps(value, ensure_ascii=chance.random() < 0.7).encode(errors="replace")
    if _NEST.encode() in written:
        depth = chance.choice(_DEPTHS)
        begin, end = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")))
        nested = begin * depth + b"1" + end * depth
        written = written.replace(f'"{_NEST}"'.encode(), nested, 1)
    return written, ", ".join(done)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value below this one, as its container and key."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        found = container.items() if isinstance(container, dict) else enumerate(container)
        for key, item in found if isinstance(container, (dict, list)) else ():
            yield container, key
            if isinstance(item, (dict, list)):
                waiting.append(item)


def _replace(_: Any, __: Any, container: Any, key: Any, chance: Random) -> None:
    container[key] = hostile_value(chance)


def _replace_everywhere(_: Any, places: Any, container: Any, key: Any, chance: Random) -> None:
    """One value for the key of this name in every object: ids are duplicates then."""
    same = hostile_value(chance)
    for other, name in places:
        if name == key and isinstance(other, type(container)) and name in other:
            other[name] = same


def _replace_often(_: Any, places: Any, container: Any, key: Any, chance: Random) -> None:
    """Another value each time, for some of those of this name."""
    for other, name in places:
        named = isinstance(other, dict) and name == key and name in other
        if named and chance.random() < 0.3:
            other[name] = hostile_value(chance)


def _negate(_: Any, places: Any, container: Any, key: Any, chance: Random) -> None:
    for other, name in places:
        if isinstance(other, dict) and name == key and isinstance(other.get(name), (int, float)):
            other[name] = -other[name]


def _rename(_: Any, places: Any, container: Any, key: Any, chance: Random) -> None:
    """Every text under that name becomes hostile."""
    for other, name in places:
        if isinstance(other, dict) and isinstance(other.get(name), str) and name in ("name", key):
            other[name] = hostile_text(chance)


def _delete(_: Any, __: Any, container: Any, key: Any, chance: Random) -> None:
    del container[key]


def _key(_: Any, __: Any, container: Any, key: Any, chance: Random) -> None:
    if isinstance(container, dict):
        container[hostile_text(chance)] = container.pop(key)
    else:
        container.insert(key, container[key])


def _swap(_: Any, places: Any, container: Any, key: Any, chance: Random) -> None:
    """Two values change places, but no value comes to lie in itself."""
    other, name = chance.choice(places)
    try:
        plain = not isinstance(container[key], (dict, list)) and not isinstance(
            other[name], (dict, list)
        )
    except (KeyError, IndexError):
        return
    if plain:
        container[key], other[name] = other[name], container[key]


def _nest(_: Any, __: Any, container: Any, key: Any, chance: Random) -> None:
    container[key] = _NEST


def _shuffle(_: Any, places: Any, container: Any, key: Any, chance: Random) -> None:
    lists = [c[k] for c, k in places if _is_list(c, k)]
    if lists:
        items = chance.choice(lists)
        chance.shuffle(items)
        items += items[: chance.choice((0, 1, len(items)))]


def _is_list(container: Any, key: Any) -> bool:
    try:
        return isinstance(container[key], list)
    except (KeyError, IndexError):
        return False


_MUTATIONS: tuple[Callable[[Any, Any, Any, Any, Random], None], ...] = (
    _replace, _replace_everywhere, _replace_everywhere, _replace_often, _replace_often, _negate,
    _rename, _delete, _key, _swap, _nest, _shuffle,
)  # fmt: skip
