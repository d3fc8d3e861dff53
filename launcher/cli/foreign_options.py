"""Commands and options of other launchers, and what to type instead.

They are mpirun (Open MPI, MPICH), torchrun, horovodrun, deepspeed, Ray, Slurm, Docker and Kubernetes.
"""

from __future__ import annotations

import re

from launcher.common.record import Record

#: A first word that other launchers have as a command -> what to type. Programs that users launch
#: (``hostname``, ``ls``, ``env``) are not here.
COMMANDS = {
    word: answer
    for words, answer in (
        ("status show list describe info get inspect job jobs runs queue monitor tasks top", "launch ps"),
        ("history", "launch ps --all"),
        ("cancel kill down delete terminate abort shutdown", "launch stop"),
        ("node nodes inventory", "launch hosts FILE_OR_LIST"),
        ("wait connect resume", "launch attach"),
        ("doctor validate verify", "launch check"),
        ("plan config", "launch --dry-run PROGRAM"),
        ("submit", "launch --detach PROGRAM"),
        ("sbatch", "launch --slurm --detach PROGRAM"),
        ("srun salloc", "launch --slurm PROGRAM"),
        ("scancel", "launch stop"),
        ("squeue sacct", "launch ps"),
        ("exec start init", "launch PROGRAM"),
        ("up apply create deploy", "launch JOB.yaml"),
        ("version", "launch --version"),
        ("prune cleanup", "launch clean"),
        ("usage", "launch help"),
        ("cp", "launch --sync DIR --collect PATH PROGRAM"),
    )
    for word in words.split()
}


class ForeignOption(Record):
    """An option of other launchers."""

    #: Number of values after the option.
    values: int
    #: What to type; ``{}`` is the user's value, ``{written}`` the option with it.
    answer: str
    #: Whether the values are a variable, which may be secret: only its name is shown.
    secret: bool = False

    def fault(self, option: str, given: list[str]) -> str:
        """The message for this option with these values."""
        if self.secret:
            names = [re.sub("=.*", "=...", value, flags=re.DOTALL) for value in given[:1]]
            given = names + ["..."] * len(given[1:])
        written = " ".join([option, *given])
        return f"{written}: {self.answer.format(*given or ['VALUE'], written=written)}"


_LEAVE_OUT = "leave it out: "
_RENDEZVOUS = _LEAVE_OUT + "launch chooses the addresses and ports, and each task has them in TF_CONFIG"
_SLURM = "it is an option of Slurm: use --slurm-options='{written}'"
_MPI = _LEAVE_OUT + "it is an option of Open MPI"
_PER_HOST = "--workers N is the number in all; the tasks of a host are its slots: --hosts node1:{0},node2:{0}"

#: Names, then the answer; an option without a value has 0 before it.
_TABLE: tuple[tuple[str, ForeignOption], ...] = (
    (
        "-n -np --np --nproc -nproc --nprocs --ntasks --num-proc --num-processes --num-workers --nworkers",
        ForeignOption(1, "use --workers {}"),
    ),
    ("--num-ps --nps --parameter-servers --num-servers", ForeignOption(1, "use --ps {}")),
    ("--nproc-per-node --num-gpus -ppn --ppn -npernode --npernode", ForeignOption(1, _PER_HOST)),
    ("--ntasks-per-node", ForeignOption(1, _PER_HOST + "; on Slurm write it into --slurm-options")),
    ("--nnodes --num-nodes", ForeignOption(1, "use --hosts node1,node2, or --slurm -N {}, and --workers N")),
    ("--master", ForeignOption(0, "use --chief")),
    ("-e", ForeignOption(1, "use -x {}", secret=True)),
    ("-env -genv --genv", ForeignOption(2, "use -x {0}=VALUE", secret=True)),
    ("--env-file", ForeignOption(1, "use -x NAME=VALUE, or env: in a job file")),
    (
        "--hostfile -hostfile --machinefile -machinefile --machines --inventory -H --host -host --address",
        ForeignOption(1, "use --hosts {}"),
    ),
    ("--nodelist", ForeignOption(1, "use --hosts {}; on Slurm write it into --slurm-options")),
    ("--max-restarts --retries --max-retries --backoff-limit", ForeignOption(1, "use --restarts {}")),
    ("--gpus-per-task --gpus-per-worker", ForeignOption(1, "for GPUs per task use --gpus {}")),
    ("--gres", ForeignOption(1, "for GPUs per task use --gpus N; Slurm's are --gpus-per-node N")),
    ("--image --container --container-image", ForeignOption(1, "use --docker {}")),
    ("--volume --volumes --bind -B", ForeignOption(1, "use --mount {}")),
    ("--wdir -wdir --wd -wd --cwd --chdir --working-dir", ForeignOption(1, "use --workdir {}")),
    (
        "--log-dir --logs --output-filename --output --output-dir -o",
        ForeignOption(1, "logs and results are in the folder of the run: use --run-dir {}"),
    ),
    (
        "--name --job-name -J --run-name",
        ForeignOption(1, "launch names the run; for its folder use --run-dir {}"),
    ),
    ("--resume", ForeignOption(0, "it is an option of your program: write it after the program")),
    ("--background --bg --daemon", ForeignOption(0, "use --detach")),
    ("--rm", ForeignOption(0, _LEAVE_OUT + "containers are removed at the end; --keep leaves them")),
    ("-it -ti --tty --interactive", ForeignOption(0, _LEAVE_OUT + "tasks have no terminal")),
    (
        "--oversubscribe -oversubscribe --overcommit",
        ForeignOption(0, _LEAVE_OUT + "a host without slots takes all tasks, --hosts node1:8 takes 8"),
    ),
    ("--allow-run-as-root -allow-run-as-root", ForeignOption(0, _LEAVE_OUT + "launch runs as any user")),
    (
        "--rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --master-addr --master-port --node-rank "
        "--machine-rank --coordinator-address --port --ports --publish",
        ForeignOption(1, _RENDEZVOUS),
    ),
    (
        "-p",
        ForeignOption(
            1, "for Slurm's partition use --partition {}; ports need no option: launch chooses them"
        ),
    ),
    ("--standalone", ForeignOption(0, _LEAVE_OUT + "without --hosts all tasks run on this machine")),
    (
        "--identity --identity-file --ssh-identity-file --ssh-key",
        ForeignOption(1, "write IdentityFile {} for the host into ~/.ssh/config"),
    ),
    ("--ssh-port", ForeignOption(1, "write port={} into the host's line of the hostfile of --hosts")),
    (
        "--tag-output -tag-output --label -l",
        ForeignOption(0, _LEAVE_OUT + "each line has the name of its task"),
    ),
    ("--mca -mca", ForeignOption(2, _MPI)),
    (
        "--bind-to -bind-to --map-by -map-by --rank-by",
        ForeignOption(1, _MPI + "; the order and slots of --hosts count"),
    ),
    ("--time-limit --walltime", ForeignOption(1, "use --timeout, as in --timeout 30m")),
    (
        "--mem",
        ForeignOption(1, "use --memory {} with --docker IMAGE; on Slurm write it into --slurm-options"),
    ),
    (
        "--cpus-per-task",
        ForeignOption(1, "use --cpus {} with --docker IMAGE; on Slurm write it into --slurm-options"),
    ),
    ("-t", ForeignOption(1, "for the time limit at Slurm use --time {}, for that of launch --timeout")),
    ("-A", ForeignOption(1, "for the account at Slurm use --account {}")),
    ("-G", ForeignOption(1, "for GPUs per task use --gpus N; Slurm's are --gpus-per-node N")),
    ("--wrap", ForeignOption(1, "write the program last: launch --slurm --detach {}")),
    (
        "--qos --constraint -C --reservation --array --dependency --mail-user --mail-type --mem-per-cpu "
        "--licenses -L --begin --exclude -w",
        ForeignOption(1, _SLURM),
    ),
    ("--exclusive --requeue --hold", ForeignOption(0, _SLURM)),
    ("--kubeconfig", ForeignOption(1, "set the variable KUBECONFIG={}")),
    ("-f --file --filename --config --job", ForeignOption(1, "write the job file as an argument: launch {}")),
    (
        "--script --program --command --cmd --entrypoint",
        ForeignOption(1, "write the program last: launch {}"),
    ),
    ("--module", ForeignOption(1, "use -m {}")),
    ("--no-python", ForeignOption(0, _LEAVE_OUT + "only files that end with .py are run with Python")),
    ("--log-level --loglevel", ForeignOption(1, _LEAVE_OUT + "--json prints every event")),
    ("--debug", ForeignOption(0, _LEAVE_OUT + "--json prints every event")),
)
OPTIONS = {name: peer for names, peer in _TABLE for name in names.split()}


def option(name: str) -> ForeignOption | None:
    """The option of another launcher with this name; underscores count as dashes."""
    return OPTIONS.get(name.replace("_", "-"))
