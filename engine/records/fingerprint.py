"""Keyed fingerprints of tables."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

import numpy as np

from engine.ledger.balance import Fingerprint
from engine.records.count_marginals import count_marginals
from engine.records.counts import Counts
from engine.workload import Schema

MOST_COLUMNS = 80  # that are told apart; their digests are one line of the ledger, of at most 2,000 characters


def fingerprint(counts: Counts, attribute_sets: Iterable[Sequence[str]], key: bytes) -> Fingerprint:
    """Return what a ledger keeps of counted records: the digest of the tables measured, and those of all columns."""
    return Fingerprint(tables=table_digest(counts, attribute_sets, key), columns=column_digests(counts, key))


def table_digest(counts: Counts, attribute_sets: Iterable[Sequence[str]], key: bytes) -> str:
    """Return one keyed digest of the exact tables on some attribute sets, in hexadecimal.

    Guarantee: equal for equal tables on equal domains, however the records are ordered or stored.
    """
    sets = sorted({tuple(names) for names in attribute_sets})
    tables = count_marginals(counts, counts.schema, sets, memory_limit=10**15)
    found = hmac.new(key, digestmod=hashlib.sha256)
    for names in sets:
        found.update(_table(counts.schema, names, tables[names]))
    return found.hexdigest()


def column_digests(counts: Counts, key: bytes) -> dict[str, str]:
    """Return a keyed digest of every counted attribute of two cells or more, by a short digest of its domain."""
    names = sorted({name for names in counts for name in names if counts.schema[name].size > 1})[:MOST_COLUMNS]
    tables = count_marginals(counts, counts.schema, [(name,) for name in names])
    return {
        hashlib.sha256(_domain(counts.schema, (name,))).hexdigest()[:8]: hmac.digest(
            key, _table(counts.schema, (name,), tables[name,]), hashlib.sha256
        ).hex()[:12]
        for name in names
    }


def _domain(schema: Schema, names: Sequence[str]) -> bytes:
    return Schema([schema[name] for name in names]).to_json().encode() if names else b"[]"


def _table(schema: Schema, names: Sequence[str], table: np.ndarray) -> bytes:
    """The domain and the counts, so that every part has one reading only."""
    domain = _domain(schema, names)
    return len(domain).to_bytes(8, "big") + domain + np.ascontiguousarray(table, "<i8").tobytes()
