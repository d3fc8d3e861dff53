"""What the user sees and what a run leaves: renderers of events.

A renderer has the methods of `launcher.output.base.Renderer`: `console` for people, `jsonl` for programs,
`files` for the folder of the run, `tmux` for a terminal per task, `eventpipe` for ``--events-fd``.
"""
