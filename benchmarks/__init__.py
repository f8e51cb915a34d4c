"""Measurements: delayd beside its peers, on the same machine, in the same run.

A benchmark is named after what it measures, operation_size_policy. It warms up, runs five times,
reports the median, and shows where delayd loses.
"""
