// Elements made by functions. Text is only ever set as text, so nothing that a job says becomes markup.

// What cannot be seen as itself, such as what turns the direction of a text, is shown as an escape, as on a terminal.
const HIDDEN = /(?![\n\t])[\p{C}\p{Zl}\p{Zp}]/gu;

export function visible(text) {
  return text.replace(HIDDEN, (each) => {
    const code = each.codePointAt(0).toString(16);
    return code.length > 4 ? `\\U${code.padStart(8, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : visible(String(child)));
  }
}

const NAMED = "a, button, input";
const nameOf = (each) => each.dataset.name ?? each.getAttribute("href") ?? each.textContent;

// What has the focus is replaced by what has its name, so that a page that draws itself anew keeps the keyboard's place.
export function fill(element, ...children) {
  const focused = element.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  element.replaceChildren();
  append(element, children);
  if (focused) [...element.querySelectorAll(NAMED)].find((each) => nameOf(each) === focused)?.focus({ preventScroll: true });
  return element;
}

// A view is an element that may have work to do again and again while it is shown.
export class View {
  #timers = new Set();
  #endings = [];
  isOver = false;

  // Calls at once and then again, so many milliseconds after each end, but not in a hidden tab.
  every(ms, work) {
    const again = async () => {
      if (this.isOver) return;
      if (!document.hidden) await work();
      if (this.isOver) return;
      const timer = setTimeout(() => {
        this.#timers.delete(timer);
        again();
      }, ms);
      this.#timers.add(timer);
    };
    return again();
  }

  atEnd(work) {
    this.#endings.push(work);
  }

  end() {
    this.isOver = true;
    for (const timer of this.#timers) clearTimeout(timer);
    for (const work of this.#endings) work();
  }
}

export function toast(text, kind = "good") {
  const place = document.getElementById("toasts");
  const note = h("p", { class: `toast ${kind}` }, text);
  place.append(note);
  setTimeout(() => note.remove(), kind === "bad" ? 12000 : 5000);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", {}, title), children);
}

export function pill(state) {
  return h("span", { class: `pill ${state}` }, state);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// A question whose answer is a promise: true, or false when it was left.
export function ask({ title, body, action, isDangerous = false, typed = "" }) {
  return new Promise((resolve) => {
    const input = typed && h("input", { type: "text", id: "typed", autocomplete: "off", oninput: check });
    const go = h("button", { type: "submit", class: isDangerous ? "danger" : "primary", disabled: Boolean(typed) }, action);
    function check() {
      go.disabled = input.value !== typed;
    }
    const form = h(
      "form",
      { method: "dialog", onsubmit: () => dialog.close("yes") },
      h("h2", { id: "question" }, title),
      body,
      typed && h("label", { for: "typed" }, "Type ", h("code", {}, typed), " to go on"),
      input,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close("") }, "Leave it"), go),
    );
    const dialog = h("dialog", { "aria-labelledby": "question" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
