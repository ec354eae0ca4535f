// Replaces the page's main part every few seconds while it is looked at. The server renders all.
"use strict";
const EVERY_MS = 3000;
const live = document.getElementById("live");

async function refresh() {
  if (document.hidden || String(getSelection())) return;
  try {
    const response = await fetch(location.href, { redirect: "manual", cache: "no-store" });
    if (response.type === "opaqueredirect") { location.href = "/login"; return; }
    if (!response.ok) throw new Error(response.status);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const open = new Set([...document.querySelectorAll("details[open]")].map((d) => d.id));
    page.querySelectorAll("details").forEach((d) => { d.open = open.has(d.id); });
    const log = document.querySelector("pre.log");
    const atEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    const was = log ? log.scrollTop : 0;
    document.getElementById("main").replaceWith(page.getElementById("main"));
    document.title = page.title;
    showLog(atEnd, was);
    live.textContent = "";
  } catch {
    live.textContent = "The master does not answer; this is what it said last.";
  }
}

function showLog(atEnd, was) {
  const log = document.querySelector("pre.log");
  if (log) log.scrollTop = atEnd ? log.scrollHeight : was;
}

showLog(true, 0);
setInterval(refresh, EVERY_MS);
