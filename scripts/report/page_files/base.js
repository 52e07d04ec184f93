// Elements, numbers and colours. Text from a model or a record enters the page as text nodes only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const el = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);
const byId = (id) => document.getElementById(id);
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const sum = (values) => values.reduce((a, b) => a + b, 0);
const mean = (values) => {
  const known = values.filter(isNumber);
  return known.length ? sum(known) / known.length : null;
};

function count(x) {
  return isNumber(x) ? Math.round(x).toLocaleString("en-US") : "\u2013";
}

function figure(x, digits = 3) {
  if (!isNumber(x)) return "\u2013";
  const size = Math.abs(x);
  if (size >= 1e12) return minus(x.toExponential(1)).replace("+", "");
  if (size >= 1000) return Number.isInteger(x) || size >= 1e4 ? count(x) : x.toLocaleString("en-US", { maximumFractionDigits: 1 });
  if (size !== 0 && size < 1e-3) return minus(x.toExponential(1)).replace("e-", "e\u2212");
  if (Number.isInteger(x)) return minus(String(x));
  return minus(size >= 100 ? x.toFixed(1) : size >= 10 ? x.toFixed(2) : x.toFixed(digits));
}

const minus = (text) => text.replace(/^-/, "\u2212");
const fixed = (x) => (isNumber(x) ? minus(x.toFixed(2).replace(/^-(?=0\.00$)/, "")) : "\u2013");
const signed = (x) => (isNumber(x) && x >= 0.005 ? "+" : "") + fixed(x);

function duration(seconds) {
  if (!isNumber(seconds)) return "\u2013";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

// The value of a CSS variable in the current theme: a canvas needs a colour, not light-dark().
function cssColour(name) {
  const probe = el("i", { style: { color: `var(${name})`, display: "none" } });
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

// A single tooltip for the page: `data-tip` of the hovered or focused element, set by `tipped`.
const tipTexts = new WeakMap();
function tipped(node, text) {
  tipTexts.set(node, text);
  return node;
}

function showTip(event) {
  const tip = byId("tip");
  let node = event.target;
  while (node && node.nodeType === 1 && !tipTexts.has(node)) node = node.parentElement;
  if (!node || !tipTexts.has(node)) {
    tip.hidden = true;
    return;
  }
  tip.textContent = tipTexts.get(node);
  tip.hidden = false;
  const box = node.getBoundingClientRect();
  const left = clamp(box.left, 8, innerWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : box.bottom + 6}px`;
}

function sectionHead(id, title, note, ...right) {
  return el("div", { class: "section-head" },
    el("h2", { id: `${id}-title` }, title), note ? el("p", {}, note) : null, ...right);
}

// Names without the folder that all of them are in.
function shortNames(names) {
  const folder = `${names[0].split("/")[0]}/`;
  return names.length > 1 && names.every((name) => name.startsWith(folder)) ? names.map((name) => name.slice(folder.length)) : names;
}

// Names that need no more than their number until someone asks.
const folded = (id, summary, names) => el("details", { class: "more", id }, el("summary", {}, summary), el("p", { class: "small muted" }, names.join(", ")));

function choice(label, options, value, change) {
  const select = el("select", { onchange: () => change(select.value) },
    options.map(([key, name]) => el("option", { value: key, selected: key === value }, name)));
  return el("label", {}, label, select);
}

// A picture's data URL, sliced from the text that contains all of them.
let pictureText = null;
let picturePlaces = [];
function pictureUrl(index) {
  if (!isNumber(index) || !picturePlaces[index]) return null;
  const [start, length] = picturePlaces[index];
  return pictureText.substr(start, length);
}
