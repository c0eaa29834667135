"""Base class of frozen values: printing, copying and cached properties."""

from __future__ import annotations

import gc
import html
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, Self, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


class FrozenValue(ABC):
    """Base of frozen dataclasses with large contents, which print a headline only.

    A copy, also from a pickle, is built by the constructor from the fields.  So it has passed the
    same checks, and contains no cached values.
    """

    @abstractmethod
    def headline(self) -> Mapping[str, str]:
        """Return the main figures of the value, as texts by name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name} {text}' for name, text in self.headline().items())})"

    def _repr_html_(self) -> str:
        """Return the headline as an HTML table for notebooks; all names in it are escaped."""
        rows = "".join(
            "<tr><th"
            f' style="text-align:left">{html.escape(name)}</th><td>{html.escape(text)}</td></tr>'
            for name, text in self.headline().items()
        )
        return f"<table><caption>{type(self).__name__}</caption><tbody>{rows}</tbody></table>"

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        return _rebuilt, (type(self), arguments)

    def __copy__(self) -> Self:
        return self  # frozen


def _rebuilt(cls: type[Any], arguments: dict[str, Any]) -> Any:
    return cls(**arguments)


def cached_on_value(function: _Function) -> _Function:
    """Cache the results of a function of a value for the lifetime of that value.

    The cache is stored with the value, so other values do not displace it.  Further arguments of
    the function must be positional and hashable.

    >>> class Few(list): pass
    >>> total = cached_on_value(lambda value: print("added up") or sum(value))
    >>> few = Few([1, 2])
    >>> total(few), total(few)
    added up
    (3, 3)
    """

    @wraps(function)
    def cached(value: object, *args: Any) -> Any:
        cache = vars(value).setdefault("_kept", {})
        if (function, args) not in cache:
            cache[function, args] = function(value, *args)
        return cache[function, args]

    return cast(_Function, cached)


def size_in_bytes(
    value: object, shared_with: object = None, excluded: Iterable[object] = ()
) -> int:
    """Return the bytes of a value and of all objects it refers to.

    Functions, types and modules are not counted.

    Objects that ``shared_with`` refers to are not counted.  Objects in ``excluded`` are not counted
    either, nor objects that only they refer to, because these are not traversed.

    >>> size_in_bytes([bytes(1000)] * 2) - size_in_bytes([bytes(1000)])
    8
    >>> both = bytes(1000)
    >>> size_in_bytes([both, bytes(10)]) - size_in_bytes([both, bytes(10)], shared_with=[both]) == size_in_bytes(both)
    True
    >>> size_in_bytes([both, bytes(10)], excluded=[both]) == size_in_bytes([both, bytes(10)], shared_with=both)
    True
    """
    seen = set(map(id, excluded))
    for _ in _referenced(shared_with, seen):
        pass
    return sum(map(sys.getsizeof, _referenced(value, seen)))


def _referenced(value: object, seen: set[int]) -> Iterator[object]:
    """Yield the value and the objects that it refers to, without those in ``seen``."""
    generation = [value]
    # all referents of a generation in one call take half the time of single calls
    while generation:
        new = {
            id(referent): referent
            for referent in generation
            if not isinstance(referent, (type, ModuleType, FunctionType))
        }
        generation = [referent for name, referent in new.items() if name not in seen]
        seen.update(new)
        yield from generation
        generation = gc.get_referents(*generation)
