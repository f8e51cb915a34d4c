// Calls of the public HTTP API, with the token that was entered on the page. The token is kept in this tab only.

const TOKEN = "delayd.token";
// A change of a million jobs takes long. Reads, made every few seconds, show early that the daemon does not answer.
const READ_MS = 30000;
const CHANGE_MS = 600000;

export class Refused extends Error {
  constructor(status, problem) {
    const done = problem.put || problem.kicked || problem.cancelled || problem.rescheduled;
    super((problem.detail || problem.title || `status ${status}`) + (done ? `; ${done} jobs had been put or changed before` : ""));
    this.status = status;
    this.word = problem.word ?? "";
    this.errors = problem.errors ?? [];
  }
}

export class Unreachable extends Error {}

export const session = {
  get token() {
    return sessionStorage.getItem(TOKEN) ?? "";
  },
  set token(text) {
    if (text) sessionStorage.setItem(TOKEN, text);
    else sessionStorage.removeItem(TOKEN);
  },
  access: { name: "", scopes: [], topics: [] },
  needsToken: () => {},
  isHeard: () => {},
};

async function send(method, path, content, tag) {
  const headers = {};
  if (tag) headers["If-Match"] = `"${tag}"`;
  if (session.token) headers.Authorization = `Bearer ${session.token}`;
  if (content !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    const body = content === undefined ? undefined : JSON.stringify(content);
    const signal = AbortSignal.timeout(method === "GET" ? READ_MS : CHANGE_MS);
    response = await fetch(path, { method, headers, body, cache: "no-store", signal });
  } catch (error) {
    session.isHeard(false);
    throw new Unreachable("The daemon does not answer.", { cause: error });
  }
  session.isHeard(true);
  if (response.status === 401) {
    session.needsToken();
    throw new Refused(401, { title: "A valid token is needed." });
  }
  return response;
}

// With a `tag` the call is refused, status 412, if what it changes is not as it was with that tag.
export async function call(method, path, content, tag) {
  const response = await send(method, path, content, tag);
  const text = await response.text();
  const answer = text ? JSON.parse(text) : {};
  if ("body" in answer) answer.body = JSON.parse(text, exact).body;
  if (answer.definition?.body) answer.definition.body = JSON.parse(text, exact).definition.body;
  if (!response.ok) throw new Refused(response.status, answer);
  return answer;
}

// Keeps numbers in the body of a job, or of a schedule's jobs, that JavaScript would round or write otherwise, as 1.0, as
// they are written, if the browser supports it.
export function exact(_name, value, context) {
  const isChanged = typeof value === "number" && context?.source !== String(value);
  return isChanged && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}

export const get = (path, query) => call("GET", query ? `${path}?${queryOf(query)}` : path);

export const post = (path, content = {}) => call("POST", path, content);

export function queryOf(values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "") query.append(name, value);
  }
  return query;
}

export const topicPath = (topic, rest = "") => `/v1/topics/${encodeURIComponent(topic)}${rest}`;

// The figures of /metrics: a map from the name, with its labels as written there, to the number.
export async function metrics() {
  const response = await send("GET", "/metrics");
  if (!response.ok) throw new Refused(response.status, {});
  const figures = new Map();
  for (const line of (await response.text()).split("\n")) {
    const at = line.lastIndexOf(" ");
    if (at > 0 && !line.startsWith("#")) figures.set(line.slice(0, at), Number(line.slice(at + 1)));
  }
  return figures;
}

// Whether the token has a scope for a topic. The page offers only actions that the token allows.
export function may(scope, topic) {
  const { scopes, topics } = session.access;
  if (!scopes.includes(scope)) return false;
  return topics.some((glob) => glob === "*" || (topic !== undefined && fits(glob, topic)));
}

// Whether a name matches a glob. It goes back to the last star only: a regular expression would try all stars again.
function fits(glob, topic) {
  let at = 0;
  let star = -1;
  let held = 0; // where the text that the last star matches ends
  for (let character = 0; character < topic.length; ) {
    if (glob[at] === "*") {
      star = at++;
      held = character;
    } else if (at < glob.length && (glob[at] === "?" || glob[at] === topic[character])) {
      at++;
      character++;
    } else if (star >= 0) {
      at = star + 1;
      character = ++held;
    } else return false;
  }
  while (glob[at] === "*") at++;
  return at === glob.length;
}
