"""What held for a topic and when, as far as clients can know: its policy, and its pauses.

A policy that was asked for may hold from the moment of asking; the one before may hold until the
answer. Where nobody was answered either may hold for ever.

    asked for A, answered, asked for B          A or B
    ...answered                                 B; and A for what happened before
"""

from dataclasses import dataclass
from typing import Final

from tests.faults.states import FOREVER, LAWLESS, ROUNDING_MS, Law, Operation, as_rule

PAUSE_MS_MAX: Final = 1_000
"""Nobody pauses a topic for longer."""


@dataclass(slots=True)
class Span:
    """A law that may have held."""

    law: Law
    number: int
    until_ms: float = FOREVER
    """When it was sure that another one held."""


class Laws:
    """All topics' laws."""

    def __init__(self, *, keeps_all: bool = False) -> None:
        """`keeps_all`: a power cut may bring back any that ever was."""
        self._keeps_all = keeps_all
        self._spans: dict[str, list[Span]] = {}
        self._began: dict[int, int] = {}
        """By operation, how many had ended when it began."""
        self._ended: dict[int, int] = {}
        self._paused: dict[str, dict[int, float]] = {}
        """By topic and operation: until when it may be paused."""

    def of(self, topic: str, since_ms: float) -> tuple[Law, ...]:
        """Return what may have held at some time since then."""
        spans = self._spans.get(topic)
        if spans is None:
            return LAWLESS
        return tuple({span.law: None for span in spans if span.until_ms >= since_ms})

    def reached_from(self, topics: set[str]) -> set[str]:
        """Return these topics, and those that their exhausted jobs may be moved to."""
        targets = {span.law.target for topic in topics for span in self._spans.get(topic, ())} - {
            ""
        }
        return topics | targets if targets else topics

    def paused_until_ms(self, topic: str) -> float:
        """Return until when nobody is given a job of the topic."""
        return max(self._paused.get(topic, {}).values(), default=0)

    def invoke(self, operation: Operation) -> None:
        """Somebody asks for a policy or a pause."""
        topic = operation.topic
        if operation.kind == "pause":
            self._paused.setdefault(topic, {})[operation.number] = FOREVER
            return
        spans = self._spans.setdefault(topic, [Span(Law(), 0)])
        what = operation.what
        rule = as_rule(what.get("retry"))
        law = Law(rule, operation.text("target"), returns=bool(what.get("returns")))
        spans.append(Span(law, operation.number))
        self._began[operation.number] = len(self._ended)

    def ok(self, operation: Operation, at_ms: float) -> None:
        """It holds now."""
        if operation.kind == "pause":
            ends_ms = at_ms + operation.value("pause_ms") + ROUNDING_MS
            self._paused[operation.topic][operation.number] = ends_ms
            return
        if self._keeps_all:
            return
        before = self._began[operation.number]
        for span in self._spans[operation.topic]:
            # Those that were asked for before, and whose end was known when this was asked for.
            if not span.number or self._ended.get(span.number, before) < before:
                span.until_ms = min(span.until_ms, at_ms)
        self._ended[operation.number] = len(self._ended)

    def fail(self, operation: Operation) -> None:
        """It never held."""
        topic, number = operation.topic, operation.number
        if operation.kind == "pause":
            del self._paused[topic][number]
        else:
            self._spans[topic] = [span for span in self._spans[topic] if span.number != number]

    def stop(self, at_ms: float) -> None:
        """The daemon stops: what has not been answered has happened by now, or never will."""
        for spans in self._spans.values():
            for span in spans:
                if span.number and span.number not in self._ended:
                    self._ended[span.number] = len(self._ended)
        for pauses in self._paused.values():
            for number, ends_ms in pauses.items():
                if ends_ms == FOREVER:
                    pauses[number] = at_ms + PAUSE_MS_MAX
