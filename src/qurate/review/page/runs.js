// The tabs Progress, Outcome and Next run, and the form that starts a run.
import { $, call, doing, element, isolated, onSummary, pause, percent, plural, state } from "./shared.js";

let summary = null;
onSummary(latest => { summary = latest; });

const howLong = seconds => seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
const points = share => `${share > 0 ? "+" : share < 0 ? "\u2212" : ""}${Math.abs(100 * share).toFixed(1)}`;
const button = (text, work, properties = {}) => element("button", { textContent: text, onclick: () => doing(work), ...properties });

// How far a run is; also of one that was started from here. `at` leads to its addresses.
function describe(run, at) {
  const lines = run.lines?.length ? [element("ol", { className: "lines" }, ...run.lines.slice(-12).map(line => element("li", { textContent: line })))] : [];
  if (run.state === "working") {
    const bar = element("progress", run.phase ? { max: Math.max(1, run.total), value: run.done } : {});
    bar.setAttribute("aria-label", run.phase || "At work");
    const left = run.seconds_left === null ? "" : `, about ${howLong(run.seconds_left)} left`;
    return [
      element("h1", { textContent: `${run.title} is at work` }),
      element("p", { className: "phase", textContent: run.phase ? `${run.phase}: ${run.done.toLocaleString("en")} of ${run.total.toLocaleString("en")}${left}` : "Getting ready ..." }),
      bar,
      ...lines,
      element("p", { className: "quiet", textContent: "It goes on if you close this page or stop the server." }),
    ];
  }
  if (run.state === "finished") return [element("h1", { textContent: `${run.title} is finished` }), ...lines];
  const again = run.resumable ? [element("div", { className: "actions" }, button("Continue", async () => { await call(`${at}resume`, {}); location.reload(); }, { className: "main" }))] : [];
  const title = run.state === "absent" ? "There is no run yet" : `${run.title} ${run.usable ? "is finished, without its comparison" : "has stopped"}`;
  return [element("h1", { textContent: title }), element("p", { textContent: run.standing }), ...again, ...lines];
}

export async function showProgress(root) {
  const parts = describe(state.run, "");
  if (state.run.state === "finished") parts.push(element("p", {}, element("a", { href: "#outcome", textContent: "See the outcome" })));
  root.replaceChildren(...parts);
}

let shown = "";
export async function showOutcome(root) {
  if (!state.run.has_report) {
    root.replaceChildren(element("p", {}, "The outcome is here when the run is finished. ", element("a", { href: "#progress", textContent: "See how far it is" }), "."));
    return;
  }
  if (shown === state.run.state) return;
  const now = state.run.state, beside = await compared("");
  const frame = element("iframe", { title: "Report", src: "report" });
  frame.setAttribute("sandbox", "allow-same-origin allow-popups"); // no scripts; its height can be read
  const fit = () => { frame.style.height = `${frame.contentDocument?.documentElement.scrollHeight ?? 800}px`; };
  frame.addEventListener("load", () => {
    fit();
    new ResizeObserver(fit).observe(frame.contentDocument.body);
  });
  const open = state.run.state === "finished" ? [] : [element("p", { textContent: "The comparison with plain training is not finished, so this is not the last word." })];
  root.replaceChildren(...open, ...beside, frame);
  shown = now;
}

// A run and the run before it, or why they cannot be shown; nothing where there is none before.
async function compared(at) {
  const { changes, why } = await call(`${at}changes`);
  return changes ? sideBySide(changes) : why ? [element("p", { textContent: why })] : [];
}

// Two runs: better or worse on the random part, and which classes changed.
function sideBySide(changes) {
  const better = changes.improvement, parts = [element("h1", { textContent: `${changes.before} and ${changes.now} side by side` })];
  if (better) {
    const tone = better.low > 0 ? "better" : better.high < 0 ? "worse" : "open";
    const row = (name, share) => element("tr", {}, element("th", { textContent: name, scope: "row" }), element("td", { textContent: percent(share) }));
    parts.push(element("table", { className: `runs ${tone}` },
      element("caption", { textContent: `Right on ${plural(better.images, "image")} that were drawn at random and answered` }),
      row(changes.before, better.before), row(changes.now, better.now),
      element("tr", {}, element("th", { textContent: "Difference", scope: "row" }), element("td", { textContent: `${points(better.now - better.before)} points (95 % interval ${points(better.low)} to ${points(better.high)})` }))));
  }
  parts.push(element("p", { textContent: changes.words }));
  const { answered, problem } = changes.left_out;
  const without = [answered ? `${plural(answered, "image")} with an answer` : "", problem ? `${plural(problem, "image")} that one of the runs found to fit no class, to be unreadable, or to be a copy of a labelled one` : ""].filter(Boolean);
  parts.push(element("p", { textContent: `Another class now: ${changes.changed.toLocaleString("en")} of ${plural(changes.images, "image")}.${without.length ? ` Left out: ${without.join("; ")}.` : ""}` }));
  if (changes.changed) {
    const head = ["Class", `Images in ${changes.before}`, "left it", "came to it", `Images in ${changes.now}`];
    const rows = changes.classes.filter(one => one.gone || one.come).slice(0, 30);
    parts.push(element("div", { className: "scroll" }, element("table", { className: "classes" },
      element("thead", {}, element("tr", {}, ...head.map(name => element("th", { textContent: name, scope: "col" })))),
      element("tbody", {}, ...rows.map(one => element("tr", {}, element("th", { textContent: one.name, scope: "row" }), ...[one.before, one.gone, one.come, one.now].map(n => element("td", { textContent: n.toLocaleString("en") }))))))));
    parts.push(element("p", { className: "quiet", textContent: `Most frequent: ${changes.moves.map(one => `${isolated(one.from)} \u2192 ${isolated(one.to)} (${one.images})`).join(", ")}.` }));
  }
  return parts;
}

// Corrected labels and a new class make a run start anew.
const isAnew = ({ relabeled, added, needed }) => relabeled > 0 || added.some(one => one.images >= needed);
// What the answers are worth, in sentences.
function worth(found) {
  const { answered, labeled, corrected, none, random, random_needed, relabeled, check_helping } = found;
  const own = relabeled ? [`You corrected ${plural(relabeled, "label")} of your own.`] : [];
  if (isAnew(found)) own.push(`The new run starts anew with ${relabeled ? "corrected labels" : "the new class"}: with all steps, ${check_helping ? "and the comparison with plain training" : "but without the comparison with plain training, as this run"}.`);
  if (!answered) return own.length ? own : ["There are no new answers yet. Answer some questions first; 20 to 50 are a good beginning."];
  const said = [...own, `${plural(answered, "new answer")}: ${labeled} with a class, on ${corrected} of which the model was wrong; ${none} of no class.`];
  if (isAnew(found)) said.push("So it is not known how much better than this run it is: it learns from all answers.");
  else said.push(random >= random_needed
    ? `${plural(random, "answer")} with a class ${random === 1 ? "is" : "are"} about images drawn at random: on these the new run is compared with this one.`
    : `${random} of the ${random_needed} answers about images drawn at random that it takes to say whether the new run is better. One question in five is drawn at random.`);
  return said;
}

const canLearn = () => summary.answered + summary.relabeled > 0;
let following = 0;
export async function showNext(root) {
  const mine = ++following;
  const learn = element("section", {},
    element("h1", { textContent: "Learn from the answers" }),
    ...worth(summary).map(text => element("p", { textContent: text })),
    element("p", { className: "quiet", textContent: `A new run begins in a folder beside this one, which stays as it is.${isAnew(summary) ? "" : " It takes a third of the steps."}` }),
    element("div", { className: "actions" },
      button("Learn from the answers", async () => {
        await call("learn", {});
        await showNext(root);
      }, { id: "learn", className: "main", disabled: !canLearn() }),
      element("a", { href: "#answer", textContent: summary.left ? "Answer more first" : "Ask more first" })),
    element("details", {}, element("summary", { textContent: "The same in a terminal" }), element("code", { textContent: state.command })));
  const after = element("section", { id: "after" });
  root.replaceChildren(learn, after);
  const { next } = await call("status"), working = new Set();
  for (const number of next.reverse()) { // the newest first
    const part = element("section");
    after.append(part);
    follow(part, number, working, () => mine === following && state.tab === "next");
  }
}

// Show a next run until it is finished, then both runs. `working` are the numbers of those that are at work.
async function follow(root, number, working, isShown) {
  const at = `../${number}/`;
  while (isShown()) {
    let run = null;
    try {
      run = await call(`${at}status?load=0`); // its model is loaded when its own page is opened
    } catch (error) {
      root.replaceChildren(element("p", { textContent: error.message }));
    }
    if (run?.state === "working") working.add(number);
    else working.delete(number);
    $("learn").disabled = working.size > 0 || !canLearn();
    if (!run) return;
    if (run.state === "finished") {
      root.replaceChildren(...await compared(at),
        element("div", { className: "actions" }, element("a", { className: "main go-on", href: `${at}#answer`, textContent: `Go on in ${run.title}` }), element("a", { href: `${at}#outcome`, textContent: "Its outcome" })));
      return;
    }
    root.replaceChildren(...describe(run, at));
    if (run.state !== "working") return;
    await pause(1000);
  }
}

// The form that starts a run: three folders, and what `check` says of them as one types.
const FIELDS = {
  source: ["Source", "Labelled images of the first kind, in one folder per class."],
  labeled: ["Labelled target", "A few labelled images of the new kind, in folders of the same names."],
  unlabeled: ["Unlabelled target", "All other images of the new kind, in any folder."],
  out: ["Folder for the run", "A new folder; nothing is overwritten."],
};
export async function showBegin(root) {
  const inputs = Object.fromEntries(Object.entries(FIELDS).map(([name, [, help]]) => {
    const input = element("input", { type: "text", id: `field-${name}`, name, autocomplete: "off", spellcheck: false });
    input.setAttribute("aria-describedby", `help-${name}`);
    return [name, [input, element("span", { id: `help-${name}`, className: "quiet", textContent: help })]];
  }));
  const found = element("ul", { id: "checked" }), status = element("p", { id: "check-status", className: "quiet" });
  status.setAttribute("role", "status");
  const values = () => Object.fromEntries(Object.entries(inputs).map(([name, [input]]) => [name, input.value]));
  const start = button("Start", async () => {
    const { run } = await call("begin", values());
    location.href = `${run}/#progress`;
  }, { id: "begin", className: "main", disabled: true });
  let latest = 0, timer = 0;
  const check = async () => {
    const mine = ++latest;
    start.disabled = true;
    status.textContent = "Looking at the images ...";
    let reply;
    try {
      reply = await call(`check?${new URLSearchParams(values())}`);
    } catch (error) {
      reply = { ok: false, lines: [error.message] };
    }
    if (mine !== latest) return;
    status.textContent = "";
    found.replaceChildren(...reply.lines.map(line => element("li", { textContent: line, className: line.startsWith("Problem") ? "bad" : "" })));
    start.disabled = !reply.ok;
    return reply;
  };
  for (const [input] of Object.values(inputs)) input.addEventListener("input", () => {
    start.disabled = true;
    clearTimeout(timer);
    timer = setTimeout(check, 500);
  });
  root.replaceChildren(
    element("h1", { textContent: "A new run" }),
    element("p", { textContent: "Type the paths of three folders on this machine." }),
    ...Object.entries(inputs).map(([name, [input, help]]) => element("div", { className: "field" }, element("label", { htmlFor: input.id, textContent: FIELDS[name][0] }), input, help)),
    status, found, element("div", { className: "actions" }, start));
  const reply = await check();
  inputs.out[0].value = reply?.suggested ?? "";
  inputs.source[0].focus();
}
