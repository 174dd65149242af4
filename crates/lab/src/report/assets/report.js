"use strict";
// Draws the report from the page's data: tables, line charts (uPlot), stacked bars.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  const colour = (n) => getComputedStyle(document.documentElement).getPropertyValue(n).trim();

  function add(parent, tag, attributes, text) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  // Three significant digits; exponents only for very large and very small values.
  function digits(value) {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return value.toPrecision(3);
    return value.toFixed(Math.min(5, Math.max(0, 2 - Math.floor(Math.log10(size)))));
  }

  function table(parent, spec) {
    if (spec.title) add(parent, "h2", {}, spec.title);
    const wide = spec.header.length > 6;
    const element = add(add(parent, "div", { class: wide ? "scroll broad" : "scroll" }), "table", { class: wide ? "data wide" : "data" });
    // Columns of words are aligned to the left, columns of numbers to the right.
    const isNumber = (text) => /^$|^[=–-]$|^[-−+]?[0-9]/.test(text);
    const words = spec.header.map((_, column) => !spec.rows.every((row) => isNumber(row[column])));
    const head = add(add(element, "thead"), "tr");
    spec.header.forEach((text, column) => add(head, "th", words[column] ? { scope: "col", class: "text" } : { scope: "col" }, text));
    const body = add(element, "tbody");
    for (const row of spec.rows) {
      const line = add(body, "tr");
      row.forEach((text, column) => {
        const kind = spec.header[column] !== "verdict" ? ""
          : text === "holds" ? "holds" : text === "differs" ? "differs" : "open";
        const kinds = [kind, words[column] ? "text" : "", text.length > 40 ? "long" : ""].filter((name) => name !== "");
        add(line, "td", kinds.length ? { class: kinds.join(" ") } : {}, text);
      });
    }
  }

  const drawn = [];

  function chart(parent, spec) {
    const box = add(parent, "div", { class: "chart", role: "img", "aria-label": spec.title + ": " + spec.y + " over " + spec.x });
    add(box, "h3", {}, spec.title);
    const curves = spec.curves.filter((curve) => curve.points.length > 0);
    if (curves.length === 0) {
      add(box, "p", {}, "No measurements.");
      return;
    }
    // Shares of 0.9, 0.99 and 0.999 are equally far apart; the axis ends at 0.9999.
    const nines = (share) => -Math.log10(Math.max(1 - share, 1e-4));
    const up = spec.tail ? nines : (value) => value;
    const all = curves.flatMap((c) => c.points.map((p) => p[0]));
    const least = all.reduce((a, b) => Math.min(a, b)), most = all.reduce((a, b) => Math.max(a, b));
    if (least === most && all.length > curves.length) {
      add(box, "p", {}, "Every value of " + spec.x.replace(/,.*/, "") + " is " + digits(least) + spec.x.replace(/^[^,]*,?/, "") + ".");
      return;
    }
    // uPlot draws one point per value of x, so the points of a step are moved apart by an invisible distance.
    const apart = (points) => {
      let steps = 0;
      return points.map(([x], n) => x + 1e-5 * (most - least) * (steps = n && x === points[n - 1][0] ? steps + 1 : 0));
    };
    const values = uPlot.join(curves.map((c) => [apart(c.points), c.points.map((p) => up(p[1]))]));
    const width = () => Math.max(240, box.clientWidth - 26);
    const axis = (label) => ({
      label, labelSize: 22, labelFont: "13px system-ui, sans-serif", font: "12px system-ui, sans-serif",
      stroke: () => colour("--dim"), grid: { stroke: () => colour("--grid"), width: 1 },
      ticks: { stroke: () => colour("--line"), width: 1 },
      values: (_, splits) => splits.map((v) => (v === null ? "" : String(+v.toPrecision(6)))),
    });
    // Labels of more than six digits need more space.
    const room = (_, numbers) => Math.max(58, 24 + 7.5 * Math.max(0, ...(numbers || []).map((text) => text.length)));
    const mark = spec.mark === null ? [] : [{
      hooks: { draw: [(u) => {
        const x = Math.round(u.valToPos(spec.mark, "x", true));
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
        const pen = u.ctx;
        pen.save();
        pen.strokeStyle = colour("--dim");
        pen.setLineDash([5, 5]);
        pen.beginPath();
        pen.moveTo(x, u.bbox.top);
        pen.lineTo(x, u.bbox.top + u.bbox.height);
        pen.stroke();
        pen.restore();
      }] },
    }];
    const band = {
      hooks: { drawClear: [(u) => {
        const pen = u.ctx;
        pen.save();
        pen.beginPath();
        pen.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
        pen.clip();
        pen.globalAlpha = 0.18;
        for (const { curve, outline } of spec.bands) {
          if (!u.series[curve + 1].show) continue;
          pen.fillStyle = colour("--c" + (curve % 12));
          pen.beginPath();
          outline.forEach(([x, y], n) => pen[n ? "lineTo" : "moveTo"](u.valToPos(x, "x", true), u.valToPos(up(y), "y", true)));
          pen.fill();
        }
        pen.restore();
      }] },
    };
    const shares = spec.tail ? {
      splits: () => [0, nines(0.5), 1, 2, 3],
      values: (_, splits) => splits.map((v) => String(+(1 - 10 ** -v).toFixed(4))),
    } : {};
    const share = (v) => (1 - 10 ** -v).toFixed(3);
    const y = spec.tail ? { range: [0, 3.2] } : spec.y_range ? { range: spec.y_range } : {};
    const plot = new uPlot({
      width: width(), height: 270, plugins: [band, ...mark],
      // The legend shows values only while the pointer is over a chart.
      hooks: { setLegend: [(u) => u.root.classList.toggle("pointed", u.legend.idx !== null && u.legend.idx !== undefined)] },
      cursor: { sync: spec.group === "none" ? undefined : { key: spec.group }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y },
      axes: [Object.assign(axis(spec.x), { size: 34 }), Object.assign(axis(spec.y), { size: room }, shares)],
      series: [{ label: spec.x, value: (_, v) => (v === null || v === undefined ? "" : digits(v)) }].concat(curves.map((curve, n) => ({
        label: curve.name, stroke: () => colour("--c" + (n % 12)), width: 1.8, spanGaps: true,
        dash: n >= 12 ? [6, 4] : undefined, points: { show: curve.points.length < 12 }, value: (_, v) => (v === null || v === undefined ? "" : spec.tail ? share(v) : digits(v)),
      }))),
    }, values, box);
    drawn.push({ plot, width });
  }

  function bars(parent, spec) {
    const box = add(parent, "div", { class: "bars" });
    const sum = (row) => row.values.reduce((a, b) => a + b, 0);
    const top = Math.max(...spec.rows.map(sum)) || 1;
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.textContent = "Point at a part to see its value.";
    let group = null;
    for (const row of spec.rows) {
      if (row.group !== group) add(box, "div", { class: "group" }, (group = row.group));
      const line = add(box, "div", { class: "bar" });
      add(line, "span", {}, row.name);
      const track = add(line, "div", { class: "track" });
      row.values.forEach((value, n) => {
        if (value <= 0) return;
        const text = row.name + ", " + row.group + ": " + spec.parts[n] + " " + digits(value) + " " + spec.unit;
        const part = add(track, "span", {
          style: "width:" + (100 * value / top) + "%;background:var(--c" + n + ")", title: text, tabindex: "0",
        });
        part.addEventListener("mouseenter", () => { tip.textContent = text; });
        part.addEventListener("focus", () => { tip.textContent = text; });
      });
      add(line, "span", { class: "sum" }, digits(sum(row)) + " " + spec.unit);
    }
    const keys = add(box, "div", { class: "keys" });
    spec.parts.forEach((name, n) => {
      if (spec.rows.every((row) => row.values[n] <= 0)) return;
      const key = add(keys, "span");
      add(key, "i", { style: "background:var(--c" + n + ")" });
      key.appendChild(document.createTextNode(name));
    });
    box.appendChild(tip);
  }

  // Round ticks between two ratios: the finest of these grids that has at most eight and room between any two.
  function ratioTicks(low, high, isFar) {
    const grids = [[1, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 8.5, 9, 9.5],
      [1, 1.1, 1.2, 1.4, 1.6, 2, 3, 4, 5, 6, 7, 8, 9], [1, 1.2, 1.5, 2, 3, 5, 8], [1, 2, 5], [1, 3], [1]];
    for (const grid of grids) {
      const ticks = [];
      for (let power = -12; power <= 12; power += 1) {
        for (const step of grid) {
          const tick = +(step * 10 ** power).toPrecision(3);
          if (tick > low * 1.01 && tick < high / 1.01) ticks.push(tick);
        }
      }
      if (ticks.length <= 8 && ticks.every((tick, n) => n === 0 || isFar(ticks[n - 1], tick))) return ticks;
    }
    return [1];
  }

  // Ratios with their intervals on a logarithmic axis.
  function forest(parent, spec) {
    const fold = add(parent, "details", spec.open ? { open: "", class: "forest" } : { class: "forest" });
    add(fold, "summary", {}, spec.title);
    const box = add(fold, "div", { class: "bars" });
    const ends = spec.rows.flatMap(({ mean, ends }) => (ends ? [Math.max(ends[0], mean / 10), ends[1]] : [mean]));
    // A margin keeps the dots away from the numbers.
    const low = Math.log(0.97 * Math.min(0.8, ...ends)), high = Math.log(1.03 * Math.max(1.25, ...ends));
    const at = (value) => 100 * Math.min(1, Math.max(0, (Math.log(Math.max(value, 1e-12)) - low) / (high - low)));
    let label = null;
    for (const row of spec.rows) {
      if (row.label !== label) add(box, "div", { class: "group" }, (label = row.label));
      const line = add(box, "div", { class: "ratio" });
      add(line, "span", {}, row.system);
      const kind = !row.sure ? "unsure" : row.less === null ? "sure" : (row.mean < 1) === row.less ? "better" : "worse";
      const track = add(line, "div", { class: "axis " + kind });
      add(track, "i", { class: "one", style: "left:" + at(1) + "%" });
      if (row.ends) {
        const from = at(row.ends[0]);
        add(track, "i", { class: "width", style: "left:" + from + "%;width:" + (at(row.ends[1]) - from) + "%" });
      }
      add(track, "i", { class: "dot", style: "left:" + at(row.mean) + "%" });
      const half = row.ends ? (row.ends[1] - row.ends[0]) / 2 : 0;
      // Both numbers have as many decimals. Equal values get "=".
      const shown = (value) => (row.mean >= 100 ? digits(value) : value.toFixed(row.mean >= 10 ? 2 : 3));
      const width = half > 1e-9 * row.mean ? " ± " + shown(half) : "";
      add(line, "span", { class: "sum" }, row.mean === 1 && !width ? "=" : shown(row.mean) + width);
    }
    const scale = add(box, "div", { class: "ratio ticks" });
    add(scale, "span");
    const track = add(scale, "div", { class: "axis" });
    // The width of a folded chart is not known yet.
    const place = () => {
      const pixels = track.clientWidth || 0.4 * page.clientWidth;
      const isFar = (one, next) => pixels * (at(next) - at(one)) / 100 >= 34;
      track.replaceChildren();
      for (const tick of ratioTicks(Math.exp(low), Math.exp(high), isFar)) add(track, "span", { style: "left:" + at(tick) + "%" }, String(tick));
    };
    place();
    fold.addEventListener("toggle", place);
    addEventListener("resize", place);
    if (spec.open) {
      const keys = add(box, "div", { class: "keys" });
      const kinds = [["better", "better"], ["worse", "worse"], ["unsure", "not significant, within 1 %, or too few seeds"]];
      for (const [kind, text] of kinds) {
        const key = add(keys, "span");
        add(key, "i", { class: kind });
        key.appendChild(document.createTextNode(text));
      }
    }
  }

  function show(section) {
    add(page, "h2", {}, section.title);
    for (const line of section.text ? section.text.split("\n") : []) add(page, "p", { class: "line" }, line);
    section.forests.forEach((spec) => forest(page, spec));
    if (section.table) table(page, section.table);
    for (const svg of section.svgs) {
      // Trusted: the tool generated the SVG.
      add(page, "div", { class: "svg" }).innerHTML = svg;
    }
    if (section.charts.length) {
      const grid = add(page, "div", { class: "charts" });
      section.charts.forEach((spec) => chart(grid, spec));
    }
    if (section.bars) bars(page, section.bars);
  }

  page.textContent = "";
  add(page, "h1", {}, data.title);
  add(page, "p", {}, data.subtitle);
  if (data.lead) show(data.lead);
  data.tables.forEach((spec) => table(page, spec));
  data.sections.forEach(show);
  if (data.appendix) {
    const box = add(page, "details");
    add(box, "summary", {}, "The scenario with all defaults");
    add(box, "pre", {}, data.appendix);
  }
  add(page, "footer", {}, "tidegate " + data.version + ". Drag over a chart to zoom, double-click to zoom out; click a legend entry to hide its curve.");

  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => drawn.forEach((d) => d.plot.setSize({ width: d.width(), height: 270 })));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((d) => d.plot.redraw(false)));
  document.documentElement.dataset.drawn = String(drawn.length);
})();
