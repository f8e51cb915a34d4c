import random

import pytest

from tests.line.corpus import BODY_BYTES_MAX, EXCHANGES, Exchange
from tests.rigs.line import LineRig, bytewise, in_pieces


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_every_exchange_goes_as_written(exchange: Exchange) -> None:
    rig = LineRig(BODY_BYTES_MAX)
    assert rig.client().says(exchange.request) == exchange.response
    rig.state()


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_every_exchange_goes_the_same_in_any_pieces(exchange: Exchange, rng: random.Random) -> None:
    whole = LineRig(BODY_BYTES_MAX)
    whole.client().says(exchange.request)
    for pieces in (bytewise, *(lambda data: in_pieces(data, rng),) * 3):
        rig = LineRig(BODY_BYTES_MAX)
        assert rig.client().says(*pieces(exchange.request)) == exchange.response
        assert (rig.state(), rig.log) == (whole.state(), whole.log)
