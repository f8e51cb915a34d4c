// The calendar: how many jobs come due in each part of a period, which can be zoomed.

import { get, queryOf } from "./api.js";
import { barChart } from "./charts.js";
import { card, fill, h, View } from "./dom.js";
import { duration, moment, short, time, whole } from "./format.js";

const SPANS = [["minute", 60], ["hour", 3600], ["day", 86400], ["week", 7 * 86400], ["30 days", 30 * 86400], ["year", 366 * 86400], ["10 years", 3653 * 86400]];
const BINS = 60;
const SHORTEST_S = 0.06;

export function calendarView(query) {
  const view = new View();
  const topic = query.get("topic") ?? "";
  const from = query.get("from");
  const span = Math.max(SHORTEST_S, Number(query.get("span")) || 86400);
  const place = h("div", { class: "chart tall" });
  const note = h("p", { class: "quiet", role: "status" });
  const table = h("div");
  const to = (values) => {
    location.hash = `#/calendar?${queryOf({ topic, from, span, ...values })}`;
  };
  const name = h("input", { type: "search", value: topic, placeholder: "All topics", "aria-label": "Topic", onchange: () => to({ topic: name.value }) });
  let start = 0;
  let width = span / BINS;

  const spans = SPANS.map(([title, seconds]) =>
    h("button", { type: "button", "aria-pressed": String(!from && span === seconds), onclick: () => to({ from: undefined, span: seconds }) }, title),
  );
  const move = (share) => () => to({ from: iso(start + share * span), span });
  const zoom = (factor) => () => to({ from: from ? iso(start + (span * (1 - factor)) / 2) : undefined, span: span * factor });
  const jobsOf = (index) => {
    if (topic) location.hash = `#/jobs?${queryOf({ topic, state: "delayed", from: iso(start + index * width), to: iso(start + (index + 1) * width) })}`;
    else to({ from: iso(start + index * width), span: width });
  };
  const draw = barChart(view, place, {
    valueText: short,
    onSelect: (first, last) => to({ from: iso(first), span: Math.max(SHORTEST_S, last - first) }),
    onPick: jobsOf,
  });

  view.element = h(
    "div",
    { class: "stack" },
    h("h1", {}, "What comes due"),
    h(
      "div",
      { class: "row" },
      name,
      h("div", { class: "choice", role: "group", "aria-label": "How far ahead" }, spans),
      h("div", { class: "choice", role: "group", "aria-label": "Move and zoom" },
        h("button", { type: "button", onclick: move(-0.5), "aria-label": "Earlier" }, "←"),
        h("button", { type: "button", onclick: zoom(0.25), "aria-label": "Closer" }, "+"),
        h("button", { type: "button", onclick: zoom(4), "aria-label": "Wider" }, "−"),
        h("button", { type: "button", onclick: move(0.5), "aria-label": "Later" }, "→")),
    ),
    card("", note, place, h("p", { class: "quiet" }, topic ? "Drag to look closer; a bar leads to its jobs." : "Drag, or choose a bar, to look closer. With a topic a bar leads to its jobs.")),
    table,
  );

  async function read() {
    const found = new Map();
    let after;
    let answer;
    try {
      do {
        answer = await get("/v1/calendar", { topic: topic || undefined, from: from || undefined, horizon: span, bins: BINS, after });
        for (const each of answer.topics) found.set(each.name, each.counts);
        after = answer.after;
      } while (after && !view.isOver);
    } catch (error) {
      fill(note, error.status === 404 ? `There is no topic ${topic} now.` : error.message);
      return;
    }
    if (view.isOver) return;
    start = Date.parse(answer.from) / 1000;
    width = answer.bin;
    const sums = Array.from({ length: BINS }, (_none, at) => [...found.values()].reduce((sum, counts) => sum + counts[at], 0));
    draw([sums.map((_sum, at) => start + at * width), sums], width);
    const total = sums.reduce((sum, count) => sum + count, 0);
    fill(
      note,
      `${whole(total)} ${total === 1 ? "job comes" : "jobs come"} due from ${time(answer.from)} on, within ${duration(width * BINS)}; a bar is ${duration(width)}.`,
    );
    fill(table, total > 0 && asTable(sums, found));
  }

  // The same figures as a table, for readers who cannot see the bars.
  function asTable(sums, found) {
    const rows = sums.map((sum, at) => {
      if (!sum) return null;
      const begins = start + at * width;
      const most = [...found].filter(([, counts]) => counts[at]).sort(([, one], [, other]) => other[at] - one[at]).slice(0, 3);
      const link = h("a", { href: "#/calendar", onclick: (event) => { event.preventDefault(); jobsOf(at); } }, span > 600 ? time(begins * 1000) : moment(begins, span));
      return h("tr", {}, h("th", { scope: "row" }, link), h("td", { class: "number" }, whole(sum)), h("td", {}, most.map(([each, counts]) => `${each} ${whole(counts[at])}`).join(", ")));
    });
    return h(
      "details",
      { class: "card" },
      h("summary", {}, h("h2", {}, "As a table")),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What comes due" },
        h("table", {}, h("thead", {}, h("tr", {}, ["From", "Jobs", "Most of them"].map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows))),
    );
  }

  if (from) read();
  else view.every(span <= 3600 ? 2000 : 15000, read);
  return view;
}

const iso = (seconds) => new Date(Math.round(seconds * 1000)).toISOString();
