"""What delivers due jobs, as it is configured; imported no sooner than it is needed.

    vet       somebody sets a target: the rules of urls
    sender    the first job is to be delivered: asyncio, ssl and all that makes calls

    a job is to be delivered ─► import in a thread ─► asyncio takes over ─► `open` ─► calls

Deliveries are on unless they are switched off, and most daemons have nothing to deliver. What they
would import for it takes as long as all of the line. Only what the configuration itself names is
opened at the start, so that its mistakes are told there.
"""

import signal
from typing import TYPE_CHECKING, Protocol, final

from delayd.clock import VirtualClock
from delayd.config import Config, ConfigError, ConfigErrors
from delayd.core.throttle import PushBlock
from delayd.limits import LOG_ID_BYTES
from delayd.net.addresses import Listeners, TcpAddress

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from delayd.access.signing_secrets import Secrets
    from delayd.access.topic_rule import TopicRule
    from delayd.clock import Clock
    from delayd.core.engine import Engine
    from delayd.core.targets import Target
    from delayd.core.times import RequestMs
    from delayd.core.topic import Topic
    from delayd.logs import Log
    from delayd.push.sender import PushSender, PushTurns
    from delayd.push.sinks import Sink
    from delayd.push.vetting import TargetRules


def open_push(
    config: Config, secrets: "Secrets | None", listeners: Listeners
) -> "tuple[Config, Push]":
    """Return what delivers, and the configuration with its targets as they are kept.

    Raises `ConfigErrors` with each sink and target that cannot be used.
    """
    named: Mapping[str, Sink] = {}
    if config.sinks:
        from delayd.push.sinks import open_sinks  # noqa: PLC0415 - see above

        named = open_sinks(config)
    push = Push(config, secrets, listeners, named)
    if push.has_targets and config.topics is not None:
        patterns, errors = push.rules.vet_patterns(config.topics)
        if errors:
            raise ConfigErrors([ConfigError("", error, "") for error in errors])
        config = config._replace(topics=patterns)
    return config, push


def sink_rules(config: Config) -> "dict[str, TopicRule]":
    """Return for which topics each sink of the configuration is."""
    if not config.sinks:
        return {}
    from delayd.access.topic_rule import TopicRule  # noqa: PLC0415 - see above

    return {name: TopicRule(section.topics) for name, section in config.sinks.items()}


def import_sender() -> None:
    """Import what `Push.sender` needs: 0.1 s, for which no client should wait."""
    from delayd.push import scheduler, sender, topic_sink, webhook  # noqa: F401, PLC0415


class DeliveryLoop(Protocol):
    """What is needed of the event loop before asyncio is there."""

    def call_soon_threadsafe(self, callback: "Callable[[], object]") -> None:
        """Have something called by another thread."""

    def stop(self) -> None:
        """End: asyncio takes over."""


@final
class Push:
    """Vets targets, and makes the sender."""

    __slots__ = ("_config", "_listeners", "_named", "_rules", "_secrets")

    def __init__(
        self,
        config: Config,
        secrets: "Secrets | None",
        listeners: Listeners,
        named: "Mapping[str, Sink]",
    ) -> None:
        """`named` are the sinks of the configuration; no url may lead back to the `listeners`."""
        self._config = config
        self._secrets = secrets
        self._listeners = listeners
        self._named = named
        self._rules: TargetRules | None = None

    @property
    def has_targets(self) -> bool:
        """Tell whether the configuration names places to deliver to."""
        policies = {} if self._config.topics is None else self._config.topics.by_pattern
        return bool(self._named) or any(policy.push for policy in policies.values())

    @property
    def rules(self) -> "TargetRules":
        """What may be set."""
        if self._rules is None:
            from delayd.push.egress import EgressRules  # noqa: PLC0415 - see above
            from delayd.push.vetting import TargetRules  # noqa: PLC0415

            config, listeners = self._config, self._listeners
            egress = EgressRules(
                hosts=config.push_hosts,
                private_networks=config.push_private_networks,
                allow_http=config.push_allow_http,
                ports=config.push_ports,
                own=[
                    listener.address
                    for listener in (*listeners.line, *listeners.http)
                    if isinstance(listener.address, TcpAddress)
                ],
            )
            self._rules = TargetRules(
                egress,
                self._secrets,
                self._named,
                sign_with=config.push_sign_with,
                sink_rules=sink_rules(config),
            )
        return self._rules

    def vet(self, target: "Target") -> "Target":
        """Return the target as it is to be kept. Raises `TargetRefused`."""
        return self.rules.vet(target)

    def vet_use(self, target: "Target", topic: str) -> None:
        """Raise `NotForTopic` if jobs of the topic may not use the target's secrets or sink."""
        self.rules.vet_use(target, topic)

    def sender(
        self, engine: "Engine", turns: "PushTurns", clock: "Clock", log: "Log", identity: bytes
    ) -> "PushSender":
        """Make the sender, in the loop of asyncio that is running.

        `identity` distinguishes this daemon's jobs from those of all others.
        """
        from delayd.push.scheduler import PushBounds, Scheduler  # noqa: PLC0415 - see above
        from delayd.push.sender import PushSender, SinkTable  # noqa: PLC0415
        from delayd.push.topic_sink import TopicSink  # noqa: PLC0415
        from delayd.push.webhook import Webhook  # noqa: PLC0415

        config = self._config
        bounds = PushBounds(
            *(config.push_calls_max, config.push_calls_per_host_max, config.push_timeout_ms),
            has_breakers=not isinstance(clock, VirtualClock),
        )
        scheduler = Scheduler(engine, bounds)
        webhook = Webhook(
            self.rules.egress,
            secrets=self._secrets,
            sign_with=config.push_sign_with,
            connect_timeout_ms=config.push_connect_timeout_ms,
        )
        topics = TopicSink(engine, scheduler.session, clock.request_ms)
        sinks = SinkTable(webhook, topics, self._named, sink_rules(config))
        return PushSender(scheduler, turns, clock, sinks, log, identity[:LOG_ID_BYTES].hex())


@final
class Deliveries:
    """Deliveries of one daemon: nothing but a question until the first job is to be delivered."""

    __slots__ = (
        *("_clock", "_config", "_engine", "_identity", "_importer", "_is_asked", "_is_stopping"),
        *("_log", "_loop", "_push", "sender"),
    )

    def __init__(
        self,
        push: Push,
        config: Config,
        engine: "Engine",
        clock: "Clock",
        log: "Log",
        loop: DeliveryLoop,
        identity: bytes,
    ) -> None:
        """Deliver the engine's jobs; `identity` distinguishes them from those of other daemons."""
        self._push = push
        self._config = config
        self._engine = engine
        self._clock = clock
        self._log = log
        self._loop = loop
        self._identity = identity
        self._importer: threading.Thread | None = None
        self._is_asked = self._is_stopping = False
        self.sender: PushSender | None = None
        """None: nothing has had to be delivered so far."""
        engine.vet_target = push.vet
        engine.vet_use = push.vet_use
        if isinstance(clock, VirtualClock):
            engine.is_calling = self._is_calling

    @property
    def has_targets(self) -> bool:
        """Tell whether the configuration names places to deliver to."""
        return self._push.has_targets

    @property
    def has_strays(self) -> bool:
        """Tell whether calls go on although they were told to end."""
        return self.sender is not None and self.sender.has_strays

    def open(self, turns: "PushTurns") -> None:
        """Deliver due jobs, in the loop of asyncio that is running."""
        identity = self._identity
        self.sender = self._push.sender(self._engine, turns, self._clock, self._log, identity)

    def on_push(self, now_ms: "RequestMs") -> None:
        """Deliver jobs that have become ready; in a turn, or between two."""
        if self.sender is not None:
            self.sender.on_push(now_ms)
        elif not self._is_asked:
            self._is_asked = True
            self._prepare()

    def _prepare(self) -> None:
        """Have asyncio take over, because a job is to be delivered; it stays ready until then.

        What asyncio and the sender need is imported in a thread meanwhile; where there can be none,
        clients wait for it.
        """
        import threading  # noqa: PLC0415 - without a journal there is no thread before

        def work() -> None:
            # They are the loop's, and this thread may outlive their handlers for a moment.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                import_sender()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)

        importer = threading.Thread(target=work, name="import")
        try:
            importer.start()
        except RuntimeError:  # the system allows no more threads
            self._loop.call_soon_threadsafe(self._loop.stop)
        else:
            self._importer = importer

    def _is_calling(self) -> bool:
        """Tell whether jobs are pushed now, or wait for asyncio."""
        if self.sender is not None:
            return self.sender.is_busy()
        return bool(self._engine.store.push_lanes.fresh) and not self._is_stopping

    def blocks_of(self, topic: "Topic") -> list[PushBlock]:
        """Return why jobs of the topic that are ready are not pushed."""
        return [] if self.sender is None else self.sender.blocks_of(topic)

    # --- The end ---------------------------------------------------------------------------------

    def stop(self) -> "list[Coroutine[Any, Any, None]]":
        """Begin nothing more; return what ends the calls under way, to be awaited."""
        self._is_stopping = True
        if self.sender is None:
            return []
        return [self.sender.stop(self._config.push_stop_grace_ms)]

    def abort(self) -> None:
        """End everything at once, and let nothing be recorded of it."""
        if self.sender is not None:
            self.sender.abort()

    def close(self) -> None:
        """Wait for the thread: it would wake a loop that is closed."""
        if self._importer is not None:
            self._importer.join()
