"""Doubles that ship with delayd, for its own tests and for those of the people who use it.

Each double passes the same conformance tests as what it replaces, and takes its time and its
seed from the caller. The daemon never imports this package, and the package does not know the
command line: a daemon under test is started as a process, the way a user would.
"""
