"""Command ``schema``, which adds code lists to a schema."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine._format import pluralize
from engine.cli.arguments import file_bytes, schema_of
from engine.cli.output import Commands, Reply, add_command
from engine.errors import EngineError, SchemaError
from engine.publish.output_path import check_target, new_file
from engine.workload import Attribute, CodeList, Schema

ENDINGS = {".csv": CodeList.from_csv, ".hrc": CodeList.from_hrc}


def add_schema_command(commands: Commands) -> None:
    """Add the command ``schema``."""
    command = add_command(commands, "schema", _schema, json_keys="schema attributes levels")
    command.add_argument(
        "--schema",
        type=Path,
        metavar="FILE",
        help="schema (JSON, CSV, workbook) to extend; by default a new one",
    )
    command.add_argument(
        "--code-list",
        nargs=2,
        action="append",
        required=True,
        metavar=("NAME", "FILE"),
        help=(
            "attribute and its code list: CSV with code,label,parent, or .hrc; repeatable, also for"
            " one attribute"
        ),
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file for the schema, as JSON"
    )
    command.add_argument("--overwrite", action="store_true", help="replace an existing schema")


def _schema(args: argparse.Namespace) -> Reply:
    """Run ``schema``: write a schema with added code lists; list all levels of its attributes."""
    code_lists = [(attribute, Path(path)) for attribute, path in args.code_list]
    target_rules = {
        "keep": [*filter(None, [args.schema]), *(path for _, path in code_lists)],
        "overwrite": args.overwrite,
        "is_replaceable": _is_schema,
    }
    check_target(args.out, **target_rules)
    schema = None if args.schema is None else schema_of(args.schema)
    for attribute_name, path in code_lists:
        schema = _with_code_list(schema, attribute_name, path)
    assert schema is not None  # the option --code-list is required
    with new_file(args.out, **target_rules) as partial:
        partial.write_text(schema.to_json(), encoding="utf-8")
    levels: list[dict[str, Any]] = [
        {
            "attribute": attribute.name,
            "hierarchy": hierarchy.name,
            "level": level.name,
            "areas": level.areas,
        }
        for attribute in schema.attributes
        for hierarchy in attribute.hierarchies
        for level in hierarchy.levels
    ]
    lines = [
        f"{entry['attribute']}: level {entry['level']!r}, {pluralize(entry['areas'], 'area')}"
        f" (hierarchy {entry['hierarchy']!r})"
        for entry in levels
    ]
    return Reply(
        text="\n".join([*lines, f"schema     {args.out}"]),
        data={"schema": args.out, "attributes": len(schema), "levels": levels},
    )


def _with_code_list(schema: Schema | None, name: str, path: Path) -> Schema:
    """Return a schema with the code list in a file added to an attribute.

    If there is no schema, the result has only this attribute.
    """
    read = ENDINGS.get(path.suffix.lower())
    if read is None:
        raise SchemaError(
            f"The name of the code list {path} does not end in {' or '.join(ENDINGS)}. Give a file "
            "of one of these formats."
        )
    code_list = read(file_bytes(path, SchemaError), name=path.stem)
    if schema is None:
        return Schema([Attribute.hierarchy(name, code_list)])
    return schema.with_code_list(name, code_list)


def _is_schema(path: Path) -> bool:
    """Return whether a file contains a schema as JSON."""
    try:
        Schema.from_json(path.read_bytes())
    except (EngineError, OSError):
        return False
    return True
