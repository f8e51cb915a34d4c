"""Copy a sorted set of Redis, whose scores are due times in seconds, into a topic of delayd.

    python3 from_redis.py redis://127.0.0.1:6379/0 KEY TOPIC

It needs `pip install "/path/to/delayd[redis]"`. Members become the keys of their jobs and their
bodies.
"""

import os
import sys
from datetime import UTC, datetime

import redis

from delayd.client import Client

url, name, topic = sys.argv[1:]
with (
    redis.Redis.from_url(url, decode_responses=True) as source,
    Client(os.environ.get("DELAYD_URL", "http://127.0.0.1:11301")) as client,
):
    copied = total = 0
    for member, due_s in source.zscan_iter(name):
        due = datetime.fromtimestamp(due_s, UTC)
        put = client.put(topic, member, at=due, key=member, on_conflict="keep")
        total += 1
        copied += put.outcome == "created"
    print(f"copied {copied} of {total} jobs")
