"""Getting datasets: downloads that resume, archives that cannot write elsewhere, and the layout that is read."""

from domainwise.data.download.archives import unpack
from domainwise.data.download.fetch import fetch
from domainwise.data.download.prepare import prepare
from domainwise.data.download.sources import SOURCES, Download, Source

__all__ = ["SOURCES", "Download", "Source", "fetch", "prepare", "unpack"]
