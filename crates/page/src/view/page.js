// Shows what the server says has changed. The server escapes what it sends.
"use strict";
const RETRY_MS = 3000;
const TYPED_MS = 150;
// How soon the page looks what became of an operation, and how seldom at last.
const FOLLOW_MS = 200;
const FOLLOW_MS_MAX = 5000;
const live = document.getElementById("live");
const main = document.getElementById("main");
const sure = document.getElementById("sure");
const parser = new DOMParser();
let events = null;
let isBusy = false;
let isStale = false;
// Whether the line beside the title says what became of something; a connection that opens again leaves that.
let isTold = false;
// The timer that loads the view again.
let retry = null;

document.documentElement.classList.add("script");

// Says what became of something, or how live the page is.
function tell(text) {
  live.textContent = text;
  isTold = true;
}
function tellState(text) {
  if (text === "live" && isTold) { return; }
  live.textContent = text;
  isTold = false;
}

// An element of a list, from its HTML: a row is one only in a table.
function made(html, list) {
  const isRow = list.tagName === "TBODY";
  const parsed = parser.parseFromString(isRow ? "<table><tbody>" + html + "</tbody></table>" : html, "text/html");
  return isRow ? parsed.querySelector("tr") : parsed.body.firstElementChild;
}

// What the keyboard stops at.
const STOPS = "a, button, input:not([type=hidden]), select, summary, textarea, [tabindex]";

// What the keyboard would lose with the part that it is in.
function focused() {
  const at = document.activeElement;
  const part = at.closest("[data-parts] > *");
  if (!part) { return null; }
  const form = at.closest("form.do");
  const stop = [...(form ?? part).querySelectorAll(STOPS)].indexOf(at);
  return { at, key: part.id, form: form?.id, stop, caret: at.selectionStart };
}

function focusAgain(had) {
  if (!had || had.at === document.activeElement) { return; }
  const part = document.getElementById(had.key);
  const within = had.form ? document.getElementById(had.form) : part;
  const stop = had.at.isConnected ? had.at : within?.querySelectorAll(STOPS)[had.stop];
  // What has gone leaves the keyboard where its part is, or was.
  (stop ?? part?.querySelector(STOPS) ?? main).focus({ preventScroll: true });
  if (stop === had.at && typeof had.caret === "number") { stop.setSelectionRange(had.caret, had.caret); }
}

// What was typed, and what was unfolded, goes over into a new drawing of its part.
function keepTyped(there, part) {
  for (const form of there.querySelectorAll("form.typed")) {
    const fresh = part.querySelector("#" + CSS.escape(form.id));
    if (!fresh) { continue; }
    if (fresh.dataset.hits) { form.dataset.hits = fresh.dataset.hits; } else { delete form.dataset.hits; }
    fresh.replaceWith(form);
  }
  for (const open of there.querySelectorAll("details[id][open]")) {
    const fresh = part.querySelector("#" + CSS.escape(open.id));
    if (fresh) { fresh.open = true; }
  }
}

// Loads what stands in a part by itself, when the number that it follows is another one than it shows. Plots are told.
async function refresh() {
  document.dispatchEvent(new Event("shown"));
  for (const part of document.querySelectorAll("[data-live]")) {
    const wanted = document.getElementById(part.dataset.follows)?.dataset.number;
    if (wanted === undefined || wanted === part.dataset.shown || part.isLoading) { continue; }
    if (!document.getSelection().isCollapsed) { continue; }
    part.isLoading = true;
    try {
      if (part.tagName === "IMG") {
        // The one before stays until the next is there.
        part.src = part.dataset.live + "?number=" + wanted;
        await part.decode();
        part.dataset.shown = wanted;
        continue;
      }
      const answer = await fetch(part.dataset.live);
      const text = await answer.text();
      if (part.tagName === "PRE") {
        const isAtEnd = part.scrollTop + part.clientHeight + 8 >= part.scrollHeight;
        part.textContent = text;
        if (isAtEnd) { part.scrollTop = part.scrollHeight; }
      } else if (answer.status === 200) {
        const isOpen = part.querySelector("details")?.open ?? false;
        part.replaceChildren(...parser.parseFromString(text, "text/html").body.children);
        if (isOpen) { part.querySelector("details").open = true; }
      }
      part.dataset.shown = wanted;
    } catch {
      // The stream says that the connection is lost, and everything is loaded again.
      return;
    } finally {
      part.isLoading = false;
    }
    // It may have gone on meanwhile.
    refresh();
  }
}

// Makes a list consist of these parts: [id] of one that is there as it is, [id, HTML] of one that is new or different.
function show(list, parts) {
  const wanted = parts.map(([key, html]) => {
    const there = document.getElementById(key);
    if (html === undefined) { return there; }
    const part = made(html, list);
    if (there) {
      keepTyped(there, part);
      there.replaceWith(part);
    }
    return part;
  });
  if (wanted.includes(null)) { return false; }
  const kept = new Set(wanted);
  [...list.children].filter((part) => !kept.has(part)).forEach((part) => part.remove());
  wanted.forEach((part, at) => {
    if (list.children[at] !== part) { list.insertBefore(part, list.children[at] ?? null); }
  });
  return true;
}

// A text that is selected is about to be copied: it stays until it is not selected any more. A question that is open is
// about what is shown.
function isHeld() {
  isStale = sure.open || !document.getSelection().isCollapsed;
  return isStale;
}

function change(data) {
  if (isHeld()) { return; }
  const { version, lists } = JSON.parse(data);
  const had = focused();
  const isShown = Object.entries(lists).every(([id, parts]) => show(document.getElementById(id), parts));
  focusAgain(had);
  if (isShown) { main.dataset.version = version; refresh(); } else { reload(); }
}

// Loads the view and shows what is different.
async function reload() {
  if (isBusy || isHeld()) { isStale = true; return; }
  isBusy = true;
  try {
    do {
      isStale = false;
      const answer = await fetch(main.dataset.view);
      const text = await answer.text();
      if (answer.status === 401 || answer.status === 403) { lock(text); return; }
      const parsed = parser.parseFromString(text, "text/html");
      const fresh = parsed.getElementById("main");
      // What is no view is a line that says why.
      if (!fresh) { throw new Error(answer.status >= 500 ? "status " + answer.status : text.trim()); }
      const had = focused();
      for (const list of parsed.querySelectorAll("[data-parts]")) {
        const parts = [...list.children].map((part) => {
          const is = document.getElementById(part.id)?.outerHTML === part.outerHTML;
          return is ? [part.id] : [part.id, part.outerHTML];
        });
        show(document.getElementById(list.id), parts);
      }
      focusAgain(had);
      main.dataset.version = fresh.dataset.version;
      refresh();
    } while (isStale && !isHeld());
    follow();
  } catch (error) {
    tellState("not live: " + error.message);
    again();
  } finally {
    isBusy = false;
  }
}

// Tries again after a while, once; what is not seen waits until it is.
function again() {
  clearTimeout(retry);
  retry = setTimeout(() => { if (!document.hidden) { reload(); } }, RETRY_MS);
}

// This browser is let in no more: nothing is tried again.
function lock(why) {
  clearTimeout(retry);
  events?.close();
  events = null;
  tellState("not live: " + why.trim() + ". To be let in again, type on the page's machine: farbus page invite");
}

// A browser has six connections to a page over HTTP/1.1: one that is not seen keeps none.
function rest() {
  events?.close();
  events = null;
  tellState("not live: it is not seen");
}

function follow() {
  events?.close();
  events = null;
  if (!main.dataset.view) { return; }
  if (document.hidden) { rest(); return; }
  const view = encodeURIComponent(main.dataset.view);
  const source = new EventSource("/events?view=" + view + "&version=" + main.dataset.version);
  events = source;
  source.addEventListener("open", () => { tellState("live"); });
  source.addEventListener("parts", (event) => change(event.data));
  source.addEventListener("reload", reload);
  source.addEventListener("error", () => {
    tellState("not live: the connection is lost");
    // A browser tries again by itself, unless it was refused.
    if (source.readyState === EventSource.CLOSED && source === events) { again(); }
  });
}

document.addEventListener("selectionchange", () => {
  if (isStale && document.getSelection().isCollapsed) { reload(); }
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) { return; }
  const line = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(line.textContent);
    tell("copied");
  } catch {
    document.getSelection().selectAllChildren(line);
  }
});

// Asks whether it is meant, if somebody loses something by it.
function isMeant(hits, line) {
  if (!hits) { return true; }
  document.getElementById("sure-what").textContent = hits;
  document.getElementById("sure-line").textContent = line;
  sure.returnValue = "";
  sure.showModal();
  return new Promise((answer) => {
    sure.addEventListener("close", () => answer(sure.returnValue === "yes"), { once: true });
  });
}
document.getElementById("sure-no").addEventListener("click", () => sure.close(""));
document.getElementById("sure-yes").addEventListener("click", () => sure.close("yes"));
sure.addEventListener("close", () => { if (isStale) { reload(); } });

const fieldsOf = (form) => [...form.elements].filter((field) => field.name && field.name !== "back");

// What a form's fields have, as its action takes it. What is empty is not given.
function given(form) {
  const all = {};
  for (const field of fieldsOf(form)) {
    if (field.type === "checkbox") { if (field.checked) { all[field.name] = true; } continue; }
    if (field.value === "") { continue; }
    if (field.dataset.kind === "lines") {
      all[field.name] = field.value.split("\n").map((line) => line.trimEnd()).filter((line) => line !== "");
      continue;
    }
    const isNumber = field.dataset.kind === "number" && /^[0-9]{1,15}$/.test(field.value.trim());
    all[field.name] = isNumber ? Number(field.value) : field.value;
  }
  return all;
}

// Says at a field what is wrong with it, and nothing at the others.
function mark(form, wrong) {
  for (const field of fieldsOf(form)) {
    const isIt = wrong?.parameter === field.name;
    const said = document.getElementById(form.id + "-" + field.name + "-wrong");
    if (!said) { continue; }
    said.textContent = isIt ? wrong.message : "";
    if (isIt) { field.setAttribute("aria-invalid", "true"); } else { field.removeAttribute("aria-invalid"); }
    if (isIt) { const folded = field.closest("details"); if (folded) { folded.open = true; } }
  }
  form.querySelector(".said").textContent = wrong && !wrong.parameter ? wrong.message : "";
  return wrong?.parameter ? form.elements.namedItem(wrong.parameter) : null;
}

// Shows the command line of what a form's fields have now. What is missing is no fault yet.
async function showLine(form) {
  const asked = new URLSearchParams();
  for (const field of fieldsOf(form)) {
    if (field.type !== "checkbox" || field.checked) { asked.append(field.name, field.value); }
  }
  const text = asked.toString();
  form.asked = text;
  try {
    const answer = await fetch("/line/" + form.id.slice("do-".length) + "?" + text);
    if (!answer.ok || form.asked !== text) { return; }
    const { line, wrong } = await answer.json();
    form.querySelector("code").textContent = line;
    mark(form, wrong);
  } catch {
    // The stream says that the connection is lost.
  }
}

// Says what becomes of an operation that was begun, beside the title and at its form, until it is done or has failed.
// What was said of something else meanwhile is not replaced by that it is done.
async function followOperation(formId, at, what) {
  const begun = live.textContent;
  for (let wait = FOLLOW_MS; ; wait = Math.min(wait * 2, FOLLOW_MS_MAX)) {
    await new Promise((passed) => { setTimeout(passed, wait); });
    let operation = null;
    try {
      const answer = await fetch(at);
      if (answer.status === 404 || answer.status === 401 || answer.status === 403) { return; }
      operation = await answer.json();
    } catch {
      // The stream says that the connection is lost.
      continue;
    }
    if (operation.state === "running") { continue; }
    const why = operation.failure?.message;
    const form = document.getElementById(formId);
    if (why && form) {
      // A new drawing of its part has this form in it, and what it says.
      form.classList.add("typed");
      mark(form, operation.failure);
    }
    if (why) { tell("failed" + what + ": " + why); } else if (live.textContent === begun) { tell("done" + what); }
    return;
  }
}

async function press(form) {
  const button = form.querySelector("button.do");
  if (button.ariaDisabled === "true") { return; }
  const line = form.querySelector("code").textContent;
  if (!await isMeant(form.dataset.hits, line)) { button.focus(); return; }
  // A new drawing of its part has this form in it: what is answered is said at its fields.
  form.classList.add("typed");
  // A button that is disabled would lose the keyboard's place.
  button.ariaDisabled = "true";
  tell(line + " …");
  try {
    const headers = { "Content-Type": "application/json" };
    const at = form.dataset.at ?? "/api/v1/actions/" + button.dataset.action;
    const body = form.dataset.at ? "{}" : JSON.stringify(given(form));
    const answer = await fetch(at, { method: "POST", headers, body });
    const text = await answer.text();
    const isJson = answer.headers.get("Content-Type") === "application/json";
    const { failure, wrong, command, at: operation } = isJson ? JSON.parse(text) : { failure: { message: text.trim() } };
    const at_fault = mark(form, wrong ?? failure);
    at_fault?.focus();
    const why = (wrong ?? failure)?.message;
    const what = command && !form.dataset.at ? ": " + command : "";
    const goesOn = !why && answer.status === 202;
    tell(why ? "failed: " + why : (goesOn ? "begun" : "done") + what);
    if (goesOn && operation) { followOperation(form.id, operation, what); }
    if (!why) { form.classList.remove("typed"); }
  } catch (error) {
    tell("failed: " + error.message);
  } finally {
    button.ariaDisabled = "false";
  }
}

document.addEventListener("submit", (event) => {
  const form = event.target.closest("form.do");
  if (!form) { return; }
  event.preventDefault();
  press(form);
});
let changed = null;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form.do");
  if (!form) { return; }
  form.classList.add("typed");
  clearTimeout(changed);
  changed = setTimeout(showLine, TYPED_MS, form);
});
document.addEventListener("visibilitychange", () => { if (document.hidden) { rest(); } else { reload(); } });
let typed = null;
document.querySelector("form[role=search]")?.addEventListener("input", (event) => {
  const form = event.currentTarget;
  clearTimeout(typed);
  typed = setTimeout(() => {
    const said = [...new FormData(form)].map(([name, text]) => [name, text.trim()]).filter(([, text]) => text !== "");
    main.dataset.view = said.length === 0 ? "/" : "/?" + new URLSearchParams(said);
    history.replaceState(null, "", main.dataset.view);
    reload();
  }, TYPED_MS);
});
follow();
refresh();
