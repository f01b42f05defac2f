// Put into a page by test_browser.py: looks at it as a person would and leaves what it found in the element "probe".
"use strict";
const problems = [];
addEventListener("error", (event) => problems.push(`error: ${event.message}`));
document.addEventListener("securitypolicyviolation", (event) => problems.push(`policy: ${event.violatedDirective}`));

function parts(colour) {
  return colour.match(/[\d.]+/g).map(Number);
}

function luminance(colour) {
  const [r, g, b] = parts(colour).slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

function background(element) {
  for (let node = element; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (parts(colour)[3] !== 0) return colour;
  }
  return "rgb(255, 255, 255)";
}

function worstContrast() {
  let worst = 21;
  for (const element of document.querySelectorAll("h1,h2,h3,p,td,th,th button,a,summary,figcaption,button,footer")) {
    if (element.matches(".skip")) continue;
    worst = Math.min(worst, contrast(getComputedStyle(element).color, background(element)));
  }
  for (const element of document.querySelectorAll("svg text")) {
    if (element.hasAttribute("fill")) continue; // on a cell: measured in Python
    worst = Math.min(worst, contrast(getComputedStyle(element).fill, background(element)));
  }
  return worst;
}

function sorted() {
  const table = document.querySelector("table");
  const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent.startsWith("average"));
  const heading = table.tHead.rows[0].cells[column];
  const values = () => [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[column].textContent));
  const orders = [];
  for (let press = 0; press < 2; press++) {
    heading.querySelector("button").click();
    orders.push({ order: heading.getAttribute("aria-sort"), values: values() });
  }
  return orders;
}

addEventListener("load", () => {
  const found = {
    milliseconds: performance.now(), // before the probe's own work
    width: innerWidth,
    contrast: worstContrast(),
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    background: getComputedStyle(document.body).backgroundColor,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    unnamed: [...document.querySelectorAll("svg")].filter((svg) => svg.getAttribute("role") !== "img" || !svg.getAttribute("aria-label")).length,
    unreachable: [...document.querySelectorAll("button,a[href],summary,.scroll")].filter((element) => element.tabIndex < 0).length,
    headings: [...document.querySelectorAll("h1,h2,h3")].map((element) => element.tagName),
    sorted: sorted(),
    problems,
  };
  const answer = document.createElement("pre");
  answer.id = "probe";
  answer.textContent = btoa(JSON.stringify(found));
  document.body.append(answer);
});
