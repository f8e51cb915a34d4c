import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delayd.net import tls
from delayd.push.try_url import Trial, _tried
from tests.access.handshakes import Authority
from tests.push.receiver import FakeDns, Receiver, job, rules, webhook


async def tried(
    receiver: Receiver,
    url: str,
    dns: Any,  # noqa: ANN401 - a look-up
    *,
    networks: tuple[str, ...] = (),
    elapsed_ns: Callable[[], int] = int,
    **changes: Any,  # noqa: ANN401
) -> Trial:
    egress = rules(receiver, *networks)
    call = job(url, timeout_ms=changes.pop("timeout_ms", 15_000))
    sink = webhook(receiver, dns, egress=egress, **changes)
    return await _tried(call, egress.vet_url(url), egress, sink, dns, elapsed_ns)


async def test_a_sample_over_tls_tells_that_the_certificate_is_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with Receiver(tls=tls.server_context(authority.files("hook.example"))) as receiver:
        dns = FakeDns(hook_example=["127.0.0.1", "10.0.0.7"])
        read_ns = iter(range(0, 1 << 40, 7_000_000))
        trial = await tried(
            *(receiver, receiver.url(scheme="https"), dns),
            tls=authority.client(),
            elapsed_ns=read_ns.__next__,
        )
    assert trial.is_delivered
    assert not trial.is_refused
    private = "the address 10.0.0.7 of hook.example is private: [push] private_networks would "
    assert trial.explained()[1:6] == [
        ("address", "127.0.0.1 may be called"),
        ("address", f"{private}have to allow it"),
        ("signed", "no: no secret is named"),
        ("answer", "200 OK after 7 ms"),
        ("tls", "the certificate is accepted"),
    ]


async def test_a_look_up_that_hangs_ends_the_trial_in_time() -> None:
    async def hang(_host: str, _port: int) -> list[tuple[Any, ...]]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async with Receiver() as receiver:
        trial = await tried(receiver, receiver.url(), hang, timeout_ms=5)
    assert trial.end is not None
    assert trial.end.error == "no answer within 5ms"
    assert (trial.addresses, trial.is_refused) == ((), False)


async def test_an_address_in_place_of_a_name_is_judged_too() -> None:
    async with Receiver() as receiver:
        dns = FakeDns()
        dns.hosts["::1"] = ["::1"]
        trial = await tried(receiver, f"http://[::1]:{receiver.port}/", dns, networks=("::1/128",))
    assert trial.addresses == (("::1", ""),)
