"""The chapter `wheel`: delayd's timing wheel beside six other ways to keep timers in Python.

    insert                 entries due at random within an hour
    insert, one delay      all with the same delay, 1,000 in each ms
    cancel                 all of the first, in random order
    cancel, cleaned up     the same, and what it leaves to do until nothing is held any more
    expire                 all of the first, each woken in its ms: 10⁶ an hour are 278 a second
    expire, dense          all due within one second, turned once a ms
    expire, one instant    all due in one ms
    order timeout          10,000 orders a second, due after 30 s, 90 % of them cancelled before
    hold                   the memory of an entry after `insert` (traced)
    hold, 90 % cancelled   the memory of an entry, when 90 % of all have been cancelled
    expire in a minute     10,000 entries due at random within a minute, by the size of the wheel

Each reading is taken in a process of its own (`alone.py`), with the garbage collector on, as in the
daemon. All are driven by the same loop (`operations.py`), whose own cost, about 0.1 µs, is in every
figure: each is called as its owner would call it. Beside the processor time of an entry stands the
longest pause: of one call of `expire`, and of inserts and cancels 32 calls in a row, since a clock
read around each would cost as much as the call.

A heap with lazy cancel does nothing at a cancel. What that costs is in `cancel, cleaned up`.
"""
