"""Reports: from records to tables, and from tables to text or a page. Imports no torch."""

from domainwise.reports.build import build_report, report
from domainwise.reports.cells import Report
from domainwise.reports.formats import FORMATS, write_report
from domainwise.reports.html.page import Picture, TextTable, write_page
from domainwise.reports.published import load_published_tables

__all__ = [
    "FORMATS",
    "Picture",
    "Report",
    "TextTable",
    "build_report",
    "load_published_tables",
    "report",
    "write_page",
    "write_report",
]
