"use strict";
const FRAME = 1500;

function curve(values) {
  const most = Math.max(1, ...values);
  document.querySelector("svg").replaceChildren(line(values, most));
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

follow((status, before, seconds) => {
  const find = (all, peer) => all && all.relays.find((said) => said.peer === peer.peer);
  if (status.bytes_per_s.length > 0) curve(status.bytes_per_s);
  byId("state").textContent = `${status.relays.length} of ${status.peers.length} peers answer`;
  byId("peers").replaceChildren(...status.peers.map((peer) =>
    section(peer, find(status, peer), find(before, peer), seconds)));
});
