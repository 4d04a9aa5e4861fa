// What all parts of the page share: the data, elements, numbers, the address.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** An element with attributes (functions under `on...` listen) and children. */
const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

/** The same inside of a drawing. */
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(byId("tree").namespaceURI, tag), attributes, children);

/** A list to choose from; options are values, or pairs of a value and its label. */
function chooser(label, options, chosen, change) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  const list = el("select", { onchange: (event) => change(pairs[event.target.selectedIndex][0]) },
    ...pairs.map(([value, text]) => el("option", { selected: value === chosen }, String(text))));
  return el("label", {}, label, list);
}

const distinct = (values) => [...new Set(values)];

function number(value, digits = 3) {
  if (value == null) return "–";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(digits))) : value.toExponential(1);
}

/**
 * The address behind `#` holds what is being looked at, so that a view can be linked to. It is
 * written a moment later, and once for all changes until then: browsers refuse too many.
 */
let unwritten = null;
function readAddress() {
  return Object.fromEntries(new URLSearchParams(unwritten ?? location.hash.slice(1)));
}
function writeAddress(changes) {
  const values = { ...readAddress(), ...changes };
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  if (unwritten === null) {
    setTimeout(() => {
      if (unwritten !== null) history.replaceState(null, "", `#${unwritten}`);
      unwritten = null;
    }, 150);
  }
  unwritten = String(new URLSearchParams(kept));
}
