"""Kubeflow's TFJob, as the job file that does the same: docs/tfjob.md has both, field by field.

The values keep the lines of the TFJob, and `launcher.config.jobfile` reads the result as any job file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from launcher.config import values
from launcher.config.schema import (
    Faults,
    Key,
    Node,
    Values,
    mapping,
    quoted,
    read_mapping,
    single,
    table,
    text_of,
)
from launcher.job import CHIEF_ROLES, MOST_TASKS
from launcher.record import Record
from launcher.scheduler.cluster_spec import literal
from launcher.text import did_you_mean

#: The versions whose TFJobs have the form of the last one.
_VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1", "kubeflow.org/v1alpha2")
#: The operator's name of a type of replicas -> the name of the role.
_ROLES = {name: name.lower() for name in ("Chief", "Master", "PS", "Worker", "Evaluator")}
#: The container that runs the program.
_CONTAINER_NAME = "tensorflow"
#: Restarts of a TFJob that sets no limit. (A task that fails in the same way each time starts twice again.)
_RESTARTS = "1000"
_GPU = "nvidia.com/gpu"
_QUANTITIES: Mapping[str, Callable[[str], object]] = {
    "cpu": values.cpu_quantity,
    "memory": values.memory_quantity,
    _GPU: values.whole(0, values.MOST_GPUS),
}
#: When an image is pulled, in the words of Docker's option.
_PULL = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}
#: Keys of templates: those that launch uses; those without which the program would do something else; those
#: that launch sets in each pod.
_USED = {"name", "env", "command", "args", "workingDir", "resources"}
_NEEDED = {"envFrom", "initContainers"}
_OF_LAUNCH = {"imagePullPolicy", "restartPolicy", "stdin", "stdinOnce", "tty"}
#: What the command of a container has for its variables: ``$$``, ``$(NAME)``.
_VARIABLE = r"\$(?:\$|\(([^)]*)\))"


class Target(Record):
    """What the command line says about a TFJob."""

    #: The program of containers that have no command, and its arguments.
    program: tuple[str, ...] = ()
    #: What runs the tasks in containers, which have limits: ``docker``, ``kubernetes``; empty: nothing does.
    engine: str = ""
    #: The containers are of the images that the TFJob names.
    images: bool = False
    #: Names of variables that tasks get from the command line.
    variables: frozenset[str] = frozenset()


#: It says nothing.
NO_TARGET = Target()


# ---------------------------------------------------------------------- keys


def _words(node: Node, label: str, faults: Faults) -> Any:
    """Read ``command:`` or ``args:``."""
    if not isinstance(node.value, list):
        return faults.add_kind(node, label, "expected a list, as in [python3, train.py]")
    found = [text_of(item, label, faults) for item in node.value]
    return None if None in found else found


def _resources(node: Node, label: str, faults: Faults) -> dict[str, dict[str, Node]]:
    """Read ``limits:`` and ``requests:``; the quantities that launch knows are checked."""
    found: dict[str, dict[str, Node]] = {}
    for part, quantities in _dict(node, label, faults).items():
        found[part] = {} if part == "claims" else _dict(quantities, part, faults)
        for name, quantity in found[part].items():
            text = text_of(quantity, name, faults) if name in _QUANTITIES else None
            if text is not None:
                faults.check(quantity.line, f"{name} in {part}", text, _QUANTITIES[name])
    return found


def _dict(node: Node, label: str, faults: Faults) -> dict[str, Node]:
    """The mapping of a node; empty if it is another value, which is a fault."""
    if not isinstance(node.value, dict):
        faults.add_kind(node, label, "expected a mapping")
        return {}
    return node.value


def _any(*names: str) -> list[Key]:
    return [Key(name, "") for name in names]


_COUNT = single(values.whole(0, MOST_TASKS))
_SECONDS = single(values.whole(1, values.MOST_DAYS * 86_400))
_POLICY = table(
    Key("cleanPodPolicy", "", single(values.choice("All", "Running", "None"))),
    Key("activeDeadlineSeconds", "", _SECONDS),
    Key("backoffLimit", "", _COUNT),
    Key("suspend", "", single(values.flag)),
    *_any("ttlSecondsAfterFinished", "schedulingPolicy", "managedBy"),
)
_SPEC = table(
    *_any("tfReplicaSpecs"),
    Key("successPolicy", "", single(values.matching("|AllWorkers", 'expected AllWorkers, or ""'))),
    Key("enableDynamicWorker", "", single(values.flag)),
    Key("runPolicy", "", mapping(_POLICY, "expected a mapping, as in cleanPodPolicy: Running")),
    *_POLICY.values(),  # of versions before 1.2 of the operator
)
_TFJOB = table(
    Key("apiVersion", "", single(values.choice(*_VERSIONS))),
    Key("spec", "", mapping(_SPEC, "expected a mapping with tfReplicaSpecs:")),
    *_any("kind", "metadata", "status"),
)
_REPLICAS = table(
    Key("replicas", "", _COUNT),
    Key("restartPolicy", "", single(values.choice("Never", "OnFailure", "Always", "ExitCode"))),
    *_any("template"),
)
_CONTAINER = table(
    Key("command", "", _words),
    Key("args", "", _words),
    Key("workingDir", "", single(values.one_line)),
    Key("image", "", single(values.image)),
    Key("imagePullPolicy", "", single(values.choice(*_PULL))),
    Key("resources", "", _resources),
    *_any(
        "name", "env", "envFrom", "lifecycle", "livenessProbe", "ports", "readinessProbe",
        "resizePolicy", "restartPolicy", "securityContext", "startupProbe", "stdin", "stdinOnce",
        "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts",
    ),
)  # fmt: skip


# ---------------------------------------------------------------------- the file


def is_tfjob(node: Node) -> bool:
    """Whether a mapping is a TFJob, perhaps with faults."""
    return "kind" in node.value and node.value["kind"].value == "TFJob"


def job_of(node: Node, target: Target, faults: Faults) -> tuple[Node, list[str]]:
    """The job file that does the same as a TFJob, and notes for the user.

    Args:
        node: the mapping of the TFJob.
        target: what the user asks for.
        faults: new faults are added. If there are any, the job file is of no use.
    """
    made = _TFJob(target, faults)
    return made.job(node), made.notes()


class _TFJob:
    """Makes the job file of one TFJob."""

    def __init__(self, target: Target, faults: Faults) -> None:
        self._target = target
        self._faults = faults
        #: What launch does not use -> its lines.
        self._unused: dict[str, list[int]] = {}
        self._notes: list[str] = []
        self._in_pods = target.engine == "kubernetes"
        #: Role -> what Kubernetes adds to its pods; and when the images are pulled.
        self._pods: dict[str, Node] = {}
        self._pull: str | None = None
        #: The type of replicas -> the line of its container that has no command.
        self._programless: dict[str, int] = {}

    def notes(self) -> list[str]:
        """Notes for the user; one names all that is not used."""
        names: list[str] = []
        for lines, name in sorted((sorted(set(lines)), name) for name, lines in self._unused.items()):
            places = [f":{line}" for line in lines]
            if not names:
                places[0] = self._faults.where(lines[0])
            names.append(f"{name} ({', '.join(places)})")
        unused = f"of the TFJob launch does not use {', '.join(names)}: docs/tfjob.md"
        return self._notes + ([unused] if names else [])

    def _leave(self, name: str, node: Node) -> None:
        self._unused.setdefault(name, []).append(node.key_line or node.line)

    def job(self, node: Node) -> Node:
        """The job file."""
        faults, top = self._faults, read_mapping(node, _TFJOB, self._faults, owner="of the TFJob")
        for key, expected in (("apiVersion", _VERSIONS[0]), ("spec", "spec.tfReplicaSpecs")):
            if key not in top.nodes:
                top.add(key, f"the TFJob has no {key}", f"expected {expected}")
        if top.get("apiVersion", _VERSIONS[0]) != _VERSIONS[0]:
            where = faults.where(top.line_of("apiVersion"))
            self._notes.append(f"{where}: this version of TFJob is read as {_VERSIONS[0]}")
        nothing = Values(node.line, faults)
        spec: Values = top.get("spec", nothing)
        policy = Values(spec.line, faults)
        for part in (spec, spec.get("runPolicy", nothing)):
            policy.update(part.some(*_POLICY))
            policy.nodes.update((key, part.nodes[key]) for key in _POLICY if key in part.nodes)
        if spec.get("enableDynamicWorker"):
            spec.add(
                "enableDynamicWorker", "enableDynamicWorker is true",
                "expected false: the TF_CONFIG of launch names all tasks",
            )  # fmt: skip
        if policy.get("suspend"):
            policy.add("suspend", "suspend is true", "expected false: launch starts the job at once")
        roles = self._roles(spec) if "spec" in top else {}
        job = {"roles": Node(roles, spec.line_of("tfReplicaSpecs"), spec.line_of("tfReplicaSpecs"))}
        if self._target.engine:
            job[self._target.engine] = Node(self._section(top))
        job.update(self._restarts(roles, policy))
        if "activeDeadlineSeconds" in policy:
            job["timeout"] = _like(policy.nodes["activeDeadlineSeconds"])
        if "worker" in roles and not roles.keys() & {*CHIEF_ROLES}:
            every = spec.get("successPolicy") == "AllWorkers"
            job["done_when"] = Node("workers" if every else "chief", spec.line, spec.line_of("successPolicy"))
        elif spec.get("successPolicy"):
            self._leave("successPolicy, as there is a chief", spec.nodes["successPolicy"])
        for key in ("ttlSecondsAfterFinished", "schedulingPolicy", "managedBy"):
            if key in policy.nodes:
                self._leave(key, policy.nodes[key])
        if policy.get("cleanPodPolicy") == "None":
            self._leave("cleanPodPolicy: None", policy.nodes["cleanPodPolicy"])
        self._check_programs()
        return Node(job, node.line, node.key_line)

    def _section(self, top: Values) -> dict[str, Node]:
        """The settings of the engine: in containers are the files of the image only, as in pods."""
        pull = {"pull": Node(_PULL[self._pull])} if self._pull else {}
        if not self._in_pods:
            return {**pull, "no_mount": Node("true")}
        metadata = top.nodes.get("metadata", Node({})).value
        namespace = {"namespace": metadata["namespace"]} if "namespace" in (metadata or {}) else {}
        return {**pull, **namespace, "pods": Node(self._pods)}

    def _check_programs(self) -> None:
        """Add the faults of containers without a program, and of a program that no container needs."""
        program = self._target.program
        for name, line in self._programless.items() if not program else ():
            problem = f"the container of {name} has no command, and launch does not read that of its image"
            expected = "expected command:, or the program after the file, as in launch tfjob.yaml train.py"
            self._faults.add(line, problem, expected)
        if program and not self._programless and not self._faults:
            expected = "only options follow this TFJob: its containers have commands"
            self._faults.add(0, f"unexpected argument {program[0]!r}", expected)

    def _restarts(self, roles: Mapping[str, Node], policy: Values) -> dict[str, Node]:
        """The settings of restarts; those of single roles are changed in ``roles``."""
        policies = {name: role.value.pop("restartPolicy", Node("Never")) for name, role in roles.items()}
        for each in policies.values():
            if each.value == "Always":
                self._leave("restartPolicy: Always after exit code 0", each)
        again = next((each for each in policies.values() if each.value != "Never"), None)
        if again is None or policy.get("backoffLimit") == 0:
            return {}
        for name, each in policies.items():
            if each.value == "Never":
                roles[name].value["restart"] = each._replace(value="never")
            elif each.value == "ExitCode":
                roles[name].value["retryable"] = each._replace(value=[each._replace(value="128-255")])
        return {"restarts": _like(policy.nodes.get("backoffLimit", again._replace(value=_RESTARTS)))}

    # ------------------------------------------------------------------ roles

    def _roles(self, spec: Values) -> dict[str, Node]:
        """The roles, by their names in job files."""
        faults = self._faults
        if "tfReplicaSpecs" not in spec.nodes:
            if not spec.misspelt:
                faults.add(spec.line, "spec has no tfReplicaSpecs", "expected them, as in Worker: ...")
            return {}
        found: dict[str, Node] = {}
        for name, written in _dict(spec.nodes["tfReplicaSpecs"], "tfReplicaSpecs", faults).items():
            role = name.lower()
            twin = next(
                (other for other in found if other == role or {other, role} == {"chief", "master"}), ""
            )
            if role not in _ROLES.values():
                faults.add(written.key_line, f"unknown type of replicas {quoted(name)}", _meant(name))
            elif twin:
                problem = f"{quoted(name)} beside the {twin} of line {found[twin].key_line}"
                faults.add(written.key_line, problem, "expected one of them")
            elif not isinstance(written.value, dict):
                faults.add_kind(written, name, "expected a mapping with replicas: and template:")
            else:
                found[role] = written._replace(value=self._role(name, written))
        return found

    def _role(self, name: str, written: Node) -> dict[str, Node]:
        """The keys of one role, with its ``restartPolicy``."""
        keys = read_mapping(written, _REPLICAS, self._faults, owner=f"of {name}")
        names = {"replicas": "count", "restartPolicy": "restartPolicy"}
        role = {ours: keys.nodes[key] for key, ours in names.items() if key in keys}
        containers = self._containers(name, written)
        if containers is not None:
            template = written.value["template"].value
            role.update(self._task(name, written.key_line, template, containers))
        return role

    def _containers(self, name: str, written: Node) -> Any:
        """The container that runs the program, then the others; ``None``: there is none, which is a fault."""
        faults, node = self._faults, written
        for key in ("template", "spec", "containers"):
            if key not in (node.value if isinstance(node.value, dict) else ()):
                problem = f"{name} has no template.spec.containers"
                return faults.add(node.line, problem, f"expected a container with the name {_CONTAINER_NAME}")
            node = node.value[key]
        found = node.value if isinstance(node.value, list) else []
        named = [each for each in found if _name_of(each) == _CONTAINER_NAME]
        if len(named) != 1:
            problem = f"{name} has {len(named) or 'no'} containers with the name {_CONTAINER_NAME}"
            return faults.add(node.key_line, problem, "expected one, which runs the program")
        return [*named, *(each for each in found if each is not named[0])]

    def _task(
        self, name: str, line: int, template: Mapping[str, Node], containers: Sequence[Node]
    ) -> dict[str, Node]:
        """The keys of a role that its template decides; all else is for Kubernetes."""
        own, *others = containers
        container = read_mapping(own, _CONTAINER, self._faults, owner=f"of the container {_CONTAINER_NAME}")
        nodes, pod = container.nodes, template["spec"].value
        role, added = self._limits(container)
        variables, late = self._variables(nodes.get("env"))
        if variables:
            role["env"] = Node(variables, container.line_of("env"), container.line_of("env"))
        role.update(self._command(name, container, variables, late))
        if "workingDir" in container:
            role["workdir"] = nodes["workingDir"]
        used = _USED | ({"image"} if self._target.engine else set())
        if self._target.images:
            used |= {"imagePullPolicy"}
            role.update({"image": nodes["image"]} if "image" in container else {})
            self._pull = container.get("imagePullPolicy", self._pull)
        added.update(self._rest(nodes, used))
        added.update({"env": Node([*late.values()])} if late else {})
        spec = {**self._rest(pod, {"containers"}), "containers": Node([Node(added)])}
        for other in others:
            if self._in_pods and isinstance(other.value, dict):  # it serves the task, and ends with it
                before = spec.get("initContainers", Node([])).value
                sidecar = other._replace(value={**other.value, "restartPolicy": Node("Always")})
                spec["initContainers"] = Node([*before, sidecar])
            else:
                self._leave("other containers", other)
        metadata = {"metadata": template["metadata"]} if "metadata" in template else {}
        self._pods[name.lower()] = Node({**metadata, "spec": Node(spec)}, line, line)
        return role

    def _rest(self, part: Mapping[str, Node], used: Collection[str]) -> dict[str, Node]:
        """What launch does not use of a part of a template: for Kubernetes; else it is named or refused."""
        found = {}
        for key, node in part.items():
            if key not in used and self._in_pods and key not in _OF_LAUNCH:
                found[key] = node
            elif key in _NEEDED and not self._in_pods:
                self._faults.add(
                    node.key_line, f"{key}: launch can't honour it here", "expected --kubernetes"
                )
            elif key not in used:
                self._leave("image without --docker or --kubernetes" if key == "image" else key, node)
        return found

    def _command(
        self, name: str, container: Values, variables: Mapping[str, Node], late: Collection[str]
    ) -> dict[str, Node]:
        """The command of a container; that of the command line if it has none."""
        known = {each: node.value for each, node in variables.items()}
        at = container.nodes.get("command", Node(None, container.line, container.line))
        words = [*container.get("command", ()), *container.get("args", ())]
        for word in words:
            for each in {*re.findall(_VARIABLE, word)} & {*late}:
                expected = f"expected a shell, as in [sh, -c, '... ${each}']"
                self._faults.add(at.line, f"$({each}) is known only in the pod", expected)
        found = [_expanded(word, known) for word in words]
        if "command" not in container.nodes:
            self._programless[name] = container.line
            found = [*self._target.program, *found]
        if "command" not in container.nodes and not self._target.program:
            return {}
        return {"command": Node([Node(word, at.line) for word in found], at.line, at.key_line)}

    def _limits(self, container: Values) -> tuple[dict[str, Node], dict[str, Node]]:
        """The GPUs and limits of a role, without limits if it runs in no container; what is left of them."""
        role: dict[str, Node] = {}
        limits: dict[str, Node] = {}
        left: dict[str, dict[str, Node]] = {}
        for part, quantities in container.get("resources", {}).items():
            for name, quantity in quantities.items():
                if name == _GPU:
                    role["gpus"] = quantity
                elif part == "limits" and self._target.engine and name in _QUANTITIES:
                    limits[name] = quantity
                elif self._in_pods:
                    left.setdefault(part, {})[name] = quantity
                else:
                    self._leave(f"{name} in {part}", quantity)
        line = container.line_of("resources")
        if limits:
            role["resources"] = Node({"limits": Node(limits, line, line)}, line, line)
        more = {part: Node(quantities) for part, quantities in left.items()}
        return role, ({"resources": Node(more)} if more else {})

    def _variables(self, env: Node | None) -> tuple[dict[str, Node], dict[str, Node]]:
        """The variables of a container, with the values of those before them in ``$(NAME)``.

        Returns:
            Those with a value; and the items of those that only Kubernetes knows, by their names.
        """
        faults = self._faults
        if env is not None and not isinstance(env.value, list):
            faults.add_kind(env, "env", "expected a list, as in - name: NAME")
        found: dict[str, Node] = {}
        late: dict[str, Node] = {}
        for item in env.value if env is not None and isinstance(env.value, list) else ():
            name = _name_of(item)
            if not name:
                faults.add(item.line, "a variable of env has no name", "expected name: and value:")
            elif "valueFrom" in item.value:
                if self._in_pods:
                    late[name] = item
                elif name not in self._target.variables:
                    problem = f"variable {name} is not known here: it is a valueFrom of Kubernetes"
                    faults.add(item.line, problem, f"expected -x {name}=VALUE, or value:")
            else:
                value = item.value.get("value", Node("", item.line))
                text = text_of(value, f"variable {quoted(name)}", faults) or ""
                if {*re.findall(_VARIABLE, text)} & late.keys():
                    late[name] = item
                else:
                    known = {each: node.value for each, node in found.items()}
                    found[name] = Node(_expanded(text, known), value.line, item.line)
        return found, late


def _meant(name: str) -> str:
    """What to write instead of a type of replicas that the operator does not know."""
    return did_you_mean(name, tuple(_ROLES)) or f"expected one of {', '.join(_ROLES)}"


def _name_of(node: Node) -> Any:
    """``name:`` of an item of a list; ``None``: it has none."""
    return node.value["name"].value if isinstance(node.value, dict) and "name" in node.value else None


def _like(node: Node) -> Node:
    """A setting with the text and the lines of a field."""
    return Node(node.value, node.line, node.key_line)


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """A word with the values of variables, as Kubernetes expands it; its braces are no placeholders.

    ``$(NAME)`` is a variable if there is one of that name, ``$$`` a ``$``.
    """
    known = {"TF_CONFIG": "{tf_config}", **variables}

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else known.get(match[1], match[0])

    return re.sub(_VARIABLE, value, literal(text, _ROLES.values()))
