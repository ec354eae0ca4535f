// Replaces the page's main part when there is something new in it, while it is looked at: the page of
// a job waits until the master says so, the others ask every few seconds. The server renders all.
"use strict";
const EVERY_MS = 5000;
const AT_LEAST_MS = 2000;
const live = document.getElementById("live");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function ask(address) {
  const response = await fetch(address, { redirect: "manual", cache: "no-store" });
  if (response.type === "opaqueredirect") { location.href = "/login"; await pause(60000); }
  if (!response.ok) throw new Error(response.status);
  return response;
}

// Until the page would say something else.
async function news() {
  const main = document.getElementById("main");
  if (!main.dataset.live) { await pause(EVERY_MS); return; }
  for (;;) {
    const before = main.dataset.seen;
    const answer = await ask(`${main.dataset.live}?seen=${encodeURIComponent(before)}`);
    if ((await answer.json()).seen !== before) return;
  }
}

async function refresh() {
  const response = await ask(location.href);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const open = new Set([...document.querySelectorAll("details[open]")].map((d) => d.id));
  page.querySelectorAll("details").forEach((d) => { d.open = open.has(d.id); });
  const log = document.querySelector("pre.log");
  const atEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  const was = log ? log.scrollTop : 0;
  document.getElementById("main").replaceWith(page.getElementById("main"));
  document.title = page.title;
  showLog(atEnd, was);
}

async function looked() {
  while (document.hidden || String(getSelection())) await pause(500);
}

async function follow() {
  for (;;) {
    try {
      await looked();
      await news();
      await looked();
      await refresh();
      live.textContent = "";
    } catch {
      live.textContent = "The master does not answer; this is what it said last.";
      await pause(EVERY_MS);
    }
    await pause(AT_LEAST_MS);
  }
}

function showLog(atEnd, was) {
  const log = document.querySelector("pre.log");
  if (log) log.scrollTop = atEnd ? log.scrollHeight : was;
}

showLog(true, 0);
follow();
