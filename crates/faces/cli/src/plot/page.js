"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const S = D.trace.series, H = D.trace.heat, PAGE = 4096;
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LABELS = '11.5px system-ui, "DejaVu Sans", sans-serif';
const LEFT = 92, RIGHT = 14, TOP = 10, BOTTOM = 24;
const end = Math.max(1, D.wall_s * 1000, ...S.at_ms.slice(-1));
let hover = null; // milliseconds
let kind = 0;

// Figures for people.
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (n >= 999.5 && u < 4) { n /= 1024; u++; }
  return n.toFixed(u && n < 9.995 ? 2 : u && n < 99.95 ? 1 : 0) + " " + units[u];
}
function count(n) {
  const units = ["", "k", "M", "G"];
  let u = 0;
  while (n >= 999.5 && u < 3) { n /= 1000; u++; }
  return n.toFixed(u && n < 9.995 ? 2 : u && n < 99.95 ? 1 : 0) + units[u];
}
const percent = (n) => Math.round(n * 100) + "%";
function time(ms) {
  if (ms < 1000) return Math.round(ms) + " ms";
  const s = ms / 1000;
  if (s < 60) return s.toFixed(s < 10 ? 2 : 1) + " s";
  return Math.floor(s / 60) + " min " + String(Math.floor(s % 60)).padStart(2, "0") + " s";
}
function ticks(max, wanted, base) {
  const raw = max / wanted;
  const power = base === 2 ? 2 ** Math.floor(Math.log2(raw)) : 10 ** Math.floor(Math.log10(raw));
  const steps = base === 2 ? [1, 2] : [1, 2, 2.5, 5, 10];
  const step = power * steps.find((s) => power * s >= raw);
  const out = [];
  for (let v = 0; v <= max * 1.0001; v += step) out.push(v);
  return out;
}

// A canvas in device pixels, with the axes that all charts share.
function prepare(id) {
  const canvas = $(id), ratio = window.devicePixelRatio || 1;
  const w = canvas.clientWidth;
  const h = Number(canvas.dataset.h || (canvas.dataset.h = canvas.getAttribute("height")));
  canvas.width = w * ratio;
  canvas.height = h * ratio;
  canvas.style.height = h + "px";
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.font = LABELS;
  return { g, w, h, x: (ms) => LEFT + (ms / end) * (w - LEFT - RIGHT) };
}
function timeAxis({ g, w, h, x }) {
  g.fillStyle = css("--faint");
  g.textAlign = "center";
  for (const ms of ticks(end, Math.max(2, w / 130), 10)) {
    if (x(ms) > w - RIGHT - 10 && ms) continue;
    g.fillText(ms ? time(ms).replace(/\.0+ /, " ") : "0", x(ms), h - 7);
  }
}
function valueAxis(c, max, base, label) {
  const { g, w, h } = c, y = (v) => h - BOTTOM - (v / max) * (h - BOTTOM - TOP);
  g.lineWidth = 1;
  for (const v of ticks(max, Math.max(2.5, h / 52), base)) {
    g.strokeStyle = css(v ? "--grid" : "--axis");
    g.beginPath();
    g.moveTo(LEFT, Math.round(y(v)) + .5);
    g.lineTo(w - RIGHT, Math.round(y(v)) + .5);
    g.stroke();
    g.fillStyle = css("--faint");
    g.textAlign = "right";
    g.fillText(label(v), LEFT - 8, y(v) + 4);
  }
  timeAxis(c);
  return y;
}
function crosshair({ g, h, x }) {
  if (hover === null) return;
  g.strokeStyle = css("--soft");
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(Math.round(x(hover)) + .5, TOP);
  g.lineTo(Math.round(x(hover)) + .5, h - BOTTOM);
  g.stroke();
}
function path(g, xs, ys) {
  xs.forEach((x, i) => (i ? g.lineTo(x, ys[i]) : g.moveTo(x, ys[i])));
}

// Index of the last sample at or before `ms`.
function sampleAt(ms) {
  let low = 0, high = S.at_ms.length - 1;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (S.at_ms[mid] <= ms) low = mid; else high = mid - 1;
  }
  return low;
}

// Memory, stacked: the two lowest layers are RAM and stay below the budget.
const saved = S.compressed_from_bytes.map((from, i) => Math.max(0, from - S.compressed_bytes[i]));
// What is nowhere but on disk: paging files also hold copies of pages that are in RAM.
const away = S.spilled_bytes.map((spilled, i) => Math.max(0, Math.min(spilled,
  S.demand_bytes[i] - S.resident_bytes[i] - S.compressed_from_bytes[i])));
const LAYERS = [["--resident", 1, S.resident_bytes], ["--compressed", 1, S.compressed_bytes],
  ["--compressed", .38, saved], ["--spilled", 1, away]];
function drawMemory() {
  const c = prepare("memory"), { g, x } = c;
  const budget = D.settings.ram_bytes;
  const sums = S.at_ms.map((_, i) => LAYERS.reduce((sum, layer) => sum + layer[2][i], 0));
  const y = valueAxis(c, Math.max(budget, ...sums, ...S.demand_bytes) * 1.04 || 1, 2, bytes);
  const xs = S.at_ms.map(x);
  let below = S.at_ms.map(() => 0);
  for (const [colour, alpha, values] of LAYERS) {
    const above = below.map((v, i) => v + values[i]);
    g.fillStyle = css(colour);
    g.globalAlpha = .88 * alpha;
    g.beginPath();
    path(g, xs, above.map(y));
    for (let i = xs.length - 1; i >= 0; i--) g.lineTo(xs[i], y(below[i]));
    g.fill();
    g.globalAlpha = 1;
    if (Math.max(...values) > 0) stroke(g, xs, above.map(y), "--card", 1.25);
    below = above;
  }
  stroke(g, xs, S.demand_bytes.map(y), "--demand", 1.5);
  g.setLineDash([6, 4]);
  stroke(g, [x(0), x(end)], [y(budget), y(budget)], "--budget", 1.75);
  g.setLineDash([]);
  crosshair(c);
  const i = hover === null ? -1 : sampleAt(hover);
  const at = (values, peak) => bytes(i < 0 ? peak : values[i]);
  legend("memory-legend", [
    ["--resident", "", "resident", at(S.resident_bytes, D.peaks.resident_bytes)],
    ["--compressed", "", "compressed", at(S.compressed_bytes, D.peaks.compressed_bytes)],
    ["--compressed", "pale", "saved by it", at(saved, Math.max(0, ...saved))],
    ["--spilled", "", "only on disk", at(away, Math.max(0, ...away))],
    ["--demand", "line", "mapped", at(S.demand_bytes, D.peaks.demand_bytes)],
    ["--budget", "dash", "budget", bytes(budget)],
  ], i < 0 ? "peaks" : "at " + time(hover));
}
function stroke(g, xs, ys, colour, width) {
  g.strokeStyle = css(colour);
  g.lineWidth = width;
  g.lineJoin = "round";
  g.beginPath();
  path(g, xs, ys);
  g.stroke();
}
function legend(id, entries, when) {
  const parts = entries.map(([colour, shape, name, value]) =>
    `<span><i class="${shape}" style="--colour:var(${colour})"></i>${name}<b>${value}</b></span>`);
  $(id).innerHTML = parts.join("") + `<span style="color:var(--faint)">${when}</span>`;
}

// Rates: growth of a counter over buckets of about three pixels.
function rates(key, width) {
  const buckets = Math.max(1, Math.min(S.at_ms.length - 1, Math.floor(width / 3)));
  const at = [], value = [];
  for (let b = 0; b < buckets; b++) {
    const from = Math.floor((b * (S.at_ms.length - 1)) / buckets);
    const to = Math.floor(((b + 1) * (S.at_ms.length - 1)) / buckets);
    const ms = S.at_ms[to] - S.at_ms[from];
    if (ms <= 0) continue;
    at.push((S.at_ms[to] + S.at_ms[from]) / 2);
    value.push(((S[key][to] - S[key][from]) * 1000) / ms);
  }
  return { at, value };
}
const RATES = [["faults", "faults", "--faults"], ["page-ins", "page_ins", "--ins"],
  ["page-outs", "page_outs", "--outs"]];
function nearest(series, ms) {
  let best = 0;
  series.at.forEach((at, i) => {
    if (Math.abs(at - ms) < Math.abs(series.at[best] - ms)) best = i;
  });
  return series.value[best] || 0;
}
function drawLines(id, lines, base, label, area) {
  const c = prepare(id), { g, x, w } = c;
  const all = lines.map(([, key]) => rates(key, w - LEFT - RIGHT));
  if (area) all.forEach((s) => { s.value = s.value.map((v) => v / 1e6); });
  const top = Math.max(area ? .1 : 10, ...all.flatMap((s) => s.value)) * 1.1;
  const y = valueAxis(c, top, base, label);
  all.forEach((s, k) => {
    const xs = s.at.map(x), ys = s.value.map(y);
    if (area && xs.length) {
      g.globalAlpha = .25;
      g.fillStyle = css(lines[k][2]);
      g.beginPath();
      path(g, [xs[0], ...xs, xs[xs.length - 1]], [y(0), ...ys, y(0)]);
      g.fill();
      g.globalAlpha = 1;
    }
    stroke(g, xs, ys, lines[k][2], 1.75);
  });
  crosshair(c);
  legend(id + "-legend", lines.map(([name, , colour], k) => [colour, "line", name,
    label(hover === null ? Math.max(0, ...all[k].value) : nearest(all[k], hover))]),
  hover === null ? "peaks" : "at " + time(hover));
}

// The heat map: rows are memory in order of address, with gaps where nothing ever happened.
const KINDS = [["everything", null], ["filled", 2], ["brought in", 3], ["taken out", 4],
  ["first writes", 5]];
const rowAddress = H.rows.map((row) => BigInt(row));
const rowTops = [];
let heatHeight = 0;
const cellOf = new Map();
for (const cell of H.cells) cellOf.set(cell[0] + ":" + cell[1], cell);
const valueOf = (cell) => kind
  ? cell[KINDS[kind][1]] : cell[2] + cell[3] + cell[4] + cell[5];
function layoutRows() {
  const breaks = rowAddress.filter((a, i) => i && a - rowAddress[i - 1] > BigInt(H.row_bytes));
  const gap = breaks.length < 12 ? 13 : 6;
  const rowHeight = Math.max(1.5, Math.min(14, (400 - breaks.length * gap) / rowAddress.length));
  let at = TOP;
  rowAddress.forEach((address, i) => {
    if (i && address - rowAddress[i - 1] > BigInt(H.row_bytes)) at += gap;
    rowTops[i] = at;
    at += rowHeight;
  });
  heatHeight = rowHeight;
  $("heat").dataset.h = Math.ceil(Math.max(at, 60) + BOTTOM);
}
function rampColour(share) {
  const stops = css("--ramp").split(" ").map((hex) =>
    [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const at = share * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(at));
  const mix = stops[low].map((v, i) => Math.round(v + (stops[low + 1][i] - v) * (at - low)));
  return `rgb(${mix.join(",")})`;
}
function drawHeat() {
  const c = prepare("heat"), { g, w, h, x } = c;
  const most = H.cells.reduce((most, cell) => Math.max(most, valueOf(cell)), 1);
  g.fillStyle = css("--grid");
  g.globalAlpha = .5;
  rowTops.forEach((top) => g.fillRect(LEFT, top, w - LEFT - RIGHT, heatHeight + .3));
  g.globalAlpha = 1;
  const colours = Array.from({ length: 65 }, (_, i) => rampColour(i / 64));
  for (const cell of H.cells) {
    const value = valueOf(cell);
    if (!value) continue;
    const from = x(cell[1] * H.column_ms);
    const to = x(Math.min(end, (cell[1] + 1) * H.column_ms));
    g.fillStyle = colours[Math.round((64 * Math.log1p(value)) / Math.log1p(most))];
    g.fillRect(from, rowTops[cell[0]], Math.max(1, to - from + .3), heatHeight + .3);
  }
  g.fillStyle = css("--faint");
  g.textAlign = "right";
  g.font = '10.5px ui-monospace, "DejaVu Sans Mono", monospace';
  let last = -99;
  rowAddress.forEach((address, i) => {
    const starts = !i || address - rowAddress[i - 1] > BigInt(H.row_bytes);
    if (starts && rowTops[i] - last >= 13) {
      g.fillText(address.toString(16), LEFT - 8, rowTops[i] + 9);
      last = rowTops[i];
    }
  });
  g.font = LABELS;
  timeAxis(c);
  crosshair(c);
  $("scale").innerHTML = `1 page<i style="background:linear-gradient(90deg,` +
    `${[0, .2, .4, .6, .8, 1].map(rampColour).join(",")})"></i>${count(most)} pages ` +
    `in ${time(H.column_ms)} and ${bytes(H.row_bytes)} (logarithmic)`;
}
// Hovering.
function overCell(event) {
  const y = event.offsetY;
  const row = rowTops.findIndex((top) => y >= top && y < top + heatHeight);
  if (row < 0) return null;
  return { row, cell: cellOf.get(row + ":" + Math.floor(hover / H.column_ms)) };
}
function showTip(event, html) {
  const tip = $("tip");
  tip.innerHTML = html;
  tip.style.display = "block";
  const left = event.clientX + 16, top = event.clientY + 14;
  tip.style.left = Math.min(left, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = (top + tip.offsetHeight > innerHeight
    ? event.clientY - tip.offsetHeight - 10 : top) + "px";
}
function heatTip(event) {
  const over = overCell(event);
  if (!over) { $("tip").style.display = "none"; return; }
  const from = rowAddress[over.row], to = from + BigInt(H.row_bytes);
  const column = Math.floor(hover / H.column_ms) * H.column_ms;
  const cell = over.cell || [0, 0, 0, 0, 0, 0];
  const rows = KINDS.slice(1).map(([name, at]) =>
    `<tr><td>${name}</td><td>${count(cell[at])} pages</td></tr>`);
  showTip(event, `<div class="mono">0x${from.toString(16)} .. 0x${to.toString(16)}</div>` +
    `<div>${time(column)} .. ${time(column + H.column_ms)}</div><table>${rows.join("")}</table>`);
}
for (const id of ["memory", "rates", "stall", "heat"]) {
  $(id).addEventListener("pointermove", (event) => {
    const ms = ((event.offsetX - LEFT) / ($(id).clientWidth - LEFT - RIGHT)) * end;
    hover = ms >= 0 && ms <= end ? ms : null;
    requestAnimationFrame(draw);
    if (id === "heat" && hover !== null) heatTip(event);
  });
  $(id).addEventListener("pointerleave", () => {
    hover = null;
    $("tip").style.display = "none";
    requestAnimationFrame(draw);
  });
}

// What does not change.
function text(tag, value, parent) {
  const element = document.createElement(tag);
  element.textContent = value;
  parent.append(element);
  return element;
}
function fillPage() {
  const program = D.program.join(" ");
  $("program").textContent = program.length > 90 ? program.slice(0, 90) + " ..." : program;
  document.title = "farpage run " + program;
  const exit = D.exit.signal === null ? "exit status " + D.exit.code : "signal " + D.exit.signal;
  $("facts").textContent = [`${exit} after ${time(D.wall_s * 1000)}`, `Linux ${D.kernel}`,
    `userfaultfd: ${D.tier}`, `farpage ${D.farpage}`].join("  ·  ");
  const C = D.counters, ins = C.page_ins_compressed + C.page_ins_spilled;
  const outs = C.page_outs_compressed + C.page_outs_spilled + C.page_outs_clean +
    C.zero_pages_dropped;
  const tiles = [
    [bytes(D.peaks.demand_bytes), "peak demand"],
    [bytes(D.peaks.used_bytes), "peak RAM of " + bytes(D.settings.ram_bytes)],
    [bytes(outs * PAGE), "paged out"],
    [bytes(ins * PAGE), "paged in"],
    [D.compression_ratio ? D.compression_ratio.toFixed(1) + " : 1" : "none", "compression"],
    [percent(D.stalled_share), "of the time stalled"],
  ];
  for (const [value, name] of tiles) {
    const tile = text("div", "", $("tiles"));
    tile.className = "tile";
    text("b", value, tile);
    text("span", name, tile);
  }
  $("deaths").hidden = !D.casualties.length;
  for (const dead of D.casualties) {
    text("div", `${dead.name} (process ${dead.pid}) was killed by Farpage: ${dead.cause}`,
      $("deaths"));
  }
  const table = (object) => {
    const rows = text("table", "", $("counters"));
    for (const [name, value] of Object.entries(object)) {
      const row = text("tr", "", rows);
      text("td", name.replaceAll("_", " "), row);
      const plain = value === null ? "none" : Array.isArray(value) ? value.join(", ") : value;
      text("td", typeof plain === "number" ? plain.toLocaleString("en") : plain, row);
    }
  };
  table(C);
  table({ ...D.settings, ...Object.fromEntries(Object.entries(D.peaks).map(([k, v]) =>
    ["peak_" + k, v])) });
  const lost = H.lost ? `, ${count(H.lost)} more came too fast` : "";
  $("heat-note").textContent = `pages touched by Farpage (${count(H.events)} events${lost})`;
  KINDS.forEach(([name], k) => {
    const button = text("button", name, $("kinds"));
    button.type = "button";
    button.onclick = () => { kind = k; draw(); };
  });
}
function draw() {
  drawMemory();
  drawLines("rates", RATES, 10, count, false);
  drawLines("stall", [["stalled", "stall_us", "--stall"]], 10, percent, true);
  drawHeat();
  [...$("kinds").children].forEach((b, k) => b.setAttribute("aria-pressed", k === kind));
}
function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "light" : "dark";
}
theme(location.hash === "#dark" || (location.hash !== "#light" &&
  matchMedia("(prefers-color-scheme: dark)").matches));
$("theme").onclick = () => {
  theme(document.documentElement.dataset.theme !== "dark");
  draw();
};
fillPage();
layoutRows();
draw();
addEventListener("resize", draw);
