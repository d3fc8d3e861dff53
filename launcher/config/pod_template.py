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
    #: A pod template for Kubernetes with all that launch does not use itself, but passes on.
    unused: ConfigNode
    #: When the image is pulled, in the words of Docker. It is empty if the template does not say it.
    pull: str = ""


def _words(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """Return the list of words in ``command:`` or ``args:``, or None if a fault was added."""
    if not isinstance(node.value, list):
        faults.add_kind(node, label, "expected a list, as in [python3, train.py]")
        return None
    words = [text_of(item, label, faults) for item in node.value]
    return None if None in words else words


def _resources(node: ConfigNode, label: str, faults: FaultList) -> dict[str, dict[str, ConfigNode]]:
    """Return ``limits:`` and ``requests:`` of a container, and check the quantities that launch knows.

    Returns:
        For each of the two parts, the quantities by their names.
    """
    parts: dict[str, dict[str, ConfigNode]] = {}
    for part, quantities in mapping_of(node, label, faults).items():
        # Claims are a list of names, not quantities.
        parts[part] = {} if part == "claims" else mapping_of(quantities, part, faults)
        for name, quantity in parts[part].items():
            text = text_of(quantity, name, faults) if name in QUANTITIES else None
            if text is not None:
                faults.check(quantity.line, f"{name} in {part}", text, QUANTITIES[name])
    return parts


def any_keys(*names: str) -> list[KeySpec]:
    """Return rows for a table of keys whose values may be anything, because launch does not read them."""
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
        if not isinstance(node.value, dict) or key not in node.value:
            expected = f"expected a container with the name {_CONTAINER_NAME}"
            faults.add(node.line, f"{name} has no template.spec.containers", expected)
            return None
        node = node.value[key]
    containers = node.value if isinstance(node.value, list) else []
    named = [container for container in containers if name_of(container) == _CONTAINER_NAME]
    if len(named) != 1:
        problem = f"{name} has {len(named) or 'no'} containers with the name {_CONTAINER_NAME}"
        faults.add(node.key_line, problem, "expected one, which runs the program")
        return None
    reader = _ContainerReader(target, faults, leave)
    return reader.template(written.value["template"].value, named[0], containers)


class _ContainerReader:
    """A reader of the pod template of one type of replicas.

    Args:
        target: What the command line says about the tasks, such as whether Kubernetes runs them.
        faults: Receives the faults of the template.
        leave: Called with the name and the node of everything that launch does not use.
    """

    def __init__(self, target: Target, faults: FaultList, leave: Callable[[str, ConfigNode], None]) -> None:
        self._target, self._faults, self._leave = target, faults, leave
        #: Whether Kubernetes runs the tasks, so it gets what launch does not use.
        self._in_pods = target.engine == "kubernetes"
        #: How many characters the ``$(NAME)`` of the container may still add. A value may repeat a reference
        #: to another variable, so without a limit a few lines could become gigabytes.
        self._characters_left = _MAX_EXPANDED_CHARACTERS

    def template(
        self, template: Mapping[str, ConfigNode], main: ConfigNode, containers: list[ConfigNode]
    ) -> PodTemplate:
        """Return the content of the template: the keys of a role for launch, and the rest for Kubernetes.

        - The command, the variables and the limits of the main container become keys of the role.
        - Its other keys go to Kubernetes, if that runs the tasks. Otherwise a note or a fault names them.
        - Other containers become sidecars of the task's pod in Kubernetes. Elsewhere they are left out.

        Args:
            template: The mapping of the template.
            main: The container that runs the program.
            containers: All containers of the template.
        """
        owner = f"of the container {_CONTAINER_NAME}"
        container = schema.read_mapping(main, _KEYS, self._faults, owner=owner)
        nodes, uses_image = container.nodes, self._target.images
        role, rest = self._limits(container)
        variables, pod_variables = self._variables(nodes.get("env"))
        if variables:
            role["env"] = ConfigNode(variables, container.line_of("env"), container.line_of("env"))
        role.update(self._command(container, variables, pod_variables))
        if "workingDir" in container:
            role["workdir"] = nodes["workingDir"]
        if uses_image and "image" in container:
            role["image"] = nodes["image"]
        # With an engine the image counts as used even if another one on the command line replaces it, because
        # the user then needs no note about it.
        used = _USED_KEYS | ({"image"} if self._target.engine else set())
        rest.update(self._rest(nodes, used | ({"imagePullPolicy"} if uses_image else set())))
        if pod_variables:
            rest["env"] = ConfigNode([*pod_variables.values()])
        spec = self._rest(template["spec"].value, {"containers"})
        spec["containers"] = ConfigNode([ConfigNode(rest)])
        for other in containers:
            if other is main:
                continue
            # An init container that always restarts is a sidecar: Kubernetes stops it when the container of
            # the task exits.
            if self._in_pods and isinstance(other.value, dict):
                written = spec.get("initContainers", ConfigNode([]))
                items = written.value if isinstance(written.value, list) else [written]
                sidecar = replace(other, value={**other.value, "restartPolicy": ConfigNode("Always")})
                spec["initContainers"] = ConfigNode([*items, sidecar])
            else:
                self._leave("other containers", other)
        metadata = {"metadata": template["metadata"]} if "metadata" in template else {}
        pod = ConfigNode({**metadata, "spec": ConfigNode(spec)}, main.line, main.line)
        pull = _PULL_POLICIES.get(container.get("imagePullPolicy", ""), "") if uses_image else ""
        return PodTemplate(role, line=main.line, commanded="command" in nodes, unused=pod, pull=pull)

    def _rest(self, part: Mapping[str, ConfigNode], used: Collection[str]) -> dict[str, ConfigNode]:
        """Return the keys in a part of a template that launch does not use, for Kubernetes.

        If Kubernetes does not run the tasks, these keys are named in a note or refused, and none is returned.

        Args:
            part: The mapping of the part.
            used: The keys that launch uses.
        """
        for_kubernetes = {}
        for key, node in part.items():
            if key in used:
                continue
            # In a pod, launch sets some keys itself, so those of the template are left out with a note.
            if self._in_pods and key not in _LAUNCH_KEYS:
                for_kubernetes[key] = node
            # Without these the program would do something else, so a note is not enough.
            elif key in _NEEDED_KEYS and not self._in_pods:
                self._faults.add(node.key_line, f"{key}: launch cannot use it here", "expected --kubernetes")
            else:
                self._leave("image without --docker or --kubernetes" if key == "image" else key, node)
        return for_kubernetes

    def _command(
        self, container: MappingValues, variables: Mapping[str, ConfigNode], pod_variables: Collection[str]
    ) -> dict[str, ConfigNode]:
        """Return the key ``command`` of the role, from the command and the arguments of a container.

        If the container has no command, its arguments follow the program of the command line. Without that,
        the result is empty.

        Args:
            container: The values of the keys of the container.
            variables: The variables whose values are known.
            pod_variables: The names of variables that are known only in the pod.
        """
        known = {name: node.value for name, node in variables.items()}
        # If the container has no command, the lines are those of the container itself.
        node = container.nodes.get("command", ConfigNode(None, container.line, container.line))
        written = [*container.get("command", ()), *container.get("args", ())]
        for name in {*re.findall(_VARIABLE, " ".join(written))} & {*pod_variables}:
            expected = f"expected a shell, as in [sh, -c, '... ${name}']"
            self._faults.add(node.line, f"$({name}) is known only in the pod", expected)
        words = [self._expanded(word, known, node.line) for word in written]
        if "command" not in container.nodes:
            if not self._target.program:
                return {}
            words = [*self._target.program, *words]
        return {"command": replace(node, value=[ConfigNode(word, node.line) for word in words])}

    def _limits(self, container: MappingValues) -> tuple[dict[str, ConfigNode], dict[str, ConfigNode]]:
        """Return what launch uses of the ``resources`` of a container, and what it leaves to Kubernetes.

        Limits of CPUs and memory are used only if the tasks run in containers.

        Returns:
            The keys ``gpus`` and ``resources`` of the role, and the key ``resources`` for Kubernetes.
        """
        role: dict[str, ConfigNode] = {}
        limits: dict[str, ConfigNode] = {}
        for_kubernetes: dict[str, dict[str, ConfigNode]] = {}
        for part, quantities in container.get("resources", {}).items():
            for name, quantity in quantities.items():
                if name == GPU_RESOURCE:
                    role["gpus"] = quantity
                elif part == "limits" and self._target.engine and name in QUANTITIES:
                    limits[name] = quantity
                elif self._in_pods:
                    for_kubernetes.setdefault(part, {})[name] = quantity
                else:
                    self._leave(f"{name} in {part}", quantity)
        line = container.line_of("resources")
        if limits:
            role["resources"] = ConfigNode({"limits": ConfigNode(limits, line, line)}, line, line)
        rest = {part: ConfigNode(quantities) for part, quantities in for_kubernetes.items()}
        return role, ({"resources": ConfigNode(rest)} if rest else {})

    def _variables(self, env: ConfigNode | None) -> tuple[dict[str, ConfigNode], dict[str, ConfigNode]]:
        """Return the environment variables of a container, with each ``$(NAME)`` replaced.

        Args:
            env: The list of variables. Each may refer to those before it. None means no variables.

        Returns:
            The values of the variables, and the items of those variables whose values are known only in the
            pod, both by their names.
        """
        faults = self._faults
        if env is not None and not isinstance(env.value, list):
            faults.add_kind(env, "env", "expected a list, as in - name: NAME")
            env = None
        variables: dict[str, ConfigNode] = {}
        texts: dict[str, str] = {}
        pod_variables: dict[str, ConfigNode] = {}
        for item in [] if env is None else env.value:
            name = name_of(item)
            if not name:
                faults.add(item.line, "a variable of env has no name", "expected name: and value:")
            elif name in RESERVED_VARIABLES:
                expected = f"expected another name, or `env {name}=VALUE` before the command"
                faults.add(item.line, f"variable {name}: launch sets it for each task", expected)
            elif "valueFrom" in item.value:
                if self._in_pods:
                    pod_variables[name] = item
                elif name not in self._target.variables:
                    # The program needs a value, which -x on the command line may set instead.
                    problem = f"variable {name} is not known here: it is a valueFrom of Kubernetes"
                    faults.add(item.line, problem, f"expected -x {name}=VALUE, or value:")
            else:
                value = item.value.get("value", ConfigNode("", item.line))
                text = text_of(value, f"variable {quoted(name)}", faults) or ""
                # Only Kubernetes can complete a value that refers to a variable of the pod.
                if {*re.findall(_VARIABLE, text)} & pod_variables.keys():
                    pod_variables[name] = item
                else:
                    texts[name] = self._expanded(text, texts, value.line)
                    variables[name] = ConfigNode(texts[name], value.line, item.line)
        return variables, pod_variables

    def _expanded(self, text: str, variables: Mapping[str, str], line: int) -> str:
        """Return a text with the values of variables, as Kubernetes expands it.

        ``$(NAME)`` becomes the value of the variable if it exists, and ``$$`` becomes ``$``. Braces are
        doubled where launch would take them for a placeholder.

        Args:
            text: A word of a command, or the value of a variable.
            variables: The values of the known variables.
            line: The line for a fault.
        """
        left_before = self._characters_left

        def value(reference: re.Match[str]) -> str:
            """Return what stands for one ``$(NAME)`` or ``$$``, and count its characters."""
            name = reference[1]
            if name is None:
                return "$"
            # TF_CONFIG is known only when the ports are. An unknown reference stays as it was written.
            text = variables.get(name, "{tf_config}" if name == "TF_CONFIG" else reference[0])
            self._characters_left -= len(text)
            return text if self._characters_left >= 0 else ""

        # The placeholders of a ``master`` are literal text here, too, although only jobs with one have them.
        expanded = re.sub(_VARIABLE, value, literal(text, CHIEF_ROLES))
        if left_before >= 0 > self._characters_left:  # The first text that exceeds the limit.
            expected = f"expected at most {_MAX_EXPANDED_CHARACTERS >> 20} MiB from $(NAME)"
            self._faults.add(line, "the variables in env and command become too long", expected)
        return expanded


def name_of(node: ConfigNode) -> str:
    """Return the ``name:`` of an item of a list, such as a container. It is empty if there is none."""
    name = node.value.get("name") if isinstance(node.value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else ""
