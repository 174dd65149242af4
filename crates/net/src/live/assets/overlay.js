"use strict";
const CELL = 514;
const kilo = (bytes) => (bytes / 1e3).toFixed(0);
const wait = (seconds) => (seconds * 1e3).toFixed(2) + " ms";

/** Per relay and circuit: rates of the last minute, sent and planned. */
const kept = new Map();

function sparkline(history) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  const most = Math.max(1, ...history.sent, ...history.plan);
  const add = (values, className) => {
    const path = line(values, most);
    path.setAttribute("class", className);
    svg.append(path);
  };
  if (history.plan.some((value) => value > 0)) add(history.plan, "plan");
  add(history.sent, "sent");
  return svg;
}

function circuits(relay, old, seconds) {
  const table = tag("table");
  const head = tag("tr");
  for (const title of ["circuit", "here", "queued", "kB/s", "plan", "last minute"]) head.append(tag("th", title));
  table.append(head);
  for (const circuit of relay.circuit) {
    const was = old && old.circuit.find((other) => other.circuit === circuit.circuit);
    // Circuit ids are reused: a smaller count belongs to another circuit.
    const same = was && was.sent_cells <= circuit.sent_cells;
    const sent = same ? (circuit.sent_cells - was.sent_cells) * CELL / seconds : 0;
    const plan = same ? Math.max(0, circuit.allowed_cells - was.allowed_cells) * CELL / seconds : 0;
    const key = relay.nickname + "/" + circuit.circuit;
    const history = same && kept.get(key) || { sent: [], plan: [] };
    history.sent = [...history.sent, sent].slice(-KEPT);
    history.plan = [...history.plan, plan].slice(-KEPT);
    kept.set(key, history);
    const row = tag("tr");
    const place = circuit.guard ? "guard" : circuit.exit ? "exit" : "middle";
    for (const text of [circuit.circuit, place, circuit.queued_cells, kilo(sent), plan > 0 ? kilo(plan) : "–"]) {
      row.append(tag("td", text));
    }
    const cell = tag("td");
    cell.append(sparkline(history));
    row.append(cell);
    table.append(row);
  }
  return table;
}

function section(relay, old, seconds) {
  const made = tag("section");
  made.append(tag("h2", relay.nickname));
  const list = tag("dl");
  const put = (name, value) => list.append(tag("dt", name), tag("dd", value));
  const change = (key) => old ? relay[key] - old[key] : 0;
  const cells = Math.max(1, change("sent_cells"));
  put("connections, circuits", relay.connections + ", " + relay.circuits);
  put("written", rate(change("written_bytes") / seconds));
  put("waits in circuit queues", wait(change("circuit_queue_wait_seconds") / cells));
  put("waits in output buffers", wait(change("output_buffer_wait_seconds") / cells));
  const looks = change("kernel_inspections");
  put("unsent in the kernel", looks > 0 ? (change("kernel_unsent_bytes") / looks / 1e3).toFixed(1) + " kB" : "not asked");
  put("circuits moved", relay.switched);
  put("in circuit queues", relay.circuit_queue_cells + " cells");
  put("in output buffers", (relay.output_buffer_bytes / 1e3).toFixed(1) + " kB");
  made.append(list);
  if (relay.circuit && relay.circuit.length) made.append(circuits(relay, old, seconds));
  return made;
}

follow((status, before, seconds) => {
  const was = (relay) => before && before.relays.find((old) => old.nickname === relay.nickname);
  byId("system").textContent = status.system;
  byId("state").textContent = status.relays.length + " relays";
  byId("relays").replaceChildren(...status.relays.map((relay) => section(relay, was(relay), seconds)));
});
