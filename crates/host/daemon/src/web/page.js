const LEFT = 84, RIGHT = 12, TOP = 10, BOTTOM = 24, MINUTES = 10;
const past = [];

function plot(id, lines, most, label, steps) {
  const canvas = $(id), ratio = window.devicePixelRatio || 1, w = canvas.clientWidth;
  const h = Number(canvas.dataset.h || (canvas.dataset.h = canvas.getAttribute("height")));
  canvas.width = w * ratio;
  canvas.height = h * ratio;
  canvas.style.height = h + "px";
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.font = '11.5px system-ui, "DejaVu Sans", sans-serif';
  const now = past[past.length - 1].at_ms;
  // As much as is known, two minutes at least.
  const seen = Math.min(MINUTES, Math.max(2, Math.ceil((now - past[0].at_ms) / 60000)));
  const x = (ms) => w - RIGHT - (now - ms) / (seen * 60000) * (w - LEFT - RIGHT);
  const y = (v) => h - BOTTOM - v / most * (h - BOTTOM - TOP);
  for (let i = 0; i <= steps; i++) {
    const v = most * i / steps;
    g.strokeStyle = css(i ? "--grid" : "--axis");
    g.beginPath();
    g.moveTo(LEFT, Math.round(y(v)) + .5);
    g.lineTo(w - RIGHT, Math.round(y(v)) + .5);
    g.stroke();
    g.fillStyle = css("--faint");
    g.textAlign = "right";
    g.fillText(label(v), LEFT - 8, y(v) + 4);
  }
  g.textAlign = "center";
  for (let m = 0; m <= seen; m += seen > 5 ? 2 : 1) {
    g.fillText(m ? "-" + m + " min" : "now", Math.min(x(now - m * 60000), w - RIGHT - 12), h - 7);
  }
  for (const [colour, of, filled] of lines) {
    g.beginPath();
    past.forEach((p, i) => g[i ? "lineTo" : "moveTo"](x(p.at_ms), y(of(p))));
    g.strokeStyle = g.fillStyle = css(colour);
    g.lineWidth = 1.75;
    g.stroke();
    if (filled && past.length > 1) {
      g.lineTo(x(now), y(0));
      g.lineTo(x(past[0].at_ms), y(0));
      g.globalAlpha = .14;
      g.fill();
      g.globalAlpha = 1;
    }
  }
}

// The smallest round figure above.
function round(n, base) {
  let top = 1;
  while (top < n) top *= base === 2 ? 2 : String(top)[0] === "2" ? 2.5 : 2;
  return top;
}

function show(r) {
  const last = past[past.length - 1];
  $("facts").textContent = "process " + r.pid + ", objects: " + r.objects_all
    + (r.default_pager ? ", default pager: " + r.default_pager : "");
  const used = r.resident_bytes + r.compressed_bytes;
  const tiles = [
    [bytes(used) + " of " + bytes(r.ram_bytes), "RAM in use"],
    [bytes(r.dirty_bytes), "dirty"],
    [bytes(r.wired_bytes), "wired"],
    [bytes(last.paged_bytes), "in paging files"],
    [count(r.faults.per_second), "faults a second"],
    [time(r.faults.p50_us) + " / " + time(r.faults.p99_us), "half / 99 of 100 within"],
  ];
  $("tiles").replaceChildren(...tiles.map(([value, name]) => {
    const tile = make("div", undefined, "tile");
    tile.append(make("b", value), make("span", name));
    return tile;
  }));
  $("warning").hidden = r.no_room_ns === null;
  $("warning").textContent = "Paging space is full since " + time((r.no_room_ns || 0) / 1000)
    + ": new objects are refused, programs that touch new pages get SIGBUS (" + r.refused
    + " so far). Remove objects (farpage rm), or make room where the paging files are.";
  plot("memory", [["--resident", (p) => p.resident_bytes, true], ["--stall", (p) => p.dirty_bytes],
    ["--compressed", (p) => p.compressed_bytes], ["--spilled", (p) => p.paged_bytes],
    ["--budget", () => r.ram_bytes]],
  round(Math.max(r.ram_bytes, ...past.map((p) => Math.max(p.resident_bytes, p.paged_bytes))), 2),
  bytes, 4);
  legend("memory-legend", [["--resident", "in memory", bytes(last.resident_bytes)],
    ["--stall", "of that dirty", bytes(last.dirty_bytes)],
    ["--compressed", "compressed", bytes(last.compressed_bytes)],
    ["--spilled", "in paging files", bytes(last.paged_bytes)],
    ["--budget", "budget", bytes(r.ram_bytes)]]);
  plot("faults", [["--faults", (p) => p.faults_per_second, true]],
    round(Math.max(10, ...past.map((p) => p.faults_per_second)), 10), count, 2);
  legend("faults-legend", [["--faults", "faults/s", count(last.faults_per_second)]]);
  $("hosts-part").hidden = !r.cluster;
  if (r.cluster) {
    ring($("ring"), r.cluster);
    shared($("shared-head"), $("shared"), r.cluster);
  }
  $("objects-note").textContent = r.objects.length < r.objects_all
    ? "the " + r.objects.length + " that have most in memory" : "";
  $("objects").replaceChildren(...r.objects.map((o) => row([
    o.name || "(no name)",
    bar([["--stall", o.dirty_bytes], ["--resident", o.resident_bytes - o.dirty_bytes]], o.bytes),
    bytes(o.bytes),
    bytes(o.resident_bytes) + (o.ram_bytes < o.bytes && o.ram_bytes !== null ? " of " + bytes(o.ram_bytes) : ""),
    bytes(o.dirty_bytes), bytes(o.wired_bytes),
    count(o.faulted.per_second), time(o.faulted.p50_us), time(o.faulted.p99_us),
    o.mapped_by.map(([pid, n]) => n > 1 ? pid + " (" + n + ")" : pid).join(" ") || "-",
  ])));
  $("pagers").replaceChildren(...r.pagers.map((p) => row([
    p.name, String(p.objects), String(p.open), count(p.answers.per_second),
    time(p.answers.p50_us), time(p.answers.p99_us),
    make("td", p.health, p.health === "well" ? "" : "bad"),
  ])));
}

function head(id, names) {
  const kind = (name) => name === "of its size" ? "bar" : "";
  $(id).replaceChildren(...names.map((name) => make("th", name, kind(name))));
}
head("objects-head", ["object", "of its size", "size", "in memory", "dirty", "wired", "faults/s",
  "p50", "p99", "mapped by"]);
head("pagers-head", ["pager", "objects", "open", "calls/s", "p50", "p99", "health"]);

async function look() {
  const since = past.length ? past[past.length - 1].at_ms : 0;
  try {
    const answer = await fetch("figures.json?since=" + since);
    const told = await answer.json();
    past.push(...told.past);
    past.splice(0, Math.max(0, past.length - MINUTES * 60));
    if (past.length) show(told.reading);
  } catch (error) {
    $("warning").hidden = false;
    $("warning").textContent = "The host kernel does not answer: " + error.message;
  }
  setTimeout(look, 1000);
}
look();
