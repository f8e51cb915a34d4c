"""What clients do to a server with real sockets; sockets.txt says how it is written."""

import socket
from pathlib import Path

import pytest

from delayd.core.stats.refusals import Refusals
from tests.line.corpus import LinePlay, lines_in, whole
from tests.rigs.line_sockets import ServerRig, heard, is_cut_off, reset
from tests.rigs.written import Fact, facts_of


class Play(LinePlay[socket.socket]):
    def __init__(self, rig: ServerRig, reasons: Refusals) -> None:
        super().__init__(rig.client)
        self.rig = rig
        self.reasons = reasons

    def step(self, step: str) -> None:
        if step[1] == "+":
            self.client(step[0]).sendall(whole(lines_in(step[3:])))
        else:
            super().step(step)

    def says(self, name: str, data: bytes) -> None:
        self.rig.says(self.client(name), data)

    def heard(self, name: str) -> bytes:
        return heard(self.client(name))

    def arrange(self, word: str, *words: str) -> None:
        rig = self.rig
        match word:
            case "let_in":
                self.client(words[0])
            case "shut":
                self.client(words[0]).shutdown(socket.SHUT_WR)
            case "close":
                self.client(words[0]).close()
            case "reset":
                reset(self.client(words[0]))
            case "cut":
                assert is_cut_off(self.client(words[0]))
            case "turn":
                rig.turn()
            case "quiet":
                rig.turn_until_quiet(some=True)
            case "hold":
                rig.holds = True
            case "release":
                rig.release(int(words[0]) if words else None)
                rig.turn_until_quiet()
            case "flow":
                rig.holds = False
                rig.release()
                rig.turn_until_quiet()
            case "wait":
                rig.pass_ms(round(float(words[0]) * 1_000))
            case "elapse":
                rig.elapses(float(words[0]))
            case "clients":
                assert len(rig.clients) == int(words[0])
            case "alarm":
                assert (rig.poller.timeouts.alarm_ms is None) == (words == ("none",))
            case "durable":
                rig.durable.durable_id = int(words[0])
            case "late":
                rig.durable.out_of_order_ids = {*map(int, words)}
            case "were_late":
                assert rig.engine.take_out_of_order_ids() == [*map(int, words)]
            case "sends":
                assert len(rig.sends) == len(set(rig.sends)) == int(words[0])
            case "refused":
                reasons = (each.split("=") for each in words)
                assert self.reasons.by_reason == {name: int(count) for name, count in reasons}
            case _:
                raise AssertionError(f"no step: {word}")


@pytest.mark.parametrize(
    "story", facts_of(Path(__file__).parent / "sockets.txt", separator=" ; "), ids=str
)
def test_every_story_goes_as_written(story: Fact, tmp_path: Path) -> None:
    reasons = Refusals()
    path = tmp_path / "line.sock" if "unix" in story.options else None
    connections_max = 2 if "two" in story.options else 100
    with ServerRig(path=path, refusals=reasons, connections_max=connections_max) as rig:
        story.play(Play(rig, reasons).step)
