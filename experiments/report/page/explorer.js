// The particle explorer: one trial of one example, step by step.

const explorer = { trace: null, generations: [], step: 0, sequence: 0, off: false };

const LANDED = "read ahead: no pass of the model was made for this";
const TRIAL = ["example", "method", "algorithm", "particles"];

function startExplorer() {
  if (!data.traces.length) return;
  byId("explorer").hidden = false;
  byId("back").onclick = () => go(explorer.step - 1);
  byId("forth").onclick = () => go(explorer.step + 1);
  byId("step").oninput = (event) => go(Number(event.target.value));
  byId("off").onchange = (event) => { explorer.off = event.target.checked; show(); };
  document.addEventListener("keydown", (event) => {
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "ArrowLeft") go(explorer.step - 1);
    if (event.key === "ArrowRight") go(explorer.step + 1);
  });
  openAddress();
}

/** The last trial, that of most particles, of the example that is shown first. */
function firstShown() {
  return data.traces.filter((trace) => trace.example === data.shown).at(-1);
}

/** Shows what the address says; what it leaves out stays as it is, or is what is shown first. */
function openAddress() {
  const asked = readAddress();
  const wanted = { ...(explorer.trace ?? firstShown()), ...asked };
  choose(wanted);
  explorer.off = asked.off === "1";
  byId("off").checked = explorer.off;
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
  explorer.trace = left[0];
  explorer.generations = generationsOf(left[0]);
  explorer.sequence = 0;
  showTrial();
}

function showTrial() {
  const { trace } = explorer;
  const titles = {
    example: String, method: (v) => data.titles.methods[v],
    algorithm: (v) => data.titles.algorithms[v], particles: String,
  };
  // Of each key the values that occur with the keys before it.
  let left = data.traces;
  const lists = [];
  for (const key of TRIAL) {
    const values = distinct(left.map((each) => each[key]));
    lists.push(chooser(key, values.map((v) => [v, titles[key](v)]), trace[key],
      (value) => { choose({ ...explorer.trace, [key]: value }); go(Math.min(explorer.step, trace.steps.length)); }));
    left = left.filter((each) => each[key] === trace[key]);
  }
  byId("trial").replaceChildren(...lists);
  byId("prompt").querySelector("pre").textContent = trace.prompt ?? "";
  byId("step").max = trace.steps.length;
  byId("legend").hidden = !explorer.generations.some((generation) => generation.some((one) => one.landed));
}

function go(step) {
  explorer.step = Math.max(0, Math.min(step, explorer.trace.steps.length));
  const here = explorer.generations[explorer.step];
  if (explorer.sequence >= here.length) explorer.sequence = 0;
  show();
}

function show() {
  const { trace, step, sequence, off } = explorer;
  const address = Object.fromEntries(TRIAL.map((key) => [key, trace[key]]));
  writeAddress({ ...address, step, sequence: sequence || "", off: off ? 1 : "" });
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
  return generations[step].map((one, i) => (one.ended ? one.weight : weighed[i] !== undefined ? weighed[i] : one.weight));
}

/** The index at which a sequence of this generation stands among the prefixes of its step; or -1. */
function prefixOf(i) {
  return explorer.trace.steps[explorer.step]?.at[i] ?? -1;
}

function describe(i) {
  const one = explorer.generations[explorer.step][i];
  return one.fate === FINISHED ? "finished" : one.fate === DEAD || weightsHere()[i] === null ? "dead" : "running";
}

function showTexts() {
  const { trace, generations, step, sequence } = explorer;
  const part = shares(weightsHere());
  const square = part.reduce((sum, w) => sum + w * w, 0);
  byId("facts").textContent = `budget ${trace.budget ?? "?"} tokens; ${part.filter((w) => w > 0).length} of `
    + `${part.length} ${trace.algorithm.startsWith("discrete") ? "prefixes and new answers" : "particles"} of positive weight; `
    + `effective sample size ${square ? number(1 / square) : 0}`;
  byId("texts").replaceChildren(...generations[step].map((one, i) => {
    const state = describe(i);
    const pieces = piecesOf(generations, step, i).map(({ text, landed }) => (
      landed ? el("span", { class: "landed", title: LANDED }, text) : text));
    const select = () => { explorer.sequence = i; show(); };
    return el("li", {
      class: [i === sequence ? "chosen" : "", state === "running" ? "" : "over"].join(" ").trim(), tabindex: 0,
      onclick: select, onkeydown: (event) => { if (event.key === "Enter") select(); },
    },
    el("span", { class: "weight", style: `width: ${(100 * part[i]).toFixed(1)}%`, title: `weight ${number(part[i])}` }),
    el("span", { class: "text" }, ...pieces.slice(0, -1), el("mark", {}, pieces.at(-1))),
    el("span", { class: "small" }, ` ${state}, weight ${number(part[i], 2)}${one.lives ? "" : ", no descendant in the end"}`));
  }));
}

function showTree() {
  const { trace, generations, step, sequence } = explorer;
  const most = Math.max(...generations.map((g) => g.length));
  const dx = Math.max(7, Math.min(22, 1100 / generations.length));
  const dy = Math.max(7, Math.min(16, 300 / most));
  const [W, H] = [dx * generations.length + 8, dy * most + 8];
  const tree = byId("tree");
  for (const [name, value] of [["width", W], ["height", H], ["viewBox", `0 0 ${W} ${H}`]]) tree.setAttribute(name, value);
  const x = (g) => 8 + g * dx, y = (i) => 8 + i * dy;
  const branches = [], nodes = [];
  generations.forEach((generation, g) => generation.forEach((one, i) => {
    const over = one.fate !== RUNNING && one.ancestor !== null && !one.tokens.length;
    if (one.ancestor !== null) {
      branches.push([one.lives, draw("line", { class: `branch${one.lives ? " lives" : ""}${one.landed ? " landed" : ""}`,
        x1: x(g - 1), y1: y(one.ancestor), x2: x(g), y2: y(i) })]);
    }
    const fate = ["", " finished", " dead"][one.fate];
    nodes.push(draw("circle", {
      class: `node${one.lives ? " lives" : ""}${fate}${g === step && i === sequence ? " chosen" : ""}`,
      cx: x(g), cy: y(i), r: over ? 1.5 : 3,
      onclick: () => { explorer.sequence = i; go(g); },
    }, draw("title", {}, `step ${g}: ${one.tokens.map((t) => tokenTitle(t)).join(" ")}${one.landed ? `; ${LANDED}` : ""}`)));
  }));
  branches.sort((a, b) => a[0] - b[0]);
  tree.replaceChildren(draw("line", { class: "now", x1: x(step), x2: x(step), y1: 0, y2: H }),
    ...branches.map(([, line]) => line), ...nodes);
  tree.parentElement.scrollLeft = x(step) - tree.parentElement.clientWidth / 2;
}

function bar(log, kind) {
  const p = log === null ? 0 : Math.exp(log);
  return el("td", {}, el("span", { class: `bar ${kind}`, style: `width: ${(4 * p).toFixed(2)}rem` }), log === null ? "0" : number(p));
}

function showTokens() {
  const { trace, generations, step, sequence, off } = explorer;
  const prefix = trace.steps[step]?.prefixes[prefixOf(sequence)];
  byId("heading").textContent = off ? "What the model would have said" : `Next token of ${sequence}`;
  byId("tokens").replaceChildren();
  if (!generations[step].length) {
    byId("outlook").textContent = "No prefix is left; answers ended in the steps before, if any did.";
    return;
  }
  if (!prefix) {
    const state = describe(sequence);
    byId("outlook").textContent = state === "dead" ? "Dead: no next token is allowed, or the budget is spent."
      : "Finished: no next token.";
    return;
  }
  const allowed = Math.exp(prefix.log_allowed ?? -Infinity);
  byId("outlook").textContent = [
    prefix.left === null ? null : `${prefix.left} tokens are left, the shortest end takes ${prefix.needed}`,
    `allowed is ${number(allowed)} of the model's probability`,
    prefix.log_z === null ? "nothing can be drawn" : `log Z = ${number(prefix.log_z, 4)}`,
  ].filter((part) => part !== null).join("; ");
  const drawn = new Map();
  for (const one of generations[step + 1]) {
    if (one.tokens.length && prefixOf(one.ancestor) === prefixOf(sequence)) {
      drawn.set(one.tokens[0], (drawn.get(one.tokens[0]) ?? 0) + 1);
    }
  }
  // log g = log q + log Z - log p; zero for masks, within what six digits leave.
  const logG = ([, logP, logQ]) => (logQ === null || logP === null ? null : logQ + prefix.log_z - logP);
  const looksAhead = trace.steps.some((s) => s.prefixes.some((p) => p.next.some(
    ([, logP, logQ]) => logQ !== null && logP !== null && Math.abs(logQ + p.log_z - logP) > 2e-3)));
  const next = off ? [...prefix.next].sort((a, b) => (b[1] ?? -Infinity) - (a[1] ?? -Infinity)).slice(0, data.top) : prefix.next;
  byId("tokens").append(
    el("tr", {}, el("th", {}, "token"), el("th", {}, "model"), off ? null : el("th", {}, "after the constraint"),
      off || !looksAhead ? null : el("th", { class: "number" }, "log g"), el("th", {}, trace.algorithm.startsWith("discrete") ? "kept" : "drawn")),
    ...next.map((each) => {
      const [token, logP, logQ] = each;
      const times = drawn.get(token);
      return el("tr", { class: logQ === null ? "forbidden" : "" },
        el("td", {}, el("span", { class: "token", title: `token ${token}` }, tokenTitle(token))),
        bar(logP, "before"), off ? null : bar(logQ, ""),
        off || !looksAhead ? null : el("td", { class: "number" }, number(logG(each))),
        el("td", { class: "drawn" }, times ? `✓ ${times > 1 ? `${times} times` : ""}` : ""));
    }));
}
