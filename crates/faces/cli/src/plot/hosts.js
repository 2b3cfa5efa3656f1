
// Lines or areas over the time of the recording.
function over(svg, of, label, stacked) {
  const w = 900, h = 200, left = 84, bottom = 24, top = 10;
  const looks = recording.looks, last = looks[looks.length - 1];
  svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
  const hosts = last.hosts.map((host) => host.number);
  const series = hosts.map((number) => looks.map((look) => {
    const host = look.hosts.find((one) => one.number === number);
    return host ? of(host) : 0;
  }));
  const sums = looks.map((_, at) => series.reduce((sum, one) => sum + one[at], 0));
  const most = Math.max(1, ...(stacked ? sums : series.flat()));
  const x = (at) => left + at / Math.max(1, looks.length - 1) * (w - left - 12);
  const y = (v) => h - bottom - v / most * (h - bottom - top);
  const made = [];
  for (const part of [0, .5, 1]) {
    made.push(draw("line", { x1: left, x2: w - 12, y1: y(most * part), y2: y(most * part), stroke: css("--grid") }),
      draw("text", { x: left - 8, y: y(most * part) + 4, "text-anchor": "end" }, label(most * part)));
  }
  made.push(draw("text", { x: left, y: h - 6 }, "0 s"),
    draw("text", { x: w - 12, y: h - 6, "text-anchor": "end" }, recording.seconds.toFixed(0) + " s"));
  const below = looks.map(() => 0);
  series.forEach((values, at) => {
    const line = values.map((v, i) => [x(i), y(stacked ? below[i] + v : v)]);
    const points = line.map(([a, b], i) => (i ? "L" : "M") + a + " " + b).join(" ");
    if (stacked) {
      const back = below.map((v, i) => "L" + x(i) + " " + y(v)).reverse().join(" ");
      made.push(draw("path", { d: points + " " + back + " Z", fill: hue(at), "fill-opacity": .75 }));
      values.forEach((v, i) => { below[i] += v; });
    } else {
      made.push(draw("path", { d: points, fill: "none", stroke: hue(at), "stroke-width": 2 }));
    }
  });
  svg.replaceChildren(...made);
}

const mean = recording.mean;
$("facts").textContent = "hosts: " + mean.hosts.length + ", objects: " + mean.objects.length + ", "
  + recording.seconds.toFixed(0) + " seconds";
ring($("ring"), mean);
shared($("shared-head"), $("shared"), mean);
over($("sent"), (host) => host.flows.reduce((sum, flow) => sum + flow.messages_per_second, 0), count, false);
over($("owned"), (host) => host.owned_bytes, bytes, true);
