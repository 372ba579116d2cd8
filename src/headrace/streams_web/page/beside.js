// Data that is loaded less often: hot keys, and workers of other hosts.

import { ask } from "./api.js";
import { View } from "./tables.js";

const EVERY_MS = 3000;

const find = (id) => document.getElementById(id);
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const part = (number) => `${(number * 100).toFixed(0)} %`;

export class Beside {
  constructor() {
    this.next = 0;
    this.hot = new Map();
    find("stores").append(find("hot")); // below the table of this host
    find("workers").append(find("others"));
    this.others = new View(find("others"), "Workers reported by the brokers", [
      ["host", "name", (row) => row.host ?? row.machine],
      ["worker", "name", (row) => row.member],
      ["tasks", "number", (row) => String(row.tasks.length)],
      ["task ids", "name", (row) => row.tasks.join(" ")],
    ]);
  }

  /** Reload if the interval has passed and stores are served. */
  async look(served) {
    if (!served || performance.now() < this.next) return;
    this.next = performance.now() + EVERY_MS;
    await Promise.all([this.load("/api/hot-keys", (found) => this.showHot(found)), this.load("/api/group", (found) => this.showGroup(found))]);
  }

  /** Keep the last state if a request fails. */
  async load(path, show) {
    try {
      show(await ask(path));
    } catch (error) {
      if (error.name === "TypeError") throw error;
    }
  }

  showHot({ stores }) {
    find("hot").hidden = stores.length === 0;
    for (const [name, { box }] of this.hot) {
      if (!stores.some((one) => one.store === name)) {
        box.remove();
        this.hot.delete(name);
      }
    }
    for (const { store, keys } of stores) {
      if (!this.hot.has(store)) this.hot.set(store, tableOf(store));
      this.hot.get(store).view.show(keys, (row) => `${row.partition} ${text(row.key)}`);
    }
  }

  showGroup({ host, members }) {
    const others = host === null ? members : members.filter((one) => one.host !== host);
    find("others").hidden = others.length === 0;
    find("others-title").textContent = host === null ? "Workers of all hosts" : "Workers of other hosts";
    this.others.show(others, (row) => row.member);
  }
}

function tableOf(store) {
  const box = document.createElement("div");
  box.dataset.hot = store;
  const title = document.createElement("h3");
  title.textContent = `Most frequently changed keys of ${store}`;
  box.append(title);
  find("hot").append(box);
  const view = new View(box, `Most frequently changed keys of ${store}`, [
    ["key", "name", (row) => text(row.key)],
    ["partition", "number", (row) => String(row.partition)],
    ["share of commits", "number", (row) => part(row.share), (row) => (row.share - row.max_error > 0.5 ? "warn" : "")],
    ["max. error", "number", (row) => part(row.max_error)],
  ]);
  return { box, view };
}
