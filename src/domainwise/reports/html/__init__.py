"""A report as one HTML page that works without a network or other files."""

from domainwise.reports.html.page import Answer, Picture, TextTable, render_page, write_page
from domainwise.reports.html.page_data import PageData, read_page_data

__all__ = ["Answer", "PageData", "Picture", "TextTable", "read_page_data", "render_page", "write_page"]
