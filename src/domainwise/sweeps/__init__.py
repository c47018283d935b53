"""Many runs: where and how they are carried out."""
