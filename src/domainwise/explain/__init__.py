"""What trained models look at, what their perturbations look like, and what attacks do to them."""
