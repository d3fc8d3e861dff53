"""The command line of ``launch``: one module for each command, and what the commands share.

`launcher.cli.main` imports the module of the command that the user types, and calls its ``run``. See
`launcher.cli.commands.command_module` for what such a module contains.
"""
