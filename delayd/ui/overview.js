// The daemon's figures now and over the last hour, and all its topics.

import { get, may, metrics } from "./api.js";
import { card, fill, h, View } from "./dom.js";
import { lineChart } from "./charts.js";
import { duration, rate, short, size, whole } from "./format.js";
import { topicTable } from "./topics.js";

const STATES = ["delayed", "ready", "reserved", "buried"];

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
  const noneLate = h("p", { class: "quiet none", hidden: true }, "No delay has ended in this hour.");
  const late = h("div", { class: "chart" }, noneLate);
  view.element = h(
    "div",
    { class: "stack" },
    h("h1", { class: "sr" }, "Overview"),
    figures,
    h("div", { class: "columns" }, card("Jobs a second, last hour", rates), card("Lateness, last hour", late)),
    card("The daemon", health),
    topicTable(view),
  );
  const drawRates = lineChart(
    view,
    rates,
    [{ name: "put", tint: "--blue" }, { name: "handed out", tint: "--violet" }, { name: "acked", tint: "--accent" }, { name: "failed", tint: "--red" }],
    (value) => rate(value),
  );
  const drawLate = lineChart(view, late, [{ name: "p50", tint: "--accent" }, { name: "p99", tint: "--amber" }], (value) => duration(value));

  view.every(2000, async () => {
    const stats = await get("/v1/stats").catch(() => null);
    if (stats) fill(figures, figuresOf(stats));
  });
  view.every(5000, async () => {
    const found = await metrics().catch(() => null);
    const stats = found && (await get("/v1/stats").catch(() => null));
    if (stats) fill(health, healthOf(stats, found));
  });
  view.every(10000, async () => {
    const history = await get("/v1/stats/history").catch(() => null);
    if (!history) return;
    const { at, rows } = minutesOf(history);
    const hasFailed = rows.some((row) => row.failed); // without failures a red line at 0 would hide the others
    drawRates([at, ...["put", "reserved", "deleted", "failed"].map((name) => rows.map((row) => (name === "failed" && !hasFailed ? null : row[name])))]);
    drawLate([at, rows.map((row) => row.late_p50), rows.map((row) => row.late_p99)]);
    noneLate.hidden = rows.some((row) => row.late_p99 !== null);
  });
  return view;
}

function figuresOf(stats) {
  const failed = stats.operations.nack + stats.operations.timeout;
  const rows = [
    ...STATES.map((state) => [state, short(stats.jobs[state]), whole(stats.jobs[state]), state === "buried" && stats.jobs.buried ? "warn" : ""]),
    ["put / s", rate(stats.rates.put), "in the last minute"],
    ["handed out / s", rate(stats.rates.reserved), "in the last minute"],
    ["acked / s", rate(stats.rates.deleted), "in the last minute"],
    ["failed attempts", short(failed), "since the start"],
    ["oldest ready", duration(stats.oldest_ready_age), "how long it has been ready"],
  ];
  return rows.map(([name, value, title, kind]) =>
    h("div", { class: `figure ${kind ?? ""}`, title }, h("span", { class: "name" }, name), h("span", { class: "value" }, value)),
  );
}

function use({ in_use: used, max }, text) {
  return max === null ? text(used) : `${text(used)} of ${text(max)} (${Math.round((100 * used) / max)} %)`;
}

// Free bytes, and those that the next snapshot needs: with less puts are refused.
const diskUse = ({ free_bytes: free, needed_bytes: needed }) => `${size(free)}, ${size(needed)}`;

// Of a log in a database; in files there is nothing to say.
function logOf(log) {
  if (!log) return [];
  const lag = Math.max(0, ...log.standbys.map((standby) => standby.lag));
  const standbys = log.standbys.length ? `${whole(log.standbys.length)}, ${duration(lag)} behind at most` : "none";
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

// One row for each of the last 60 minutes, with counts per second; 0 for a minute without any.
function minutesOf({ now, minutes }) {
  const end = Date.parse(now) / 1000;
  const at = Array.from({ length: 60 }, (_none, minute) => end - (60 - minute) * 60 + 30);
  const rows = at.map(() => ({ put: 0, reserved: 0, deleted: 0, failed: 0, late_p50: null, late_p99: null }));
  for (const minute of minutes) {
    const from = Date.parse(minute.from) / 1000;
    const row = rows[Math.min(59, Math.floor((from - (end - 3600)) / 60))];
    if (!row) continue;
    const lasted = Math.max(10, Math.min(60, end - from));
    for (const name of ["put", "reserved", "deleted", "failed"]) row[name] += minute[name] / lasted;
    if (minute.late_p99 !== null) Object.assign(row, { late_p50: minute.late_p50, late_p99: minute.late_p99 });
  }
  return { at, rows };
}
