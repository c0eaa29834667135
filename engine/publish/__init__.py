"""What is handed out: published tables, answers as files, the release package with its certificate and report.

To touch: tables without negative cells are in `tables`, as files in `tables_package`, `workbook` and `published_file`,
columns of the answers in `report`, weights of groups for what is published in `aim`, other ways in `standing` and
`adaptive`, files of the package in `package`, what its check compares in `verify`, where files may be in `target`.
"""

from engine.publish.adaptive import ADAPTIVE, adaptive_missing
from engine.publish.aim import weighed_for_publishing
from engine.publish.package import write_package
from engine.publish.published_file import read_published, write_published, write_records
from engine.publish.rehearsed import published_errors
from engine.publish.report import FORMATS, write_answers
from engine.publish.standing import PublishedComparison, published_comparison
from engine.publish.tables import (
    DRAWS,
    FITS,
    REASONS,
    AcceptanceRule,
    Published,
    PublishForecast,
    QualityRule,
    Uncertainty,
    acceptance,
    acceptance_by_release,
    acceptance_on_records,
    keeping_facts,
    publish,
    publish_forecast,
    simulated,
    uncertainty,
)
from engine.publish.tables_package import write_tables
from engine.publish.target import check_target, new_file
from engine.publish.verify import verify_package
from engine.publish.workbook import write_workbook

__all__ = [
    "ADAPTIVE",
    "DRAWS",
    "FITS",
    "FORMATS",
    "REASONS",
    "AcceptanceRule",
    "PublishForecast",
    "Published",
    "PublishedComparison",
    "QualityRule",
    "Uncertainty",
    "acceptance",
    "acceptance_by_release",
    "acceptance_on_records",
    "adaptive_missing",
    "check_target",
    "keeping_facts",
    "new_file",
    "publish",
    "publish_forecast",
    "published_comparison",
    "published_errors",
    "read_published",
    "simulated",
    "uncertainty",
    "verify_package",
    "weighed_for_publishing",
    "write_answers",
    "write_package",
    "write_published",
    "write_records",
    "write_tables",
    "write_workbook",
]
