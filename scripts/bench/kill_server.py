"""Kills the vLLM server of training runs at random moments, starts it again, and resumes the runs.

    .venv-vllm/bin/python scripts/bench/kill_server.py --kills 10 --json kills.json

Every run is the demo with `--vllm_mode server`, a few steps and a checkpoint after each, and every start has
`--resume auto`. kill -9 comes at moments drawn as in kill_resume.py. A run that has lost its server must end with
status 2 and one sentence, and the same command must continue from its last checkpoint once the server is back, up to
the last step. Weights are compared with those of an uninterrupted run, and the largest difference is printed: requests
reach the server in no fixed order, so rounding may differ.

Exit status 1 if a run ends otherwise, a resume fails, or a checkpoint is lost.
"""

import argparse
import json
import os
import random
import runpy
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _root import use_checkout

ROOT = use_checkout()
sys.path.append(str(ROOT / "scripts"))

import vllm_server
from kill_resume import end, forked, moment, never, newest, starter, uninterrupted, wait, weight_gap

from trainer.engines.vllm.server_http import ServerError, ServerHTTP
from trainer.engines.vllm.size import Size

MODEL = ROOT / "scripts/demo/tiny_model"
SIZE = Size(max_length=4096, rows=64, memory=0.1)
PATIENCE = 20  # seconds that a run waits for a server that is not there


class Server:
    """A server that can be killed and started again on the same port.

    It is forked, as the runs are, so that vLLM is imported once.

    Args:
        log: what it prints.
    """

    def __init__(self, log: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.http, self.log, self.process = ServerHTTP(f"http://127.0.0.1:{port}", 10.0), log, None
        _, _, module, *flags = vllm_server.command(str(MODEL), SIZE, None, ["--port", str(port)])
        self.module, self.flags = module, flags

    def up(self) -> None:
        """Starts it, unless it runs; returns once it answers."""
        if self.process is None:
            self.process = forked(self._serve, self.log)
        while True:
            assert not os.waitpid(self.process, os.WNOHANG)[0], self.log.read_text()[-2000:]
            try:
                self.http.get("/health")
                return
            except ServerError:
                time.sleep(0.5)

    def _serve(self) -> None:
        alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # the worker in the engine's process: one import less
        os.environ.update(vllm_server.environment_of(dict(os.environ)) | alone)
        sys.argv = [self.module, *self.flags]
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)

    def kill(self) -> None:
        if self.process is not None:
            end(self.process)
            self.process = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=6, help="optimiser steps per run (default 6)")
    parser.add_argument("--train", type=str.split, default=[], help="further flags of train.py, as one argument")
    parser.add_argument("--seed", type=int, default=0, help="seed for the moments of the kills")
    parser.add_argument("--json", help="write the results to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "server.log")
        try:
            metrics = campaign(args, Path(folder), server)
        finally:
            server.kill()
    print(json.dumps(metrics, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    sys.exit(int(metrics["lost_checkpoints"] > 0))


def campaign(args, folder: Path, server: Server) -> dict:
    flags = ["--use_vllm", "true", "--vllm_mode", "server", "--vllm_server_base_url", server.http.url]
    args.processes, args.train = 1, [*flags, "--vllm_server_timeout", str(PATIENCE), *args.train]
    start = starter(args)
    server.up()
    seconds, times = uninterrupted(start, folder)
    moments, gaps, sentences = random.Random(args.seed), [], []
    kills = through = resumes = lost = 0
    while kills < args.kills or not gaps:
        run, log = folder / f"run{len(gaps)}", folder / f"run{len(gaps)}.log"
        finished = False
        while not finished:
            server.up()
            there = newest(run)
            process = start(run, log)
            status = wait(process, moment(moments, run, args.steps, *times) if kills < args.kills else never)
            killed = status is None
            if killed:
                server.kill()
                kills += 1
                status = wait(process)
            text = log.read_text()
            code = os.waitstatus_to_exitcode(status)
            finished = code == 0
            through += finished and killed
            lost += newest(run) < there
            resumes += "going on from" in text
            if not finished:
                assert killed and code == 2 and sentence(text, server), text[-2000:]
                sentences.append(sentence(text, server))
            how = sentences[-1] if not finished else "through without the server" if killed else "through"
            print(f"{run.name}: {how}, checkpoint {newest(run)}", flush=True)
        gaps.append(weight_gap(folder / "whole", run))
    return {
        "kills": kills,
        "runs": len(gaps),
        "sentences": len(sentences),
        "through_without_the_server": through,
        "resumes": resumes,
        "lost_checkpoints": lost,
        "max_weight_gap": max(gaps),
        "seconds_of_a_run": round(seconds, 1),
    }


def sentence(text: str, server: Server) -> str | None:
    """The last line of a run's output, if it says that the server is gone and no traceback came before."""
    last = text.strip().rpartition("\n")[2]
    return last if server.http.url in last and "Traceback" not in text else None


if __name__ == "__main__":
    main()
