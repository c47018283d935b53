"""Sweeps: many runs, planned by a spec and run by an engine."""
