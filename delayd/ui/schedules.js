// All schedules as a table, those with trouble first, and when the runs of those that are shown are due.

import { get, queryOf, session } from "./api.js";
import { card, fill, h, View } from "./dom.js";
import { duration, fromNow, moment, time, whole } from "./format.js";
import { lastOf, schedulePath, TROUBLES, troubleOf, whenOf, zoned } from "./schedule.js";

const LOUD = new Set(["refused", "dead"]);
const COUNTS = ["runs", "missed", "skipped", "refused", "late"];
const COLUMNS = ["Schedule", "Trouble", "Topic", "When", "Next run", "Last run", ...COUNTS];
const PAGE = 50;
const READ_AT_ONCE = 1000;
const READ_MAX = 5000;
// How far ahead the time line reaches: its title, that in ms, and the step of its labels.
const SPANS = [["24 hours", 86400000, 10800000], ["7 days", 604800000, 86400000]];
const LABELS_END = 0.95;
const LABEL_PX = 50;
// How far marks are apart at least: a mark, and a digit of its count. Half of a count has room beside the first and last.
const EDGE_PX = 18;
const MARK_PX = 8;
const DIGIT_PX = 7;
const RUNS_MAX = 100; // of a schedule, as many as one preview has
const PREVIEWS_AT_ONCE = 8;
const NAMES_MAX = 12;
const CUT_NAMES_MAX = 3;

export function schedulesView(query) {
  const view = new View();
  let wanted = { prefix: query.get("prefix") ?? "", topic: query.get("topic") ?? "" };
  let schedules = [];
  let isAll = true;
  let now = Date.now();
  let first = 0;
  const field = (name, label) => h("input", { type: "search", name, value: wanted[name], placeholder: label, "aria-label": label, onchange: filter });
  const inputs = [field("prefix", "Name begins with"), field("topic", "Topic")];
  const note = h("p", { class: "quiet", role: "status" });
  const place = h("div", {}, h("p", { class: "quiet" }, "Loading …"));
  const pages = h("div", { class: "buttons" });
  const line = timeLine(view);
  view.element = h(
    "div",
    { class: "stack" },
    h("div", { class: "title" }, h("h1", {}, "Schedules"), session.access.scopes.includes("put") && h("a", { class: "button", href: "#/new-schedule" }, "New schedule")),
    h("div", { class: "row" }, inputs, note),
    line.element,
    h("section", { class: "card" }, place, pages),
  );

  // The address is replaced without a new view, which would take the focus out of the field.
  function filter() {
    wanted = Object.fromEntries(inputs.map((each) => [each.name, each.value.trim()]));
    history.replaceState(null, "", `#/schedules?${queryOf(wanted)}`);
    first = 0;
    read();
  }

  async function read() {
    const asked = wanted;
    try {
      const found = await someSchedules(asked, () => view.isOver || asked !== wanted);
      if (view.isOver || asked !== wanted) return;
      now = found.now;
      schedules = found.schedules.map((each) => ({ ...each, trouble: troubleOf(each, now) })).sort(byUrgency);
      isAll = found.isAll;
      show();
    } catch (error) {
      if (error.status) fill(note, error.message);
    }
  }

  function show(from = first) {
    first = Math.max(0, Math.min(from, Math.floor((schedules.length - 1) / PAGE) * PAGE));
    const last = Math.min(first + PAGE, schedules.length);
    const some = schedules.slice(first, last);
    const others = isAll ? "" : `; of the first ${whole(schedules.length)} names: for others, say how the name begins`;
    fill(note, schedules.length ? `${whole(first + 1)} to ${whole(last)} of ${whole(schedules.length)} schedules${others}` : "");
    fill(place, schedules.length ? table(some, now) : h("p", { class: "quiet" }, wanted.prefix || wanted.topic ? "No schedule matches." : "There are no schedules."));
    fill(
      pages,
      first > 0 && h("button", { type: "button", onclick: () => show(first - PAGE) }, "Previous"),
      last < schedules.length && h("button", { type: "button", onclick: () => show(first + PAGE) }, "Next"),
    );
    line.show(some, now);
  }

  view.every(10000, read);
  return view;
}

async function someSchedules(wanted, isOver) {
  const schedules = [];
  let page;
  do {
    page = await get("/v1/schedules", { ...wanted, limit: READ_AT_ONCE, after: page?.after });
    schedules.push(...page.schedules);
  } while (page.after && schedules.length < READ_MAX && !isOver());
  return { schedules, isAll: !page.after, now: Date.parse(page.now) };
}

// Trouble first, then what is due next; what has no more runs is last.
function byUrgency(one, other) {
  const rank = ({ trouble }) => (trouble ? [...TROUBLES.keys()].indexOf(trouble) : TROUBLES.size);
  const due = ({ next }) => (next ? Date.parse(next) : Number.MAX_SAFE_INTEGER);
  return rank(one) - rank(other) || due(one) - due(other) || (one.name < other.name ? -1 : 1);
}

function table(schedules, now) {
  const head = COLUMNS.map((title) => h("th", { scope: "col", class: COUNTS.includes(title) ? "number" : "" }, title[0].toUpperCase() + title.slice(1)));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Schedules" },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, schedules.map((each) => row(each, now)))),
  );
}

function row(schedule, now) {
  const { name, definition, next, note, source, state, trouble } = schedule;
  const word = trouble || (state === "over" ? "over" : "");
  return h(
    "tr",
    { class: LOUD.has(trouble) ? "loud" : undefined },
    h("th", { scope: "row" }, h("a", { href: `#/schedules/${encodeURIComponent(name)}` }, name), source === "configuration" && h("small", { class: "below" }, "of the configuration")),
    h("td", {}, word && h("span", { class: `pill ${word}`, title: TROUBLES.get(word) ?? "it has no more runs" }, word), state === "paused" && h("small", { class: "below" }, trouble === "paused" ? "" : "paused ", note)),
    h("td", {}, h("a", { href: `#/topics/${encodeURIComponent(definition.topic)}` }, definition.topic)),
    h("td", { class: "wide" }, whenOf(definition)),
    h("td", { class: "when" }, next ? [time(next), h("small", { class: "below" }, fromNow(next, now)), zoned(next, definition.timezone)] : "none"),
    h("td", {}, lastOf(schedule)),
    COUNTS.map((count) => h("td", { class: "number" }, whole(schedule[count]))),
  );
}

// --- The time line -------------------------------------------------------------------------------

// The next runs of some schedules; `show` is told them each time that they were read.
function timeLine(view) {
  const line = h("div", { class: "line" });
  const note = h("p", { class: "quiet" });
  const list = h("div");
  const known = new Map(); // by name: of which plan the runs are, and these
  let span = SPANS[0];
  let shown = [];
  let now = 0;
  const spans = SPANS.map((each) => h("button", { type: "button", "aria-pressed": String(each === span), onclick: (event) => choose(event.target, each) }, each[0]));
  const element = card("What runs next", h("div", { class: "choice", role: "group", "aria-label": "How far ahead" }, spans), line, note, list);

  function choose(button, chosen) {
    for (const each of spans) each.setAttribute("aria-pressed", String(each === button));
    span = chosen;
    draw();
  }

  function show(schedules, at) {
    shown = schedules;
    now = at;
    return draw();
  }

  async function draw() {
    const [title, length] = span;
    const asked = [shown, span];
    const due = shown.filter(({ next }) => next && Date.parse(next) < now + length);
    for (let at = 0; at < due.length; at += PREVIEWS_AT_ONCE) {
      await Promise.all(due.slice(at, at + PREVIEWS_AT_ONCE).map(readRuns));
      if (view.isOver || asked[0] !== shown || asked[1] !== span) return;
    }
    const runs = new Map();
    const cut = [];
    for (const { name } of due) {
      const all = known.get(name)?.runs ?? [];
      for (const run of all) if (run >= now && run < now + length) runs.set(run, [...(runs.get(run) ?? []), name]);
      if (all.length === RUNS_MAX && all.at(-1) < now + length) cut.push(name);
    }
    const count = [...runs.values()].reduce((sum, names) => sum + names.length, 0);
    const text = `${whole(count)} ${count === 1 ? "run" : "runs"} within ${title}`;
    const width = Math.max((line.clientWidth || 600) - 2 * EDGE_PX, LABEL_PX);
    const { found, near } = grouped(runs, length / width);
    fill(line, marks(found, now, length), labels(now, span, width));
    line.setAttribute("role", "img");
    line.setAttribute("aria-label", text);
    const whose = cut.length > CUT_NAMES_MAX ? `${whole(cut.length)} of them` : cut.join(", ");
    const more = cut.length > 0 && `; of ${whose} only the next ${RUNS_MAX} are shown`;
    fill(note, text, ` of the schedules below; those within ${duration(near / 1000)} of each other are one mark, with their count`, more, ".");
    const isOpen = list.querySelector("details")?.open;
    fill(list, count > 0 && asTable(runs, now, isOpen));
  }

  // A plan that was read stays true until the schedule has another next run, or was changed.
  async function readRuns({ name, next, changed }) {
    const plan = `${next} ${changed}`;
    if (known.get(name)?.plan === plan) return;
    const read = await get(schedulePath(name, "/preview"), { count: RUNS_MAX }).catch(() => null);
    if (read) known.set(name, { plan, runs: read.runs.map((each) => Date.parse(each)) });
  }

  // Marks are as far apart as the line has room.
  let drawn = 0;
  const sizes = new ResizeObserver(() => {
    if (line.clientWidth !== drawn && shown.length) draw();
    drawn = line.clientWidth;
  });
  sizes.observe(line);
  view.atEnd(() => sizes.disconnect());
  return { element, show };
}

const inOrder = (runs) => [...runs].sort(([one], [other]) => one - other);

const some = (names) => (names.length > NAMES_MAX ? `${names.slice(0, NAMES_MAX).join(", ")} and ${whole(names.length - NAMES_MAX)} more` : names.join(", "));

// Runs that are too near to each other to be seen apart are one mark.
function grouped(runs, msPerPx) {
  let digits = 1;
  for (;;) {
    const near = (MARK_PX + DIGIT_PX * digits) * msPerPx;
    const found = [];
    for (const [at, names] of inOrder(runs)) {
      if (!found.length || at - found.at(-1)[0][0] > near) found.push([]);
      found.at(-1).push(...names.map((name) => [at, name]));
    }
    const needed = whole(Math.max(0, ...found.map(({ length }) => length))).length;
    if (needed <= digits) return { found, near };
    digits = needed;
  }
}

function marks(found, now, length) {
  return found.map((each) => {
    const lines = each.slice(0, NAMES_MAX).map(([at, name]) => `${time(at)} ${name}`);
    if (each.length > NAMES_MAX) lines.push(`and ${whole(each.length - NAMES_MAX)} more`);
    return placed(h("span", { class: "mark", title: lines.join("\n") }, each.length > 1 && h("b", {}, whole(each.length))), (each[0][0] - now) / length);
  });
}

function labels(now, [, length, shortest], width) {
  const found = [];
  let step = shortest;
  while ((step * width) / length < LABEL_PX) step *= 2;
  for (let at = Math.ceil(now / step) * step; at < now + LABELS_END * length; at += step) {
    found.push(placed(h("span", { class: "label" }, moment(at / 1000, length / 1000 > 86400 ? 4 * 86400 : 86400)), (at - now) / length));
  }
  return found;
}

function placed(element, share) {
  element.style.left = `calc(${EDGE_PX}px + (100% - ${2 * EDGE_PX}px) * ${share.toFixed(5)})`;
  return element;
}

// The same runs as a table, for readers who cannot see the marks.
function asTable(runs, now, isOpen) {
  const rows = inOrder(runs).map(([at, names]) => h("tr", {}, h("th", { scope: "row", class: "when" }, time(at)), h("td", { class: "when" }, fromNow(at, now)), h("td", { class: "number" }, whole(names.length)), h("td", {}, some(names))));
  return h(
    "details",
    { open: isOpen },
    h("summary", {}, h("h3", {}, "As a table")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What runs next" },
      h("table", {}, h("thead", {}, h("tr", {}, ["At", "From now", "Runs", "Of"].map((title) => h("th", { scope: "col", class: title === "Runs" ? "number" : "" }, title)))), h("tbody", {}, rows))),
  );
}
