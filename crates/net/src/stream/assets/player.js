import { fill } from "./rows.js";

const video = document.getElementById("video");
const playlist = "hls/live.m3u8";
document.getElementById("ts").textContent = new URL("stream.ts", location.href);

// With an edge of Media over QUIC, another page shows the stream sooner.
fetch("moq.json").then((answer) => answer.json()).then((edge) => {
  document.getElementById("live").hidden = edge === null;
}).catch(() => { /* the client has ended, as the status shows */ });

// The player stays two segments behind the end of the playlist, whatever its target duration.
let behind = 6;
let hls;

function play() {
  if (!Hls.isSupported()) {
    video.src = playlist;
    return;
  }
  hls = new Hls({ enableWorker: false, liveSyncDuration: behind, manifestLoadingMaxRetry: 1000 });
  hls.on(Hls.Events.ERROR, (_, error) => {
    complain(error);
    if (error.fatal) again();
  });
  hls.loadSource(playlist);
  hls.attachMedia(video);
  video.play().catch(() => { /* the browser wants a click first */ });
}

// Browsers lack some codecs. The page says so until the picture moves.
const wrong = document.getElementById("wrong");

function complain(error) {
  if (!error.fatal && error.details !== "fragParsingError") return;
  const cause = video.error?.message || error.reason || error.details;
  wrong.textContent = `This browser does not play the stream (${cause}). Use a player with the address above.`;
  wrong.hidden = false;
}

video.addEventListener("timeupdate", () => { wrong.hidden ||= video.currentTime > 0; });

function again() {
  hls.destroy();
  setTimeout(wait, 1000);
}

// The playlist is there once the first segment is complete.
async function wait() {
  const answer = await fetch(playlist).catch(() => ({ ok: false }));
  if (!answer.ok) return setTimeout(wait, 500);
  const durations = [...(await answer.text()).matchAll(/#EXTINF:([\d.]+)/g)].map(found => Number(found[1]));
  behind = Math.max(2, 2 * Math.max(...durations));
  play();
}

// Plays again once the playlist of a stream that ended goes on.
async function begins() {
  const answer = await fetch(playlist).catch(() => ({ ok: false }));
  const goesOn = answer.ok && !(await answer.text()).includes("#EXT-X-ENDLIST");
  if (goesOn && hls?.latestLevelDetails?.live === false) again();
}

// The player reloads the stream if the picture stands still while the stream goes on.
let last = -1;
let still = 0;
setInterval(() => {
  const details = hls?.latestLevelDetails;
  // After its end, a stream may begin again.
  if (details && !details.live) begins();
  const isBehind = details && details.edge - video.currentTime > 2 * behind;
  still = isBehind && !video.paused && video.currentTime === last ? still + 1 : 0;
  last = video.currentTime;
  if (still >= 8) {
    still = 0;
    again();
  }
}, 1000);

// The client serves the page, so silence means that it has ended.
let unanswered = 0;

async function status() {
  try {
    const s = await (await fetch("status.json")).json();
    const rows = {
      state: s.refused || s.problem || s.phase,
      played: s.delivered,
      gaps: s.gaps,
      "lag, median": s.lag_p50_s.toFixed(2) + " s",
      "lag, 95 %": s.lag_p95_s.toFixed(2) + " s",
      "made from parity": s.recovered,
      duplicates: s.duplicates,
      children: s.children,
      "video sent": (s.sent_video / 1e6).toFixed(1) + " MB",
    };
    fill(document.getElementById("status"), rows);
    unanswered = 0;
  } catch {
    unanswered += 1;
  }
  document.getElementById("ended").hidden = unanswered < 4;
  setTimeout(status, 1000);
}

wait();
status();
