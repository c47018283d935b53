"""Image files to datasets: listed, decoded once, and kept as bytes that training can index."""
