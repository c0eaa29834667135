"""Make a synthetic table for any schema: no record is real, and nothing is learned from data.

    python -m demo_data.make_synthetic --schema cps --rows 50000 --seed 1 --out cps.parquet

Each record first draws one of a few latent classes with Zipf weights; given the class, its values
are independent. Categorical values follow a Zipf law whose steepness and order change with the
class, numeric values a bump whose place and width change with the class, over a long common tail.
So marginals are skewed and attributes correlate, as in real tables.  The randomness is seeded and
meant for demonstrations; privacy noise never comes from here.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from demo_data import schemas
from engine.errors import SchemaError
from engine.postprocess.synthetic_records import meet_facts
from engine.workload import Attribute, Schema

CLASSES = 6


def synthetic(schema: Schema, rows: int, seed: int) -> pd.DataFrame:
    """A synthetic table of `rows` records that fits `schema`; the same arguments give the same
    table.

    Columns come in the order of the schema: labels as a pandas categorical, numbers inside the bins
    (whole where the edges are whole), codes as the smallest unsigned integers; then, where the
    schema declares a person column, whole numbers of persons who have as many rows as it declares,
    one after the other.  An attribute's column depends on the seed, on its place in the schema and
    on its own domain only.  Where the schema has public tables there are as many records as these
    tell, and they agree with them.

    >>> schema = Schema([Attribute.numeric("age", [0, 20, 65, 100]), Attribute.categorical("sex", ["F", "M"])])
    >>> table = synthetic(schema, rows=1000, seed=1)
    >>> table.shape, bool(table["age"].between(0, 100).all()), sorted(table["sex"].unique())
    ((1000, 2), True, ['F', 'M'])
    """
    if rows < 0:
        raise ValueError(f"a table of {rows} rows; give 0 or more")
    if schema.invariants:
        rows = int(schema.exact_table([]))
    latent = _draw(_zipf(CLASSES), np.random.default_rng([seed, 0]).random(rows))
    members = [np.flatnonzero(latent == c) for c in range(CLASSES)]
    codes, columns = {}, {}
    for place, attribute in enumerate(schema.attributes, start=1):
        rng = np.random.default_rng([seed, place])
        codes[attribute.name] = _codes(attribute, members, rows, rng)
        if not schema.invariants:
            columns[attribute.name] = _column(attribute, codes[attribute.name], rng)
    if schema.invariants:
        codes_kept_facts = meet_facts(codes, schema, np.random.default_rng([seed, len(schema) + 1]))
        columns = {
            a.name: _column(a, codes_kept_facts[a.name], np.random.default_rng(seed))
            for a in schema.attributes
        }
    if schema.person is not None:
        columns[schema.person] = np.arange(rows) // (schema.rows_per_person or 1)
    return pd.DataFrame(columns, index=pd.RangeIndex(rows))


def _codes(
    attribute: Attribute, members: list[np.ndarray], rows: int, rng: np.random.Generator
) -> np.ndarray:
    codes = np.zeros(rows, dtype=np.min_scalar_type(attribute.size - 1))
    uniform = rng.random(rows)
    common = _zipf(attribute.size)
    for member, rank in zip(members, rng.permutation(CLASSES), strict=True):
        if attribute.kind == "categorical":
            order = np.argsort(
                np.arange(attribute.size) + rng.normal(0, attribute.size / 3, attribute.size)
            )
            special = _normalised(common ** rng.uniform(0, 3))[order]
        else:
            special = _bump(
                attribute.size,
                center=(rank + rng.random()) / (CLASSES + 1),
                width=rng.uniform(0.02, 0.1),
            )
        codes[member] = _draw(0.2 * common + 0.8 * special, uniform[member])
    return codes


def _column(
    attribute: Attribute, codes: np.ndarray, rng: np.random.Generator
) -> np.ndarray | pd.Categorical:
    rows = len(codes)
    if attribute.labels is not None:
        return pd.Categorical.from_codes(codes, categories=pd.Index(attribute.labels, dtype=object))
    if attribute.is_dated:
        labels = [attribute.label(i) for i in range(attribute.size)]
        return pd.Categorical.from_codes(codes, categories=pd.Index(labels, dtype=object))
    if attribute.edges is not None:
        return _inside(np.array(attribute.edges), codes, rng.random(rows))
    return codes


def _normalised(weights: np.ndarray) -> np.ndarray:
    return np.asarray(weights / weights.sum())


def _zipf(n: int) -> np.ndarray:
    """Probabilities of shape (n,), the i-th proportional to 1 / (i + 1)."""
    return _normalised(1 / np.arange(1, n + 1))


def _bump(n: int, center: float, width: float) -> np.ndarray:
    """Probabilities of shape (n,) around a place in [0, 1]; the floor keeps a bump between two
    cells positive.
    """
    places = (np.arange(n) + 0.5) / n
    return _normalised(np.exp(-0.5 * ((places - center) / width) ** 2) + 1e-9)


def _draw(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Cells of shape (rows,) whose cumulative weight first passes the uniform numbers in [0, 1)."""
    cumulative = np.cumsum(weights)
    return np.asarray(np.searchsorted(cumulative[:-1], uniform * cumulative[-1], side="right"))


def _inside(edges: np.ndarray, codes: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Numbers of shape (rows,) inside the half-open bins."""
    low, high = edges[:-1][codes], edges[1:][codes]
    # The convex combination cannot overflow; rounding may still reach the open end, hence the clip.
    numbers = np.clip(low * (1 - uniform) + high * uniform, low, np.nextafter(high, low))
    is_integer = bool(np.all(edges == np.floor(edges)) and np.abs(edges).max() < 2**53)
    return np.asarray(np.floor(numbers).astype(np.int64) if is_integer else numbers)


def main(arguments: list[str] | None = None) -> None:
    """Command line: write one synthetic table as CSV or parquet."""
    parser = argparse.ArgumentParser(
        prog="python -m demo_data.make_synthetic", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--schema", required=True, help=f"{', '.join(schemas())}, or the path of a schema file"
    )
    parser.add_argument("--rows", required=True, type=int)
    parser.add_argument("--seed", required=True, type=int)
    parser.add_argument(
        "--out", required=True, type=Path, help="a path that ends in .csv or .parquet"
    )
    options = parser.parse_args(arguments)
    if options.rows < 0 or options.seed < 0:
        parser.error("--rows and --seed must be 0 or more")
    if options.out.suffix not in (".csv", ".parquet"):
        parser.error(f"--out must end in .csv or .parquet, not {options.out.suffix!r}")
    try:
        schema = Schema.from_json(schemas().get(options.schema, Path(options.schema)).read_bytes())
    except (OSError, SchemaError) as error:
        parser.error(f"--schema {options.schema}: {error}")
    table = synthetic(schema, rows=options.rows, seed=options.seed)
    if options.out.suffix == ".csv":
        table.to_csv(options.out, index=False, lineterminator="\n")
    else:
        table.to_parquet(options.out, index=False)


if __name__ == "__main__":
    main()
