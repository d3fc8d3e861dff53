"""What a porter says of a container, which only the launcher can put into words."""

from __future__ import annotations

#: Begins the last words of an agent in a container on another machine; JSON follows: ``code``, the exit code
#: of ``docker run`` (``None``: it was killed), and ``said``, what came from its stderr.
ENDED = "container ended: "
