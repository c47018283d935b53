"""Figures of what networks look at, of perturbations, and of accuracy."""
