// Shows changes of the page live. Without this script, the page is a plain table that loads itself again.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("live");
  // The clock of the page's server minus the clock of this machine, in milliseconds.
  let ahead = Number(root.dataset.now) - Date.now();
  let source = null;
  let paused = false;

  const people = (ms) => {
    const time = Math.max(0, ms);
    const s = Math.floor(time / 1000);
    if (s < 60) return `${s}.${Math.floor((time % 1000) / 100)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  };

  const tick = () => {
    const now = Date.now() + ahead;
    for (const span of document.querySelectorAll("span[data-since]")) span.textContent = people(now - span.dataset.since);
    for (const span of document.querySelectorAll("span[data-ends]")) span.textContent = people(span.dataset.ends - now);
    for (const bar of document.querySelectorAll("progress[data-ends]")) {
      bar.value = Math.min(bar.max, Math.max(0, bar.dataset.ends - now));
    }
    document.querySelectorAll("#rows .place").forEach((cell, index) => { cell.textContent = index + 1; });
  };

  const parse = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html; // the server has escaped every text in it
    return template.content.firstElementChild;
  };

  // Replaces a row. If the old row contained the focus, the new row contains it.
  const replace = (old, row) => {
    const focusable = (of) => [...of.querySelectorAll("a, button")];
    const index = focusable(old).indexOf(document.activeElement);
    old.replaceWith(row);
    focusable(row)[index]?.focus();
  };

  const change = ({ now, regions, order, rows }) => {
    ahead = now - Date.now();
    for (const [name, html] of Object.entries(regions)) {
      const region = document.getElementById(name);
      if (region) region.innerHTML = html;
    }
    const body = document.getElementById("rows");
    const have = new Map([...body.children].map((row) => [row.dataset.id, row]));
    for (const [id, html] of Object.entries(rows)) {
      const row = parse(html);
      const old = have.get(id);
      if (old) replace(old, row);
      have.set(id, row);
    }
    if (order) {
      const keep = new Set(order);
      for (const [id, row] of have) if (!keep.has(id)) row.remove();
      let next = body.firstElementChild;
      for (const id of order) {
        const row = have.get(id);
        if (row === next) next = next.nextElementSibling;
        else body.insertBefore(row, next);
      }
    }
    tick();
  };

  const banner = (text) => {
    const paragraph = document.createElement("p");
    paragraph.className = "trouble";
    paragraph.textContent = text;
    document.getElementById("banner").replaceChildren(paragraph);
  };

  const stop = () => {
    source?.close();
    source = null;
  };

  const start = () => {
    stop();
    if (paused || document.hidden) return;
    source = new EventSource(location.href);
    source.onmessage = (event) => change(JSON.parse(event.data));
    source.onerror = () => {
      banner("The server of this page does not answer. The page recovers by itself.");
      // After an answer that is not a stream of events, the browser does not connect again by itself.
      if (source?.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(start, 2000);
      }
    };
  };

  const pause = document.getElementById("pause");
  const button = pause.querySelector("button");
  const show = () => {
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
  };
  paused = "paused" in pause.dataset;
  pause.addEventListener("submit", (event) => {
    event.preventDefault();
    paused = !paused;
    show();
    start();
  });

  const search = document.getElementById("search");
  if (search) {
    let typing;
    const run = () => {
      const query = new URLSearchParams(new FormData(search));
      history.replaceState(null, "", `${search.action}?${query}`);
      start();
    };
    search.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(run, 200);
    });
    search.addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(typing);
      run();
    });
  }

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("button[data-copy]");
    if (!copy) return;
    try {
      await navigator.clipboard.writeText(copy.dataset.copy);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not copied";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });

  // While the page is hidden, its stream is closed, so that it costs the lock server nothing.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  setInterval(() => { if (!paused) tick(); }, 500);
  show();
  tick();
  start();
})();
