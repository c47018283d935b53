"""Figures of Grad-CAM, perturbations and accuracy."""
