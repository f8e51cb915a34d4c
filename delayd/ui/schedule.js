// One schedule: what it is, what has become of its runs, and all actions on it; and the form that makes or changes one.

import { call, exact, get, may, post, queryOf, session } from "./api.js";
import { ask, card, facts, fill, h, toast, View } from "./dom.js";
import { bodyText, fromNow, inZone, short, time, whole } from "./format.js";
import { attempt } from "./topics.js";

const LATELY_MS = 86400000;
// What is wrong with a schedule, the worst first, and what it means.
export const TROUBLES = new Map([
  ["refused", "its last run was refused: no job was put"],
  ["dead", "the job of its last run is a dead letter"],
  ["missed", "in the last day runs were found that were missed, and they are not put later"],
  ["paused", "it has no runs until it is resumed"],
]);

export function troubleOf({ last, last_missed: missed, state }, now) {
  if (TROUBLES.has(last?.outcome)) return last.outcome;
  if (missed && now - Date.parse(missed) < LATELY_MS) return "missed";
  return state === "paused" ? "paused" : "";
}

export const schedulePath = (name, rest = "") => `/v1/schedules/${encodeURIComponent(name)}${rest}`;

const mayChange = ({ definition: { topic, url } }) => may("put", topic) && (!url || may("webhook", topic));

// --- When, in words ------------------------------------------------------------------------------

const DAYS = ["Sundays", "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays"];
const clock = (hour, minute) => `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
// Expressions that are short in words; the others are shown as they are written only.
const WORDS = [
  [/^\* \* \* \* \*$/, () => "every minute"],
  [/^\*\/(2|3|4|5|6|10|12|15|20|30) \* \* \* \*$/, (minutes) => `every ${minutes} minutes`],
  [/^(\d+) \* \* \* \*$/, (minute) => `every hour at :${minute.padStart(2, "0")}`],
  [/^(\d+) (\d+) \* \* \*$/, (minute, hour) => `every day at ${clock(hour, minute)}`],
  [/^(\d+) (\d+) \* \* (?:1-5|mon-fri)$/i, (minute, hour) => `Mondays to Fridays at ${clock(hour, minute)}`],
  [/^(\d+) (\d+) \* \* ([0-7])$/, (minute, hour, day) => `${DAYS[day]} at ${clock(hour, minute)}`],
  [/^(\d+) (\d+) (\d+) \* \*$/, (minute, hour, day) => `on day ${day} of each month at ${clock(hour, minute)}`],
];

function words(cron) {
  const text = cron.trim().replace(/\s+/g, " ");
  for (const [pattern, say] of WORDS) {
    const found = pattern.exec(text);
    if (found) return say(...found.slice(1));
  }
  return "";
}

// When the runs of a schedule are due, as it was written, and in words.
export function whenOf({ cron, every, timezone, start, end, limit }) {
  const said = cron ? words(cron) : "";
  const bounds = [start && `from ${time(start)}`, end && `until ${time(end)}`, limit && `at most ${whole(limit)} ${limit === 1 ? "run" : "runs"}`].filter(Boolean);
  return [
    cron ? h("code", {}, cron) : `every ${every}`,
    said && `, ${said}`,
    cron && `, ${timezone ?? "UTC"}`,
    bounds.length > 0 && [" ", h("span", { class: "quiet" }, bounds.join(", "))],
  ];
}

// The moment by the zone of a schedule, below the one in UTC.
export const zoned = (moment, timezone) => timezone && timezone !== "UTC" && h("small", { class: "below" }, inZone(moment, timezone));

// The last run, with a link to its job while there is one.
export function lastOf({ last }) {
  if (!last) return "none yet";
  const kept = last.id && ["running", "dead"].includes(last.outcome);
  return [h("span", { class: `pill ${last.outcome}` }, last.outcome), " ", h("span", { class: "when" }, kept ? h("a", { href: `#/job/${last.id}` }, time(last.due)) : time(last.due))];
}

// --- One schedule --------------------------------------------------------------------------------

export function scheduleView(name) {
  const view = new View();
  const place = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Loading …"));
  const actions = h("div");
  const figures = h("div", { class: "stack" });
  const form = h("div");
  view.element = h("div", { class: "stack" }, h("div", { class: "title" }, h("h1", {}, "Schedule ", h("code", {}, name)), actions), place);
  let shown = "";
  let formed = "";

  async function read() {
    try {
      const schedule = await get(schedulePath(name));
      const { runs, now } = await get(schedulePath(name, "/preview"), { count: 10 });
      if (view.isOver) return;
      fill(figures, scheduleFigures(schedule, runs, Date.parse(now)));
      const offered = schedule.state + schedule.definition.topic;
      if (offered !== shown) fill(actions, scheduleActions(schedule, read));
      shown = offered;
      if (!formed) showForm(schedule);
      if (!figures.isConnected) fill(place, figures, form);
    } catch (error) {
      if (error.status === 404) {
        fill(place, card("", h("p", { class: "quiet" }, "There is no such schedule: it was removed or never made, or it is not for this token.")));
        fill(actions);
        shown = "";
      } else if (error.status) fill(place, card("", h("p", { class: "bad" }, error.message)));
    }
  }

  // What is typed stays while the figures change.
  function showForm(schedule) {
    formed = schedule.name;
    const saved = async (changed) => {
      showForm(changed);
      form.querySelector("summary").focus();
      await read();
    };
    fill(form, changeCard(schedule, saved));
  }

  view.every(5000, read);
  return view;
}

function scheduleFigures(schedule, runs, now) {
  const { definition, last } = schedule;
  const trouble = troubleOf(schedule, now);
  const about = new Map([["runs", "jobs that were put"], ["missed", "due while no daemon ran, and not put later"], ["skipped", "due while the job of the run before was neither done nor dead"], ["refused", "no job was put"], ["late", "put more than a second after they were due"]]);
  const tiles = [...about].map(([count, title]) =>
    h("div", { class: `figure ${count === trouble ? "warn" : ""}`, title }, h("span", { class: "name" }, count), h("span", { class: "value", title: whole(schedule[count]) }, short(schedule[count]))),
  );
  const moment = (text) => [time(text), ` (${fromNow(text, now)})`, zoned(text, definition.timezone)];
  const state = schedule.note ? `${schedule.state}: ${schedule.note}` : schedule.state;
  return [
    h("div", { class: "figures" }, tiles),
    card(
      "Now",
      facts([
        trouble && trouble !== "paused" && ["Trouble", `${trouble}: ${TROUBLES.get(trouble)}`],
        ["State", state],
        ["When", whenOf(definition)],
        ["Next run", schedule.next ? moment(schedule.next) : "none"],
        ["Last run", lastOf(schedule)],
        last && ["Its job", h("code", {}, last.key)],
        last?.error && ["Why", last.error],
        schedule.last_missed && ["Missed, last seen", moment(schedule.last_missed)],
        schedule.queued && ["Waits for the last run", moment(schedule.queued)],
        ["Topic", h("a", { href: `#/topics/${encodeURIComponent(definition.topic)}` }, definition.topic)],
        ["Set", schedule.source === "configuration" ? "in the configuration" : "at run time"],
        ["Made", time(schedule.created)],
        schedule.changed && ["Changed", time(schedule.changed)],
        ["Time zones", schedule.tzdata],
      ]),
    ),
    card("The next runs", runs.length ? runTable(runs, definition.timezone, now) : h("p", { class: "quiet" }, schedule.state === "paused" ? "None while it is paused." : "There are no more.")),
    definitionCard(definition),
  ];
}

function runTable(runs, timezone, now) {
  const hasZone = timezone && timezone !== "UTC";
  const head = ["UTC", hasZone && timezone, "From now"].filter(Boolean).map((title) => h("th", { scope: "col" }, title));
  const rows = runs.map((run) => h("tr", {}, h("th", { scope: "row", class: "when" }, time(run)), hasZone && h("td", { class: "when" }, inZone(run, timezone)), h("td", {}, fromNow(run, now))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The next runs" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

function definitionCard(definition) {
  const body = bodyText(definition);
  const pairs = SETTINGS.filter(([field]) => field !== "topic" && definition[field] !== undefined).map(([field, title]) => [title, settingText(field, definition[field])]);
  return card("Definition", facts(pairs), h("h3", {}, `Body of each job (${body.kind})`), h("pre", { tabindex: "0" }, body.text));
}

function scheduleActions(schedule, again) {
  const { name, definition, source, state } = schedule;
  if (!mayChange(schedule)) return h("p", { class: "quiet" }, "This token may only look at the schedule.");
  const then = async (work, done) => (await attempt(work, done)) && again();

  async function pause() {
    const note = h("input", { type: "text", id: "note", placeholder: "the warehouse moves", autocomplete: "off", maxlength: "500" });
    const body = [h("p", {}, "It has no runs until it is resumed, and they do not count as missed."), h("label", {}, "Why, for who finds it paused", note)];
    if (await ask({ title: `Pause ${name}?`, body, action: "Pause it" })) await then(() => post(schedulePath(name, "/pause"), { note: note.value.trim() }), `${name} is paused`);
  }

  async function run() {
    const ran = await attempt(() => post(schedulePath(name, "/run")));
    if (!ran) return;
    toast(ran.outcome === "kept" ? `Job ${ran.id} is the run of this millisecond: no other was put` : `Job ${ran.id} was put`);
    await again();
  }

  async function backfill() {
    const field = (id, title) => [h("label", { for: id }, title), h("input", { type: "text", id, placeholder: "2026-11-20T00:00:00Z", autocomplete: "off" })];
    const body = h("div", { class: "stack" }, h("p", {}, "Puts one job for each nominal time of this range, both ends included. Runs whose job is there are left alone."), field("from", "From"), field("until", "Until, not after now"));
    if (!(await ask({ title: `Backfill ${name}`, body, action: "Put the jobs" }))) return;
    const value = (id) => body.querySelector(`#${id}`).value.trim();
    const told = await attempt(() => post(schedulePath(name, "/backfill"), { from: value("from"), until: value("until") }));
    if (!told) return;
    toast(`${whole(told.put)} jobs were put, ${whole(told.kept)} were there`);
    await again();
  }

  async function remove() {
    const body = h("p", {}, "It has no more runs, and its counts are gone. The jobs of its runs stay.");
    if (!(await ask({ title: `Remove ${name}?`, body, action: "Remove the schedule", isDangerous: true }))) return;
    if (await attempt(() => call("DELETE", schedulePath(name)), `${name} is removed`)) location.hash = "#/schedules";
  }

  return h(
    "div",
    { class: "row" },
    state === "paused" && h("button", { type: "button", class: "primary", onclick: () => then(() => post(schedulePath(name, "/resume")), `${name} has runs again`) }, "Resume"),
    state === "active" && h("button", { type: "button", onclick: pause }, "Pause …"),
    h("button", { type: "button", onclick: run }, "Run now"),
    h("button", { type: "button", onclick: backfill }, "Backfill …"),
    source === "run_time" && h("button", { type: "button", class: "danger", onclick: remove }, "Remove …"),
    may("peek", definition.topic) && h("a", { class: "button", href: `#/jobs?${queryOf({ topic: definition.topic, prefix: `${name}@` })}` }, "Its jobs"),
  );
}

// --- The form ------------------------------------------------------------------------------------

// Name, title, an example, and what it is; or, instead of the example, what there is to choose, the default first.
const SETTINGS = [
  ["topic", "Topic", "reports", "where the job of each run is put"],
  ["cron", "Cron expression", "30 2 * * *", "minute, hour, day, month, day of week, or @hourly … @yearly; this or an interval"],
  ["every", "Interval", "15m", "counted from the start, or from when it is made"],
  ["timezone", "Time zone", "America/New_York", "whose clock the expression goes by; UTC if it is empty"],
  ["start", "Start", "2027-01-01T00:00:00Z", "no run is due before it"],
  ["end", "End", "2027-12-31T00:00:00Z", "no run is due after it"],
  ["limit", "Runs at most", "10", "after them the schedule is over"],
  ["missed", "Missed runs", ["latest", "none", "all"], "which of the runs that were due while no daemon ran are put late"],
  ["window", "Late by at most", "6h", "missed runs that are later are not put"],
  ["overlap", "Overlap", ["allow", "skip", "queue_one"], "what happens to a run while the job of the run before is neither done nor dead"],
  ["jitter", "Jitter of the runs", "5m", "delays all of them by the same time, below this; keys are without it"],
  ["priority", "Priority", "1024", "of each job, as all that follows; 0 is the most urgent"],
  ["ttr", "Time to run", "2m", "how long a worker may hold it"],
  ["retry", "Retry ladder", "15s 3m 10m", "how long it waits after each failed attempt"],
  ["jitter_percent", "Jitter of the ladder", "10", "lengthens each step by chance, by up to this percentage"],
  ["max_attempts", "Attempts", "10", "how often it is handed out, at most"],
  ["group", "Group", "customer-7", ""],
  ["url", "Url", "https://example.com/hook", "where it is sent, as a webhook"],
  ["method", "Method", "PUT", "of that call; POST if it is empty"],
  ["headers", "Headers", '{"X-Team": "reports"}', "of that call, as JSON"],
];
const OF_A_URL = new Set(["url", "method", "headers"]);
const WHOLE_NUMBERS = new Set(["limit", "priority", "max_attempts", "jitter_percent"]);

function settingText(field, value) {
  if (value === undefined) return "";
  if (["start", "end"].includes(field)) return time(value);
  if (Array.isArray(value)) return value.join(" ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function newScheduleView(query) {
  const view = new View();
  const saved = ({ name }) => {
    location.hash = `#/schedules/${encodeURIComponent(name)}`;
  };
  const isOffered = session.access.scopes.includes("put");
  view.element = h(
    "div",
    { class: "stack" },
    h("h1", {}, "A new schedule"),
    isOffered ? scheduleForm(null, { topic: query.get("topic") ?? "" }, saved) : card("", h("p", { class: "quiet" }, "This token may not put jobs (scope put), so it makes no schedules.")),
  );
  return view;
}

// The form for a schedule, or why there is none.
function changeCard(schedule, saved) {
  const { source, definition } = schedule;
  if (source === "configuration") return card("Change", h("p", { class: "quiet" }, "The configuration has set this schedule: it is changed there, and the daemon started anew."));
  if (!mayChange(schedule)) return null;
  // Such a token is shown the url without its secrets, which would be saved so.
  if (definition.url && !may("admin", definition.topic)) return card("Change", h("p", { class: "quiet" }, "The url and its headers may have secrets that this token is not shown: to change this schedule it needs the scope admin."));
  return h("details", { class: "card" }, h("summary", {}, h("h2", {}, "Change")), scheduleForm(schedule, definition, saved));
}

// Calls `saved` with the schedule after it was made or changed. Its runs are shown before it can be saved.
function scheduleForm(schedule, definition, saved) {
  const inputs = new Map();
  const mistakes = new Map();
  const problem = h("p", { class: "bad", role: "alert" });
  const preview = h("div", { class: "stack" });
  const body = "body" in definition || "body_base64" in definition ? bodyText(definition) : { kind: "JSON", text: "null" };
  let held = definition;

  function setting(field, title, about, make, kind = "") {
    const described = { id: `schedule-${field}`, name: field, "aria-describedby": `about-${field} mistake-${field}` };
    const input = make(described);
    const mistake = h("small", { class: "bad", id: `mistake-${field}`, role: "alert" });
    inputs.set(field, input);
    mistakes.set(field, mistake);
    return h("div", { class: `setting ${kind}` }, h("label", { for: described.id }, title), input, h("small", { id: `about-${field}` }, about), mistake);
  }

  const text = (value) => (described) => h("input", { ...described, type: "text", value, placeholder: "not set", autocomplete: "off", spellcheck: "false" });
  const choice = (options, chosen) => (described) => h("select", described, options.map((each) => h("option", { value: each, selected: each === chosen }, each)));
  const rows = SETTINGS.filter(([field]) => !OF_A_URL.has(field) || session.access.scopes.includes("webhook")).map(([field, title, example, about]) =>
    Array.isArray(example)
      ? setting(field, title, about, choice(example, definition[field] ?? example[0]))
      : setting(field, title, `${about ? `${about}; ` : ""}such as ${example}`, text(settingText(field, definition[field]))),
  );
  const ofBody = body.kind === "bytes"
    ? h("p", { class: "quiet" }, "The body of each job is no text: it stays as it is.")
    : [
        setting("kind", "The body is", "JSON, or any other text", choice(["JSON", "text"], body.kind)),
        setting("body", "Body of each job", "", (described) => h("textarea", { ...described, rows: "6", spellcheck: "false", value: body.text }), "wide"),
      ];

  function fields() {
    const said = {};
    for (const [field] of SETTINGS) {
      const value = inputs.get(field)?.value.trim();
      if (!value || DEFAULTS.get(field) === value) continue;
      if (field === "headers") said.headers = parsed(field, value);
      else said[field] = WHOLE_NUMBERS.has(field) && !Number.isNaN(Number(value)) ? Number(value) : value;
    }
    if (body.kind === "bytes") said.body_base64 = definition.body_base64;
    else if (inputs.get("kind").value === "JSON") said.body = parsed("body", inputs.get("body").value);
    else said.body_base64 = btoa(String.fromCharCode(...new TextEncoder().encode(inputs.get("body").value)));
    return said;
  }

  function parsed(field, value) {
    try {
      return JSON.parse(value, exact);
    } catch (error) {
      throw new Mistake([{ field, detail: `it is no JSON: ${error.message}` }]);
    }
  }

  function forget() {
    fill(problem);
    for (const [field, mistake] of mistakes) {
      fill(mistake);
      inputs.get(field).removeAttribute("aria-invalid");
    }
  }

  function showMistakes(error) {
    const placed = (error.errors ?? []).filter(({ field }) => inputs.has(fieldOf(field)));
    for (const { field, detail } of placed) {
      inputs.get(fieldOf(field)).setAttribute("aria-invalid", "true");
      mistakes.get(fieldOf(field)).append(h("span", {}, detail, " "));
    }
    if (placed.length) inputs.get(fieldOf(placed[0].field)).focus();
    fill(problem, placed.length && placed.length === error.errors.length ? "Nothing is saved: see the fields above." : error.message);
  }

  async function show(event) {
    event.preventDefault();
    forget();
    fill(preview);
    try {
      const said = fields();
      const name = schedule?.name ?? inputs.get("name").value.trim();
      if (!schedule) await checkFree(name);
      const told = await post(`/v1/schedules/preview?${queryOf({ count: 10, name })}`, said);
      const save = h("button", { type: "button", class: "primary", onclick: () => keep(name, said) }, "Save");
      fill(
        preview,
        h("h3", {}, schedule ? "Its next runs would be" : "Its first runs would be"),
        told.runs.length ? runTable(told.runs, told.timezone, Date.parse(told.now)) : h("p", { class: "bad" }, "It would have no runs."),
        h("div", { class: "row" }, save, h("span", { class: "quiet" }, `By the time zones of ${told.tzdata}.`)),
      );
      save.focus();
    } catch (error) {
      showMistakes(error);
    }
  }

  async function checkFree(name) {
    if (!name) throw new Mistake([{ field: "name", detail: "is missing" }]);
    const other = await get(schedulePath(name)).catch((error) => {
      if ([404, 422].includes(error.status)) return null; // what is wrong with a name the preview says
      throw error;
    });
    if (other) throw new Mistake([{ field: "name", detail: "there is a schedule of this name: change that one, or choose another name" }]);
  }

  async function keep(name, said) {
    forget();
    try {
      if (schedule && (await isOthers(name))) return;
      const answer = await call("PUT", schedulePath(name), said);
      toast(`${name} is saved`);
      saved(answer);
    } catch (error) {
      showMistakes(error);
    }
  }

  // Says what somebody else has changed since the form was filled; the next try replaces that.
  async function isOthers(name) {
    const now = (await get(schedulePath(name))).definition;
    const changed = [...SETTINGS.map(([field]) => field), "body", "body_base64"].filter((field) => JSON.stringify(now[field]) !== JSON.stringify(held[field]));
    if (!changed.length) return false;
    held = now;
    const others = changed.map((field) => `${field} is ${settingText(field, now[field]) || "not set"} now`);
    fill(problem, `Changed by somebody else since this page read it: ${others.join(", ")}. Save again to set what this form says.`);
    return true;
  }

  const named = !schedule && setting("name", "Name", "such as nightly-report", text(""));
  return h(
    "form",
    { class: schedule ? "" : "card", onsubmit: show, oninput: () => fill(preview) },
    h("p", { class: "quiet" }, "An empty field is not set."),
    h("div", { class: "settings" }, named, rows, ofBody),
    problem,
    h("div", { class: "row" }, h("button", { type: "submit" }, "Show its runs")),
    preview,
  );
}

const DEFAULTS = new Map(SETTINGS.filter(([, , example]) => Array.isArray(example)).map(([field, , [first]]) => [field, first]));

// The field of the form in which a mistake is.
const fieldOf = (field) => field.replace(/[.[].*$/, "").replace("body_base64", "body");

class Mistake extends Error {
  constructor(errors) {
    super(errors.map(({ field, detail }) => `${field}: ${detail}`).join("; "));
    this.errors = errors;
  }
}
