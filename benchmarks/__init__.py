"""Benchmarks: what gligabao costs, side by side with a peer or a floor in one run. `make bench` runs them all."""
