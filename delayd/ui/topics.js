// All topics as a table, and one topic: its figures, its policy, pause, resume, clear.

import { call, get, may, post, queryOf, topicPath } from "./api.js";
import { ask, card, facts, fill, h, toast, View } from "./dom.js";
import { duration, fromNow, lately, rate, short, time, whole } from "./format.js";

const number = (text) => (topic, column) => h("td", { class: "number" }, text(topic[column]));
const perSecond = (name) => ({ of: (topic) => topic.rates[name], cell: (topic) => h("td", { class: "number" }, rate(topic.rates[name])) });
// What is wrong with a topic, the worst first, and what it means.
const TROUBLES = new Map([
  ["untaken", "ready jobs wait, and no worker takes any"],
  ["buried", "buried jobs wait for a person"],
  ["paused", "it is paused, and hands out nothing until the pause ends"],
  ["behind", "ready jobs have waited for a minute, although some are taken"],
  ["failing", "attempts have failed in the last minute"],
]);
const LOUD = new Set(["untaken", "buried"]);
// By column: its title, the value that it is sorted by, and its cell.
const COLUMNS = new Map([
  ["name", { title: "Topic", cell: nameCell }],
  ["trouble", { title: "Trouble", of: urgency, cell: troubleCell }],
  ["ready", { title: "Ready", cell: countCell }],
  ["oldest_ready_age", { title: "Oldest ready", cell: number((age) => (age === null ? "" : duration(age))) }],
  ["delayed", { title: "Delayed", cell: countCell }],
  ["reserved", { title: "Reserved", cell: countCell }],
  ["buried", { title: "Buried", cell: countCell }],
  ["put", { title: "Put / s", ...perSecond("put") }],
  ["taken", { title: "Handed out / s", ...perSecond("reserved") }],
  ["failed", { title: "Failed / s", ...perSecond("failed") }],
  ["waiting", { title: "Waiting workers", cell: number(whole) }],
]);
const PAGE = 50;
const READ_AT_ONCE = 1000;
const SCHEDULES_READ = 100;

export async function allTopics(isOver = () => false) {
  const topics = [];
  let after;
  do {
    const page = await get("/v1/topics", { limit: READ_AT_ONCE, after });
    topics.push(...page.topics);
    after = page.after;
  } while (after && !isOver());
  return topics;
}

// Calls `onRead` with all topics each time that they were read.
export function topicTable(view, onRead) {
  let topics = [];
  let sort = { column: "trouble", descends: true };
  let first = 0;
  const search = h("input", { type: "search", placeholder: "Filter topics", "aria-label": "Filter topics", oninput: () => show(0) });
  const body = h("tbody");
  const note = h("p", { class: "quiet" });
  const head = h("tr");
  const pages = h("div", { class: "buttons" });

  function show(from = first) {
    const wanted = search.value.toLowerCase();
    const found = topics.filter((topic) => topic.name.toLowerCase().includes(wanted));
    const sign = sort.descends ? -1 : 1;
    const { of = (topic) => topic[sort.column] } = COLUMNS.get(sort.column);
    found.sort((one, other) => {
      const [a, b] = [of(one), of(other)];
      return sign * (a < b ? -1 : a > b ? 1 : 0) || (one.name < other.name ? -1 : 1);
    });
    first = Math.min(from, Math.max(0, Math.floor((found.length - 1) / PAGE) * PAGE));
    fill(head, [...COLUMNS].map(([column, { title }]) => heading(column, title)));
    fill(body, found.slice(first, first + PAGE).map(row));
    const last = Math.min(first + PAGE, found.length);
    const window = lately(topics[0]?.rates.window ?? 60);
    fill(note, found.length ? `${whole(first + 1)} to ${whole(last)} of ${whole(found.length)} topics; rates: ${window}` : "No topic matches.");
    fill(
      pages,
      first > 0 && h("button", { type: "button", onclick: () => show(first - PAGE) }, "Previous"),
      last < found.length && h("button", { type: "button", onclick: () => show(first + PAGE) }, "Next"),
    );
  }

  function heading(column, title) {
    const isSorted = sort.column === column;
    const direction = sort.descends ? "descending" : "ascending";
    const order = () => {
      sort = { column, descends: isSorted ? !sort.descends : column !== "name" };
      show(0);
    };
    return h(
      "th",
      { scope: "col", "aria-sort": isSorted ? direction : "none", class: ["name", "trouble"].includes(column) ? "" : "number" },
      h("button", { type: "button", class: "plain", "data-name": column, onclick: order }, title, isSorted ? (sort.descends ? " ↓" : " ↑") : ""),
    );
  }

  view.every(10000, async () => {
    const read = await allTopics(() => view.isOver).catch(() => null);
    if (read) {
      topics = read;
      onRead(topics);
      show();
    }
  });
  return card(
    "Topics",
    h("div", { class: "row" }, search, note),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Topics" }, h("table", {}, h("thead", {}, head), body)),
    pages,
  );
}

function row(topic) {
  return h("tr", { class: LOUD.has(topic.trouble) ? "loud" : undefined }, [...COLUMNS].map(([column, { cell }]) => cell(topic, column)));
}

function nameCell(topic) {
  const link = h("a", { href: `#/topics/${encodeURIComponent(topic.name)}` }, topic.name);
  return h("th", { scope: "row" }, link, topic.paused_until && topic.trouble !== "paused" && h("span", { class: "pill paused" }, "paused"));
}

function troubleCell({ trouble }) {
  return h("td", {}, trouble && h("span", { class: `pill ${trouble}`, title: TROUBLES.get(trouble) }, trouble));
}

function countCell(topic, state) {
  const text = whole(topic[state]);
  if (!topic[state]) return h("td", { class: "number" }, text);
  return h("td", { class: "number" }, h("a", { href: `#/jobs?topic=${encodeURIComponent(topic.name)}&state=${state}` }, text));
}

// Higher for what is worse; of the same trouble for what is older, or more.
function urgency({ trouble, oldest_ready_age: age, buried }) {
  const rank = [...TROUBLES.keys()].reverse().indexOf(trouble) + 1;
  return rank * 1e13 + (age ?? 0) * 1e3 + Math.min(buried, 1e3);
}

// --- One topic -----------------------------------------------------------------------------------

export function topicView(name) {
  const view = new View();
  const place = h("div", { class: "stack" });
  const actions = h("div");
  view.element = h("div", { class: "stack" }, h("div", { class: "title" }, h("h1", {}, "Topic ", h("code", {}, name)), actions), place);
  let policyCard = null;
  let latest = null;
  let scheduled = null;
  const groups = groupsCard(view, name);
  const figures = h("div", { class: "stack" });
  const showPolicy = (read) => {
    const hadFocus = policyCard?.contains(document.activeElement);
    policyCard = policyForm(name, read, showPolicy);
    fill(place, figures, groups, policyCard);
    if (hadFocus) policyCard.querySelector("[type=submit]").focus();
  };

  const begun = view.every(30000, async () => {
    if (may("peek", name)) scheduled = await get("/v1/schedules", { topic: name, limit: SCHEDULES_READ }).catch(() => scheduled);
  });
  view.every(5000, async () => {
    await begun;
    try {
      const topic = await get(topicPath(name));
      fill(figures, topicFigures(name, topic, scheduled));
      const isOther = Boolean(latest?.paused_until) !== Boolean(topic.paused_until);
      if (!latest || isOther) fill(actions, topicActions(name, topic, () => latest));
      latest = topic;
      if (!policyCard) showPolicy(topic);
      else if (!policyCard.isConnected) fill(place, figures, groups, policyCard);
    } catch (error) {
      if (error.status === 404) fill(place, card("", h("p", { class: "quiet" }, "There is no such topic now: it is unused and has no jobs."), facts([schedulesOf(name, scheduled)])));
      else if (error.status) fill(place, card("", h("p", { class: "bad" }, error.message)));
    }
  });
  return view;
}

// How many schedules put jobs into the topic, and when the next of them does; null: none, or not read yet.
function schedulesOf(name, read) {
  if (!read?.schedules.length) return null;
  const next = read.schedules.map((each) => each.next).filter(Boolean).sort()[0];
  const count = read.after ? `more than ${whole(SCHEDULES_READ)}` : whole(read.schedules.length);
  const link = h("a", { href: `#/schedules?${queryOf({ topic: name })}` }, count);
  return ["Schedules", [link, next ? `, the next run ${time(next)}` : ", no next run"]];
}

function topicFigures(name, topic, scheduled) {
  const tile = (state) =>
    h(
      "a",
      { class: `figure ${(state === "buried" && topic.buried) || (state === "ready" && topic.trouble === "untaken") ? "warn" : ""}`, href: `#/jobs?topic=${encodeURIComponent(name)}&state=${state}` },
      h("span", { class: "name" }, state),
      h("span", { class: "value", title: whole(topic[state]) }, short(topic[state])),
    );
  const cap = ({ in_use: used, max }) => (max === null ? whole(used) : `${whole(used)} of ${whole(max)}`);
  const within = lately(topic.rates.window);
  const rates = ["put", "reserved", "deleted", "failed"];
  const late = ({ jobs, p50, p99 }) => (jobs ? `p50 ${duration(p50)}, p99 ${duration(p99)}` : "–");
  const states = h("div", { class: "figures" }, ["delayed", "ready", "reserved", "buried"].map(tile));
  const now = card(
    "Now",
    facts([
      topic.trouble && ["Trouble", `${topic.trouble}: ${TROUBLES.get(topic.trouble)}`],
      ["Workers waiting", whole(topic.waiting)],
      ["Hands out", topic.blocks.length ? `no: ${topic.blocks.join(", ")}` : "yes"],
      Boolean(topic.groups) && ["Groups of jobs", whole(topic.groups)],
      topic.paused_until && ["Paused until", `${time(topic.paused_until)} (${fromNow(topic.paused_until)})`],
      ["Oldest ready", duration(topic.oldest_ready_age)],
      schedulesOf(name, scheduled),
      [`Put, handed out, acked, failed, ${within}`, `${rates.map((each) => rate(topic.rates[each])).join(", ")} a second`],
      [`From due to ready, ${within}`, late(topic.late)],
      ["From ready to a worker, since the start", late(topic.ready_to_reserved)],
      ["Jobs, of the cap", cap(topic.usage.jobs)],
      ["Failed attempts, since the start", short(topic.operations.nack + topic.operations.timeout)],
    ]),
  );
  return [states, now];
}

// `latest` returns the topic as last read, so that typed text is kept while figures change.
function topicActions(name, topic, latest) {
  const duringMinutes = h("input", { type: "text", value: "10m", size: "6", "aria-label": "How long" });
  const pause = async () => {
    await attempt(() => post(topicPath(name, "/pause"), { duration: duringMinutes.value }), `${name} is paused`);
  };
  const resume = () => attempt(() => post(topicPath(name, "/resume")), `${name} hands out jobs again`);
  const clear = async () => {
    const { delayed, ready, buried } = latest();
    const count = delayed + ready + buried;
    const body = h("p", {}, `${whole(count)} jobs are deleted, and cannot be brought back. Reserved jobs stay with their workers.`);
    if (!(await ask({ title: `Clear ${name}?`, body, action: "Delete all its jobs", isDangerous: true, typed: name }))) return;
    await attempt(async () => {
      const { cleared } = await post(topicPath(name, "/clear"));
      toast(`${whole(cleared)} jobs were deleted`);
    });
  };
  const offers = [
    may("pause", name) && !topic.paused_until && h("span", { class: "row" }, h("button", { type: "button", onclick: pause }, "Pause for"), duringMinutes),
    may("pause", name) && topic.paused_until && h("button", { type: "button", onclick: resume }, "Resume"),
    may("admin", name) && h("button", { type: "button", class: "danger", onclick: clear }, "Clear …"),
    may("peek", name) && h("a", { class: "button", href: `#/jobs?topic=${encodeURIComponent(name)}` }, "Its jobs"),
    may("peek", name) && h("a", { class: "button", href: `#/calendar?topic=${encodeURIComponent(name)}` }, "Its calendar"),
  ].filter(Boolean);
  return offers.length > 0 && h("div", { class: "row" }, offers);
}

// --- Its groups ----------------------------------------------------------------------------------

const GROUPS_SHOWN = 10;
const GROUP_ORDERS = new Map([
  ["ready", "with most ready jobs"],
  ["oldest", "with the oldest ready job"],
]);

// The first groups of the topic in an order, each with its pause; empty while no job has a group.
function groupsCard(view, name) {
  const place = h("div");
  const order = h("select", { "aria-label": "Which groups come first", onchange: () => show() }, [...GROUP_ORDERS].map(([value, title]) => h("option", { value }, title)));
  const duringMinutes = h("input", { type: "text", value: "10m", size: "6", "aria-label": "How long a group is paused" });
  const note = h("span", { class: "quiet" });
  const body = h("tbody");
  const titles = ["Group", "Ready", "Oldest ready", "Reserved", "To be retried", "Jobs", "Weight", "Held back by", ""];
  const head = h("tr", {}, titles.map((title, at) => h("th", { scope: "col", class: at && at < 7 ? "number" : "" }, title)));
  const table = card(
    "Groups",
    h("div", { class: "row" }, order, note, may("pause", name) && h("label", { class: "row" }, "Pause for", duringMinutes)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Groups of ${name}` }, h("table", {}, h("thead", {}, head), body)),
  );

  async function show() {
    const read = await get(topicPath(name, "/groups"), { order: order.value, limit: GROUPS_SHOWN }).catch(() => null);
    if (!read?.groups.length) {
      fill(place);
      return;
    }
    fill(note, `${whole(Math.min(read.groups.length, GROUPS_SHOWN))} of ${whole(read.count)} groups`);
    fill(body, read.groups.map(groupRow));
    if (!table.isConnected) fill(place, table);
  }

  function groupRow(group) {
    const cell = (text) => h("td", { class: "number" }, text);
    const path = topicPath(name, `/groups/${encodeURIComponent(group.name)}`);
    const then = (work, done) => async () => {
      await attempt(work, done);
      await show();
    };
    const pause = then(() => post(`${path}/pause`, { duration: duringMinutes.value }), `${group.name} is paused`);
    const resume = then(() => post(`${path}/resume`), `${group.name} hands out jobs again`);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: `#/jobs?${queryOf({ topic: name, group: group.name })}` }, group.name)),
      cell(whole(group.ready)),
      cell(group.ready_age === null || group.ready_age === undefined ? "" : duration(group.ready_age)),
      cell(whole(group.reserved)),
      cell(whole(group.retrying)),
      cell(whole(group.jobs)),
      cell(whole(group.weight)),
      h("td", { title: group.paused_until }, group.paused_until ? `paused, ends ${fromNow(group.paused_until)}` : group.blocked),
      h("td", {}, may("pause", name) && (group.paused_until ? h("button", { type: "button", "data-name": `resume ${group.name}`, onclick: resume }, "Resume") : h("button", { type: "button", "data-name": `pause ${group.name}`, onclick: pause }, "Pause"))),
    );
  }

  view.every(10000, show);
  return place;
}

export async function attempt(work, done = "") {
  try {
    const answer = await work();
    if (done) toast(done);
    return answer;
  } catch (error) {
    toast(error.message, "bad");
    return null;
  }
}

// --- Its policy ----------------------------------------------------------------------------------

// Name, title, an example, and what it is. Examples are beside the fields, so that none is taken for a value in force.
const SETTINGS = [
  ["ttr", "Time to run", "2m", "how long a worker may hold a job, for puts that do not say"],
  ["delay", "Delay", "1s", "for puts that do not say"],
  ["retry", "Retry ladder", "15s 3m 10m", "how long a job waits after each failed attempt"],
  ["jitter_percent", "Jitter", "10", "lengthens each step by up to so many percent"],
  ["max_attempts", "Attempts", "10", "how often a job is handed out at most"],
  ["exhausted", "When used up", "bury", "bury, or the topic that dead letters move to"],
  ["on_close", "Closed connection", "failure", "failure, or return: no attempt is counted"],
  ["history", "Attempts kept", "5", "the last ones of each job, with why they failed"],
  ["jobs_max", "Jobs", "100000", "puts above this are refused"],
  ["bytes_max", "Bytes", "64MiB", "of all its records"],
  ["body_bytes_max", "Bytes of a body", "16KiB", ""],
  ["delay_max", "Longest delay", "30d", ""],
  ["reserved_max", "Reserved at once", "20", "more stay ready"],
  ["rate_per_s", "Rate", "50", "handed out in a second at most"],
  ["group_reserved_max", "Reserved at once, of a group", "1", "more of it stay ready"],
  ["group_rate_per_s", "Rate of a group", "5", "handed out in a second at most"],
  ["group_jobs_max", "Jobs of a group", "10000", "puts above this are refused"],
  ["group_order", "Order in a group", "put", "priority, or put: in the order of the puts"],
  ["group_on_retry", "While one is to be retried", "wait", "pass: the others of its group go on, or wait"],
  ["fair", "Groups take turns", "true", "however many jobs each has"],
  ["group_weights", "Weights of groups", '{"acme": 5}', "turns where others have one, as JSON"],
  ["group_from", "Group read from", "body:customer", "key, key:SEP or body:FIELD, if a put says none"],
  ["group_required", "Only with a group", "true", "other puts are refused"],
  ["push", "Push", '{"url": "https://example.com/hook"}', "where due jobs are sent, as JSON"],
];
const NUMBERS = new Set(["jitter_percent", "max_attempts", "history", "jobs_max", "reserved_max", "rate_per_s", "group_reserved_max", "group_rate_per_s", "group_jobs_max"]);
const FLAGS = new Map([["true", true], ["false", false]]);
const FLAG_FIELDS = new Set(["fair", "group_required"]);
const JSON_FIELDS = new Set(["group_weights", "push"]);

// Calls `shown` with the topic's policy after a change.
function policyForm(name, { policy, policy_tag: tag, source }, shown) {
  const path = topicPath(name, "/policy");
  const isEditable = may("admin", name);
  const inputs = new Map();
  const bounds = policyBounds();
  const rows = SETTINGS.map(([field, title, example, about]) => {
    const text = settingText(policy[field]);
    const note = h("small", { id: `about-${field}` }, `${about ? `${about}; ` : ""}such as ${example}`);
    const isJson = JSON_FIELDS.has(field);
    const input = h(isJson ? "textarea" : "input", {
      type: isJson ? undefined : "text",
      rows: isJson ? "5" : undefined,
      id: `policy-${field}`,
      value: text,
      placeholder: "not set",
      readonly: !isEditable,
      "aria-describedby": `about-${field}`,
    });
    bounds.then((known) => {
      const { minimum, maximum } = known[field] ?? {};
      if (minimum !== undefined && maximum < 1e12) note.append(`; from ${whole(minimum)} to ${whole(maximum)}`);
    });
    inputs.set(field, input);
    return h("div", { class: "setting" }, h("label", { for: `policy-${field}` }, title), input, note);
  });
  const problem = h("p", { class: "bad", role: "alert" });
  let held = { policy, tag };

  async function save(event) {
    event.preventDefault();
    fill(problem);
    for (const input of inputs.values()) input.removeAttribute("aria-invalid");
    try {
      const answer = await call("PUT", path, readPolicy(inputs), held.tag);
      toast(`The policy of ${name} is set`);
      shown(answer);
    } catch (error) {
      if (error.status === 412) await compare();
      else showMistakes(error, inputs, problem);
    }
  }

  // Says what somebody else has changed; the next try is about the policy as it is now.
  async function compare() {
    const now = await attempt(() => get(path));
    if (!now) return;
    const others = changesBetween(held.policy, now.policy);
    held = { policy: now.policy, tag: now.policy_tag };
    fill(problem, `Changed by somebody else since this page read it: ${others.join(", ")}. Try again to set what this form says.`);
  }

  async function drop() {
    const body = h("p", {}, "What the configuration says about the topic holds again.");
    if (!(await ask({ title: `Remove the policy of ${name}?`, body, action: "Remove it" }))) return;
    try {
      const answer = await call("DELETE", path, undefined, held.tag);
      toast("The configuration holds again");
      shown(answer);
    } catch (error) {
      if (error.status === 412) await compare();
      else toast(error.message, "bad");
    }
  }

  async function tryTarget() {
    await attempt(async () => {
      const { id } = await post(topicPath(name, "/jobs"), { body: { test: true, sent_from: "the dashboard" }, delay: 0, max_attempts: 1 });
      toast(`Job ${id} was put and is being sent`);
      location.hash = `#/job/${id}`;
    });
  }

  return h(
    "form",
    { class: "card", onsubmit: save },
    h("h2", {}, "Policy"),
    h("p", { class: "quiet" }, source === "run_time" ? "Set at run time; it takes precedence over the configuration." : "From the configuration.", " An empty field is not set."),
    h("div", { class: "settings" }, rows),
    problem,
    h(
      "div",
      { class: "row" },
      isEditable && h("button", { type: "submit", class: "primary" }, "Save"),
      isEditable && source === "run_time" && h("button", { type: "button", onclick: drop }, "Remove"),
      policy.push && may("put", name) && h("button", { type: "button", onclick: tryTarget }, "Send a test job"),
    ),
  );
}

// The text of a setting in the form.
function settingText(value) {
  if (value === undefined) return "";
  if (Array.isArray(value)) return value.join(" ");
  return typeof value === "object" ? JSON.stringify(value, null, 1) : String(value);
}

// The settings in which two policies differ, each with its value in the second.
function changesBetween(before, now) {
  const changed = SETTINGS.filter(([field]) => settingText(before[field]) !== settingText(now[field]));
  return changed.map(([field]) => `${field} is ${settingText(now[field]).replaceAll(/\s+/g, " ") || "not set"} now`);
}

function readPolicy(inputs) {
  const policy = {};
  for (const [field, input] of inputs) {
    const text = input.value.trim();
    if (!text) continue;
    if (JSON_FIELDS.has(field)) policy[field] = parsed(field, text);
    else if (FLAG_FIELDS.has(field)) policy[field] = FLAGS.get(text) ?? text;
    else if (NUMBERS.has(field)) policy[field] = Number.isNaN(Number(text)) ? text : Number(text);
    else policy[field] = text;
  }
  return policy;
}

// JSON of a field; an error names the field, as those of the daemon do.
function parsed(field, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`${field}: ${error.message}`, { cause: error });
  }
}

function showMistakes(error, inputs, problem) {
  // A whole name: `reserved_max` is a part of `group_reserved_max`.
  const isNamed = (field) => new RegExp(`(?<!\\w)${field}[ :]`).test(error.message) || error.errors?.some((each) => each.field === field);
  const named = SETTINGS.filter(([field]) => isNamed(field));
  for (const [field] of named) inputs.get(field).setAttribute("aria-invalid", "true");
  named.length && inputs.get(named[0][0]).focus();
  fill(problem, error.message);
}

let known = null;

// The schema of each setting, from the API's own description.
function policyBounds() {
  known ??= get("/openapi.json").then(
    (document) => {
      const { properties } = document.components.schemas.PolicyBody;
      return Object.fromEntries(Object.entries(properties).map(([field, rule]) => [field, rule.anyOf[0]]));
    },
    () => ({}),
  );
  return known;
}
