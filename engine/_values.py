"""Base class of frozen values, results cached on a value, and memory sizes of objects."""

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
    """Base class of frozen dataclasses with large contents; printing shows only `headline`.

    Unpickling calls the constructor with the fields.  The unpickled copy has therefore passed the
    checks of the constructor, and contains no cached values.
    """

    @abstractmethod
    def headline(self) -> Mapping[str, str]:
        """Return the texts that are printed in place of the value, by name: {"rmse": "2.52"}."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name} {text}' for name, text in self.headline().items())})"

    def _repr_html_(self) -> str:
        """Return the headline as an HTML table for notebooks, with all texts escaped."""
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
    """Decorate a function so that its results are cached in an attribute of its first argument.

    The cached results live as long as the first argument does.  Further arguments of the function
    must be positional and hashable.

    >>> class Few(list): pass
    >>> total = cached_on_value(lambda value: print("added up") or sum(value))
    >>> few = Few([1, 2])
    >>> total(few), total(few)
    added up
    (3, 3)
    """

    @wraps(function)
    def cached(value: object, *args: Any) -> Any:
        cache = vars(value).setdefault("_cache", {})
        if (function, args) not in cache:
            cache[function, args] = function(value, *args)
        return cache[function, args]

    return cast(_Function, cached)


def size_in_bytes(
    value: object, shared_with: object = None, excluded: Iterable[object] = ()
) -> int:
    """Return the memory in bytes of a value and of all objects that can be reached from it.

    Functions, types and modules are not counted.

    Parameters
    ----------
    shared_with : this object, and all objects that can be reached from it, are not counted.
    excluded : objects that are not counted.  References from these objects are not followed.

    >>> size_in_bytes([bytes(1000)] * 2) - size_in_bytes([bytes(1000)])
    8
    >>> both = bytes(1000)
    >>> size_in_bytes([both, bytes(10)]) - size_in_bytes([both, bytes(10)], shared_with=[both]) == size_in_bytes(both)
    True
    >>> size_in_bytes([both, bytes(10)], excluded=[both]) == size_in_bytes([both, bytes(10)], shared_with=both)
    True
    """
    seen = set(map(id, excluded))
    # The iteration adds the ids of all shared objects to ``seen``.
    for _ in _referenced(shared_with, seen):
        pass
    return sum(map(sys.getsizeof, _referenced(value, seen)))


def _referenced(value: object, seen: set[int]) -> Iterator[object]:
    """Yield a value and every object that can be reached from it, each object once.

    Functions, types, modules and objects whose ids are in ``seen`` are skipped.  The ids of visited
    objects are added to ``seen``.
    """
    # Objects are visited level by level: one call of get_referents for all objects of a level is
    # twice as fast as one call per object.
    level = [value]
    while level:
        objects = {
            id(referent): referent
            for referent in level
            if not isinstance(referent, (type, ModuleType, FunctionType))
        }
        level = [referent for address, referent in objects.items() if address not in seen]
        seen.update(objects)
        yield from level
        level = gc.get_referents(*level)
