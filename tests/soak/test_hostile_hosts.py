"""Hosts that lie, in more than 2,000 ways: the host counts as lost, and nothing else is harmed.

``make test`` runs 100 of the cases, most of them on this machine; with ``LAUNCH_SOAK`` all run.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch, executable
from tests.seeing import ROOT
from tests.soak import cases
from tests.soak.cases import Case
from tests.soak.pretender import TASK
from tests.ssh.host import LabHost

#: One case of so many runs: on this machine; over SSH and for `launch check`, where each takes longer. Over
#: SSH, one of so many of the agent's cases, which run on this machine, too. So many floods: each takes all
#: processors for as long as it runs.
_EACH, _EACH_ELSEWHERE, _FLOODS = (1, 1, 2) if os.environ.get("LAUNCH_SOAK") else (19, 80, 1)
_EACH_AGAIN = 5
#: Codes of jobs that come to their own end: the messages of the cases have 1 and 126; of floods.
_OWN, _FLOODED = (0, 1, 126), (124, 125)
#: kB of memory, and bytes of messages.
_MOST_MEMORY, _MOST_TEXT = 100_000, 40_000
_FORGED = re.compile(
    r"^(launch: )?(forged|launch: forged|first to fail: forged)|[\x00-\x08\x0b-\x1f\x7f\u202e]", re.M
)

pytestmark = pytest.mark.timeout(3700)


def attack(
    launch: Launch, folder: Path, launches: Sequence[dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    """The results of launches, see `tests.soak.attack`."""
    work = folder / "work"
    (folder / "plan.json").write_text("".join(f"{json.dumps(each)}\n" for each in launches))
    work.mkdir()
    command, env = [sys.executable, "-m", "tests.soak.attack"], {"PYTHONPATH": str(ROOT)}
    started = launch.start(folder, command=command, cwd=work, env=env)
    ended = started.wait(seconds, code=0)
    return [json.loads(line) for line in ended.out.splitlines()]


def faults(case: Case, result: dict[str, Any], host: str) -> list[str]:
    """What is wrong with the end of a launch."""
    code, text = result["code"], result["stderr"]
    shown = text + re.sub(r"(?m)^worker/\d+ .*$", "", result["stdout"])
    over = case.moment in ("gone", "closed")  # the job has come to its end
    right = (125, 0) if over else (125,) if case.wrong else (*_OWN, 125)
    where = shown if case.moment == cases.CHECK else text
    reasons = "failed|wrong|exited|killed|ended|copied|not fetched|no port|no answer|sent"
    about_host = re.search(rf"(?m)^(launch: .*)?\b{host}\b.*({reasons})", where)
    # That the job is stopped is told at once, the reason at the end.
    lines = set(re.findall(rf"(?m)^launch: host {host} (?!is lost; ).*", text))
    forged = _FORGED.search(shown)
    found = {
        f"exit code {code}": code not in (_FLOODED if case.endless else right),
        "no line about the host": case.wrong and not about_host,
        "more than one line about the host": len(lines) > 1 and not case.endless,
        "the case did not run": "could not be started there" in text,
        "a traceback": "Traceback" in shown or "InvalidTransition" in shown,
        f"forged: {forged}": forged,
        f"{len(shown)} characters": len(shown) > _MOST_TEXT,
        f"{result['memory']} kB of memory": result["memory"] > _MOST_MEMORY,
        f"made elsewhere: {result['elsewhere']}": result["elsewhere"],
    }
    return [f"{case.name}: {fault}\n{shown[:1500]}" for fault, is_so in found.items() if is_so]


def check(all_cases: Sequence[Case], results: Sequence[dict[str, Any]], host: str) -> None:
    """Fail if a launch ended in a wrong way."""
    pairs = zip(all_cases, results, strict=True)
    found = [fault for case, result in pairs for fault in faults(case, result, host)]
    memory, seconds = (max(result[name] for result in results) for name in ("memory", "seconds"))
    print(f"{len(results)} cases, {len(found)} faults, at most {memory} kB and {seconds:.0f} s")
    assert not found, f"{len(found)} faults\n" + "\n".join(found[:20])


@pytest.mark.promise("a hostile agent that speaks the protocol")
def test_the_agent_of_this_machine(launch: Launch, tmp_path: Path):
    chosen = cases.here()[::_EACH]
    words = ["--grace", "1", "--timeout", "20", "--run-dir", str(tmp_path / "run"), "--", "true"]
    launches = [{"argv": words, "case": case.as_json()} for case in chosen]
    check(chosen, attack(launch, tmp_path, launches, 3600), "localhost")


def over_ssh() -> list[Case]:
    """Those of the agent again, those about tasks of another host, and those of copies."""
    agents = cases.here()
    facts = [case for case in agents if case.name.startswith(("AgentReady", "PeersTried"))]
    others = [
        case._replace(raw=case.raw.replace(TASK, b"worker/0"), wrong=case.moment != "closed")
        for case in cases.wrong_order()
        if TASK in case.raw
    ]
    return [*agents[::_EACH_AGAIN], *facts[::2], *others[::3], *cases.files()]


#: Named as the Python of a host: its case is beside it.
EVIL = """\
#!{python} -IS
import sys
sys.path.insert(0, {root!r})
from tests.soak import pretender
pretender.on_host(sys.argv[0] + ".json")
"""


def evil_hosts(host: LabHost, folder: Path, chosen: Sequence[Case], workdir: bool) -> Iterator[Path]:
    """Hostfiles with an honest host and one that does what a case says, for each of the cases."""
    there = host.there(host.home) / "evil"
    there.mkdir(exist_ok=True)
    host.expected.append("evil")
    for number, case in enumerate(chosen):
        executable(there / str(number), EVIL.format(python=sys.executable, root=str(ROOT)))
        (there / f"{number}.json").write_text(json.dumps(case.as_json()))
        hostfile = folder / f"{number}.yaml"
        where = ", workdir: /" if workdir and "--sync" not in case.words else ""
        names = f"{{name: node1{where}}}, {{name: node2{where}, python: ~/evil/{number}}}"
        hostfile.write_text(f"hosts: [{names}]")
        yield hostfile


@pytest.mark.long
@pytest.mark.promise("a hostile agent that speaks the protocol")
def test_a_host_over_ssh(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    """The other host runs an agent of ours: its task ends with the job."""
    chosen = [*over_ssh()[::_EACH_ELSEWHERE], *cases.endless()[:_FLOODS]]
    limits = ["--grace", "1", "--timeout", "30", "--run-dir", str(tmp_path / "run")]
    launches = []
    for case, hostfile in zip(chosen, evil_hosts(hosts[1], tmp_path, chosen, workdir=True), strict=True):
        over = case.moment in ("gone", "closed")
        ends = not case.endless and (case.words or over or not case.wrong)
        words = [*limits, "--hosts", str(hostfile), "--workers", "2", *case.words]
        argv = [*words, "--", "sleep", "0.2" if ends else "300.5"]
        launches.append({"argv": argv, "case": None})
    check(chosen, attack(ssh_launch, tmp_path, launches, 3600), "node2")
    assert not [process for process in hosts[0].processes() if "300.5" in process.argv]


def test_launch_check(ssh_launch: Launch, hosts: list[LabHost], tmp_path: Path):
    chosen = cases.checks()[::_EACH_ELSEWHERE]
    files = evil_hosts(hosts[1], tmp_path, chosen, workdir=False)
    launches = [{"argv": ["check", "--timeout", "5", str(file)], "case": None} for file in files]
    check(chosen, attack(ssh_launch, tmp_path, launches, 3600), "node2")
