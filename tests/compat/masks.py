"""What two servers may answer differently, made equal; everything else in a reply is compared.

Masked are times (`age`, `time-left`, `pause-time-left`, `uptime`, `rusage-*`), what names the
process (`pid`, `id`) and the log's figures (`binlog-*`). A time that must be 0 (the time left of a
ready job) stays as it is.

>>> comparable(b"OK 34\\r\\n---\\nid: 3\\ntube: a\\nstate: ready\\nage: 7\\n\\r\\n")
b'OK\\r\\n---\\nid: 3\\ntube: a\\nstate: ready\\nage: #\\n\\r\\n'
"""

import re
from typing import Final

# A job's id never has 16 digits here.
SERVER_ID: Final = re.compile(rb"^id: [0-9a-f]{16}$", re.MULTILINE)
RUSAGE: Final = re.compile(rb"^(rusage-[us]time): [0-9]+\.[0-9]{6}$", re.MULTILINE)
NUMBERS: Final = re.compile(rb"^(age|uptime|pid|binlog-[a-z-]+): [0-9]+$", re.MULTILINE)
# Only where time runs. A negative figure is a deadline that has just passed.
TIME_LEFT: Final = re.compile(
    rb"^(state: (?:reserved|delayed)\n(?:.+\n)*?time-left): -?[0-9]+$", re.MULTILINE
)
PAUSE_LEFT: Final = re.compile(rb"^(pause: [1-9][0-9]*\npause-time-left): [0-9]+$", re.MULTILINE)


def comparable(reply: bytes) -> bytes:
    """The reply as another server would give it.

    The size after OK is dropped, since masks change it; that it is right, the client has checked.
    """
    if not reply.startswith(b"OK "):
        return reply
    _size, _crlf, yaml = reply.partition(b"\r\n")
    yaml = SERVER_ID.sub(b"id: #", yaml)
    for pattern in (RUSAGE, NUMBERS, TIME_LEFT, PAUSE_LEFT):
        yaml = pattern.sub(rb"\1: #", yaml)
    return b"OK\r\n" + yaml
