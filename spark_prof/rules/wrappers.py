"""Programs that start another one: what stands between their name and that program.

Options by each program's own help: util-linux 2.41, coreutils 9, procps, strace 6, perf 6, gdb 15,
systemd 257, uv 0.8, conda 25 and pixi 0.50.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrapper:
    """One program that is put in front of another."""

    name: str
    example: str  # in front of a program; each is a test
    valued: str = ""  # its options that take a value as a word of its own
    verb: str = ""  # pattern of the word that has to follow; without it nothing is started
    argument: str = ""  # pattern of a word between the options and the program
    after: str = ""  # the option behind which the program stands
    forks: bool = False  # the program is a child of its, not what it becomes
    elsewhere: bool = False  # it looks the program up in an environment of its own


_CONDA = "-n --name -p --prefix --cwd"
_SIZE = r"[\da-fx,-]+"

WRAPPERS: tuple[Wrapper, ...] = (
    Wrapper("catchsegv", "catchsegv", forks=True),
    Wrapper("choom", "choom -n 500 --", "-n --adjust -p --pid"),
    Wrapper("chronic", "chronic -v", forks=True),
    Wrapper("chrt", "chrt -f 50", "-T --sched-runtime -P --sched-period -D --sched-deadline"
        " -p --pid", argument=r"\d+"),
    Wrapper("conda", "conda run --no-capture-output -n vllm", _CONDA, verb="run", forks=True,
        elsewhere=True),
    Wrapper("dumb-init", "dumb-init -c --", "-r --rewrite", forks=True),
    Wrapper("eatmydata", "eatmydata --"),
    Wrapper("env", "env -u DEBUG HF_HUB_OFFLINE=1", "-u --unset -C --chdir -S --split-string"
        " -a --argv0"),
    Wrapper("flock", "flock -w 5 /tmp/lock", "-w --wait --timeout -E --conflict-exit-code",
        argument=r"[^-].*", forks=True),
    Wrapper("gdb", "gdb -q -ex run --args", after="--args", forks=True),
    Wrapper("ionice", "ionice -c 2 -n0", "-c --class -n --classdata -p --pid -P --pgid -u --uid"),
    Wrapper("ltrace", "ltrace -f -o log", "-o --output -e -x -p -s -u --user -l --library -a"
        " --align -A -D --debug -F --config -n --indent -w --where", forks=True),
    Wrapper("mamba", "mamba run -n vllm", _CONDA, verb="run", forks=True, elsewhere=True),
    Wrapper("micromamba", "micromamba run -n vllm", f"{_CONDA} -r --root-prefix -e --env -a"
        " --attach --label", verb="run", forks=True, elsewhere=True),
    Wrapper("nice", "nice -n 10", "-n --adjustment"),
    Wrapper("nohup", "nohup"),
    Wrapper("numactl", "numactl --cpunodebind=0 -m 0", "-i --interleave -w --weighted-interleave"
        " -m --membind -N --cpunodebind -C --physcpubind -p --preferred -P --preferred-many"),
    Wrapper("perf", "perf record -g -F 99 -o out --", "-o --output -F --freq -e --event -c --count"
        " -C --cpu --call-graph -m --mmap-pages -p --pid -t --tid -u --uid -k --clockid -D --delay"
        " -r --repeat -I --interval-print -x --field-separator -G --cgroup -M --metrics -j"
        " --branch-filter", verb="record|stat|trace", forks=True),
    Wrapper("pixi", "pixi run -e gpu", "-e --environment --manifest-path -m --color", verb="run",
        forks=True, elsewhere=True),
    Wrapper("prlimit", "prlimit --nofile=65536 -l=unlimited", "-p --pid -o --output"),
    Wrapper("rye", "rye run", "--pyproject", verb="run", forks=True, elsewhere=True),
    Wrapper("setarch", "setarch x86_64 -R", argument=r"(x86_64|aarch64|linux\d*|i\d86|uname26)"),
    Wrapper("setpriv", "setpriv --no-new-privs --reuid 1000", "--ruid --euid --reuid --rgid --egid"
        " --regid --groups --inh-caps --ambient-caps --bounding-set --securebits --pdeathsig"
        " --ptracer --selinux-label --apparmor-profile --landlock-access --landlock-rule"
        " --seccomp-filter"),
    Wrapper("setsid", "setsid -w"),
    Wrapper("stdbuf", "stdbuf -oL -e 0", "-i --input -o --output -e --error"),
    Wrapper("strace", "strace -f -e trace=openat -o log", "-o --output -e --trace -p --attach -s"
        " --string-limit -u --user -E --env -a --columns -P --trace-path -I --interruptible -b"
        " --detach-on -O --summary-syscall-overhead -S --summary-sort-by -U --summary-columns -X"
        " --const-print-style", forks=True),
    Wrapper("sudo", "sudo -E -u me", "-u --user -g --group -h --host -p --prompt -C --close-from -D"
        " --chdir -R --chroot -r --role -t --type -T --command-timeout -U --other-user",
        forks=True),
    Wrapper("systemd-run", "systemd-run --user --scope -p MemoryMax=8G", "-p --property -M"
        " --machine -H --host -u --unit --slice --description --service-type --uid --gid --nice"
        " --working-directory -E --setenv --on-active --on-boot --on-calendar --timer-property"),
    Wrapper("taskset", "taskset -a -c 0-7", argument=_SIZE),
    Wrapper("time", "time -v", "-f --format -o --output", forks=True),
    Wrapper("timeout", "timeout -s INT -k 5 60", "-k --kill-after -s --signal",
        argument=r"[\d.]+[smhd]?", forks=True),
    Wrapper("tini", "tini -s -g --", "-p -e", forks=True),
    Wrapper("unbuffer", "unbuffer -p", forks=True),
    Wrapper("uv", "uv run --with vllm -p 3.12", "-p --python --with --with-editable"
        " --with-requirements --extra --group --only-group --no-extra --no-group --env-file"
        " --package --project --directory --config-file --cache-dir --index --default-index -i"
        " --index-url --extra-index-url -f --find-links -P --upgrade-package --refresh-package"
        " --reinstall-package -C --config-setting --color", verb="run", forks=True,
        elsewhere=True),
    Wrapper("xvfb-run", "xvfb-run -a -s opts", "-e --error-file -f --auth-file -n --server-num -p"
        " --xauth-protocol -s --server-args -w --wait", forks=True),
)  # fmt: skip

BY_NAME = {wrapper.name: wrapper for wrapper in WRAPPERS}
