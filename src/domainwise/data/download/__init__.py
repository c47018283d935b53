"""Downloads of published datasets: fetch the files, verify and unpack them, and arrange them in the expected layout."""
