"""Makes docs/benchmarks.md, its plots and the figures of other pages of the results of a run."""
