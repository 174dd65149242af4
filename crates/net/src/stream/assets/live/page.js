// The page: keeps a session with the client's edge, and shows the picture, its delay and what is wrong.

import { fill } from "../rows.js";
import { Player } from "./player.js";
import { subscribe } from "./subscriber.js";

const element = (id) => document.getElementById(id);

// Pauses between attempts to connect, milliseconds: doubled each time. A session of that length was a good one.
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;
const GOOD = 5000;
// The stream is silent after this time, milliseconds.
const SILENT = 3000;

const player = new Player(element("picture"));
let session = { state: "connecting", error: null };
// The client's status; null while it does not answer.
let client = null;
let unanswered = 0;

const pause = (time) => new Promise((wake) => setTimeout(wake, time));

// Names the features that the browser lacks; null if it has all.
function missing() {
  const needed = { WebTransport: window.WebTransport, WebCodecs: window.VideoDecoder && window.AudioDecoder };
  const names = Object.keys(needed).filter((name) => !needed[name]);
  return names.length > 0 ? `This browser has no ${names.join(" and no ")}.` : null;
}

async function stay() {
  let wait = FIRST_PAUSE;
  let address = null;
  for (;;) {
    const began = performance.now();
    try {
      const edge = await (await fetch("moq.json")).json();
      if (edge === null) return leave("This client runs without Media over QUIC: start it with --moq ADDRESS.");
      // The page may only connect to the address that the client had when it served the page.
      address ??= edge.address;
      if (edge.address !== address) return location.reload();
      await subscribe(edge, player);
    } catch (error) {
      session = { state: "connecting", error: error.message };
    }
    const wasGood = player.arrivedAt !== null && player.arrivedAt - began > GOOD;
    wait = wasGood ? FIRST_PAUSE : Math.min(2 * wait, LONGEST_PAUSE);
    // Pages that lost the same client do not come back together.
    await pause(wait * (0.5 + Math.random()));
  }
}

// Gives up: only the page of HLS is left.
function leave(reason) {
  session = { state: "off", error: reason };
}

async function ask() {
  for (;;) {
    try {
      client = await (await fetch("status.json")).json();
      unanswered = 0;
    } catch {
      unanswered += 1;
      if (unanswered >= 4) client = null;
    }
    await pause(1000);
  }
}

// What is wrong, in plain words.
function wrong(now) {
  if (session.state === "off") return session.error;
  if (unanswered >= 4) return "The client has ended. The page connects again when it is back.";
  if (client?.refused) return `The server refused the client: ${client.refused}.`;
  const isSilent = player.arrivedAt === null || now - player.arrivedAt > SILENT;
  const causes = [];
  if (session.error !== null && isSilent) causes.push(`No session with the client (${session.error}).`);
  else if (isSilent) causes.push(client?.problem ? `No stream: ${client.problem}.` : "The stream is silent.");
  return [...causes, player.problem(now)].filter(Boolean).join(" ") || null;
}

function median(numbers) {
  return [...numbers].sort((one, other) => one - other)[numbers.length >> 1];
}

const seconds = (milliseconds) => Number.isFinite(milliseconds) ? (milliseconds / 1000).toFixed(2) + " s" : "–";

function soundState() {
  if (!player.named?.sound) return "none";
  if (!player.sound.isOn) return "off";
  return player.sound.context.state === "running" ? "on" : "waits for a click";
}

function rows() {
  const { picture, clock, sound } = player;
  const shown = median(picture.delays);
  const lag = client ? client.lag_p50_s * 1000 : NaN;
  return {
    "arrival to display": seconds(shown),
    "buffered": seconds(clock.buffer()),
    "lag of the trees, median": seconds(lag),
    "server to display": seconds(shown + lag),
    "frames shown": picture.shown,
    "frames dropped": picture.dropped,
    "picture": picture.shown > 0 ? `${picture.canvas.width} × ${picture.canvas.height}` : "–",
    "sound": soundState(),
    "sound behind picture": sound.isOn ? `${sound.apart.toFixed(0)} ms` : "–",
    "restarts and jumps": Math.max(0, player.timeline.jumps - 1),
  };
}

function show() {
  const problem = wrong(performance.now());
  element("wrong").textContent = problem ?? "";
  element("wrong").hidden = problem === null;
  fill(element("status"), rows());
  element("sound").textContent = player.sound.isOn ? "Sound off" : "Sound on";
  element("sound").disabled = session.state === "off";
}

function draw(now) {
  player.tick(now);
  requestAnimationFrame(draw);
}

const lacks = missing();
if (lacks === null) {
  element("sound").addEventListener("click", () => player.sound.turn(!player.sound.isOn).then(show));
  requestAnimationFrame(draw);
  // Pages in the background draw nothing, but their sound goes on.
  setInterval(() => player.tick(performance.now()), 100);
  stay();
} else {
  leave(lacks);
}
ask();
setInterval(show, 500);
show();
