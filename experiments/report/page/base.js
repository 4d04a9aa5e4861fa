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
  fill(document.createElementNS(byId("chart").namespaceURI, tag), attributes, children);

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

const TITLES = {
  weighted_accuracy: "accuracy (posterior-weighted)", majority_accuracy: "accuracy (most probable)",
  majority_correct: "accuracy (most probable)", best_correct: "accuracy (best)",
  valid: "satisfaction (valid answers)",
  complete: "complete answers", share_finished: "particles finished", ess: "effective sample size",
  budget_removed: "probability that the budget removed",
  certified: "posterior certainly found", reliable: "reliable posteriors",
  ess_fraction: "effective sample size / N", log_evidence: "log evidence",
  evidence_found: "share of the evidence found",
  log_evidence_sd: "log evidence, standard deviation", read: "prefixes read", dead: "dead rows",
  seconds: "seconds", seconds_each: "seconds for one example", lm_calls_each: "model calls for one",
  drafted: "tokens read ahead", used: "tokens read ahead and used", landed: "choices without a pass",
  tokens_each: "tokens for one example", tv: "total variation",
};
const titleOf = (measure) => data.titles.metrics[measure] ?? TITLES[measure] ?? measure.replaceAll("_", " ");

/** An arm is a method and an algorithm; this names it by what varies on the page. */
const armOf = (record) => [record.method, record.algorithm];
function armTitle([method, algorithm]) {
  const parts = [data.titles.methods[method].title];
  if (Object.keys(data.titles.algorithms).length > 1) parts.push(data.titles.algorithms[algorithm]);
  return parts.join(", ");
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
