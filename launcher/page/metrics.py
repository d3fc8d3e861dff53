"""Tells Prometheus how the tasks of a run are, as ``/metrics`` of the page."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from launcher.runs.view import RunView

#: The gauges of each task: the name, what it means, and the field of `launcher.runs.view.TaskRow`.
_GAUGES = (
    ("launch_task_step", "The last step that the task has printed.", "step"),
    ("launch_task_steps_per_second", "Steps per second in the last minute.", "rate"),
    ("launch_task_left_seconds", "Seconds until the last step.", "left"),
    ("launch_task_silent_seconds", "Seconds since the task last printed something.", "silent"),
    ("launch_task_attempt", "The number of the attempt.", "attempt"),
    ("launch_task_cpu_cores", "Cores in use.", "cpu"),
    ("launch_task_memory_bytes", "Resident memory of all its processes.", "memory"),
    ("launch_task_gpu_percent", "The use of its GPUs.", "gpu"),
    ("launch_task_gpu_memory_bytes", "Memory of its processes on GPUs.", "gpu_memory"),
)


class _RunCollector(Collector):
    """The metrics of a run at one moment."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics, as prometheus_client wants it."""
        view, run = self._view, self._view.run.called
        state = GaugeMetricFamily("launch_run_state", "1 for the state of the run.", labels=["run", "state"])
        state.add_metric([run, view.state.value], 1)
        restarts = GaugeMetricFamily("launch_run_restarts", "How often tasks started again.", labels=["run"])
        restarts.add_metric([run], view.report.restarts)
        states = GaugeMetricFamily(
            "launch_task_state", "1 for the state of the task.", labels=["run", "task", "state"]
        )
        rows = view.rows()
        for row in rows:
            states.add_metric([run, row.task, row.state.value], 1)
        yield from (state, restarts, states)
        for name, meaning, field in _GAUGES:
            gauge = GaugeMetricFamily(name, meaning, labels=["run", "task"])
            for row in rows:
                if (value := getattr(row, field)) is not None:
                    gauge.add_metric([run, row.task], value)
            yield gauge
        printed = GaugeMetricFamily(
            "launch_task_metric", "What the task printed last.", labels=["run", "task", "metric"]
        )
        for task, samples in view.samples.items():
            for metric, value in (samples[-1].metrics if samples else {}).items():
                printed.add_metric([run, task, metric], value)
        yield printed


def metrics_text(view: RunView) -> bytes:
    """Return the metrics of a run in the format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RunCollector(view))
    return generate_latest(registry)
