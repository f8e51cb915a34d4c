// Dead letters: buried jobs by topic and reason, and how they are redriven.

import { get, may, post, queryOf, topicPath } from "./api.js";
import { ask, card, fill, h, toast, View } from "./dom.js";
import { fromNow, time, whole } from "./format.js";
import { allTopics, attempt } from "./topics.js";

const SHOWN_MAX = 100;
const TOPICS_AT_ONCE = 50;

export function deadView(query) {
  const view = new View();
  const wanted = query.get("topic");
  const place = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Loading …"));
  view.element = h("div", { class: "stack" }, h("h1", {}, "Dead letters"), place);

  // Topics keep their first order: one that moved under the pointer could be clicked in place of another.
  const ranks = new Map();
  const rank = ({ name }) => ranks.get(name) ?? ranks.size;

  async function show() {
    const found = await attempt(() => (wanted ? get(topicPath(wanted)).then((topic) => [topic]) : allTopics(() => view.isOver)));
    if (!found || view.isOver) return;
    const topics = found.filter((topic) => topic.buried > 0).sort((one, other) => rank(one) - rank(other) || other.buried - one.buried);
    for (const { name } of topics) if (!ranks.has(name)) ranks.set(name, ranks.size);
    if (!topics.length) fill(place, card("", h("p", { class: "quiet" }, "No job is buried: there are no dead letters.")));
    else showSome(topics, 0);
  }

  function showSome(topics, first) {
    const last = Math.min(first + TOPICS_AT_ONCE, topics.length);
    const to = (from, title) => h("button", { type: "button", onclick: () => showSome(topics, from) }, title);
    fill(
      place,
      topics.length > TOPICS_AT_ONCE && h("p", { class: "quiet" }, `${whole(first + 1)} to ${whole(last)} of ${whole(topics.length)} topics with dead letters`),
      topics.slice(first, last).map((topic, number) => topicCard(topic, show, first + number < 5)),
      h("div", { class: "buttons" }, first > 0 && to(first - TOPICS_AT_ONCE, "Previous"), last < topics.length && to(last, "Next")),
    );
  }
  show();
  return view;
}

function topicCard({ name, buried }, again, isOpen) {
  const place = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Loading …"));
  const details = h(
    "details",
    { class: "card", ontoggle: () => details.open && !details.isRead && read() },
    h("summary", {}, h("h2", {}, name), h("span", { class: "pill buried" }, `${whole(buried)} buried`)),
    place,
  );
  async function read() {
    details.isRead = true;
    const answer = await attempt(() => get("/v1/dead", { topic: name }));
    if (answer) fill(place, groupsOf(answer.topics[0], again));
  }
  details.open = isOpen;
  if (isOpen) read();
  return details;
}

function groupsOf({ name, jobs, reasons }, again) {
  const others = jobs - reasons.reduce((sum, group) => sum + group.jobs, 0);
  return [
    h(
      "div",
      { class: "row" },
      may("kick", name) && redriveAll(name, { jobs }, again),
      h("a", { class: "button", href: `#/topics/${encodeURIComponent(name)}` }, "The topic"),
      h("a", { class: "button", href: `#/jobs?${queryOf({ topic: name, state: "buried" })}` }, "As a list"),
    ),
    h("p", { class: "quiet" }, "Grouped by why they failed; # stands for what differs from job to job."),
    reasons.map((group, number) => reasonCard(name, group, again, number < 3)),
    others > 0 && h("p", { class: "quiet" }, `${whole(others)} more, of other reasons.`),
  ];
}

// One reason: how many jobs, since when; the first of them are read when it is opened.
function reasonCard(topic, group, again, isOpen) {
  const place = h("div", { class: "stack" });
  const details = h(
    "details",
    { class: "group", ontoggle: () => details.open && !details.isRead && read() },
    h("summary", {}, h("h3", {}, group.reason, " ", h("span", { class: "pill" }, whole(group.jobs)))),
    h(
      "div",
      { class: "row" },
      may("kick", topic) && redriveAll(topic, group, again),
      h("span", { class: "quiet" }, `first failed ${fromNow(group.first)}, last ${fromNow(group.last)}`),
    ),
    place,
  );
  async function read() {
    details.isRead = true;
    const page = await attempt(() => get(topicPath(topic, "/jobs"), { state: "buried", reason: group.id, limit: SHOWN_MAX }));
    if (page) fill(place, jobsOf(topic, group, page, again));
  }
  details.open = isOpen;
  if (isOpen) read();
  return details;
}

// Redrives all dead letters of a topic, or those of one reason, at a limited rate if one is entered.
function redriveAll(topic, { jobs, id, reason }, again) {
  const pace = h("input", { type: "text", inputmode: "numeric", size: "4", placeholder: "any", "aria-label": "Jobs a second at most" });
  const go = async () => {
    const perSecond = Number(pace.value) || undefined;
    const body = h("p", {}, `${whole(jobs)} jobs are made ready${perSecond ? `, ${whole(perSecond)} a second` : ""}. Their ladders start again.`);
    const title = reason ? `Redrive “${reason}” of ${topic}?` : `Redrive all dead letters of ${topic}?`;
    if (!(await ask({ title, body, action: reason ? "Redrive these" : "Redrive all" }))) return;
    toast(`Redriving ${topic} …`);
    const answer = await attempt(() => post(topicPath(topic, "/kick"), { per_second: perSecond, reason: id }));
    if (answer) toast(`${whole(answer.kicked)} jobs are ready again`);
    await again();
  };
  return [h("button", { type: "button", onclick: go }, reason ? `Redrive these ${whole(jobs)} …` : "Redrive all …"), h("span", { class: "row quiet" }, "at most", pace, "a second")];
}

function jobsOf(topic, group, page, again) {
  const chosen = new Set();
  const button = h("button", { type: "button", class: "primary", disabled: true, onclick: redrive }, "Redrive the chosen");
  const boxes = [];

  function choose(job, isChosen) {
    if (isChosen) chosen.add(job.id);
    else chosen.delete(job.id);
    button.disabled = chosen.size === 0;
    fill(button, chosen.size ? `Redrive ${whole(chosen.size)}` : "Redrive the chosen");
  }

  async function redrive() {
    let count = 0;
    for (const id of chosen) count += (await attempt(() => post(`/v1/jobs/${id}/kick`))) ? 1 : 0;
    toast(`${whole(count)} jobs are ready again`);
    await again();
  }

  const rows = page.jobs.map((job) => {
    const box = h("input", { type: "checkbox", "aria-label": `Choose job ${job.id}`, onchange: () => choose(job, box.checked) });
    boxes.push([job, box]);
    return h(
      "tr",
      {},
      may("kick", topic) && h("td", { class: "choose" }, box),
      h("th", { scope: "row" }, h("a", { href: `#/job/${job.id}` }, String(job.id))),
      h("td", {}, job.key && h("code", {}, job.key)),
      h("td", { class: "number" }, whole(job.attempts ?? 0)),
      h("td", { title: job.failure?.at ?? job.due, class: "when" }, time(job.failure?.at ?? job.due), " ", h("span", { class: "quiet" }, fromNow(job.failure?.at ?? job.due))),
      h("td", {}, job.failure?.error?.split("\n")[0]),
    );
  });
  const all = h("input", {
    type: "checkbox",
    "aria-label": "Choose all shown",
    onchange: () => {
      for (const [job, box] of boxes) {
        box.checked = all.checked;
        choose(job, all.checked);
      }
    },
  });
  return [
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": group.reason },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, may("kick", topic) && h("th", { scope: "col", class: "choose" }, all), ["Job", "Key", "Attempts", "Failed", "Error"].map((title) => h("th", { scope: "col", class: title === "Attempts" ? "number" : "" }, title)))),
        h("tbody", {}, rows),
      ),
    ),
    page.after && h("p", { class: "quiet" }, h("a", { href: `#/jobs?${queryOf({ topic, state: "buried", reason: group.id })}` }, `All ${whole(group.jobs)}`)),
    may("kick", topic) && h("div", { class: "row" }, button),
  ];
}
