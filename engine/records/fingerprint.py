"""Keyed fingerprints of exact tables."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

import numpy as np

from engine.ledger.balance import Fingerprint
from engine.records.counts import Counts
from engine.records.marginals import count_marginals
from engine.workload import Schema

# the digests of all columns are one line of the ledger, of at most 2,000 characters
MAX_DIGEST_COLUMNS = 80


def fingerprint(counts: Counts, attribute_sets: Iterable[Sequence[str]], key: bytes) -> Fingerprint:
    """Return the fingerprint of counted records: digests of the measured tables and of all columns."""
    return Fingerprint(tables=table_digest(counts, attribute_sets, key), columns=column_digests(counts, key))


def table_digest(counts: Counts, attribute_sets: Iterable[Sequence[str]], key: bytes) -> str:
    """Return one keyed digest of the exact tables on some attribute sets, in hexadecimal.

    Guarantee: equal tables on equal domains have equal digests, whatever the order and storage of
    the records.
    """
    sets = sorted({tuple(names) for names in attribute_sets})
    tables = count_marginals(counts, counts.schema, sets, memory_limit=10**15)
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for names in sets:
        digest.update(_table_bytes(counts.schema, names, tables[names]))
    return digest.hexdigest()


def column_digests(counts: Counts, key: bytes) -> dict[str, str]:
    """Return short domain digest -> keyed table digest, for counted attributes with >= 2 cells."""
    names = sorted({name for names in counts for name in names if counts.schema[name].size > 1})[:MAX_DIGEST_COLUMNS]
    tables = count_marginals(counts, counts.schema, [(name,) for name in names])
    return {
        hashlib.sha256(_domain_json(counts.schema, (name,))).hexdigest()[:8]: hmac.digest(
            key, _table_bytes(counts.schema, (name,), tables[name,]), hashlib.sha256
        ).hex()[:12]
        for name in names
    }


def _domain_json(schema: Schema, names: Sequence[str]) -> bytes:
    return Schema([schema[name] for name in names]).to_json().encode() if names else b"[]"


def _table_bytes(schema: Schema, names: Sequence[str], table: np.ndarray) -> bytes:
    """Return an unambiguous encoding of domain and counts: length-prefixed domain, then counts."""
    domain = _domain_json(schema, names)
    return len(domain).to_bytes(8, "big") + domain + np.ascontiguousarray(table, "<i8").tobytes()
