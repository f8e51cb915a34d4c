"""What an operation needs to be allowed, and whether a principal may do it: for both wires.

A right is a scope for a topic. The tables of commands and of routes say which scope a row takes,
and these functions what an operation takes besides. A client that may not look at a job must not
learn that it exists.

>>> worker = Principal("worker", "0a1b2c3d", frozenset({Scope.PUT}), ("mail",))
>>> denial_of(worker, *to_put("mail"))
>>> denial_of(worker, *to_put("mail", with_target=True))
Denial(lack='the token lacks the scope webhook', is_hidden=False)
>>> denial_of(worker, Right(Scope.DELETE, "mail"), hides=True).is_hidden
True
"""

from typing import NamedTuple

from delayd.access.principal import Principal
from delayd.access.scopes import Scope
from delayd.core.policy import Policy


class Right(NamedTuple):
    """Something that a client may do to a topic."""

    scope: Scope
    topic: str | None
    """None: to all topics."""


class Denial(NamedTuple):
    """Why a client may not do something."""

    lack: str
    """What it lacks, for its owner."""
    is_hidden: bool
    """It is answered as if the job did not exist."""


def denial_of(
    principal: Principal, *rights: Right, or_scopes: tuple[Scope, ...] = (), hides: bool = False
) -> Denial | None:
    """Return what the principal lacks first; None: it may do all of it.

    `or_scopes`: each of them is as good. `hides`: the rights are about one job, and clients without
    the first of them must not learn of it.
    """
    for scope, topic in rights:
        if principal.may(scope, topic) or any(principal.may(each, topic) for each in or_scopes):
            continue
        is_hidden = hides and scope is rights[0].scope and not principal.may(Scope.PEEK, topic)
        return Denial(principal.lack(scope, topic), is_hidden)
    return None


def to_put(topic: str, *, with_target: bool = False) -> list[Right]:
    """Return the rights for putting a job there or changing one, perhaps with its own target."""
    rights = [Right(Scope.PUT, topic)]
    if with_target:
        rights.append(Right(Scope.WEBHOOK, topic))
    return rights


def to_put_instead(topic: str) -> Right:
    """Return the further right for putting a job in the place of one of that topic, which ends."""
    return Right(Scope.DELETE, topic)


def to_schedule(scope: Scope, topic: str, url: str | None) -> list[Right]:
    """Return the rights for looking at a schedule (`peek`), or for making, changing or running it.

    Those are the rights for putting the jobs of its runs.
    """
    if scope is Scope.PEEK:
        return [Right(scope, topic)]
    return to_put(topic, with_target=url is not None)


def taken_by_others(name: str) -> str:
    """Say that a schedule cannot be made, because one that the client may not see has its name."""
    return f"the name {name!r} is that of a schedule which the token may not see"


def to_set_policy(topic: str, policy: Policy | None) -> list[Right]:
    """Return the rights for setting or removing a policy: also where it sends the topic's jobs."""
    rights = [Right(Scope.ADMIN, topic)]
    if policy is None:
        return rights
    others = [policy.exhausted]
    if policy.push is not None:
        rights.append(Right(Scope.WEBHOOK, topic))
        others.append(policy.push.topic)
    return rights + [Right(Scope.ADMIN, other) for other in others if other]
