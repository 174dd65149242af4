"use strict";
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

// Leaves take a column each; a parent stands above the middle of its children.
function place(children) {
  const places = new Map();
  let column = 0, deepest = 0;
  const visit = (peer, depth) => {
    deepest = Math.max(deepest, depth);
    const below = (children.get(peer) || []).map((child) => visit(child, depth + 1));
    const x = below.length ? (below[0] + below[below.length - 1]) / 2 : column++;
    places.set(peer, [x, depth]);
    return x;
  };
  visit(0, 0);
  return { places, columns: Math.max(column, 1), rows: deepest + 1 };
}

function draw(slice, edges, isParity) {
  const children = new Map();
  for (const [, parent, child] of edges) {
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(child);
  }
  const { places, columns, rows } = place(children);
  const width = Math.max(columns * 18, 120), height = rows * 40;
  const at = ([x, y]) => [(x + 0.5) * width / columns, y * 40 + 14];
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}` });
  for (const [, parent, child] of edges) {
    if (!places.has(parent) || !places.has(child)) continue;
    const [x1, y1] = at(places.get(parent)), [x2, y2] = at(places.get(child));
    svg.append(element("line", { x1, y1, x2, y2 }));
  }
  for (const [peer, spot] of places) {
    const [cx, cy] = at(spot);
    svg.append(element("circle", { cx, cy, r: 8, class: peer ? "viewer" : "server" }));
    svg.append(element("text", { x: cx, y: cy + 3 }, peer || "S"));
  }
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = `${isParity ? "parity slice" : "slice"} ${slice}: ${count(edges.length, "viewer")}, ${count(rows - 1, "hop")} deep`;
  figure.append(svg, caption);
  return figure;
}

const COLUMNS = [
  ["viewer", (v) => v.peer || "server"], ["at", (v) => v.address],
  ["claims Mbit/s", (v) => (v.claim / 1e6).toFixed(1)], ["children", (v) => v.children], ["room", (v) => v.budget],
  ["rtt ms", (v) => v.round_trip_ms.toFixed(0)], ["lag ms", (v) => v.lag_ms], ["played", (v) => v.delivered],
  ["gaps", (v) => v.gaps], ["twice", (v) => v.duplicates], ["from parity", (v) => v.recovered],
];

// The server watches nothing and claims nothing.
const OF_SERVER = ["viewer", "children", "room"];

function cells(viewer) {
  return COLUMNS.map(([name, value]) => (viewer.peer || OF_SERVER.includes(name) ? value(viewer) : "–"));
}

function row(tag, values) {
  const made = document.createElement("tr");
  for (const value of values) {
    const cell = document.createElement(tag);
    cell.textContent = value;
    made.append(cell);
  }
  return made;
}

// The server serves the page, so silence means that it has ended.
let unanswered = 0;

async function refresh() {
  try {
    const s = await (await fetch("status.json")).json();
    const slices = new Map();
    for (const edge of s.edges) {
      if (!slices.has(edge[0])) slices.set(edge[0], []);
      slices.get(edge[0]).push(edge);
    }
    document.getElementById("trees").replaceChildren(
      ...[...slices].map(([slice, edges]) => draw(slice, edges, slice >= s.slices)));
    document.querySelector("thead").replaceChildren(row("th", COLUMNS.map(([name]) => name)));
    document.getElementById("viewers").replaceChildren(
      ...s.viewers.map((viewer) => row("td", cells(viewer))));
    document.getElementById("summary").textContent =
      `${count(s.viewers.length - 1, "viewer")}, ${(s.rate_bits_per_s / 1e6).toFixed(2)} Mbit/s in ${s.slices} slices, ` +
      `${s.orphans} without a parent, ${s.refused} refused, ${s.died} died, ${s.relegated} relegated, ` +
      `${(s.sent_all / 1e6).toFixed(1)} MB sent` + (s.stalled_s > 2 ? `, the source is silent for ${s.stalled_s.toFixed(0)} s` : "");
    unanswered = 0;
  } catch {
    unanswered += 1;
    if (unanswered === 4) document.getElementById("summary").textContent += ". The server has ended; the page shows its last state.";
  }
  setTimeout(refresh, 1000);
}

refresh();
