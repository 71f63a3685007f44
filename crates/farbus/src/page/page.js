// Shows what the server says has changed. The server escapes what it sends.
"use strict";
const RETRY_MS = 3000;
const TYPED_MS = 150;
const live = document.getElementById("live");
const main = document.getElementById("main");
const parser = new DOMParser();
let events = null;
let isBusy = false;
let isStale = false;

document.documentElement.classList.add("script");

// An element of a list, from its HTML: a row is one only in a table.
function made(html, list) {
  const isRow = list.tagName === "TBODY";
  const parsed = parser.parseFromString(isRow ? "<table><tbody>" + html + "</tbody></table>" : html, "text/html");
  return isRow ? parsed.querySelector("tr") : parsed.body.firstElementChild;
}

// What the keyboard would lose with the part that it is in.
function focused() {
  const part = document.activeElement.closest("[data-parts] > *");
  const stops = part ? [...part.querySelectorAll("a, button, [tabindex]")] : [];
  return part && { key: part.id, stop: stops.indexOf(document.activeElement) };
}

function focusAgain(had) {
  const part = had && document.getElementById(had.key);
  if (part && !part.contains(document.activeElement)) {
    part.querySelectorAll("a, button, [tabindex]")[had.stop]?.focus({ preventScroll: true });
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
      } else if (answer.ok) {
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
    if (there) { there.replaceWith(part); }
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

// A text that is selected is about to be copied: it stays until it is not selected any more.
function isHeld() {
  isStale = !document.getSelection().isCollapsed;
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
      if (answer.status === 401) { live.textContent = "not live: " + await answer.text(); return; }
      if (answer.status >= 500) { throw new Error("status " + answer.status); }
      const parsed = parser.parseFromString(await answer.text(), "text/html");
      const had = focused();
      for (const list of parsed.querySelectorAll("[data-parts]")) {
        const parts = [...list.children].map((part) => {
          const is = document.getElementById(part.id)?.outerHTML === part.outerHTML;
          return is ? [part.id] : [part.id, part.outerHTML];
        });
        show(document.getElementById(list.id), parts);
      }
      focusAgain(had);
      main.dataset.version = parsed.getElementById("main").dataset.version;
      refresh();
    } while (isStale && !isHeld());
    follow();
  } catch (error) {
    live.textContent = "not live: " + error.message;
    setTimeout(reload, RETRY_MS);
  } finally {
    isBusy = false;
  }
}

function follow() {
  events?.close();
  const view = encodeURIComponent(main.dataset.view);
  const source = new EventSource("/events?view=" + view + "&version=" + main.dataset.version);
  events = source;
  source.addEventListener("open", () => { live.textContent = "live"; });
  source.addEventListener("parts", (event) => change(event.data));
  source.addEventListener("reload", reload);
  source.addEventListener("error", () => {
    live.textContent = "not live: the connection is lost";
    // A browser tries again by itself, unless it was refused.
    if (source.readyState === EventSource.CLOSED && source === events) { setTimeout(reload, RETRY_MS); }
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
    live.textContent = "copied";
  } catch {
    document.getSelection().selectAllChildren(line);
  }
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.do");
  if (!button) { return; }
  const line = button.parentElement.querySelector("code").textContent;
  const given = JSON.parse(button.dataset.given);
  for (const field of button.parentElement.querySelectorAll("input")) {
    given[field.name] = field.value.trim();
    if (given[field.name] === "") { live.textContent = field.placeholder + " is missing"; field.focus(); return; }
  }
  button.disabled = true;
  live.textContent = line + " …";
  try {
    const headers = { "Content-Type": "application/json" };
    const at = button.dataset.at ?? "/api/v1/actions/" + button.dataset.action;
    const answer = await fetch(at, { method: "POST", headers, body: JSON.stringify(given) });
    const text = await answer.text();
    const isJson = answer.headers.get("Content-Type") === "application/json";
    const failure = isJson ? JSON.parse(text).failure : { message: text };
    live.textContent = failure ? "failed: " + failure.message : answer.status === 202 ? "begun" : "done";
  } catch (error) {
    live.textContent = "failed: " + error.message;
  } finally {
    button.disabled = false;
  }
});
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
