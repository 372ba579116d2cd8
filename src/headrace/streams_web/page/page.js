// Loads and shows the state of the application each second.

import { ask, keepToken, Refused } from "./api.js";
import { Ask } from "./ask.js";
import { Beside } from "./beside.js";
import { eventsBetween, modelOf } from "./model.js";
import { draw } from "./picture.js";
import { Views } from "./views.js";

const EVERY_MS = 1000;
const RATES_OVER_MS = 2000;
const ANSWERS_KEPT = 6;
const EVENTS_KEPT = 100;

const find = (id) => document.getElementById(id);
const views = new Views();
const stores = new Ask();
const beside = new Beside();
const answers = [];
let events = [];
let eventNumber = 0;
let topology = null;

function say(text, kind) {
  const word = find("word");
  if (word.textContent !== text) word.textContent = text;
  word.dataset.kind = kind;
}

function wordOf(model) {
  const states = model.workers.map((worker) => worker.state);
  const oldest = model.workers.length - states.filter((state) => state.toLowerCase() === "running").length;
  if (!oldest) return [`${states.length} ${states.length === 1 ? "worker runs" : "workers run"}`, "good"];
  return [`${oldest} of ${states.length} workers: ${[...new Set(states)].join(", ")}`, "warn"];
}

async function look() {
  const snapshot = await ask("/api/snapshot");
  if (topology === null || topology.topology !== snapshot.topology) {
    topology = await ask("/api/topology");
    stores.begin(topology.queries);
  }
  const now = performance.now();
  const last = answers.at(-1);
  const before = answers.findLast((one) => now - one.at >= RATES_OVER_MS) ?? answers[0];
  if (last) note(eventsBetween(snapshot, last.snapshot));
  answers.push({ at: now, snapshot });
  if (answers.length > ANSWERS_KEPT) answers.shift();
  const model = modelOf(snapshot, before ? before.snapshot : null);
  find("application").textContent = model.application;
  document.title = `${model.application} – Headrace`;
  find("version").textContent = model.version;
  find("token").hidden = true;
  say(...wordOf(model));
  views.show(model, events);
  draw(find("picture"), topology, model);
  await beside.look(topology.queries);
}

function note(found) {
  const at = new Date().toLocaleTimeString();
  for (const event of found) {
    eventNumber += 1;
    events = [{ ...event, at, id: String(eventNumber) }, ...events].slice(0, EVENTS_KEPT);
  }
}

async function turn() {
  try {
    if (!document.hidden) await look();
  } catch (error) {
    if (error instanceof Refused) {
      say("a token is required", "bad");
      find("token").hidden = false;
      find("refused").textContent = error.message;
      return; // submitting the form continues
    }
    say(error instanceof TypeError ? "the server does not answer, so the data below is outdated" : error.message, "bad");
  }
  setTimeout(turn, EVERY_MS);
}

find("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(find("secret").value);
  turn();
});

find("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
});

function here() {
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === location.hash) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}
addEventListener("hashchange", here);
here();
turn();
