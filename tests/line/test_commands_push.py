"""Jobs with a url on the line: what is said, who may, what is shown, and runs of them."""

from delayd.core.errors import TargetRefused
from delayd.core.targets import Target
from delayd.limits import LONG_LINE_BYTES_MAX
from tests.rigs.line import Client, LineRig, bytewise

URL = b"https://example.com/due?key=s3"
BAD = b"BAD_FORMAT\r\n"


def vet(target: Target) -> Target:
    if not target.url.startswith("https:"):
        raise TargetRefused(f"url {target.url!r}", "must be https")
    return target


def with_push(*, needs_token: bool = False) -> LineRig:
    rig = LineRig(needs_token=needs_token)
    rig.engine.vet_target = vet
    return rig


def put(words: bytes, command: bytes = b"put") -> bytes:
    return b"%b 0 9 60 2 %b\r\nhi\r\n" % (command, words)


def shown(client: Client, job_id: int = 1) -> dict[str, str]:
    """Where `stats-job` says that the job goes."""
    rows = client.says(b"stats-job %d\r\n" % job_id).decode().splitlines()
    pairs = (row.partition(": ") for row in rows)
    return {name: value for name, _, value in pairs if name in {"url", "method"}}


def test_jobs_put_in_a_run_each_have_the_url_that_they_share() -> None:
    commands = b"".join(put(b"key=k%d url=%b" % (number, URL)) for number in range(3))
    together, bit_by_bit = with_push().client(), with_push().client()
    said = together.says(commands)
    assert said == b"INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n"
    assert bit_by_bit.says(*bytewise(commands)) == said
    assert [shown(together, job_id) for job_id in (1, 2, 3)] == [shown(bit_by_bit)] * 3
    assert shown(together)["url"] == f'"{URL.decode()}"'


def test_a_line_with_a_url_may_be_as_long_as_those_of_other_extensions() -> None:
    client = with_push().client()
    head = b"put 0 9 60 2 url=https://example.com/"
    longest = head + b"x" * (LONG_LINE_BYTES_MAX - len(head) - 2)
    assert client.says(longest + b"\r\nhi\r\n") == b"INSERTED 1\r\n"
    assert client.says(longest + b"x\r\nhi\r\n") == BAD
