"""Turns the pod template of a TFJob's replicas into the keys of a role in a job file.

`launcher.config.tfjob` calls `read_template` for each type of replicas. What launch does not use itself goes
to Kubernetes, if that runs the tasks. Otherwise it must be named in a note or refused, never ignored
silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from launcher.common.cluster import literal
from launcher.common.record import Record, replace
from launcher.config import schema, values
from launcher.config.documents import ConfigNode, FaultList, Target, quoted
from launcher.config.schema import KeySpec, MappingValues, key_table, mapping_of, single, text_of
from launcher.config.values import GPU_RESOURCE, QUANTITIES
from launcher.job import CHIEF_ROLES, RESERVED_VARIABLES

#: The name of the container that runs the program.
_CONTAINER_NAME = "tensorflow"
#: When an image is pulled, in the words of Docker's option.
_PULL_POLICIES = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}
#: The keys of a container that launch uses.
_USED_KEYS = {"name", "env", "command", "args", "workingDir", "resources"}
#: The keys without which the program would do something else.
_NEEDED_KEYS = {"envFrom", "initContainers"}
#: The keys that launch sets itself in each pod.
_LAUNCH_KEYS = {"imagePullPolicy", "restartPolicy", "stdin", "stdinOnce", "tty"}
#: Matches ``$$`` and ``$(NAME)``, by which commands of containers refer to variables.
_VARIABLE = r"\$(?:\$|\(([^)]*)\))"
#: All ``$(NAME)`` of a container may become this long. Linux accepts less for variables and arguments.
_MAX_EXPANDED_CHARACTERS = 8 << 20


class PodTemplate(Record):
    """The content of a pod template as far as launch uses it, and the rest."""

    #: The keys of the role.
    role: dict[str, ConfigNode]
    #: The line of the container that runs the program.
    line: int
    #: Whether the container has a command of its own.
    commanded: bool
    #: A pod template for Kubernetes with all that launch does not use.
    rest: ConfigNode
    #: When the image is pulled, in the words of Docker. It is empty if the template does not say it.
    pull: str = ""


def _words(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """Read the list of words in ``command:`` or ``args:``. For a fault the result is None."""
    if not isinstance(node.value, list):
        return faults.add_kind(node, label, "expected a list, as in [python3, train.py]")
    found = [text_of(item, label, faults) for item in node.value]
    return None if None in found else found


def _resources(node: ConfigNode, label: str, faults: FaultList) -> dict[str, dict[str, ConfigNode]]:
    """Read ``limits:`` and ``requests:`` of a container, and check the quantities that launch knows.

    Returns:
        The quantities by their names, for each of the two parts.
    """
    found: dict[str, dict[str, ConfigNode]] = {}
    for part, quantities in mapping_of(node, label, faults).items():
        found[part] = {} if part == "claims" else mapping_of(quantities, part, faults)
        for name, quantity in found[part].items():
            text = text_of(quantity, name, faults) if name in QUANTITIES else None
            if text is not None:
                faults.check(quantity.line, f"{name} in {part}", text, QUANTITIES[name])
    return found


def any_keys(*names: str) -> list[KeySpec]:
    """Return keys for a table that accept any value."""
    return [KeySpec(name) for name in names]


#: The keys of a container.
_KEYS = key_table(
    KeySpec("command", _words),
    KeySpec("args", _words),
    KeySpec("workingDir", single(values.one_line)),
    KeySpec("image", single(values.image)),
    KeySpec("imagePullPolicy", single(values.OneOf(*_PULL_POLICIES))),
    KeySpec("resources", _resources),
    *any_keys(
        "name", "env", "envFrom", "lifecycle", "livenessProbe", "ports", "readinessProbe",
        "resizePolicy", "restartPolicy", "securityContext", "startupProbe", "stdin", "stdinOnce",
        "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts",
    ),
)  # fmt: skip


def read_template(
    name: str,
    written: ConfigNode,
    target: Target,
    faults: FaultList,
    leave: Callable[[str, ConfigNode], None],
) -> PodTemplate | None:
    """Read the pod template of one type of replicas in a TFJob.

    Args:
        name: The type of replicas, such as ``Worker``.
        written: The mapping that contains ``template:``.
        target: What the command line says about the tasks.
        faults: Receives the faults of the template.
        leave: Called with the name and the node of everything that launch does not use.

    Returns:
        The content of the template, or None if no container runs the program, which is a fault.
    """
    node = written
    for key in ("template", "spec", "containers"):
        if key not in (node.value if isinstance(node.value, dict) else ()):
            expected = f"expected a container with the name {_CONTAINER_NAME}"
            faults.add(node.line, f"{name} has no template.spec.containers", expected)
            return None
        node = node.value[key]
    found = node.value if isinstance(node.value, list) else []
    named = [each for each in found if name_of(each) == _CONTAINER_NAME]
    if len(named) != 1:
        problem = f"{name} has {len(named) or 'no'} containers with the name {_CONTAINER_NAME}"
        faults.add(node.key_line, problem, "expected one, which runs the program")
        return None
    reader = _ContainerReader(target, faults, leave)
    return reader.template(written.value["template"].value, named[0], found)


class _ContainerReader:
    """A reader of the pod template of one type of replicas. Its arguments are those of `read_template`."""

    def __init__(self, target: Target, faults: FaultList, leave: Callable[[str, ConfigNode], None]) -> None:
        self._target, self._faults, self._leave = target, faults, leave
        self._in_pods = target.engine == "kubernetes"
        #: How many characters the ``$(NAME)`` of the container may still add.
        self._characters_left = _MAX_EXPANDED_CHARACTERS

    def template(
        self, template: Mapping[str, ConfigNode], own: ConfigNode, containers: list[ConfigNode]
    ) -> PodTemplate:
        """Return the content of the template.

        Args:
            template: The mapping of the template.
            own: The container that runs the program.
            containers: All containers of the template.
        """
        container = schema.read_mapping(own, _KEYS, self._faults, owner=f"of the container {_CONTAINER_NAME}")
        nodes, images = container.nodes, self._target.images
        role, rest = self._limits(container)
        variables, late = self._variables(nodes.get("env"))
        if variables:
            role["env"] = ConfigNode(variables, container.line_of("env"), container.line_of("env"))
        role.update(self._command(container, variables, late))
        for key, ours in (("workingDir", "workdir"), *([("image", "image")] if images else [])):
            if key in container:
                role[ours] = nodes[key]
        used = _USED_KEYS | ({"image"} if self._target.engine else set())
        rest.update(self._rest(nodes, used | ({"imagePullPolicy"} if images else set())))
        rest.update({"env": ConfigNode([*late.values()])} if late else {})
        spec = {
            **self._rest(template["spec"].value, {"containers"}),
            "containers": ConfigNode([ConfigNode(rest)]),
        }
        for other in containers:
            if other is own:
                continue
            # Kubernetes stops an init container that always restarts when the container of the task exits.
            if self._in_pods and isinstance(other.value, dict):
                before = spec.get("initContainers", ConfigNode([]))
                items = before.value if isinstance(before.value, list) else [before]
                sidecar = replace(other, value={**other.value, "restartPolicy": ConfigNode("Always")})
                spec["initContainers"] = ConfigNode([*items, sidecar])
            else:
                self._leave("other containers", other)
        metadata = {"metadata": template["metadata"]} if "metadata" in template else {}
        pod = ConfigNode({**metadata, "spec": ConfigNode(spec)}, own.line, own.line)
        pull = _PULL_POLICIES.get(container.get("imagePullPolicy", ""), "") if images else ""
        return PodTemplate(role, line=own.line, commanded="command" in nodes, rest=pod, pull=pull)

    def _rest(self, part: Mapping[str, ConfigNode], used: Collection[str]) -> dict[str, ConfigNode]:
        """Return the keys in a part of a template that launch does not use, for Kubernetes.

        If Kubernetes does not run the tasks, these keys are named in a note or refused, and none is returned.

        Args:
            part: The mapping of the part.
            used: The keys that launch uses.
        """
        found = {}
        for key, node in part.items():
            if key not in used and self._in_pods and key not in _LAUNCH_KEYS:
                found[key] = node
            elif key in _NEEDED_KEYS and not self._in_pods:
                self._faults.add(node.key_line, f"{key}: launch cannot use it here", "expected --kubernetes")
            elif key not in used:
                self._leave("image without --docker or --kubernetes" if key == "image" else key, node)
        return found

    def _command(
        self, container: MappingValues, variables: Mapping[str, ConfigNode], late: Collection[str]
    ) -> dict[str, ConfigNode]:
        """Return the key ``command`` of the role, from the command and the arguments of a container.

        If the container has no command, its arguments follow the program of the command line. Without that,
        the result is empty.

        Args:
            container: The values of the keys of the container.
            variables: The variables whose values are known.
            late: The names of variables that are known only in the pod.
        """
        known = {name: node.value for name, node in variables.items()}
        at = container.nodes.get("command", ConfigNode(None, container.line, container.line))
        words = [*container.get("command", ()), *container.get("args", ())]
        for name in {*re.findall(_VARIABLE, " ".join(words))} & {*late}:
            expected = f"expected a shell, as in [sh, -c, '... ${name}']"
            self._faults.add(at.line, f"$({name}) is known only in the pod", expected)
        found = [self._expanded(word, known, at.line) for word in words]
        if "command" not in container.nodes:
            if not self._target.program:
                return {}
            found = [*self._target.program, *found]
        return {"command": ConfigNode([ConfigNode(word, at.line) for word in found], at.line, at.key_line)}

    def _limits(self, container: MappingValues) -> tuple[dict[str, ConfigNode], dict[str, ConfigNode]]:
        """Return what launch uses of the ``resources`` of a container, and the rest.

        Limits of CPUs and memory are used only if the tasks run in containers.

        Returns:
            The keys ``gpus`` and ``resources`` of the role, and the key ``resources`` for Kubernetes.
        """
        role: dict[str, ConfigNode] = {}
        limits: dict[str, ConfigNode] = {}
        left: dict[str, dict[str, ConfigNode]] = {}
        for part, quantities in container.get("resources", {}).items():
            for name, quantity in quantities.items():
                if name == GPU_RESOURCE:
                    role["gpus"] = quantity
                elif part == "limits" and self._target.engine and name in QUANTITIES:
                    limits[name] = quantity
                elif self._in_pods:
                    left.setdefault(part, {})[name] = quantity
                else:
                    self._leave(f"{name} in {part}", quantity)
        line = container.line_of("resources")
        if limits:
            role["resources"] = ConfigNode({"limits": ConfigNode(limits, line, line)}, line, line)
        more = {part: ConfigNode(quantities) for part, quantities in left.items()}
        return role, ({"resources": ConfigNode(more)} if more else {})

    def _variables(self, env: ConfigNode | None) -> tuple[dict[str, ConfigNode], dict[str, ConfigNode]]:
        """Return the environment variables of a container, with each ``$(NAME)`` replaced.

        Args:
            env: The list of variables. Each may refer to those before it. None means no variables.

        Returns:
            The values of the variables, and the items of those variables whose values only Kubernetes knows,
            both by their names.
        """
        faults = self._faults
        if env is not None and not isinstance(env.value, list):
            faults.add_kind(env, "env", "expected a list, as in - name: NAME")
        found: dict[str, ConfigNode] = {}
        known: dict[str, str] = {}
        late: dict[str, ConfigNode] = {}
        for item in env.value if env is not None and isinstance(env.value, list) else ():
            name = name_of(item)
            if not name:
                faults.add(item.line, "a variable of env has no name", "expected name: and value:")
            elif name in RESERVED_VARIABLES:
                expected = f"expected another name, or `env {name}=VALUE` before the command"
                faults.add(item.line, f"variable {name}: launch sets it for each task", expected)
            elif "valueFrom" in item.value:
                if self._in_pods:
                    late[name] = item
                elif name not in self._target.variables:
                    problem = f"variable {name} is not known here: it is a valueFrom of Kubernetes"
                    faults.add(item.line, problem, f"expected -x {name}=VALUE, or value:")
            else:
                value = item.value.get("value", ConfigNode("", item.line))
                text = text_of(value, f"variable {quoted(name)}", faults) or ""
                if {*re.findall(_VARIABLE, text)} & late.keys():
                    late[name] = item
                else:
                    known[name] = self._expanded(text, known, value.line)
                    found[name] = ConfigNode(known[name], value.line, item.line)
        return found, late

    def _expanded(self, text: str, variables: Mapping[str, str], line: int) -> str:
        """Return a text with the values of variables, as Kubernetes expands it.

        ``$(NAME)`` becomes the value of the variable if it exists, and ``$$`` becomes ``$``. Braces are
        doubled where launch would take them for a placeholder.

        Args:
            text: A word of a command, or the value of a variable.
            variables: The values of the known variables.
            line: The line for a fault.
        """
        before = self._characters_left

        def value(match: re.Match[str]) -> str:
            """Return what stands for one ``$(NAME)`` or ``$$``, and count its characters."""
            if match[1] is None:
                return "$"
            found = variables.get(match[1], "{tf_config}" if match[1] == "TF_CONFIG" else match[0])
            self._characters_left -= len(found)
            return found if self._characters_left >= 0 else ""

        found = re.sub(_VARIABLE, value, literal(text, CHIEF_ROLES))
        if before >= 0 > self._characters_left:
            expected = f"expected at most {_MAX_EXPANDED_CHARACTERS >> 20} MiB from $(NAME)"
            self._faults.add(line, "the variables in env and command become too long", expected)
        return found


def name_of(node: ConfigNode) -> str:
    """Return the ``name:`` of an item of a list, such as a container. It is empty if there is none."""
    found = node.value.get("name", node).value if isinstance(node.value, dict) else ""
    return found if isinstance(found, str) else ""
