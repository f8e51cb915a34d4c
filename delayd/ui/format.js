// Numbers, sizes, durations and times as people read them.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = [["y", 31557600], ["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

export const whole = (number) => WHOLE.format(number);

export const short = (number) => (number < 10000 ? WHOLE.format(number) : SHORT.format(number));

export function rate(perSecond) {
  if (!perSecond) return "0";
  return perSecond >= 100 ? short(Math.round(perSecond)) : perSecond.toPrecision(2).replace(/\.0$/, "");
}

export function size(bytes) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < names.length - 1) {
    bytes /= 1024;
    at += 1;
  }
  return `${at ? bytes.toPrecision(3) : bytes} ${names[at]}`;
}

// The two largest units: 3d 4h, 1m 20s, 850 ms.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 1) return `${seconds < 0.001 ? Number((seconds * 1000).toPrecision(2)) : Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  const at = UNITS.findIndex(([, length]) => seconds >= length);
  const [name, length] = UNITS[at];
  const count = Math.floor(seconds / length);
  const next = UNITS[at + 1];
  const rest = next ? Math.floor((seconds - count * length) / next[1]) : 0;
  return rest ? `${count}${name} ${rest}${next[0]}` : `${count}${name}`;
}

// Of which time a rate is.
export const lately = (window) => (window < 60 ? `last ${duration(Math.floor(window))}` : "last minute");

// A moment as the commands write it, in UTC: 2026-11-21T19:00:00Z, with milliseconds only where there are any.
export const time = (text) => new Date(text).toISOString().replace(".000Z", "Z");

// The same moment by the clocks of a zone, with what they are ahead of UTC: Sat 2026-11-28 02:30 GMT-05:00.
export function inZone(text, timeZone) {
  const options = { timeZone, weekday: "short", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "longOffset" };
  let parts;
  try {
    parts = new Intl.DateTimeFormat("en", options).formatToParts(new Date(text));
  } catch {
    return `${timeZone} is not known to this browser`;
  }
  const { weekday, year, month, day, hour, minute, second, timeZoneName } = Object.fromEntries(parts.map(({ type, value }) => [type, value]));
  return `${weekday} ${year}-${month}-${day} ${hour}:${minute}${second === "00" ? "" : `:${second}`} ${timeZoneName}`;
}

// On a virtual clock `now` is the daemon's, in ms.
export function fromNow(text, now = Date.now()) {
  const seconds = (new Date(text) - now) / 1000;
  return seconds >= 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

// The label of a moment on an axis that spans this many seconds, in UTC.
export function moment(seconds, span) {
  const text = new Date(seconds * 1000).toISOString();
  if (span > 200 * 86400) return text.slice(0, 7);
  if (span > 3 * 86400) return text.slice(5, 10);
  if (span > 86400) return `${text.slice(5, 10)} ${text.slice(11, 16)}`;
  return text.slice(11, span > 600 ? 16 : 19);
}

// The body of a job: JSON with indentation, other text as it is, everything else as hexadecimal digits.
export function bodyText(job) {
  if ("body" in job) return { kind: "JSON", text: JSON.stringify(job.body, null, 2) };
  const bytes = Uint8Array.from(atob(job.body_base64 ?? ""), (each) => each.charCodeAt(0));
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text)) return { kind: "text", text };
  } catch {
    // It is not UTF-8.
  }
  return { kind: "bytes", text: hex(bytes) };
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.slice(at, at + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const shown = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${shown}`);
  }
  return lines.join("\n");
}
