"use strict";
// Plays the worker's result. A change starts a new simulation with the same past and another future.
(function () {
  const by = (id) => document.getElementById(id);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let now = 0, paused = false, changes = [], asked = 0, known = null, failed = null, took = 0, last = null;

  const worker = new Worker(URL.createObjectURL(new Blob([by("worker").textContent])));
  worker.postMessage({ packed: by("wasm").textContent.trim() });
  worker.onmessage = ({ data }) => {
    if (data.failed) { failed = "The simulator cannot be loaded: " + data.failed; return; }
    if (data.id !== asked) return;
    failed = data.answer.error || null;
    if (failed) return;
    known = data.answer;
    took = data.took_ms;
    by("digest").textContent = known.digest;
    document.documentElement.dataset.digest = known.digest;
    document.documentElement.dataset.answers = data.id;
  };

  function ask() {
    asked += 1;
    const text = scenario(by("network").value, by("system").value, changes);
    by("scenario").textContent = text;
    worker.postMessage({ id: asked, scenario: text });
  }

  function chosen() {
    return { at: now, load: Number(by("load").value), delay: Number(by("delay").value) };
  }

  function begin() {
    now = 0;
    known = null;
    changes = [chosen()];
    ask();
  }

  function change() {
    show();
    const next = chosen();
    // Dragging causes many changes; merges those within 0.1 s.
    next.at = Math.round(10 * now) / 10;
    changes = changes.filter((change) => change.at < next.at);
    if (changes.length === 0) next.at = 0;
    changes.push(next);
    ask();
  }

  function show() {
    by("load-shown").textContent = by("load").value + " " + NETWORKS[by("network").value].unit;
    by("delay-shown").textContent = by("delay").value + " ms a hop";
  }

  function settle() {
    const network = NETWORKS[by("network").value];
    by("load").max = network.most;
    by("load").value = network.start;
    show();
    begin();
  }

  function canvas(id) {
    const element = by(id), ratio = devicePixelRatio || 1;
    const width = element.clientWidth, height = element.clientHeight;
    if (element.width !== Math.round(width * ratio) || element.height !== Math.round(height * ratio)) {
      element.width = Math.round(width * ratio);
      element.height = Math.round(height * ratio);
    }
    const pen = element.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    return { pen, width, height };
  }

  function drawMap() {
    const { pen, width, height } = canvas("map");
    const network = NETWORKS[by("network").value];
    const narrow = width < 600;
    const boxWidth = narrow ? 58 : 110, margin = boxWidth / 2 + 8;
    const place = (name) => {
      const [x, y] = network.places[name];
      return [margin + x * (width - 2 * margin), 26 + y * (height - 60)];
    };
    pen.strokeStyle = colour("--line");
    for (const [one, other] of edges(network)) {
      pen.beginPath();
      pen.moveTo(...place(one));
      pen.lineTo(...place(other));
      pen.stroke();
    }
    const at = known ? Math.min(Math.floor(now / known.sample_step_s), known.relays[0].queued_bytes.length - 1) : 0;
    const most = Math.max(2e4, ...(known ? known.relays.flatMap((r) => r.queued_bytes.map((q, n) => q + r.sending_bytes[n])) : []));
    network.relays.forEach(([name, rate], number) => {
      const [x, y] = place(name);
      pen.fillStyle = colour("--card");
      // Same colour as its curve below.
      pen.strokeStyle = colour("--c" + number % 10);
      pen.fillRect(x - boxWidth / 2, y - 14, boxWidth, 28);
      pen.strokeRect(x - boxWidth / 2, y - 14, boxWidth, 28);
      let from = x - boxWidth / 2 + 1;
      if (known) {
        const relay = known.relays[number];
        for (const [bytes, name] of [[relay.queued_bytes[at], "--queued"], [relay.sending_bytes[at], "--sending"]]) {
          const wide = (boxWidth - 2) * bytes / most;
          pen.fillStyle = colour(name);
          pen.fillRect(from, y - 13, wide, 26);
          from += wide;
        }
      }
      pen.fillStyle = colour("--ink");
      pen.textAlign = "center";
      pen.fillText(narrow ? name.replace("relay", "r") : name + ", " + rate + " Mbit/s", x, y + 28);
    });
  }

  function drawChart(id, step, curves) {
    const { pen, width, height } = canvas(id);
    const left = 48, bottom = 24, top = 10;
    const peak = Math.max(1, ...curves.flatMap((curve) => curve.values));
    const unit = 10 ** Math.floor(Math.log10(peak));
    const tick = peak / unit > 5 ? 2 * unit : peak / unit > 2 ? unit : unit / 2;
    const x = (s) => left + (width - left - 8) * s / DURATION;
    const y = (value) => height - bottom - (height - bottom - top) * value / peak;
    pen.fillStyle = colour("--dim");
    pen.strokeStyle = colour("--line");
    const rule = (x1, y1, x2, y2) => { pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke(); };
    pen.textAlign = "right";
    for (let value = 0; value <= peak; value += tick) {
      rule(left, y(value), width - 8, y(value));
      pen.fillText(String(+value.toPrecision(3)), left - 5, y(value) + 4);
    }
    pen.textAlign = "center";
    for (let s = 0; s <= DURATION; s += 5) pen.fillText(s + (s ? "" : " s"), x(s), height - 8);
    pen.setLineDash([4, 4]);
    for (const { at } of changes.slice(1)) if (at <= now) rule(x(at), top, x(at), height - bottom);
    pen.setLineDash([]);
    curves.forEach(({ values }, number) => {
      pen.strokeStyle = colour("--c" + number % 10);
      pen.lineWidth = 1.7;
      pen.beginPath();
      values.forEach((value, bin) => {
        const end = (bin + 1) * step;
        if (end <= now) pen[bin ? "lineTo" : "moveTo"](x(end), y(value));
      });
      pen.stroke();
    });
    pen.lineWidth = 1;
  }

  function legend(id, of) {
    by(id + "-keys").replaceChildren(...of.map(({ name }, number) => {
      const key = document.createElement("span"), mark = document.createElement("i");
      mark.style.background = "var(--c" + number % 10 + ")";
      key.append(mark, name);
      return key;
    }));
  }

  // A circuit that returns continues its curve; many circuits are shown as their sum.
  function rates() {
    const merged = new Map();
    const many = NETWORKS[by("network").value].most > 12;
    for (const { name, values } of known.rates_bytes_per_s) {
      const key = many ? "all" : name.split("-")[0];
      const before = merged.get(key);
      merged.set(key, before ? before.map((value, bin) => value + values[bin] / 1e3) : values.map((value) => value / 1e3));
    }
    // Smooths short bins by the mean over 0.5 s.
    const around = Math.max(0, Math.round(0.25 / known.rate_step_s));
    return [...merged].map(([name, values]) => ({
      name,
      values: values.map((_, bin) => {
        const near = values.slice(Math.max(0, bin - around), bin + around + 1);
        return near.reduce((a, b) => a + b, 0) / near.length;
      }),
    }));
  }

  let drawnFor = null, curves = null;
  function draw(time) {
    const since = last === null ? 0 : Math.min(0.1, (time - last) / 1000);
    last = time;
    if (known && !paused) now += since;
    if (now >= DURATION) begin();
    if (known) {
      if (drawnFor !== known) {
        const sums = known.relays.map((relay) => ({ name: relay.name, values: relay.queued_bytes.map((q, n) => (q + relay.sending_bytes[n]) / 1e3) }));
        curves = { rates: rates(), waiting: sums };
        drawnFor = known;
        legend("rates", curves.rates);
        legend("waiting", curves.waiting);
      }
      const total = curves.waiting.reduce((sum, { values }) => sum + values[Math.min(values.length - 1, Math.floor(now / known.sample_step_s))], 0);
      by("state").textContent = now.toFixed(1) + " of " + DURATION + " s; " + total.toFixed(0) + " kB queued at relays; simulated in " + took.toFixed(0) + " ms";
      drawChart("rates", known.rate_step_s, curves.rates);
      drawChart("waiting", known.sample_step_s, curves.waiting);
    }
    if (failed) by("state").textContent = failed;
    drawMap();
    requestAnimationFrame(draw);
  }

  for (const [id, names] of [["network", NETWORKS], ["system", SYSTEMS]]) {
    for (const name of Object.keys(names)) by(id).add(new Option(name));
  }
  by("delay").value = 40;
  by("network").addEventListener("change", settle);
  by("system").addEventListener("change", begin);
  by("load").addEventListener("input", change);
  by("delay").addEventListener("input", change);
  by("again").addEventListener("click", begin);
  by("pause").addEventListener("click", () => {
    paused = !paused;
    by("pause").textContent = paused ? "continue" : "pause";
  });
  settle();
  requestAnimationFrame(draw);
})();
