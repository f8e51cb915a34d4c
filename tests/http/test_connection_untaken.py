"""Answers that nobody takes: how long a client may let them wait, and how much of them."""

from delayd import limits
from tests.rigs.http import HttpRig, request
from tests.rigs.http_connections import ConnectionRig, get, scenario, settle

HEADER_MS = limits.HTTP_HEADER_MS_DEFAULT
IDLE_MS = limits.HTTP_IDLE_MS_DEFAULT


@scenario()
async def test_a_client_that_takes_nothing_is_closed_after_ten_seconds(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/long?bytes=100000"))
    await rig.pass_ms(limits.HTTP_TAKE_MS - 1)
    assert not client.is_closed()
    await rig.pass_ms(1_001)
    assert client.was_aborted
    assert rig.noted["SLOW_ANSWER"] == 1


@scenario()
async def test_a_client_that_takes_a_kibibyte_a_second_has_all_the_time(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/long?bytes=100000"))
    for _ in range(90):
        await client.take(1_100)
        await rig.pass_ms(1_000)
        assert not client.is_closed()
    await client.take(100_000)
    await rig.pass_ms(IDLE_MS - 1)
    assert not client.is_closed()


async def is_closed_for(rig: ConnectionRig, *, answer_bytes: int, taken_each_second: int) -> bool:
    """Whether a client is closed that takes so much of an answer for eleven seconds."""
    client = rig.connect()
    client.takes = False
    await client.send(get(f"/long?bytes={answer_bytes}"))
    for _ in range(11):
        await rig.pass_ms(1_000)
        await client.take(taken_each_second)
    return client.was_aborted


@scenario()
async def test_a_client_that_takes_less_is_closed(rig: ConnectionRig) -> None:
    assert await is_closed_for(rig, answer_bytes=100_000, taken_each_second=900)


@scenario()
async def test_a_client_that_stops_taking_in_the_middle_is_closed(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/long?bytes=100000"))
    for _ in range(25):
        await client.take(1_100)
        await rig.pass_ms(1_000)
    assert not client.is_closed()
    await rig.pass_ms(2 * limits.HTTP_TAKE_MS, steps=20)
    assert client.was_aborted


@scenario()
async def test_more_than_the_write_buffer_has_to_be_taken_within_ten_seconds(
    rig: ConnectionRig,
) -> None:
    assert await is_closed_for(rig, answer_bytes=3_000_000, taken_each_second=150_000)


@scenario()
async def test_nothing_more_is_carried_out_for_a_client_that_takes_nothing(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/long?bytes=30000") * 20)
    assert rig.done == ["/long"] * 3
    assert client.unsent < 100_000
    await client.take(100_000)
    assert len(rig.done) > 3


@scenario()
async def test_small_answers_that_are_not_taken_are_noticed_as_well(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/quick"))
    await rig.pass_ms(IDLE_MS + 20_000, steps=20)
    assert client.was_aborted
    assert rig.noted["SLOW_ANSWER"] == 1


@scenario()
async def test_a_last_answer_that_is_not_taken_does_not_keep_the_connection(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/quick", "Connection: close"))
    await settle()
    assert client.is_closing()
    assert not client.is_closed()
    await rig.pass_ms(3 * limits.HTTP_TAKE_MS, steps=6)
    assert client.was_aborted


@scenario()
async def test_a_look_for_another_reason_shortens_nobodys_time(rig: ConnectionRig) -> None:
    client = rig.connect()
    await rig.pass_ms(HEADER_MS // 2)
    client.takes = False
    await client.send(get("/long?bytes=100000"))
    await rig.pass_ms(limits.HTTP_TAKE_MS - 1, steps=9)
    assert not client.is_closed()
    await rig.pass_ms(1_001)
    assert client.was_aborted


@scenario()
async def test_each_answer_has_its_own_time_to_be_taken(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/long?bytes=100000"))
    await rig.pass_ms(5_000)
    await client.take(200_000)
    await rig.pass_ms(2 * limits.HTTP_TAKE_MS, steps=20)
    await client.send(get("/long?bytes=100000"))
    await rig.pass_ms(limits.HTTP_TAKE_MS - 1, steps=9)
    assert not client.is_closed()
    await rig.pass_ms(1_001)
    assert client.was_aborted


@scenario()
async def test_what_flows_is_taken_however_much_always_waits(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/long?bytes=20000"))
    for _ in range(60):
        await client.send(get("/long?bytes=5000"))
        await client.take(5_200)
        await rig.pass_ms(1_000)
    assert client.unsent > 10_000
    assert not client.is_closed()


@scenario()
async def test_a_handler_learns_that_its_answer_was_not_taken(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/told?bytes=100000"))
    assert not rig.done
    await rig.pass_ms(limits.HTTP_TAKE_MS + 1_000)
    assert rig.done == ["not told"]


# --- Answers whose sender has to know that they have left -----------------------------------------


@scenario()
async def test_what_is_delivered_has_not_left_while_some_of_it_waits(rig: ConnectionRig) -> None:
    for answer_bytes in (10, 1_000_000):
        client = rig.connect()
        client.takes = False
        await client.send(get(f"/told?bytes={answer_bytes}"))
        await client.take(client.unsent - 1)
        assert not rig.done
        await client.break_off()
        assert rig.done.pop() == "not told"


@scenario()
async def test_what_is_delivered_has_left_when_all_of_it_is_taken(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/long?bytes=1000"))
    await client.send(get("/told?bytes=1000"))
    assert rig.done == ["/long"], "it waits for what is before it too"
    await client.take(client.unsent)
    assert rig.done == ["/long", "told"]
    await client.send(get("/long?bytes=1000"))
    assert rig.done == ["/long", "told", "/long"], "others need not be taken"


@scenario()
async def test_who_sends_no_more_while_its_answer_leaves_gets_all_of_it(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/told?bytes=100000"))
    await client.send_no_more()
    await client.take(client.unsent)
    assert rig.done == ["told"]
    assert client.is_closed()
    assert not client.was_aborted


@scenario()
async def test_who_takes_nothing_of_what_is_delivered_is_closed(rig: ConnectionRig) -> None:
    client = rig.connect()
    client.takes = False
    await client.send(get("/told?bytes=10"))
    await rig.pass_ms(IDLE_MS, steps=20)
    assert client.was_aborted
    assert rig.done == ["not told"]


# --- When the daemon stops ------------------------------------------------------------------------

STOPPED = request("POST", "/v1/topics/mail/jobs", {"jobs": [{"body": 1}, {"body": 2}]})


def test_a_stop_waits_until_what_was_answered_is_taken() -> None:
    with HttpRig() as rig:
        client = rig.connect()
        client.is_taking = False
        client.say("POST", STOPPED)
        rig.settle()
        rig.server.stop_accepting()
        stopping = rig.loop.create_task(rig.server.stop())
        rig.pass_ms(limits.HTTP_STOP_MS_MAX - 1)
        assert not stopping.done()
        client.take()
        rig.pass_ms(limits.HTTP_STOP_STEP_MS)
        assert stopping.done()
        assert client.the_answer.status == 201


def test_a_stop_waits_for_a_bounded_time_for_who_takes_nothing() -> None:
    with HttpRig() as rig:
        client = rig.connect()
        client.is_taking = False
        client.say("POST", STOPPED)
        rig.settle()
        rig.server.stop_accepting()
        stopping = rig.loop.create_task(rig.server.stop())
        for _ in range(limits.HTTP_STOP_MS_MAX // limits.HTTP_STOP_STEP_MS + 1):
            rig.pass_ms(limits.HTTP_STOP_STEP_MS)
        assert stopping.done()
        assert client.is_closed


def test_a_stop_without_answers_that_wait_takes_no_time() -> None:
    with HttpRig() as rig:
        client = rig.connect()
        rig.settle()
        rig.server.stop_accepting()
        stopping = rig.loop.create_task(rig.server.stop())
        rig.settle()
        assert stopping.done()
        assert client.is_closed
