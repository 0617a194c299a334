// The sample browser: filters, search and cards. No library, nothing loaded from elsewhere.
//
// A sample is [group, id, context, question, options, gold, answers], and of each run's answer there is
// [right, F1 in percent, answers or null, output, pattern or -1, reason or -1]. Texts are places in `data.texts`.
// A wrong answer that is the habit (1) or contains an accepted answer (2) has the sum of these at its end. Where samples
// have subsets, their habits stand behind the answers. An instruction is [text, labels of runs, groups].

const FIRST = 5;
const PAGE = 20;
const PAIR = [["fixed", "Fixed"], ["broken", "Broken"], ["right", "Both right"], ["wrong", "Both wrong"]];
const SINGLE = [["right", "Right"], ["wrong", "Wrong"]];
const FACETS = ["dataset", "relation", "format", "subset"];
const by = (id) => document.getElementById(id);
const browser = { data: null, lower: [], found: [], shown: 0, terms: [] };

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// ---- What the controls say

function kinds() {
  return browser.data.runs.length > 1 ? PAIR : SINGLE;
}

function state() {
  const chosen = document.querySelector("#filters [name=change]:checked");
  return {
    from: Number(by("from").value), to: Number(by("to").value), change: chosen ? chosen.value : "",
    ...Object.fromEntries(FACETS.map((facet) => [facet, by(facet).value])),
    search: by("search").value.trim(),
  };
}

function kindOf(sample, from, to) {
  const before = sample[6][from][0], after = sample[6][to][0];
  if (browser.data.runs.length === 1) return after ? "right" : "wrong";
  return after ? (before ? "right" : "fixed") : (before ? "broken" : "wrong");
}

// ---- Search: each text is read once a word, however many samples share it

function samplesWith(terms) {
  const hits = terms.map((term) => browser.lower.map((text) => text.includes(term)));
  return (sample) => {
    const texts = [sample[2], sample[3], ...sample[4], ...sample[5], ...(sample[7] || [])];
    for (const [, , answers, output, , reason] of sample[6]) texts.push(...(answers || []), output, reason);
    return terms.every((term, i) => sample[1].toLowerCase().includes(term) || texts.some((text) => text >= 0 && hits[i][text]));
  };
}

function update() {
  const now = state(), { data } = browser;
  browser.terms = now.search.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = samplesWith(browser.terms);
  const counts = {};
  const found = data.samples.filter((sample) => {
    const group = data.groups[sample[0]];
    if (FACETS.some((facet, i) => now[facet] && group[i] !== now[facet]) || !matches(sample)) return false;
    const kind = kindOf(sample, now.from, now.to);
    counts[kind] = (counts[kind] || 0) + 1;
    return !now.change || kind === now.change;
  });
  const changed = (sample) => sample[6][now.from][0] !== sample[6][now.to][0];
  browser.found = [...found.filter(changed), ...found.filter((sample) => !changed(sample))];
  const all = Object.values(counts).reduce((sum, count) => sum + count, 0);
  document.querySelectorAll("#filters [name=change]").forEach((radio) => {
    radio.nextElementSibling.lastElementChild.textContent = (radio.value ? counts[radio.value] || 0 : all).toLocaleString("en");
  });
  by("cards").replaceChildren();
  browser.shown = 0;
  showMore();
  remember(now);
}

function showMore() {
  const now = state(), next = browser.found.slice(browser.shown, browser.shown + (browser.shown ? PAGE : FIRST));
  const cards = next.map((sample) => card(sample, now));
  by("cards").append(...cards);
  browser.shown += next.length;
  const left = browser.found.length - browser.shown;
  by("more").hidden = left === 0;
  by("more").textContent = `Show ${Math.min(PAGE, left)} more of ${left.toLocaleString("en")}`;
  by("status").textContent = summary(now);
  return cards[0];
}

function summary(now) {
  const { data, found, shown } = browser;
  const said = [];
  if (data.runs.length > 1) said.push(`${data.runs[now.from]} → ${data.runs[now.to]}`);
  const kind = kinds().find(([key]) => key === now.change);
  if (kind) said.push(kind[1].toLowerCase());
  said.push(...FACETS.map((facet) => now[facet]).filter(Boolean));
  if (now.search) said.push(`“${now.search}”`);
  const whole = data.samples.length.toLocaleString("en");
  const filter = said.length ? ` (${said.join(", ")})` : "";
  if (!found.length) return `None of ${whole} samples fits${filter}.`;
  return `${shown.toLocaleString("en")} shown of ${found.length.toLocaleString("en")} that fit${filter}, out of ${whole} samples.`;
}

// ---- Cards

function marked(text) {
  if (!browser.terms.length || !text) return [text];
  const pattern = browser.terms.map((term) => term.replace(/[\\^$.*+?()[\]|{}]/g, "\\$&")).join("|");
  return text.split(new RegExp(`(${pattern})`, "giu")).map((part, i) => (i % 2 ? element("mark", {}, part) : part));
}

function entry(list, name, ...content) {
  list.append(element("dt", {}, name), element("dd", {}, ...content));
}

function paragraphs(numbers, className) {
  return numbers.map((number) => element("p", { className }, ...marked(browser.data.texts[number])));
}

function card(sample, now) {
  const { data } = browser;
  const [group, id, context, question, options, gold, answers, habit = []] = sample;
  const nli = data.groups[group][2] === "nli", left = data.texts[question] === "";
  const title = kinds().find(([key]) => key === kindOf(sample, now.from, now.to))[1];
  const pair = data.runs.length > 1 ? [element("span", { className: "quiet" }, ` · ${data.runs[now.from]} → ${data.runs[now.to]}`)] : [];
  const list = element("dl", {});
  if (left) {
    list.append(element("dd", { className: "quiet" }, "The texts of this dataset are left out of this page."));
  } else {
    const passage = element("div", { className: "context", tabIndex: 0 }, ...marked(data.texts[context]));
    if (data.texts[context]) entry(list, nli ? "Premise" : "Context", passage);
    entry(list, nli ? "Hypothesis" : "Question", ...marked(data.texts[question]));
    if (options.length) {
      const items = options.map((option, i) => element("li", {}, `(${String.fromCharCode(65 + i)}) `, ...marked(data.texts[option])));
      entry(list, "Options", element("ol", { className: "options" }, ...items));
    }
  }
  if (gold.length) entry(list, gold.length > 1 ? "Gold answers" : "Gold answer", ...paragraphs(gold, ""));
  if (habit.length) entry(list, "Habit: the usual answer without the context", ...paragraphs(habit, ""));
  const asked = data.instructions.filter(([, , groups]) => groups.includes(group));
  const told = asked.map(([text, labels]) =>
    element("p", {}, asked.length > 1 ? element("strong", {}, `${labels.join(", ")}: `) : "", data.texts[text]));
  const head = element("h3", {}, title, ...pair);
  head.tabIndex = -1;
  return element("article", { className: "card" },
    head,
    element("p", { className: "quiet" }, `${data.groups[group].join(" · ")} · `, ...marked(id)),
    list,
    ...(told.length ? [element("details", { className: "told" }, element("summary", {}, "Instruction"), ...told)] : []),
    element("div", { className: "runs" }, ...answers.map((one, run) => answer(one, data.runs[run], left))));
}

function answer([right, f1, said, output, pattern, reason, note = 0], label, left) {
  const { data } = browser;
  const aside = [];
  if (!right) aside.push(`F1 ${f1.toFixed(1)}`);
  if (note & 1) aside.push("the habit");
  if (note & 2) aside.push("contains the answer");
  if (pattern >= 0) aside.push(data.patterns[pattern]);
  const box = element("div", { className: `said ${right ? "right" : "wrong"}` },
    element("div", {}, element("span", { className: "verdict" }, right ? "✓ right" : "✗ wrong"), ` · ${label}`,
      ...(aside.length ? [" ", element("span", { className: "quiet" }, `(${aside.join(", ")})`)] : [])));
  if (said === null) box.append(element("p", { className: "quiet" }, "no answer recognised in the output"));
  else box.append(...paragraphs(said, "answer"));
  if (reason >= 0) {
    box.append(element("details", {}, element("summary", {}, "Why it is wrong, by the judge"),
      element("p", {}, ...marked(data.texts[reason]))));
  }
  if (!left) {
    box.append(element("details", { open: said === null }, element("summary", {}, "Output"),
      element("div", { className: "output" }, ...marked(data.texts[output]))));
  }
  return box;
}

// ---- The address keeps the filter, so that a link or a reload shows the same

function remember(now) {
  const { runs } = browser.data, kept = new URLSearchParams();
  if (now.from !== 0) kept.set("from", runs[now.from]);
  if (now.to !== browser.data.presented) kept.set("to", runs[now.to]);
  for (const name of ["change", ...FACETS, "search"]) if (now[name]) kept.set(name, now[name]);
  const text = kept.toString();
  // An address without a filter may point to a section; that stays.
  if (text || location.hash.includes("=")) history.replaceState(null, "", text ? `#${text}` : "#browser");
}

function recall() {
  if (!location.hash.includes("=")) return;
  const kept = new URLSearchParams(location.hash.slice(1)), { runs } = browser.data;
  const place = (name, otherwise) => (runs.includes(kept.get(name)) ? runs.indexOf(kept.get(name)) : otherwise);
  by("from").value = place("from", 0);
  by("to").value = place("to", browser.data.presented);
  for (const facet of FACETS) {
    const wanted = kept.get(facet) || "";
    by(facet).value = [...by(facet).options].some((option) => option.value === wanted) ? wanted : "";
  }
  by("search").value = kept.get("search") || "";
  document.querySelectorAll("#filters [name=change]").forEach((radio) => { radio.checked = radio.value === (kept.get("change") || ""); });
  if (!document.querySelector("#filters [name=change]:checked")) document.querySelector("#filters [name=change]").checked = true;
}

// ---- Beginning

function fill() {
  const { data } = browser;
  const choices = (values) => values.map(([value, text]) => element("option", { value }, text));
  const runs = data.runs.map((label, i) => [i, label]);
  by("from").append(...choices(runs));
  by("to").append(...choices(runs));
  by("to").value = data.presented;
  document.querySelectorAll(".pair").forEach((part) => { part.hidden = data.runs.length === 1; });
  FACETS.forEach((facet, i) => {
    const values = [...new Set(data.groups.map((group) => group[i]))];
    by(facet).append(...choices([["", "all"], ...values.map((value) => [value, value])]));
    by(facet).parentElement.hidden = values.length === 1;
  });
  by("changes").append(...[["", "All"], ...kinds()].map(([value, text]) =>
    element("label", {}, element("input", { type: "radio", name: "change", value, defaultChecked: value === "" }),
      element("span", { className: "chip" }, `${text} `, element("span", { className: "count" })))));
}

function start(data) {
  browser.data = data;
  browser.lower = data.texts.map((text) => text.toLowerCase());
  fill();
  recall();
  by("filters").addEventListener("input", update);
  by("filters").addEventListener("submit", (event) => event.preventDefault());
  by("clear").addEventListener("click", () => {
    by("filters").reset();
    by("to").value = data.presented;
    update();
  });
  by("swap").addEventListener("click", () => {
    [by("from").value, by("to").value] = [by("to").value, by("from").value];
    update();
  });
  by("more").addEventListener("click", () => showMore().querySelector("h3").focus());
  window.addEventListener("hashchange", () => { if (location.hash.includes("=")) { recall(); update(); } });
  by("browser").hidden = false;
  by("some").hidden = true;
  update();
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const holder = by("data");
if (holder && holder.type === "application/json") start(JSON.parse(holder.textContent));
else if (holder) unpacked(holder.textContent).then(start, () => { by("too-old").hidden = false; });

// ---- Print shows what is closed on the screen

let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((details) => { details.open = true; });
});
window.addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));
