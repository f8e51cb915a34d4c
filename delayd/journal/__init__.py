"""The durable part: it remembers what the core decided, and says what it can still prove.

A payload handed to `append` is durable once a `sync` that followed it has returned; after a crash
`replay` gives back every durable payload in order, or names the file and the offset where that
cannot be done. A payload is opaque bytes here. Files are touched in `disk.py` alone, so that a
simulated disk can stand in for the real one and forget whatever was not synced.
"""
