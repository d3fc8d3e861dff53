"""The agent: the one process of ours on a host. Facts go up its stdout, orders come down its stdin.

It holds ports, starts tasks, reads what they print, reaps them, and ends every last process when
it is told to, or when its launcher is gone. It decides nothing.

Only the standard library, only Python 3.8, only ``model``, ``errors``, ``wire``, ``stream`` and
``processes`` of ours: it is sent to hosts where nothing is installed. Nobody imports it; a transport starts
``launcher.agent.__main__`` by name.

::

    guardian ──> agent ──> task, task, ...       (guardian and agent are child subreapers)
"""
