// The tab Images.
import { element } from "./shared.js";

// Called whenever the tab is shown; `root` is its section.
export async function showImages(root, state) {
  root.replaceChildren(element("p", { textContent: `The images of ${state.title} will be shown here.` }));
}
