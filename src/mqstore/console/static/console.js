// What scripts add: everything works without them.
"use strict";
document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches && box.matches("[data-choose-all]")) {
    for (const each of box.closest("form").querySelectorAll('tr:not([hidden]) input[name="place"]:not(:disabled)')) each.checked = box.checked;
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
// On a phone each row is a card: its cells show the titles of their columns.
const titled = () => {
  for (const table of document.querySelectorAll("main table:not(.titled)")) {
    const titles = [...table.querySelectorAll("thead th")].map((each) => each.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, place) => {
        const hidden = table.querySelectorAll("thead th")[place]?.querySelector(".hidden");
        cell.dataset.title = hidden ? "" : titles[place] || "";
      });
    }
    table.classList.add("titled");
  }
};
// Every table is sorted by the titles of its columns; a long one is filtered, and shown page by page.
const PAGE = 50, LONG = 10;
const UNITS = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ms: 0.001, min: 60, h: 3600 };
const make = (name, given, ...content) => {
  const made = Object.assign(document.createElement(name), given);
  made.append(...content);
  return made;
};
const valueOf = (text) => {
  const number = /^(-?[\d,]+(?:\.\d+)?)(?:\s*([A-Za-z%]+))?$/.exec(text);
  return number ? Number(number[1].replaceAll(",", "")) * (UNITS[number[2]] || 1) : text;
};
const missing = (value) => value === "" || value === "-";
const compare = (one, other, descending) => {
  if (missing(one) || missing(other)) return missing(one) - missing(other); // last, whichever way the others are sorted
  return (descending ? -1 : 1) * (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true }));
};
const equip = (table) => {
  const body = table.tBodies[0], heads = [...table.querySelectorAll("thead th")];
  const original = body ? [...body.rows] : [];
  if (original.length < 2) return;
  const region = table.closest(".scroll") || table;
  const caption = table.caption ? table.caption.textContent : "this table";
  const page = Math.min(Number(table.dataset.page) || PAGE, window.matchMedia("(max-width: 40rem)").matches ? 20 : PAGE);
  let rows = original, sorted = -1, down = false, first = 0;
  const bar = make("div", { className: "tools" });
  const field = make("input", { type: "search", autocomplete: "off", spellcheck: false });
  const told = make("span", { className: "quiet" });
  told.setAttribute("role", "status");
  const earlier = make("button", { type: "button", className: "plain", textContent: "Previous rows" });
  const later = make("button", { type: "button", className: "plain", textContent: "Next rows" });
  const draw = () => {
    const wanted = field.value.trim().toLowerCase();
    const found = rows.filter((row) => !wanted || row.textContent.toLowerCase().includes(wanted));
    if (first >= found.length) first = 0;
    const shown = new Set(found.slice(first, first + page));
    for (const row of original) {
      row.hidden = !shown.has(row);
      for (const each of row.querySelectorAll('input[name="shown"]')) each.disabled = row.hidden; // "all shown" is what is seen
    }
    earlier.hidden = first === 0;
    later.hidden = first + page >= found.length;
    const of = wanted ? `${found.length.toLocaleString("en")} of ${original.length.toLocaleString("en")}` : original.length.toLocaleString("en");
    told.textContent = found.length > page ? `rows ${first + 1} to ${first + shown.size} of ${of}` : wanted ? `${of} rows` : "";
  };
  const sort = (column, descending) => {
    sorted = column; down = descending; first = 0;
    rows = [...original];
    if (column >= 0) {
      const values = new Map(original.map((row) => [row, valueOf(row.cells[column]?.innerText.trim() || row.cells[column]?.textContent.trim() || "")]));
      rows.sort((one, other) => compare(values.get(one), values.get(other), descending));
    }
    body.append(...rows);
    heads.forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
    });
    draw();
  };
  const choice = make("select", {}, make("option", { value: "", textContent: "as listed" }));
  heads.forEach((head, place) => {
    if (head.querySelector("*") || !head.textContent.trim()) return;
    const title = head.textContent.trim(), number = head.classList.contains("n");
    const button = make("button", { type: "button", className: "sort", textContent: title, title: `Sort these rows by ${title}` });
    button.addEventListener("click", () => (sorted !== place ? sort(place, number) : down === number ? sort(place, !number) : sort(-1, false)));
    head.replaceChildren(button);
    choice.append(make("option", { value: String(place), textContent: title }));
  });
  choice.addEventListener("change", () => (choice.value === "" ? sort(-1, false) : sort(Number(choice.value), heads[choice.value].classList.contains("n"))));
  const filter = make("label", {}, "Filter these rows ", field), order = make("label", { className: "order" }, "Sort by ", choice);
  filter.append(make("span", { className: "hidden", textContent: ` of ${caption}` }));
  order.append(make("span", { className: "hidden", textContent: `, rows of ${caption}` }));
  field.addEventListener("input", () => { first = 0; draw(); });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); }); // a form around it stays
  earlier.addEventListener("click", () => { first = Math.max(0, first - page); draw(); });
  later.addEventListener("click", () => { first += page; draw(); });
  if (original.length > LONG) bar.append(filter);
  bar.append(order);
  region.before(bar);
  if (original.length > LONG) region.after(make("div", { className: "tools" }, told, earlier, later));
  if (original.length <= LONG) bar.classList.add("narrow");
  draw();
};
const whole = () => {
  titled();
  for (const table of document.querySelectorAll("main table:not(.equipped)")) {
    table.classList.add("equipped");
    equip(table);
  }
};
document.addEventListener("htmx:afterSettle", whole);
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", whole); else whole();
