"""``python -m launcher.agent HOST``: orders on stdin, facts on stdout."""

from __future__ import annotations

import sys

from launcher.agent.guardian import guard


def main(host: str) -> None:
    """Run the agent of ``host`` under its guardian; does not return."""

    def agent(guardian_pipe: int) -> None:
        from launcher.agent.loop import Agent

        Agent(host, 0, 1, guardian_pipe).run()

    guard(agent)


if __name__ == "__main__":
    main(sys.argv[1])
