"""The former transports, until containers on other machines have moved to `launcher.transports`."""
