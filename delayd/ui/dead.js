// Dead letters: buried jobs by topic and reason, and how they are redriven.

import { get, may, post, queryOf, topicPath } from "./api.js";
import { ask, card, fill, h, toast, View } from "./dom.js";
import { fromNow, time, whole } from "./format.js";
import { allTopics, attempt } from "./topics.js";

const READ_MAX = 1000;
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
    const page = await attempt(() => get(topicPath(name, "/jobs"), { state: "buried", limit: READ_MAX }));
    if (page) fill(place, groupsOf(name, buried, page, again));
  }
  details.open = isOpen;
  if (isOpen) read();
  return details;
}

function groupsOf(topic, buried, page, again) {
  const groups = new Map();
  for (const job of page.jobs) {
    const error = job.failure?.error?.split("\n")[0] ?? "";
    const reason = `${job.failure?.reason ?? "buried by its worker"}${error ? `: ${error}` : ""}`;
    if (!groups.has(reason)) groups.set(reason, []);
    groups.get(reason).push(job);
  }
  const sorted = [...groups].sort(([, one], [, other]) => other.length - one.length);
  return [
    h(
      "div",
      { class: "row" },
      may("kick", topic) && redriveAll(topic, buried, again),
      h("a", { class: "button", href: `#/topics/${encodeURIComponent(topic)}` }, "The topic"),
      h("a", { class: "button", href: `#/jobs?${queryOf({ topic, state: "buried" })}` }, "As a list"),
    ),
    page.after && h("p", { class: "quiet" }, `Only the first ${whole(page.jobs.length)} are grouped, in due order.`),
    sorted.map(([reason, jobs]) => group(topic, reason, jobs, again)),
  ];
}

// Redrives all dead letters of a topic, at a limited rate if one is entered.
function redriveAll(topic, buried, again) {
  const pace = h("input", { type: "text", inputmode: "numeric", size: "4", placeholder: "any", "aria-label": "Jobs a second at most" });
  const go = async () => {
    const perSecond = Number(pace.value) || undefined;
    const body = h("p", {}, `${whole(buried)} jobs are made ready${perSecond ? `, ${whole(perSecond)} a second` : ""}. Their ladders start again.`);
    if (!(await ask({ title: `Redrive all dead letters of ${topic}?`, body, action: "Redrive all" }))) return;
    toast(`Redriving ${topic} …`);
    const answer = await attempt(() => post(topicPath(topic, "/kick"), perSecond ? { per_second: perSecond } : {}));
    if (answer) toast(`${whole(answer.kicked)} jobs are ready again`);
    await again();
  };
  return [h("button", { type: "button", onclick: go }, "Redrive all …"), h("span", { class: "row quiet" }, "at most", pace, "a second")];
}

function group(topic, reason, jobs, again) {
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

  const rows = jobs.slice(0, SHOWN_MAX).map((job) => {
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
  return h(
    "section",
    { class: "group" },
    h("h3", {}, reason, " ", h("span", { class: "pill" }, whole(jobs.length))),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": reason },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, may("kick", topic) && h("th", { scope: "col", class: "choose" }, all), ["Job", "Key", "Attempts", "Failed"].map((title) => h("th", { scope: "col", class: title === "Attempts" ? "number" : "" }, title)))),
        h("tbody", {}, rows),
      ),
    ),
    jobs.length > SHOWN_MAX && h("p", { class: "quiet" }, h("a", { href: `#/jobs?${queryOf({ topic, state: "buried" })}` }, `All ${whole(jobs.length)}`)),
    may("kick", topic) && h("div", { class: "row" }, button),
  );
}
