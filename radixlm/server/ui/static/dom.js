// Elements, numbers and times. Text always becomes a text node: nothing in this page is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

export const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

export function setText(id, text) {
  const element = find(id);
  if (element.textContent !== text) element.textContent = text;
}

export const whole = (number) => Math.round(number).toLocaleString("en");

export function short(number) {
  if (number >= 1e6) return `${(number / 1e6).toFixed(number < 1e7 ? 1 : 0)}M`;
  if (number >= 1e4) return `${(number / 1e3).toFixed(0)}k`;
  if (number >= 100 || Number.isInteger(number)) return whole(number);
  return number.toFixed(1);
}

export function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s === 0) return "0 s";
  if (s < 0.0095) return `${(s * 1000).toFixed(1)} ms`;
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  return s < 100 ? `${s.toFixed(s < 10 ? 2 : 1)} s` : `${Math.round(s)} s`;
}

export const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
