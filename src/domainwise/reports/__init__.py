"""Records to tables, and tables to whatever they are read in."""

from domainwise.reports.formats import FORMATS
from domainwise.reports.published import published
from domainwise.reports.report import Report, make_report

__all__ = ["FORMATS", "Report", "make_report", "published"]
