"""Moving over from beanstalkd: its binlog is read, and a new journal is written from it.

`files` reads beanstalkd's bytes; `convert` makes delayd's records of them.
"""
