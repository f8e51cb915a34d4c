"""A listening socket that does as it is told, for all that accept connections."""

import socket


class Listener(socket.socket):
    """Accepts what it is told to: a connection, or an error."""

    def __init__(self, outcomes: list[int | None]) -> None:
        super().__init__()
        self.outcomes = outcomes
        self.peers: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, object]:
        if not self.outcomes:
            raise BlockingIOError
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise OSError(outcome, "as asked for")
        ours, theirs = socket.socketpair()
        self.peers.append(theirs)
        return ours, ""

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        super().close()
