// The page: the view of an address, logging in, the theme, and a banner while the daemon does not answer.

import { get, session } from "./api.js";
import { calendarView } from "./calendar.js";
import { deadView } from "./dead.js";
import { fill, h } from "./dom.js";
import { jobsView, jobView } from "./jobs.js";
import { overview } from "./overview.js";
import { newScheduleView, scheduleView } from "./schedule.js";
import { schedulesView } from "./schedules.js";
import { topicView } from "./topics.js";

const VIEWS = [["#/", "Overview", "stats"], ["#/calendar", "Calendar", "peek"], ["#/schedules", "Schedules", "peek"], ["#/jobs", "Jobs", "peek"], ["#/dead", "Dead letters", "peek"]];
const main = document.getElementById("main");
let view = null;

function viewOf(path, query) {
  const [first, ...rest] = path.split("/").slice(1).map(decodeURIComponent);
  if (first === "calendar") return calendarView(query);
  if (first === "jobs") return jobsView(query);
  if (first === "job") return jobView(`/v1/jobs/${encodeURIComponent(rest[0] ?? "")}`);
  if (first === "key") return jobView(`/v1/topics/${encodeURIComponent(rest[0])}/keys/${encodeURIComponent(rest[1])}`);
  if (first === "dead") return deadView(query);
  if (first === "schedules") return rest[0] ? scheduleView(rest[0]) : schedulesView(query);
  if (first === "new-schedule") return newScheduleView(query);
  if (first === "topics") return topicView(rest[0]);
  return overview();
}

function show() {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  view?.end();
  view = viewOf(path, new URLSearchParams(query ?? ""));
  fill(main, view.element);
  const root = `#/${path.split("/")[1]}`.replace(/^#\/(job|key)$/, "#/jobs").replace("#/topics", "#/").replace("#/new-schedule", "#/schedules");
  fill(
    document.getElementById("nav"),
    VIEWS.filter(([, , scope]) => session.access.scopes.includes(scope)).map(([href, title]) =>
      h("a", { href, "aria-current": href === root ? "page" : undefined }, title),
    ),
  );
  document.title = `${VIEWS.find(([href]) => href === root)?.[1] ?? "delayd"} · delayd`;
}

// --- The token and its name -----------------------------------------------------------------------

async function begin() {
  try {
    session.access = await get("/v1/access");
  } catch (error) {
    if (error.status !== 401) setTimeout(begin, 2000);
    return;
  }
  tools();
  show();
}

session.needsToken = () => {
  if (document.getElementById("login")) return;
  view?.end();
  view = null;
  const wasWrong = Boolean(session.token);
  session.token = "";
  const token = h("input", { type: "password", id: "token", autocomplete: "off", required: true, "aria-describedby": "token-about" });
  const form = h(
    "form",
    { class: "card login", id: "login", onsubmit: enter },
    h("h1", {}, "Log in"),
    wasWrong && h("p", { class: "bad", role: "alert" }, "The token is not valid, or not any more."),
    h("label", { for: "token" }, "Token"),
    token,
    h("p", { class: "quiet", id: "token-about" }, "As ", h("code", {}, "delayd token create"), " has shown it. It is kept in this tab until it is closed."),
    h("button", { type: "submit", class: "primary" }, "Log in"),
  );
  function enter(event) {
    event.preventDefault();
    session.token = token.value.trim();
    form.remove();
    begin();
  }
  fill(document.getElementById("nav"));
  fill(main, form);
  token.focus();
};

function tools() {
  const theme = h("button", { type: "button", class: "plain", "aria-label": "Light or dark", title: "Light or dark", onclick: turnTheme }, "◐");
  const leave = session.token && h("button", { type: "button", class: "plain", onclick: logOut }, "Log out");
  const name = session.token && h("span", { class: "quiet" }, session.access.name);
  const zone = h("span", { class: "quiet", title: "The times of this page and of the commands" }, "Times in UTC");
  fill(document.getElementById("tools"), zone, name, leave, theme);
}

function logOut() {
  session.token = "";
  location.reload();
}

// --- Light and dark -------------------------------------------------------------------------------

const THEME = "delayd.theme";
const isDark = window.matchMedia("(prefers-color-scheme: dark)");

function useTheme() {
  const chosen = localStorage.getItem(THEME) ?? (isDark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = chosen;
  document.dispatchEvent(new Event("themechange"));
}

function turnTheme() {
  localStorage.setItem(THEME, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  useTheme();
}

// --- The banner while the daemon does not answer --------------------------------------------------

let wasHeard = true;

session.isHeard = (isHeard) => {
  if (isHeard === wasHeard) return;
  wasHeard = isHeard;
  const banner = document.getElementById("banner");
  banner.hidden = isHeard;
  banner.textContent = isHeard ? "" : "The daemon does not answer. What is shown is old; this page asks again.";
  if (isHeard && view) show();
};

isDark.addEventListener("change", useTheme);
window.addEventListener("hashchange", () => view && show());
useTheme();
begin();
