// Queries of stores, and their changes.

import { ask, eventsOf, exactly } from "./api.js";
import { View } from "./tables.js";

const ROWS = 100;
const CHANGES_KEPT = 200;
const SHOWN_MOST = 200_000;
const TIMED = ["window", "session"];

const find = (id) => document.getElementById(id);

export class Ask {
  constructor() {
    this.stores = new Map();
    this.page = null;
    this.following = null;
    this.changes = new View(find("changes"), "Changes, newest first", [
      ["key", "name", (row) => text(row.key)],
      ["value", "name", (row) => (row.deleted ? "deleted" : text(row.value)), (row) => (row.deleted ? "warn" : "")],
      ["partition", "number", (row) => String(row.partition)],
      ["offset", "number", (row) => String(row.offset)],
    ]);
    find("question").addEventListener("submit", (event) => {
      event.preventDefault();
      this.question(null);
    });
    find("more").addEventListener("click", () => this.question(this.page));
    find("follow").addEventListener("click", () => (this.following ? this.stop() : this.follow()));
    find("store").addEventListener("change", () => this.fits());
    find("what").addEventListener("change", () => this.fits());
  }

  /** Load the list of stores. */
  async begin(served) {
    if (!served) {
      find("unasked").textContent = "Stores are not served here. Start headrace run with --queries.";
      return;
    }
    let found;
    try {
      found = (await ask("/api/stores")).stores;
    } catch (error) {
      find("unasked").textContent = error.message;
      return;
    }
    this.stores = new Map(found.map((store) => [store.name, store]));
    find("store").replaceChildren(...found.map((store) => option(store.name, `${store.name} (${store.kind})`)));
    find("unasked").hidden = true;
    find("question").hidden = false;
    this.fits();
  }

  /** Show the queries that the store supports, and hide unused fields. */
  fits() {
    const timed = TIMED.includes((this.stores.get(find("store").value) ?? {}).kind);
    const what = find("what");
    what.querySelector("[value=prefix]").disabled = timed;
    if (timed && what.value === "prefix") what.value = "key";
    find("key-field").hidden = what.value === "range";
    find("from-field").hidden = find("to-field").hidden = !(what.value === "range" || (timed && what.value === "key"));
    find("key-word").textContent = what.value === "prefix" ? "prefix" : "key";
    find("from").placeholder = find("to").placeholder = timed ? "2026-01-31T09:00:00Z" : "";
  }

  path(after) {
    const what = find("what").value;
    const given = new URLSearchParams();
    const take = (name, id) => find(id).value !== "" && !find(`${id}-field`).hidden && given.set(name, find(id).value);
    if (what === "key") given.set("key", find("key").value);
    if (what === "prefix") given.set("prefix", find("key").value);
    take("from", "from");
    take("to", "to");
    if (what !== "key" || given.has("from") || TIMED.includes(this.stores.get(find("store").value).kind)) given.set("limit", ROWS);
    if (after !== null) given.set("after", after);
    const words = { key: "get", range: "range", prefix: "prefix" };
    return `/api/stores/${encodeURIComponent(find("store").value)}/${words[what]}?${given}`;
  }

  async question(after) {
    say("loading …", "plain");
    const begun = performance.now();
    try {
      const found = await ask(this.path(after), exactly);
      const took = `${(performance.now() - begun).toFixed(0)} ms`;
      const rows = found.rows ? `${found.rows.length} ${found.rows.length === 1 ? "row" : "rows"}` : "a row";
      say(`${rows}, in ${took}${found.after ? "; more rows follow" : ""}`, "plain");
      this.show(found);
    } catch (error) {
      say(error.message, "bad");
      this.show(null);
    }
  }

  show(found) {
    this.page = found && found.after ? found.after : null;
    find("more").hidden = this.page === null;
    const whole = found === null ? "" : JSON.stringify(found, null, 1);
    find("answer").textContent = whole.length > SHOWN_MOST ? `${whole.slice(0, SHOWN_MOST)}\n… and more` : whole;
    find("answer-box").hidden = found === null;
  }

  async follow() {
    const store = find("store").value;
    const key = find("what").value === "key" && find("key").value !== "" ? `?${new URLSearchParams({ key: find("key").value })}` : "";
    const stop = new AbortController();
    this.following = stop;
    find("follow").textContent = "Stop";
    find("changes").hidden = false;
    let told = [];
    this.changes.show([], rowId);
    say(`following ${key ? `${find("key").value} in ${store}` : store} …`, "plain");
    try {
      for await (const [name, data] of eventsOf(`/api/stores/${encodeURIComponent(store)}/changes${key}`, stop.signal)) {
        if (name === "closed") throw new Error(data.reason);
        if (name !== "change") continue;
        told = [data, ...told].slice(0, CHANGES_KEPT);
        this.changes.show(told, rowId);
      }
      say("the connection was closed", "bad");
    } catch (error) {
      if (error.name !== "AbortError") say(error.message, "bad");
    }
    if (this.following === stop) this.stop();
  }

  stop() {
    this.following.abort();
    this.following = null;
    find("follow").textContent = "Follow changes";
    if (find("message").dataset.kind !== "bad") say("", "plain");
  }
}

const rowId = (row) => `${row.partition}:${row.offset}`;
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function option(value, words) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = words;
  return made;
}

function say(words, kind) {
  find("message").textContent = words;
  find("message").dataset.kind = kind;
}
