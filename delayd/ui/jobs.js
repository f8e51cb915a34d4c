// Jobs: found by id, by key, or by topic, state and time; and one job with all actions on it.

import { call, exact, get, may, post, queryOf, topicPath } from "./api.js";
import { ask, card, facts, fill, h, pill, toast, View } from "./dom.js";
import { bodyText, duration, fromNow, time, whole } from "./format.js";
import { attempt } from "./topics.js";

const STATES = ["delayed", "ready", "reserved", "buried"];
const PAGE = 50;

export function jobsView(query) {
  const view = new View();
  const filters = Object.fromEntries(query);
  const field = (name, label, properties = {}) =>
    h("label", {}, label, h("input", { name, type: "text", value: filters[name] ?? "", autocomplete: "off", ...properties }));
  const states = h(
    "fieldset",
    { class: "states" },
    h("legend", {}, "State"),
    STATES.map((state) =>
      h("label", {}, h("input", { type: "checkbox", name: "state", value: state, checked: (filters.state ?? "").split(",").includes(state) }), state),
    ),
  );
  const results = h("div", { class: "stack" });
  const form = h(
    "form",
    { class: "card finder", onsubmit: find },
    field("id", "Job id or key"),
    field("topic", "Topic"),
    field("key", "Key"),
    field("prefix", "Key begins with"),
    field("group", "Group"),
    field("from", "Due from", { placeholder: "-1h" }),
    field("to", "Due before", { placeholder: "2030-01-01T00:00Z" }),
    h("div", { class: "row" }, states, h("button", { type: "submit", class: "primary" }, "Find")),
  );

  function find(event) {
    event.preventDefault();
    const data = new FormData(form);
    const id = data.get("id").trim();
    const topic = data.get("topic").trim();
    const key = data.get("key").trim();
    if (id) location.hash = `#/jobs?${queryOf({ id })}`;
    else if (key && topic) location.hash = `#/key/${encodeURIComponent(topic)}/${encodeURIComponent(key)}`;
    else if (key) location.hash = `#/jobs?${queryOf({ key })}`;
    else if (!topic) {
      // The address is not changed: that would begin a new view, without the text in the fields.
      fill(results, h("p", { class: "bad", role: "alert" }, "Enter a job id, a key, or a topic (with what its jobs have in common)."));
    } else {
      const wanted = { topic, prefix: data.get("prefix"), group: data.get("group"), from: data.get("from"), to: data.get("to"), state: data.getAll("state").join(",") };
      location.hash = `#/jobs?${queryOf(wanted)}`;
    }
  }

  view.element = h("div", { class: "stack" }, h("h1", {}, "Jobs"), form, results);
  const { id, topic, key, state, from, to, prefix, group, reason } = filters;
  if (id) showFound(results, id, { mayBeId: /^\d+$/.test(id) });
  else if (key && !topic) showFound(results, key, {});
  else if (topic) showPage(results, topic, { state, from, to, prefix, group, reason }, undefined);
  return view;
}

// The jobs that have a key, in whichever topics, and the job with that id if it may be one; if it is one job, its page.
async function showFound(place, key, { mayBeId, after }) {
  try {
    const page = await get(`/v1/keys/${encodeURIComponent(key)}`, { limit: PAGE, after });
    const numbered = mayBeId ? await jobOrNone(key) : [];
    const jobs = [...numbered, ...page.jobs.filter(({ id }) => id !== numbered[0]?.id)];
    if (!jobs.length && !after) {
      fill(place, card("", h("p", { class: "quiet" }, mayBeId ? `No job has the id ${key}, and none the key ${key}.` : `No job of any topic has the key ${key}.`)));
    } else if (jobs.length === 1 && !after && !page.after) {
      location.replace(`#/job/${jobs[0].id}`);
    } else {
      const next = page.after && h("button", { type: "button", onclick: () => showFound(place, key, { after: page.after }) }, "Next page");
      fill(place, jobTable(jobs), h("div", { class: "buttons" }, next));
    }
  } catch (error) {
    fill(place, card("", h("p", { class: "bad" }, error.message)));
  }
}

// The job with an id, in a list that is empty if there is none, or if the id has too many digits for one.
async function jobOrNone(id) {
  try {
    return [await get(`/v1/jobs/${id}`)];
  } catch (error) {
    if (![404, 422].includes(error.status)) throw error;
    return [];
  }
}

async function showPage(place, topic, wanted, after) {
  try {
    const page = await get(topicPath(topic, "/jobs"), { ...wanted, limit: PAGE, after });
    if (!page.jobs.length && !after) {
      fill(place, card("", h("p", { class: "quiet" }, `No job of ${topic} matches.`)));
      return;
    }
    fill(
      place,
      bulkActions(place, topic, wanted),
      jobTable(page.jobs, topic),
      h(
        "div",
        { class: "buttons" },
        after && h("button", { type: "button", onclick: () => showPage(place, topic, wanted, undefined) }, "First page"),
        page.after && h("button", { type: "button", onclick: () => showPage(place, topic, wanted, page.after) }, "Next page"),
      ),
    );
  } catch (error) {
    fill(place, card("", h("p", { class: "bad" }, error.status === 404 ? `There is no topic ${topic} now.` : error.message)));
  }
}

export function jobTable(jobs, topic) {
  const head = ["Job", ...(topic ? [] : ["Topic"]), "State", "Due", "Priority", "Key", "Failed"].map((title) => h("th", { scope: "col", class: title === "Priority" ? "number" : "" }, title));
  const rows = jobs.map((job) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: `#/job/${job.id}` }, String(job.id))),
      !topic && h("td", {}, job.topic),
      h("td", {}, pill(job.state)),
      h("td", { title: job.due, class: "when" }, time(job.due), " ", h("span", { class: "quiet" }, fromNow(job.due))),
      h("td", { class: "number" }, whole(job.priority)),
      h("td", {}, job.key && h("code", {}, job.key)),
      h("td", {}, job.failure && `${job.attempts} × ${job.failure.reason}${job.failure.error ? `: ${job.failure.error.split("\n")[0]}` : ""}`),
    ),
  );
  return h(
    "section",
    { class: "card" },
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": topic ? `Jobs of ${topic}` : "Jobs found" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))),
  );
}

// Actions on all jobs that match: they count the jobs, ask for confirmation, and are done.
function bulkActions(place, topic, wanted) {
  const done = async (title, action, isDangerous, work) => {
    const counted = await attempt(() => call("DELETE", topicPath(topic, `/jobs?${queryOf({ ...wanted, dry_run: true })}`)));
    if (!counted) return;
    const body = h("p", {}, `${whole(counted.matched)} jobs match, reserved ones not counted.`);
    if (!(await ask({ title, body, action, isDangerous }))) return;
    const answer = await attempt(work);
    if (answer) toast(`Done to ${whole(Object.values(answer)[0])} jobs`);
    await showPage(place, topic, wanted, undefined);
  };
  const query = () => queryOf(wanted);
  const hasFilter = Object.values(wanted).some(Boolean);
  const kick = () => done(`Kick all that match in ${topic}?`, "Kick them", false, () => post(topicPath(topic, `/jobs/kick?${query()}`)));
  const cancel = () => done(`Cancel all that match in ${topic}?`, "Cancel them", true, () => call("DELETE", topicPath(topic, `/jobs?${hasFilter ? query() : "all=true"}`)));
  return h(
    "div",
    { class: "row" },
    may("delete", topic) && may("kick", topic) && h("button", { type: "button", onclick: kick }, "Kick all that match …"),
    may("delete", topic) && (hasFilter || may("admin", topic)) && h("button", { type: "button", class: "danger", onclick: cancel }, "Cancel all that match …"),
  );
}

// --- One job -------------------------------------------------------------------------------------

export function jobView(path) {
  const view = new View();
  const place = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Loading …"));
  view.element = place;
  const show = async () => {
    try {
      const job = await get(path);
      fill(place, jobPage(job, show));
    } catch (error) {
      const text = error.status === 404 ? "There is no such job: it was acknowledged or cancelled, or never put." : error.message;
      fill(place, h("h1", {}, "Job"), card("", h("p", { class: error.status === 404 ? "quiet" : "bad" }, text)));
    }
  };
  show();
  return view;
}

function jobPage(job, show) {
  const shown = bodyText(job);
  const failure = job.failure;
  const [error, ...answer] = failure?.error?.split("\n") ?? [];
  return [
    h("div", { class: "title" }, h("h1", {}, `Job ${job.id} `, pill(job.state)), jobActions(job, show)),
    card(
      "",
      facts([
        ["Topic", h("a", { href: `#/topics/${encodeURIComponent(job.topic)}` }, job.topic)],
        job.key && ["Key", h("code", {}, job.key)],
        job.group && ["Group", h("code", {}, job.group)],
        ["Due", `${time(job.due)} (${fromNow(job.due)})`],
        ["Put", `${time(job.created)} (${fromNow(job.created)})`],
        job.expires && ["Held until", `${time(job.expires)} (${fromNow(job.expires)})`],
        ["Priority", whole(job.priority)],
        ["Time to run", duration(job.ttr)],
        ["Attempts", `${whole(job.attempts)}${job.max_attempts ? ` of ${whole(job.max_attempts)}` : ""}`],
        job.retry && ["Its own ladder", ladder(job.retry, job.attempts)],
        job.url && ["Sent to", `${job.method ?? "POST"} ${job.url}`],
        job.headers && ["With the headers", Object.entries(job.headers).map(([name, value]) => `${name}: ${value}`).join(", ")],
        ["So far", `reserved ${job.reserves}, timed out ${job.timeouts}, released ${job.releases}, buried ${job.buries}, kicked ${job.kicks}`],
      ]),
    ),
    failure &&
      card(
        "Last failure",
        facts([
          ["Reason", failure.reason],
          ["When", `${time(failure.at)} (${fromNow(failure.at)})`],
          failure.origin && ["Moved from", failure.origin],
        ]),
        error && h("pre", { tabindex: "0" }, error),
        answer.length > 0 && [h("h3", {}, "The beginning of the last answer"), h("pre", { tabindex: "0" }, answer.join("\n"))],
      ),
    job.history && card(attemptsTitle(job), attempts(job.history)),
    card(`Body (${shown.kind})`, h("pre", { tabindex: "0" }, shown.text)),
  ];
}

function attemptsTitle({ history, attempts: all }) {
  return history.length < all ? `The last ${history.length} of ${whole(all)} attempts that failed` : "The last attempts that failed";
}

function attempts(history) {
  const head = ["Ended", "Lasted", "Who", "Reason", "Then", "Error"].map((title) => h("th", { scope: "col" }, title));
  const rows = history.map((each) =>
    h(
      "tr",
      {},
      h("td", { title: each.ended, class: "when" }, time(each.ended), " ", h("span", { class: "quiet" }, fromNow(each.ended))),
      h("td", {}, duration(each.lasted)),
      h("td", {}, each.who),
      h("td", {}, each.reason),
      h("td", {}, each.outcome),
      h("td", {}, each.error),
    ),
  );
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Attempts" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

function ladder(retry, attempts) {
  const steps = Array.isArray(retry) ? retry : String(retry).split(/[\s,]+/);
  return h("span", {}, steps.map((step, at) => [h("span", { class: at < attempts ? "step past" : "step" }, String(step)), " "]));
}

function jobActions(job, show) {
  const { id, topic, state } = job;
  const path = `/v1/jobs/${id}`;
  const then = (work, done) => async () => {
    if (await attempt(work, done)) await show();
  };
  const rests = state !== "reserved";
  const cancel = async () => {
    const body = h("p", {}, "It is deleted and cannot be brought back.");
    if (await ask({ title: `Cancel job ${id}?`, body, action: "Cancel the job", isDangerous: true })) await then(() => call("DELETE", path), `Job ${id} is cancelled`)();
  };
  const offers = [
    may("kick", topic) && ["delayed", "buried"].includes(state) && h("button", { type: "button", class: "primary", onclick: then(() => post(`${path}/kick`), `Job ${id} is ready`) }, "Kick: ready now"),
    may("put", topic) && rests && h("button", { type: "button", onclick: () => reschedule(job, show) }, "Reschedule …"),
    may("put", topic) && rests && h("button", { type: "button", onclick: () => change(job, show) }, "Change …"),
    may("bury", topic) && ["delayed", "ready"].includes(state) && h("button", { type: "button", onclick: () => bury(job, show) }, "Bury …"),
    may("delete", topic) && rests && h("button", { type: "button", class: "danger", onclick: cancel }, "Cancel …"),
  ].filter(Boolean);
  if (!offers.length) return h("p", { class: "quiet" }, rests ? "This token may only look at the job." : "A worker holds the job: it can be changed when it is back.");
  return h("div", { class: "row" }, offers);
}

async function reschedule(job, show) {
  const when = h("input", { type: "text", id: "when", placeholder: "30m, or 2030-01-01T09:00Z", autocomplete: "off" });
  const body = h("p", {}, h("label", { for: "when" }, "Due after this time from now, or at this moment"), when);
  if (!(await ask({ title: `Reschedule job ${job.id}`, body, action: "Reschedule" }))) return;
  const text = when.value.trim();
  const isMoment = /^\d{4}-/.test(text);
  const due = isMoment ? { at: text } : { delay: text };
  if (await attempt(() => call("PATCH", `/v1/jobs/${job.id}`, due), "It has another time")) await show();
}

async function bury(job, show) {
  const why = h("input", { type: "text", id: "why", placeholder: "wrong amount", autocomplete: "off", maxlength: "1024" });
  const body = [h("p", {}, "It stays among the dead letters until it is kicked. No attempt is counted."), h("label", {}, "Why, for who finds it there", why)];
  if (!(await ask({ title: `Bury job ${job.id}?`, body, action: "Bury the job" }))) return;
  if (await attempt(() => post(`/v1/jobs/${job.id}/bury`, { error: why.value.trim() }), `Job ${job.id} is buried`)) await show();
}

async function change(job, show) {
  const shown = bodyText(job);
  const priority = h("input", { type: "text", id: "priority", inputmode: "numeric", value: String(job.priority) });
  const ttr = h("input", { type: "text", id: "ttr", value: `${job.ttr}s` });
  const text = shown.kind === "bytes" ? null : h("textarea", { id: "text", rows: "10", spellcheck: "false", value: shown.text });
  const body = h(
    "div",
    { class: "stack" },
    h("label", {}, "Priority", priority),
    h("label", {}, "Time to run", ttr),
    text && h("label", {}, `Body (${shown.kind})`, text),
  );
  if (!(await ask({ title: `Change job ${job.id}`, body, action: "Change it" }))) return;
  const changes = {};
  if (priority.value !== String(job.priority)) changes.priority = Number(priority.value);
  if (ttr.value !== `${job.ttr}s`) changes.ttr = ttr.value;
  const work = async () => {
    if (text && text.value !== shown.text) {
      if (shown.kind === "JSON") changes.body = JSON.parse(text.value, exact);
      else changes.body_base64 = btoa(String.fromCharCode(...new TextEncoder().encode(text.value)));
    }
    if (!Object.keys(changes).length) return null;
    return call("PATCH", `/v1/jobs/${job.id}`, changes);
  };
  if (await attempt(work)) {
    toast("It is changed");
    await show();
  }
}
