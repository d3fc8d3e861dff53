"""The page of a run as an app of starlette: what each address answers.

`launcher.page.server` serves it. All addresses are relative to that of the page, because a proxy may serve it
below a path. `launcher.page.access` has checked each request before it comes here.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from launcher.common.cluster import TaskId
from launcher.common.record import as_dict, replace
from launcher.common.text import escape_controls
from launcher.itself import launch_command
from launcher.messages import say
from launcher.page import logs
from launcher.page.access import Access, Right
from launcher.page.content import page_content, page_html
from launcher.page.metrics import metrics_text
from launcher.page.viewers import MAX_VIEWERS, Viewers
from launcher.runs.graphs import graphs
from launcher.runs.run import Run
from launcher.runs.view import RunView
from launcher.stop_requests import TIMED_OUT_EXIT_CODE

_STATIC_FOLDER = str(Path(__file__).parent / "static")
_NO_TASK = {"error": "the run has no such task"}
#: The commands of launch that a viewer may run, with their options. What takes longer than the ``--timeout``
#: goes on after the command.
_ACTIONS = {"stop": ("--timeout", "5"), "restart": ("--timeout", "5"), "stacks": ()}
#: How long such a command may take in all, for example to reach a cluster.
_COMMAND_SECONDS = 60.0


class PageApp:
    """The page of one run.

    Args:
        run: The run, as the user's commands find it.
        access: Decides about requests.
    """

    def __init__(self, run: Run, access: Access) -> None:
        """Make the app. It may answer requests as soon as `show` was called once."""
        #: The run, and the browsers that show its page.
        self._run, self.viewers = run, Viewers()
        #: What there is to see of the run. `show` sets it before the first request.
        self._view: RunView
        # Two commands run at a time, so that a user who clicks often does not start many.
        self._actions = asyncio.Semaphore(2)
        routes = [
            Route("/", self._index),
            Route("/events", self._events),
            Route("/graphs", self._graphs),
            Route("/log", self._log),
            Route("/metrics", self._metrics),
            *(Route(f"/{command}", self._act, methods=["POST"]) for command in _ACTIONS),
            Mount("/static", StaticFiles(directory=_STATIC_FOLDER)),
        ]
        #: Serves the page, as ASGI wants it.
        self.asgi = access.guarded(Starlette(routes=routes, exception_handlers={Exception: _report_fault}))

    def show(self, view: RunView) -> None:
        """Show the run as it is now. Only one thread calls this."""
        # The watcher adds to its samples while other threads read these.
        samples = {task: tuple(samples) for task, samples in view.samples.items()}
        self._view = replace(view, samples=samples)
        self.viewers.publish(page_content(view))

    # ------------------------------------------------------------------ what there is to see

    async def _index(self, request: Request) -> Response:
        """Answer with the page, which already contains what there is to see."""
        await self.viewers.refresh()
        may_act = request.state.right is Right.ACT
        return HTMLResponse(await run_in_threadpool(page_html, self.viewers.content, may_act=may_act))

    async def _events(self, _: Request) -> Response:
        """Answer with what changes, as long as the viewer stays."""
        if self.viewers.count >= MAX_VIEWERS:
            return PlainTextResponse(f"{MAX_VIEWERS} viewers look at this page already\n", 503)
        headers = {"X-Accel-Buffering": "no"}  # A proxy passes each change on at once.
        changes = self.viewers.stream()
        return StreamingResponse(changes, media_type="text/event-stream", headers=headers)

    async def _graphs(self, request: Request) -> Response:
        """Answer with the graphs of the run, from the moment ``since`` on if the address contains one."""
        since = _number(request, "since") or 0
        # Drawing takes long, so a thread does it, while this one serves other requests.
        drawn = await run_in_threadpool(graphs, self._view.samples, since)
        return JSONResponse({"graphs": [as_dict(graph) for graph in drawn]})

    async def _log(self, request: Request) -> Response:
        """Answer with a part of the log of a task, with lines that were searched, or with all of it.

        ``download`` in the address means all of it, ``search`` means lines, and ``start`` is the offset of a
        part. By default it is the last part.
        """
        query = request.query_params
        if (name := query.get("task", "")) not in self._tasks():
            return JSONResponse(_NO_TASK, 404)
        path = self._view.run.paths.log(TaskId(name))
        try:
            if "download" in query:
                pieces = await run_in_threadpool(logs.pieces, path)
                headers = {"Content-Disposition": f'attachment; filename="{quote(os.path.basename(path))}"'}
                return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)
            if words := query.get("search"):
                return JSONResponse(await run_in_threadpool(logs.search, path, words))
            return JSONResponse(await run_in_threadpool(logs.window, path, _number(request, "start")))
        except FileNotFoundError:  # This is usual, so the browser need not complain.
            return JSONResponse({"error": "nothing was printed yet"})
        except OSError as error:
            return JSONResponse({"error": f"the log cannot be read: {error.strerror}"}, 404)

    async def _metrics(self, _: Request) -> Response:
        """Answer with the metrics of the run for Prometheus."""
        await self.viewers.refresh()
        text = await run_in_threadpool(metrics_text, self._view)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def _tasks(self) -> Sequence[TaskId]:
        """Return the names of the tasks. Only such a name becomes part of a path or of a command."""
        return [task.task for task in self._view.report.tasks]

    # ------------------------------------------------------------------ what a viewer may do

    async def _act(self, request: Request) -> Response:
        """Run a command of launch, which does the same as in a terminal, and answer with what it says."""
        command, names = request.url.path.rpartition("/")[2], request.query_params.getlist("task")
        tasks = self._tasks()
        # Without a name all tasks are meant, so a misspelt parameter must not pass.
        if len(names) < len(request.query_params.multi_items()):
            return JSONResponse({"error": "only `task` is known"}, 400)
        if not {*tasks, *(task.role for task in tasks)}.issuperset(names):
            return JSONResponse(_NO_TASK, 404)
        async with self._actions:
            words = (command, *_ACTIONS[command], "--", self._run.paths.root, *names)
            try:
                code, text = await run_in_threadpool(_run_command, words)
            except asyncio.CancelledError:  # The page ends with its run, and `launch stop` waits for that.
                return JSONResponse({"text": f"launch {command} was asked, and the page ends now"}, 202)
        if code == TIMED_OUT_EXIT_CODE:
            return JSONResponse({"text": f"asked, and not done yet: {text}"}, 202)
        return JSONResponse({"error": text}, 409) if code else JSONResponse({"text": text})


def _run_command(words: Sequence[str]) -> tuple[int, str]:
    """Run a command of launch, and return its exit code and what it has printed, as harmless lines."""
    try:
        done = subprocess.run(
            launch_command(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT_EXIT_CODE, f"launch {words[0]} has not ended within {_COMMAND_SECONDS:g}s"
    lines = done.stdout.decode(errors="replace").splitlines()
    return done.returncode, "\n".join(escape_controls(line.removeprefix("launch: ")) for line in lines)


def _number(request: Request, name: str) -> int | None:
    """Return a number in the address of a request. None if it is missing, or not a number."""
    text = request.query_params.get(name, "").partition(".")[0]
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _report_fault(request: Request, error: Exception) -> Response:
    """Answer a request in which launch itself failed, and tell the user."""
    say(f"the page failed to answer {request.url.path.rpartition('/')[2]!r}: {error!r}")
    return JSONResponse({"error": "launch failed to answer"}, 500)
