"use strict";
/* The page of a run. All addresses are relative to the page, and all texts are added by textContent.

GET .                  index.html with the first CONTENT as HTML
GET events             server-sent events: CONTENT, and then the keys that have changed, as JSON; of "tasks" only the
                       changed rows, and in "gone" the names of rows that are no more
GET graphs?since=AT    {"graphs": [{"title", "unit", "at": [..], "lines": {NAME: [value or null, ..]}}]}
GET log?task=T         {"text", "rest", "start", "end", "size"}: the end of a log; with start=BYTE what follows there;
                       with search=WORDS {"lines", "complete"}; with download=1 the file
POST stop?task=T       stop T, a task or a role; several, or none for all of the run -> {"text"} or {"error"}
POST restart, stacks   the same

CONTENT, made by launcher/page/content.py: title, state, verdict, tone, problems, command, note, started_at, ended_at,
seen_at, stops_at, restarts, restarts_left, run_dir, tensorboard, failure, tasks, first, folded, timeline, messages.
A key of a row that nobody knows is missing. Times are seconds since the epoch, by the clock of the server. */

const $ = (id) => document.getElementById(id);
/** The content of the page, and the rows of its tasks by their names. */
const content = {ended_at: null, stops_at: null, restarts_left: null, folded: [], first: [], messages: [], timeline: []};
const tasks = new Map();
/** How much later the clock of the server is than that of the browser, in seconds. */
let clockOffset = 0;
const MAX_CLOCK_ERROR_SECONDS = 2;
const now = () => Date.now() / 1000 + clockOffset;

// ------------------------------------------------------------------ texts and elements

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setList(list, texts) {
  if (texts.join("\n") !== [...list.children].map((item) => item.textContent).join("\n")) {
    list.replaceChildren(...texts.map((text) => element("li", {}, text)));
  }
}

function duration(seconds) {
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)}s`;
  const two = (number) => String(number).padStart(2, "0");
  const rest = Math.floor(seconds + 0.5), minutes = Math.floor(rest / 60), hours = Math.floor(minutes / 60);
  if (!minutes) return `${rest}s`;
  if (!hours) return `${minutes}m${two(rest % 60)}s`;
  return hours < 24 ? `${hours}h${two(minutes % 60)}m` : `${Math.floor(hours / 24)}d${two(hours % 24)}h`;
}

function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; size >= 999.5 && unit < 4; unit++) size /= 1000;
  return `${Number(size.toFixed(size < 9.95 ? 1 : 0))} ${units[unit]}`;
}

function number(value) {
  if (Math.abs(value) >= 1e12) return value.toExponential(2);
  if (Math.abs(value) >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

const clock = (at) => new Date((at - clockOffset) * 1000).toLocaleTimeString("en-GB");
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function shown(value, format) {
  if (value === undefined || value === null || typeof value === "string") return value ?? "";
  if (format === "bytes") return bytes(value);
  if (format === "cores") return value.toFixed(2);
  if (format === "since") return duration(now() - value);
  return format === "until" ? duration(value - now()) : number(value);
}

async function ask(address, options) {
  try {
    const answer = await fetch(address, options);
    const text = await answer.text();
    try {
      return JSON.parse(text);
    } catch {
      return {error: text.slice(0, 300)};
    }
  } catch {
    return {error: "the page is not served any longer"};
  }
}

const post = (address, names) =>
  ask(`${address}?${new URLSearchParams(names.map((name) => ["task", name]))}`, {method: "POST"});

// ------------------------------------------------------------------ verdict

function showVerdict() {
  const {verdict, problems, messages} = content, isOver = content.ended_at !== null;
  // What is wrong stands first.
  const lead = isOver || !problems.length ? verdict : problems[0];
  document.title = `${lead} – ${content.title}`;
  setText($("verdict"), lead);
  $("verdict").className = content.tone;
  // What was noticed once may be over.
  const noticed = (text) => messages.findLast((message) => message.text === text);
  const withTime = (text) => (noticed(text) ? `${clock(noticed(text).at)}: ${text}` : text);
  setList($("problems"), problems.filter((text) => text !== lead).map(withTime));
  setText($("state"), lead === verdict ? "" : verdict + (noticed(lead) ? ` · noticed at ${clock(noticed(lead).at)}` : ""));
  const latest = messages.findLast(({text}) => !problems.includes(text));
  setText($("latest"), latest ? `${clock(latest.at)}: ${latest.text}` : "");
  setText($("command"), content.command);
  setText($("note"), content.note);
  setText($("failure"), content.failure);
  $("failure-part").hidden = !content.failure;
  const board = $("tensorboard"), isAddress = /^https?:\/\//.test(content.tensorboard ?? "");
  board.hidden = !isAddress;
  if (isAddress) board.href = content.tensorboard;
  for (const part of [$("actions"), $("stacks-part")]) if (part) part.hidden = isOver;
  if (isOver && $("question").open) $("question").close();
}

function showTimes() {
  const parts = [`began ${new Date(content.started_at * 1000).toLocaleString("en-GB")}`];
  const took = duration((content.ended_at ?? now()) - content.started_at);
  parts.push(content.ended_at === null ? `${took} so far` : `ended ${clock(content.ended_at)}, after ${took}`);
  if (content.stops_at) parts.push(`stops by its time limit in ${duration(content.stops_at - now())}`);
  if (content.restarts || content.restarts_left) {
    const left = content.restarts_left === null || content.ended_at ? "" : `, ${content.restarts_left} left`;
    parts.push(plural(content.restarts, "restart") + left);
  }
  setText($("times"), parts.join(" · "));
}

// ------------------------------------------------------------------ the table of tasks

const MAX_ROWS = 300;
const columns = [...document.querySelectorAll("#tasks th")].map((header) => ({header, ...header.dataset}));
const sorting = {key: null, sign: 1};
/** The folded rows whose tasks are shown, by name. */
const unfolded = new Set();
const rowElements = new Map();

function visibleRows() {
  const words = $("filter").value.trim().toLowerCase();
  const all = [...tasks.values()];
  if (words) {
    const found = all.filter((row) => `${row.task}\n${row.host}\n${row.state}\n${row.last_line ?? ""}`.toLowerCase().includes(words));
    setText($("found"), plural(found.length, "task"));
    return sorted(found);
  }
  setText($("found"), "");
  if (!content.folded.length) return sorted(all);
  const named = new Set(content.first);
  const rows = [];
  for (const row of sorted([...all.filter((task) => named.has(task.task)), ...content.folded])) {
    rows.push(row);
    if (unfolded.has(idOf(row))) {
      rows.push(...sorted(all.filter((task) => !named.has(task.task) && task.role === row.role && task.state === row.state)));
    }
  }
  return rows;
}

function sorted(rows) {
  if (!sorting.key) return rows;
  const known = rows.filter((row) => row[sorting.key] !== undefined);
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true});
  known.sort((a, b) => sorting.sign * compare(a[sorting.key], b[sorting.key]));
  return [...known, ...rows.filter((row) => row[sorting.key] === undefined)];
}

/** The number of tasks in a folded row changes, but not its role and state. */
const idOf = (row) => (tasks.has(row.task) ? row.task : `${row.role}: ${row.state}`);

function rowElement(row) {
  const id = idOf(row);
  if (!rowElements.has(id)) {
    const line = element("tr", {}, ...columns.map((column) => element("td", {class: column.format})));
    const button = element("button", {type: "button"});
    line.firstChild.append(button);
    button.addEventListener("click", () => (tasks.has(id) ? openLog(id) : toggle(id)));
    rowElements.set(id, line);
  }
  const line = rowElements.get(id), button = line.firstChild.firstChild;
  setText(button, row.task);
  if (id !== row.task) button.setAttribute("aria-expanded", unfolded.has(id));
  return line;
}

function toggle(id) {
  if (!unfolded.delete(id)) unfolded.add(id);
  showTasks();
}

function showTasks() {
  const rows = visibleRows(), body = $("tasks").tBodies[0], focused = document.activeElement;
  const lines = rows.slice(0, MAX_ROWS).map((row) => {
    const line = rowElement(row);
    line.className = row.mark ?? "";
    columns.forEach(({key, format}, index) => {
      if (index === 0) return;
      const total = key === "step" && row.total !== undefined ? ` of ${shown(row.total, format)}` : "";
      setText(line.cells[index], shown(row[key], format) + total);
    });
    return line;
  });
  if (rows.length > MAX_ROWS) {
    lines.push(element("tr", {}, element("td", {colspan: columns.length}, `and ${plural(rows.length - MAX_ROWS, "more task")}: use the filter`)));
  }
  if (lines.length !== body.rows.length || lines.some((line, index) => line !== body.rows[index])) {
    body.replaceChildren(...lines);
    if (body.contains(focused)) focused.focus({preventScroll: true});
  }
  columns.forEach(({key, header}, index) => {
    const isKnown = index < 2 || rows.some((row) => row[key] !== undefined);
    if (header.hidden === isKnown) header.hidden = !isKnown;
    for (const line of lines) if (line.cells[index]) line.cells[index].hidden = !isKnown;
  });
  $("folded-note").hidden = !content.folded.length || Boolean($("filter").value.trim());
}

function sortBy(key) {
  if (sorting.key !== key) Object.assign(sorting, {key, sign: 1});
  else if (sorting.sign === 1) sorting.sign = -1;
  else sorting.key = null;
  for (const {header} of columns) {
    const order = sorting.sign === 1 ? "ascending" : "descending";
    header.setAttribute("aria-sort", header.dataset.key === sorting.key ? order : "none");
  }
  showTasks();
}

/** Silences and times left grow and shrink by themselves. */
function showMoments() {
  columns.forEach(({key, format}, index) => {
    if (format !== "since" && format !== "until") return;
    for (const line of $("tasks").tBodies[0].rows) {
      const name = line.firstChild.firstChild?.textContent;
      const row = tasks.get(name) ?? content.folded.find((folded) => folded.task === name);
      if (row?.[key] !== undefined) setText(line.cells[index], shown(row[key], format));
    }
  });
}

// ------------------------------------------------------------------ graphs

const GRAPH_HEIGHT = 170;
const LINE_COLOURS = 8;
const DASHES = [[], [8, 4], [2, 3]];
/** By title: the graph as the server sent it so far, with its chart. */
const graphs = new Map();
/** Progress is above what it costs. */
const RANKS = ["1/s", "", "bytes", "cores", "%"];
const rankOf = ({unit, title}) => RANKS.indexOf(unit) + (title.startsWith("GPU") ? RANKS.length : 0);
/** All graphs have the same time axis. */
const axisOfTime = [Infinity, -Infinity];
let graphedUntil = 0;
let graphsAskedAt = 0;

async function loadGraphs() {
  // The server computes the graphs of a large job for longer.
  const pause = content.folded.length ? 10 : 1;
  if (now() < graphsAskedAt + pause) return;
  graphsAskedAt = Infinity;
  const answer = await ask(`graphs?since=${graphedUntil}`);
  graphsAskedAt = now();
  for (const {at} of answer.graphs ?? []) {
    axisOfTime[0] = Math.min(axisOfTime[0], at[0]);
    axisOfTime[1] = graphedUntil = Math.max(axisOfTime[1], at[at.length - 1]);
  }
  for (const graph of answer.graphs ?? []) addToGraph(graph);
  $("graphs-part").hidden = !graphs.size;
}

function addToGraph({title, unit, at, lines}) {
  const graph = graphs.get(title) ?? {title, unit, at: [], lines: new Map()};
  graphs.set(title, graph);
  const before = graph.at.length, names = graph.lines.size;
  graph.at.push(...at);
  for (const name of Object.keys(lines)) {
    if (!graph.lines.has(name)) graph.lines.set(name, Array(before).fill(null));
  }
  for (const [name, values] of graph.lines) values.push(...(lines[name] ?? Array(at.length).fill(null)));
  if (!graph.chart || graph.lines.size !== names) {
    const order = [...tasks.keys()];
    graph.lines = new Map([...graph.lines].sort(([one], [other]) => order.indexOf(one) - order.indexOf(other)));
    drawGraph(graph);
  } else graph.chart.setData([graph.at, ...graph.lines.values()]);
  describeGraph(graph);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const unitText = (value, unit) =>
  unit === "%" ? `${number(value)} %` : shown(value, unit);

function drawGraph(graph) {
  if (!graph.part) {
    graph.heading = element("h3", {}, graph.title + (graph.unit === "cores" ? " (cores)" : ""));
    graph.canvas = element("div", {role: "img"});
    graph.legend = element("ul", {class: "legend"});
    graph.part = element("div", {class: "graph"}, graph.heading, graph.canvas, graph.legend);
    graph.part.dataset.rank = rankOf(graph);
    $("graphs").insertBefore(graph.part, [...$("graphs").children].find((part) => part.dataset.rank > rankOf(graph)) ?? null);
  }
  $("graphs-part").hidden = false;
  graph.chart?.destroy();
  const text = colour("--soft"), grid = colour("--line");
  const axis = {stroke: text, grid: {stroke: grid, width: 1}, ticks: {stroke: grid, width: 1}, font: "12px system-ui, sans-serif"};
  // A task has the same colour in each graph.
  const order = content.folded.length ? [...graph.lines.keys()] : [...tasks.keys()];
  const indices = [...graph.lines.keys()].map((name) => Math.max(0, order.indexOf(name)));
  const series = [...graph.lines.keys()].map((name, line) => ({
    label: name,
    stroke: colour(`--line-${indices[line] % LINE_COLOURS}`),
    dash: DASHES[Math.floor(indices[line] / LINE_COLOURS) % DASHES.length],
    width: 2,
    gaps: longGaps,
    points: {show: () => graph.at.length < 3},
  }));
  graph.chart = new uPlot({
    width: graph.canvas.clientWidth || 400,
    height: GRAPH_HEIGHT,
    legend: {show: false},
    cursor: {sync: {key: "time"}, drag: {x: false, y: false}},
    scales: {x: {range: () => axisOfTime}, y: {range: (_, low, high) => range(low, high, graph.unit)}},
    axes: [{...axis, space: 85, values: (_, ticks) => timeTexts(ticks)}, {...axis, size: 62, values: (_, ticks) => ticks.map((tick) => unitText(tick, graph.unit))}],
    series: [{}, ...series],
    hooks: {setCursor: [() => describeGraph(graph)]},
  }, [graph.at, ...graph.lines.values()], graph.canvas);
  graph.legend.replaceChildren(...series.map(({label, dash}, line) => {
    const mark = element("span", {class: `mark line-${indices[line] % LINE_COLOURS} ${dash.length ? "dashed" : ""}`});
    return element("li", {}, mark, `${label} `, element("b"));
  }));
}

/** Tasks are measured at different moments. Only where a task was not measured for longer, its line has a gap. */
function longGaps(chart, line, first, last, gaps) {
  const [start, end] = axisOfTime, longest = Math.max(8, (4 * (end - start)) / chart.data[0].length);
  const time = (pixels) => chart.posToVal(pixels, "x", true);
  return gaps.filter(([from, to]) => time(to) - time(from) > longest);
}

/** What is used and how fast it goes is compared with nothing; a metric is not. */
function range(low, high, unit) {
  if (low === null) return [0, 1];
  const bottom = unit ? Math.min(0, low) : low, room = (high - bottom) * 0.05 || Math.abs(high) * 0.05 || 1;
  // Less than a tenth of a core is noise, and the texts of its axis would all be 0.00.
  return [unit ? bottom : low - room, Math.max(high + room, unit === "cores" ? 0.1 : -Infinity)];
}

function timeTexts(ticks) {
  const hasDays = ticks.length > 1 && ticks[ticks.length - 1] - ticks[0] > 86400;
  return ticks.map((tick) => {
    const date = new Date(tick * 1000), time = date.toLocaleTimeString("en-GB");
    return hasDays ? `${date.getDate()}.${date.getMonth() + 1}. ${time.slice(0, 5)}` : tick % 60 ? time : time.slice(0, 5);
  });
}

/** Write the values at the cursor, or else the last ones, beside the names of the lines. */
function describeGraph(graph) {
  const index = graph.chart.cursor.idx, texts = [];
  [...graph.lines].forEach(([name, values], line) => {
    const value = index == null ? values.findLast((one) => one !== null) : values[index];
    const text = value == null ? "–" : unitText(value, graph.unit);
    setText(graph.legend.children[line].lastChild, text);
    texts.push(`${name} ${text}`);
  });
  if (index == null) graph.canvas.setAttribute("aria-label", `${graph.title}: ${texts.join(", ")}`);
}

function redrawGraphs() {
  for (const graph of graphs.values()) {
    drawGraph(graph);
    describeGraph(graph);
  }
}

// ------------------------------------------------------------------ time line

function showTimeline() {
  const end = content.ended_at ?? now(), start = content.started_at, length = Math.max(end - start, 1);
  const place = (at) => `${Math.min(100, Math.max(0, (100 * (at - start)) / length)).toFixed(2)}%`;
  const shape = (name, attributes, title) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (title) made.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "title"), {textContent: title}));
    return made;
  };
  $("timeline").replaceChildren(...content.timeline.map(({name, spans}) => {
    const text = spans.map((span) => `${span.text}, ${duration((span.ended_at ?? end) - span.started_at)}`).join(" · ") || "not started";
    const bars = shape("svg", {role: "img", "aria-label": `${name}: ${text}`, height: 14});
    for (const {at} of content.messages) bars.append(shape("rect", {class: "tick", x: place(at), y: 0, width: 1, height: 14}));
    for (const span of spans) {
      const from = place(span.started_at), width = (100 * ((span.ended_at ?? end) - span.started_at)) / length;
      bars.append(shape("rect", {class: span.state, x: from, y: 2, width: `${Math.max(0.3, width).toFixed(2)}%`, height: 10}, span.text));
    }
    return element("li", {}, element("span", {class: "name"}, name), bars, element("span", {class: "text"}, text));
  }));
  const scale = [element("span", {}, clock(start)), element("span", {}, clock(end))];
  $("timeline").append(element("li", {class: "scale", "aria-hidden": true}, element("span"), element("span", {}, ...scale)));
  setList($("marks"), content.messages.map(({at, text}) => `${clock(at)}  ${text}`));
}

// ------------------------------------------------------------------ logs

const MAX_LOG_CHARACTERS = 400_000;
const log = {task: null, end: null, text: "", search: "", isAsking: false};

function showLogChoices() {
  const select = $("log-task"), names = [...tasks.keys()];
  if (select.options.length === names.length) return;
  select.replaceChildren(...names.map((name) => element("option", {value: name}, name)));
  const failed = [...tasks.values()].find((row) => row.mark === "bad") ?? [...tasks.values()].find((row) => row.mark);
  chooseLog(names.includes(log.task) ? log.task : failed?.task ?? names[0]);
}

function chooseLog(name) {
  if (!name || log.task === name) return;
  Object.assign(log, {task: name, end: null, text: ""});
  $("log-task").value = name;
  $("log-download").href = `log?${new URLSearchParams({task: name, download: 1})}`;
  readLog();
}

function openLog(name) {
  $("log-search").value = log.search = "";
  chooseLog(name);
  $("log").focus();
}

async function readLog() {
  if (log.isAsking || !log.task) return;
  log.isAsking = true;
  const {task, search} = log, pre = $("log");
  const query = search ? {task, search} : log.end === null ? {task} : {task, start: log.end};
  const answer = await ask(`log?${new URLSearchParams(query)}`);
  log.isAsking = false;
  if (task !== log.task || search !== log.search) {
    readLog();
    return;
  }
  if (answer.error) {
    setText($("log-found"), answer.error);
  } else if (search) {
    setText(pre, answer.lines.join("\n"));
    setText($("log-found"), plural(answer.lines.length, "line") + (answer.complete ? "" : ", the last ones"));
    log.end = null;
  } else {
    const isAtEnd = log.end === null || pre.scrollTop + pre.clientHeight > pre.scrollHeight - 30;
    if (log.end === null) log.text = "";
    const isBehind = answer.end > (log.end ?? 0) && answer.end < answer.size && !answer.rest;
    log.text = (log.text + answer.text).slice(-MAX_LOG_CHARACTERS);
    log.end = answer.end;
    setText(pre, log.text + answer.rest);
    setText($("log-found"), "");
    if (isAtEnd) pre.scrollTop = pre.scrollHeight;
    if (isBehind) readLog();
  }
}

let searchTimer = 0;
function searchLog() {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => {
    Object.assign(log, {search: $("log-search").value, end: null});
    readLog();
  }, 250);
}

// ------------------------------------------------------------------ stacks, stop and restart

async function showStacks() {
  const pre = $("stacks");
  pre.hidden = false;
  setText(pre, "asking…");
  const answer = await post("stacks", []);
  setText(pre, answer.text ?? answer.error);
}

function askQuestion(act) {
  const dialog = $("question"), select = $("question-tasks"), isStop = act === "stop";
  const roles = [...new Set([...tasks.values()].map((row) => row.role))];
  const choices = [...(isStop ? ["all tasks"] : []), ...roles, ...tasks.keys()];
  const firstProblem = [...tasks.values()].find((row) => row.mark)?.task;
  dialog.dataset.act = act;
  setText($("question-title"), isStop ? `Stop ${content.title}?` : "Restart tasks?");
  setText($("question-text"), isStop
    ? "All tasks get SIGTERM, later SIGKILL. A stopped run cannot go on."
    : "They are stopped and start again. This does not count for --restarts.");
  setText($("confirm"), isStop ? "Stop" : "Restart");
  setText($("answer"), "");
  $("confirm").disabled = false;
  select.replaceChildren(...choices.map((name) => element("option", {value: name}, name)));
  select.value = isStop ? "all tasks" : firstProblem ?? choices[0];
  dialog.showModal();
  $("cancel").focus();
}

async function act() {
  const dialog = $("question"), choice = $("question-tasks").value;
  const names = choice === "all tasks" ? [] : [choice];
  $("confirm").disabled = true;
  setText($("answer"), "asked…");
  const answer = await post(dialog.dataset.act, names);
  $("confirm").disabled = false;
  if (answer.error) setText($("answer"), answer.error);
  else dialog.close();
}

// ------------------------------------------------------------------ what comes from the server

function take(changed) {
  const isFirst = content.verdict === undefined;
  const {tasks: rows = [], gone = [], ...others} = changed;
  Object.assign(content, others);
  for (const name of gone) tasks.delete(name);
  for (const row of rows) tasks.set(row.task, row);
  if (content.verdict === undefined) return;
  const offset = content.seen_at - Date.now() / 1000;
  // The first content may be old.
  if (!isFirst) clockOffset = Math.abs(offset) > MAX_CLOCK_ERROR_SECONDS ? offset : 0;
  showVerdict();
  showTimes();
  showTasks();
  showTimeline();
  showLogChoices();
  if ("seen_at" in changed) loadGraphs();
}

function follow() {
  const source = new EventSource("events");
  source.onmessage = (message) => {
    $("lost").hidden = true;
    take(JSON.parse(message.data));
    if (content.ended_at !== null) source.close();
  };
  source.onerror = () => {
    $("lost").hidden = content.verdict !== undefined && content.ended_at !== null;
    setText($("lost"), "No connection to the page's server: what is below may be old.");
  };
}

function tick() {
  if (document.hidden || content.verdict === undefined) return;
  if (content.ended_at === null) {
    showTimes();
    showMoments();
  }
  if (!log.search && (content.ended_at === null || log.end === null)) readLog();
}

for (const {key, header} of columns) header.firstChild.addEventListener("click", () => sortBy(key));
$("filter").addEventListener("input", showTasks);
$("log-task").addEventListener("change", () => chooseLog($("log-task").value));
$("log-search").addEventListener("input", searchLog);
for (const input of [$("filter"), $("log-search")]) {
  input.addEventListener("keydown", (pressed) => {
    if (pressed.key !== "Escape" || !input.value) return;
    input.value = "";
    input.dispatchEvent(new Event("input"));
  });
}
$("look-stacks").addEventListener("click", showStacks);
for (const button of document.querySelectorAll("#actions button")) {
  button.addEventListener("click", () => askQuestion(button.dataset.act));
}
$("cancel").addEventListener("click", () => $("question").close());
$("confirm").addEventListener("click", act);
let resizeTimer = 0;
addEventListener("resize", () => {
  clearTimeout(resizeTimer);
  resizeTimer = setTimeout(redrawGraphs, 150);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawGraphs);
setInterval(tick, 1000);
follow();
