"""Daemons with jobs to look at, for the tests of the dashboard and its pictures."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from delayd.testing.daemon import Daemon
from tests.browser.browser import Browser
from tests.http_client import HTTP, HttpClient
from tests.line_client import LineClient
from tests.rigs.process import daemon_of

BATCH: Final = 1_000
NASTY: Final = "<script>alert('x')</script><img/src=x/onerror=alert(1)>"
"""What would run if anything made markup of it."""


@contextmanager
def dashboard(folder: Path, *flags: str) -> Iterator[Daemon]:
    """Serve the API and the dashboard on a free port; the jobs are in the folder `data`."""
    with daemon_of(folder / "data", *HTTP, *flags) as daemon:
        yield daemon


def url_of(daemon: Daemon, view: str = "") -> str:
    """The address of a view."""
    host, port = daemon.http_address
    return f"http://{host}:{port}/ui/#/{view}"


def log_in(browser: Browser, token: str) -> None:
    """Enter a token where the page asks for one."""
    browser.enter("#token", token)
    browser.click("button", "Log in")


def ask(daemon: Daemon, method: str, path: str, content: object = None, *, token: str = "") -> Any:  # noqa: ANN401
    """Ask the API; the answer is none that refuses."""
    headers = [f"Authorization: Bearer {token}"] if token else []
    with HttpClient(daemon.http_address) as client:
        answer = client.ask(method, path, content, *headers)
    assert answer.status < 300, answer
    return answer.json if answer.body else None


def put_many(daemon: Daemon, topic: str, count: int, **job: object) -> None:
    """Put equal jobs."""
    for begun in range(0, count, BATCH):
        jobs = [{"body": {"n": 1}, **job}] * min(BATCH, count - begun)
        ask(daemon, "POST", f"/v1/topics/{topic}/jobs", {"jobs": jobs})


def put_topics(daemon: Daemon, count: int, *, buried: int = 0) -> None:
    """Put a job into each of so many topics, due in a day, and bury the first of them."""
    job = b"put 9 86400 60 1\r\n1\r\n"
    job_ids: list[bytes] = []
    with LineClient(daemon.address) as client:
        for begun in range(0, count, BATCH):
            numbers = range(begun, min(count, begun + BATCH))
            client.send(b"".join(b"use t%04d\r\n%b" % (number, job) for number in numbers))
            replies = [client.reply().split() for _ in range(2 * len(numbers))]
            job_ids += [job_id for word, job_id in replies if word == b"INSERTED"]
    with HttpClient(daemon.http_address) as http:
        for job_id in job_ids[:buried]:
            assert http.ask("POST", f"/v1/jobs/{int(job_id)}/bury", {}).status == 200


def bury(daemon: Daemon, topic: str, error: str, count: int = 1) -> None:
    """Reserve jobs of the topic and bury them."""
    for _ in range(count):
        (job,) = ask(daemon, "POST", f"/v1/topics/{topic}/reserve", {})["jobs"]
        given = {"token": job["token"], "error": error}
        ask(daemon, "POST", f"/v1/jobs/{job['id']}/bury", given)


def put_samples(daemon: Daemon) -> None:
    """Put what somebody on call may find: orders, mail that cannot be sent, a year of trials."""
    mail = [{"body": {"to": "ada@example.com"}, "key": f"mail-{n}"} for n in range(60)]
    ask(daemon, "POST", "/v1/topics/mail/jobs", {"jobs": mail})
    bury(daemon, "mail", "550 no such mailbox", 12)
    bury(daemon, "mail", "421 too many connections, try again later", 7)
    orders = [
        {
            "body": {"order": n, "total": "49.90", "do": "close it unless it is paid"},
            "delay": 60 + n * 37 % 7_200,
            "key": f"order-{n}",
            "retry": "15s 3m 10m 30m 1h",
        }
        for n in range(400)
    ]
    ask(daemon, "POST", "/v1/topics/orders/jobs", {"jobs": orders})
    trials = [{"body": {"trial": n}, "delay": f"{1 + n * 7 % 360}d"} for n in range(300)]
    ask(daemon, "POST", "/v1/topics/trials/jobs", {"jobs": trials})
    policy = {"retry": "15s 3m 10m 30m 1h", "max_attempts": 6, "jobs_max": 100_000}
    ask(daemon, "PUT", "/v1/topics/orders/policy", policy)
    ask(daemon, "POST", "/v1/topics/sms/jobs", {"jobs": [{"body": "hello"}] * 9})
    ask(daemon, "POST", "/v1/topics/sms/pause", {"duration": "2h"})


def put_schedules(daemon: Daemon) -> None:
    """Make schedules: of a report, of prices, one that is refused, one that is paused."""
    nightly = {"cron": "30 2 * * *", "timezone": "America/New_York", "overlap": "skip"}
    made: dict[str, dict[str, object]] = {
        "nightly-report": {"topic": "reports", **nightly, "retry": "1m 10m 1h", "ttr": "30m"},
        "prices": {"topic": "prices", "every": "15m", "start": "2026-01-01T00:00:00Z"},
        "invoices": {"topic": "invoices", "cron": "0 9 1 * *", "timezone": "Europe/Berlin"},
        "newsletter": {"topic": "mail", "cron": "0 9 * * 1", "timezone": "Europe/Berlin"},
        "clean-up": {"topic": "chores", "cron": "0 */3 * * *"},
        "stock": {"topic": "stock", "cron": "0 * * * *", "missed": "none"},
    }
    for name, definition in made.items():
        ask(daemon, "PUT", f"/v1/schedules/{name}", {"body": {"do": name}, **definition})
    note = {"note": "no letters in the holidays"}
    ask(daemon, "POST", "/v1/schedules/newsletter/pause", note)
    # A job of its topic is there, and there may be one: its run is refused.
    ask(daemon, "POST", "/v1/topics/stock/jobs", {"body": 1, "delay": "30d"})
    ask(daemon, "PUT", "/v1/topics/stock/policy", {"jobs_max": 1})


def let_live(daemon: Daemon, minutes: range) -> None:
    """Let minutes of an hour pass on a virtual clock, in which carts are put and looked after."""
    for minute in minutes:
        jobs = [{"body": {"cart": n}, "delay": 20 + n % 20} for n in range(_busy(minute))]
        ask(daemon, "POST", "/v1/topics/carts/jobs", {"jobs": jobs})
        ask(daemon, "POST", "/v1/clock/advance", {"by": "45s"})
        reserved = ask(daemon, "POST", "/v1/topics/carts/reserve", {"max": BATCH})["jobs"]
        tokens = [job["token"] for job in reserved]
        failed = 2 + len(tokens) * (minute * 5 % 7) // 60
        ask(daemon, "POST", "/v1/ack", {"tokens": tokens[failed:]})
        nacks = [{"token": token, "error": "503 busy", "delay": "2m"} for token in tokens[:failed]]
        ask(daemon, "POST", "/v1/nack", {"nacks": nacks})
        ask(daemon, "POST", "/v1/clock/advance", {"by": "15s"})


def _busy(minute: int) -> int:
    """How many carts come in that minute: more towards the end, and a rush in the middle."""
    rush = 330 if 24 <= minute < 33 else 0
    return 240 + 4 * minute + 31 * (minute * 7 % 5) + rush


def put_nasty(daemon: Daemon) -> None:
    """Put jobs whose keys, bodies and errors would be markup."""
    jobs = [
        {"body": {NASTY: NASTY}, "key": NASTY.replace(" ", "")},
        {"body_base64": base64.b64encode(NASTY.encode()).decode()},
        {"body_base64": base64.b64encode(bytes(range(256))).decode()},
    ]
    ask(daemon, "POST", "/v1/topics/nasty/jobs", {"jobs": jobs})
    bury(daemon, "nasty", NASTY)
