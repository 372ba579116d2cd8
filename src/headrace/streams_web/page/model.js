// Data of the page, computed from two responses of /api/snapshot, without access to the DOM.

const DECIMALS_OF_TIME = 1e-6;

/** Data of an application, with rates since the previous response. */
export function modelOf(snapshot, before) {
  const tasks = [];
  for (const worker of snapshot.workers) {
    if (worker.snapshot === null || worker.pid === null) continue;
    const earlier = sameProcess(worker, before);
    for (const task of worker.snapshot.tasks) {
      const then = earlier && earlier.snapshot.tasks.find((one) => one.id === task.id);
      tasks.push(taskOf(worker, task, then, earlier));
    }
  }
  return {
    application: snapshot.application,
    version: snapshot.version,
    topology: snapshot.topology,
    workers: snapshot.workers.map((worker) => workerOf(worker, sameProcess(worker, before))),
    tasks: newestOfEach(tasks),
    nodes: nodesOf(snapshot, before),
    outputs: outputsOf(snapshot, before),
  };
}

function sameProcess(worker, before) {
  const found = before && before.workers.find((one) => one.index === worker.index);
  return found && found.snapshot && worker.snapshot && found.pid === worker.pid ? found : null;
}

/** Keep the later report of a task that two workers report while it moves. */
function newestOfEach(tasks) {
  const found = new Map();
  for (const task of tasks) {
    const other = found.get(task.id);
    if (!other || other.atS < task.atS) found.set(task.id, task);
  }
  return [...found.values()].sort((a, b) => a.sub - b.sub || a.partition - b.partition);
}

function perSecond(now, then, seconds) {
  return seconds > DECIMALS_OF_TIME ? Math.max(0, now - then) / seconds : null;
}

function taskOf(worker, task, then, earlier) {
  const seconds = earlier ? worker.snapshot.at_s - earlier.snapshot.at_s : 0;
  const inputs = task.inputs.map((input) => {
    const old = then && then.inputs.find((one) => one.topic === input.topic);
    return {
      topic: input.topic,
      partition: input.partition,
      internal: input.internal,
      lag: input.end === null ? null : Math.max(0, input.end - input.committed),
      behindMs: input.behind_ms,
      eventTimeMs: input.event_time_ms,
      rate: old ? perSecond(input.processed, old.processed, seconds) : null,
      written: old && old.end !== null ? perSecond(input.end, old.end, seconds) : null,
    };
  });
  return {
    id: task.id,
    sub: task.sub_topology,
    partition: task.partition,
    worker: worker.index,
    atS: worker.snapshot.at_s,
    state: worker.snapshot.is_paused && task.state !== "unresponsive" ? "paused" : task.state,
    stateS: task.state_s,
    streamTimeMs: task.stream_time_ms,
    skew: task.skew,
    processed: task.processed,
    committed: task.committed,
    rate: then ? perSecond(task.processed, then.processed, seconds) : null,
    inputs,
    stores: task.stores,
    restore: task.stores.reduce((sum, store) => sum + store.restore_remaining, 0),
  };
}

function workerOf(worker, earlier) {
  const snapshot = worker.snapshot;
  const seconds = earlier ? snapshot.at_s - earlier.snapshot.at_s : 0;
  return {
    index: worker.index,
    state: worker.state,
    pid: worker.pid,
    restarts: worker.restarts,
    snapshot,
    rate: earlier ? perSecond(snapshot.processed, earlier.snapshot.processed, seconds) : null,
    cpu: earlier && snapshot.cpu_s !== null ? perSecond(snapshot.cpu_s, earlier.snapshot.cpu_s, seconds) : null,
  };
}

function nodesOf(snapshot, before) {
  const found = new Map();
  for (const worker of snapshot.workers) {
    if (worker.snapshot === null) continue;
    const earlier = sameProcess(worker, before);
    const seconds = earlier ? worker.snapshot.at_s - earlier.snapshot.at_s : 0;
    for (const node of worker.snapshot.nodes) {
      const key = `${node.sub_topology} ${node.name}`;
      const one = found.get(key) ?? { sub: node.sub_topology, name: node.name, dropped: new Map(), busy: null };
      for (const [reason, number] of Object.entries(node.dropped)) {
        one.dropped.set(reason, (one.dropped.get(reason) ?? 0) + number);
      }
      const old = earlier && earlier.snapshot.nodes.find((n) => n.name === node.name && n.sub_topology === node.sub_topology);
      if (old && seconds) {
        one.busy = (one.busy ?? 0) + perSecond(node.own_s + node.user_s, old.own_s + old.user_s, seconds);
      }
      found.set(key, one);
    }
  }
  return [...found.values()];
}

/** Records sent to each topic by all workers, without changelogs. */
function outputsOf(snapshot, before) {
  const found = new Map();
  for (const worker of snapshot.workers) {
    if (worker.snapshot === null) continue;
    const earlier = sameProcess(worker, before);
    const seconds = earlier ? worker.snapshot.at_s - earlier.snapshot.at_s : 0;
    for (const [topic, sent] of Object.entries(worker.snapshot.sent ?? {})) {
      if (topic.endsWith("-changelog")) continue;
      const one = found.get(topic) ?? { topic, sent: 0, rate: null };
      one.sent += sent;
      if (earlier) one.rate = (one.rate ?? 0) + (perSecond(sent, earlier.snapshot.sent[topic] ?? 0, seconds) ?? 0);
      found.set(topic, one);
    }
  }
  return [...found.values()].sort((a, b) => a.topic.localeCompare(b.topic));
}

/** Sum of the known numbers; null if none is known. */
export function sum(list, part) {
  const known = list.map(part).filter((number) => number !== null && number !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

export function grouped(list, part) {
  const found = new Map();
  for (const one of list) {
    const key = part(one);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(one);
  }
  return found;
}

/** Describe the events between two responses. */
export function eventsBetween(snapshot, before) {
  const found = [];
  for (const worker of snapshot.workers) {
    const old = before.workers.find((one) => one.index === worker.index);
    const who = `worker ${worker.index}`;
    if (!old) {
      found.push({ kind: "good", text: `${who} was added` });
      continue;
    }
    if (worker.restarts > old.restarts) found.push({ kind: "bad", text: `${who} was restarted (${worker.restarts} times so far)` });
    if (worker.state !== old.state) found.push({ kind: "plain", text: `${who}: ${old.state} → ${worker.state}` });
    const same = sameProcess(worker, before);
    if (!same) continue;
    for (const [name, number] of Object.entries(worker.snapshot.reactions)) {
      const more = number - (same.snapshot.reactions[name] ?? 0);
      if (more > 0) found.push({ kind: "warn", text: `${who}: ${name}${more > 1 ? `, ${more} times` : ""}` });
    }
    for (const [part, words] of [["rebalances", "partitions were reassigned"], ["aborted", "a transaction was aborted"], ["producers_replaced", "a producer was replaced"]]) {
      if (worker.snapshot[part] > same.snapshot[part]) found.push({ kind: part === "rebalances" ? "plain" : "warn", text: `${who}: ${words}` });
    }
  }
  for (const old of before.workers) {
    if (!snapshot.workers.some((one) => one.index === old.index)) found.push({ kind: "plain", text: `worker ${old.index} was removed` });
  }
  return found;
}
