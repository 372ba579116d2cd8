// The topology as a picture: topics and sub-topologies in layers, records flowing down.

import { bytes, count, rate, rows } from "./format.js";
import { grouped, sum } from "./model.js";

const SVG = "http://www.w3.org/2000/svg";
const LETTER = 7.4;
const LINE = 17;
const LABEL = 13;
const GAP = 26;
const ROW_GAP = 62;
const PAD = 12;
const TITLES_MOST = 40;

/** Boxes and arrows between topics and sub-topologies, of the answer of /api/topology. */
export function overviewOf(topology) {
  const boxes = new Map();
  const laneOf = new Map();
  for (const [number, title] of Object.entries(topology.lanes)) {
    boxes.set(`part ${number}`, { id: `part ${number}`, kind: "part", sub: Number(number), title, stores: [], steps: 0 });
  }
  for (const box of topology.boxes) {
    if (box.kind === "topic") {
      boxes.set(box.id, { id: box.id, kind: "topic", title: box.text });
    } else {
      const part = boxes.get(`part ${box.lane}`);
      laneOf.set(box.id, part.id);
      if (box.kind === "store") part.stores.push(box.text);
      else part.steps += 1;
    }
  }
  const arrows = new Map();
  for (const arrow of topology.arrows) {
    const start = laneOf.get(arrow.start) ?? arrow.start;
    const end = laneOf.get(arrow.end) ?? arrow.end;
    if (start !== end && !arrow.tied) arrows.set(`${start}\n${end}`, { start, end });
  }
  return { boxes: [...boxes.values()], arrows: [...arrows.values()] };
}

/** The layer of each box: below all that flow into it; what closes a circle does not count. */
export function layersOf(overview) {
  const into = grouped(overview.arrows, (arrow) => arrow.end);
  const layers = new Map();
  const open = new Set();
  const layer = (id) => {
    if (layers.has(id)) return layers.get(id);
    open.add(id);
    let found = 0;
    for (const { start } of into.get(id) ?? []) {
      if (!open.has(start)) found = Math.max(found, layer(start) + 1);
    }
    open.delete(id);
    layers.set(id, found);
    return found;
  };
  for (const box of overview.boxes) layer(box.id);
  return layers;
}

function linesOf(box, model, application) {
  if (box.kind === "topic") return [[short(box.title), "title"]];
  const tasks = model.tasks.filter((task) => task.sub === box.sub);
  const lines = [[box.title, "title"]];
  lines.push([`${box.steps} ${box.steps === 1 ? "node" : "nodes"}`, "label"]);
  if (tasks.length) {
    const running = tasks.filter((task) => task.state === "running").length;
    lines.push([`${running} of ${tasks.length} tasks run · ${rate(sum(tasks, (task) => task.rate))}`, ""]);
    const restore = sum(tasks, (task) => task.restore);
    if (restore) lines.push([`to restore: ${count(restore)}`, "lag"]);
  } else {
    lines.push(["no tasks on this host", "label"]);
  }
  for (const name of box.stores) {
    const found = tasks.flatMap((task) => task.stores).filter((store) => store.name === name);
    lines.push([`▤ ${short(name)}: ${found.length ? `${rows(found)} rows, ${bytes(sum(found, (s) => s.size_bytes))}` : "–"}`, ""]);
  }
  return lines;
}

function short(text) {
  return text.length > TITLES_MOST ? `${text.slice(0, TITLES_MOST - 12)}…${text.slice(-11)}` : text;
}

function placesOf(overview, model, application) {
  const layers = layersOf(overview);
  const rows = [...grouped(overview.boxes, (box) => layers.get(box.id)).entries()].sort(([a], [b]) => a - b);
  const places = new Map();
  let y = PAD;
  let widest = 0;
  for (const [, boxes] of rows) {
    order(boxes, overview, places);
    let x = PAD;
    let highest = 0;
    for (const box of boxes) {
      const lines = linesOf(box, model, application);
      const width = Math.max(90, ...lines.map(([text]) => text.length * LETTER + 2 * PAD));
      const height = lines.length * LINE + PAD;
      places.set(box.id, { box, lines, x, y, width, height });
      x += width + GAP;
      highest = Math.max(highest, height);
    }
    widest = Math.max(widest, x - GAP + PAD);
    y += highest + ROW_GAP;
  }
  for (const [, boxes] of rows) {
    const last = places.get(boxes.at(-1).id);
    const shift = (widest - PAD - (last.x + last.width)) / 2;
    for (const box of boxes) places.get(box.id).x += Math.max(0, shift);
  }
  return { places, width: widest, height: y - ROW_GAP + PAD };
}

/** Place boxes below the boxes that they read from, as far as there is space. */
function order(boxes, overview, places) {
  const middle = (box) => {
    const feeds = overview.arrows.filter((a) => a.end === box.id && places.has(a.start)).map((a) => places.get(a.start));
    return feeds.length ? feeds.reduce((all, one) => all + one.x + one.width / 2, 0) / feeds.length : 0;
  };
  const found = new Map(boxes.map((box) => [box, middle(box)]));
  boxes.sort((a, b) => found.get(a) - found.get(b));
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Draw the topology into an element, replacing its content. */
export function draw(into, topology, model) {
  const overview = overviewOf(topology);
  const application = topology.application;
  const { places, width, height } = placesOf(overview, model, application);
  const drawn = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": wordsOf(overview) });
  const head = element("marker", { id: "head", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  head.append(element("path", { d: "M0 0L8 4L0 8" }));
  drawn.append(head);
  const labels = [];
  for (const arrow of overview.arrows) drawArrow(drawn, arrow, places, labels, model, application);
  for (const place of places.values()) drawBox(drawn, place);
  into.replaceChildren(drawn);
}

function wordsOf(overview) {
  const parts = overview.boxes.filter((box) => box.kind === "part").length;
  return `${overview.boxes.length - parts} topics and ${parts} sub-topologies; the tables below have the same data`;
}

function drawBox(drawn, { box, lines, x, y, width, height }) {
  const group = element("g", { "data-box": box.id });
  group.append(element("title", {}, box.title));
  group.append(element("rect", { class: box.kind, x, y, width, height, rx: box.kind === "topic" ? 14 : 5 }));
  lines.forEach(([text, kind], number) => {
    group.append(element("text", { class: kind, x: x + PAD, y: y + PAD / 2 + LINE * (number + 0.75) }, text));
  });
  drawn.append(group);
}

function drawArrow(drawn, arrow, places, labels, model, application) {
  const start = places.get(arrow.start);
  const end = places.get(arrow.end);
  const x1 = start.x + start.width / 2;
  const x2 = end.x + end.width / 2;
  const down = end.y > start.y;
  const y1 = down ? start.y + start.height : start.y;
  const y2 = down ? end.y : end.y + end.height;
  const bend = (y2 - y1) / 2;
  drawn.append(element("path", { d: `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`, "marker-end": "url(#head)" }));
  const label = labelOf(start.box, end.box, model, application);
  if (label) {
    const x = (x1 + x2) / 2 + 6;
    const right = x + label.text.length * LETTER;
    let y = (y1 + y2) / 2 + 4;
    // Arrows that meet have labels close to each other: one below the other.
    while (labels.some((one) => Math.abs(one.y - y) < LABEL && x < one.right && one.x < right)) y += LABEL;
    labels.push({ x, y, right });
    drawn.append(element("text", { class: label.lag ? "label lag" : "label", x, y, "data-arrow": `${arrow.start} > ${arrow.end}` }, label.text));
  }
}

/** Label of an arrow: rate and lag of a read topic, or the write rate of a written topic. */
function labelOf(start, end, model, application) {
  const topic = start.kind === "topic" ? start.title : end.title;
  const same = (input) => input.topic === topic || input.topic === `${application}-${topic}`;
  if (start.kind === "topic") {
    const read = model.tasks.filter((task) => task.sub === end.sub).flatMap((task) => task.inputs).filter(same);
    if (!read.length) return null;
    const lag = sum(read, (input) => input.lag);
    return { text: `${rate(sum(read, (input) => input.rate))} · lag ${count(lag)}`, lag: lag > 0 };
  }
  const readers = model.tasks.flatMap((task) => task.inputs).filter(same);
  const written = sum([...new Map(readers.map((one) => [one.partition, one])).values()], (one) => one.written);
  const sent = model.outputs.find((one) => one.topic === topic || one.topic === `${application}-${topic}`);
  const grows = written ?? (sent ? sent.rate : null);
  return grows === null ? null : { text: rate(grows), lag: false };
}
