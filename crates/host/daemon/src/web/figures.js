"use strict";
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
if (matchMedia("(prefers-color-scheme: dark)").matches) {
  document.documentElement.dataset.theme = "dark";
}

// Figures for people.
function scaled(n, step, units) {
  let u = 0;
  while (n >= 999.5 && u < units.length - 1) { n /= step; u++; }
  return n.toFixed(u && n < 9.995 ? 2 : u && n < 99.95 ? 1 : 0) + units[u];
}
const bytes = (n) => scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
const count = (n) => scaled(n, 1000, ["", "k", "M", "G"]);
const time = (us) => us === null ? "-" : us < 9.95 ? us.toFixed(1) + " us"
  : scaled(us, 1000, [" us", " ms", " s"]);

// Names are of others: text, never markup.
function make(kind, text, name) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}
function row(cells) {
  const made = make("tr");
  made.append(...cells.map((cell) => cell instanceof Node ? cell : make("td", cell)));
  return made;
}
function bar(parts, whole) {
  const cell = make("td", undefined, "bar"), inside = make("div");
  for (const [colour, value] of parts) {
    const part = make("i");
    part.style.width = 100 * value / Math.max(1, whole) + "%";
    part.style.background = css(colour);
    inside.append(part);
  }
  cell.append(inside);
  return cell;
}
function legend(id, entries) {
  $(id).replaceChildren(...entries.map(([colour, name, value]) => {
    const made = make("span"), mark = make("i", undefined, "line");
    mark.style.setProperty("--colour", css(colour));
    made.append(mark, name, make("b", value));
    return made;
  }));
}
