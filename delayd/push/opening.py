"""Opens what delivers, by the configuration; its modules are imported when they are needed.

    vet       when a target is set: the rules of urls
    sender    when the first job is to be delivered: asyncio, ssl and all that makes calls

    a job is to be delivered ─► import in a thread ─► asyncio takes over ─► `open` ─► calls

Deliveries are on unless they are switched off, and most daemons have nothing to deliver. Their
imports take as long as all of the line. Only sinks and targets of the configuration are opened at
the start, so that mistakes are reported there.
"""

import signal
from typing import TYPE_CHECKING, Protocol, final

from delayd.clock import NS_PER_MS, VirtualClock, monotonic_ns
from delayd.config import Config, ConfigErrors
from delayd.core.errors import TargetRefused
from delayd.core.policy import Patterns
from delayd.core.targets import Target, ambiguous_headers
from delayd.core.throttle import PushBlock
from delayd.fields import Wrong
from delayd.limits import LOG_ID_BYTES
from delayd.net.addresses import Listeners, TcpAddress
from delayd.text import did_you_mean, shown_url

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from typing import Any

    from delayd.access.signing_secrets import Secrets
    from delayd.access.topic_rule import TopicRule
    from delayd.clock import Clock
    from delayd.core.engine import Engine
    from delayd.core.times import RequestMs
    from delayd.core.topic import Topic
    from delayd.log_lines import Log
    from delayd.push.egress import EgressRules
    from delayd.push.sender import PushSender, PushTurns
    from delayd.push.sinks import Sink
    from delayd.push.webhook import UrlCaller


def open_push(
    config: Config, secrets: "Secrets | None", listeners: Listeners
) -> "tuple[Config, Push]":
    """Return the deliveries, and the configuration with vetted targets.

    Raises `ConfigErrors` with each sink and target that cannot be used.
    """
    named: Mapping[str, Sink] = {}
    if config.sinks:
        from delayd.push.sinks import open_sinks  # noqa: PLC0415 - see above

        named = open_sinks(config)
    addresses = (listener.address for listener in (*listeners.line, *listeners.http))
    own = [address for address in addresses if isinstance(address, TcpAddress)]
    push = Push(config, secrets, own, named)
    errors = [*push.vet_schedules()]
    if push.has_targets and config.topics is not None:
        patterns, wrong = push.vet_patterns(config.topics)
        errors += wrong
        config = config._replace(topics=patterns)
    if errors:
        raise ConfigErrors(Wrong(error, "") for error in errors)
    return config, push


def _sink_rules(config: Config) -> "dict[str, TopicRule]":
    """Return the topics that may use each sink of the configuration."""
    if not config.sinks:
        return {}
    from delayd.access.topic_rule import TopicRule  # noqa: PLC0415 - see above

    return {name: TopicRule(section.topics) for name, section in config.sinks.items()}


def import_sender() -> None:
    """Import the modules of `Push.sender`: 0.1 s, for which no client should wait."""
    from delayd.push import scheduler, sender, topic_sink, webhook  # noqa: F401, PLC0415


class DeliveryLoop(Protocol):
    """The event loop before asyncio takes over, as far as deliveries need it."""

    def call_soon_threadsafe(self, callback: "Callable[[], object]") -> None:
        """Call something in the loop; for other threads."""

    def stop(self) -> None:
        """End: asyncio takes over."""


@final
class Push:
    """Vets targets, and makes the sender.

    A url is returned in the form in which it is kept and called. The rules may change while targets
    stay: each call checks again, for the job's topic at that time.

    >>> push = Push(Config(push_hosts=("hooks.example",)), None, (), {})
    >>> push.vet(Target(url="https://Hooks.example:443/a?b")).url
    'https://hooks.example/a?b'
    >>> push.vet(Target(sink="order"))
    Traceback (most recent call last):
    delayd.core.errors.TargetRefused: sink 'order': there is none of that name
    """

    def __init__(
        self,
        config: Config,
        secrets: "Secrets | None",
        own: "Sequence[TcpAddress]",
        sinks: "Mapping[str, Sink]",
    ) -> None:
        """`sinks` are those of the configuration; no url may lead to the daemon's `own` ports."""
        self._config = config
        self._secrets = secrets
        self._own = own
        self._sinks = sinks
        self._sink_rules = _sink_rules(config)
        self._egress: EgressRules | None = None

    @property
    def has_targets(self) -> bool:
        """Tell whether the configuration names places to deliver to."""
        policies = {} if self._config.topics is None else self._config.topics.by_pattern
        return bool(self._sinks) or any(policy.push for policy in policies.values())

    @property
    def egress(self) -> "EgressRules":
        """The rules of urls and addresses."""
        if self._egress is None:
            from delayd.push.egress import EgressRules  # noqa: PLC0415 - see above

            config = self._config
            self._egress = EgressRules(
                hosts=config.push_hosts,
                private_networks=config.push_private_networks,
                allow_http=config.push_allow_http,
                ports=config.push_ports,
                own=self._own,
            )
        return self._egress

    def vet(self, target: Target) -> Target:
        """Return the target in the form that is kept. Raises `TargetRefused`."""
        unknown = target.secrets if self._secrets is None else self._secrets.unknown(target.secrets)
        if unknown:
            rule = "must be in the file of push.secrets"
            raise TargetRefused(f"secret {unknown[0]!r}", rule, field="secrets")
        if target.sink and target.sink not in self._sinks:
            hint = did_you_mean(target.sink, self._sinks)
            raise TargetRefused(f"sink {target.sink!r}:", f"there is none of that name{hint}")
        if not target.url:
            return target
        if rule := ambiguous_headers(target.headers):
            raise TargetRefused("headers:", rule, field="headers")
        try:
            return target._replace(url=self.egress.vet_url(target.url))
        except ValueError as error:
            raise TargetRefused(f"url {shown_url(target.url)!r}:", str(error)) from None

    def vet_use(self, target: Target, topic: str) -> None:
        """Raise `NotForTopic` if jobs of the topic may not use the target's secrets or sink."""
        if target.sink in self._sink_rules:
            self._sink_rules[target.sink].require(f"sink {target.sink!r}", topic, "sink")
        if target.url and self._secrets is not None:
            self._secrets.to_sign_with(topic, target.secrets, self._config.push_sign_with)

    def vet_patterns(self, patterns: Patterns) -> tuple[Patterns, list[str]]:
        """Return the policies of a configuration with vetted targets, and all mistakes."""
        by_pattern, errors = dict(patterns.by_pattern), []
        for pattern, policy in patterns.by_pattern.items():
            if policy.push is not None:
                try:
                    target = self.vet(policy.push)
                    # As if the pattern were a name; the real topic is checked at each call.
                    self.vet_use(target, pattern)
                    by_pattern[pattern] = policy._replace(push=target)
                except TargetRefused as refusal:
                    errors.append(f'topics."{pattern}".push: {refusal}')
        return Patterns(by_pattern), errors

    def vet_schedules(self) -> "Iterator[str]":
        """Yield what is wrong with the targets of the configuration's schedules.

        They are vetted again, and kept, when the schedules are set.
        """
        for name, (definition, _) in (self._config.schedules or {}).items():
            if definition.target is not None:
                try:
                    self.vet_use(self.vet(definition.target), definition.topic)
                except TargetRefused as refusal:
                    yield f"schedules.{name}: {refusal}"

    def sender(
        self,
        engine: "Engine",
        turns: "PushTurns",
        clock: "Clock",
        log: "Log",
        identity: bytes,
        *,
        caller: "UrlCaller | None" = None,
        at_ms: "Callable[[], int]" = lambda: monotonic_ns() // NS_PER_MS,
    ) -> "PushSender":
        """Make the sender, in the loop of asyncio that is running.

        `identity` distinguishes this daemon's jobs from those of all others. A daemon in memory has
        a `caller` of urls of its own, and `at_ms` for the time that its loop counts.
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
            self.egress,
            secrets=self._secrets,
            sign_with=config.push_sign_with,
            connect_timeout_ms=config.push_connect_timeout_ms,
            caller=caller,
        )
        topics = TopicSink(engine, scheduler.session, clock.request_ms)
        sinks = SinkTable(webhook, topics, self._sinks, self._sink_rules)
        log_id = identity[:LOG_ID_BYTES].hex()
        return PushSender(scheduler, turns, clock, sinks, log, log_id, at_ms=at_ms)


@final
class Deliveries:
    """Deliveries of one daemon; the sender is made when the first job is to be delivered."""

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
        self._loop = loop
        self._sender_of: Callable[[PushTurns], PushSender] = lambda turns: push.sender(
            engine, turns, clock, log, identity
        )
        self._importer: threading.Thread | None = None
        self._is_asked = self._is_stopping = False
        self.sender: PushSender | None = None
        """None: no job was to be delivered so far."""
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
        """Tell whether calls go on although they were cancelled."""
        return self.sender is not None and self.sender.has_strays

    def open(self, turns: "PushTurns") -> None:
        """Deliver due jobs, in the loop of asyncio that is running."""
        self.sender = self._sender_of(turns)

    def on_push(self, now_ms: "RequestMs") -> None:
        """Deliver jobs that have become ready; in a turn, or between two."""
        if self.sender is not None:
            self.sender.on_push(now_ms)
        elif not self._is_asked:
            self._is_asked = True
            self._prepare()

    def _prepare(self) -> None:
        """Have asyncio take over, because a job is to be delivered; it stays ready until then.

        The modules of asyncio and the sender are imported in a thread; if there can be no thread,
        clients wait for the imports.
        """
        import threading  # noqa: PLC0415 - without a journal there is no thread before

        def work() -> None:
            # The loop handles signals, and this thread may outlive the handlers for a moment.
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
        """Begin no more calls; return a coroutine that ends those under way."""
        self._is_stopping = True
        if self.sender is None:
            return []
        return [self.sender.stop(self._config.push_stop_grace_ms)]

    def abort(self) -> None:
        """End all calls at once, without recording their ends."""
        if self.sender is not None:
            self.sender.abort()

    def close(self) -> None:
        """Wait for the thread: it would wake a loop that is closed."""
        if self._importer is not None:
            self._importer.join()
