"""The stream of a soak: jobs due a second later, for an hour, at half of what they could be.

`part` is a process like those with actors (`benchmarks.actors.part`). It says first which rate it
offers: half of the peak that eight workers with one command in flight each come to beside all that
goes on. Then it offers that rate, by an open loop, and answers what is asked through its pipe.
"""

import gc
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.accounts import Totals
from benchmarks.actors import Closed, Noted
from benchmarks.lateness.measures import DELAY_MS, looped, peak
from benchmarks.lateness.open_loop import Loop, Offer, steadily
from benchmarks.line import ServerSilentError, UnexpectedReplyError
from benchmarks.servers.beanstalk import Reachable

WORKERS: Final = 8
WARM_S: Final = 30.0
"""After so long, the others have come to the load that they keep."""
PEAK_S: Final = 30.0
HALF: Final = 0.5
TUBE: Final = b"stream"


def part(pipe: Connection, port: int) -> None:
    """Find the peak, say half of it, and offer that until told to stop."""
    gc.disable()  # a collection would look like a stall of the daemon
    server = Reachable(port, TUBE)
    time.sleep(WARM_S)
    rate = HALF * peak(server, DELAY_MS, PEAK_S, workers=WORKERS)
    pipe.send(rate)
    with looped() as loop:
        offer = Offer(loop, server, workers=WORKERS, delay_ms=DELAY_MS)
        offer.start(steadily(rate))
        troubles: Counter[str] = Counter()
        try:
            answer(pipe, loop, offer)
            offer.drain()
        except (OSError, ServerSilentError, UnexpectedReplyError) as error:
            troubles[f"stream: {type(error).__name__}: {error}"] += 1
            while pipe.recv() != "stop":
                pipe.send(Noted([], [], Counter()))
        verdict = offer.verdict(0.0, 0.0)
        noted = taken(offer)
        noted.troubles.update(troubles)
        lost, doubled = verdict.lost, verdict.doubled
        pipe.send(Closed(noted, Totals(offer.offered, offer.arrived, doubled, lost), 0))


def answer(pipe: Connection, loop: Loop, offer: Offer) -> None:
    """Answer until told to stop."""
    is_over = False

    def look(_: float) -> None:
        nonlocal is_over
        if not is_over and pipe.poll():
            is_over = pipe.recv() == "stop"
            if not is_over:
                pipe.send(taken(offer))

    loop.each_turn(look)
    loop.run(lambda _: is_over)


def taken(offer: Offer) -> Noted:
    """Return how late the jobs were that came since the last time."""
    offer.answers.clear()
    return Noted([], [1e3 * late_s for late_s in offer.take_fresh()], Counter())
