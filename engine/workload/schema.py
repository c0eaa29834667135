"""The schema: the attributes of the records, in order, with the exact size of their common domain, and whose rows.

Sizes are Python integers, because 40 attributes of 1,000 values have more cells than any fixed-width number holds.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._format import MAX_NAME, near_matches, set_name, shown
from engine._validation import whole
from engine.errors import EngineError, SchemaError
from engine.privacy import Budget
from engine.privacy.budget import MOST_ROWS
from engine.workload.attribute import Attribute, sequence
from engine.workload.constraints import (
    Impossible,
    Invariant,
    checked_invariants,
    checked_rules,
    joint_facts,
    meaning_beside,
    promise_beside,
    read_rules,
)
from engine.workload.predicates import named_in
from engine.workload.schema_io import (
    EXACT_KIND,
    MAX_ATTRIBUTES,
    PERSON_KIND,
    RULE_KIND,
    check_text,
    read_csv,
    read_json,
    write_csv,
)

FORMAT = "schema/1"
OPTIONAL = ("person", "rows_per_person", "impossible", "invariants")


def _person_is_attribute(name: str) -> str:
    return f"the person column {shown(name)} is also an attribute; identifiers are in no table. Give another column"


@dataclass(frozen=True)
class Schema:
    """The attributes of the records, in order; a mapping from name to attribute, so iteration gives the names.

    Parameters
    ----------
    person : column that tells whose row it is; no attribute, and in no table.  None where nothing tells.
    rows_per_person : the most rows of one person that count, for budgets and counts that say nothing else.  Without a
        person column it is the curator's word, and no release protects fewer.  None where it is not declared.
    impossible : rules for structural zeros, such as "age < 15 and married == 'yes'", in the words of `Custom`.  A row
        whose counted values break one is left out of every count, like one outside the domain.
    invariants : exact tables that are public already, as pairs (attributes, values).  Releases keep them to the digit
        and spend nothing on them; what they say is protected from nobody.

    >>> schema = Schema([Attribute.of_size("age", 85), Attribute.categorical("sex", ["F", "M"])])
    >>> schema.size, schema.sizes(["sex", "age"]), schema["sex"].kind, list(schema)
    (170, (2, 85), 'categorical', ['age', 'sex'])
    >>> Schema.from_json(schema.to_json()) == Schema.from_csv(schema.to_csv()) == schema
    True
    """

    attributes: tuple[Attribute, ...]
    _: KW_ONLY
    person: str | None = None
    rows_per_person: int | None = None
    impossible: tuple[str, ...] = ()
    invariants: tuple[Invariant, ...] = ()
    _by_name: dict[str, Attribute] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        attributes: Iterable[Attribute],
        *,
        person: str | None = None,
        rows_per_person: int | None = None,
        impossible: Iterable[str] = (),
        invariants: Iterable[Any] = (),
    ) -> None:
        found = tuple(sequence(attributes, "a schema", "a list of attributes"))
        if not 1 <= len(found) <= MAX_ATTRIBUTES:
            raise SchemaError(f"a schema of {len(found):,} attributes; give between 1 and {MAX_ATTRIBUTES:,}")
        by_name: dict[str, Attribute] = {}
        for attribute in found:
            if not isinstance(attribute, Attribute):
                raise SchemaError(f"a schema holds Attribute objects; one is of type {type(attribute).__name__}")
            if attribute.name in by_name:
                raise SchemaError(f"the attribute {shown(attribute.name)} is there twice; rename or remove one")
            by_name[attribute.name] = attribute
        if person is not None:
            check_text(person, "person column", MAX_NAME)
            if person in by_name:
                raise SchemaError(_person_is_attribute(person))
        if rows_per_person is not None:
            what = "number of rows per person in the schema"
            rows_per_person = whole(what, rows_per_person, 1, MOST_ROWS, error=SchemaError)
        object.__setattr__(self, "person", person)
        object.__setattr__(self, "rows_per_person", rows_per_person)
        object.__setattr__(self, "attributes", found)
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "impossible", checked_rules(impossible))
        object.__setattr__(self, "invariants", checked_invariants(invariants, found))
        _ = self.facts  # what cannot be read, or cannot all hold, is told now

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the attributes, in order."""
        return tuple(self._by_name)

    @cached_property
    def order(self) -> dict[str, int]:
        """Position of every attribute."""
        return {name: i for i, name in enumerate(self.names)}

    def ranked(self, names: Iterable[str]) -> tuple[str, ...]:
        """Names of attributes in the order of the schema."""
        return tuple(sorted(names, key=self.order.__getitem__))

    @cached_property
    def size(self) -> int:
        """Exact number of cells of the full domain; it may have far more digits than anyone wants printed."""
        return math.prod(attribute.size for attribute in self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._by_name

    def __getitem__(self, name: str) -> Attribute:
        found = self._by_name.get(name) if isinstance(name, str) else None
        if found is None:
            near = near_matches(name, self.names)
            raise SchemaError(f"no attribute {shown(name)} among the {len(self):,} of this schema{near}")
        return found

    def named(self, names: str | Iterable[str], *, error: type[EngineError] = SchemaError) -> tuple[str, ...]:
        """Names of attributes as a tuple of known, distinct ones; a single name may stand alone.

        Raises: SchemaError for a name that the schema does not have, and ``error`` for what is no set of names.

        >>> Schema([Attribute.of_size("age", 4)]).named("age")
        ('age',)
        """
        given = (names,) if isinstance(names, str) else names
        if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
            raise error(f"Names of attributes were given as {shown(names)}. Give a name, or a list of names.")
        found = tuple(self[name].name for name in given)
        if len(set(found)) != len(found):
            raise error(f"A set of attributes has a name twice: {', '.join(found)}. Name each once.")
        return found

    def sizes(self, names: Iterable[str]) -> tuple[int, ...]:
        """Numbers of cells of the named attributes, in the order given: the shape of their marginal table."""
        return tuple(self[name].size for name in names)

    def cells(self, names: Iterable[str]) -> int:
        """Exact number of cells of the marginal table on the named attributes; 1 for none."""
        return math.prod(self.sizes(names))

    def subset(self, names: Iterable[str]) -> Schema:
        """The schema of the named attributes, in the order given, with the facts that are about these alone."""
        found = tuple(self[name] for name in names)
        inside = {attribute.name for attribute in found}
        told = [r for r in self.impossible if {self.names[i] for i in named_in(r, self.attributes)} <= inside]
        exact = [one for one in self.invariants if inside.issuperset(one.attributes)]
        return replace(self, attributes=found, impossible=tuple(told), invariants=tuple(exact))

    def with_missing_values(self, texts: Iterable[str]) -> Schema:
        """The schema in which texts mean missing in every attribute that does not have them as labels.

        >>> schema = Schema([Attribute.of_size("age", 85), Attribute.categorical("answer", ["yes", "no", "NA"])])
        >>> [a.missing_values for a in schema.with_missing_values(["NA", "."]).attributes]
        [('NA', '.'), ('.',)]
        """
        added = tuple(sequence(texts, "texts that mean missing", "a list of texts"))
        return replace(self, attributes=tuple(_with_missing(attribute, added) for attribute in self.attributes))

    def with_facts(self, *, impossible: Iterable[str] | None = None, invariants: Iterable[Any] | None = None) -> Schema:
        """The schema with public facts in place of those of the kind it has; kinds that are left out stay.

        Parameters
        ----------
        impossible : rules for cells that are impossible.
        invariants : exact tables that are public already, as pairs (attributes, values); the values are whole counts of
            shape ``sizes(attributes)``, or row by row.  No attributes stand for the number of records.

        Raises: SchemaError for rules that cannot be read, hold for no cell, or leave no cell possible; for values that
        are no counts on attributes of the schema; for facts that contradict each other.

        >>> schema = Schema([Attribute.numeric("age", [0, 15, 99]), Attribute.categorical("married", ["no", "yes"])])
        >>> schema.with_facts(impossible=["age < 15 and married == 'yes'"]).possible_share(["age", "married"]).round(2)
        array([[0.33, 0.  ],
               [0.33, 0.33]])
        >>> schema.with_facts(invariants=[(["married"], [40, 60])]).exact_table([]).item()
        100
        """
        rules = self.impossible if impossible is None else checked_rules(impossible)
        exact = self.invariants if invariants is None else checked_invariants(invariants, self.attributes)
        return replace(self, impossible=rules, invariants=exact)

    def is_exact(self, names: Iterable[str]) -> bool:
        """Whether the table on some attributes, those of one cell left out, is public and exact."""
        if not self.invariants:
            return False
        asked = {name for name in names if self[name].size > 1}
        return any(asked <= own for own in self._exact)

    def exact_table(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """The public exact table on some attributes, in the order given; shape ``sizes(names)``, in counts."""
        asked = [name for name in names if self[name].size > 1]
        one = next(one for one, own in zip(self.invariants, self._exact, strict=True) if own.issuperset(asked))
        return one.table({name: self[name].size for name in one.attributes}, asked).reshape(self.sizes(names))

    @cached_property
    def exact_spaces(self) -> tuple[tuple[str, ...], ...]:
        """Sets of attributes of more than one cell, in the order of the schema, whose tables are public and exact."""
        wide = [[name for name in one.attributes if self[name].size > 1] for one in self.invariants]
        inside = {own for names in wide for k in range(len(names) + 1) for own in itertools.combinations(names, k)}
        return tuple(sorted(inside, key=lambda own: (len(own), own)))

    @cached_property
    def exact_places(self) -> tuple[list[int], ...]:
        """Positions of the attributes of every public table."""
        return tuple([self.order[name] for name in one.attributes] for one in self.invariants)

    @cached_property
    def _exact(self) -> tuple[frozenset[str], ...]:
        return tuple(frozenset(one.attributes) for one in self.invariants)

    @property
    def exact_text(self) -> str:
        """What is public and exact, in words; empty where nothing is.

        >>> Schema([Attribute.of_size("age", 2)], invariants=[("age", [3, 4])]).exact_text
        'the exact totals on age'
        """
        told = [set_name(one.attributes) if one.attributes else "all records" for one in self.invariants]
        return f"the exact totals on {', '.join(told)}" if told else ""

    def promise(self, budget: Budget) -> str:
        """What a release within a budget promises one of the people in the records."""
        return promise_beside(budget, self.exact_text) if self.invariants else budget.promise

    def meaning(self, budget: Budget, *, curve: bool = True) -> str:
        """What a release within a budget means, in one line; beside exact totals that is no plain differential privacy.

        >>> exact = Schema([Attribute.of_size("age", 2)], invariants=[("age", [3, 4])])
        >>> exact.meaning(Budget(pcost=1.0)).partition(":")[0]
        'Subspace differential privacy'
        """
        if self.invariants:
            return meaning_beside(budget, self.exact_text, curve=curve)
        return budget.describe(curve=curve)

    @cached_property
    def structural_zeros(self) -> tuple[Impossible, ...]:
        """What the rules say: cells that are impossible, rules that share attributes read together."""
        return read_rules(self.impossible, self.attributes) if self.impossible else ()

    @cached_property
    def facts(self) -> tuple[Impossible, ...]:
        """What rules and invariants say of the records, those that share attributes read together."""
        return joint_facts(self.structural_zeros, self.invariants, self.attributes)

    def possible_share(self, names: Iterable[str]) -> npt.NDArray[np.float64]:
        """The table on some attributes if all possible cells of the full domain held the same, with sum 1.

        Shape ``sizes(names)``; exactly 0 where the rules of the schema, taken together, make a cell impossible.
        """
        return self._share(tuple(names), self.structural_zeros)

    def even_share(self, names: Iterable[str]) -> npt.NDArray[np.float64]:
        """The same, as even as the invariants allow; exactly 0 where rules and invariants leave nothing.

        Shape ``sizes(names)``.
        """
        return self._share(tuple(names), self.facts)

    def _share(self, names: tuple[str, ...], facts: Sequence[Impossible]) -> npt.NDArray[np.float64]:
        told = {name for found in facts for name in found.names}
        out = np.full((1,) * len(names), 1.0 / self.cells(n for n in names if n not in told))
        for found in facts:
            own = [name for name in names if name in found.names]
            out = out * found.possible(own).reshape([self[n].size if n in own else 1 for n in names])
        return np.broadcast_to(out, self.sizes(names))

    @cached_property
    def ruled(self) -> frozenset[str]:
        """The attributes that facts are about."""
        return frozenset(name for found in self.facts for name in found.names)

    def person_column(self, given: str | None = None) -> str | None:
        """The column that tells whose row it is: the declared one, or the one that is given where none is declared.

        Raises: SchemaError if another column is given than the schema declares, or an attribute.
        """
        if given is not None and self.person is not None and given != self.person:
            raise SchemaError(
                f"the person column was given as {shown(given)}, and the schema declares {shown(self.person)}; "
                "leave it out, or correct the schema"
            )
        if given is not None and given in self:
            raise SchemaError(_person_is_attribute(given))
        return self.person if given is None else given

    def other_rows(self, rows: int) -> str:
        """What it means that a budget protects so many rows of a person, where the schema declares another number.

        >>> Schema([Attribute.of_size("age", 4)], person="pid", rows_per_person=3).other_rows(1)
        'The schema declares 3 rows of a person, and the budget protects 1: no more than 1 of each person will count.'
        """
        declared = self.rows_per_person
        if declared is None or declared == rows:
            return ""
        differ = f"The schema declares {declared:,} rows of a person, and the budget protects {rows:,}: "
        if rows > declared:
            return f"{differ}every error is {rows / declared:.3g} times what {declared:,} would need."
        if self.person is not None:
            return f"{differ}no more than {rows:,} of each person will count."
        return (
            f"{differ}without a person column nothing keeps to that, and nothing is released. Protect {declared:,}, or "
            "name the column that tells the person."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready description with its format and version; what is not declared is left out."""
        attributes = [attribute.to_dict() for attribute in self.attributes]
        more: dict[str, Any] = {
            "person": self.person,
            "rows_per_person": self.rows_per_person,
            "impossible": list(self.impossible),
        }
        more |= {"invariants": [one.to_dict() for one in self.invariants]}
        declared = {key: value for key, value in more.items() if value not in (None, [])}
        return {"format": FORMAT, "attributes": attributes} | declared

    @classmethod
    def from_dict(cls, document: Any) -> Schema:
        """Inverse of `to_dict`; also reads a plain domain file, {name: size, ...}, as numeric codes."""
        if not isinstance(document, dict):
            raise SchemaError(f"a schema is given as {type(document).__name__}; give an object with attributes")
        if document and all(type(value) is int for value in document.values()):
            return cls([Attribute.of_size(name, size) for name, size in document.items()])
        if document.get("format") != FORMAT or document.keys() - set(OPTIONAL) != {"format", "attributes"}:
            raise SchemaError(
                f"this is no schema: give the keys 'format' (with {FORMAT!r}) and 'attributes', and perhaps "
                "'person', 'rows_per_person', 'impossible' and 'invariants'"
            )
        attributes = document["attributes"]
        if not isinstance(attributes, list) or len(attributes) > MAX_ATTRIBUTES:
            raise SchemaError(f"'attributes' must be a list of 1 to {MAX_ATTRIBUTES:,} objects")
        more = {key: document[key] for key in OPTIONAL if key in document}
        return cls([Attribute.from_dict(attribute) for attribute in attributes], **more)

    def to_json(self) -> str:
        """JSON text with format and version; `from_json` gives back an equal schema."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        """Read a schema from JSON text or UTF-8 bytes.  Raises: SchemaError."""
        return cls.from_dict(read_json(text))

    def to_csv(self) -> str:
        r"""CSV text, one row per attribute, with the header name,kind,size,labels,edges,other,missing,clip
        and, where an attribute uses them, integer, missing_values, decimal, thousands, start, stop, unit, date_format.

        Labels and edges are joined by |.  A backslash stands before | and \ inside a text and before = + - @ at its
        start, so that a spreadsheet never takes a label for a formula.  A last row of the kind person has the person
        column as its name and the rows per person as its size, where they are declared; rows of the kind impossible
        have a rule each as their name, rows of the kind exact an invariant: attributes as labels, counts as edges.
        """
        rows = [attribute.to_dict() for attribute in self.attributes]
        if self.person is not None or self.rows_per_person is not None:
            rows.append({"name": self.person, "kind": PERSON_KIND, "size": self.rows_per_person})
        rows += [{"name": rule, "kind": RULE_KIND} for rule in self.impossible]
        for one in self.invariants:
            told: dict[str, Any] = {"labels": list(one.attributes), "edges": list(map(str, one.values))}
            rows.append({"name": f"totals on {set_name(one.attributes)}", "kind": EXACT_KIND} | told)
        return write_csv(rows)

    @classmethod
    def from_csv(cls, text: str | bytes) -> Schema:
        """Read a schema from CSV text or UTF-8 bytes as `to_csv` writes it; the columns that are needed are name, kind
        and those of size, labels and edges that occur.  Raises: SchemaError.
        """
        attributes: list[Attribute] = []
        unit: dict[str, Any] = {}
        rules: list[str] = []
        exact: list[tuple[Any, Any]] = []
        for line, document in read_csv(text):
            try:
                if document.get("kind") == RULE_KIND:
                    if document.keys() != {"name", "kind"}:
                        raise SchemaError("a row of the kind impossible has a rule as its name, and nothing else")
                    rules.append(document["name"])
                elif document.get("kind") == EXACT_KIND:
                    exact.append((document.get("labels", []), document.get("edges")))
                elif document.get("kind") != PERSON_KIND:
                    attributes.append(Attribute.from_dict(document))
                elif unit or not {"kind"} < document.keys() <= {"name", "kind", "size"}:
                    raise SchemaError("one row of the kind person is allowed, with a name, a size, or both")
                else:
                    unit = {"person": document.get("name"), "rows_per_person": document.get("size")}
            except SchemaError as error:
                raise SchemaError(f"line {line}: {error}") from None
        return cls(attributes, **unit, impossible=rules, invariants=exact)


def _with_missing(attribute: Attribute, texts: Sequence[str]) -> Attribute:
    labels = set(attribute.labels or ()) - {attribute.missing}
    kept = [text for text in texts if text not in labels]
    return replace(attribute, missing_values=tuple(dict.fromkeys([*attribute.missing_values, *kept])))
