"use strict";
/* The page of a run. What it gets from the server (all URLs are relative to the page):

GET .                  index.html, made of VIEW, with the same VIEW in <script type="application/json" id="view">
GET static/NAME        page.css, page.js, uPlot.*
GET events             server-sent events. Each is a part of VIEW as JSON: keys that did not change are left out,
                       and "tasks" contains only the changed rows (by "task"); every row at a new connection.
GET graphs?since=AT    {"graphs": [{"title", "unit", "at": [..], "lines": [{"name", "values": [.. or null]}]}]},
                       moments after AT only (0: all), at most 600, folded above 20 tasks (launcher/page/graphs.py)
GET log?task=T&start=N {"text", "start", "end", "size"}: the bytes from N on, at most 64 KiB; the last ones without start
GET log?task=T&search=WORDS   {"lines": ["..."], "complete": true}: the last lines that contain it, at most 200
GET log?task=T&download=1     the file, as an attachment
GET stacks             {"text": "..."}
POST stop, POST restart       {"tasks": ["worker/0"]} (none: all of the run) -> {"text": "what was done"}; 4xx: {"error"}

VIEW = {
  "title": "mnist (20261129-...)", "state": "running|ended|died|elsewhere", "may_act": true,
  "verdict": {"text": "worker/1 is slow: ...", "tone": "bad|warn|good|plain"}, "findings": [{"at", "kind", "task", "text"}],
  "command": "launch ...", "note": "", "started_at": 1.0, "ended_at": null, "seen_at": 1.0, "restarts": 0,
  "run_dir": "...", "tensorboard": null,
  "failure": null | {"text", "hint", "traceback", "task"},
  "tasks": [{"task", "role", "host", "state", "attempt", "restarting": false, "step", "total", "rate", "left",
             "printed_at", "cpu", "memory", "gpu", "gpu_memory", "last_line", "detail", "trouble": ""}],
  "timeline": {"rows": [{"name", "spans": [{"from", "to", "state", "text"}]}], "marks": [{"at", "text"}]}
} with null for what nobody knows. Times are seconds since the epoch.
*/
