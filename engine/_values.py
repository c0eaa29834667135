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


class Value(ABC):
    """Base of frozen dataclasses that may hold much: they print their headline figures and none of their contents.

    A copy, also one that was pickled, is made by the constructor from the fields, so that whatever it checks holds for
    the copy as well and nothing that was computed on the way is carried along.
    """

    @abstractmethod
    def headline(self) -> Mapping[str, str]:
        """Return what a reader wants to know first, in words and figures."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name} {text}' for name, text in self.headline().items())})"

    def _repr_html_(self) -> str:
        """Return the headline as a table for notebooks; names of attributes and datasets are text in it, never HTML."""
        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th><td>{html.escape(text)}</td></tr>'
            for name, text in self.headline().items()
        )
        return f"<table><caption>{type(self).__name__}</caption><tbody>{rows}</tbody></table>"

    def __reduce__(self) -> tuple[Any, ...]:
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        return _made, (type(self), given)

    def __copy__(self) -> Self:
        return self  # frozen


def _made(kind: type[Any], given: dict[str, Any]) -> Any:
    return kind(**given)


def kept_with(function: _Function) -> _Function:
    """Keep what a function finds of a value for as long as the value lives, however many others are looked at between.

    Its other arguments are positional and hashable.

    >>> class Few(list): pass
    >>> total = kept_with(lambda value: print("added up") or sum(value))
    >>> few = Few([1, 2])
    >>> total(few), total(few)
    added up
    (3, 3)
    """

    @wraps(function)
    def found(value: object, *given: Any) -> Any:
        kept = vars(value).setdefault("_kept", {})
        if (function, given) not in kept:
            kept[function, given] = function(value, *given)
        return kept[function, given]

    return cast(_Function, found)


def held_bytes(value: object, beside: object = None, apart: Iterable[object] = ()) -> int:
    """Return the bytes of a value with everything that it holds on to, programs and modules left out.

    What ``beside`` holds on to as well counts for nothing, and so does what stands in ``apart`` and what that alone
    holds on to, which is not looked through.

    >>> held_bytes([bytes(1000)] * 2) - held_bytes([bytes(1000)])
    8
    >>> both = bytes(1000)
    >>> held_bytes([both, bytes(10)]) - held_bytes([both, bytes(10)], beside=[both]) == held_bytes(both)
    True
    >>> held_bytes([both, bytes(10)], apart=[both]) == held_bytes([both, bytes(10)], beside=both)
    True
    """
    seen = set(map(id, apart))
    for _ in _held(beside, seen):
        pass
    return sum(map(sys.getsizeof, _held(value, seen)))


def _held(value: object, seen: set[int]) -> Iterator[object]:
    """Yield what a value holds on to and is not seen yet."""
    found = [value]
    while found:  # all referents of a generation at once, which takes half the time
        new = {id(one): one for one in found if not isinstance(one, (type, ModuleType, FunctionType))}
        found = [one for name, one in new.items() if name not in seen]
        seen.update(new)
        yield from found
        found = gc.get_referents(*found)
