"""A report as one HTML page that needs nothing beside itself."""

from domainwise.reports.page.extra import WordTable
from domainwise.reports.page.material import Material, read_material
from domainwise.reports.page.page import as_html, write_page
from domainwise.reports.page.pictures import Picture

__all__ = ["Material", "Picture", "WordTable", "as_html", "read_material", "write_page"]
