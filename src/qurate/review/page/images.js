// The tab Images: all unlabelled images in a grid of which only the visible part exists, filters, a map with a lasso,
// and one image large with what it is like. Answers go the way of the tab Answer.
import { $, acts, breakable, call, doing, element, fileName, isolated, keyOf, percent, picture, placeOf, plural, save, short, state, undoLast } from "./shared.js";

const ROWS_BEYOND = 2; // rows of cells that are kept above and below what is seen
const rows = { count: 0 }; // columns by image: see `rows` in gallery.py; and kind and given, of its answer
let view = []; // images that pass the filters, in order
let place = new Map(); // of each image in the view
const chosen = new Set(); // images that are selected
let at = 0, anchor = 0; // place of the cell that the keys are at, and where a selection of several began
let groups = null; // near-duplicates: the group of each image, when they are sorted so
let pairs = null, map = null; // of the server, once they were asked for
let root = null, opened = -1;

const part = name => root.querySelector(`[data-part="${name}"]`);
const on = (name, event, does) => part(name).addEventListener(event, does);
const values = form => Object.fromEntries(new FormData(form));

// What is shown as the class of an image, and who says so.
const origin = i => rows.kind[i] ? "answer" : rows.pseudo[i] >= 0 ? "pseudo" : "model";
const guessOf = i => state.classes[rows.pseudo[i] >= 0 ? rows.pseudo[i] : rows.label[i]];
const labelOf = i => rows.kind[i] ? rows.given[i] : guessOf(i); // empty where an answer gives none
const said = i => rows.kind[i] === "none" ? "none of the classes" : rows.kind[i] === "wrong" ? `not ${guessOf(i)}` : labelOf(i);

const PAGE = `
<form data-part="filters" class="filters" aria-label="Filters">
  <label>Class <select name="class"><option value="">all</option></select></label>
  <label class="range">Probability <span><input name="low" type="number" min="0" max="100" value="0" aria-label="Lowest probability in percent">–<input name="high" type="number" min="0" max="100" value="100" aria-label="Highest probability in percent"> %</span></label>
  <label>Label from <select name="origin"><option value="">all</option><option value="model">the model alone</option><option value="pseudo">a trusted pseudo-label</option><option value="answer">an answer</option><option value="learned">an answer that this run learned</option></select></label>
  <label>Trusted <select name="trusted"><option value="">all</option><option value="yes">trusted</option><option value="no">not trusted</option></select></label>
  <label>Fits a class <select name="flagged"><option value="">all</option><option value="yes">fits none</option><option value="no">others</option></select></label>
  <label>Answer <select name="answer"><option value="">all</option><option value="open">no answer</option><option value="any">answered</option><option value="label">a class</option><option value="differs">not what the model says</option><option value="none">none of the classes</option><option value="wrong">wrong</option></select></label>
  <label>File <input name="file" type="text" placeholder="part of its name" autocomplete="off" spellcheck="false"></label>
  <label>Sort by <select name="sort"><option value="doubt">probability, lowest first</option><option value="sure">probability, highest first</option><option value="known">fit to any class, worst first</option><option value="class">class</option><option value="file">file</option><option value="alike">near-duplicates</option></select></label>
  <label data-part="bound" hidden>At least as alike as <span><input name="bound" type="range" step="0.01" max="1"> <output></output></span></label>
</form>
<div class="line">
  <p data-part="count" role="status"></p>
  <button data-part="to-filters" aria-expanded="false">Filters</button>
  <button data-part="to-map" aria-pressed="false">Map</button>
  <button data-part="all">Select all</button>
  <button data-part="reset" hidden>Clear filters</button>
</div>
<div class="room">
  <figure data-part="map" hidden>
    <canvas role="img" aria-label="Map: images that are alike lie together. Draw around some to select them."></canvas>
    <figcaption>Images that are alike lie together; the colour is the class. Draw around some to select them, with Shift to add. Click a point to see it.</figcaption>
  </figure>
  <div data-part="grid" class="cells" tabindex="0" role="listbox" aria-multiselectable="true" aria-label="Images"></div>
</div>
<div data-part="bar" class="chosen">
  <b data-part="chosen"></b>
  <button data-part="only" aria-pressed="false">Show only these</button>
  <button data-part="clear">Clear</button>
  <form data-part="label"><input list="names" name="name" type="text" placeholder="a class, or a new one" aria-label="Class of the selected images" autocomplete="off" spellcheck="false"><button class="main"></button></form>
  <button data-part="confirm" title="Each of them is of the class that is shown">Right as shown</button>
  <button data-part="none" title="They are of no class, or bad images">None of the classes</button>
  <button data-part="wrong" title="None of them is of the class that is shown; what they are is asked later">Wrong</button>
  <button data-part="undo">Undo</button>
</div>
<datalist id="names"></datalist>
<dialog data-part="one" aria-labelledby="one-title"></dialog>`;

// Called whenever the tab is shown; `root` is its section.
export async function showImages(section) {
  root = section;
  if (!rows.count) {
    const found = await call("rows");
    Object.assign(rows, found, { count: found.file.length, flagged: new Set(found.flagged), learned: new Set(found.learned) });
    build();
  }
  await readAnswers();
  refresh();
}

// Answers of other tabs and people too.
async function readAnswers() {
  rows.kind = new Array(rows.count).fill("");
  rows.given = new Array(rows.count).fill("");
  for (const [image, kind, label] of (await call("answered")).answers) [rows.kind[image], rows.given[image]] = [kind, label];
  nameClasses();
}

function nameClasses() {
  const added = [...new Set(rows.given)].filter(name => name && !state.classes.includes(name));
  const select = part("filters").elements.class, before = select.value, names = [...state.classes, ...added];
  if (select.options.length !== names.length + 1) {
    select.replaceChildren(element("option", { value: "", textContent: "all" }), ...names.map(name => element("option", { value: name, textContent: isolated(name) })));
    select.value = names.includes(before) ? before : "";
    root.querySelector("#names").replaceChildren(...names.map(name => element("option", { value: name })));
  }
}

function build() {
  root.innerHTML = PAGE; // nothing of a run is in it
  const form = part("filters");
  if (!rows.known) form.elements.sort.querySelector("[value=known]").remove();
  if (!rows.flagged.size) form.elements.flagged.closest("label").remove();
  if (!rows.pseudo.some(label => label >= 0)) form.elements.trusted.closest("label").remove();
  form.addEventListener("input", event => { if (event.target.matches("input")) refresh(); });
  form.addEventListener("change", event => { if (event.target.matches("select")) form.elements.sort.value === "alike" && !pairs ? doing(readPairs) : refresh(); });
  form.addEventListener("submit", event => event.preventDefault());
  on("to-filters", "click", () => part("to-filters").setAttribute("aria-expanded", form.classList.toggle("open")));
  on("to-map", "click", () => doing(showMap));
  on("all", "click", () => { for (const i of view) chosen.add(i); drawChosen(); });
  on("reset", "click", () => { form.reset(); part("only").setAttribute("aria-pressed", "false"); refresh(); });
  on("clear", "click", () => { chosen.clear(); part("only").setAttribute("aria-pressed", "false"); refresh(); });
  on("only", "click", () => { part("only").setAttribute("aria-pressed", !isOnly()); refresh(); });
  on("label", "submit", event => { event.preventDefault(); give([...chosen], "label", part("label").elements.name.value.trim()); });
  on("label", "input", nameLabel);
  on("confirm", "click", () => give([...chosen], "shown"));
  on("none", "click", () => give([...chosen], "none"));
  on("wrong", "click", () => give([...chosen], "wrong"));
  on("undo", "click", undo);
  on("grid", "keydown", pressed);
  on("grid", "click", clicked);
  on("one", "close", () => { opened = -1; part("grid").focus({ preventScroll: true }); });
  on("one", "keydown", pressedInOne);
  addEventListener("scroll", () => requestAnimationFrame(drawCells), { passive: true });
  addEventListener("hashchange", () => part("one").close());
  new ResizeObserver(() => { if (part("grid").clientWidth !== laidOut) layOut(); }).observe(part("grid"));
  watchLasso(part("map").firstElementChild);
}

// Filters and order.
const isOnly = () => part("only").getAttribute("aria-pressed") === "true";
function refresh() {
  const wanted = values(part("filters")), alike = wanted.sort === "alike" && pairs;
  const low = Number(wanted.low) / 100, high = Number(wanted.high || 100) / 100, word = wanted.file.toLowerCase(), only = isOnly() && chosen.size;
  const passes = i =>
    (!only || chosen.has(i)) &&
    (!wanted.class || labelOf(i) === wanted.class) &&
    rows.probability[i] >= low - 1e-9 && rows.probability[i] <= high + 1e-9 &&
    (!wanted.origin || (wanted.origin === "learned" ? rows.learned.has(i) : origin(i) === wanted.origin)) &&
    (!wanted.trusted || (wanted.trusted === "yes") === (rows.pseudo[i] >= 0)) &&
    (!wanted.flagged || (wanted.flagged === "yes") === rows.flagged.has(i)) &&
    (!wanted.answer || (wanted.answer === "open" ? !rows.kind[i] : wanted.answer === "any" ? rows.kind[i] : wanted.answer === "differs" ? rows.kind[i] && rows.given[i] !== state.classes[rows.label[i]] : rows.kind[i] === wanted.answer)) &&
    (!word || rows.file[i].toLowerCase().includes(word));
  view = Array.from({ length: rows.count }, (_, i) => i).filter(passes);
  groups = alike ? group(Number(wanted.bound)) : null;
  const orders = {
    doubt: (a, b) => rows.probability[a] - rows.probability[b],
    sure: (a, b) => rows.probability[b] - rows.probability[a],
    known: (a, b) => (rows.known[a] ?? 2) - (rows.known[b] ?? 2),
    class: (a, b) => (names[a] < names[b] ? -1 : names[a] > names[b] ? 1 : rows.probability[a] - rows.probability[b]),
    file: (a, b) => (rows.file[a] < rows.file[b] ? -1 : 1),
    alike: (a, b) => groups.order[a] - groups.order[b],
  };
  const names = wanted.sort === "class" ? rows.file.map((_, i) => labelOf(i)) : [];
  if (groups) view = view.filter(i => groups.order[i] >= 0);
  if (wanted.sort !== "alike" || groups) view.sort(orders[wanted.sort]);
  place = new Map(view.map((image, n) => [image, n]));
  at = Math.min(at, Math.max(0, view.length - 1));
  part("bound").hidden = !groups;
  part("bound").querySelector("output").textContent = Number(wanted.bound).toFixed(2);
  part("count").textContent = view.length === rows.count ? plural(rows.count, "image") : `${view.length.toLocaleString("en")} of ${plural(rows.count, "image")}`;
  if (groups) part("count").textContent += ` in ${plural(new Set(view.map(i => groups.of[i])).size, "group")}`;
  part("reset").hidden = view.length === rows.count && !only;
  part("all").disabled = !view.length;
  layOut();
}

// Near-duplicates: the images that are linked by pairs of at least this cosine, the most alike first.
function group(bound) {
  const of = Int32Array.from({ length: rows.count }, (_, i) => i), order = new Float64Array(rows.count).fill(-1);
  const top = i => { while (of[i] !== i) i = of[i] = of[of[i]]; return i; };
  let last = 0;
  while (last < pairs.cosine.length && pairs.cosine[last] >= bound - 1e-9) {
    of[top(pairs.first[last])] = top(pairs.second[last]);
    last++;
  }
  const rank = new Map();
  for (let n = 0; n < last; n++) for (const i of [pairs.first[n], pairs.second[n]]) {
    const own = top(i);
    if (!rank.has(own)) rank.set(own, rank.size);
    order[i] = rank.get(own) + i / rows.count;
  }
  return { of: of.map((_, i) => top(i)), order };
}
async function readPairs() {
  part("count").textContent = "Comparing the images with each other. With very many that takes up to a minute, once.";
  pairs = await call("duplicates");
  const bound = part("filters").elements.bound;
  bound.min = pairs.least;
  bound.value = .95;
  refresh();
}

// The grid: its height is that of all cells, and only those in sight exist.
const cells = new Map(); // by place in the view
const spare = [];
let columns = 1, side = 150, height = 184, laidOut = 0, loading = 0, drawnAt = { top: 0, now: 0 };
function layOut() {
  const grid = part("grid"), width = grid.clientWidth;
  if (!width) return;
  const isSame = width === laidOut;
  laidOut = width;
  columns = Math.max(2, Math.floor((width + 8) / (width < 500 ? 120 : 158)));
  side = Math.floor((width + 8) / columns) - 8;
  height = side + 34; // two lines of words
  grid.style.height = `${Math.max(1, Math.ceil(view.length / columns)) * (height + 8)}px`;
  for (const [n, cell] of [...cells]) {
    if (isSame && view[n] === cell.shown) fill(cell, view[n], n);
    else drop(n);
  }
  grid.style.setProperty("--side", `${side}px`);
  grid.style.setProperty("--height", `${height}px`);
  drawCells();
  drawChosen();
}
function drop(n) {
  const cell = cells.get(n);
  cells.delete(n);
  cell.image.removeAttribute("src"); // so that nobody waits for it
  spare.push(cell);
}
function drawCells() {
  const grid = part("grid");
  if (!grid.clientWidth) return;
  const top = -grid.getBoundingClientRect().top, now = performance.now(), step = height + 8;
  const speed = Math.abs(top - drawnAt.top) / Math.max(1, now - drawnAt.now);
  drawnAt = { top, now };
  const first = Math.max(0, Math.floor(top / step) - ROWS_BEYOND) * columns;
  const end = Math.min(view.length, (Math.ceil((top + innerHeight) / step) + ROWS_BEYOND) * columns);
  for (const n of [...cells.keys()]) if (n < first || n >= end) drop(n);
  for (let n = first; n < end; n++) if (!cells.has(n)) put(n);
  for (const cell of spare) cell.remove();
  spare.length = 0;
  clearTimeout(loading);
  if (speed > 4) loading = setTimeout(load, 90); // nobody sees what flies by
  else load();
}
function load() {
  for (const [n, cell] of cells) if (!cell.image.src) cell.image.src = `images/${view[n]}/small`;
}
function put(n) {
  const cell = spare.pop() ?? makeCell();
  cells.set(n, cell);
  cell.style.transform = `translate(${(n % columns) * (side + 8)}px, ${Math.floor(n / columns) * (height + 8)}px)`;
  cell.id = `cell-${n}`;
  cell.dataset.n = n;
  fill(cell, view[n], n);
  if (!cell.isConnected) part("grid").append(cell);
}
function makeCell() {
  const cell = element("div", { className: "cell" });
  cell.setAttribute("role", "option");
  cell.image = element("img", { alt: "", decoding: "async" });
  cell.image.addEventListener("load", () => cell.image.classList.toggle("tiny", Math.max(cell.image.naturalWidth, cell.image.naturalHeight) <= 48));
  cell.name = element("b");
  cell.facts = element("span");
  cell.mark = element("span", { className: "mark" });
  cell.append(cell.image, cell.mark, cell.name, cell.facts);
  return cell;
}
function fill(cell, i, n) {
  const name = said(i), kind = rows.kind[i];
  cell.shown = i;
  cell.name.textContent = name;
  cell.facts.textContent = kind ? `model ${short(rows.probability[i])}` : `${short(rows.probability[i])}${rows.pseudo[i] >= 0 ? " · trusted" : ""}${rows.flagged.has(i) ? " · fits none" : ""}`;
  cell.className = `cell${kind ? ` is-${kind}` : ""}${groups && n && groups.of[view[n - 1]] !== groups.of[i] ? " begins" : ""}`;
  cell.title = `${rows.folder}${rows.file[i]}`;
  cell.setAttribute("aria-label", `${fileName(rows.file[i])}: ${name}, ${kind ? "answered, " : ""}${cell.facts.textContent}`);
  cell.setAttribute("aria-posinset", n + 1);
  cell.setAttribute("aria-setsize", view.length);
  mark(cell, i, n);
}
function mark(cell, i, n) {
  cell.setAttribute("aria-selected", chosen.has(i));
  cell.classList.toggle("current", n === at);
}
function drawChosen() {
  for (const [n, cell] of cells) mark(cell, view[n], n);
  part("grid").setAttribute("aria-activedescendant", `cell-${at}`);
  part("chosen").textContent = `${chosen.size.toLocaleString("en")} selected`;
  for (const name of ["only", "clear", "confirm", "none", "wrong"]) part(name).disabled = !chosen.size;
  part("undo").disabled = !acts.length;
  part("bar").hidden = !chosen.size && !acts.length;
  part("bar").classList.toggle("idle", !chosen.size);
  nameLabel();
  drawMap();
}
function nameLabel() {
  const form = part("label"), name = form.elements.name.value.trim(), button = form.querySelector("button");
  const is = name && (state.classes.includes(name) || rows.given.includes(name));
  button.textContent = !name || is ? "Give this class" : "Add this class";
  button.disabled = !name || !chosen.size;
}

// Selecting.
function toggle(n, several) {
  if (several) {
    for (let k = Math.min(anchor, n); k <= Math.max(anchor, n); k++) chosen.add(view[k]);
  } else {
    if (!chosen.delete(view[n])) chosen.add(view[n]);
    anchor = n;
  }
  at = n;
  drawChosen();
}
function clicked(event) {
  const cell = event.target.closest(".cell");
  if (!cell) return;
  const n = Number(cell.dataset.n);
  if (event.shiftKey || event.ctrlKey || event.metaKey || event.target === cell.mark) toggle(n, event.shiftKey);
  else { at = n; drawChosen(); open(view[n]); }
}
function pressed(event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -view.length, End: view.length };
  if (event.key in steps && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const n = Math.max(0, Math.min(view.length - 1, at + steps[event.key]));
    if (event.shiftKey) { toggle(at, true); toggle(n, true); } else at = n;
    const top = part("grid").getBoundingClientRect().top + Math.floor(at / columns) * (height + 8);
    if (top < 60) scrollBy(0, top - 60);
    else if (top + height > innerHeight - 90) scrollBy(0, top + height - innerHeight + 90);
    drawCells();
    drawChosen();
  } else if (event.key === " " && view.length) toggle(at, event.shiftKey);
  else if (event.key === "Enter" && view.length) open(view[at]);
  else if (event.key === "a" && (event.ctrlKey || event.metaKey)) { for (const i of view) chosen.add(i); drawChosen(); }
  else if (event.key === "Escape") { chosen.clear(); drawChosen(); }
  else if (event.key === "u" && $("keys").checked && !event.ctrlKey && !event.metaKey) undo();
  else return;
  event.preventDefault();
}

// Answers: of one kind for all images; "shown" confirms the class that is shown of each.
const classOf = name => state.classes.includes(name) ? { label: state.classes.indexOf(name) } : { name };
const give = (images, kind, name) => doing(async () => {
  if (!images.length || (kind === "label" && !name)) return;
  let answers = [{ images, answer: kind, ...(kind === "label" ? classOf(name) : {}) }];
  if (kind === "shown") {
    const by = new Map();
    for (const i of images.filter(labelOf)) {
      if (!by.has(labelOf(i))) by.set(labelOf(i), []);
      by.get(labelOf(i)).push(i);
    }
    answers = [...by].map(([label, some]) => ({ images: some, answer: "label", ...classOf(label) }));
  }
  if (!answers.length) throw new Error("Not saved: no class is shown of these images, so there is nothing to confirm.");
  await save(answers);
  $("status").textContent = `Saved: ${plural(answers.reduce((sum, one) => sum + one.images.length, 0), "answer")}.`;
  if (opened < 0) {
    chosen.clear();
    part("only").setAttribute("aria-pressed", "false");
    part("label").reset();
  }
  const next = opened < 0 ? -1 : view[place.get(opened) + 1] ?? -1;
  await readAnswers();
  refresh();
  if (opened >= 0) await (next < 0 ? part("one").close() : look(next));
});
const undo = () => doing(async () => {
  if (!acts.length) return;
  await undoLast();
  await readAnswers();
  refresh();
  if (opened >= 0) await look(opened);
});

// One image, large.
const open = image => doing(() => look(image));
async function look(image) {
  const { choices, labeled, alike } = await call(`likeness?image=${image}`);
  opened = image;
  const of = new Map(state.examples.flatMap((all, label) => all.map(one => [one.number, { name: state.classes[label], part: one.part === "labeled" ? "target" : "source" }])));
  const facts = [`${percent(rows.probability[image])} by the model`];
  if (rows.known?.[image] != null) facts.push(`${(100 * rows.known[image]).toPrecision(2)} in 100 images of your classes fit no better`);
  if (rows.flagged.has(image)) facts.push("flagged: fits none of the classes");
  if (rows.pseudo[image] >= 0) facts.push(`trusted as ${isolated(state.classes[rows.pseudo[image]])}`);
  facts.push(rows.kind[image] ? `answered: ${isolated(said(image))}${rows.learned.has(image) ? ", and this run learned from it" : ""}` : "no answer yet");
  const strip = (title, all, each) => all.length ? [element("h2", { textContent: title }), element("ul", { className: "strip" }, ...all.map(one => element("li", {}, ...each(one))))] : [];
  const near = one => {
    const known = "example" in one ? of.get(one.example) : { name: one.label, part: "answered" };
    return [picture("example" in one ? `examples/${one.example}/small` : `images/${one.image}/small`, ""), element("span", {}, ...breakable(known?.name ?? "")), element("small", { textContent: `${known?.part ?? ""} ${one.cosine.toFixed(2)}` })];
  };
  const other = one => {
    const button = element("button", { title: rows.file[one.image], onclick: () => open(one.image) }, picture(`images/${one.image}/small`, ""), element("span", {}, ...breakable(said(one.image))), element("small", { textContent: one.cosine.toFixed(2) }));
    return [button];
  };
  const search = element("form", { className: "actions", onsubmit: event => { event.preventDefault(); give([opened], "label", search.elements.name.value.trim()); } },
    element("input", { name: "name", type: "text", placeholder: "another class, or a new one", autocomplete: "off", spellcheck: false, ariaLabel: "Another class" }), element("button", { textContent: "Give this class" }));
  search.elements.name.setAttribute("list", "names");
  const step = by => element("button", { textContent: by < 0 ? "‹ Previous" : "Next ›", disabled: !place.has(image) || view[place.get(image) + by] === undefined, onclick: () => move(by) });
  part("one").replaceChildren(
    element("figure", {}, picture(`images/${image}/large`, fileName(rows.file[image]), { className: "large" }), element("figcaption", { textContent: `${rows.folder}${rows.file[image]}` })),
    element("div", { className: "facts" },
      element("div", { className: "actions ends" }, step(-1), step(1), element("button", { textContent: "Close", onclick: () => part("one").close() })),
      element("h1", { id: "one-title", tabIndex: -1 }, ...breakable(said(image))),
      element("p", { textContent: `${facts.join(", ")}.` }),
      element("ol", { className: "likely" }, ...choices.map(({ label, probability }, k) => {
        const button = element("button", { onclick: () => give([opened], "label", state.classes[label]) }, element("kbd", { textContent: keyOf(k) }), element("b", {}, ...breakable(state.classes[label])), element("meter", { value: probability }), element("span", { textContent: short(probability) }));
        return element("li", {}, button);
      })),
      search,
      element("div", { className: "actions" },
        element("button", { textContent: "None of the classes", onclick: () => give([opened], "none") }),
        element("button", { textContent: `Not ${isolated(guessOf(image))}`, onclick: () => give([opened], "wrong") }),
        element("button", { textContent: "Undo", disabled: !acts.length, onclick: undo }))),
    element("div", { className: "near" }, ...strip("Labelled images most like it", labeled, near), ...strip("Unlabelled images most like it", alike, other)));
  if (!part("one").open) part("one").showModal();
  part("one").scrollTop = 0;
  part("one").querySelector("h1").focus({ preventScroll: true });
  if (place.has(image)) { at = place.get(image); drawChosen(); }
  const following = view[place.get(image) + 1];
  if (following !== undefined) new Image().src = `images/${following}/large`;
}
const move = by => { const next = view[place.get(opened) + by]; if (next !== undefined) open(next); };
function pressedInOne(event) {
  if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase(), choice = part("one").querySelectorAll(".likely button")[placeOf(key)];
  const does = key === "arrowleft" ? () => move(-1) : key === "arrowright" ? () => move(1)
    : !$("keys").checked || event.repeat ? null
    : choice ? () => choice.click() : key === "n" ? () => give([opened], "none") : key === "u" ? undo : null;
  if (!does) return;
  event.preventDefault();
  does();
}

// The map.
const EDGE = 12;
let lasso = [];
async function showMap() {
  const figure = part("map");
  if (figure.hidden && !map) {
    part("count").textContent = "Drawing the map. With very many images that takes up to a minute, once.";
    map = await call("map");
  }
  figure.hidden = !figure.hidden;
  part("to-map").setAttribute("aria-pressed", !figure.hidden);
  refresh();
}
const hue = new Map();
function colorOf(name) {
  if (!hue.has(name)) hue.set(name, `hsl(${(hue.size * 137.508) % 360} 62% 52%)`);
  return name ? hue.get(name) : "#888";
}
const pointOf = (i, width) => [EDGE + map.x[i] * (width - 2 * EDGE), EDGE + map.y[i] * (width - 2 * EDGE)];
function drawMap() {
  const figure = part("map"), canvas = figure.firstElementChild;
  if (figure.hidden || !map) return;
  const scale = devicePixelRatio, width = canvas.clientWidth, style = getComputedStyle(canvas);
  if (canvas.width !== Math.round(width * scale)) canvas.width = canvas.height = Math.round(width * scale);
  const pen = canvas.getContext("2d"), size = rows.count > 5000 ? 2 : rows.count > 800 ? 3.5 : 5;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, width);
  pen.fillStyle = style.getPropertyValue("--line");
  for (let i = 0; i < rows.count; i++) if (!place.has(i)) dot(pen, i, width, size);
  const by = new Map();
  for (const i of view) { const name = labelOf(i); if (!by.has(name)) by.set(name, []); by.get(name).push(i); }
  for (const [name, images] of [...by].sort()) {
    pen.fillStyle = colorOf(name);
    for (const i of images) dot(pen, i, width, size);
  }
  pen.fillStyle = style.getPropertyValue("--ink");
  for (const i of chosen) dot(pen, i, width, size + 1.5);
  if (lasso.length > 1) {
    pen.strokeStyle = style.getPropertyValue("--accent");
    pen.lineWidth = 2;
    pen.beginPath();
    for (const [x, y] of lasso) pen.lineTo(x, y);
    pen.stroke();
  }
}
function dot(pen, i, width, size) {
  const [x, y] = pointOf(i, width);
  pen.fillRect(x - size / 2, y - size / 2, size, size);
}
function watchLasso(canvas) {
  const where = event => [event.offsetX, event.offsetY];
  canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId); lasso = [where(event)]; });
  canvas.addEventListener("pointermove", event => { if (lasso.length) { lasso.push(where(event)); requestAnimationFrame(drawMap); } });
  canvas.addEventListener("pointercancel", () => { lasso = []; drawMap(); });
  canvas.addEventListener("pointerup", event => {
    const path = lasso, width = canvas.clientWidth;
    lasso = [];
    if (!path.length) return;
    const [x, y] = where(event), moved = Math.max(...path.map(([a, b]) => Math.hypot(a - path[0][0], b - path[0][1])));
    if (moved < 5) {
      const far = i => { const [a, b] = pointOf(i, width); return Math.hypot(a - x, b - y); };
      const best = view.reduce((best, i) => (best < 0 || far(i) < far(best) ? i : best), -1);
      if (best >= 0 && far(best) < 15) open(best);
      else drawMap();
      return;
    }
    if (!event.shiftKey) chosen.clear();
    for (const i of view) if (isInside(pointOf(i, width), path)) chosen.add(i);
    part("only").setAttribute("aria-pressed", "false");
    drawChosen();
  });
}
// Whether a ray from a point crosses the path an odd number of times.
function isInside([x, y], path) {
  let inside = false;
  for (let n = 0, m = path.length - 1; n < path.length; m = n++) {
    const [a, b] = path[n], [c, d] = path[m];
    if (b > y !== d > y && x < ((c - a) * (y - b)) / (d - b) + a) inside = !inside;
  }
  return inside;
}
