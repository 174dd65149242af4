"use strict";
// Converts the user's choices and their times to a scenario file.
const SYSTEMS = {
  "vanilla Tor": 'transport = "vanilla"',
  "PCTCP": 'transport = "pctcp"',
  "EWMA and KIST": 'scheduler = "ewma"\nchannel-scheduler = "kist"',
  "Vegas": 'control = "vegas"',
  "PredicTor": 'transport = "pctcp"\ncontrol = "predictor"',
};

const TEN = [8, 6, 5, 4, 3, 8, 6, 5, 4, 3];
// Each relay occurs in proportion to its rate, because clients select relays by rate.
const BY_RATE = TEN.flatMap((rate, n) => Array(rate).fill(n));

// Selects three different relays for a user's circuit.
function chosen(user) {
  const path = [];
  for (let draw = 1; path.length < 3; draw += 1) {
    const relay = BY_RATE[(user * 37 + draw * 19) % BY_RATE.length];
    if (!path.includes(relay)) path.push(relay);
  }
  return path.map((n) => "relay" + n);
}

const NETWORKS = {
  "bottleneck": {
    relays: [["entry1", 10], ["entry2", 10], ["entry3", 10], ["bottleneck", 4], ["exit1", 10], ["exit2", 10]],
    places: { entry1: [1, 0.15], entry2: [1, 0.5], entry3: [1, 0.85], bottleneck: [0.5, 0.5], exit1: [0, 0.25], exit2: [0, 0.75] },
    most: 8,
    start: 3,
    unit: "circuits",
    path: (user) => ["entry" + (1 + user % 3), "bottleneck", "exit" + (user % 3 === 2 ? 2 : 1)],
  },
  "ten relays": {
    relays: TEN.map((rate, n) => ["relay" + n, rate]),
    places: Object.fromEntries(TEN.map((_, n) => ["relay" + n, [(n % 5) / 4, n < 5 ? 0.22 : 0.78]])),
    most: 40,
    start: 10,
    unit: "circuits",
    path: chosen,
  },
};

// The pairs of adjacent relays of all circuits.
function edges({ path, most }) {
  const pairs = new Map();
  for (let user = 0; user < most; user += 1) {
    const [guard, middle, exit] = path(user);
    for (const pair of [[guard, middle], [middle, exit]]) pairs.set([...pair].sort().join(), pair);
  }
  return [...pairs.values()];
}

const DURATION = 30;
// Smallest delay between machines, in ms.
const NEAREST = 1;

// `changes`: [{ at (s), load, delay (ms) }], in order of time, the first at 0.
function scenario(network, system, changes) {
  const { relays, path } = NETWORKS[network];
  const seconds = (at) => '"' + Math.round(at * 1000) + ' ms"';
  const lines = ['title = "Playground: ' + network + '"', "duration = " + seconds(DURATION), 'warmup = "0 s"', 'sample = "50 ms"', "seed = 1", "",
    "[underlay]", 'delay = "' + NEAREST + ' ms"', "", "[[system]]", 'name = "' + system.toLowerCase().replaceAll(" ", "-") + '"', SYSTEMS[system], ""];
  for (const [name, rate] of relays) lines.push("[[relay]]", 'name = "' + name + '"', 'link = "' + rate + ' Mbit/s"', "");
  // A user exists from the change that adds it to the change that removes it. New users are appended, so that earlier
  // changes keep their users and the past stays the same.
  const users = [];
  const present = [];
  for (const { at, load } of changes) {
    while (present.length > load) present.pop().until = at;
    while (present.length < load) {
      const number = present.length;
      const before = users.filter((user) => user.number === number).length;
      const user = { number, name: "circuit" + (number + 1) + (before ? "-" + before : ""), from: at, until: null };
      users.push(user);
      present.push(user);
    }
  }
  for (const { number, name, from, until } of users) {
    lines.push("[[user]]", 'name = "' + name + '"', 'traffic = "bulk"', "start = " + seconds(from + 0.3 + 0.1 * (number % 10)), 'circuit-lead = "300 ms"');
    if (until !== null) lines.push("stop = " + seconds(until));
    lines.push("path = " + JSON.stringify(path(number)));
    lines.push("");
  }
  changes.forEach(({ at, delay }, n) => {
    if (n > 0 && changes[n - 1].delay === delay) return;
    const end = changes.slice(n).find((change) => change.delay !== delay);
    for (const [one, other] of edges(NETWORKS[network])) {
      lines.push("[[fault]]", 'kind = "delay"', 'between = ["' + one + '", "' + other + '"]', 'extra = "' + (delay - NEAREST) + ' ms"', "from = " + seconds(at));
      if (end) lines.push("until = " + seconds(end.at));
      lines.push("");
    }
  });
  return lines.join("\n");
}
