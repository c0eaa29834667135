"""SQL as text: statements taken apart within limits, everything refused that is no plain SELECT, and an example.

Parsing is the work of sqlglot; nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import Dialect, Token, TokenType, exp
from sqlglot.errors import SqlglotError

from engine.errors import WorkloadError
from engine.texts import plain
from engine.workload.schema import Schema
from engine.workload.sql.conditions import extra, said

MAX_TEXT = 200_000
MAX_TOKENS = 30_000
MAX_NESTING = 40  # brackets inside brackets
# what a parser of somebody else's making may raise on a text that is no SQL
TROUBLE = (SqlglotError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
CLAUSES = {
    "joins": ("JOIN", "The schema is one table; put the columns that you need into it"),
    "laterals": ("LATERAL", "Ask the table itself"),
    "with_": ("WITH", "Ask the table itself, with the conditions in WHERE"),
    "distinct": ("DISTINCT", "Counts of different values are no linear queries; leave it out"),
    "having": ("HAVING", "It looks at the counts, which are not known yet; filter the noisy answers afterwards"),
    "limit": ("LIMIT", "All counts of the group are answered; cut the list afterwards"),
    "offset": ("OFFSET", "All counts of the group are answered; cut the list afterwards"),
    "order": ("ORDER BY", "Sort the noisy answers afterwards"),
    "qualify": ("QUALIFY", "Filter the noisy answers afterwards"),
    "windows": ("WINDOW", "Use COUNT(*) with GROUP BY"),
    "sample": ("a sample", "Leave it out; the noise is worked out for all records"),
}


def statements(text: str) -> Iterator[tuple[list[Token], str]]:
    """Tokens of every statement, bounded in number and in nesting before anything is parsed."""
    if not isinstance(text, str):
        raise WorkloadError(f"The SQL is of type {type(text).__name__}. Give a text.")
    if len(text) > MAX_TEXT:
        raise WorkloadError(f"The SQL has {len(text):,} characters; at most {MAX_TEXT:,} are read. Split it.")
    try:
        tokens = Dialect.get_or_raise("duckdb").tokenize(text)
    except TROUBLE:
        raise WorkloadError("The SQL cannot be read: a quote or a comment does not end. Close it.") from None
    if len(tokens) > MAX_TOKENS:
        raise WorkloadError(f"The SQL has {len(tokens):,} words and signs; at most {MAX_TOKENS:,} are read. Split it.")
    depth, opened, closing = 0, (TokenType.L_PAREN, TokenType.L_BRACKET), (TokenType.R_PAREN, TokenType.R_BRACKET)
    statement: list[Token] = []
    for token in tokens:
        depth += (token.token_type in opened) - (token.token_type in closing)
        if depth > MAX_NESTING:
            raise WorkloadError(f"The SQL has more than {MAX_NESTING} brackets inside each other. Write it flatter.")
        if token.token_type != TokenType.SEMICOLON:
            statement.append(token)
        elif statement:
            yield statement, text
            statement = []
    if statement:
        yield statement, text


def parsed(tokens: list[Token], source: str) -> exp.Select:
    first = tokens[0].text.upper()[:40]
    if tokens[0].token_type != TokenType.SELECT:
        hint = "Take WITH apart and ask the table itself" if first == "WITH" else "Nothing else is read or run"
        raise WorkloadError(f"It begins with {first!r}, but only SELECT asks for counts. {hint}.")
    try:
        (found,) = Dialect.get_or_raise("duckdb").parser().parse(tokens, source)
    except SqlglotError as error:
        place = (getattr(error, "errors", None) or [{}])[0]
        where = f" near {place['highlight'][:40]!r}" if place.get("highlight") else ""
        raise WorkloadError(f"It is no valid SQL{where}. Correct it there.") from None
    except TROUBLE:
        raise WorkloadError("It cannot be read as SQL. Write it like SELECT a, COUNT(*) FROM t GROUP BY a.") from None
    if isinstance(found, exp.SetOperation):
        raise WorkloadError(
            "UNION, INTERSECT and EXCEPT cannot be asked. Write the SELECTs one by one, with ; between."
        )
    if not isinstance(found, exp.Select):
        raise WorkloadError(f"{said(found)} is no SELECT that asks for counts.")
    return found


def check_clauses(found: exp.Select, table: str | None, *, strict: bool) -> str:
    """Refuse every clause but SELECT, FROM, WHERE and GROUP BY; return the name of the table."""
    for key in extra(found, "expressions", "from_", "where", "group"):
        name, advice = CLAUSES.get(key, (key.strip("_").upper(), "Leave it out"))
        raise WorkloadError(f"{name} cannot be asked. {advice}.")
    source = found.args["from_"].this if found.args.get("from_") else None
    if source is None:
        raise WorkloadError("It has no FROM. Write FROM and the name of the table.")
    if isinstance(source, exp.Table):
        for key in extra(source, "this", "db", "catalog", "alias"):
            name, advice = CLAUSES.get(key, (key.strip("_").upper(), "Leave it out"))
            raise WorkloadError(f"{name} cannot be asked. {advice}.")
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        raise WorkloadError(f"FROM {said(source)} is no table's name. Subqueries and functions cannot be asked there.")
    if table is not None and source.name.casefold() != table.casefold():
        wanted = f"the table here is {table[:60]!r}" if strict else f"the statements before ask {table[:60]!r}"
        raise WorkloadError(f"It asks the table {source.name[:60]!r}, but {wanted}. All must ask the same one.")
    return source.name


def example(schema: Schema) -> str:
    """Return SQL that the schema can answer, to begin with.

    >>> from engine import Attribute
    >>> print(example(Schema([Attribute.of_size("age", 9), Attribute.categorical("pay-grade", ["A", "B"])])))
    SELECT age, "pay-grade", COUNT(*) FROM records GROUP BY age, "pay-grade";
    SELECT "pay-grade", COUNT(*) FROM records WHERE age >= 4 GROUP BY "pay-grade"
    """
    names = [_written(name) for name in schema]
    shown = names[:2]
    lines = [f"SELECT {', '.join(shown)}, COUNT(*) FROM records GROUP BY {', '.join(shown)}"]
    numeric = [a for a in schema.attributes if a.kind == "numeric" and a.size > 1]
    if numeric and len(names) > 1:
        a = numeric[0]
        bound = plain(a.edges[a.size // 2]) if a.edges is not None else str(a.size // 2)
        if a.is_dated:
            bound = f"DATE '{a.days(a.date_cells // 2)[0]}'"
        by = next(name for name, one in zip(names, schema.attributes, strict=True) if one is not a)
        at = names[schema.order[a.name]]
        lines.append(f"SELECT {by}, COUNT(*) FROM records WHERE {at} >= {bound} GROUP BY {by}")
    return ";\n".join(lines)


def _written(name: str) -> str:
    """A name as SQL has to write it: in quotes unless it is one plain word."""
    try:
        tokens = Dialect.get_or_raise("duckdb").tokenize(name)
    except TROUBLE:
        tokens = []
    plainly = len(tokens) == 1 and tokens[0].token_type == TokenType.VAR and tokens[0].text == name
    return name if plainly else exp.to_identifier(name, quoted=True).sql(dialect="duckdb")
