// Methods laid over each other: a curve for each, its values, and differences between two.

const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#8c564b"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2"];
const NOT_MEASURES = /^(particles|examples|repeats|runs)$|_(low|high)$/;

const methods = { measure: null, style: null, hidden: new Set(), first: null, second: null };

const armKey = (arm) => JSON.stringify(arm);
const armsOf = (records) => distinct(records.map((r) => armKey(armOf(r)))).map((key) => JSON.parse(key));

function colorOf(arm, arms) {
  const color = data.titles.methods[arm[0]].color;
  return color && color !== "#000000" ? color : PALETTE[arms.findIndex((a) => armKey(a) === armKey(arm)) % 8];
}

function dashOf(arm) {
  return DASHES[Object.keys(data.titles.algorithms).indexOf(arm[1]) % DASHES.length];
}

function startMethods() {
  const records = data.summary;
  if (!records.length) return;
  byId("methods").hidden = false;
  const measures = distinct(records.flatMap((r) => Object.keys(r))).filter(
    (key) => !NOT_MEASURES.test(key) && records.some((r) => typeof r[key] === "number"));
  // Whether answers are finished comes first, where methods differ in it.
  const differs = (m) => distinct(records.map((r) => r[m])).length > 1;
  methods.measure = measures.find((m) => m === "complete" && differs(m)) ?? measures[0];
  const styles = distinct(records.map((r) => r.style ?? ""));
  methods.style = styles[0];
  const arms = armsOf(records);
  byId("arms").replaceChildren(...arms.map((arm) => el("label", {},
    el("input", { type: "checkbox", checked: true, onchange: (event) => {
      methods.hidden[event.target.checked ? "delete" : "add"](armKey(arm));
      showMethods();
    } }),
    draw("svg", { width: 28, height: 10 }, draw("line", { x1: 0, x2: 28, y1: 5, y2: 5,
      stroke: colorOf(arm, arms), "stroke-width": 3, "stroke-dasharray": dashOf(arm) })),
    armTitle(arm))));
  byId("measures").replaceChildren(
    chooser("measure", measures.map((m) => [m, titleOf(m)]), methods.measure,
      (value) => { methods.measure = value; showMethods(); }),
    ...(styles.length > 1 ? [chooser("part", styles, methods.style,
      (value) => { methods.style = value; showMethods(); })] : []));
  const comparable = armsOf(data.differences.flatMap((d) => [d.first, d.second]).map(
    ([method, algorithm]) => ({ method, algorithm })));
  if (comparable.length) {
    byId("compared").hidden = false;
    [methods.second, methods.first] = comparable;
    const options = comparable.map((arm) => [arm, armTitle(arm)]);
    byId("pair").replaceChildren(
      chooser("first", options, methods.first, (arm) => { methods.first = arm; showDifferences(); }),
      chooser("minus second", options, methods.second, (arm) => { methods.second = arm; showDifferences(); }));
  }
  showMethods();
}

function showMethods() {
  const arms = armsOf(data.summary);
  const lines = arms.filter((arm) => !methods.hidden.has(armKey(arm))).map((arm) => ({
    arm,
    points: data.summary.filter((r) => armKey(armOf(r)) === armKey(arm)
      && (r.style ?? "") === methods.style && typeof r[methods.measure] === "number")
      .sort((a, b) => a.particles - b.particles),
  })).filter((line) => line.points.length);
  showChart(lines, arms);
  showValues(lines);
  if (!byId("compared").hidden) showDifferences();
}

function showChart(lines, arms) {
  const [W, H, left, bottom] = [640, 300, 60, 36];
  const points = lines.flatMap((line) => line.points);
  const chart = byId("chart");
  chart.setAttribute("viewBox", `0 0 ${W} ${H}`);
  chart.replaceChildren();
  if (!points.length) return;
  const value = (r) => r[methods.measure];
  const low = (r) => r[`${methods.measure}_low`] ?? value(r);
  const high = (r) => r[`${methods.measure}_high`] ?? value(r);
  const counts = distinct(points.map((r) => r.particles)).sort((a, b) => a - b);
  let [bottomValue, topValue] = [Math.min(...points.map(low)), Math.max(...points.map(high))];
  if (bottomValue === topValue) [bottomValue, topValue] = [bottomValue - 0.5, topValue + 0.5];
  const place = counts.length > 1 ? (n) => Math.log(n / counts[0]) / Math.log(counts.at(-1) / counts[0]) : () => 0.5;
  const x = (n) => left + 20 + place(n) * (W - left - 40);
  const y = (v) => H - bottom - 10 - ((v - bottomValue) / (topValue - bottomValue)) * (H - bottom - 25);
  for (const n of counts) chart.append(draw("text", { x: x(n), y: H - 18, "text-anchor": "middle" }, String(n)));
  chart.append(draw("text", { x: W - 20, y: H - 3, "text-anchor": "end" }, "particles"));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const v = bottomValue + share * (topValue - bottomValue);
    chart.append(draw("line", { class: "axis", x1: left, x2: W - 10, y1: y(v), y2: y(v) }),
      draw("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, number(v)));
  }
  lines.forEach(({ arm, points: own }, i) => {
    const color = colorOf(arm, arms);
    const path = own.map((r) => `${x(r.particles) + 3 * i},${y(value(r))}`).join(" ");
    chart.append(draw("polyline", { points: path, fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": dashOf(arm) }));
    for (const r of own) {
      const at = x(r.particles) + 3 * i;
      chart.append(draw("line", { x1: at, x2: at, y1: y(low(r)), y2: y(high(r)), stroke: color, opacity: 0.5 }),
        draw("circle", { cx: at, cy: y(value(r)), r: 3.5, fill: color },
          draw("title", {}, `${armTitle(arm)}, N=${r.particles}: ${number(value(r))}${ofSome(r)}`)));
    }
  });
}

/** Over how many requests a mean log evidence is, where some have none. */
function ofSome(r) {
  const some = methods.measure === "log_evidence" && r.log_evidence_examples < r.examples;
  return some ? ` (of ${r.log_evidence_examples})` : "";
}

function withInterval(mean, low, high) {
  return low == null ? number(mean) : `${number(mean)} [${number(low)}, ${number(high)}]`;
}

function showValues(lines) {
  const counts = distinct(lines.flatMap((line) => line.points.map((r) => r.particles))).sort((a, b) => a - b);
  const key = methods.measure;
  byId("values").replaceChildren(
    el("tr", {}, el("th", {}, titleOf(key)), ...counts.map((n) => el("th", { class: "number" }, `N=${n}`))),
    ...lines.map(({ arm, points }) => el("tr", {}, el("td", {}, armTitle(arm)), ...counts.map((n) => {
      const r = points.find((each) => each.particles === n);
      return el("td", { class: "number" }, r ? withInterval(r[key], r[`${key}_low`], r[`${key}_high`]) + ofSome(r) : "–");
    }))));
}

/** What is known of first minus second; a pair is kept in one order and turned round here. */
function differencesOf(first, second) {
  const is = (arm, other) => armKey(arm) === armKey(other);
  return data.differences.filter((d) => d.style === (methods.style ?? "") || !data.differences.some((e) => e.style === methods.style))
    .flatMap((d) => {
      if (is(d.first, first) && is(d.second, second)) return [d];
      if (is(d.first, second) && is(d.second, first)) return [{ ...d, mean: -d.mean, low: -d.high, high: -d.low }];
      return [];
    });
}

function showDifferences() {
  const found = differencesOf(methods.first, methods.second);
  const measures = distinct(found.map((d) => d.measure));
  const counts = distinct(found.map((d) => d.particles));
  const rows = counts.map((n) => el("tr", {}, el("td", { class: "number" }, String(n)), ...measures.map((m) => {
    const d = found.find((each) => each.particles === n && each.measure === m);
    const near = (value) => (Math.abs(value) < 1e-6 ? 0 : value); // what rounding leaves
    const text = d ? withInterval(near(d.mean), near(d.low), near(d.high)) : "–";
    return el("td", { class: "number" }, d && (near(d.low) > 0 || near(d.high) < 0) ? el("b", {}, text) : text);
  })));
  byId("differences").replaceChildren(...(found.length ? [
    el("tr", {}, el("th", { class: "number" }, "N"), ...measures.map((m) => el("th", { class: "number" }, titleOf(m)))),
    ...rows] : [el("tr", {}, el("td", {}, "These two were not compared: choose two different ones."))]));
}
