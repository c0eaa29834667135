"""What is handed out: answers as files, the release package with its certificate and report.

To touch: columns of the answers are in `report`, files of the package and what its check compares in `package`.
"""

from engine.publish.package import write_package
from engine.publish.report import FORMATS, write_answers

__all__ = [
    "FORMATS",
    "write_answers",
    "write_package",
]
