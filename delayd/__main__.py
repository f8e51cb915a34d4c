"""Where the commands begin: `delayd`, which `python -m delayd` is too, and `delayd-beanstalkd`.

SIGUSR1 and SIGHUP end a process that has no handler for them. A daemon has none before it serves,
so they wait from here on, before anything that takes time is imported, until it has. SIGINT ends a
start as SIGTERM does: Python's own handler would say where it was.
"""

import gc
import signal
import sys


def main() -> None:
    """Run the command `delayd`."""
    if sys.argv[1:2] == ["serve"]:  # the tools do without these signals, and end by them
        _prepare_signals()
        # It would traverse what is imported repeatedly, for 4 % of a start; `recover` turns it on.
        gc.disable()
        from delayd.cli import daemon

        options = daemon.plain_options(sys.argv[2:])
        if options is not None:
            daemon.main(options)  # it does not return
    from delayd.cli.main import main as run

    run()


def beanstalkd() -> None:
    """Run the command `delayd-beanstalkd`."""
    _prepare_signals()
    from delayd.cli.beanstalkd import main as run

    run()


def _prepare_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGHUP))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
