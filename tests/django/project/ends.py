"""A program: its import ends the process."""

raise SystemExit(3)
