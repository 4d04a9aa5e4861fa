// All answers, by example: search in their texts, filter by outcome.

const PAGE = 40; // examples shown at a time
const answers = { q: "", outcome: "all", method: "all", algorithm: "all", particles: "all", shown: PAGE };
const OUTCOMES = ["all", "right", "wrong", "dead", "differs between methods"];

function outcomeOf(row) {
  if (row.dead) return "dead";
  const right = row.majority_correct ?? row.valid;
  return right === undefined ? "" : right ? "right" : "wrong";
}

/** The most probable answer; of a dead row, what it began. */
const textOf = (row) => row.answers?.[0]?.text ?? row.unfinished ?? "";

function searched(row) {
  return [row.example, row.gold, row.unfinished, ...(row.answers ?? []).map((a) => a.text)]
    .filter((text) => text != null).join("\n").toLowerCase();
}

/** Whether methods give different most probable answers with the same algorithm and particles. */
function methodsDiffer(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.style, row.algorithm, row.particles, row.repeat]);
    groups.set(key, (groups.get(key) ?? new Set()).add(row.dead ? null : textOf(row)));
  }
  return [...groups.values()].some((texts) => texts.size > 1);
}

function matching() {
  const wanted = answers.q.trim().toLowerCase();
  const byExample = new Map();
  for (const row of data.rows) {
    if (!byExample.has(row.example)) byExample.set(row.example, []);
    byExample.get(row.example).push(row);
  }
  const found = [];
  for (const [example, all] of byExample) {
    const rows = all.filter((row) => ["method", "algorithm", "particles"].every(
      (key) => answers[key] === "all" || answers[key] === row[key]));
    const differing = answers.outcome === "differs between methods";
    if (differing && !methodsDiffer(rows)) continue;
    const kept = rows.filter((row) => (differing || answers.outcome === "all" || outcomeOf(row) === answers.outcome)
      && (!wanted || searched(row).includes(wanted)));
    if (kept.length) found.push([example, kept]);
  }
  return found;
}

function startAnswers() {
  if (!data.rows.length) return;
  byId("answers").hidden = false;
  const change = (key) => (value) => { answers[key] = value; answers.shown = PAGE; showAnswers(); };
  const options = (key, title) => [["all", "all"], ...distinct(data.rows.map((r) => r[key])).map((v) => [v, title(v)])];
  const { q = "", outcome = "all" } = readAddress();
  answers.q = q;
  answers.outcome = OUTCOMES.includes(outcome) ? outcome : "all";
  byId("filters").replaceChildren(
    el("input", { type: "search", id: "q", placeholder: "search in texts", "aria-label": "Search in texts", value: q,
      oninput: (event) => change("q")(event.target.value) }),
    chooser("outcome", OUTCOMES, answers.outcome, change("outcome")),
    chooser("method", options("method", (m) => data.titles.methods[m].title), "all", change("method")),
    chooser("algorithm", options("algorithm", (a) => data.titles.algorithms[a]), "all", change("algorithm")),
    chooser("particles", options("particles", String), "all", change("particles")));
  byId("more").onclick = () => { answers.shown += PAGE; showAnswers(); };
  showAnswers();
}

function showAnswers() {
  writeAddress({ q: answers.q, outcome: answers.outcome === "all" ? "" : answers.outcome });
  const found = matching();
  const rows = found.reduce((sum, [, own]) => sum + own.length, 0);
  byId("found").textContent = `${rows} of ${data.rows.length} rows, ${found.length} examples`;
  byId("examples").replaceChildren(...found.slice(0, answers.shown).map(([example, own]) => el("div", { class: "example" },
    el("b", {}, example), " ",
    data.traces.some((t) => t.example === example)
      ? el("a", { href: `#${new URLSearchParams({ example, step: 0 })}` }, "step by step")
      : data.traces.length ? el("span", { class: "over" }, "without a trace") : null,
    own[0].gold == null ? null : el("div", { class: "text over" }, `expected: ${own[0].gold}`),
    ...own.map((row) => el("div", { class: "answer" },
      el("span", {}, `${armTitle(armOf(row))}, N=${row.particles}${row.repeat ? `, repeat ${row.repeat}` : ""}`),
      el("span", { class: outcomeOf(row) }, outcomeOf(row),
        row.answers?.[0] ? ` ${number(row.answers[0].probability, 2)}` : "",
        row.reliability ? `, ${row.reliability}` : "",
        row.budget_removed >= 0.001 ? `, ${number(100 * row.budget_removed, 2)}% removed by the budget` : "",
        row.stopped ? `, shortened (${row.stopped})` : ""),
      el("span", { class: `text${row.dead ? " over" : ""}` }, textOf(row)))))));
  byId("more").hidden = found.length <= answers.shown;
}
