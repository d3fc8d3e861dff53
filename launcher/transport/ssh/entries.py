"""What a link asks a host to run; see `launcher.transport.base.Errands.errand`."""

PORTER = "launcher.agent.porter:main"
#: The same on a host that files were brought to.
CARRYING = "launcher.agent.carrying:main"
#: The same, its agent in a container.
CONTAINER = "launcher.agent.container:main"
ATTACH = "launcher.agent.attach:main"
