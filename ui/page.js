"use strict";
// Text from outside goes into the page as text only: through el and textContent.

const $ = (id) => document.getElementById(id);
const token = document.querySelector("meta[name=relock-token]").content;
const locks = new Map(); // by name, as the server sends them
const heat = new Map(); // by name: waiting times {at, ms} of the last minute
let head = { circles: [], total: 0, most: 0 }; // the last look
let clock = 0; // of the server, minus ours
let order = []; // the locks of the list
let view = "now";
let open = null; // of the panel: {lock, holder}
let began = 0; // the first look
let past = []; // the history, oldest first
let read = ""; // the last entry of it

function el(tag, props, ...kids) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) e.style.setProperty(k, v);
    else if (value === true) e.setAttribute(key, "");
    else if (value !== false && value != null) e.setAttribute(key, value);
  }
  e.append(...kids.filter((kid) => kid != null && kid !== false));
  return e;
}

// Characters that cannot be seen, or turn the text around them, show as their numbers.
const shown = (s) => s.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
const now = () => Date.now() + clock;
const plural = (n, one, many) => n.toLocaleString("en") + " " + (n === 1 ? one : many);

function span(ms) {
  const s = Math.max(0, ms) / 1000, unit = (n, word) => n + "\u00a0" + word; // a line does not end between
  if (s < 1) return unit(Math.round(s * 1000), "ms");
  if (s < 10) return unit(s.toFixed(1), "s");
  if (s < 60) return unit(Math.floor(s), "s");
  if (s < 3600) return unit(Math.floor(s / 60), "min") + " " + unit(Math.floor(s % 60), "s");
  return unit(Math.floor(s / 3600), "h") + " " + unit(Math.floor((s % 3600) / 60), "min");
}

function time(ms) {
  const d = new Date(ms);
  const clock = d.toTimeString().slice(0, 8);
  return now() - ms < 72e6 ? clock : d.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + " " + clock;
}

// A holder is <owner>/<id>:<number>, or without an owner.
function who(holder) {
  const client = holder.slice(0, holder.lastIndexOf(":")) || holder;
  const slash = client.indexOf("/");
  const owner = client.slice(0, Math.max(0, slash));
  const id = client.slice(slash + 1);
  return { client, owner, id, host: owner.includes("@") ? owner.slice(owner.indexOf("@") + 1) : "", label: shown(owner || id.slice(0, 8)) };
}

// ---- What the server sends

// connect reads the looks. The server ends its answer at times, and the browser asks again.
let silence = 0; // a timer; 0: the server answers
function connect() {
  const source = new EventSource("events");
  source.onmessage = (e) => {
    clearTimeout(silence);
    silence = 0;
    look(JSON.parse(e.data));
  };
  source.onerror = () => {
    silence = silence || setTimeout(() => say("The server does not answer. Trying again…", "bad"), 5000);
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again
    fetch(".", { method: "HEAD", redirect: "manual" }).then((r) => {
      if (r.type === "opaqueredirect" || (r.status >= 400 && r.status < 500 && r.status !== 429)) lockOut();
      else setTimeout(connect, 3000);
    }, () => setTimeout(connect, 3000));
  };
}

// lockOut shows nothing any more to a person who may not look.
function lockOut() {
  locks.clear();
  heat.clear();
  past = [];
  document.title = "Locks";
  document.body.replaceChildren(el("main", { class: "out" }, el("h1", {}, "You may not see the locks"),
    el("p", {}, "Load this page again, to log in.")));
}

function look(next) {
  const before = head;
  head = next;
  clock = next.at - Date.now();
  began = began || next.at;
  const old = next.whole ? new Map(locks) : locks;
  if (next.whole) locks.clear();
  for (const name of next.gone || []) locks.delete(name);
  for (const lock of next.changed || []) {
    const full = (old.get(lock.name) || {}).full || {};
    lock.full = {}; // the longest lease of each holder, for the bars
    for (const h of lock.holders || []) lock.full[h.holder] = Math.max(full[h.holder] || 0, h.until - next.at, 1);
    locks.set(lock.name, lock);
  }
  const since = before.at ? Math.min(next.at - before.at, 60000) : 0;
  for (const lock of locks.values()) {
    if (lock.waiters) heat.set(lock.name, (heat.get(lock.name) || []).concat({ at: next.at, ms: lock.waiters * since }));
  }
  for (const [name, times] of heat) {
    const rest = times.filter((t) => t.at > next.at - 60000);
    if (rest.length) heat.set(name, rest);
    else heat.delete(name);
  }
  say(next.trouble ? "Trouble with the store: " + shown(next.trouble) : "", "bad");
  if (next.history && next.past && next.past !== read) readOn();
  draw();
}

// readOn reads the entries of the history that are new.
let reading = false;
function readOn() {
  if (reading) return;
  reading = true;
  fetch("past?after=" + encodeURIComponent(read)).then((r) => (r.ok ? r.json() : Promise.reject(r.status))).then((part) => {
    reading = false;
    past = past.concat(part.entries).slice(-10000);
    if (part.last) read = part.last;
    if (part.entries.length) readOn();
    draw();
  }, () => { reading = false; });
}

function say(text, kind) {
  $("status").textContent = text || "Looks every " + span(Math.max(head.pause || 0, 1000));
  $("status").className = text ? kind : "";
}

// ---- Now

const longest = (lock) => Math.min(...(lock.queue || []).map((w) => w.since || Infinity));
const isRed = (lock, circles = head.circles) => circles.some((c) => c.some((step) => step.lock === lock.name));

function draw() {
  alerts();
  const text = $("find").value.trim().toLowerCase();
  const has = (s) => s.toLowerCase().includes(text);
  order = [...locks.values()].filter((l) => !text || has(l.name) || (l.holders || []).some((h) => has(h.holder)) || (l.queue || []).some((w) => has(w.holder)));
  for (const l of order) l.wait = longest(l);
  order.sort((a, b) => isRed(b) - isRed(a) || (a.wait === b.wait ? (b.waiters || 0) - (a.waiters || 0) : a.wait - b.wait) || (a.name < b.name ? -1 : 1));
  const waiting = order.reduce((n, l) => n + (l.waiters || 0), 0);
  const first = order.reduce((t, l) => Math.min(t, l.wait), Infinity);
  $("sum").textContent = plural(order.length, "lock", "locks") + " in use · " + (waiting ? plural(waiting, "call waits", "calls wait") : "nobody waits")
    + (first < Infinity ? " · the longest for " + span(now() - first) : "")
    + (head.total > head.most ? " · these are the first " + head.most.toLocaleString("en") + " of " + head.total.toLocaleString("en") + " by name" : "");
  $("none").hidden = order.length > 0;
  $("none").textContent = text ? "Nothing here is called that." : "Nobody has a lock, and nobody waits for one.";
  document.title = (head.circles.length ? "Circle! " : "") + "Locks";
  $("nohistory").hidden = head.history || (view !== "history" && view !== "leaders");
  if (view === "now") rows();
  if (view === "hot") hot();
  if (view === "history") lanes();
  if (view === "leaders") calendar();
  if (open) panel();
}

// alerts shows circles of waits, and what was lost in the last ten minutes.
let seenCircles = { at: 0, circles: [] };
function alerts() {
  if (head.circles.length) seenCircles = { at: head.at, circles: head.circles };
  const all = [];
  if (head.at - seenCircles.at < 60000) {
    for (const circle of seenCircles.circles) {
      const steps = circle.flatMap((step, i) => [i ? "; " : "", el("b", {}, who(step.holder).label), " waits for ", el("b", {}, shown(step.lock))]);
      all.push(el("p", { class: "circle" }, el("strong", {}, head.circles.length ? "They wait for each other: " : "They waited for each other: "), ...steps, "."));
    }
  }
  const lost = past.filter((e) => e.kind === "lost" && e.at > now() - 600000);
  for (const e of lost.slice(-3).reverse()) {
    all.push(el("p", { class: "loss" }, el("strong", {}, "Lost "), el("b", {}, shown(e.name)), " by ", el("b", {}, who(e.holder).label), " at " + time(e.at) + ": " + why(e.why)));
  }
  if (lost.length > 3) all.push(el("p", { class: "loss" }, plural(lost.length - 3, "more loss", "more losses") + " in the last ten minutes"));
  const text = all.map((e) => e.textContent).join("\n");
  if (text !== $("alerts").dataset.text) $("alerts").replaceChildren(...all); // said once
  $("alerts").dataset.text = text;
}

const reasons = {
  expired: "its lease ran out before it was renewed", taken: "the store does not have it any more", max_hold: "it was held for longer than allowed",
  abandoned: "its work was cancelled, and nobody gave it back", leaked: "nobody gave it back",
};
const why = (reason) => reasons[reason] || reason;

const kept = new Map(); // the rows of the list by name
const rowHeight = () => (innerWidth <= 640 ? 176 : 72);

// rows draws the part of the list that can be seen.
function rows() {
  const list = $("list"), high = rowHeight();
  list.style.height = order.length * high + "px";
  const top = -list.getBoundingClientRect().top;
  const from = Math.max(0, Math.floor(top / high) - 4), to = Math.min(order.length, Math.ceil((top + innerHeight) / high) + 4);
  const focused = document.activeElement, at = focused && list.contains(focused) ? [focused.closest(".row").dataset.name, focused.dataset.at] : null;
  const seen = [], names = new Set();
  for (let i = from; i < to; i++) {
    const lock = order[i];
    let row = kept.get(lock.name);
    if (!row) kept.set(lock.name, (row = el("div", { class: "row", role: "listitem", "data-name": lock.name })));
    row.style.transform = "translateY(" + i * high + "px)";
    row.setAttribute("aria-posinset", i + 1);
    row.setAttribute("aria-setsize", order.length);
    row.classList.toggle("red", isRed(lock));
    fill(row, lock);
    seen.push(row);
    names.add(lock.name);
  }
  for (const name of kept.keys()) if (!names.has(name)) kept.delete(name);
  if (seen.length !== list.children.length || seen.some((row, i) => row !== list.children[i])) list.replaceChildren(...seen);
  if (at && !list.contains(document.activeElement)) {
    const row = kept.get(at[0]), same = row && row.querySelector("[data-at='" + at[1] + "']");
    if (same) same.focus({ preventScroll: true });
  }
  tick();
}

// fill draws a lock, if it has changed: who has it, its name, who waits for it.
function fill(row, lock) {
  if (row.lock === lock) return;
  row.lock = lock;
  const holders = lock.holders || [], queue = lock.queue || [], waiters = Math.max(lock.waiters || 0, queue.length);
  const have = el("div", { class: "have" }, ...holders.slice(0, 2).map((h, i) => holderBox(lock, h, i)),
    holders.length > 2 && el("span", { class: "more" }, "and " + (holders.length - 2) + " more"), !holders.length && el("span", { class: "more" }, "nobody"));
  have.classList.toggle("two", holders.length > 1);
  const name = el("button", { class: "lock", "data-at": "lock", onclick: () => show(lock.name), "aria-label": "Lock " + shown(lock.name) },
    el("span", { class: "name" }, shown(lock.name)), el("small", {}, lock.kind));
  const line = el("div", { class: "queue" }, ...queue.slice(0, 3).map((w, i) => el("button", {
    class: "waiter", "data-at": "waiter" + i, onclick: () => show(lock.name, w.holder), "aria-label": who(w.holder).label + " waits",
  }, el("span", { class: "name" }, who(w.holder).label), el("small", { "data-since": w.since }))),
  waiters > Math.min(3, queue.length) && el("span", { class: "more" }, (queue.length ? "and " : "") + plural(waiters - Math.min(3, queue.length), queue.length ? "more" : "call waits", queue.length ? "more" : "calls wait")));
  row.replaceChildren(have, el("i", { class: "arrow has" }), name, el("i", { class: "arrow waits" + (waiters ? "" : " free") }), line);
}

function holderBox(lock, h, i) {
  const w = who(h.holder);
  return el("button", { class: "holder", "data-at": "holder" + i, onclick: () => show(lock.name, h.holder), "aria-label": w.label + " has " + shown(lock.name) },
    el("span", { class: "name" }, w.label), h.until ? bar(lock, h) : el("small", {}, "no lease"));
}

// bar is a lease that runs out, and is full again when it was renewed.
function bar(lock, h) {
  return el("span", { class: "lease", "data-until": h.until, "data-full": (lock.full || {})[h.holder] || 1 }, el("i"), el("small"));
}

// tick moves the leases and the waits that are on the page.
function tick() {
  const t = now();
  for (const lease of document.querySelectorAll(".lease")) {
    const left = Math.max(0, lease.dataset.until - t);
    lease.firstChild.style.setProperty("--part", Math.min(1, left / lease.dataset.full));
    lease.lastChild.textContent = span(left >= 10000 ? left : Math.round(left / 1000) * 1000 || left);
    lease.classList.toggle("low", left / lease.dataset.full < 0.25);
  }
  for (const e of document.querySelectorAll("[data-since]")) e.textContent = +e.dataset.since ? span(t - e.dataset.since) : "first";
  const first = order.reduce((least, l) => Math.min(least, l.wait), Infinity);
  for (const [name, row] of kept) {
    const wait = (locks.get(name) || {}).wait;
    row.style.setProperty("--thick", wait < Infinity ? Math.min(8, 1.5 + Math.log2(1 + Math.max(0, t - wait) / 1000)) + "px" : "1.5px");
    row.classList.toggle("longest", wait < Infinity && wait === first);
  }
}

// ---- The panel

function show(lock, holder) {
  open = { lock, holder, from: document.activeElement };
  panel(true);
}

function hide() {
  const from = open && open.from;
  open = null;
  $("panel").hidden = true;
  if (from && from.isConnected) from.focus();
}

function facts(pairs) {
  return el("dl", {}, ...pairs.filter((p) => p && p[1] !== "" && p[1] != null).flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
}

// panel draws the lock that is open, with the one process that was chosen, or with all of its holders.
function panel(fresh) {
  const lock = locks.get(open.lock) || { name: open.lock, kind: "", holders: [], queue: [] };
  const state = JSON.stringify([lock, open.holder]);
  if (!fresh && state === $("panel").dataset.state) return;
  $("panel").dataset.state = state;
  const chosen = (lock.holders || []).filter((h) => !open.holder || h.holder === open.holder);
  const parts = chosen.map((h) => {
    const w = who(h.holder);
    return el("section", {}, el("h3", {}, w.label), facts([
      ["Owner", shown(w.owner)], ["Host", shown(w.host)], ["Process", shown(w.id)], ["Has it since", (h.before ? "before " : "") + time(h.since)],
      ["May", { shared: "read", exclusive: lock.kind === "read-write lock" ? "write" : "" }[h.mode] || ""], ["Entered", h.count > 1 ? h.count + " times, nested" : ""],
      ["Lease", h.until ? bar(lock, h) : "none"], ["Last token", lock.token || ""],
    ]));
  });
  const client = open.holder && who(open.holder).client;
  const others = client ? [...locks.values()].filter((l) => l.name !== lock.name) : [];
  const link = (l) => el("li", {}, el("button", { class: "link", onclick: () => show(l.name) }, shown(l.name)));
  const has = others.filter((l) => (l.holders || []).some((h) => who(h.holder).client === client)).slice(0, 50);
  const waits = [...locks.values()].filter((l) => client && (l.queue || []).some((w) => who(w.holder).client === client)).slice(0, 50);
  if (client && !chosen.length) parts.push(el("section", {}, el("h3", {}, who(open.holder).label), facts([["Owner", shown(who(open.holder).owner)], ["Host", shown(who(open.holder).host)], ["Process", shown(who(open.holder).id)]])));
  const queue = lock.queue || [];
  const body = [
    el("button", { class: "close", "aria-label": "Close", onclick: hide }, "×"),
    el("h2", {}, shown(lock.name)), el("p", { class: "kind" }, lock.holders && lock.holders.length ? lock.kind : lock.kind ? lock.kind + ", free just now" : "free: nobody has it, and nobody waits"), ...parts,
    has.length && el("section", {}, el("h3", {}, "The same process also has"), el("ul", {}, ...has.map(link))),
    waits.length && el("section", {}, el("h3", {}, "The same process waits for"), el("ul", {}, ...waits.map(link))),
    queue.length && el("section", {}, el("h3", {}, "In line"), el("ol", {}, ...queue.map((w) => el("li", {}, who(w.holder).label + (w.shared ? ", to read" : "") + " ", el("small", { "data-since": w.since })))),
      lock.waiters > queue.length && el("p", {}, "and " + plural(lock.waiters - queue.length, "more", "more"))),
    head.history && el("p", {}, el("button", { onclick: () => { $("lane-lock").value = lock.name; go("history"); hide(); } }, "Who had it before")),
    token && !lock.odd && (lock.holders || []).length > 0 && actions(lock),
  ];
  const typed = $("panel").querySelector("#typed"), keep = !fresh && typed && [typed.value, document.activeElement === typed, $("acted").textContent];
  const closing = !fresh && document.activeElement && document.activeElement.className === "close";
  $("panel").replaceChildren(...body.filter(Boolean));
  $("panel").hidden = false;
  if (keep && $("typed")) {
    $("typed").value = keep[0];
    $("typed").dispatchEvent(new Event("input"));
    $("acted").textContent = keep[2];
    if (keep[1]) $("typed").focus();
  }
  if (fresh || closing) $("panel").querySelector(".close").focus();
  tick();
}

function actions(lock) {
  const typed = el("input", { id: "typed", autocomplete: "off", spellcheck: "false" }), said = el("p", { id: "acted", role: "status" });
  const act = (what) => el("button", { class: what, disabled: true, onclick: () => {
    said.textContent = "Asking…";
    fetch("act", { method: "POST", headers: { "X-Relock-Token": token }, body: JSON.stringify({ lock: lock.name, typed: typed.value, do: what, holder: lock.holders[0].holder }) })
      .then((r) => r.text(), () => "The server does not answer.").then((text) => { ($("acted") || said).textContent = text.trim() === "asked" ? "Its holder was asked." : text.trim() === "taken" ? "Taken from its holder." : text; });
  } }, what === "ask" ? "Ask for it" : "Force unlock");
  const buttons = [act("ask"), act("unlock")];
  typed.addEventListener("input", () => buttons.forEach((b) => { b.disabled = typed.value !== lock.name; }));
  return el("section", { class: "act" }, el("h3", {}, "Step in"),
    el("p", {}, "Ask: its holder hears that somebody wants the lock, and may go on. Force unlock: its holder loses the lock at once, but its work may go on for a moment beside that of the next one."),
    el("label", {}, "The name of the lock, to confirm ", typed), el("p", {}, ...buttons), said);
}

// ---- Hot

function hot() {
  if ($("hot-list").contains(document.activeElement)) return; // what is read does not move
  const watched = Math.min(60000, head.at - began);
  $("hot-since").textContent = watched < 60000 ? "This page has looked for " + span(watched) + " so far." : "";
  const sums = [...heat].map(([name, times]) => ({ name, times, ms: times.reduce((n, t) => n + t.ms, 0) })).filter((h) => h.ms > 0).sort((a, b) => b.ms - a.ms).slice(0, 50);
  $("hot-list").replaceChildren(...sums.map((h) => {
    const waiters = (locks.get(h.name) || {}).waiters || 0;
    return el("div", { class: "hot", role: "listitem" }, el("button", { class: "lock", onclick: () => show(h.name) }, el("span", { class: "name" }, shown(h.name))),
      sparkline(h.times), el("b", {}, span(h.ms)), el("small", {}, waiters ? plural(waiters, "waits", "wait") + " now" : "nobody waits now"));
  }), sums.length ? "" : el("p", { class: "none" }, "Nobody has waited."));
}

function sparkline(times) {
  const buckets = new Array(30).fill(0);
  for (const t of times) buckets[Math.min(29, Math.max(0, 29 - Math.floor((head.at - t.at) / 2000)))] += t.ms;
  const top = Math.max(...buckets, 1), ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg"), line = document.createElementNS(ns, "polyline");
  svg.setAttribute("viewBox", "0 0 120 28");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "Waiting over the last minute");
  line.setAttribute("points", "0,27 " + buckets.map((b, i) => (i * 120) / 29 + "," + (27 - (b / top) * 25)).join(" ") + " 120,27");
  svg.append(line);
  return svg;
}

// ---- History

const laneOf = (e) => who(e.holder).client;

// track is one lane: bars between from and to. A bar is {at, end, kind, text}.
function track(label, bars, from, to, onpick) {
  const place = (t) => ((Math.min(to, Math.max(from, t)) - from) / (to - from)) * 100;
  return el("div", { class: "lane" }, el("span", { class: "name", title: label }, label), el("div", { class: "track" }, ...bars.slice(-400).map((b) => el(b.kind === "wait" ? "i" : "button", {
    class: "bar " + b.kind, title: b.text, "aria-label": b.text, onclick: () => onpick(b), onfocus: () => onpick(b),
    style: { left: place(b.at) + "%", width: "max(3px, " + (place(b.end) - place(b.at)) + "%)" },
  }))));
}

function axis(from, to) {
  return el("div", { class: "lane axis", "aria-hidden": "true" }, el("span"), el("div", { class: "track" }, ...[0, 1, 2, 3, 4].map((i) => el("span", { style: { left: i * 25 + "%" } }, time(from + ((to - from) * i) / 4)))));
}

// bars returns what is known of a lock: holds that have ended, waits, and holds that go on.
function bars(name) {
  const all = past.filter((e) => e.name === name && e.kind !== "began" && e.kind !== "gap").map((e) => {
    const took = span(e.took || 0), by = who(e.holder).label, end = e.at, at = end - (e.took || 0);
    const text = e.kind === "wait" ? by + " waited " + took + ", until " + time(end) + ": " + e.why
      : by + " had it for " + took + ", from " + time(at) + (e.kind === "lost" ? ", and lost it: " + why(e.why) : e.kind === "closed" ? ", and its client was closed" : "") + (e.token ? " (token " + e.token + ")" : "");
    const kind = e.kind === "wait" ? "wait" : e.kind !== "held" ? "lost" : e.ttl && e.took > 2 * e.ttl && !e.leader ? "long" : "held";
    return { at, end, kind, text, lane: laneOf(e), by };
  });
  const lock = locks.get(name);
  for (const h of (lock && lock.holders) || []) {
    all.push({ at: h.since, end: now(), kind: "open", text: who(h.holder).label + " has it now, since " + (h.before ? "before " : "") + time(h.since), lane: laneOf(h), by: who(h.holder).label });
  }
  return all;
}

const missingIn = (from) => past.reduce((n, e) => n + (e.kind === "gap" && e.at > from ? e.missing : 0), 0);

function lanes() {
  if ($("lanes").contains(document.activeElement) || !head.history) return; // what is read does not move
  const names = [...new Set(past.map((e) => e.name).filter(Boolean).reverse())].slice(0, 500);
  if ($("names").children.length !== names.length) $("names").replaceChildren(...names.map((n) => el("option", { value: n })));
  if (!$("lane-lock").value && names.length && document.activeElement !== $("lane-lock")) $("lane-lock").value = names[0];
  const name = $("lane-lock").value, to = now(), from = to - +$("lane-span").value, all = bars(name);
  const about = el("output", { class: "about" });
  const said = (b) => {
    const before = all.filter((o) => o.kind !== "wait" && o.end <= b.at).reduce((last, o) => Math.max(last, o.end), 0);
    about.textContent = b.text + (before ? "; free for " + span(b.at - before) + " before" : "");
  };
  const byLane = Map.groupBy(all.filter((b) => b.end > from), (b) => b.lane);
  const missing = missingIn(from);
  $("lanes").replaceChildren(...[...byLane.values()].slice(0, 100).map((group) => track(group[0].by, group, from, to, said)), byLane.size ? axis(from, to) : el("p", { class: "none" }, "Nothing is known of this lock in this time."),
    about, missing ? el("p", { class: "loss" }, plural(missing, "entry is", "entries are") + " missing: too much happened at once, or Redis was away.") : "");
  const at = $("lane-at").value;
  if (!at) { $("lane-who").textContent = ""; return; }
  const day = new Date(to);
  day.setHours(...at.split(":").map(Number), 0);
  if (at.split(":").length > 2) day.setSeconds(+at.split(":")[2]);
  const moment = day > to ? day - 864e5 : +day; // of yesterday
  const had = all.filter((b) => b.kind !== "wait" && b.at <= moment + 999 && b.end >= moment);
  $("lane-who").textContent = time(moment) + ": " + (had.length ? had.map((b) => b.text).join("; ") : "nobody, as far as is known");
}

// ---- Leaders and periods of once

function calendar() {
  if ($("calendar").contains(document.activeElement) || !head.history) return;
  const to = now(), from = to - 864e5, rows = new Map();
  const has = (e) => ((locks.get(e.name) || {}).holders || []).some((h) => h.holder === e.holder);
  const special = past.filter((e) => e.at > from && (e.leader || /^once:.*@[0-9a-zµ.]+#\d+$/.test(e.name)) && e.kind !== "wait");
  const ended = new Set(special.filter((e) => e.kind !== "began").map((e) => e.name + "\n" + e.holder));
  const add = (e, bar) => { const row = e.leader ? e.name : e.name.slice(5, e.name.lastIndexOf("#")); rows.set(row, (rows.get(row) || []).concat(bar)); };
  for (const e of special) {
    const by = who(e.holder).label, what = e.leader ? " led" : " ran";
    if (e.kind !== "began") add(e, { at: e.at - (e.took || 0), end: e.at, kind: e.kind === "held" ? "held" : "lost", text: by + what + " for " + span(e.took || 0) + ", until " + time(e.at) + (e.kind === "held" ? "" : ", interrupted: " + (e.kind === "lost" ? why(e.why) : "its client was closed")) });
    else if (has(e)) add(e, { at: e.at, end: to, kind: "open", text: by + what + " since " + time(e.at) + ", and goes on" });
    else if (!ended.has(e.name + "\n" + e.holder) && e.at < head.at - 5000) add(e, { at: e.at, end: e.at + (e.ttl || 0), kind: "lost", text: by + " began at " + time(e.at) + ", and was interrupted: its end is not known" });
  }
  const about = el("output", { class: "about" });
  $("calendar").replaceChildren(...[...rows].map(([name, all]) => track(shown(name), all, from, to, (b) => { about.textContent = b.text; })), rows.size ? axis(from, to) : el("p", { class: "none" }, "Nobody has led, and nothing was scheduled."), about);
}

// ---- Views and keys

const views = ["now", "hot", "history", "leaders"];
function go(next) {
  view = next;
  for (const v of views) {
    $(v).hidden = v !== next;
    $("tab-" + v).setAttribute("aria-selected", v === next);
    $("tab-" + v).tabIndex = v === next ? 0 : -1;
  }
  draw();
}

// step moves the focus in the list to the row above or below.
function step(by) {
  const focused = document.activeElement.closest && document.activeElement.closest(".row");
  const i = Math.min(order.length - 1, Math.max(0, focused ? order.indexOf(locks.get(focused.dataset.name)) + by : 0));
  const high = rowHeight(), top = $("list").getBoundingClientRect().top + i * high;
  if (top < 80) scrollBy(0, top - 120);
  if (top + high > innerHeight) scrollBy(0, top + high - innerHeight + 20);
  rows();
  const row = order[i] && kept.get(order[i].name);
  if (row) row.querySelector(".lock").focus({ preventScroll: true });
}

document.addEventListener("keydown", (e) => {
  const typing = /INPUT|SELECT/.test(document.activeElement.tagName);
  if (e.key === "Escape" && open) hide();
  else if (e.ctrlKey || e.metaKey || e.altKey) return;
  else if (document.activeElement.role === "tab" && /Arrow(Left|Right)/.test(e.key)) {
    go(views[(views.indexOf(view) + (e.key === "ArrowRight" ? 1 : 3)) % 4]);
    $("tab-" + view).focus();
  } else if (typing) return;
  else if (e.key === "/") { e.preventDefault(); $("find").focus(); }
  else if (view === "now" && /Arrow(Up|Down)/.test(e.key) && !$("panel").contains(document.activeElement)) { e.preventDefault(); step(e.key === "ArrowDown" ? 1 : -1); }
});
for (const v of views) $("tab-" + v).addEventListener("click", () => go(v));
$("find").addEventListener("input", () => { scrollTo(0, 0); draw(); });
for (const id of ["lane-lock", "lane-span", "lane-at"]) $(id).addEventListener("change", draw);
let drawn = 0;
for (const e of ["scroll", "resize"]) addEventListener(e, () => { cancelAnimationFrame(drawn); drawn = requestAnimationFrame(() => { if (view === "now" && head.at) rows(); }); });
setInterval(tick, 500);
connect();
