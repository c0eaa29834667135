"""Hostile values for readers of untrusted files, and all positions in a JSON document."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

NESTED = "@nested@"
# Maps a placeholder to the JSON text that replaces it after a document was written: the JSON writer
# of Python cannot write these texts.
RAW = {
    NESTED: "[" * 100_000 + "]" * 100_000,
    "@nested objects@": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "@nan@": "NaN",
    "@infinity@": "-Infinity",
    "@huge@": "1e999",
    "@digits@": "9" * 5_000,
    "@long integer@": "9" * 299,
}
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63,
    1e308,
    5e-324,
    "",
    "a" * 10_000,
    "\x00",
    "\ud800",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    [],
    {},
    [[[[1]]]],
    [None] * 1_000,
    {"": {"": []}},
    *RAW,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path (keys and positions) of every value in a JSON document.

    The first path is (), the document itself.  Only the first three items of a list are visited.
    """
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*path, key))
    elif isinstance(document, list):
        for number, value in enumerate(document[:3]):
            yield from places(value, (*path, number))


def with_value(document: Any, path: tuple[Any, ...], value: Any) -> bytes:
    """Return the bytes of a JSON document in which ``value`` replaces the value at ``path``."""
    if not path:
        changed = value
    else:
        changed = copy.deepcopy(document)
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = value
    text = json.dumps(changed)
    for word, raw in RAW.items():
        text = text.replace(json.dumps(word), raw)
    return text.encode()
