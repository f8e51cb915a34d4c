"""Commands of `manage.py`, a module for each."""
