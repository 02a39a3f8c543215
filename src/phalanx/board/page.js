// The Cluster page of TensorBoard. Plain JavaScript: there is nothing to build.
// Everything that comes from a run is set as text, never as HTML.

const REFRESH_MS = 2000;

const STYLE = `
  :root { color-scheme: light dark; --line: #8884; --dim: #888; --ok: #1b7f3b; --bad: #c62828;
          --warn: #b26a00; --blue: #1565a8; --violet: #7b2fa1; }
  @media (prefers-color-scheme: dark) {
    :root { --ok: #66bb6a; --bad: #ef5350; --warn: #ffb74d; --blue: #64b5f6; --violet: #ce93d8; } }
  body { font: 14px/1.45 system-ui, sans-serif; margin: 16px 20px; }
  h2 { font-size: 15px; margin: 26px 0 8px; }
  header { display: flex; gap: 16px; align-items: center; flex-wrap: wrap; }
  select { font: inherit; padding: 3px 6px; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; min-width: 100%; }
  th { text-align: left; color: var(--dim); font-weight: 500; font-size: 12px; }
  th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
  td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
  .running, .done { color: var(--ok); } .failed { color: var(--bad); }
  .silent, .straggler, .lost { color: var(--warn); }
  .reason { color: var(--bad); white-space: normal; }
  .parts { display: inline-flex; width: 140px; height: 12px; border-radius: 3px; overflow: hidden;
           background: var(--line); vertical-align: middle; }
  .key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 4px 0 12px; }
  .bar { width: 220px; height: 8px; border-radius: 4px; background: var(--line); overflow: hidden; }
  .bar > div { height: 100%; background: var(--blue); }
  .dim { color: var(--dim); }
  svg text { fill: currentColor; font-size: 11px; }
  pre { margin: 4px 0 10px; padding: 8px 10px; border: 1px solid var(--line); border-radius: 4px;
        overflow-x: auto; max-height: 260px; font-size: 12px; }
  summary { cursor: pointer; }
`;

// "training" is what is not measured apart, as in a loop that the user has written.
const PARTS = {
  "waiting for data": "#c62828", "computing": "#1565a8", "waiting for peers": "#b26a00",
  "training": "#1565a8", "saving": "#1b7f3b", "evaluating": "#7b2fa1", "other": "#9e9e9e",
};
const PART_TEXTS = { "waiting for peers": "waiting for peers or ps" };
const EVENTS = {
  started: "#1b7f3b", restored: "#1b7f3b", saved: "#1565a8", evaluated: "#7b2fa1",
  lost: "#b26a00", "rolled back": "#b26a00", failed: "#c62828", done: "#555555",
};

function make(tag, attributes = {}, ...children) {
  const isSvg = ["svg", "line", "circle", "text", "title", "rect"].includes(tag);
  const node = isSvg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function number(value, digits = 4) {
  if (value == null) return "";
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(digits - 2);
  return value.toLocaleString("en", { maximumSignificantDigits: digits });
}
const count = (value) => (value == null ? "" : value.toLocaleString("en"));
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

function bytes(value) {
  if (value == null) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${number(value, 3)} ${units[unit]}`;
}

function age(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

function drawParts(parts, total) {
  const bar = make("span", { class: "parts" });
  for (const [name, colour] of Object.entries(PARTS)) {
    const share = (parts[name] || 0) / total;
    if (share) bar.append(make("span", { style: `width:${100 * share}%;background:${colour}` }));
  }
  return bar;
}

function partsTable(run) {
  const trainers = run.tasks.filter((task) => Object.values(task.parts).some((value) => value > 0));
  if (!trainers.length) return null;
  const names = Object.keys(PARTS).filter((name) => trainers.some((task) => task.parts[name] > 0));
  const headings = names.map((name) => make("th", { class: "number" },
    make("span", { class: "key", style: `background:${PARTS[name]}` }), PART_TEXTS[name] || name));
  const table = make("table", { id: "parts" }, make("thead", {}, make("tr", {},
    make("th", {}, "task"), make("th"), ...headings)));
  table.append(make("tbody", {}, ...trainers.map((task) => make("tr", { "data-parts": task.task },
    make("td", {}, task.task), make("td", {}, drawParts(task.parts, task.seconds_per_step)),
    ...names.map((name) => make("td", { class: "number" },
      task.parts[name] == null ? "" : number(1000 * task.parts[name], 3)))))));
  return make("div", { class: "wide" }, table);
}

function tasksTable(run) {
  const columns = ["task", "host", "state", "step", "loss", "examples/s", "ms per step",
    "variables", "restarts", "last sign of life"];
  const numbers = new Set(["step", "loss", "examples/s", "ms per step", "variables", "restarts"]);
  const kind = (name) => (numbers.has(name) ? { class: "number" } : {});
  const head = make("tr", {}, ...columns.map((name) => make("th", kind(name), name)));
  const table = make("table", { id: "tasks" }, make("thead", {}, head));
  const body = make("tbody");
  for (const task of run.tasks) {
    const state = make("td", {}, make("span", { class: task.state }, task.state));
    if (task.straggler) state.append(make("span", { class: "straggler" }, " · straggler"));
    const cells = {
      task: task.task, host: task.host, step: count(task.step), loss: number(task.loss),
      "examples/s": number(task.examples_per_second, 3),
      "ms per step": task.seconds_per_step ? number(1000 * task.seconds_per_step, 3) : "",
      variables: bytes(task.variable_bytes), restarts: task.restarts ? count(task.restarts) : "",
      "last sign of life": task.state === "running" || task.state === "silent"
        ? `${age(run.now - task.time)} ago` : clock(task.time),
    };
    body.append(make("tr", { "data-task": task.task }, ...columns.map((name) => {
      if (name === "state") return state;
      return make("td", kind(name), cells[name]);
    })));
    if (task.reason) {
      const cell = make("td", { colspan: columns.length - 1, class: "reason" }, task.reason);
      body.append(make("tr", {}, make("td"), cell));
    }
  }
  table.append(body);
  return make("div", { class: "wide" }, table);
}

function legend(colours) {
  return make("div", { class: "dim" }, ...Object.entries(colours).flatMap(([name, colour]) => [
    make("span", { class: "key", style: `background:${colour}` }), name]));
}

function timeline(run) {
  const events = run.tasks.flatMap((task) => task.events.map((event) => ({ ...event, task: task.task })));
  if (!events.length) return null;
  const first = Math.min(...events.map((event) => event.time));
  const last = Math.max(...events.map((event) => event.time), ...run.tasks.map((task) => task.time));
  const width = 900, left = 90, row = 26, height = run.tasks.length * row + 28;
  const x = (time) => left + ((time - first) / Math.max(last - first, 1)) * (width - left - 20);
  const svg = make("svg", { id: "timeline", viewBox: `0 0 ${width} ${height}`, width, height });
  run.tasks.forEach((task, index) => {
    const y = index * row + 16;
    svg.append(make("text", { x: 0, y: y + 4 }, task.task));
    svg.append(make("line", { x1: left, y1: y, x2: width - 20, y2: y, stroke: "#8886" }));
    for (const event of task.events) {
      const text = `${clock(event.time)} ${event.kind}` +
        (event.step == null ? "" : ` step ${event.step}`) + (event.text ? `: ${event.text}` : "");
      svg.append(make("circle", { cx: x(event.time), cy: y, r: event.kind === "evaluated" ? 3 : 5, fill: EVENTS[event.kind] || "#555",
        "data-kind": event.kind }, make("title", {}, text)));
    }
  });
  svg.append(make("text", { x: left, y: height - 4 }, clock(first)));
  svg.append(make("text", { x: width - 70, y: height - 4 }, clock(last)));
  return make("div", { class: "wide" }, svg);
}

function eventsTable(run) {
  const events = run.tasks
    .flatMap((task) => task.events.map((event) => ({ ...event, task: task.task })))
    .sort((one, other) => other.time - one.time).slice(0, 60);
  const table = make("table", { id: "events" }, make("thead", {}, make("tr", {},
    ...["time", "task", "event", "step", ""].map((name) => make("th", {}, name)))));
  table.append(make("tbody", {}, ...events.map((event) => make("tr", {},
    make("td", {}, clock(event.time)), make("td", {}, event.task),
    make("td", { class: event.kind }, event.kind),
    make("td", { class: "number" }, count(event.step)), make("td", {}, event.text)))));
  return make("div", { class: "wide" }, table);
}

function logs(run, opened) {
  return run.tasks.map((task) => {
    const details = make("details", { "data-log": task.task }, make("summary", {}, task.task),
      make("pre", {}, task.log.join("\n") || "nothing yet"));
    details.open = opened.has(task.task);
    return details;
  });
}

function progress(run) {
  const chief = run.tasks.find((task) => task.leads);
  if (!chief || chief.step == null) return null;
  const parts = [make("span", {}, chief.total == null
    ? `step ${count(chief.step)}` : `step ${count(chief.step)} of ${count(chief.total)}`)];
  if (chief.total) {
    const share = Math.min(1, chief.step / chief.total);
    parts.unshift(make("div", { class: "bar" }, make("div", { style: `width:${100 * share}%` })));
    if (chief.state === "running" && chief.seconds_per_step && share < 1) {
      const left = (chief.total - chief.step) * chief.seconds_per_step;
      parts.push(make("span", { class: "dim" }, `${age(left)} left`));
    }
  }
  return parts;
}

function section(heading, content) {
  return content === null ? [] : [make("h2", {}, heading), content];
}

export async function render() {
  document.head.append(make("style", {}, STYLE));
  const select = make("select", { id: "run", "aria-label": "run" });
  const status = make("header", { style: "margin-left: 8px" });
  const content = make("main");
  document.body.append(make("header", {}, make("label", {}, "run ", select), status), content);

  const load = async (path) => (await fetch(path)).json();
  async function refresh() {
    try {
      const names = await load("./runs");
      if (names.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
        const chosen = select.value;
        select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
        if (names.includes(chosen)) select.value = chosen;
      }
      if (!names.length) {
        content.replaceChildren(make("p", {}, "No run has written task files yet."));
        return;
      }
      const run = await load(`./run?run=${encodeURIComponent(select.value)}`);
      const opened = new Set([...content.querySelectorAll("details[open]")].map((node) => node.dataset.log));
      status.replaceChildren(...(progress(run) || []));
      content.replaceChildren(...[
        make("h2", {}, "Tasks"), tasksTable(run),
        ...section("Time of a step, in ms", partsTable(run)),
        ...section("Time line", timeline(run)), legend(EVENTS),
        make("h2", {}, "Events"), eventsTable(run),
        make("h2", {}, "Logs"), ...logs(run, opened),
      ].filter((node) => node !== null));
    } catch (error) {
      status.replaceChildren(make("span", { class: "failed" }, `TensorBoard does not answer: ${error}`));
    }
  }
  select.addEventListener("change", refresh);
  await refresh();
  setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
}
