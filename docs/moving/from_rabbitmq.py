"""Put a job, and receive it from RabbitMQ when it is due, as its consumers do.

    python3 from_rabbitmq.py amqp://127.0.0.1:5672/ TOPIC

It needs `pip install "/path/to/delayd[amqp]"`, and a daemon with the sink of docs/moving.md.
"""

import asyncio
import os
import sys

import aio_pika

from delayd.client import AsyncClient


async def main(url: str, topic: str) -> None:
    async with (
        await aio_pika.connect(url) as connection,
        AsyncClient(os.environ.get("DELAYD_URL", "http://127.0.0.1:11301")) as client,
    ):
        channel = await connection.channel()
        queue = await channel.declare_queue(f"due.{topic}", durable=True)
        put = await client.put(topic, {"order": 17}, delay="1s", key="order-17")
        print("put job", put.id)
        async with queue.iterator(timeout=60) as messages:
            async for message in messages:
                async with message.process():
                    print("received", message.headers["delayd-key"], "from queue", queue.name)
                break


asyncio.run(main(*sys.argv[1:]))
