// @ts-check
// The console's only script. It fetches the page again each second and changes
// the document where the new page differs, so that focus, a half-typed number
// and the pointer's target stay; it sends the buttons' and forms' wishes to the
// API; it keeps the choice of a theme.
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

/**
 * Shows times in the viewer's zone.
 * @param {Document} doc
 */
function localTimes(doc) {
  for (const t of doc.querySelectorAll("time[datetime]")) {
    const at = new Date(t.getAttribute("datetime") ?? "");
    if (Number.isNaN(at.valueOf())) continue;
    t.textContent = t.hasAttribute("data-clock")
      ? at.toLocaleTimeString("en-GB")
      : at.toLocaleString("en-GB", { day: "numeric", month: "long", year: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
  }
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
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  const now = [...from.childNodes], next = [...to.childNodes];
  next.forEach((child, i) => (i < now.length ? morph(now[i], child) : from.appendChild(child)));
  now.slice(next.length).forEach((child) => child.remove());
}

/** @param {string} id */
const byID = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

let updated = Date.now(); // of the last page that arrived
let timer = 0;
let asking = false;

async function refresh() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    localTimes(next);
    morph(byID("content"), /** @type {Element} */ (next.getElementById("content")));
    updated = Date.now();
  } catch {
    // showAge says so.
  }
  asking = false;
  showAge();
  if (!document.hidden) timer = setTimeout(refresh, 1000);
}

function showAge() {
  const seconds = Math.round((Date.now() - updated) / 1000);
  const broken = seconds > 4;
  document.documentElement.toggleAttribute("data-broken", broken);
  byID("live-text").textContent = broken ? "no connection" : `live · updated ${seconds} s ago`;
  byID("feed").hidden = !broken;
  // Hidden from screen readers, which would say it each second.
  byID("feed-age").textContent = `Last update ${seconds} s ago`;
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
  const theme = byID("theme");
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
    const value = String(new FormData(form).get("value")).trim();
    send(form, JSON.stringify({ [form.dataset.field]: value === "auto" ? value : Number(value) }));
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  setInterval(showAge, 1000);
  timer = setTimeout(refresh, 1000);
});
