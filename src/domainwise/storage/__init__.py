"""Run folders and sweep folders: the only code that knows the files on disk. Imports no torch at import time."""
