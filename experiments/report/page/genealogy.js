// A trace as generations of sequences: who goes on from whom, and what everybody has written.

const RUNNING = 0, FINISHED = 1, DEAD = 2;

/**
 * The generations of a trace: generation 0 before the first token, one more for each step. A
 * sequence has `ancestor` (in the generation before), `tokens` appended by the step that made it,
 * `landed`: whether these took no pass of the model, as they had been read ahead, `fate`, `weight`
 * (log), and `lives`: whether a final answer of positive weight descends from it.
 * Those that `ended` left with that step: they stand behind the others, and have no descendants.
 */
function generationsOf(trace) {
  const first = trace.steps.length ? trace.steps[0].at.map(() => (
    { ancestor: null, tokens: trace.start ?? [], landed: false, fate: RUNNING, weight: 0, ended: false, lives: false })) : [];
  const generations = [first];
  for (const step of trace.steps) {
    const made = (part, ended) => (part ? part.from.map((ancestor, i) => ({
      ancestor, tokens: part.tokens[i], landed: part.landed?.includes(i) ?? false, fate: part.fate[i], weight: part.log_weight[i], ended, lives: false })) : []);
    generations.push([...made(step.after, false), ...made(step.ended, true)]);
  }
  markLives(generations);
  return generations;
}

function markLives(generations) {
  const last = generations.length - 1;
  for (let g = last; g >= 0; g--) {
    for (const one of generations[g]) {
      if ((g === last || one.ended) && one.fate === FINISHED && one.weight !== null) one.lives = true;
      if (one.lives && one.ancestor !== null) generations[g - 1][one.ancestor].lives = true;
    }
  }
}

/**
 * What each step has added to a sequence: its text, and whether it `landed`. A character that is
 * spread over several steps belongs to the one that completes it.
 */
function piecesOf(generations, g, i) {
  const line = [];
  for (let one = generations[g][i]; one; one = one.ancestor === null ? null : generations[--g][one.ancestor]) {
    line.unshift(one);
  }
  const decoder = new TextDecoder();
  return line.map(({ tokens, landed }, k) => (
    { text: decoder.decode(bytesOf(tokens), { stream: k + 1 < line.length }), landed }));
}

function bytesOf(tokens) {
  const bytes = tokens.map((token) => data.tokens[token] ?? "").join("");
  return Uint8Array.from(bytes, (c) => c.charCodeAt(0));
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
  if (top === -Infinity) return logs.map(() => 0);
  const weights = logs.map((w) => (w === null ? 0 : Math.exp(w - top)));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((w) => w / sum);
}
