import asyncio
from pathlib import Path
from typing import Any

from delayd.net import tls
from delayd.push.sinks import DueJob
from delayd.push.try_url import Trial, _tried
from tests.access.handshakes import Authority
from tests.push.receiver import FakeDns, Receiver, job, rules, webhook


async def tried(receiver: Receiver, call: DueJob, dns: Any, **changes: Any) -> Trial:  # noqa: ANN401
    egress = rules(receiver)
    sink = webhook(receiver, dns, egress=egress, **changes)
    return await _tried(call, egress.vet_url(call.target.url), egress, sink, dns, lambda: 0)


async def test_a_sample_over_tls_tells_that_the_certificate_is_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with Receiver(tls=tls.server_context(authority.files("hook.example"))) as receiver:
        dns = FakeDns(hook_example=["127.0.0.1", "10.0.0.7"])
        call = job(receiver.url(scheme="https"))
        trial = await tried(receiver, call, dns, tls=authority.client())
    assert trial.is_delivered
    assert not trial.is_refused
    private = "the address 10.0.0.7 of hook.example is private: [push] private_networks would "
    assert trial.explained()[1:6] == [
        ("address", "127.0.0.1 may be called"),
        ("address", f"{private}have to allow it"),
        ("signed", "no: no secret is named"),
        ("answer", "200 OK after 0 ms"),
        ("tls", "the certificate is accepted"),
    ]


async def test_a_look_up_that_hangs_ends_the_trial_in_time() -> None:
    async def hang(_host: str, _port: int) -> list[tuple[Any, ...]]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async with Receiver() as receiver:
        trial = await tried(receiver, job(receiver.url(), timeout_ms=5), hang)
    assert trial.end is not None
    assert trial.end.error == "no answer within 5ms"
    assert trial.addresses == ()
    assert not trial.is_refused


async def test_the_time_that_a_sample_takes_is_that_of_the_receiver() -> None:
    async with Receiver() as receiver:
        sink = webhook(receiver)
        read_ns: list[int] = []

        def elapsed_ns() -> int:
            assert sink._connections is not None or read_ns
            read_ns.append(len(read_ns) * 7_000_000)
            return read_ns[-1]

        egress = rules(receiver)
        call = job(receiver.url())
        trial = await _tried(call, call.target.url, egress, sink, FakeDns(), elapsed_ns)
    assert trial.took_ms == 7


async def test_an_address_in_place_of_a_name_is_judged_too() -> None:
    async with Receiver() as receiver:
        egress = rules(receiver, "::1/128")
        dns = FakeDns()
        dns.hosts["::1"] = ["::1"]
        call = job(f"http://[::1]:{receiver.port}/")
        sink = webhook(receiver, dns, egress=egress)
        trial = await _tried(call, call.target.url, egress, sink, dns, lambda: 0)
    assert trial.addresses == (("::1", ""),)
