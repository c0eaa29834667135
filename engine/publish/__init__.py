"""What is handed out: published tables, answers as files, the release package with its certificate and report.

To touch: tables without negative cells are in `tables`, columns of the answers in `report`, files of the package in
`package`, what its check compares in `verify`, where a file may be written in `target`.
"""

from engine.publish.package import write_package
from engine.publish.report import FORMATS, write_answers
from engine.publish.tables import FITS, Published, publish, simulated
from engine.publish.target import check_target, new_file
from engine.publish.verify import verify_package

__all__ = [
    "FITS",
    "FORMATS",
    "Published",
    "check_target",
    "new_file",
    "publish",
    "simulated",
    "verify_package",
    "write_answers",
    "write_package",
]
