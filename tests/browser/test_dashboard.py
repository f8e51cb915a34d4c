"""The dashboard as its reader meets it, in Chromium."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.testing.daemon import Daemon
from tests.access.samples import made
from tests.browser.browser import NEEDS_CHROMIUM, Browser
from tests.browser.dashboards import (
    NASTY,
    ask,
    bury,
    dashboard,
    log_in,
    put_many,
    put_nasty,
    put_samples,
    put_schedules,
    put_topics,
    url_of,
)
from tests.rigs.process import token_flags
from tests.servers import free_port

pytestmark = NEEDS_CHROMIUM

AXE: Final = Path(__file__).parents[2] / "build" / "axe.min.js"
OF_COLOURS: Final = ("color-contrast", "link-in-text-block")
VIEWS: Final = ("", "calendar", "calendar?topic=orders&span=7200", "jobs?topic=orders", "job/20")
VIEWS_OF_SCHEDULES: Final = ("schedules", "schedules/nightly-report", "new-schedule?topic=mail")
VIEWS_OF_FAILURES: Final = ("dead", "topics/orders", "jobs?topic=mail&state=buried", "job/1")


def test_an_empty_daemon_has_an_empty_page(browser: Browser, daemon: Daemon) -> None:
    browser.forgive("status of 404")
    browser.open(url_of(daemon), "1 to 1 of 1 topics")
    browser.open(url_of(daemon, "calendar"), "0 jobs come due")
    browser.open(url_of(daemon, "dead"), "there are no dead letters")
    browser.open(url_of(daemon, "jobs?topic=default"), "No job of default matches.")
    browser.open(url_of(daemon, "topics/nothing"), "There is no such topic now")


def find_in_the_first_field(browser: Browser, daemon: Daemon) -> None:
    """Find jobs by an id, a key, or what may be either; there are three jobs."""
    for number, key in (("4", "1"), ("5", "order-18")):
        ask(daemon, "PUT", f"/v1/topics/sms/keys/{key}", {"body": number})
    for text, shown in (
        *(("5", "Job 5"), ("order-18", "Job 5"), ("1", "tbody tr 2")),
        ("99", "No job has the id 99, and none the key 99."),
        ("9" * 30, "No job has the id 9"),
    ):
        browser.open(url_of(daemon, "jobs"))
        browser.enter("[name=id]", text)
        browser.click("button", "Find")
        rows = shown.removeprefix("tbody tr ")
        if rows == shown:
            browser.shows(shown)
        else:
            browser.wait_for(f"document.querySelectorAll('tbody tr').length === {rows}")


def test_one_job_is_found_changed_and_cancelled(browser: Browser, daemon: Daemon) -> None:
    browser.forgive("status of 404", "status of 422")
    ask(daemon, "PUT", "/v1/topics/orders/keys/order-17", {"body": {"n": 1}, "delay": "1h"})
    browser.open(url_of(daemon, "jobs"))
    ask(daemon, "PUT", "/v1/topics/mail/keys/both", {"body": 2})
    ask(daemon, "PUT", "/v1/topics/sms/keys/both", {"body": 3})
    browser.enter("[name=prefix]", "order-")
    browser.click("button", "Find", then="Enter a job id, a key, or a topic")
    browser.enter("[name=key]", "both")
    browser.click("button", "Find")
    browser.wait_for("document.querySelectorAll('tbody tr').length === 2")
    browser.shows("sms")
    browser.open(url_of(daemon, "jobs?id=nobody"), "No job of any topic has the key nobody.")
    find_in_the_first_field(browser, daemon)
    browser.open(url_of(daemon, "jobs"))
    browser.enter("[name=key]", "order-17")
    browser.click("button", "Find", then="Job 1 delayed")
    browser.shows('"n": 1')
    browser.click("button", "Reschedule …")
    browser.enter("#when", "2030-01-01T09:00:00Z")
    browser.click("dialog[open] button.primary", then="It has another time")
    assert ask(daemon, "GET", "/v1/jobs/1")["due"] == "2030-01-01T09:00:00.000Z"
    browser.click("button", "Change …")
    browser.enter("#text", '{"n": 12345678901234567890}')
    browser.click("dialog[open] button.primary", then="It is changed")
    browser.shows("12345678901234567890")
    browser.click("button", "Bury …", then="No attempt is counted")
    browser.enter("#why", "wrong amount")
    browser.click("dialog[open] button.primary", then="Job 1 is buried")
    browser.shows("Job 1 buried")
    browser.shows("wrong amount")
    assert "Bury …" not in browser.text()
    told = ask(daemon, "GET", "/v1/jobs/1")
    assert (told["state"], told["failure"]["error"]) == ("buried", "wrong amount")
    browser.click("button", "Kick: ready now", then="Job 1 ready")
    browser.click("button", "Reschedule …")
    browser.enter("#when", "1h")
    browser.click("dialog[open] button.primary", then="Job 1 delayed")
    browser.click("button", "Cancel …", then="cannot be brought back")
    browser.click("dialog[open] button", "Leave it")
    assert ask(daemon, "GET", "/v1/jobs/1")["state"] == "delayed"
    browser.click("button", "Cancel …")
    browser.click("dialog[open] button.danger", then="There is no such job")


def test_a_job_says_how_many_attempts_it_had_and_a_topic_that_it_is_paused(
    browser: Browser, daemon: Daemon
) -> None:
    ask(daemon, "PUT", "/v1/topics/mail/policy", {"history": 1})
    ask(daemon, "POST", "/v1/topics/mail/jobs", {"body": 1})
    for _ in range(2):
        taken = ask(daemon, "POST", "/v1/topics/mail/reserve", {})["jobs"]
        ask(daemon, "POST", "/v1/jobs/1/nack", {"token": taken[0]["token"]})
    ask(daemon, "POST", "/v1/topics/mail/pause", {"duration": "1h"})
    browser.open(url_of(daemon, "job/1"), "The last 1 of 2 attempts that failed")
    browser.open(url_of(daemon))
    pills = "[...document.querySelectorAll('tbody .pill')].map((each) => each.innerText).join()"
    browser.wait_for(f"{pills} === 'paused'")


def test_a_dead_letter_is_found_and_revived(browser: Browser, daemon: Daemon) -> None:
    put_samples(daemon)
    browser.open(url_of(daemon))
    browser.wait_for("document.querySelector('.figure.warn')?.innerText.includes('19')")
    browser.click("nav a", "Dead letters", then="buried: # no such mailbox")
    browser.click("tbody input[type=checkbox]")
    browser.click("button.primary", "Redrive 1", then="18 buried")
    assert ask(daemon, "GET", "/v1/topics/mail")["buried"] == 18
    browser.click("button", "Redrive these 7 …")
    browser.click("dialog[open] button", "Redrive these", then="11 buried")
    assert "too many connections" not in browser.text()
    assert ask(daemon, "GET", "/v1/topics/mail")["buried"] == 11
    browser.click("button", "Redrive all …")
    browser.click("dialog[open] button", "Redrive all", then="there are no dead letters")
    assert ask(daemon, "GET", "/v1/topics/mail")["buried"] == 0


def test_a_hundred_thousand_jobs_read_as_well_as_one(browser: Browser, tmp_path: Path) -> None:
    with dashboard(tmp_path, "--sync", "never") as daemon:
        put_many(daemon, "orders", 100_000, delay="1h")
        browser.open(url_of(daemon, "calendar?topic=orders"), "100,000 jobs come due")
        browser.click("summary", "As a table")
        browser.click("tbody a")
        browser.wait_for("document.querySelectorAll('tbody tr').length === 50")
        browser.click("button", "Next page", then="First page")
        browser.open(url_of(daemon, "topics/orders"), "100,000")
        browser.click("button", "Clear …", then="100,000 jobs are deleted")
        assert browser.evaluate("document.querySelector('dialog button.danger').disabled")
        browser.enter("#typed", "orders")
        browser.click("dialog[open] button.danger", then="100,000 jobs were deleted")


def test_a_policy_is_a_form_that_names_its_mistakes(browser: Browser, daemon: Daemon) -> None:
    browser.forgive("status of 422")
    put_many(daemon, "mail", 1)
    browser.open(url_of(daemon, "topics/mail"), "from 0 to 100", "An empty field is not set.")
    browser.shows("such as 15s 3m 10m")
    examples = "[...document.querySelectorAll('.setting input')].map((each) => each.placeholder)"
    assert {*browser.evaluate(examples)} == {"not set"}, "no example looks like a value"
    browser.enter("#policy-jitter_percent", "200")
    browser.enter("#policy-retry", "15s 3m")
    browser.click("button", "Save")
    browser.wait_for("document.querySelector('#policy-jitter_percent[aria-invalid=true]')")
    browser.enter("#policy-jitter_percent", "20")
    browser.click("button", "Save", then="The policy of mail is set")
    policy = ask(daemon, "GET", "/v1/topics/mail/policy")["policy"]
    assert policy == {"jitter_percent": 20, "retry": ["15s", "3m"]}
    browser.enter("[aria-label='How long']", "3h")
    put_many(daemon, "mail", 1)
    browser.wait_for("document.querySelector('a.figure[href*=ready] .value').innerText === '2'")
    assert browser.evaluate("document.activeElement.value") == "3h", "what is typed stays"
    browser.click("button", "Pause for", then="Paused until")
    browser.shows("(in 2h 59m)")
    browser.click("button", "Resume")
    browser.wait_for("!document.body.innerText.includes('Paused until')")


def test_the_groups_of_a_topic_are_shown_and_one_is_paused(
    browser: Browser, daemon: Daemon
) -> None:
    groups = "[...document.querySelectorAll('[aria-label=\"Groups of hooks\"] tbody th')]"
    names = f"{groups}.map((each) => each.innerText).join()"
    browser.forgive("status of 422")
    for count, name in ((1, NASTY), (2, "acme"), (3, "zeta/eu")):
        put_many(daemon, "hooks", count, group=name)
    browser.open(url_of(daemon, "topics/hooks"))
    browser.wait_for(f"{names} === {json.dumps(f'zeta/eu,acme,{NASTY}')}")
    browser.shows("3 of 3 groups")
    browser.enter("[aria-label='How long a group is paused']", "3h")
    browser.click("tbody button", "Pause", then="paused, ends in 2h 59m")
    told = ask(daemon, "GET", "/v1/topics/hooks/groups/zeta%2Feu")
    assert (told["blocked"], told["ready"]) == ("paused", 3)
    browser.click("tbody button", "Resume")
    browser.wait_for("!document.body.innerText.includes('paused, ends')")
    browser.enter("#policy-group_weights", '{"acme": 0}')
    browser.enter("#policy-fair", "true")
    browser.click("button", "Save")
    browser.wait_for("document.querySelector('#policy-group_weights[aria-invalid=true]')")
    browser.enter("#policy-group_weights", '{"acme": 5}')
    browser.click("button", "Save", then="The policy of hooks is set")
    policy = ask(daemon, "GET", "/v1/topics/hooks/policy")["policy"]
    assert policy == {"fair": True, "group_weights": {"acme": 5}}
    browser.click("tbody a", "acme")
    browser.wait_for("document.querySelectorAll('tbody tr').length === 2")


def test_a_policy_that_somebody_else_has_changed_is_not_lost_unsaid(
    browser: Browser, daemon: Daemon
) -> None:
    path = "/v1/topics/mail/policy"
    browser.forgive("status of 412")
    put_many(daemon, "mail", 1)
    browser.open(url_of(daemon, "topics/mail"), "From the configuration.")
    ask(daemon, "PUT", path, {"ttr": "5m", "retry": "1s 2s"})
    browser.enter("#policy-delay", "7s")
    browser.click("button", "Save", then="Changed by somebody else since this page read it:")
    browser.shows("ttr is 5m now, retry is 1s 2s now. Try again")
    assert ask(daemon, "GET", path)["policy"] == {"ttr": "5m", "retry": ["1s", "2s"]}
    browser.click("button", "Save")
    browser.shows("Set at run time; it takes precedence over the configuration.")
    assert ask(daemon, "GET", path)["policy"] == {"delay": "7s"}
    assert browser.evaluate("document.activeElement.innerText") == "Save"
    browser.click("button", "Remove", then="Remove the policy of mail?")
    browser.click("button", "Remove it", then="From the configuration.")
    put_many(daemon, "mail", 1)
    browser.wait_for("document.querySelector('a.figure[href*=ready] .value').innerText === '2'")
    assert browser.evaluate("document.querySelector('#policy-delay').value") == ""
    browser.shows("From the configuration.")


def test_ready_jobs_that_nobody_takes_are_as_loud_as_buried_ones(
    browser: Browser, tmp_path: Path
) -> None:
    first = "document.querySelector('[aria-label=Topics] tbody tr')"
    with dashboard(tmp_path, "--clock", "virtual") as daemon:
        put_many(daemon, "calm", 3, delay="1h")
        put_many(daemon, "mail", 2)
        put_many(daemon, "sms", 1)
        bury(daemon, "sms", "no such number")
        browser.open(url_of(daemon))
        browser.wait_for(f"{first}?.innerText.startsWith('sms')")
        ask(daemon, "POST", "/v1/clock/advance", {"by": "65s"})
        browser.wait_for(
            "[...document.querySelectorAll('.figure.warn')].map((each) => each.innerText)"
            ".join().includes('nobody takes: mail')"
        )
        browser.wait_for(f"{first}?.innerText.startsWith('mail')")
        loud = "[...document.querySelectorAll('tr.loud .pill')].map((each) => each.innerText)"
        assert browser.evaluate(loud) == ["untaken", "buried"]
        browser.click("[aria-label=Topics] a", "mail")
        browser.shows("untaken: ready jobs wait, and no worker takes any")


STEPS: Final = """
import(
    performance.getEntriesByType("resource").find(({ name }) => /overview[.]/.test(name)).name
).then(({ stepsOf }) => stepsOf(
    {
        now: "2026-11-21T19:02:27.000Z",
        minutes: [
            { from: "2026-11-21T19:00:30.000Z", put: 60, late_p50: 1, late_p99: 2 },
            { from: "2026-11-21T19:01:00.000Z", put: 60, late_p50: null, late_p99: null },
            { from: "2026-11-21T19:02:00.000Z", put: 9, late_p50: null, late_p99: null },
        ],
    },
    { rates: { put: 1672 }, late: { p50: 0.5, p99: 0.9 } },
    3600,
)).then(({ at, rows }) => [
    at.map((each) => Math.round(each - at[0])),
    rows.map((row) => row && row.put),
])
"""


def test_charts_have_steps_of_a_minute_and_a_time_range_and_times_a_zone(
    browser: Browser, daemon: Daemon
) -> None:
    asked = "performance.getEntriesByType('resource').map((each) => each.name).join()"
    told = ask(daemon, "POST", "/v1/topics/mail/jobs", {"body": 1, "delay": "1h"})
    browser.open(url_of(daemon), "Times in UTC")
    at, puts = browser.evaluate(STEPS)
    assert at == [0, 3_483, 3_513, 3_513, 3_573, 3_573, 3_600], "the time before the start is a gap"
    # The last minute is not over: there it is what the figures say, of the last 60 s.
    assert puts == [None, 2, 2, 1, 1, 1672, 1672]
    browser.wait_for(f"{asked}.includes('history?minutes=60')")
    browser.click("button", "24 hours")
    browser.wait_for(f"{asked}.includes('history?minutes=1440')")
    browser.open(url_of(daemon, f"job/{told['id']}"), told["due"].replace(".000Z", "Z"))


def test_nothing_that_a_job_says_becomes_markup(browser: Browser, daemon: Daemon) -> None:
    put_nasty(daemon)
    for view in ("dead", "jobs?topic=nasty", "job/1"):
        browser.open(url_of(daemon, view), "<img/src=x/onerror=alert(1)>")
    browser.open(url_of(daemon, "job/2"), NASTY)
    browser.open(url_of(daemon, "job/3"), "000010  10 11 12 13")
    assert not browser.evaluate("document.querySelectorAll('main img, main script').length")


def test_a_token_is_asked_for_and_offers_what_it_allows(browser: Browser, tmp_path: Path) -> None:
    scopes = (Scope.PEEK, Scope.STATS, Scope.KICK)
    everything, entry = made(1)
    looking, other = made(2, scopes)
    browser.forgive("status of 401")
    with dashboard(tmp_path, *token_flags(tmp_path, entry, other)) as daemon:
        put = {"body": 1, "delay": "1h"}
        ask(daemon, "POST", "/v1/topics/default/jobs", put, token=everything)
        browser.open(url_of(daemon, "topics/default"))
        log_in(browser, "dlyd_00000009_" + "x" * 43)
        browser.shows("The token is not valid")
        log_in(browser, looking)
        browser.shows("Its calendar")
        text = browser.text()
        assert "Clear …" not in text
        browser.open(url_of(daemon, "job/1"), "Kick: ready now")
        assert "Bury …" not in browser.text(), "the scope bury is missing"
        browser.open(url_of(daemon, "topics/default"), "Its calendar")
        assert "Pause for" not in browser.text()
        browser.click("button", "Log out")
        browser.wait_for("document.querySelector('#login')")
        log_in(browser, everything)
        browser.shows("Clear …")
        token_flags(tmp_path)
        os.kill(daemon.pid, signal.SIGHUP)
        browser.shows("not any more")
        assert everything not in browser.evaluate("JSON.stringify({...sessionStorage})")


def test_a_topic_whose_name_is_made_for_a_pattern_is_shown_at_once(
    browser: Browser, tmp_path: Path
) -> None:
    """Who may put to some topics chooses a name for which a regular expression takes years."""
    topic = "x" + "-" * 198
    secret, entry = made(1, topics=("*-*-*-*-*-*-*-*-*-dead", "x?*-"))
    browser.forgive("status of 401")
    with dashboard(tmp_path, *token_flags(tmp_path, entry)) as daemon:
        ask(daemon, "POST", f"/v1/topics/{topic}/jobs", {"body": 1}, token=secret)
        browser.open(url_of(daemon, f"topics/{topic}"))
        log_in(browser, secret)
        browser.shows("Clear …")


def test_a_daemon_that_goes_and_comes_back_is_noticed(browser: Browser, tmp_path: Path) -> None:
    with free_port() as port:
        where = ("--http", f"127.0.0.1:{port}")
        with dashboard(tmp_path, *where) as daemon:
            put_many(daemon, "mail", 3)
            browser.open(url_of(daemon))
            browser.wait_for("document.querySelector('.figures')?.innerText.includes('3')")
            daemon.kill()
            browser.shows("The daemon does not answer")
        with dashboard(tmp_path, *where):
            browser.wait_for("document.querySelector('#banner').hidden")
            browser.shows("mail")


def test_ten_thousand_topics_are_sorted_filtered_and_paged(
    browser: Browser, tmp_path: Path
) -> None:
    with dashboard(tmp_path, "--sync", "never") as daemon:
        put_topics(daemon, 10_000, buried=120)
        put_many(daemon, "zebra", 5, delay="1d")
        browser.open(url_of(daemon), "1 to 50 of 10,002 topics")
        browser.click("button", "Next", then="51 to 100 of 10,002 topics")
        browser.click("thead button", "Delayed")
        browser.wait_for(
            "document.querySelector('[aria-label=Topics] tbody th').innerText === 'zebra'"
        )
        browser.enter("input[type=search]", "T19")
        browser.shows("1 to 50 of 100 topics")
        browser.enter("input[type=search]", "")
        browser.shows("1 to 50 of 10,002 topics")
        rows = "document.querySelectorAll('[aria-label=Topics] tbody tr').length"
        assert browser.evaluate(rows) == 50
        # So a step of sorting or filtering draws what one screen shows, however many there are.
        assert browser.evaluate("document.querySelectorAll('*').length") < 1_000
        browser.open(url_of(daemon, "dead"), "1 to 50 of 120 topics with dead letters")
        assert browser.evaluate("document.querySelectorAll('details.card').length") == 50
        browser.click("button", "Next")
        browser.click("button", "Next", then="101 to 120 of 120 topics with dead letters")
        browser.open(url_of(daemon, "calendar?span=172800"), "9,885 jobs come due")


@pytest.mark.skipif(not AXE.exists(), reason="axe-core could not be fetched: .ci/axe-core")
def test_nobody_is_shut_out_in_the_light_or_the_dark(browser: Browser, daemon: Daemon) -> None:
    put_samples(daemon)
    put_schedules(daemon)
    for view in (*VIEWS, *VIEWS_OF_SCHEDULES, *VIEWS_OF_FAILURES):
        browser.look(dark=False)
        browser.open(url_of(daemon, view))
        browser.wait_for("document.querySelector('main h1') && document.querySelector('.card')")
        browser.wait_for("!document.body.innerText.includes('Loading …')")
        browser.evaluate(
            "for (const each of document.querySelectorAll('details')) each.open = true"
        )
        # Its policy allows no script from elsewhere; the debugger may all the same.
        browser.evaluate(AXE.read_text() + "; 0")
        # It is the same document in the dark: only what looks at colours looks again.
        for theme, rules in (("light", {}), ("dark", {"runOnly": OF_COLOURS})):
            browser.look(dark=theme == "dark")
            browser.wait_for(f"document.documentElement.dataset.theme === '{theme}'")
            options = json.dumps({"resultTypes": ["violations"], **rules})
            found = browser.evaluate(
                f"axe.run(document, {options}).then((told) =>"
                " told.violations.map((each) => each.id + ': ' + each.nodes[0].html))"
            )
            assert found == [], f"{view}, {theme}: {found}"


def test_a_telephone_is_wide_enough(browser: Browser, daemon: Daemon) -> None:
    browser.look(width=360, height=740)
    ask(daemon, "POST", "/v1/topics/orders/jobs", {"jobs": [{"body": 1}] * 20})
    ask(daemon, "POST", "/v1/topics/mail/jobs", {"body": 1})
    bury(daemon, "mail", "x" * 300)
    put_schedules(daemon)
    for view in (*VIEWS, *VIEWS_OF_SCHEDULES, *VIEWS_OF_FAILURES):
        browser.open(url_of(daemon, view))
        browser.wait_for("document.querySelector('main h1')")
        browser.wait_for("!document.body.innerText.includes('Loading …')")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 360, view


def test_the_keyboard_is_enough(browser: Browser, daemon: Daemon) -> None:
    put_many(daemon, "mail", 2)
    browser.open(url_of(daemon), "1 to 2 of 2 topics")
    reached = set()
    for _ in range(30):
        for kind in ("rawKeyDown", "keyUp"):
            browser.send("Input.dispatchKeyEvent", type=kind, key="Tab", windowsVirtualKeyCode=9)
        reached.add(str(browser.evaluate("document.activeElement.innerText")).strip())
    assert {"Overview", "Calendar", "Schedules", "Jobs", "Dead letters", "mail"} <= reached
    assert any(re.match("Delayed", each) for each in reached)
    browser.act("document.querySelector('[data-name=delayed]')", "it.focus(), it.click()")
    browser.shows("Delayed ↓")
    assert browser.evaluate("document.activeElement.innerText") == "Delayed ↓"
