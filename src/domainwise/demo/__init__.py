"""The main claim in small, on the embedded data: which training holds up as the shift grows, and at which radius."""
