"""What is counted and measured: counters, histograms, ages and rates, all since the start."""
