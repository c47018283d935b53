"""One number from many: the seeds of splits, draws and runs, as DomainBed makes them."""

import hashlib


def seed_hash(*parts: object) -> int:
    """A seed below 2**31 that depends on every part and on nothing else."""
    return int(hashlib.md5(str(parts).encode("utf-8")).hexdigest(), 16) % 2**31
