"""Topics: lists, figures, policies, groups; pause, resume, kick, clear.

A list is read in slices, between the turns of other clients, and has only the topics that the token
allows. Long operations (a clear, a kick of a million) are background tasks of the core.
"""

import re
from collections.abc import Callable
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from delayd.access.authorize import to_set_policy
from delayd.access.principal import EVERYBODY
from delayd.core.errors import TopicNotFound
from delayd.core.job_record import State
from delayd.core.operations.checks import topic_named
from delayd.core.operations.topics import Clear, SetPolicy, policy_of
from delayd.core.operations.topics import pause as pause_topic
from delayd.core.operations.topics import pause_group as pause_group_of
from delayd.core.policy import NO_POLICY, Policy
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.groups import GroupList, GroupOrder, GroupRow, group_named
from delayd.core.scans.scan import Wanted
from delayd.core.targets import masked
from delayd.core.topic import Source, Topic
from delayd.http import answer_forms
from delayd.http.api import Api, Call
from delayd.http.handlers.figures import topic_answer, topic_counts
from delayd.http.problems import FieldError, RequestInvalid
from delayd.http.responses import Reply, refused, reply
from delayd.http.values import ANY_TAG, ONE_TAG, UNSET
from delayd.limits import HTTP_TOPICS_STEP, HTTP_TOPICS_STEP_US
from delayd.moments import moment_text

IF_MATCH: Final = "If-Match"
ONE_TAG_RULE: Final = 'is not one tag in quotes, such as "44136fa355b3678a", or *'

if TYPE_CHECKING:
    from delayd.http.request_forms import KickForm, ListGroupsForm, ListTopicsForm


# --- Lists and figures ---------------------------------------------------------------------------


async def page_of_names(
    call: Call, after: str, limit: int, is_wanted: Callable[[Topic], bool]
) -> tuple[list[str], str | None]:
    """Return the next names after that one, of topics that the token allows; `after` of the next.

    They are read in slices: a topic that is created or removed meanwhile may be among them or not.
    """
    count = limit + 1
    topics = call.api.engine.store.topics.by_name
    principal, scope = call.principal, call.scope
    assert scope is not None
    call.allow_some()
    sees_all = principal is EVERYBODY
    found: list[str] = []
    names = list(topics)
    step = max(1, min(HTTP_TOPICS_STEP, HTTP_TOPICS_STEP_US // (1 + principal.cost_us)))
    async with call.api.slices() as slices:
        for start in range(0, len(names), step):
            await slices.rest_if_over()
            for name in names[start : start + step]:
                if name > after and (sees_all or principal.may(scope, name)):
                    topic = topics.get(name)
                    if topic is not None and is_wanted(topic):
                        found.append(name)
            if len(found) > 2 * count:
                found = nsmallest(count, found)
        found = nsmallest(count, found)
    return found[:limit], found[limit - 1] if len(found) > limit else None


async def list_topics(call: Call) -> Reply:
    """Answer one page of topics, sorted by name, without those of the daemon's own jobs."""
    api = call.api
    query: ListTopicsForm = call.query
    first_after = query.after if isinstance(query.after, str) else ""
    names, after = await page_of_names(
        call, first_after, query.limit, lambda topic: not topic.is_internal
    )
    shown = []
    async with api.slices(len(names)) as slices:
        for name in names:
            await slices.rest_if_over()
            topic = api.engine.store.topics.by_name.get(name)
            if topic is not None:
                shown.append(counts_of(api, topic))
    return await call.answered(answer_forms.TopicPageAnswer(topics=shown, after=after), len(shown))


def counts_of(api: Api, topic: Topic) -> answer_forms.TopicCountsAnswer:
    """Return a topic's jobs by state, its pause, and how it is doing."""
    until = _moment(api, topic.paused_until_ms)
    return topic_counts(api.engine, topic, api.now_ms(), until)


def _moment(api: Api, time_ms: int | None) -> str | None:
    return None if time_ms is None else moment_text(api.wall_ms(time_ms))


async def get_topic(call: Call) -> Reply:
    """Answer everything about a topic."""
    api, name = call.api, call.topic
    topic = api.engine.store.topics.by_name.get(name)
    if topic is None:
        raise TopicNotFound(name)
    policy = policy_answer(call, name, topic.policy, topic.policy_source)
    push_blocks = api.reports.push_blocks(topic)
    answer = topic_answer(topic, counts_of(api, topic), policy, push_blocks)
    return await call.answered(answer)


# --- Policies ------------------------------------------------------------------------------------


def policy_answer(
    call: Call, name: str, policy: Policy | None, source: Source
) -> answer_forms.PolicyOfTopicAnswer:
    """Return a topic's policy, without secrets if the client may not see them, and its source."""
    policy = policy or NO_POLICY
    if policy.push is not None and not call.is_admin(name):
        policy = policy._replace(push=masked(policy.push))
    text = policy.to_json().encode()
    return answer_forms.PolicyOfTopicAnswer(
        policy=answer_forms.as_written(text), policy_tag=policy.tag, source=source.name.lower()
    )


async def get_policy(call: Call) -> Reply:
    """Answer the topic's policy; of a topic that does not exist, the one that it would have."""
    answer = _policy_reply(call, call.topic)
    answer.waits_for_log = True
    return answer


async def set_policy(call: Call) -> Reply:
    """Set the topic's policy from now on."""
    name = call.topic
    policy = Policy.from_json(call.data)
    call.allow_all(*to_set_policy(name, policy))
    return await _set_policy(call, name, policy)


async def drop_policy(call: Call) -> Reply:
    """Remove the topic's own policy."""
    return await _set_policy(call, call.topic, None)


async def _set_policy(call: Call, name: str, policy: Policy | None) -> Reply:
    work = SetPolicy(call.api.engine, name, policy, _tag_to_match(call))
    await call.api.carry_out(work)
    return _policy_reply(call, name)


def _tag_to_match(call: Call) -> str:
    """Return the tag that the policy in force must have; empty: any will do."""
    text = call.request.headers.get(IF_MATCH, ANY_TAG).strip()
    if text == ANY_TAG:
        return ""
    if (match := re.fullmatch(ONE_TAG, text)) is None:
        raise RequestInvalid([FieldError(IF_MATCH, f"{text!r} {ONE_TAG_RULE}")])
    return match[1]


def _policy_reply(call: Call, name: str) -> Reply:
    answer = policy_answer(call, name, *policy_of(call.api.engine, name))
    return reply(200, answer, {"ETag": f'"{answer.policy_tag}"'})


# --- Operations ----------------------------------------------------------------------------------


async def pause(call: Call) -> Reply:
    """Hand out nothing of the topic for a while; to resume it, hand out its jobs again."""
    api, name = call.api, call.topic
    pause_topic(api.engine, name, _pause_ms(call), api.now_ms())
    return await _paused(call, api.engine.store.topics.by_name[name].paused_until_ms)


def _pause_ms(call: Call) -> int:
    """Return how long the pause is; 0, which ends it, of a call that resumes."""
    duration_ms: int = getattr(call.form, "duration", 0)
    return duration_ms


async def _paused(call: Call, until_ms: int | None) -> Reply:
    return await call.answered(answer_forms.PausedAnswer(paused_until=_moment(call.api, until_ms)))


# --- Groups --------------------------------------------------------------------------------------


async def list_groups(call: Call) -> Reply:
    """Answer groups of a topic, those first that the query asks for."""
    api, name = call.api, call.topic
    query: ListGroupsForm = call.query
    after = query.after.decode() if isinstance(query.after, bytes) else ""
    work = GroupList(api.engine, name, GroupOrder(query.order), query.limit, after)
    await api.carry_out(work)
    now_ms, shown = api.now_ms(), []
    async with api.slices(len(work.rows)) as slices:
        for row in work.rows:
            await slices.rest_if_over()
            shown.append(_group_answer(api, row, now_ms))
        return reply(
            200, answer_forms.GroupPageAnswer(groups=shown, count=work.count, after=work.after)
        )


def _group_answer(api: Api, row: GroupRow, now_ms: int) -> answer_forms.GroupAnswer:
    since_ms = row.ready_since_ms
    return answer_forms.GroupAnswer(
        name=row.name,
        jobs=row.jobs,
        ready=row.ready,
        reserved=row.reserved,
        retrying=row.retrying,
        weight=row.weight,
        ready_age=None if since_ms is None else max(0, now_ms - since_ms) / 1_000,
        paused_until=_moment(api, row.paused_until_ms),
        blocked=UNSET if row.block is None else row.block.value,
    )


async def get_group(call: Call) -> Reply:
    """Answer how a group is doing."""
    api, topic = call.api, topic_named(call.api.engine, call.topic)
    return await call.answered(_group_answer(api, group_named(topic, call.group), api.now_ms()))


async def pause_group(call: Call) -> Reply:
    """Hand out nothing of the group for a while; to resume it, hand out its jobs again."""
    api, name, group = call.api, call.topic, call.group
    pause_group_of(api.engine, name, group, _pause_ms(call), api.now_ms())
    topic = api.engine.store.topics.by_name[name]
    return await _paused(call, group_named(topic, group).paused_until_ms)


# --- All jobs ------------------------------------------------------------------------------------


async def kick(call: Call) -> Reply:
    """Make buried jobs ready, the longest buried first; at once, or at a rate."""
    form: KickForm = call.form
    api, name = call.api, call.topic
    action = Action.kick(0 if form.per_second is UNSET else form.per_second)
    reason = form.reason if isinstance(form.reason, str) else ""
    group = form.group if isinstance(form.group, bytes) else b""
    wanted = Wanted(frozenset({State.BURIED}), reason=reason, group=group)
    bulk = Bulk(api.engine, name, wanted, action, limit=form.max)
    return await carry_out_bulk(call, bulk, "kicked")


async def carry_out_bulk(call: Call, bulk: Bulk, done: str) -> Reply:
    """Answer how many jobs were changed, also if a refusal has ended the operation early."""
    await call.carry_out(bulk)
    if bulk.refusal is not None:
        return refused(bulk.refusal, **{done: bulk.done})
    return reply(200, answer_forms.ManyAnswer(**{done: bulk.done}))


async def clear(call: Call) -> Reply:
    """Delete all jobs of the topic that are not reserved."""
    api = call.api
    work = Clear(api.engine, call.topic)
    await api.carry_out(work)
    return reply(200, answer_forms.ManyAnswer(cleared=work.count))
