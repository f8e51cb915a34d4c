"""The beanstalkd protocol: it turns a stream of bytes into engine operations, and back.

A connection is fed bytes and gives back what is to be sent, without a socket in sight; a thin
server moves the bytes. This package calls a topic a tube, because the wire does. It does not
know what is legal for a job (the core decides), how anything is made durable (a reply only names
the record that it has to wait for), and that HTTP exists.
"""
