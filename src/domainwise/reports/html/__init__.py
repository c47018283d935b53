"""A report as one HTML page that needs nothing beside itself."""

from domainwise.reports.html.content import Picture, TextTable
from domainwise.reports.html.page import as_html, write_page
from domainwise.reports.html.page_data import Material, read_material

__all__ = ["Material", "Picture", "TextTable", "as_html", "read_material", "write_page"]
