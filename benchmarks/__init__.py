"""Benchmarks: what gligabao costs and how it bears load, beside a peer or a floor in the same run where there is one.

`python -m benchmarks [NAME ...]`, or `make bench` for all. Each module but the helpers measures one thing and returns
a `Report`. docs/benchmarks.md has the figures of the last full run.
"""
