"use strict";
const FRAME = 1500, KEPT = 60;
const byId = (id) => document.getElementById(id);
const tag = (name, text) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return made;
};
const rate = (bytes) => bytes >= 1e6 ? (bytes / 1e6).toFixed(2) + " MB/s" : (bytes / 1e3).toFixed(1) + " kB/s";

let before = null;

function curve(values) {
  const most = Math.max(1, ...values);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const at = (value, n) => `${(100 * n / (KEPT - 1)).toFixed(1)} ${(20 - 19 * value / most).toFixed(1)}`;
  path.setAttribute("d", "M" + values.map(at).join("L"));
  document.querySelector("svg").replaceChildren(path);
  byId("rate").textContent = rate(values.at(-1));
  byId("most").textContent = rate(most);
}

/** A peer's process, what it says now and said before; `said` is absent if it does not answer. */
function section(peer, said, old, seconds) {
  const made = tag("section");
  made.append(tag("h2", `peer ${peer.peer} ${peer.role}`));
  const list = tag("dl");
  const put = (name, value) => list.append(tag("dt", name), tag("dd", value));
  put("process", peer.process);
  if (said) {
    const passed = said.forwarded + said.acks_forwarded;
    const was = old ? old.forwarded + old.acks_forwarded : passed;
    put("passes on", rate(Math.max(0, passed - was) * FRAME / seconds));
    put("offers", rate(said.offer_bytes_per_second));
    put("over its limit", said.over_limit);
    put("from nobody", said.unauthenticated);
  } else {
    made.className = "silent";
    put("state", peer.runs ? "does not answer" : "has ended");
  }
  made.append(list);
  return made;
}

async function step() {
  try {
    const status = await (await fetch("status.json")).json();
    if (before === null || status.seconds !== before.seconds) {
      const seconds = before ? status.seconds - before.seconds : 1;
      const find = (all, peer) => all && all.relays.find((said) => said.peer === peer.peer);
      if (status.bytes_per_s.length > 0) curve(status.bytes_per_s);
      byId("state").textContent = `${status.relays.length} of ${status.peers.length} peers answer`;
      byId("peers").replaceChildren(...status.peers.map((peer) =>
        section(peer, find(status, peer), find(before, peer), seconds)));
      // What does not fit is a fault of this page.
      const fits = (box) => box.scrollWidth <= box.clientWidth;
      document.body.dataset.fits = [document.documentElement, ...document.querySelectorAll("section")].every(fits);
      before = status;
    }
  } catch (why) {
    byId("state").textContent = "no answer: " + why.message;
  }
  setTimeout(step, 500);
}
step();
