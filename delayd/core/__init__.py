"""The pure part: it decides what happens to every job.

Numbers and bytes come in, values go out, and time is an argument, so whatever is claimed about a
job can be proven in memory, on a fake clock, from a seed. No module here imports clocks, files,
sockets, threads, loops, logs or chance; tests/test_house_rules.py enforces that.
"""
