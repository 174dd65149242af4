"use strict";
// Code that the pages of all demonstrations share.
const KEPT = 60;
const byId = (id) => document.getElementById(id);
const tag = (name, text, className) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};
const rate = (bytes) => bytes >= 1e6 ? (bytes / 1e6).toFixed(2) + " MB/s" : (bytes / 1e3).toFixed(1) + " kB/s";

/** The values of the last minute as a line, `most` at the top. */
function line(values, most) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const at = (value, n) => `${(100 * n / (KEPT - 1)).toFixed(1)} ${(20 - 19 * value / most).toFixed(1)}`;
  path.setAttribute("d", "M" + values.map(at).join("L"));
  return path;
}

/** Draws each new status, with the one before it (at first `null`) and the seconds between the two. */
function follow(draw) {
  let before = null;
  let unanswered = 0;
  const step = async () => {
    try {
      const status = await (await fetch("status.json")).json();
      if (before === null || status.seconds !== before.seconds) {
        draw(status, before, before && before.seconds ? status.seconds - before.seconds : 1);
        // Tests read this: a section that overflows is a bug of the page.
        const fits = (box) => box.scrollWidth <= box.clientWidth;
        document.body.dataset.fits =
          [document.documentElement, ...document.querySelectorAll("section")].every(fits);
        before = status;
      }
      unanswered = 0;
    } catch (why) {
      unanswered += 1;
      byId("state").textContent = "no answer: " + why.message;
    }
    // The program serves the page, so silence means that it has ended.
    if (unanswered >= 4) {
      byId("state").textContent = before === null ? "The demo has ended." : "The demo has ended. The page shows its last state.";
      document.body.dataset.ended = "yes";
      return;
    }
    setTimeout(step, 500);
  };
  step();
}
