// Shows the code of the address to the page, once. A fragment is in no request, and in no log.
"use strict";
const said = document.getElementById("said");
const code = location.hash.slice(1);
const hasLeft = location.search === "?left";
history.replaceState(null, "", location.pathname);

async function enter() {
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch("/api/v1/enter", { method: "POST", headers, body: JSON.stringify({ code }) });
    if (answer.ok) { location.replace("/"); return; }
    said.textContent = await answer.text();
  } catch (error) {
    said.textContent = "the page does not answer: " + error.message;
  }
}

if (code === "" && hasLeft) {
  said.textContent = "Signed out: this browser is not let in any more.";
} else if (code === "") {
  said.textContent = "There is no code in this address.";
} else {
  said.textContent = "…";
  enter();
}
