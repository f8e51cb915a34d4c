"""What clients are told when the journal has no room."""

from tests.rigs.line import LineRig


def no_space(_missing_bytes: int, _body_bytes: int, _places: int) -> int:
    return -1


def test_puts_are_refused_one_by_one_and_in_runs_and_their_ids_are_burnt() -> None:
    rig = LineRig()
    client = rig.client()
    rig.engine.log_space.limit(0, no_space)
    put = b"put 0 0 60 2\r\nhi\r\n"
    assert client.says(put) == b"OUT_OF_MEMORY\r\n"
    assert client.says(put * 3) == b"OUT_OF_MEMORY\r\n" * 3
    assert client.says(b"put 0 0 60 2\r\n", b"hi\r\n") == b"OUT_OF_MEMORY\r\n"
    rig.engine.log_space.limit(1 << 40, no_space)
    assert client.says(put) == b"INSERTED 6\r\n"


def test_a_reserve_that_cannot_be_recorded_says_so_and_a_delete_goes_on() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(b"put 0 0 60 2\r\nhi\r\n")
    rig.engine.log_space.limit(0, no_space)
    assert client.says(b"reserve\r\n" * 2) == b"OUT_OF_MEMORY\r\n" * 2
    assert client.says(b"reserve-batch 5 0\r\n") == b"OUT_OF_MEMORY\r\n"
    rig.engine.log_space.limit(1 << 40, no_space)
    assert client.says(b"reserve\r\n") == b"RESERVED 1 2\r\nhi\r\n", "not in a batch's form"
    rig.engine.log_space.limit(0, no_space)
    assert client.says(b"delete 1\r\n") == b"DELETED\r\n"
