"""The paper's tables and figures as recipes: what to run, at three scales, and what the paper says came out."""
