
// Hosts of a cluster: a ring of them with what flows between, and who owns what.
const SVG = "http://www.w3.org/2000/svg";
const hue = (at) => `hsl(${(at * 137.5 + 215) % 360} 58% 52%)`;

function draw(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function colours(cluster) {
  return new Map(cluster.hosts.map((host, at) => [host.number, hue(at)]));
}

// A flow bends to its right, so that the two of a pair are apart, and ends at the rim of a host.
function path(from, to) {
  const dx = to.x - from.x, dy = to.y - from.y, long = Math.hypot(dx, dy) || 1;
  const bend = Math.min(70, 22 + long * .12);
  const mid = { x: (from.x + to.x) / 2 - dy / long * bend, y: (from.y + to.y) / 2 + dx / long * bend };
  const rim = (at, gap) => {
    const ex = mid.x - at.x, ey = mid.y - at.y, e = Math.hypot(ex, ey) || 1;
    return [at.x + ex / e * (at.r + gap), at.y + ey / e * (at.r + gap)];
  };
  const [ax, ay] = rim(from, 3), [bx, by] = rim(to, 9);
  return {
    line: `M${ax} ${ay} Q${mid.x} ${mid.y} ${bx} ${by}`,
    // Nearer to who sends, so that labels are apart where arrows come close.
    label: { x: .42 * ax + .46 * mid.x + .12 * bx - dy / long * 14, y: .42 * ay + .46 * mid.y + .12 * by + dx / long * 14 - 3,
      side: -dy / long },
    tip: { x: bx, y: by, turn: Math.atan2(by - mid.y, bx - mid.x) * 180 / Math.PI },
  };
}

// Flows, those of most bytes last and so on top; of these alone it is written how much they are.
function ring(svg, cluster) {
  const n = cluster.hosts.length, colour = colours(cluster);
  const w = 900, h = n > 2 ? 480 : 250, most = Math.max(1, ...cluster.hosts.map((o) => o.owned_bytes));
  svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
  const places = new Map(cluster.hosts.map((host, at) => {
    const turn = (n > 2 ? -Math.PI / 2 : Math.PI) + 2 * Math.PI * at / Math.max(1, n);
    const r = (n > 16 ? 10 : 19) + (n > 16 ? 6 : 15) * Math.sqrt(host.owned_bytes / most);
    return [host.number, { x: n === 1 ? w / 2 : w / 2 + Math.cos(turn) * (n > 2 ? 330 : 270),
      y: h / 2 + (n > 2 ? Math.sin(turn) * (h / 2 - 82) : 0), r }];
  }));
  const flows = cluster.hosts.flatMap((host) => host.flows.map((flow) => ({ ...flow, from: host.number })))
    .filter((flow) => flow.messages_per_second > 0 && places.has(flow.to))
    .sort((a, b) => a.bytes_per_second - b.bytes_per_second);
  const top = Math.max(1, ...flows.map((flow) => flow.bytes_per_second));
  const made = [], labels = [];
  const to = (flow) => places.get(flow.to).x > places.get(flow.from).x;
  flows.forEach((flow, at) => {
    const part = Math.sqrt(flow.bytes_per_second / top), wide = 1.2 + 7 * part;
    const way = path(places.get(flow.from), places.get(flow.to)), stroke = colour.get(flow.from);
    const line = draw("path", { d: way.line, fill: "none", stroke, "stroke-width": wide,
      "stroke-opacity": .35 + .5 * part, "stroke-linecap": "round" });
    const name = (number) => cluster.hosts.find((one) => one.number === number).name;
    line.append(draw("title", {}, name(flow.from) + " to " + name(flow.to) + ": "
      + count(flow.messages_per_second) + " messages/s, " + bytes(flow.bytes_per_second) + "/s"));
    made.push(line);
    const tip = 5 + wide;
    made.push(draw("path", { d: `M${-tip} ${-tip * .7} L4 0 L${-tip} ${tip * .7} Z`, fill: stroke,
      transform: `translate(${way.tip.x} ${way.tip.y}) rotate(${way.tip.turn})` }));
    if (flows.length - at > (n > 4 ? 6 : 12)) return;
    const anchor = Math.abs(way.label.side) < .35 ? "middle" : way.label.side > 0 ? "start" : "end";
    const lower = anchor === "middle" ? (to(flow) ? 4 : -12) : 0;
    const text = draw("text", { x: way.label.x, y: way.label.y + lower, "text-anchor": anchor, class: "flow" });
    text.append(draw("tspan", { x: way.label.x }, count(flow.messages_per_second) + " messages/s"),
      draw("tspan", { x: way.label.x, dy: 14 }, bytes(flow.bytes_per_second) + "/s"));
    labels.push(text);
  });
  for (const host of cluster.hosts) {
    const { x, y, r } = places.get(host.number), fill = colour.get(host.number);
    made.push(draw("circle", { cx: x, cy: y, r: r + 4, fill: "none", stroke: fill, "stroke-width": 1.5,
      "stroke-dasharray": host.has_told ? "none" : "3 4", "stroke-opacity": host.is_own ? 1 : .4 }),
      draw("circle", { cx: x, cy: y, r, fill, "fill-opacity": host.has_told ? .9 : .25 }));
    if (n > 32) continue;
    const name = n > 2 && y < h / 3 ? y - r - 26 : y + r + 20;
    const text = draw("text", { x, y: name, "text-anchor": "middle", class: "host" });
    text.append(draw("tspan", { x }, host.name),
      draw("tspan", { x, dy: 15, class: "owns" }, host.has_told ? "owns " + bytes(host.owned_bytes) : "silent"));
    labels.push(text);
  }
  svg.replaceChildren(...made, ...labels);
}

// What hosts have in common, and which of them owns how much.
function shared(head, body, cluster) {
  const colour = colours(cluster);
  const names = ["memory of the cluster", "owned by", "size", "page", "faults/s", "messages/s",
    "messages a fault", "sent on"];
  head.replaceChildren(...names.map((name) => make("th", name, name === "owned by" ? "bar" : "")));
  body.replaceChildren(...cluster.objects.map((o) => {
    const cell = make("td", undefined, "bar"), inside = make("div");
    for (const [host, owned] of o.owned_bytes) {
      const part = make("i");
      part.style.width = 100 * owned / Math.max(1, o.bytes) + "%";
      part.style.background = colour.get(host) || css("--faint");
      const who = cluster.hosts.find((one) => one.number === host);
      part.title = (who ? who.name : "host " + host) + ": " + bytes(owned);
      inside.append(part);
    }
    cell.append(inside);
    return row([o.name || "(no name)", cell, bytes(o.bytes), bytes(o.page_bytes),
      count(o.faults_per_second), count(o.messages_per_second),
      o.faults ? (o.messages / o.faults).toFixed(2) : "-",
      o.messages ? (100 * o.forwarded / o.messages).toFixed(1) + "%" : "-"]);
  }));
}
