"""The supervisor of sandbox.py: a job in JSON on standard input, the outcome in JSON on standard output.

This process isolates itself and forks a keeper, the first process of a new process namespace. The keeper forks a child
for each run, watches time and output, and exits, whereupon the kernel kills everything that the program started. Uses
only the standard library, so that it starts fast.
"""

import ast
import builtins
import contextlib
import ctypes
import io
import itertools
import json
import math
import operator
import os
import resource
import secrets
import select
import signal
import socket
import struct
import sys
import sysconfig
import time
import types

MEMORY_BYTES = 1 << 30  # address space per process
FILE_BYTES = 16 << 20
OUTPUT_BYTES = 1 << 20  # standard output and error per run
OPEN_FILES, PROCESSES = 64, 16
HONEST = "__honest__"  # a name in the tests
OPERATORS = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt,
    "GtE": operator.ge, "Is": operator.is_, "IsNot": operator.is_not, "Sub": operator.sub,
    "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
}  # fmt: skip
PLAIN = (bool, int, float, complex, str, bytes, type(None))
DEEPEST, MOST_ITEMS, SET_ITEMS = 4, 1_000, 10  # nesting depth; items per container; items of the set on the other side
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_PID, NEW_NET, NEW_IPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
NO_NEW_PRIVILEGES, SUBREAPER, PARENT_DEATH_SIGNAL = 38, 36, 1
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
READ_FILE, READ_FOLDER = 1 << 2, 1 << 3
WRITING = sum(1 << bit for bit in (1, *range(4, 13)))  # write, remove and make files of every kind
TRUNCATE = 1 << 14  # supported since Landlock's third version
TCP = 0b11  # bind and connect, since the fourth


def main() -> None:
    job = json.load(sys.stdin)
    namespaces = isolate()
    shut_in = {"namespaces": namespaces, "files": guard_files(os.getcwd(), readable(namespaces))}
    if job.get("probe"):
        print(json.dumps(shut_in))
        return
    keeper = os.fork()
    if keeper == 0:
        keep(job, shut_in["namespaces"])
    os.waitpid(keeper, 0)


def isolate() -> bool:
    """Requests new namespaces for the next fork, without privileges in them; returns whether the kernel allows it."""
    LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    LIBC.prctl(SUBREAPER, 1, 0, 0, 0)
    done = LIBC.unshare(NEW_USER | NEW_PID | NEW_NET | NEW_IPC) == 0
    if done:
        LIBC.capset(struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6))
    return done


def readable(namespaces: bool) -> list[str]:
    """The files and folders that a program may read: the interpreter, its libraries and the system's libraries."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [sys.executable, f"{sys.prefix}/pyvenv.cfg", f"{sys.base_prefix}/lib"]
    found += ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"]
    found += ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/sys/devices/system/cpu"]
    # Without namespaces, the keeper searches /proc for left-over processes.
    return found if namespaces else [*found, "/proc"]


def guard_files(folder: str, readable: list[str]) -> bool:
    """Confines writing to `folder` and /dev/null, and reading to `folder` and `readable`; False without Landlock."""
    version = LIBC.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    rights = WRITING | READ_FILE | READ_FOLDER | (TRUNCATE if version >= 3 else 0)
    rules = struct.pack("QQ", rights, TCP) if version >= 4 else struct.pack("Q", rights)
    ruleset = LIBC.syscall(LANDLOCK_CREATE, rules, len(rules), 0)
    rules = [(folder, rights), ("/dev/null", rights & (1 << 1 | TRUNCATE))]
    for path in filter(os.path.exists, readable):
        rules.append((path, READ_FILE | READ_FOLDER if os.path.isdir(path) else READ_FILE))
    for path, allowed in rules:
        place = os.open(path, os.O_PATH)
        LIBC.syscall(LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", allowed, place), 0)
        os.close(place)
    return LIBC.syscall(LANDLOCK_RESTRICT, ruleset, 0) == 0


def keep(job: dict, isolated: bool) -> None:
    """Runs the job, writes the outcome and exits, which ends every process of its process namespace."""
    LIBC.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    LIBC.prctl(SUBREAPER, 1, 0, 0, 0)
    deadline = time.monotonic() + job["wall"]
    outcome = with_tests(job, deadline, isolated) if job["tests"] else with_cases(job, deadline, isolated)
    if not isolated:
        end_children()
    os.write(1, json.dumps(outcome).encode())
    os._exit(0)


def with_tests(job: dict, deadline: float, isolated: bool) -> dict:
    secret = secrets.token_hex(16)

    def program(report: int) -> None:
        passed, space = 0, module_space("solution")
        write, names = os.write, dict(vars(builtins))
        exec(compile(job["setup"], "setup", "exec"), space)
        exec(compile(job["source"], "program", "exec"), space)
        vars(builtins).update(names)  # the program may have replaced some
        space[HONEST] = honest
        for number, test in enumerate(job["tests"]):
            with contextlib.suppress(BaseException):
                checked = ast.fix_missing_locations(HonestOperators().visit(ast.parse(test)))
                exec(compile(checked, f"test {number}", "exec"), space)
                passed += 1
        write(report, f"{secret} {passed}".encode())

    status, _, report = run(program, b"", job["cpu"], deadline, isolated)
    said, _, passed = report.decode("utf-8", "replace").partition(" ")
    known = said == secret
    if status == "ok" and not known:
        status = "crash"
    return {"status": status, "passed": int(passed) if known else 0, "total": len(job["tests"])}


def module_space(name: str) -> dict:
    """The namespace of a new module for a program, registered because dataclasses, pickle and typing look it up."""
    module = types.ModuleType(name)
    sys.modules[name] = sys.modules["__main__"] = module
    return vars(module)


class HonestOperators(ast.NodeTransformer):
    """Replaces every comparison and subtraction in a test by a call of `honest`."""

    def visit_Compare(self, node: ast.Compare) -> ast.Call:
        self.generic_visit(node)
        names = ast.Constant(" ".join(type(one).__name__ for one in node.ops))
        return ast.Call(ast.Name(HONEST, ast.Load()), [names, node.left, *node.comparators], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Sub):
            return node
        return ast.Call(ast.Name(HONEST, ast.Load()), [ast.Constant("Sub"), node.left, node.right], [])


def honest(names: str, *values):
    """The result of a chain of operators; AssertionError if an operand's operators contradict themselves (`lies`)."""
    result = None
    for name, left, right in zip(names.split(), values, values[1:], strict=False):
        pairs = [(left, right)]
        if name in ("In", "NotIn") and isinstance(right, list | tuple | set | frozenset | dict):
            pairs += ((left, one) for one in itertools.islice(right, MOST_ITEMS))
        if any(lies(one, other) or lies(other, one) for one, other in pairs):
            raise AssertionError("an operand contradicts itself")
        result = OPERATORS[name](left, right)
        if name != "Sub" and name != names and not result:  # a chain ends at the first that does not hold
            return result
    return result


def lies(value, other, depth: int = 0) -> bool:
    """Whether the operators of a value, or of an item in it, contradict themselves, as in an object made to pass tests.

    Contradictions: it equals or contains a fresh object(); it equals both `other` and a different value; it is both
    less and greater than `other`; it is neither equal nor unequal to it; subtracting `other` and a distant number give
    the same result.
    """
    if type(value) in PLAIN or depth > DEEPEST:
        return False
    contradictions = [
        lambda: value == object(),
        lambda: hasattr(type(value), "__contains__") and object() in value,  # `in` would advance an iterator
        lambda: value == other and any(value == one != other for one in neighbours(other)),
        lambda: value < other and value > other,
        lambda: (value == other) is (value != other) is False,
        lambda: isinstance(other, int | float) and value - other == value - (1_000 * other + 1_000_000) != value,
    ]
    for contradiction in contradictions:
        with contextlib.suppress(Exception):  # of objects that support only some operands
            if contradiction():
                return True
    if isinstance(value, list | tuple):
        facing = other if isinstance(other, list | tuple) else ()
        pairs = itertools.zip_longest(*(itertools.islice(side, MOST_ITEMS) for side in (value, facing)))
    elif isinstance(value, dict):
        facing = other if isinstance(other, dict) else {}
        pairs = ((value[key], facing.get(key)) for key in itertools.islice(value, MOST_ITEMS))
        pairs = itertools.chain(pairs, ((key, None) for key in itertools.islice(value, MOST_ITEMS)))
    elif isinstance(value, set | frozenset):
        facing = list(itertools.islice(other, SET_ITEMS)) if isinstance(other, set | frozenset) else [None]
        pairs = itertools.product(itertools.islice(value, MOST_ITEMS), facing)
    else:
        return False
    return any(lies(one, facing, depth + 1) for one, facing in pairs)


def neighbours(value) -> list:
    """Values of the same type that differ from it, also as floats; [] for a type that has none."""
    if isinstance(value, bool) or value is None:
        return [value is False, 0 if value is None else None]
    if isinstance(value, int | float) and math.isfinite(value):
        step = max(1, int(abs(value) // 1_000))
        return [value + step, value - step]
    if isinstance(value, str):
        return [value + "x", "x" + value]
    if isinstance(value, bytes | list | tuple):
        return [value + value[:1] + type(value)([0]), value + type(value)([0, 0])]
    if isinstance(value, set | frozenset):
        return [value | {HONEST}]
    return [{**value, HONEST: 0}] if isinstance(value, dict) else []


def with_cases(job: dict, deadline: float, isolated: bool) -> dict:
    def program(report: int) -> None:
        exec(compile(job["source"], "program", "exec"), module_space("__main__"))

    passed, worst = 0, "ok"
    for case in job["cases"]:
        status, printed, _ = run(program, case["input"].encode(), job["cpu"], deadline, isolated)
        if status != "ok":
            worst = status
        elif lines(printed.decode("utf-8", "replace")) == lines(case["output"]):
            passed += 1
        if status == "time":
            break
    return {"status": worst, "passed": passed, "total": len(job["cases"])}


def lines(text: str) -> list[str]:
    """The lines without trailing white space and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def run(program, given: bytes, cpu: int, deadline: float, isolated: bool) -> tuple[str, bytes, bytes]:
    """(status, standard output, report) of `program(report fd)` in a child with `given` on its standard input."""
    pipes = [os.pipe() for _ in range(3)]  # output, errors, report
    child = os.fork()
    if child == 0:
        become(program, given, [writing for _, writing in pipes], cpu, isolated)
    texts = {reading: b"" for reading, _ in pipes}
    for _, writing in pipes:
        os.close(writing)
    status, ended = "ok", False
    while not ended and status == "ok":
        # A process that the program left behind may hold the pipes open, so wait for the child, not for their end.
        pid, code = os.waitpid(child, os.WNOHANG)
        ended = pid == child
        ready, _, _ = select.select(list(texts), [], [], 0 if ended else 0.02)
        for reading in ready:
            part = os.read(reading, 1 << 16)
            texts[reading] += part
            if not part and not ended:
                time.sleep(0.002)  # closed, so select always reports it as ready
        if len(texts[pipes[0][0]]) + len(texts[pipes[1][0]]) > OUTPUT_BYTES:
            status = "output"
        elif ended and code != 0:
            status = "time" if os.WIFSIGNALED(code) and os.WTERMSIG(code) == signal.SIGXCPU else "crash"
        elif not ended and time.monotonic() > deadline:
            status = "time"
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    output, report = (drained(pipes[place][0], texts[pipes[place][0]]) for place in (0, 2))
    for reading, _ in pipes:
        os.close(reading)
    if status == "ok" and len(output) > OUTPUT_BYTES:
        status = "output"
    if status == "ok" and left_running():
        status = "processes"
    return status, output, report


def drained(pipe: int, text: bytes) -> bytes:
    """`text` plus what is left in the pipe."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while len(text) <= OUTPUT_BYTES and (part := os.read(pipe, 1 << 16)):
            text += part
    return text


def become(program, given: bytes, writings: list[int], cpu: int, isolated: bool) -> None:
    """Runs the program in the child, with limits and standard streams; exits with 0, or with 1 after an exception."""
    stdin = os.memfd_create("input")
    os.write(stdin, given)
    os.lseek(stdin, 0, os.SEEK_SET)
    report = os.dup2(writings[2], 9)
    for place, descriptor in enumerate((stdin, writings[0], writings[1])):
        os.dup2(descriptor, place)
    os.closerange(3, 9)
    os.closerange(10, 4096)
    for limit, value in (
        (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        resource.setrlimit(limit, (value, value + (limit == resource.RLIMIT_CPU)))
    if isolated:
        # Counted per namespace; without one, the user's other processes would count too.
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
    else:
        socket.socket = refuse_socket
    sys.stdin, sys.stdout = io.TextIOWrapper(io.FileIO(0)), io.TextIOWrapper(io.FileIO(1, "w"), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), write_through=True)
    status = 1
    try:
        program(report)
        status = 0
    except SystemExit as error:
        status = 0 if error.code in (None, 0) else 1
    except BaseException:
        status = 1
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(status)


def refuse_socket(*_, **__):
    raise PermissionError("there is no network here")


def left_running() -> bool:
    """Whether a process that the program started is still running. The keeper adopts orphans."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_children() -> None:
    """Kills all descendants of this process, including those that left its process group."""
    for _ in range(100):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        children = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == os.getpid()]
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    main()
