"""Turns Kubeflow's TFJob into the job file that does the same. docs/tfjob.md compares both, field by field.

`launcher.config.jobfile` calls `job_of` and reads the result like any job file. The values keep the lines of
the TFJob. No other package may know TFJobs: fields of a template that only Kubernetes uses become ``pods:``
of the job file.

One note names everything that launch does not use. If the program would behave differently without such a
field, the field is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.common.record import replace
from launcher.common.text import did_you_mean
from launcher.config import schema, values
from launcher.config.documents import ConfigNode, FaultList, Target, quoted
from launcher.config.pod_template import PodTemplate, any_keys, read_template
from launcher.config.schema import KeySpec, MappingValues, key_table, mapping, mapping_of, single
from launcher.job import CHIEF_ROLES, MAX_TASKS

#: The last version of TFJobs, and earlier ones that have its form.
_VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1", "kubeflow.org/v1alpha2")
#: The types of replicas, which are the names of roles in lower case.
_TYPES = ("Chief", "Master", "PS", "Worker", "Evaluator")
#: The limit of restarts for a TFJob that sets none. A task that fails in the same way each time starts again
#: only twice in any case.
_DEFAULT_RESTARTS = "1000"

# ---------------------------------------------------------------------- keys


_COUNT = single(values.whole(0, MAX_TASKS))
_SECONDS = single(values.whole(1, values.MAX_DAYS * 86_400))
_POLICY = key_table(
    KeySpec("cleanPodPolicy", single(values.OneOf("All", "Running", "None"))),
    KeySpec("activeDeadlineSeconds", _SECONDS),
    KeySpec("backoffLimit", _COUNT),
    *any_keys("suspend", "ttlSecondsAfterFinished", "schedulingPolicy", "managedBy"),
)
_SPEC = key_table(
    *any_keys("tfReplicaSpecs", "enableDynamicWorker"),
    KeySpec("successPolicy", single(values.matching("|AllWorkers", 'expected AllWorkers, or ""'))),
    KeySpec("runPolicy", mapping(_POLICY, "expected a mapping, as in cleanPodPolicy: Running")),
    *_POLICY.values(),  # Earlier versions have these keys here.
)
_TFJOB = key_table(
    KeySpec("apiVersion", single(values.OneOf(*_VERSIONS))),
    KeySpec("spec", mapping(_SPEC, "expected a mapping with tfReplicaSpecs:")),
    *any_keys("kind", "metadata", "status"),
)
_REPLICAS = key_table(
    KeySpec("replicas", _COUNT),
    KeySpec("restartPolicy", single(values.OneOf("Never", "OnFailure", "Always", "ExitCode"))),
    *any_keys("template"),
)
# ---------------------------------------------------------------------- the file


def job_of(node: ConfigNode, target: Target, faults: FaultList, notes: list[str]) -> ConfigNode | None:
    """Return the job file that does the same as a TFJob.

    Args:
        node: The mapping of the TFJob.
        target: What the command line says about the tasks.
        faults: Receives the faults of the TFJob.
        notes: Receives notes for the user.

    Returns:
        The mapping of the job file, or None if there are faults.
    """
    tfjob = _TFJob(target, faults, notes)
    job_file = tfjob.job(node)
    tfjob.note_unused()
    return None if faults else job_file


class _TFJob:
    """A converter of one TFJob to a job file.

    Args:
        target: What the command line says about the tasks, such as whether Kubernetes runs them.
        faults: Receives the faults of the TFJob.
        notes: Receives notes for the user.
    """

    def __init__(self, target: Target, faults: FaultList, notes: list[str]) -> None:
        self._target, self._faults, self._notes = target, faults, notes
        #: The lines of everything that launch does not use, by its name.
        self._unused: dict[str, list[int]] = {}
        #: The pod template of each type of replicas.
        self._templates: dict[str, PodTemplate] = {}

    def note_unused(self) -> None:
        """Add a note that names everything in the TFJob that launch does not use, by its lines."""
        names: list[str] = []
        for lines, name in sorted((sorted(set(lines)), name) for name, lines in self._unused.items()):
            places = [f":{line}" for line in lines]
            if not names:  # Only the first place of the note names the file.
                places[0] = self._faults.where(lines[0])
            names.append(f"{name} ({', '.join(places)})")
        if names:
            fields = ", ".join(names)
            self._notes.append(f"these fields of the TFJob have no effect: {fields}; see docs/tfjob.md")

    def _leave(self, name: str, node: ConfigNode) -> None:
        """Remember a part of the TFJob that launch does not use, for the note about all of them."""
        self._unused.setdefault(name, []).append(node.key_line or node.line)

    def job(self, node: ConfigNode) -> ConfigNode:
        """Return the mapping of the job file, and add the faults of the TFJob."""
        faults, top = self._faults, schema.read_mapping(node, _TFJOB, self._faults, owner="of the TFJob")
        for key, expected in (("apiVersion", _VERSIONS[0]), ("spec", "spec.tfReplicaSpecs")):
            top.report_missing(key, f"the TFJob has no {key}", f"expected {expected}")
        if top.get("apiVersion", _VERSIONS[0]) != _VERSIONS[0]:
            where = faults.where(top.line_of("apiVersion"))
            self._notes.append(f"{where}: this version of TFJob is read as {_VERSIONS[0]}")
        spec = top.get("spec")
        if spec is None:  # This is a fault, so nobody uses the result.
            return node
        policy = spec.get("runPolicy", MappingValues(spec.line, faults))
        # Earlier versions have the keys of the runPolicy in the spec itself.
        for key in _POLICY.keys() & spec.nodes.keys() - policy.nodes.keys():
            policy.nodes[key] = spec.nodes[key]
            policy.update(spec.some(key))
        roles = self._roles(spec)
        self._check_programs()
        line = spec.line_of("tfReplicaSpecs")
        return ConfigNode(
            {
                "roles": ConfigNode(roles, line, line),
                **self._engine(top.nodes.get("metadata", ConfigNode({}))),
                **self._restarts(roles, policy),
                **self._end(roles, spec, policy),
            }
        )

    def _engine(self, metadata: ConfigNode) -> dict[str, ConfigNode]:
        """Return the section ``docker:`` or ``kubernetes:`` of the job file, if the tasks run in containers.

        With Docker the folders of the user are not mounted, because pods, too, see only the files of their
        images.

        Args:
            metadata: The ``metadata`` of the TFJob, which may name the namespace.
        """
        engine = self._target.engine
        if not engine:
            return {}
        # A job file has one policy for all roles, but each template can have its own. The last one counts.
        pull_policies = [template.pull for template in self._templates.values() if template.pull]
        settings = {"pull": ConfigNode(pull_policies[-1])} if pull_policies else {}
        if engine == "docker":
            settings["no_mount"] = ConfigNode("true")
        else:
            metadata_keys = mapping_of(metadata, "metadata", self._faults)
            if "namespace" in metadata_keys:
                settings["namespace"] = metadata_keys["namespace"]
            pods = {name.lower(): template.unused for name, template in self._templates.items()}
            settings["pods"] = ConfigNode(pods)
        return {engine: ConfigNode(settings)}

    def _end(
        self, roles: Mapping[str, ConfigNode], spec: MappingValues, policy: MappingValues
    ) -> dict[str, ConfigNode]:
        """Return the settings of the job file about the end of the job, ``timeout`` and ``done_when``.

        Fields of the TFJob about its end that launch does not use are remembered for the note about them.

        Args:
            roles: The roles of the job file.
            spec: The values of the ``spec`` of the TFJob.
            policy: The values of its ``runPolicy``.
        """
        settings = {}
        if "activeDeadlineSeconds" in policy:
            settings["timeout"] = policy.nodes["activeDeadlineSeconds"]
        # A TFJob without a chief is done when worker 0 is, or all workers by the success policy. Without a
        # chief, ``done_when: chief`` of a job file means worker 0.
        if "worker" in roles and not roles.keys() & {*CHIEF_ROLES}:
            done_when = "workers" if spec.get("successPolicy") == "AllWorkers" else "chief"
            settings["done_when"] = ConfigNode(done_when, spec.line, spec.line_of("successPolicy"))
        elif spec.get("successPolicy"):
            self._leave("successPolicy, as there is a chief", spec.nodes["successPolicy"])
        written = {**spec.nodes, **policy.nodes}
        for key in (
            "ttlSecondsAfterFinished", "schedulingPolicy", "managedBy", "suspend", "enableDynamicWorker",
        ):  # fmt: skip
            if key in written:
                self._leave(key, written[key])
        if policy.get("cleanPodPolicy") == "None":
            self._leave("cleanPodPolicy: None", policy.nodes["cleanPodPolicy"])
        return settings

    def _restarts(self, roles: Mapping[str, ConfigNode], policy: MappingValues) -> dict[str, ConfigNode]:
        """Return the settings of the job file about restarts, and set the keys of roles about them.

        In a job file the number of restarts is one for all roles, and each role may be excepted. So:

        - If no role restarts, or the ``backoffLimit`` is 0, nothing is set, because that is the default.
        - A role with ``Never`` beside others that restart gets ``restart: never``.
        - A role with ``ExitCode`` restarts only after exit codes that Kubeflow calls retryable.
        - ``Always`` counts as ``OnFailure``, because launch restarts no task that has succeeded.

        Args:
            roles: The roles of the job file. The ``restartPolicy`` of each is replaced by the keys of job
                files that do the same.
            policy: The values of the ``runPolicy`` of the TFJob.
        """
        default = ConfigNode("Never")  # This is the default of Kubeflow, too.
        policies = {name: role.value.pop("restartPolicy", default) for name, role in roles.items()}
        for node in policies.values():
            if node.value == "Always":
                self._leave("restartPolicy: Always after exit code 0", node)
        with_restarts = [node for node in policies.values() if node.value != "Never"]
        if not with_restarts or policy.get("backoffLimit") == 0:
            return {}
        for name, node in policies.items():
            if node.value == "Never":
                roles[name].value["restart"] = replace(node, value="never")
            elif node.value == "ExitCode":
                roles[name].value["retryable"] = replace(node, value=[replace(node, value="128-255")])
        # A TFJob without a backoffLimit has in effect no limit.
        default_limit = replace(with_restarts[0], value=_DEFAULT_RESTARTS)
        return {"restarts": policy.nodes.get("backoffLimit", default_limit)}

    # ------------------------------------------------------------------ roles

    def _roles(self, spec: MappingValues) -> dict[str, ConfigNode]:
        """Return the roles of the job file by their names, and add the faults of the types of replicas.

        Args:
            spec: The values of the ``spec`` of the TFJob.
        """
        faults = self._faults
        problem, expected = "spec has no tfReplicaSpecs", "expected them, as in Worker: ..."
        if spec.report_missing("tfReplicaSpecs", problem, expected):
            return {}
        roles: dict[str, ConfigNode] = {}
        for name, written in mapping_of(spec.nodes["tfReplicaSpecs"], "tfReplicaSpecs", faults).items():
            role = name.lower()
            # A job contains only one chief, under one of its two names. Kubeflow accepts names in any case,
            # so other types may be written twice, too.
            names_of_role = CHIEF_ROLES if role in CHIEF_ROLES else (role,)
            twins = [other for other in names_of_role if other in roles]
            if role not in [known.lower() for known in _TYPES]:
                expected = did_you_mean(name, _TYPES) or f"expected one of {', '.join(_TYPES)}"
                faults.add(written.key_line, f"unknown type of replicas {quoted(name)}", expected)
            elif twins:
                problem = f"{quoted(name)} beside the {twins[0]} of line {roles[twins[0]].key_line}"
                faults.add(written.key_line, problem, "expected one of them")
            elif not isinstance(written.value, dict):
                faults.add_kind(written, name, "expected a mapping with replicas: and template:")
            else:
                roles[role] = replace(written, value=self._role(name, written))
        return roles

    def _role(self, name: str, written: ConfigNode) -> dict[str, ConfigNode]:
        """Return the keys of one role, and its ``restartPolicy``, which `_restarts` removes.

        Args:
            name: The type of replicas, such as ``Worker``.
            written: The mapping of the replicas.
        """
        keys = schema.read_mapping(written, _REPLICAS, self._faults, owner=f"of {name}")
        names = {"replicas": "count", "restartPolicy": "restartPolicy"}
        role = {key_of_role: keys.nodes[key] for key, key_of_role in names.items() if key in keys}
        template = read_template(name, written, self._target, self._faults, self._leave)
        if template is None:
            return role
        self._templates[name] = template
        return {**role, **template.role}

    def _check_programs(self) -> None:
        """Add a fault for each container without a program, or for a program that no container needs.

        A container without a command runs the program of the command line.
        """
        program = self._target.program
        needs_program = {name: found.line for name, found in self._templates.items() if not found.commanded}
        for name, line in needs_program.items() if not program else ():
            problem = f"the container of {name} has no command, and launch does not read that of its image"
            expected = "expected command:, or the program after the file, as in launch tfjob.yaml train.py"
            self._faults.add(line, problem, expected)
        # A template with a fault is missing, and may be the one that needs the program.
        if program and not needs_program and not self._faults:
            expected = "only options follow this TFJob: its containers have commands"
            self._faults.add(0, f"unexpected argument {program[0]!r}", expected)
