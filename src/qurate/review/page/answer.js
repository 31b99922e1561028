// The tab Answer: it shows a question, sends the answer, and goes on when the server has confirmed that it is saved.
import { $, acts, breakable, call, doing as doingAny, element, fileName, isolated, keyOf, onSummary, percent, picture, placeOf, plural, save, short, state, undoLast } from "./shared.js";

const GRID = 30;
const UNDO = ["undo", "undo-done", "undo-grid", "undo-issues"];
const KEY = `answers ${location.pathname}`; // with the token and the run: another server on this port has other answers
// A reload keeps these: what was put off, and the question.
const kept = { tab: crypto.getRandomValues(new Uint32Array(2)).join("-"), later: [], image: null, ...JSON.parse(sessionStorage.getItem(KEY) ?? "{}") };
const { tab } = kept;
const own = { question: null, view: "one", grid: null };
const keep = () => sessionStorage.setItem(KEY, JSON.stringify(kept));
const doing = work => doingAny(work).then(showUndo);

onSummary(summary => {
  const { answered, left, none, damaged, estimate, added, needed } = summary;
  state.added = added.map(one => one.name);
  $("bar").max = Math.max(1, answered + left);
  $("bar").value = answered;
  $("count").textContent = `${answered.toLocaleString("en")} answered, ${left.toLocaleString("en")} left`;
  $("bar").setAttribute("aria-valuetext", $("count").textContent);
  const words = [];
  if (estimate.images) {
    words.push(`Accuracy by the images drawn at random: ${percent(estimate.right / estimate.images)} of ${estimate.images}, 95 % interval ${percent(estimate.low)} to ${percent(estimate.high)}.`);
  } else {
    words.push("No image drawn at random is answered yet, so nothing is known of the accuracy.");
  }
  if (estimate.none) words.push(`${plural(estimate.none, "image")} of no class not counted.`);
  if (none) words.push(`${plural(none, "image")} set aside in all.`);
  if (added.length) {
    const named = added.map(({ name, images }) => `${isolated(name)} (${images < needed ? `${images} of the ${needed} images that it needs` : plural(images, "image")})`);
    words.push(`New ${added.length === 1 ? "class" : "classes"} for the next run: ${named.join(", ")}.`);
  }
  if (damaged) words.push(`${plural(damaged, "row")} of labels.csv cannot be read.`);
  $("estimate").textContent = words.join(" ");
  showDisagreements(summary.disagreements);
});

function showDisagreements(found) {
  $("disagree").hidden = !found.length;
  $("disagree").querySelector("summary").textContent = `${plural(found.length, "image")} with different answers`;
  $("disagree").querySelector("ul").replaceChildren(...found.map(({ image, file, said, counts }) => element("li", {},
    picture(`images/${image}/small`, fileName(file), { loading: "lazy" }),
    element("span", { textContent: `${said.map(one => `${isolated(one.by || "without a name")}: ${isolated(one.label)}`).join(", ")}. What was said last counts: ${isolated(counts)}.` }))));
}

function showUndo() {
  for (const id of UNDO) $(id).disabled = acts.length === 0;
}

function examplesOf(label, most, named) {
  const all = state.examples[label];
  const target = all.filter(one => one.part === "labeled"), source = all.filter(one => one.part !== "labeled");
  const few = [...target.slice(0, Math.max(1, most - 1)), ...source].slice(0, most);
  return few.map(one => picture(`examples/${one.number}/small`, named ? `${state.classes[label]}, ${one.part === "labeled" ? "labelled target" : "source"}` : "", { loading: "lazy" }));
}

let reloaded = kept.image; // what was shown before the page was loaded again
async function nextQuestion() {
  const reply = await call(`question?tab=${tab}&later=${kept.later.join(",")}&now=${reloaded ?? ""}`);
  reloaded = null;
  own.question = reply.question;
  kept.image = reply.question?.image ?? null;
  keep();
  showQuestion();
}

function showQuestion() {
  const question = own.question;
  show(question ? "one" : "done");
  if (!question) return $("done-title").focus();
  const name = fileName(question.file);
  $("image").alt = `Image to label: ${name}`;
  $("image").classList.remove("tiny");
  $("image").src = `images/${question.image}/large`;
  $("file").textContent = name;
  $("file").title = question.file;
  $("question").textContent = question.query_strategy === "border" ? "Is it any of your classes?" : "Which class is this?";
  $("why").textContent = question.why;
  $("choices").replaceChildren(...question.choices.map(({ label, probability }, i) => {
    const key = keyOf(i), button = element("button", { title: state.classes[label], onclick: () => answer("label", label) });
    button.setAttribute("aria-label", `${key}: ${state.classes[label]}, ${percent(probability)}`);
    button.append(
      element("span", { className: "name" }, element("kbd", { textContent: key }), element("b", {}, ...breakable(state.classes[label])), element("span", { textContent: short(probability) })),
      element("span", { className: "pair" }, ...examplesOf(label, 3, false)),
    );
    return element("li", {}, button);
  }));
  for (const image of question.following) new Image().src = `images/${image}/large`;
  closeSearch();
  $("question").focus({ preventScroll: true });
  if (scrollY > 0) scrollTo(0, 0);
}

// A class by its number, or by its name where the model does not have it.
const answer = (kind, label) => doing(async () => {
  if (!own.question) return;
  const { image } = own.question, named = typeof label === "string";
  await save([{ image, answer: kind, ...(named ? { name: label } : kind === "label" ? { label } : {}) }]);
  kept.later = kept.later.filter(one => one !== image);
  $("status").textContent = `Saved: ${named ? label : kind === "label" ? state.classes[label] : "none of the classes"}.`;
  await nextQuestion();
});

const later = () => doing(async () => {
  if (!own.question) return;
  const { image } = own.question;
  kept.later = [...kept.later.filter(one => one !== image), image];
  $("status").textContent = "Put off.";
  await nextQuestion();
});

const undo = () => doing(async () => {
  if (!acts.length) return;
  await undoLast();
  await views[own.view]();
});

function show(section) {
  for (const id of ["one", "done", "grid", "issues"]) $(id).hidden = id !== section;
  for (const view of ["one", "grid", "issues"]) $(`to-${view}`).setAttribute("aria-pressed", view === own.view);
}

// Something else: type-ahead over all classes; the last of what is found is the word itself, as a new class.
const search = { found: [], at: 0 };
function find() {
  const typed = $("search").value.trim(), word = typed.toLocaleLowerCase();
  const names = [...state.classes.map((name, label) => ({ name, label })), ...state.added.map(name => ({ name, label: name }))]
    .map((one, order) => ({ ...one, order, at: one.name.toLocaleLowerCase().indexOf(word) }));
  search.found = word ? names.filter(one => one.at >= 0).sort((a, b) => a.at - b.at || a.order - b.order).slice(0, 40) : [];
  search.at = search.found.length ? 0 : -1; // nobody adds a class by a typing error and Enter
  if (word && !names.some(one => one.name.toLocaleLowerCase() === word)) search.found.push({ name: typed, label: typed, isNew: true });
  showFound();
}
function showFound() {
  $("found").replaceChildren(...search.found.map(({ name, label, isNew }, i) => {
    const examples = typeof label === "number" ? examplesOf(label, 2, false) : [];
    const words = isNew ? [`Add the class ${isolated(name)}`] : breakable(name);
    const item = element("li", { id: `found-${i}`, title: name, onmousedown: event => { event.preventDefault(); answer("label", label); } }, ...examples, element("span", {}, ...words));
    if (isNew) item.append(element("kbd", { textContent: "\u2193 Enter" }));
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", i === search.at);
    return item;
  }));
  if (search.found.length && search.at < 0 && search.found[0].isNew) {
    const said = element("li", { className: "said", textContent: `No class has \u201c${isolated(search.found[0].name)}\u201d in its name.` });
    said.setAttribute("role", "presentation");
    $("found").prepend(said);
  }
  $("found").hidden = !search.found.length;
  $("search").setAttribute("aria-expanded", search.found.length > 0);
  if (search.at >= 0 && search.found.length) $("search").setAttribute("aria-activedescendant", `found-${search.at}`);
  else $("search").removeAttribute("aria-activedescendant");
  $(`found-${search.at}`)?.scrollIntoView({ block: "nearest" });
  if (search.found.length && search.at < 0) $("status").textContent = "No class has that in its name. Press the down arrow, then Enter, to add it as a new class.";
}
function closeSearch() {
  $("search").value = "";
  search.found = [];
  showFound();
}
$("search").addEventListener("input", find);
$("search").addEventListener("blur", () => { search.found = []; showFound(); });
$("search").addEventListener("focus", find);
$("search").addEventListener("keydown", event => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && search.found.length) {
    search.at = (search.at + step + search.found.length) % search.found.length;
    showFound();
    event.preventDefault();
  } else if (event.key === "Enter") {
    if (search.found[search.at]) answer("label", search.found[search.at].label);
    event.preventDefault();
  } else if (event.key === "Escape") {
    closeSearch();
    $("question").focus();
  }
});

// By class: confirm many pseudo-labels at once.
async function showGrid() {
  show("grid");
  const chosen = Number($("class").value || -1);
  const first = state.trusted.find(one => one.open) ?? state.trusted[0];
  const label = state.trusted.some(one => one.label === chosen) ? chosen : first?.label;
  own.grid = label === undefined ? null : (await call(`trusted?label=${label}&count=${GRID}`)).grid;
  $("class").replaceChildren(...state.trusted.map(one => element("option", { value: one.label, textContent: `${isolated(state.classes[one.label])} (${one.open} of ${one.trusted} to check)`, selected: one.label === label })));
  const images = own.grid?.images ?? [];
  $("cells").replaceChildren(...images.map(({ image, file }) => {
    const button = element("button", { title: file });
    button.append(picture(`images/${image}/small`, "", { loading: "lazy" }));
    button.dataset.image = image;
    button.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-label", `${fileName(file)} is wrong`);
    const item = element("li", {}, button);
    button.onclick = () => {
      button.setAttribute("aria-pressed", !isWrong(button));
      item.querySelector("select")?.remove();
      if (isWrong(button)) item.append(chooseInstead(fileName(file), label));
      nameConfirm();
    };
    return item;
  }));
  $("examples").replaceChildren(...(label === undefined ? [] : examplesOf(label, 8, true)).map(image => element("li", {}, image)));
  $("examples-title").textContent = $("examples").children.length ? `Labelled examples of ${isolated(state.classes[label])}:` : "";
  $("grid-empty").hidden = images.length > 0;
  $("grid-empty").textContent = state.trusted.length ? "Nothing is left to check in this class." : "This run trusted no pseudo-labels.";
  nameConfirm();
  $("grid-title").focus({ preventScroll: true });
}
// What a wrong one is, if the person knows it.
function chooseInstead(name, label) {
  const others = [...state.classes.entries()].filter(([other]) => other !== label);
  const choice = element("select", {},
    element("option", { value: "wrong", textContent: "What is it?" }),
    ...others.map(([other, title]) => element("option", { value: other, textContent: title })),
    ...state.added.map(title => element("option", { value: `name ${title}`, textContent: title })),
    element("option", { value: "none", textContent: "none of the classes" }));
  choice.setAttribute("aria-label", `What is ${name}?`);
  return choice;
}
function answerOf(cell, label) {
  const image = Number(cell.dataset.image);
  if (!isWrong(cell)) return { image, answer: "label", label };
  const said = cell.parentElement.querySelector("select").value;
  if (said === "wrong" || said === "none") return { image, answer: said };
  return { image, answer: "label", ...(said.startsWith("name ") ? { name: said.slice(5) } : { label: Number(said) }) };
}
const cells = () => [...$("cells").querySelectorAll("button")];
const isWrong = cell => cell.getAttribute("aria-pressed") === "true";
function nameConfirm() {
  const wrong = cells().filter(isWrong).length, right = cells().length - wrong;
  $("confirm-grid").textContent = wrong ? `Confirm ${right}, reject ${wrong}` : `Confirm all ${right} shown`;
  $("confirm-grid").disabled = cells().length === 0;
}
const confirmGrid = () => doing(async () => {
  const label = own.grid?.label;
  const answers = cells().map(cell => answerOf(cell, label));
  if (!answers.length) return;
  await save(answers);
  $("status").textContent = `Saved: ${plural(answers.length, "answer")}.`;
  const here = state.trusted.find(one => one.label === label);
  if (!here?.open) $("class").value = String(state.trusted.find(one => one.open)?.label ?? label);
  await showGrid();
});

// Labels of one's own that the run doubts: the worst first, each corrected or confirmed by a click.
async function showIssues() {
  show("issues");
  const { issues } = await call("issues");
  const open = issues.filter(one => !one.said).length;
  $("issues-about").textContent = issues.length
    ? `Models that had not learned from these images contradict their labels; ${open.toLocaleString("en")} of ${issues.length.toLocaleString("en")} are left to check. Your folders are not changed: the next run learns from what you say here.`
    : "The run doubts none of your labels.";
  $("doubted").replaceChildren(...issues.map((issue, number) => {
    const { file, part, given, suggested, probability, said } = issue, name = fileName(file);
    const button = (text, reply) => {
      const made = element("button", { textContent: text, onclick: () => correct(number, reply) });
      made.setAttribute("aria-pressed", said === (reply.name ?? "none"));
      return made;
    };
    const others = element("select", { onchange: event => correct(number, { answer: "label", name: event.target.value }) },
      element("option", { value: "", textContent: "Another class" }),
      ...[...state.classes, ...state.added].filter(one => one !== given && one !== suggested).map(one => element("option", { value: one, textContent: one, selected: one === said })));
    others.setAttribute("aria-label", `What is ${name}?`);
    return element("li", {},
      picture(`issues/${number}/small`, name, { loading: "lazy", title: file }),
      element("p", {}, `${part === "source" ? "Source" : "Labelled target"}, labelled `, element("b", {}, ...breakable(isolated(given))), ". The models say ", element("b", {}, ...breakable(isolated(suggested))), ` (${percent(probability)}).`),
      element("div", { className: "actions" },
        button(`It is ${isolated(suggested)}`, { answer: "label", name: suggested }),
        button(`${isolated(given)} is right`, { answer: "label", name: given }),
        others,
        button("None of the classes", { answer: "none" })));
  }));
}
const correct = (issue, given) => doing(async () => {
  await save([{ issue, ...given }]);
  $("status").textContent = `Saved: ${given.name ?? "none of the classes"}.`;
  await showIssues();
});

const views = { one: nextQuestion, grid: showGrid, issues: showIssues };
const go = view => doing(async () => { own.view = view; await views[view](); });

document.addEventListener("keydown", event => {
  if (state.tab !== "answer") return;
  const typing = event.target.matches("input[type=text], select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat || !$("keys").checked) return;
  const one = own.view === "one" && own.question && !$("one").hidden, key = event.key.toLowerCase();
  const choice = one ? own.question.choices[placeOf(key)] : null;
  const does = choice ? () => answer("label", choice.label)
    : one && key === "n" ? () => answer("none")
    : one && key === "l" ? later
    : one && (key === "/" || key === "s") ? () => $("search").focus()
    : key === "u" ? undo
    : key === "g" ? () => go(own.view === "one" ? "grid" : "one")
    : null;
  if (does) {
    event.preventDefault();
    does();
  }
});

$("none").onclick = () => answer("none");
$("later").onclick = later;
for (const id of UNDO) $(id).onclick = undo;
$("more").onclick = () => doing(async () => {
  const { added } = await call("more", {});
  if (added) await nextQuestion();
  else $("done-title").textContent = "There is nothing left to ask about";
});
$("to-one").onclick = () => go("one");
$("to-grid").onclick = () => go("grid");
$("to-issues").onclick = () => go("issues");
$("class").onchange = () => doing(showGrid);
$("confirm-grid").onclick = confirmGrid;
$("image").addEventListener("load", () => $("image").classList.toggle("tiny", Math.max($("image").naturalWidth, $("image").naturalHeight) <= 48));
$("by").value = localStorage.getItem("by") ?? "";
$("by").onchange = () => localStorage.setItem("by", $("by").value.trim());
$("keys").checked = localStorage.getItem("keys") !== "off";
$("keys").onchange = () => localStorage.setItem("keys", $("keys").checked ? "on" : "off");

// Called when the tab is shown.
export async function showAnswer() {
  await views[own.view]();
  showUndo();
}
