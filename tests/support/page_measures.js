// What tests measure in a page: where its text stands, what covers what, and how well it can be read.

// Text of all visible elements as boxes in the window, cut to what their scrolling or clipping ancestors show and to what
// lies left of a pinned column.
function textBoxes() {
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, style, noscript, option, svg, [hidden], .tip")) continue;
    if (!element.checkVisibility({ visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      let [x1, y1, x2, y2] = [rect.left, rect.top, rect.right, rect.bottom];
      for (let e = element; e && e !== document.body; e = e.parentElement) {
        for (const pinned of e.parentElement.querySelectorAll(":scope > .pinned")) if (pinned !== e) x2 = Math.min(x2, pinned.getBoundingClientRect().left);
        if (getComputedStyle(e).overflow === "visible") continue;
        const clip = e.getBoundingClientRect();
        [x1, y1, x2, y2] = [Math.max(x1, clip.left), Math.max(y1, clip.top), Math.min(x2, clip.right), Math.min(y2, clip.bottom)];
      }
      if (x2 - x1 > 2 && y2 - y1 > 2) boxes.push({ text: node.textContent.trim().slice(0, 40), x1, y1, x2, y2, element });
    }
  }
  return boxes;
}

// Pairs of texts that cover each other, texts that stick out of the window, buttons that cut their one line of text,
// controls that stick out of their card.
function layoutFaults() {
  const boxes = textBoxes(), found = [];
  for (const a of boxes) if (a.x1 < -0.5 || a.x2 > innerWidth + 0.5) found.push(`${a.text} sticks out: ${a.x1} to ${a.x2}`);
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    const wide = Math.min(a.x2, b.x2) - Math.max(a.x1, b.x1), high = Math.min(a.y2, b.y2) - Math.max(a.y1, b.y1);
    if (a.element !== b.element && wide > 2 && high > 4) found.push(`${a.text} covers ${b.text}: ${wide.toFixed(1)} x ${high.toFixed(1)}`);
  }));
  for (const button of document.querySelectorAll("nav a, button.quiet, h1, h2, h3, .tile b")) {
    if (button.checkVisibility() && button.scrollWidth > button.clientWidth + 1 && getComputedStyle(button).display !== "inline") found.push(`${button.textContent.slice(0, 40)} is cut`);
  }
  for (const control of document.querySelectorAll(".card .controls :is(input, select, button)")) {
    const card = control.closest(".card"), past = control.getBoundingClientRect().right - card.getBoundingClientRect().right;
    if (control.checkVisibility() && past > 0.5) found.push(`${control.ariaLabel || control.textContent.slice(0, 40)} sticks out of its card: ${past}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  return found;
}

function colourOf(text) {
  const numbers = text.match(/[-\d.e]+/g).map(Number);
  const scale = text.startsWith("color(") ? 255 : 1;
  return [numbers[0] * scale, numbers[1] * scale, numbers[2] * scale, numbers[3] ?? 1];
}

const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);

function paintedBehind(element) {
  const layers = [];
  for (let e = element; e; e = e.parentElement) {
    layers.push(colourOf(getComputedStyle(e).backgroundColor));
    if (layers.at(-1)[3] === 1) break;
  }
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
}

// Relative luminance, WCAG 2.
function luminance(colour) {
  const [r, g, b] = colour.slice(0, 3).map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// {ratio, text, texts}: the worst contrast of any text with what is painted behind it, and how many were looked at.
function leastContrast() {
  const elements = new Set(textBoxes().map((box) => box.element));
  for (const label of document.querySelectorAll("svg text")) elements.add(label);
  let least = { ratio: 99, text: "", texts: elements.size };
  for (const element of elements) {
    const drawn = element instanceof SVGElement, style = getComputedStyle(element);
    const back = paintedBehind(drawn ? element.closest("svg").parentElement : element);
    const ink = over(colourOf(drawn ? style.fill : style.color), back);
    const [low, high] = [luminance(ink), luminance(back)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < least.ratio) least = { ...least, ratio, text: `${element.textContent.slice(0, 60)} (${element.className})` };
  }
  return least;
}
