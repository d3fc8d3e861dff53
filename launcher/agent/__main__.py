"""``python -m launcher.agent HOST [NUMBER]``: orders on stdin, facts on stdout.

``NUMBER`` goes into the watermark of all it starts, so that whoever gave it can find them; any 36 bits.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from launcher.agent.guardian import guard
from launcher.model.watermark import agent_number
from launcher.processes import kernel

if TYPE_CHECKING:
    from typing import NoReturn, Optional

    from launcher.agent.lease import Lease


def main(host: str, number: str = "", *, lease: Optional[Lease] = None) -> NoReturn:
    """Run the agent of ``host`` under its guardian, which keeps an eye on the lease; does not return."""
    gc.disable()  # importing makes no garbage, and looking for it takes a quarter of the time
    close_inherited()
    kernel.show_as(f"tf-agent {host}")
    seed = int(number) if number else int.from_bytes(os.urandom(8), "little")

    def agent(guardian_pipe: int) -> int:
        from launcher.agent.loop import Agent

        gc.freeze()
        gc.enable()
        return Agent(host, agent_number(seed), 0, 1, guardian_pipe).run()

    guard(agent, lease)


def close_inherited() -> None:
    """Close what the launcher's shell or ``make`` left open: no task should hold it. Our modules stay."""
    modules = [path.rpartition("/")[2] for path in sys.path if path.startswith("/proc/self/fd/")]
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and name not in modules:
            try:
                os.close(int(name))
            except OSError:  # the one that listed the folder
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
