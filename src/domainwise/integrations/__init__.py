"""MAT, LDAT and the other perturbations in training loops of other libraries. Each module needs its own extra."""
