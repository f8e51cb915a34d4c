import pytest

from delayd.limits import RESERVE_BATCH_MAX
from tests.rigs.line import LineRig

PUT = b"put 0 0 60 2\r\nhi\r\n"


def waiting(rig: LineRig) -> object:
    return rig.stats.report(rig.now_ms)["current-waiting"]


# --- Waiting -------------------------------------------------------------------------------------


def test_a_client_just_handed_a_job_still_waits_until_it_is_told() -> None:
    """Between the put that serves it and the end of the turn its input must not be carried out."""
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    worker.says(b"reserve\r\n")
    producer.connection.receive(PUT, rig.now_ms)
    assert not worker.connection.is_listening
    assert worker.says(b"list-tube-used\r\n") == b"RESERVED 1 2\r\nhi\r\nUSING default\r\n"


def test_a_client_just_handed_a_job_may_half_close() -> None:
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    worker.says(b"reserve\r\nlist-tube-used\r\n")
    producer.connection.receive(PUT, rig.now_ms)
    assert worker.half_closes() == b"RESERVED 1 2\r\nhi\r\nUSING default\r\n"


@pytest.mark.parametrize("behind", [b"", PUT, b"reserve\r\nuse a\r\n"])
@pytest.mark.parametrize("wait", [b"reserve\r\n", b"reserve-batch 5 9\r\n"])
def test_a_client_just_handed_a_job_may_close(wait: bytes, behind: bytes) -> None:
    rig = LineRig()
    worker, producer = rig.client(), rig.client()
    worker.says(wait + behind)
    producer.connection.receive(PUT * 2, rig.now_ms)
    worker.closes()
    assert worker.replies() == b""
    assert producer.says(b"reserve-batch 5 0\r\n")[:32] == b"INSERTED 1\r\nINSERTED 2\r\nRESERVED"
    assert waiting(rig) == 0
    rig.state()


# --- Long replies --------------------------------------------------------------------------------


def test_many_peeks_in_one_packet_gather_no_more_than_the_limit_and_one_reply() -> None:
    rig = LineRig()
    client = rig.client(out_bytes_max=4_096)
    body = b"x" * 3_000
    client.says(b"put 0 0 60 3000\r\n%b\r\n" % body)
    found = b"FOUND 1 3000\r\n%b\r\n" % body
    client.gathered_bytes_max = 0
    assert (
        client.says(b"peek 1\r\n" * 50 + b"list-tube-used\r\n") == found * 50 + b"USING default\r\n"
    )
    assert 4_096 < client.gathered_bytes_max <= 4_096 + len(found)


def test_a_choked_client_is_not_listened_to_until_its_replies_have_gone() -> None:
    rig = LineRig()
    client = rig.client(out_bytes_max=100)
    client.says(b"put 0 0 60 200\r\n%b\r\n" % (b"x" * 200))
    connection = client.connection
    connection.receive(b"peek 1\r\npeek 2\r\n", rig.now_ms)
    assert connection.is_choked
    assert not connection.is_listening
    assert connection.take_out().startswith(b"FOUND 1 200\r\n")
    connection.resume(rig.now_ms)
    assert connection.take_out() == b""
    connection.is_choked = False
    connection.resume(rig.now_ms)
    assert connection.take_out() == b"NOT_FOUND\r\n"


@pytest.mark.parametrize(
    "words", [b"reserve\r\n", b"reserve-job %d\r\n", b"reserve-batch 40 0\r\n"]
)
def test_reserving_gathers_no_more_than_the_limit_and_one_reply(words: bytes) -> None:
    rig = LineRig()
    client = rig.client(out_bytes_max=4_096)
    job = b"put 0 0 60 1000\r\n%b\r\n" % (b"x" * 1_000)
    client.says(b"peek 1\r\n" * 3 + job * 40)
    client.gathered_bytes_max = 0
    if b"%d" in words:
        said = b"".join(words % number for number in range(1, 41))
    else:
        said = b"peek 1\r\npeek 2\r\n" + words * 40
    reply = client.says(said)
    assert reply.count(b"RESERVED ") == 40
    assert reply.count(b"\r\n" + b"x" * 1_000) == reply.count(b" 1000\r\n")
    heads = 40 * len(b"RESERVED 10 1000\r\n")
    assert 4_096 < client.gathered_bytes_max <= 4_096 + 1_100 + heads


def test_a_batch_takes_so_many_at_most() -> None:
    rig = LineRig()
    client = rig.client()
    for _ in range(RESERVE_BATCH_MAX // 100 + 1):
        client.says(b"put 0 0 60 0\r\n\r\n" * 100)
    reply = client.says(b"reserve-batch 4294967295 0\r\n")
    assert reply.startswith(b"RESERVED_BATCH %d\r\n" % RESERVE_BATCH_MAX)
    assert client.says(b"reserve-batch 1001 0\r\n").startswith(b"RESERVED_BATCH 100\r\n")
