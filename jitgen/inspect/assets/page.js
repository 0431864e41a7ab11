"use strict";
// Lines of source, PTX and SASS that belong together carry the same data-l: the line of the source.

const $$ = (selector, inside = document) => [...inside.querySelectorAll(selector)];

class Viewer {
  constructor(root) {
    this.root = root;
    this.panes = $$(".code", root);
    this.output = root.querySelector("output");
    this.input = root.querySelector("input");
    this.byLine = new Map(); // line of the source -> its lines in each pane
    this.panes.forEach((pane, at) => {
      for (const line of pane.children) {
        const key = line.dataset.l;
        if (!key) continue;
        if (!this.byLine.has(key)) this.byLine.set(key, this.panes.map(() => []));
        this.byLine.get(key)[at].push(line);
      }
    });
    this.lit = [];
    this.pinned = null;
    this.matches = [];
    this.match = -1;
    this.current = new Map();
    root.addEventListener("mouseover", (event) => this.hover(event.target.closest(".code p")));
    root.addEventListener("mouseleave", () => this.light(this.pinned));
    for (const pane of this.panes) {
      pane.addEventListener("click", (event) => this.click(pane, event.target.closest("p")));
      pane.addEventListener("keydown", (event) => this.key(pane, event));
    }
    this.input.addEventListener("input", () => this.search());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.next(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { this.input.value = ""; this.search(); }
    });
    root.querySelector(".next").addEventListener("click", () => this.next(1));
    root.querySelector(".unpin").addEventListener("click", () => this.pin(null));
  }

  hover(line) {
    if (this.pinned === null && line) this.light(line.dataset.l || null);
  }

  light(key) {
    for (const line of this.lit) line.classList.remove("on", "pin");
    this.lit = [];
    if (key === null || !this.byLine.has(key)) { this.tell(""); return; }
    const found = this.byLine.get(key);
    this.lit = found.flat();
    for (const line of this.lit) line.classList.add(this.pinned === null ? "on" : "pin");
    const counts = found.map((lines, at) => `${lines.length} ${this.panes[at].dataset.title}`);
    const has = found.slice(1).some((lines) => lines.length);
    this.tell(`line ${key}: ${has ? counts.slice(1).join(", ") : "no instructions"}`);
  }

  click(pane, line) {
    if (!line) return;
    this.select(pane, line);
    const key = line.dataset.l || null;
    this.pin(key === this.pinned ? null : key, pane);
  }

  pin(key, from = null) {
    this.pinned = key;
    this.light(key);
    if (key === null || !this.byLine.has(key)) return;
    this.byLine.get(key).forEach((lines, at) => {
      if (this.panes[at] !== from && lines.length) this.show(this.panes[at], lines[0]);
    });
  }

  show(pane, line) {
    pane.scrollTop = line.offsetTop - pane.clientHeight / 3;
  }

  select(pane, line) {
    const before = this.current.get(pane);
    if (before) before.classList.remove("at");
    line.classList.add("at");
    this.current.set(pane, line);
  }

  key(pane, event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 };
    if (event.key in steps) {
      event.preventDefault();
      const lines = pane.children;
      const now = this.current.get(pane);
      const at = now ? [...lines].indexOf(now) + steps[event.key] : 0;
      const line = lines[Math.max(0, Math.min(lines.length - 1, at))];
      this.select(pane, line);
      const top = line.offsetTop - pane.scrollTop;
      if (top < 0 || top > pane.clientHeight - 40) this.show(pane, line);
      this.hover(line);
    } else if (event.key === "Enter") {
      this.click(pane, this.current.get(pane));
    } else if (event.key === "Escape") {
      this.pin(null);
    } else if (event.key === "n" || event.key === "N") {
      this.next(event.key === "n" ? 1 : -1);
    } else if (event.key === "/") {
      event.preventDefault();
      this.input.focus();
    }
  }

  search() {
    for (const line of this.matches) line.classList.remove("match");
    const word = this.input.value.toLowerCase();
    this.match = -1;
    this.matches = word.length < 2 ? [] : this.panes.flatMap(
      (pane) => [...pane.children].filter((line) => line.textContent.toLowerCase().includes(word)));
    for (const line of this.matches) line.classList.add("match");
    this.tell(word.length < 2 ? "" : `${this.matches.length} lines with it`);
  }

  next(step) {
    if (!this.matches.length) return;
    const count = this.matches.length;
    this.match = (this.match + step + count + (this.match < 0 && step < 0 ? 1 : 0)) % count;
    const line = this.matches[this.match];
    this.select(line.parentElement, line);
    this.show(line.parentElement, line);
    this.tell(`${this.match + 1} of ${count}`);
  }

  tell(text) {
    this.output.textContent = text;
  }
}

const viewers = new Map($$(".viewer").map((root) => [root.dataset.kernel, new Viewer(root)]));

function choose(button) {
  for (const other of $$(".choice button")) {
    const isChosen = other === button;
    other.setAttribute("aria-pressed", String(isChosen));
    document.getElementById(other.dataset.shows).hidden = !isChosen;
  }
}
for (const button of $$(".choice button")) button.addEventListener("click", () => choose(button));

function follow() { // #k0-962: kernel 0, line 962
  const found = /^#k(\d+)-(\d+)$/.exec(location.hash);
  if (!found || !viewers.has(found[1])) return;
  const button = document.querySelector(`.choice button[data-shows="k${found[1]}"]`);
  if (button) choose(button);
  const viewer = viewers.get(found[1]);
  viewer.root.scrollIntoView();
  viewer.pin(found[2]);
}
addEventListener("hashchange", follow);

for (const link of $$("nav a")) { // of two kernels, to the section of the one that is shown
  link.addEventListener("click", (event) => {
    const name = link.hash.slice(1);
    const shown = $$("article").find((article) => !article.hidden);
    const section = shown && $$(":scope > section[id]", shown).find(
      (each) => each.id === name || each.id.startsWith(`${name}-`));
    if (!section) return;
    event.preventDefault();
    section.scrollIntoView();
  });
}
if ($$(".choice button").length) choose($$(".choice button")[0]);
follow();

for (const input of $$("input.filter")) { // rows of a table
  const rows = $$("tbody tr", document.getElementById(input.dataset.filters));
  input.addEventListener("input", () => {
    const word = input.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(word);
      shown += row.hidden ? 0 : 1;
    }
    input.closest(".tools").querySelector("output").textContent = `${shown} of ${rows.length}`;
  });
}
