"""Tells Prometheus how the tasks of a run are, as ``/metrics`` of the page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

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


def metrics_text(view: RunView) -> bytes:
    """Return the metrics of a run in the format of Prometheus."""
    registry, run = CollectorRegistry(), view.run.called

    def gauge(name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, ("run", *labels), registry=registry)

    gauge("launch_run_state", "1 for the state of the run.", "state").labels(run, view.state.value).set(1)
    gauge("launch_run_restarts", "How often tasks started again.").labels(run).set(view.report.restarts)
    state = gauge("launch_task_state", "1 for the state of the task.", "task", "state")
    gauges = {field: gauge(name, meaning, "task") for name, meaning, field in _GAUGES}
    for row in view.rows():
        state.labels(run, row.task, row.state.value).set(1)
        for field, of_field in gauges.items():
            if (value := getattr(row, field)) is not None:
                of_field.labels(run, row.task).set(value)
    printed = gauge("launch_task_metric", "What the task printed last.", "task", "metric")
    for task, samples in view.samples.items():
        for metric, value in (samples[-1].metrics if samples else {}).items():
            printed.labels(run, task, metric).set(value)
    return generate_latest(registry)
