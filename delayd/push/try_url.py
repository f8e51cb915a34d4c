"""One call to try a url: made as the daemon would make it, and explained step by step.

    Trial(url, addresses, call) ─► explained: lines for people
                               └─► fields: the same for programs

`delayd push test` is this and a command line. The sample has a `webhook-id` of its own, and its
body says that it is a sample. The module does not know where the configuration comes from.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from delayd.clock import NS_PER_MS, monotonic_ns
from delayd.core.targets import Target
from delayd.durations import duration_text
from delayd.limits import BREAKER_FAILURES
from delayd.push.connections import LookUp, look_up
from delayd.push.egress import AddressRefused, EgressRules, place_of
from delayd.push.sinks import AttemptEnd, DueJob, Result, content_type_of
from delayd.push.webhook import Webhook
from delayd.text import counted, shown_url, visible

BODY: Final = b'{"sample": true, "sent_by": "delayd push test"}'
TOPIC: Final = "sample"

_BEGINNING_CHARACTERS: Final = 200
"""How much of an answer is shown."""


class Trial(NamedTuple):
    """The outcome of trying a url."""

    url: str
    """In the form that is called; empty: it is refused."""
    rule: str = ""
    """The rule that the url breaks."""
    addresses: tuple[tuple[str, str], ...] = ()
    """The host's addresses, each with the reason of its refusal; empty: it may be called."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that it was signed with."""
    end: AttemptEnd | None = None
    """Of the call, if there was one."""
    status: str = ""
    """Of its answer, such as `200 OK`; empty: there was none."""
    took_ms: int = 0

    @property
    def is_delivered(self) -> bool:
        """Tell whether a job would have been delivered."""
        return self.end is not None and self.end.result is Result.DELIVERED

    @property
    def is_refused(self) -> bool:
        """Tell whether the configuration does not allow the call."""
        is_any_allowed = any(not refusal for _, refusal in self.addresses)
        return bool(self.rule) or bool(self.addresses and not is_any_allowed)

    def fields(self) -> dict[str, Any]:
        """Return it for programs; `result` is `refused` or that of the call."""
        end = self.end or AttemptEnd(Result.FAILED, self.rule)
        return {
            "url": shown_url(self.url) or None,
            "result": "refused" if self.is_refused else end.result.value,
            "error": end.error or None,
            "addresses": [
                {"address": address, "refused": refusal or None}
                for address, refusal in self.addresses
            ],
            "signed_with": list(self.secrets),
            "status": self.status or None,
            "answer": end.answer.decode("utf-8", "replace"),
            "took_ms": self.took_ms,
            "retry_after_ms": end.retry_after_ms or None,
            "next": self.next_step(),
        }

    def explained(self) -> list[tuple[str, str]]:
        """Return it for people: the subject of each line, and its text."""
        end = self.end
        if end is None:
            return [("url", f"refused: {self.rule}"), ("next", self.next_step())]
        rows = [("url", f"{shown_url(self.url)} may be called")]
        rows += [
            ("address", refusal or f"{address} may be called")
            for address, refusal in self.addresses
        ]
        names = ", ".join(self.secrets)
        rows.append(("signed", f"with {names}" if names else "no: no secret is named"))
        took = f" after {self.took_ms} ms"
        if not self.status:
            rows.append(("answer", f"none{took}: {end.error}"))
        else:
            rows.append(("answer", f"{end.error or self.status}{took}"))
            if self.url.startswith("https:"):
                rows.append(("tls", "the certificate is accepted"))
            rows.append(("begins", _shown(end.answer)))
        return [*rows, ("next", self.next_step())]

    def next_step(self) -> str:
        """Return what delayd would do with a job."""
        end = self.end
        if end is None:
            return "delayd would refuse a job or a policy with this url"
        if end.result is Result.DELIVERED:
            return "delayd would remove the job: it is delivered"
        if end.result is Result.EXHAUSTED:
            return "delayd would make the job a dead letter at once"
        text = "delayd would count a failed attempt and try again as the retry rule says"
        if end.retry_after_ms:
            text += f", in {duration_text(end.retry_after_ms)} at the earliest (Retry-After)"
        if end.is_outage:
            failures = counted(BREAKER_FAILURES, "such failure")
            text += f"; after {failures} in a row it would wait before it calls this host again"
        return text


def try_url(
    target: Target,
    rules: EgressRules,
    webhook: Webhook,
    *,
    wall_ms: int,
    timeout_ms: int,
    topic: str = TOPIC,
) -> Trial:
    """Call the target's url once, from a process that has no loop of its own."""
    job = DueJob(
        id=0,
        message_id=f"test_{wall_ms}",
        topic=topic,
        key=b"",
        body=BODY,
        content_type=content_type_of(BODY, target.headers),
        attempt=1,
        due_ms=wall_ms,
        lateness_ms=0,
        timeout_ms=timeout_ms,
        target=target,
    )
    try:
        allowed = rules.vet_url(target.url)
    except ValueError as error:
        return Trial("", str(error))
    return asyncio.run(_tried(job, allowed, rules, webhook, look_up, monotonic_ns))


async def _tried(
    job: DueJob,
    url: str,
    rules: EgressRules,
    webhook: Webhook,
    look_up_host: LookUp,
    elapsed_ns: Callable[[], int],
) -> Trial:
    await webhook.opened()  # takes a while, which does not count for the receiver
    begun_ns = elapsed_ns()
    addresses: tuple[tuple[str, str], ...] = ()
    status = ""
    try:
        async with asyncio.timeout(job.timeout_ms / 1_000):
            addresses = await _judged_addresses(url, rules, look_up_host)
            end, status = await webhook.call(job)
    except TimeoutError:
        error = f"no answer within {duration_text(job.timeout_ms)}"
        end = AttemptEnd(Result.FAILED, error, is_outage=True)
    finally:
        await webhook.close()
    took_ms = (elapsed_ns() - begun_ns) // NS_PER_MS
    return Trial(url, "", addresses, job.target.secrets, end, status, took_ms)


async def _judged_addresses(
    url: str, rules: EgressRules, look_up_host: LookUp
) -> tuple[tuple[str, str], ...]:
    """Return the addresses of the url's host, each with the reason of its refusal."""
    host, _, port = place_of(url)[1].rpartition(":")
    try:
        rows = await look_up_host(host.strip("[]"), int(port))
    except OSError:
        return ()  # the call itself reports it
    judged: dict[str, str] = {}
    for *_, where in rows:
        try:
            rules.vet_address(where[0], int(port), host)
        except AddressRefused as error:
            judged[where[0]] = str(error)
        else:
            judged[where[0]] = ""
    return tuple(judged.items())


def _shown(answer: bytes) -> str:
    if not answer:
        return "(empty)"
    text = visible(answer.decode("utf-8", "replace"))
    return text if len(text) <= _BEGINNING_CHARACTERS else f"{text[:_BEGINNING_CHARACTERS]}…"
