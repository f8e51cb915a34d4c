"""Moving over from beanstalkd: its binlog is read, and a new journal is written from it.

`files` knows beanstalkd's bytes and nothing of delayd's jobs; `convert` turns the one into the
other. The package does not know how an import is asked for and shown.
"""
