// The tabs Progress and Next run.
import { element } from "./shared.js";

export async function showProgress(root) {
  root.replaceChildren(element("p", { textContent: "This run is finished." }));
}

export async function showNext(root, state) {
  root.replaceChildren(element("p", {}, "To learn from the answers: ", element("code", { textContent: state.command })));
}
