"""What delivers due jobs, as it is configured; imported no sooner than it is needed.

    vet       somebody sets a target: the rules of urls
    sender    the first job is to be delivered: asyncio, ssl and all that makes calls

Deliveries are on unless they are switched off, and most daemons have nothing to deliver. What they
would import for it takes as long as all of the line. Only what the configuration itself names is
opened at the start, so that its mistakes are told there.
"""

from typing import TYPE_CHECKING, final

from delayd.clock import VirtualClock
from delayd.config import Config, ConfigError, ConfigErrors
from delayd.limits import LOG_ID_BYTES
from delayd.net.addresses import Listeners, TcpAddress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from delayd.access.signing_secrets import Secrets
    from delayd.access.topic_rule import TopicRule
    from delayd.clock import Clock
    from delayd.core.engine import Engine
    from delayd.core.targets import Target
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
