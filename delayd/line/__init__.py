"""The beanstalkd protocol: it turns a stream of bytes into engine operations, and back.

A connection is fed bytes and gives back what is to be sent, without a socket; a thin server moves
the bytes. This package calls a topic a tube, because the protocol does. The core decides what is
legal for a job; a reply names the record that it has to wait for.
"""
