"""The hierarchical timing wheel: entries that wait for their time, at a cost that does not grow."""
