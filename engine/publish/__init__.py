"""What is handed out: answers as files, the release package with its certificate and report.

To touch: columns of the answers are in `report`, files of the package and what its check compares in `package`.
"""

from engine.publish.package import write_package
from engine.publish.report import FORMATS, write_answers
from engine.publish.target import check_target, new_file

__all__ = [
    "FORMATS",
    "check_target",
    "new_file",
    "write_answers",
    "write_package",
]
