// Views of the model.

import { bytes, count, moment, rate, rows, skew, span } from "./format.js";
import { grouped, sum } from "./model.js";
import { View } from "./tables.js";

const section = (id) => document.getElementById(id);
const late = (node) => [...node.dropped].filter(([reason]) => reason.startsWith("late")).reduce((all, [, number]) => all + number, 0);
const dropped = (node) => [...node.dropped.values()].reduce((all, number) => all + number, 0);

const TOTALS = [
  ["processed", (model) => rate(sum(model.workers, (worker) => worker.rate)), "rate"],
  ["records committed", (model) => count(sum(model.workers, (worker) => worker.snapshot && worker.snapshot.committed)), "committed"],
  ["lag", (model) => `${count(sum(inputsOf(model), (input) => input.lag) ?? 0)}${model.tasks.some(unknownLag) ? " + ?" : ""}`, "lag"],
  ["tasks running", (model) => `${model.tasks.filter((task) => task.state === "running").length} of ${model.tasks.length}`, "running"],
  ["rows", (model) => rows(storesOf(model)), "keys"],
  ["to restore", (model) => count(sum(model.tasks, (task) => task.restore)), "restore"],
  ["dropped", (model) => count(sum(model.nodes, dropped) ?? 0), "dropped"],
];

function inputsOf(model) {
  return model.tasks.flatMap((task) => task.inputs.map((input) => ({ ...input, task: task.id, worker: task.worker })));
}

function storesOf(model) {
  return model.tasks.flatMap((task) => task.stores.map((store) => ({ ...store, task: task.id })));
}

/** Whether a task does not run yet, or the end of an input is unknown. */
function unknownLag(task) {
  return !task.inputs.length || task.inputs.some((input) => input.lag === null);
}

/** All views except the picture. */
export class Views {
  constructor() {
    this.totals = new Map();
    for (const [title, , name] of TOTALS) {
      const box = document.createElement("div");
      const term = document.createElement("dt");
      const value = document.createElement("dd");
      term.textContent = title;
      value.dataset.total = name;
      box.append(term, value);
      section("totals").append(box);
      this.totals.set(name, value);
    }
    this.inputs = new View(section("inputs"), "Input partitions", [
      ["topic", "name", (row) => row.topic],
      ["partition", "number", (row) => String(row.partition)],
      ["task", "", (row) => row.task],
      ["read", "number", (row) => rate(row.rate)],
      ["lag", "number", (row) => count(row.lag), (row) => (row.lag > 0 ? "warn" : "")],
      ["behind", "number", (row) => span(row.lag ? row.behindMs : 0)],
      ["event time", "number", (row) => moment(row.eventTimeMs)],
    ]);
    this.outputs = new View(section("outputs"), "Topics written by this host", [
      ["topic", "name", (row) => row.topic],
      ["written", "number", (row) => rate(row.rate)],
      ["total", "number", (row) => count(row.sent)],
    ]);
    this.stores = new View(section("stores"), "Stores of all tasks", [
      ["store", "name", (row) => row.name],
      ["tasks", "number", (row) => String(row.tasks)],
      ["rows", "number", (row) => row.rows],
      ["size", "number", (row) => bytes(row.size)],
      ["uncommitted", "number", (row) => bytes(row.uncommitted)],
      ["cached", "number", (row) => bytes(row.cached)],
      ["to restore", "number", (row) => count(row.restore), (row) => (row.restore ? "warn" : "")],
    ]);
    this.steps = new View(section("steps"), "Nodes with their time and dropped records", [
      ["node", "name", (row) => row.name],
      ["sub-topology", "number", (row) => String(row.sub)],
      ["time (of one core)", "number", (row) => (row.busy === null ? "–" : `${(row.busy * 100).toFixed(0)} %`)],
      ["late", "number", (row) => count(late(row)), (row) => (late(row) ? "warn" : "")],
      ["dropped", "number", (row) => count(dropped(row)), (row) => (dropped(row) ? "warn" : "")],
      ["reasons", "name", (row) => [...row.dropped].map(([reason, number]) => `${reason}: ${count(number)}`).join(", ")],
    ]);
    this.workers = new View(section("workers"), "Workers of this host", [
      ["worker", "number", (row) => String(row.index)],
      ["host and member", "name", (row) => (row.snapshot ? row.snapshot.id : "–")],
      ["state", "", (row) => row.state, (row) => (row.state.toLowerCase() === "running" ? "good" : "warn")],
      ["process", "number", (row) => (row.pid === null ? "none" : String(row.pid))],
      ["tasks", "number", (row) => (row.snapshot ? String(row.snapshot.tasks.length) : "–")],
      ["processed", "number", (row) => rate(row.rate)],
      ["CPU", "number", (row) => (row.cpu === null ? "–" : `${(row.cpu * 100).toFixed(0)} %`)],
      ["memory", "number", (row) => bytes(row.snapshot && row.snapshot.memory_bytes)],
      ["commits", "number", (row) => count(row.snapshot && row.snapshot.commits)],
      ["aborted", "number", (row) => count(row.snapshot && row.snapshot.aborted)],
      ["restarts", "number", (row) => count(row.restarts), (row) => (row.restarts ? "warn" : "")],
    ]);
    this.tasks = new View(section("tasks"), "Tasks", [
      ["task", "", (row) => row.id],
      ["worker", "number", (row) => String(row.worker)],
      ["state", "", (row) => row.state, (row) => (row.state === "running" ? "good" : "warn")],
      ["time in state", "number", (row) => span(row.stateS * 1000)],
      ["processed", "number", (row) => rate(row.rate)],
      ["committed", "number", (row) => count(row.committed)],
      ["lag", "number", (row) => (unknownLag(row) ? "–" : count(sum(row.inputs, (input) => input.lag)))],
      ["stream time", "number", (row) => moment(row.streamTimeMs)],
      ["event-time skew", "name", (row) => skew(row.skew)],
      ["to restore", "number", (row) => count(row.restore)],
    ]);
    this.events = new View(section("events"), "Events since the page was opened, newest first", [
      ["at", "", (row) => row.at],
      ["event", "name", (row) => row.text, (row) => row.kind],
    ]);
  }

  show(model, events) {
    for (const [, text, name] of TOTALS) this.totals.get(name).textContent = text(model);
    const inputs = inputsOf(model).sort((a, b) => (b.lag ?? 0) - (a.lag ?? 0) || a.topic.localeCompare(b.topic) || a.partition - b.partition);
    this.inputs.show(inputs, (row) => `${row.task} ${row.topic}`);
    this.outputs.show(model.outputs, (row) => row.topic);
    const stores = [...grouped(storesOf(model), (store) => store.name)].map(([name, all]) => ({
      name,
      tasks: all.length,
      rows: rows(all),
      size: sum(all, (store) => store.size_bytes),
      uncommitted: sum(all, (store) => store.uncommitted_bytes),
      cached: sum(all, (store) => store.cached_bytes),
      restore: sum(all, (store) => store.restore_remaining),
    }));
    this.stores.show(stores, (row) => row.name);
    this.steps.show([...model.nodes].sort((a, b) => (b.busy ?? 0) - (a.busy ?? 0) || a.sub - b.sub || a.name.localeCompare(b.name)), (row) => `${row.sub} ${row.name}`);
    this.workers.show(model.workers, (row) => String(row.index));
    this.tasks.show(model.tasks, (row) => row.id);
    this.events.show(events, (row) => row.id);
  }
}
