// What all pages share; the page's own script follows in the same function (self_contained.py).
// Texts from data go through textContent and setAttribute only; nothing here makes HTML of a string.
const data = JSON.parse(document.getElementById("data").textContent);
const number = new Intl.NumberFormat("en");
const byId = (id) => document.getElementById(id);

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  for (const child of children) {
    if (child !== null) element.append(child);  // append() makes a text node of a string
  }
  return element;
}

function draw(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
