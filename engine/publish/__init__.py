"""Exports: answers, tables, release package and verification."""

from engine.publish.release_package import write_package
from engine.publish.report import (
    write_answers,
    write_level_sums,
    write_published,
    write_records,
)
from engine.publish.tables_package import write_tables, write_workbook
from engine.publish.verify import package_signer, verify_package

__all__ = [
    "package_signer",
    "verify_package",
    "write_answers",
    "write_level_sums",
    "write_package",
    "write_published",
    "write_records",
    "write_tables",
    "write_workbook",
]
