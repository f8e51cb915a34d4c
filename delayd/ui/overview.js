// The daemon's figures now and over the last minutes, and all its topics.

import { get, may, metrics } from "./api.js";
import { card, fill, h, View } from "./dom.js";
import { lineChart } from "./charts.js";
import { duration, lately, rate, short, size, whole } from "./format.js";
import { topicTable } from "./topics.js";

const LINES = ["put", "reserved", "deleted", "failed"];
// In minutes.
const RANGES = [["15 minutes", 15], ["1 hour", 60], ["6 hours", 360], ["24 hours", 1440]];

export function overview() {
  const view = new View();
  if (!may("stats")) {
    const text = "This token may not see figures of all topics (scope stats, for every topic).";
    view.element = card("Overview", h("p", { class: "quiet" }, text));
    return view;
  }
  const figures = h("div", { class: "figures" });
  const health = h("dl", { class: "health" });
  const rates = h("div", { class: "chart" });
  const noneLate = h("p", { class: "quiet none", hidden: true }, "No delay has ended in this time.");
  const late = h("div", { class: "chart" }, noneLate);
  let latest = null;
  let history = null;
  let untaken = [];
  let range = 60;
  const ranges = RANGES.map(([title, minutes]) =>
    h("button", { type: "button", "aria-pressed": String(minutes === range), onclick: (event) => choose(event.target, minutes) }, title),
  );
  view.element = h(
    "div",
    { class: "stack" },
    h("h1", { class: "sr" }, "Overview"),
    figures,
    h("div", { class: "choice", role: "group", "aria-label": "How far back" }, ranges),
    h("div", { class: "columns" }, card("Jobs a second, by minute", rates), card("Lateness, by minute", late)),
    card("The daemon", health),
    topicTable(view, (topics) => {
      untaken = topics.filter(({ trouble }) => trouble === "untaken");
      show();
    }),
  );
  const drawRates = lineChart(
    view,
    rates,
    [{ name: "put", tint: "--blue" }, { name: "handed out", tint: "--violet" }, { name: "acked", tint: "--accent" }, { name: "failed", tint: "--red" }],
    (value) => rate(value),
  );
  const drawLate = lineChart(view, late, [{ name: "p50", tint: "--accent" }, { name: "p99", tint: "--amber" }], (value) => duration(value));

  function show() {
    if (latest) fill(figures, figuresOf(latest, untaken));
  }

  // The minute that is not over is drawn as the last 60 s, which is what the figures say.
  function draw() {
    if (!latest || !history || view.isOver) return;
    const { at, rows } = stepsOf(history, latest, range * 60);
    const hasFailed = rows.some((row) => row?.failed); // without failures a red line at 0 would hide the others
    const line = (name) => rows.map((row) => (name === "failed" && !hasFailed ? null : (row?.[name] ?? null)));
    drawRates([at, ...LINES.map(line)]);
    drawLate([at, line("late_p50"), line("late_p99")]);
    noneLate.hidden = rows.some((row) => row && row.late_p99 !== null);
  }

  async function readHistory() {
    const minutes = range;
    const read = await get("/v1/stats/history", { minutes }).catch(() => null);
    if (!read || minutes !== range) return;
    history = read;
    draw();
  }

  function choose(chosen, minutes) {
    for (const button of ranges) button.setAttribute("aria-pressed", String(button === chosen));
    range = minutes;
    readHistory();
  }

  view.every(2000, async () => {
    latest = await get("/v1/stats").catch(() => latest);
    show();
    draw();
  });
  view.every(5000, async () => {
    const found = await metrics().catch(() => null);
    const stats = found && (await get("/v1/stats").catch(() => null));
    if (stats) fill(health, healthOf(stats, found));
  });
  view.every(10000, readHistory);
  return view;
}

// Ready jobs that nobody takes are as loud as buried ones: neither goes away by itself.
function figuresOf(stats, untaken) {
  const { jobs, rates } = stats;
  const within = lately(rates.window);
  const waits = untaken.length > 0 && `nobody takes: ${untaken.length === 1 ? untaken[0].name : `${whole(untaken.length)} topics`}`;
  const rows = [
    ["delayed", short(jobs.delayed), "now", "", whole(jobs.delayed)],
    ["ready", short(jobs.ready), waits || "now", waits && "warn", whole(jobs.ready)],
    ["oldest ready", duration(stats.oldest_ready_age), "now", waits && "warn", "how long it has been ready"],
    ["reserved", short(jobs.reserved), "now", "", whole(jobs.reserved)],
    ["buried", short(jobs.buried), "now", jobs.buried && "warn", whole(jobs.buried)],
    ["put / s", rate(rates.put), within],
    ["handed out / s", rate(rates.reserved), within],
    ["acked / s", rate(rates.deleted), within],
    ["failed / s", rate(rates.failed), within, rates.failed && "warn", "attempts that ended in a nack, or because the ttr ran out"],
  ];
  return rows.map(([name, value, when, kind, title]) =>
    h("div", { class: `figure ${kind || ""}`, title }, h("span", { class: "name" }, name), h("span", { class: "value" }, value), h("span", { class: "name" }, when)),
  );
}

function use({ in_use: used, max }, text) {
  return max === null ? text(used) : `${text(used)} of ${text(max)} (${Math.round((100 * used) / max)} %)`;
}

// Free bytes, and those that the next snapshot needs: with less puts are refused.
const diskUse = ({ free_bytes: free, needed_bytes: needed }) => `${size(free)}, ${size(needed)}`;

// A standby tells how far it is once a second, and is read of once a second.
const TOLD_S = 3;

// Of a log in a database; in files there is nothing to say.
function logOf(log) {
  if (!log) return [];
  // One that had read all frames when it told so, a moment ago, is not behind.
  const isBehind = ({ lag, lag_frames: frames }) => frames > 0 || lag >= TOLD_S;
  const lags = log.standbys.filter(isBehind).map((standby) => standby.lag);
  const behind = lags.length ? `${duration(Math.max(...lags))} behind at most` : "up to date";
  const standbys = log.standbys.length ? `${whole(log.standbys.length)}, ${behind}` : "none";
  return [
    ["Log", `${log.database}, epoch ${whole(log.epoch)}`],
    ["Lease", log.trouble || `${duration(log.lease_left)} left`, (log.trouble || !log.lease_left) && "warn"],
    ["Standbys", standbys, !log.standbys.length && "warn"],
  ];
}

function healthOf(stats, found) {
  const fsyncs = found.get("delayd_journal_fsync_seconds_count");
  const fsync = fsyncs ? found.get("delayd_journal_fsync_seconds_sum") / fsyncs : null;
  const resident = found.get("process_resident_memory_bytes");
  const pairs = [
    ["Version", `${stats.version}${stats.compiled ? ", compiled" : ""}`],
    ["Running for", duration(stats.uptime)],
    ["Jobs", use(stats.usage.jobs, whole)],
    ["Their records", use(stats.usage.bytes, size)],
    ["Memory", resident === undefined ? "–" : size(resident)],
    ["Journal on disk", size(found.get("delayd_journal_bytes") ?? 0)],
    stats.disk && ["Disk free, needed", diskUse(stats.disk), stats.disk.free_bytes < 4 * stats.disk.needed_bytes && "warn"],
    ...logOf(stats.ownership),
    ["Mean sync", duration(fsync)],
    ["Last snapshot", found.has("delayd_snapshot_age_seconds") ? `${duration(found.get("delayd_snapshot_age_seconds"))} ago` : "none yet"],
    ["Connections", `${whole(stats.line.connections)} line, ${whole(stats.http.connections)} HTTP`],
    ["Takes jobs", stats.draining ? "no: it drains" : "yes"],
  ];
  return pairs.filter(Boolean).map(([name, value, kind]) => h("div", { class: kind }, h("dt", {}, name), h("dd", {}, value)));
}

// Each minute of so many seconds as a step: two moments with the same row. Rows have counts per second; before the daemon's
// start there are none.
export function stepsOf({ now, minutes }, { rates, late }, seconds) {
  const end = Date.parse(now) / 1000;
  const begins = minutes.map((minute) => Date.parse(minute.from) / 1000);
  const at = [Math.min(end - seconds, begins[0])];
  const rows = [null];
  minutes.forEach((minute, index) => {
    const from = begins[index];
    const to = begins[index + 1] ?? end;
    const row = { late_p50: minute.late_p50, late_p99: minute.late_p99 };
    for (const name of LINES) row[name] = minute[name] / Math.max(1, to - from);
    const isOver = index + 1 < minutes.length;
    const shown = isOver ? row : { ...rates, late_p50: late.p50, late_p99: late.p99 };
    at.push(from, Math.max(from, to - 0.001));
    rows.push(shown, shown);
  });
  return { at, rows };
}
