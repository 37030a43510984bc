// @ts-check
// The console's only script. It fetches the page again as often as the page says
// and changes the document where the new page differs, so that focus, a
// half-typed number, an open table and the pointer's target stay; it sends the
// buttons' and forms' wishes to the API; it reads charts out at the cursor; it
// keeps the choice of a theme. Everything that is shown comes from the server.
"use strict";

const themes = ["system", "light", "dark"];

/** @param {string} theme */
function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function storedTheme() {
  try {
    const theme = localStorage.getItem("theme");
    return theme && themes.includes(theme) ? theme : "system";
  } catch { // storage may be forbidden
    return "system";
  }
}

// Before the body exists, so that the page does not flash in the other theme.
applyTheme(storedTheme());

/** @type {Record<string, Intl.DateTimeFormatOptions>} */
const forms = {
  clock: { hour: "2-digit", minute: "2-digit", second: "2-digit" },
  minute: { hour: "2-digit", minute: "2-digit" },
  day: { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" },
  date: { day: "numeric", month: "short" },
  cursor: { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" },
  full: { day: "numeric", month: "long", year: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short" },
};
/** @type {Map<string, Intl.DateTimeFormat>} */
const formats = new Map();

/**
 * A time in the viewer's zone.
 * @param {string | null | undefined} stamp
 * @param {string} form a key of forms
 */
function local(stamp, form) {
  const at = new Date(stamp ?? "");
  if (Number.isNaN(at.valueOf())) return "";
  let format = formats.get(form);
  if (!format) formats.set(form, (format = new Intl.DateTimeFormat("en-GB", forms[form])));
  return format.format(at);
}

/**
 * Shows times in the viewer's zone.
 * @param {Document} doc
 */
function localTimes(doc) {
  for (const t of doc.querySelectorAll("time[datetime]:not([data-ago])")) {
    const form = ["clock", "day"].find((f) => t.hasAttribute(`data-${f}`)) ?? "full";
    t.textContent = local(t.getAttribute("datetime"), form) || t.textContent;
  }
  for (const t of doc.querySelectorAll("text[data-time]")) {
    t.textContent = local(t.getAttribute("data-time"), t.hasAttribute("data-date") ? "date" : "minute") || t.textContent;
  }
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) for (const z of doc.querySelectorAll("[data-zone]")) z.textContent = `${zone.replaceAll("_", " ")} time`;
}

/**
 * Makes a node equal to another one, in place.
 * @param {Node} from
 * @param {Node} to
 */
function morph(from, to) {
  if (from.nodeName !== to.nodeName) {
    from.parentNode?.replaceChild(to, from);
    return;
  }
  if (!(from instanceof Element) || !(to instanceof Element)) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.matches(".readout")) return; // the cursor's own
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !(name === "open" && from.nodeName === "DETAILS")) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  morphChildren(from, to);
}

/** @param {Node | null} node */
const keyOf = (node) => (node instanceof HTMLElement ? node.dataset.key : undefined);

/**
 * Makes the children of an element equal to those of another one. A child with a
 * data-key stays the node of that key wherever it goes, with what is open or in
 * focus within; the others are taken in order.
 * @param {Element} from
 * @param {Element} to
 */
function morphChildren(from, to) {
  const next = [...to.childNodes];
  const wanted = new Set(next.map(keyOf));
  /** @type {Map<string, Element>} those that are still to be given their place */
  const kept = new Map();
  for (const child of from.children) {
    const key = keyOf(child);
    if (key && wanted.has(key)) kept.set(key, child);
  }
  let at = from.firstChild;
  const pass = () => {
    const node = /** @type {ChildNode} */ (at);
    at = node.nextSibling;
    return node;
  };
  for (const child of next) {
    const key = keyOf(child) ?? "";
    const mine = kept.get(key);
    // What is not wanted any more goes. So does what has no key where a child with one
    // belongs, since moving that one instead would take the focus from it.
    while (at && at !== mine && (key || keyOf(at)) && !kept.has(keyOf(at) ?? "")) pass().remove();
    if (mine) {
      kept.delete(key);
      if (at === mine) pass();
      else from.insertBefore(mine, at);
      morph(mine, child);
    } else if (!key && at && !keyOf(at)) {
      morph(pass(), child);
    } else {
      from.insertBefore(child, at);
    }
  }
  while (at) pass().remove();
}

/** @param {string} id */
const byID = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

const every = () => Number(byID("content").dataset.refresh) || 0;

let updated = Date.now(); // of the last page that arrived
let timer = 0;
let asking = false;

async function refresh() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Warden-Refresh": "1" }, cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    if (answer.redirected) location.assign(answer.url); // the login ended
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    localTimes(next);
    morph(byID("content"), /** @type {Element} */ (next.getElementById("content")));
    for (const plot of document.querySelectorAll(".plot[data-at]")) point(plot, Number(plot.getAttribute("data-at")));
    updated = Date.now();
  } catch {
    // showAge says so.
  }
  asking = false;
  showAge();
  if (!document.hidden && every()) timer = setTimeout(refresh, every());
}

function showAge() {
  const seconds = Math.round((Date.now() - updated) / 1000);
  const broken = every() > 0 && seconds > 3 + every() / 1000;
  document.documentElement.toggleAttribute("data-broken", broken);
  if (every()) byID("live-text").textContent = broken ? "no connection" : `live · updated ${seconds} s ago`;
  byID("feed").hidden = !broken;
  // Hidden from screen readers, which would say it each second.
  byID("feed-age").textContent = `Last update ${seconds} s ago`;
}

/**
 * Moves a chart's cursor to a column and reads it out; without one it leaves.
 * @param {Element} plot
 * @param {number} column
 */
function point(plot, column) {
  const hits = plot.querySelectorAll(".hit");
  for (const h of plot.querySelectorAll(".hit.at")) h.classList.remove("at");
  const readout = plot.parentElement?.querySelector(".readout");
  const hit = hits[column];
  if (!hit || !readout) {
    plot.removeAttribute("data-at");
    if (readout) readout.textContent = "";
    return;
  }
  plot.setAttribute("data-at", String(column));
  hit.classList.add("at");
  const time = hit.getAttribute("data-time");
  readout.textContent = (time ? `${local(time, "cursor")} · ` : "") + hit.getAttribute("data-say");
}

/**
 * Moves the cursors of all charts that share the axis of one.
 * @param {Element} plot
 * @param {number} column
 */
function pointAll(plot, column) {
  const columns = plot.querySelectorAll(".hit").length;
  for (const other of document.querySelectorAll(".plot")) {
    if (other.querySelectorAll(".hit").length === columns) point(other, column);
  }
}

/**
 * Sends a wish to the API.
 * @param {HTMLElement} wish the button or form
 * @param {string} [body]
 */
async function send(wish, body) {
  const problem = byID("problem");
  problem.hidden = true;
  let done = false;
  try {
    const answer = await fetch(wish.dataset.api ?? "", {
      method: wish.dataset.method,
      headers: body ? { "Content-Type": "application/json" } : {},
      body,
      signal: AbortSignal.timeout(5000),
    });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    done = true;
  } catch (e) {
    problem.textContent = `Not done: ${e instanceof Error ? e.message : e}`;
    problem.hidden = false;
  }
  await refresh();
  // From now on the field follows the page again.
  if (done && wish instanceof HTMLFormElement) wish.reset();
}

document.addEventListener("DOMContentLoaded", () => {
  localTimes(document);
  const theme = document.getElementById("theme");
  if (!theme) return; // the login page, which has nothing else
  const label = () => (theme.textContent = `Theme: ${storedTheme()}`);
  theme.hidden = false;
  label();
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(storedTheme()) + 1) % themes.length];
    try {
      localStorage.setItem("theme", next);
    } catch { // then it lasts as long as the page
    }
    applyTheme(next);
    label();
  });

  document.addEventListener("click", (e) => {
    const button = e.target instanceof Element ? e.target.closest("button[data-api]") : null;
    if (!(button instanceof HTMLButtonElement)) return;
    if (button.dataset.ask && !confirm(button.dataset.ask)) return;
    send(button, button.dataset.body);
  });
  document.addEventListener("submit", (e) => {
    const form = e.target;
    if (!(form instanceof HTMLFormElement) || !form.dataset.field) return;
    e.preventDefault();
    if (form.dataset.ask && !confirm(form.dataset.ask)) return;
    const value = String(new FormData(form).get("value")).trim();
    send(form, JSON.stringify({ [form.dataset.field]: /^[0-9]+$/.test(value) ? Number(value) : value }));
  });
  document.addEventListener("pointermove", (e) => {
    const hit = e.target instanceof Element ? e.target.closest(".hit") : null;
    const plot = hit?.closest(".plot");
    if (hit && plot) pointAll(plot, [...plot.querySelectorAll(".hit")].indexOf(hit));
  });
  document.addEventListener("keydown", (e) => {
    const plot = e.target instanceof Element ? e.target.closest(".plot") : null;
    if (!plot) return;
    const last = plot.querySelectorAll(".hit").length - 1;
    const at = plot.hasAttribute("data-at") ? Number(plot.getAttribute("data-at")) : last + 1;
    /** @type {Record<string, number>} */
    const to = { ArrowLeft: Math.max(at - 1, 0), ArrowRight: Math.min(at + 1, last), Home: 0, End: last, Escape: -1 };
    if (!(e.key in to)) return;
    e.preventDefault();
    pointAll(plot, to[e.key]);
  });
  document.addEventListener("pointerout", (e) => {
    const plot = e.target instanceof Element ? e.target.closest(".plot") : null;
    if (plot && !(e.relatedTarget instanceof Node && plot.contains(e.relatedTarget)) && document.activeElement !== plot) pointAll(plot, -1);
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && every()) refresh();
  });
  setInterval(showAge, 1000);
  if (every()) timer = setTimeout(refresh, every());
});
