"use strict";
const video = document.getElementById("video");
const playlist = "hls/live.m3u8";
document.getElementById("ts").textContent = new URL("stream.ts", location.href);

function play() {
  if (!Hls.isSupported()) {
    video.src = playlist;
    return;
  }
  const hls = new Hls({ enableWorker: false, liveSyncDurationCount: 2, manifestLoadingMaxRetry: 1000 });
  hls.on(Hls.Events.ERROR, (_, error) => {
    if (!error.fatal) return;
    hls.destroy();
    setTimeout(play, 1000);
  });
  hls.loadSource(playlist);
  hls.attachMedia(video);
}

// The playlist is there once the first segment is complete.
async function wait() {
  const answer = await fetch(playlist).catch(() => ({ ok: false }));
  answer.ok ? play() : setTimeout(wait, 500);
}

async function status() {
  try {
    const s = await (await fetch("status.json")).json();
    const rows = {
      state: s.refused || s.phase,
      played: s.delivered,
      gaps: s.gaps,
      "lag, median": s.lag_p50_s.toFixed(2) + " s",
      "lag, 95 %": s.lag_p95_s.toFixed(2) + " s",
      "made from parity": s.recovered,
      duplicates: s.duplicates,
      children: s.children,
      "video sent": (s.sent_video / 1e6).toFixed(1) + " MB",
    };
    document.getElementById("status").replaceChildren(...Object.entries(rows).map(([name, value]) => {
      const box = document.createElement("div");
      for (const [tag, text] of [["dt", name], ["dd", value]]) {
        const part = document.createElement(tag);
        part.textContent = text;
        box.append(part);
      }
      return box;
    }));
  } catch { /* the viewer ended; the last values stay */ }
  setTimeout(status, 1000);
}

wait();
status();
