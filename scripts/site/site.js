/* Tables know their columns' titles, for narrow windows; the search, which needs no server: its index is a script, loaded when it is asked for. */
"use strict";

for (const table of document.querySelectorAll("main table")) {
  const titles = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  if (titles.length < 3) continue;
  table.classList.add("cards");
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, k) => { cell.dataset.label = titles[k]; });
}

/* Long paths break between their words, short code not at all. */
for (const code of document.querySelectorAll("main p code, main li code, main td code")) {
  if (code.textContent.length < 24) code.classList.add("short");
  else code.replaceChildren(...code.textContent.split(/(?<=[/_.])/).flatMap((part) => [part, document.createElement("wbr")]));
}

for (const each of document.querySelectorAll("main pre")) if (each.scrollWidth > each.clientWidth) each.tabIndex = 0; // it scrolls
const asked = document.getElementById("mkdocs-search-query");
const shown = document.getElementById("mkdocs-search-results");

/* Where a word begins with the term counts; a plural finds its singular. */
const pattern = (term) => new RegExp("(?<![a-z0-9])" + term.replace(/(?<=...)s$/, "").replace(/[^\w\s]/g, "\\$&"), "gi");

const found = (query) => {
  const terms = query.trim().split(/\s+/).filter(Boolean).map(pattern);
  const hits = [];
  for (const each of window.searchIndex) {
    let score = 0, matched = 0;
    for (const term of terms) {
      const place = each.location.includes("#") ? "" : each.location;
      const own = (10 * (`${each.title} ${place} ${place}`.match(term) || []).length) + (4 * (each.page.match(term) || []).length);
      const text = Math.min((each.text.match(term) || []).length, 4);
      matched += own + text > 0;
      score += own + text;
    }
    if (matched) hits.push({ ...each, terms, matched, score: score * each.rank });
  }
  const most = Math.max(0, ...hits.map((hit) => hit.matched));
  return hits.filter((hit) => hit.matched === most).sort((a, b) => b.score - a.score).slice(0, 25);
};

const search = () => {
  shown.replaceChildren();
  if (asked.value.trim().length < 2) return;
  const hits = found(asked.value);
  if (!hits.length) shown.textContent = shown.dataset.noResultsText;
  for (const hit of hits) {
    const article = document.createElement("article"), link = document.createElement("a"), text = document.createElement("p");
    link.href = `${base_url}/${hit.location}`;
    link.textContent = hit.title === hit.page ? hit.page : `${hit.page}: ${hit.title}`;
    const at = Math.max(0, hit.text.search(hit.terms[0]) - 60);
    text.textContent = (at ? "…" : "") + hit.text.slice(at, at + 200);
    article.append(link, text);
    shown.append(article);
  }
};

asked.form.addEventListener("submit", (event) => event.preventDefault());
asked.addEventListener("input", () => {
  if (window.searchIndex) return search();
  if (document.getElementById("search-index")) return undefined;
  const index = document.createElement("script");
  index.id = "search-index";
  index.src = `${base_url}/search/index.js`;
  index.onload = search;
  return document.head.append(index);
});
