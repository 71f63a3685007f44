// Replaces the table when the server says that something has changed. The server escapes what it sends.
"use strict";
const live = document.getElementById("live");
const devices = document.getElementById("devices");
const parser = new DOMParser();
let busy = false;
let again = false;
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    do {
      again = false;
      // A selected command line is about to be copied: it stays until it is not selected any more.
      if (!document.getSelection().isCollapsed) { again = false; continue; }
      const answer = await fetch("/devices");
      if (!answer.ok) { throw new Error(answer.status); }
      const part = parser.parseFromString(await answer.text(), "text/html");
      devices.replaceChildren(...part.body.childNodes);
    } while (again);
  } catch (error) {
    live.textContent = "not live: " + error.message;
  } finally {
    busy = false;
  }
}
const events = new EventSource("/events");
events.addEventListener("open", () => { live.textContent = "live"; });
events.addEventListener("error", () => { live.textContent = "not live: the connection is lost"; });
events.addEventListener("status", refresh);
document.addEventListener("selectionchange", () => { if (document.getSelection().isCollapsed) { refresh(); } });
