"""``launch export``: what the files say. The tests of Slurm, Kubernetes and Docker run them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from tests.conftest import Launch
from tests.unit.config.answers import answered

IMAGE = ("--docker", "registry.lab/tf:2")


def exported(launch: Launch, *words: str, **settings: Any) -> str:
    ended = launch.here("export", *words, **settings, code=0)
    return ended.out


def environments(form: str, text: str) -> list[dict[str, str]]:
    """The variables of all tasks, as Kubernetes and Compose expand them."""
    if form == "compose":
        services = yaml.safe_load(text)["services"].values()
        return [{n: v.replace("$$", "$") for n, v in each["environment"].items()} for each in services]
    found = []
    for each in yaml.safe_load_all(text):
        for index in range(each["spec"]["completions"] if each["kind"] == "Job" else 0):
            env = {"TASK_INDEX": str(index)}
            for entry in each["spec"]["template"]["spec"]["containers"][0]["env"]:
                if "value" in entry:
                    parts = re.split(r"(\$\$|\$\(\w+\))", entry["value"])
                    values = ("$" if part == "$$" else env[part[2:-1]] for part in parts[1::2])
                    parts[1::2] = values
                    env[entry["name"]] = "".join(parts)
            found.append(env)
    return found


def by_task(env: dict[str, str]) -> Any:
    """TF_CONFIG of a task, with names of tasks in place of addresses; checks the other variables."""
    cluster, config = json.loads(env["CLUSTER_SPEC"]), json.loads(env["TF_CONFIG"])
    names = {a: f"{role}/{n}" for role, addresses in cluster.items() for n, a in enumerate(addresses)}
    me = f"{env['JOB_NAME']}/{env['TASK_INDEX']}"
    assert names[env["TASK_ADDRESS"]] == me == f"{config['task']['type']}/{config['task']['index']}"
    config["cluster"] = {role: [names[a] for a in addresses] for role, addresses in config["cluster"].items()}
    return me, config


#: A TFJob with a volume.
ECHO_JOB = """\
apiVersion: kubeflow.org/v1
kind: TFJob
spec:
  tfReplicaSpecs:
    Worker:
      template:
        spec:
          volumes: [{name: d, emptyDir: {}}]
          containers:
          - {name: tensorflow, image: 'tf:9', command: [echo, hi], volumeMounts: [{name: d, mountPath: /d}]}
"""


@pytest.mark.parametrize("form", ["kubernetes", "compose"])
def test_tasks_get_the_tf_config_of_a_launch(launch: Launch, tmp_path: Path, form: str):
    (tmp_path / "job.yaml").write_text(
        "command: [train.py]\ndocker: tf\n"
        "roles: {ps: 2, chief: 1, worker: 3, evaluator: 1, data_2: {count: 2, service: true}}\n"
    )
    plan = launch.here("--dry-run", "job.yaml", cwd=tmp_path).out
    _, *blocks = re.split(r"\n# \S+/\d on .*\n", plan)
    planned = [dict(re.findall(r"(?m)^  (\w+)='?(.*?)'? \\$", block)) for block in blocks]
    text = exported(launch, form, "job.yaml", cwd=tmp_path)
    assert len(planned) == 9
    assert [by_task(env) for env in environments(form, text)] == [by_task(env) for env in planned]
    assert text == exported(launch, form, "job.yaml", cwd=tmp_path), "it is the same each time"


@pytest.mark.parametrize("form", ["kubernetes", "compose", "slurm"])
def test_values_of_variables_of_this_machine_are_not_written(launch: Launch, tmp_path: Path, form: str):
    image = () if form == "slurm" else IMAGE
    words = (*image, "--workers", "2", "-x", "TOKEN", "-x", "SECRET_*", "-x", "SHOWN=yes", "--", "env")
    text = exported(launch, form, *words, cwd=tmp_path, env={"TOKEN": "hunter2", "SECRET_A": "hunter3"})
    assert "hunter" not in text
    assert "TOKEN" in text and "SECRET_A" in text and "yes" in text


def test_the_job_of_slurm_around_it_does_not_matter(launch: Launch, tmp_path: Path):
    ended = launch.here("export", "slurm", "-N", "2", "true", cwd=tmp_path, env={"SLURM_JOB_ID": "5"})
    assert (ended.code, ended.err) == (0, "") and "#SBATCH --job-name=true --nodes=2" in ended.out


def test_limits_images_and_gpus(launch: Launch, tmp_path: Path, snapshot: SnapshotAssertion):
    (tmp_path / "job.yaml").write_text(
        "command: [true]\nroles:\n"
        "  ps: {image: small}\n"
        "  worker:\n    count: 2\n    image: big\n"
        "    resources: {limits: {cpu: 1500m, memory: 1Gi, nvidia.com/gpu: 2}}\n"
        "timeout: 90s\nrestarts: 2\ngrace: 7s\n"
    )
    words = ("job.yaml", "--user", "7:8", "--pull", "never", "--memory", "ps=6m")
    *_, worker, ps = yaml.safe_load_all(exported(launch, "kubernetes", *words, cwd=tmp_path))
    services = yaml.safe_load(exported(launch, "compose", *words, cwd=tmp_path))["services"]
    made = {"kubernetes": [worker["spec"], ps["spec"]], "compose": [services["worker-1"], services["ps-0"]]}
    assert yaml.safe_dump(made).replace(str(tmp_path), "/work") == snapshot
    *_, ps = yaml.safe_load_all(exported(launch, "kubernetes", "job.yaml", "--user", "0", cwd=tmp_path))
    assert "runAsNonRoot" not in ps["spec"]["template"]["spec"]["securityContext"]


def test_the_config_map_has_the_program(launch: Launch, tmp_path: Path, weird_path: Path):
    """The script and the modules beside it, if they are small; no name breaks a comment."""
    (weird_path / "model\nkind: Pod.py").write_text("x = 1\n")
    (weird_path / "data.py").write_text("# é\t\x85 \n")
    (weird_path / "train.py").write_text("import data\n\n  # end without a line feed\t")
    text = exported(launch, "kubernetes", *IMAGE, f"{weird_path.name}/train.py", cwd=tmp_path)
    config, service, job = yaml.safe_load_all(text)
    (volume,) = (v for v in job["spec"]["template"]["spec"]["volumes"] if "configMap" in v)
    keys = {item["path"]: item["key"] for item in volume["configMap"]["items"]}
    data = config["data"]
    assert set(keys) == {"start.py", *(f"files/{p.relative_to(tmp_path)}" for p in weird_path.iterdir())}
    for name in ("train.py", "data.py"):
        assert data[keys[f"files/{weird_path.name}/{name}"]] == (weird_path / name).read_text()
    (weird_path / "large.py").write_text("#" * 1_000_000)
    text = exported(launch, "kubernetes", *IMAGE, f"{weird_path.name}/train.py", cwd=tmp_path)
    config, service, job = yaml.safe_load_all(text)
    assert set(config["data"]) == {"start.py"} and "no file of the program" in text


#: The words of a program, and the files of the folder that the ConfigMap has.
PKG = "pkg/__init__.py pkg/sub/__init__.py pkg/sub/net.py pkg/train.py helper.py lib/__init__.py"
PROGRAMS = [
    ("-m pkg.train", PKG),
    ("-m pkg", f"{PKG} pkg/__main__.py"),
    ("-m spaced.run", "spaced/run.py"),
    ("-m helper", "helper.py lib/__init__.py"),
    ("main.py", "main.py helper.py lib/__init__.py broken.py"),
    ("python3 -u main.py", "main.py helper.py lib/__init__.py"),
    ("-m tensorflow.nosuch", ""),
    ("-m json.tool", ""),
]  # fmt: skip


@pytest.mark.promise("an exported program has its modules and packages, or it is said")
@pytest.mark.parametrize(("words", "files"), PROGRAMS, ids=[words for words, _ in PROGRAMS])
def test_the_config_map_has_what_modules_import(launch: Launch, tmp_path: Path, words: str, files: str):
    texts = {
        "pkg/__init__.py": "", "pkg/train.py": "import json\nfrom helper import x\nfrom .sub import net\n",
        "pkg/sub/__init__.py": "", "pkg/sub/net.py": "",
        "helper.py": "x = 1\ndef f():\n    import lib.a, os\n",
        "lib/__init__.py": "", "lib/data/x.py": "", "spaced/run.py": "", "spaced/other.py": "",
        "other/__init__.py": "",
        "main.py": "import helper, json\n", "broken.py": "import other (\n",
    }  # fmt: skip
    if words == "-m pkg":
        texts["pkg/__main__.py"] = "from pkg import train\n"
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    if "main.py" not in words:
        (tmp_path / "broken.py").unlink()
    ended = launch.here("export", "kubernetes", *IMAGE, *words.split(), cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    config, _, job = yaml.safe_load_all(ended.out)
    (volume,) = (v for v in job["spec"]["template"]["spec"]["volumes"] if "configMap" in v)
    paths = {item["path"].removeprefix("files/") for item in volume["configMap"]["items"]}
    assert paths == {"start.py", *files.split()}
    folder = tmp_path / "home"  # as in a pod: the files are copied there
    for name in files.split():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(texts[name])
    if files:
        program = words.removeprefix("python3").split()
        subprocess.run([sys.executable, *program], cwd=folder, timeout=60, check=True)


def test_a_program_of_the_images_gets_no_files_of_this_folder(launch: Launch, tmp_path: Path):
    (tmp_path / "setup.py").touch()
    ended = launch.here("export", "kubernetes", *IMAGE, "train.py", cwd=tmp_path, code=0)
    assert "train.py is not here" in ended.err and "setup.py" not in ended.out


@pytest.mark.promise("an exported program has its modules and packages, or it is said")
def test_what_the_config_map_can_not_have_is_said(
    launch: Launch, tmp_path: Path, snapshot: SnapshotAssertion
):
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "__init__.py").write_text("#" * 1_000_000)
    (tmp_path / "train.py").write_text("import big\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "latin.py").write_bytes(b"\xff")
    for name in ("cfg.json", "run.sh", "../z.py"):
        (tmp_path / name).touch()
    named = "sh ./run.sh --config=cfg.json --data=no.csv train.py ../z.py /etc/passwd"
    programs = ["train.py", "-m big", f"{named} {'x' * 5000} {'y' * 5000}.py", "sub/latin.py", "nosuch.py"]
    answers = []
    for words in (*programs, f"{tmp_path}/train.py"):
        ended = launch.here("export", "kubernetes", *IMAGE, *words.split(), cwd=tmp_path, code=0)
        answers.append(answered(words, ended.err.splitlines()).replace(str(tmp_path), "/work"))
    assert "\n".join(answers) == snapshot


def test_each_form_implies_its_engine(launch: Launch, tmp_path: Path):
    """The images are those of the roles; options of the engine need no other."""
    (tmp_path / "tfjob.yaml").write_text(ECHO_JOB)
    (tmp_path / "job.yaml").write_text("command: [echo]\nroles: {worker: {image: 'tf:9'}}\n")
    for name in ("tfjob.yaml", "job.yaml"):
        text = exported(launch, "kubernetes", name, "--namespace", "ml", cwd=tmp_path)
        *_, job = yaml.safe_load_all(text)
        spec = job["spec"]["template"]["spec"]
        assert (job["metadata"]["namespace"], spec["containers"][0]["image"]) == ("ml", "tf:9")
        assert ("d" in [volume["name"] for volume in spec["volumes"]]) is (name == "tfjob.yaml")
        text = exported(launch, "compose", name, "--user", "7:8", cwd=tmp_path)
        (service,) = yaml.safe_load(text)["services"].values()
        assert (service["image"], service["user"]) == ("tf:9", "7:8")
    (tmp_path / "job.yaml").write_text("command: [echo]\nroles: {worker: 1}\ndocker: tf:9\n")
    assert "image: 'tf:9'" in exported(launch, "kubernetes", "job.yaml", cwd=tmp_path)
    (tmp_path / "job.yaml").write_text("command: [echo]\nroles: {worker: 1}\nkubernetes: {pod: {}}\n")
    ended = launch.here("export", "kubernetes", "job.yaml", cwd=tmp_path)
    assert (ended.code, "worker has no image" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("job.yaml", "command: a\nroles: {worker: {image: a b}}\n", "--kubernetes --namespace ml"),
        ("job.yaml", "command: a\nroles: {worker: 1}\nkubernetess: tf\n", "--namespace ml --memory 1g"),
        ("job.yaml", "command: a\nroles: {worker: 1}\nnosuch: 1\nslurm: {nodes: 2}\n", "--time 5 -N 3"),
        ("job.yaml", "command: a\nroles: {worker: 1}\n", "--kubernetes=a.py --namespace ml --memory 1g"),
    ],
)  # fmt: skip
def test_a_fault_that_hides_the_engine_is_the_only_one(
    launch: Launch, tmp_path: Path, name: str, text: str, options: str
):
    (tmp_path / name).write_text(text)
    ended = launch.here(name, *options.split(), cwd=tmp_path)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err


def test_a_pod_says_which_name_it_waits_for(launch: Launch, tmp_path: Path):
    words = ("--kubernetes", "tf", "--start-timeout", "3", "true")
    config = next(yaml.safe_load_all(exported(launch, "kubernetes", *words, cwd=tmp_path)))
    environ = {"CLUSTER_SPEC": '{"worker": ["localhost:1", "no.such.invalid:1"]}'}
    command = [sys.executable, "-c", config["data"]["start.py"], "true"]
    done = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True, timeout=60)
    said = done.stderr.splitlines()
    assert done.returncode == 1 and len(said) == 2
    assert said[0].removeprefix("waiting for the name ") == said[1]
    assert said[1].startswith("no.such.invalid: ")
