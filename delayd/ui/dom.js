// Functions that make elements. Text is only ever set as text, so no content of a job becomes markup.

// Invisible characters, such as those that change the direction of text, are shown as escapes, as on a terminal.
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

const NAMED = "a, button, input, summary";
const nameOf = (each) => each.dataset.name ?? each.getAttribute("href") ?? each.textContent;

// Replaces the content of an element. The focus goes to the new element with the name of the one that had it.
export function fill(element, ...children) {
  const focused = element.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  element.replaceChildren();
  append(element, children);
  if (focused) [...element.querySelectorAll(NAMED)].find((each) => nameOf(each) === focused)?.focus({ preventScroll: true });
  return element;
}

// An element, and the work that is repeated while it is shown.
export class View {
  #timers = new Set();
  #endings = [];
  isOver = false;

  // Does the work at once, and again `ms` after each end; not while the tab is hidden.
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

// Asks a question in a dialog; the promise is true, or false if the dialog was left.
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
