// The particle explorer: one trial of one example, step by step.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const RUNNING = 0, FINISHED = 1, DEAD = 2;
const TRIAL = ["example", "method", "algorithm", "particles"];
const explorer = { trace: null, generations: [], step: 0, sequence: 0, off: false };

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** An element with attributes (functions under `on...` listen) and children; `draw` makes it within a drawing. */
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(byId("tree").namespaceURI, tag), attributes, children);

function number(value, digits = 3) {
  if (value == null) return "–";
  const size = Math.abs(value);
  return Number.isInteger(value) || (size >= 1e-3 && size < 1e5)
    ? String(Number(value.toPrecision(digits))) : value.toExponential(1);
}

/** Writes the view into the address, a moment later and once, because browsers refuse too many changes. */
let unwritten = null;
const readAddress = () => Object.fromEntries(new URLSearchParams(unwritten ?? location.hash.slice(1)));
function writeAddress(changes) {
  if (unwritten === null) {
    setTimeout(() => {
      if (unwritten !== null) history.replaceState(null, "", `#${unwritten}`);
      unwritten = null;
    }, 150);
  }
  unwritten = String(new URLSearchParams(Object.entries({ ...readAddress(), ...changes }).filter(([, value]) => value !== "")));
}

/**
 * The generations of a trace: generation 0 before the first token, one more for each step. A sequence has `ancestor`
 * (in the generation before), `tokens` appended by the step that made it, `fate`, `weight` (log), and `lives`: whether
 * a final answer of positive weight descends from it. Those that `ended` stand behind the others, without descendants.
 */
function generationsOf(trace) {
  const generations = [(trace.steps[0]?.at ?? []).map(() => (
    { ancestor: null, tokens: trace.start ?? [], fate: RUNNING, weight: 0, ended: false, lives: false }))];
  for (const step of trace.steps) {
    const made = (part, ended) => (part ? part.from.map((ancestor, i) => (
      { ancestor, tokens: part.tokens[i], fate: part.fate[i], weight: part.log_weight[i], ended, lives: false })) : []);
    generations.push([...made(step.after, false), ...made(step.ended, true)]);
  }
  for (let g = generations.length - 1; g >= 0; g--) {
    for (const one of generations[g]) {
      if ((g === generations.length - 1 || one.ended) && one.fate === FINISHED && one.weight !== null) one.lives = true;
      if (one.lives && one.ancestor !== null) generations[g - 1][one.ancestor].lives = true;
    }
  }
  return generations;
}

const bytesOf = (tokens) => Uint8Array.from(tokens.map((token) => data.tokens[token] ?? "").join(""), (c) => c.charCodeAt(0));

/** What each step has added to a text. A character that is spread over steps belongs to the one that completes it. */
function piecesOf(generations, g, i) {
  const line = [];
  for (let one = generations[g][i]; one; one = one.ancestor === null ? null : generations[--g][one.ancestor]) line.unshift(one);
  const decoder = new TextDecoder();
  return line.map(({ tokens }, k) => decoder.decode(bytesOf(tokens), { stream: k + 1 < line.length }));
}

/** A token by itself, with what is invisible made visible. */
function tokenTitle(token) {
  if (data.tokens[token] === undefined) return `⟨token ${token}⟩`; // it stands for no text
  const text = new TextDecoder().decode(bytesOf([token]));
  return text === "" ? "⟨end⟩" : text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

/** Log-weights (null: none) as shares of their sum. */
function shares(logs) {
  const top = Math.max(...logs.map((w) => w ?? -Infinity));
  const weights = logs.map((w) => (w === null ? 0 : Math.exp(w - top)));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((w) => w / (sum || 1));
}

/** Shows what the address says; what it leaves out stays as it is, or is the first example with most particles. */
function openAddress() {
  const asked = readAddress();
  choose({ ...(explorer.trace ?? data.traces.filter((trace) => trace.example === data.traces[0].example).at(-1)), ...asked });
  byId("off").checked = explorer.off = asked.off === "1";
  if (asked.sequence !== undefined) explorer.sequence = Number(asked.sequence) || 0;
  go(asked.example === undefined ? explorer.trace.steps.length : Number(asked.step) || 0);
}

/** Takes the trace that agrees with most of what is wanted, the first keys counting most. */
function choose(wanted) {
  let left = data.traces;
  for (const key of TRIAL) {
    const agreeing = left.filter((trace) => String(trace[key]) === String(wanted[key]));
    if (agreeing.length) left = agreeing;
  }
  if (explorer.trace === left[0]) return;
  Object.assign(explorer, { trace: left[0], generations: generationsOf(left[0]), sequence: 0 });
  showTrial();
}

function showTrial() {
  const { trace } = explorer;
  let left = data.traces; // of each key the values that occur with the keys before it
  byId("trial").replaceChildren(...TRIAL.map((key) => {
    const values = [...new Set(left.map((each) => each[key]))];
    left = left.filter((each) => each[key] === trace[key]);
    const change = (event) => { choose({ ...explorer.trace, [key]: values[event.target.selectedIndex] }); go(explorer.step); };
    return el("label", {}, key, el("select", { onchange: change }, ...values.map((value) => (
      el("option", { selected: value === trace[key] }, String(data.titles[key]?.[value] ?? value))))));
  }));
  byId("prompt").querySelector("pre").textContent = trace.prompt ?? "";
  byId("step").max = trace.steps.length;
}

function go(step) {
  explorer.step = Math.max(0, Math.min(step, explorer.trace.steps.length));
  if (explorer.sequence >= explorer.generations[explorer.step].length) explorer.sequence = 0;
  show();
}

function show() {
  const { trace, step, sequence, off } = explorer;
  writeAddress({ ...Object.fromEntries(TRIAL.map((key) => [key, trace[key]])), step, sequence: sequence || "", off: off ? 1 : "" });
  byId("step").value = step;
  byId("where").textContent = `step ${step} of ${trace.steps.length}`;
  showTexts();
  showTree();
  showTokens();
}

/** Log-weights of this generation, after weighing where another step follows. */
function weightsHere() {
  const { trace, generations, step } = explorer;
  const weighed = trace.steps[step]?.log_weight ?? [];
  return generations[step].map((one, i) => (one.ended || weighed[i] === undefined ? one.weight : weighed[i]));
}

/** The index of a sequence of this generation among the prefixes of its step; or -1. */
const prefixOf = (i) => explorer.trace.steps[explorer.step]?.at[i] ?? -1;

function describe(i) {
  const { fate } = explorer.generations[explorer.step][i];
  return fate === FINISHED ? "finished" : fate === DEAD || weightsHere()[i] === null ? "dead" : "running";
}

function showTexts() {
  const { trace, generations, step, sequence } = explorer;
  const part = shares(weightsHere());
  const square = part.reduce((sum, w) => sum + w * w, 0);
  byId("facts").textContent = `budget ${trace.budget ?? "?"} tokens; ${part.filter((w) => w > 0).length} of `
    + `${part.length} ${trace.algorithm.startsWith("discrete") ? "prefixes and new answers" : "particles"} of positive weight; `
    + `effective sample size ${square ? number(1 / square) : 0}`;
  byId("texts").replaceChildren(...generations[step].map((one, i) => {
    const state = describe(i), pieces = piecesOf(generations, step, i);
    const select = () => { explorer.sequence = i; show(); };
    return el("li", {
      class: `${i === sequence ? "chosen" : ""} ${state === "running" ? "" : "over"}`, tabindex: 0,
      onclick: select, onkeydown: (event) => { if (event.key === "Enter") select(); },
    },
    el("span", { class: "weight", style: `width: ${(100 * part[i]).toFixed(1)}%` }),
    el("span", { class: "text" }, ...pieces.slice(0, -1), el("mark", {}, pieces.at(-1))),
    el("span", { class: "small" }, ` ${state}, weight ${number(part[i], 2)}${one.lives ? "" : ", no descendant in the end"}`));
  }));
}

function showTree() {
  const { generations, step, sequence } = explorer;
  const most = Math.max(...generations.map((g) => g.length));
  const dx = Math.max(7, Math.min(22, 1100 / generations.length)), dy = Math.max(7, Math.min(16, 300 / most));
  const [W, H] = [dx * generations.length + 8, dy * most + 8];
  const x = (g) => 8 + g * dx, y = (i) => 8 + i * dy;
  const branches = [], nodes = [];
  generations.forEach((generation, g) => generation.forEach((one, i) => {
    const lives = one.lives ? " lives" : "";
    const ends = { x1: x(g - 1), y1: y(one.ancestor), x2: x(g), y2: y(i) };
    if (one.ancestor !== null) branches.push([one.lives, draw("line", { class: `branch${lives}`, ...ends })]);
    const over = one.fate !== RUNNING && one.ancestor !== null && !one.tokens.length;
    nodes.push(draw("circle", {
      class: `node${lives}${["", " finished", " dead"][one.fate]}${g === step && i === sequence ? " chosen" : ""}`,
      cx: x(g), cy: y(i), r: over ? 1.5 : 3, onclick: () => { explorer.sequence = i; go(g); },
    }, draw("title", {}, `step ${g}: ${one.tokens.map(tokenTitle).join(" ")}`)));
  }));
  branches.sort((a, b) => a[0] - b[0]);
  const tree = fill(byId("tree"), { width: W, height: H, viewBox: `0 0 ${W} ${H}` }, []);
  tree.replaceChildren(draw("line", { class: "now", x1: x(step), x2: x(step), y1: 0, y2: H }), ...branches.map(([, line]) => line), ...nodes);
  tree.parentElement.scrollLeft = x(step) - tree.parentElement.clientWidth / 2;
}

function bar(log, kind) {
  const p = log === null ? 0 : Math.exp(log);
  return el("td", {}, el("span", { class: `bar ${kind}`, style: `width: ${(4 * p).toFixed(2)}rem` }), number(p));
}

function showTokens() {
  const { trace, generations, step, sequence, off } = explorer;
  const prefix = trace.steps[step]?.prefixes[prefixOf(sequence)];
  byId("heading").textContent = off ? "What the model would have said" : `Next token of ${sequence}`;
  byId("tokens").replaceChildren();
  if (!prefix) {
    byId("outlook").textContent = !generations[step].length ? "No prefix is left; answers ended in the steps before, if any did."
      : describe(sequence) === "dead" ? "Dead: no next token is allowed, or the budget is spent." : "Finished: no next token.";
    return;
  }
  byId("outlook").textContent = [
    prefix.left === null ? null : `${prefix.left} tokens are left, the shortest end takes ${prefix.needed}`,
    `allowed is ${number(Math.exp(prefix.log_allowed ?? -Infinity))} of the model's probability`,
    prefix.log_z === null ? "nothing can be drawn" : `log Z = ${number(prefix.log_z, 4)}`,
  ].filter((part) => part !== null).join("; ");
  const drawn = new Map();
  for (const one of generations[step + 1]) {
    if (one.tokens.length && prefixOf(one.ancestor) === prefixOf(sequence)) {
      drawn.set(one.tokens[0], (drawn.get(one.tokens[0]) ?? 0) + 1);
    }
  }
  // log g = log q + log Z - log p; zero for masks, within what six digits leave.
  const logG = ([, logP, logQ], of) => (logQ === null || logP === null ? null : logQ + of.log_z - logP);
  const shown = !off && trace.steps.some((s) => s.prefixes.some((p) => p.next.some((each) => Math.abs(logG(each, p)) > 2e-3)));
  const next = off ? [...prefix.next].sort((a, b) => (b[1] ?? -Infinity) - (a[1] ?? -Infinity)).slice(0, data.top) : prefix.next;
  byId("tokens").append(
    el("tr", {}, ...["token", "model", off ? null : "after the constraint", shown ? "log g" : null,
      trace.algorithm.startsWith("discrete") ? "kept" : "drawn"].map((title) => title && el("th", {}, title))),
    ...next.map((each) => {
      const [token, logP, logQ] = each, times = drawn.get(token);
      return el("tr", { class: logQ === null ? "forbidden" : "" },
        el("td", {}, el("span", { class: "token", title: `token ${token}` }, tokenTitle(token))),
        bar(logP, "before"), off ? null : bar(logQ, ""), shown ? el("td", {}, number(logG(each, prefix))) : null,
        el("td", { class: "drawn" }, times ? `✓ ${times > 1 ? `${times} times` : ""}` : ""));
    }));
}

if (data.traces.length) {
  byId("explorer").hidden = false;
  for (const [id, move] of [["back", -1], ["forth", 1]]) byId(id).onclick = () => go(explorer.step + move);
  byId("step").oninput = (event) => go(Number(event.target.value));
  byId("off").onchange = (event) => { explorer.off = event.target.checked; show(); };
  document.addEventListener("keydown", ({ key, target }) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (move && !/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) go(explorer.step + move);
  });
  window.addEventListener("hashchange", () => { unwritten = null; openAddress(); }); // the new address counts
  openAddress();
}
