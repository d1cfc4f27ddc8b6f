// What scripts add: everything works without them.
"use strict";
document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches && box.matches("[data-choose-all]")) {
    for (const each of box.closest("form").querySelectorAll('input[name="place"]:not(:disabled)')) each.checked = box.checked;
  }
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest && event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const field = document.querySelector("main form.filters input:not([type=hidden]):not([type=radio])");
    if (field) { event.preventDefault(); field.focus(); }
  }
});
for (const field of document.querySelectorAll("input[data-browser-zone]")) {
  if (!field.value) field.value = Intl.DateTimeFormat().resolvedOptions().timeZone || "";
}
